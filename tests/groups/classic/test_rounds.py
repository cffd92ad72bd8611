"""The join phase: whom it waits for, for how long, and who leads afterwards."""

from typing import TYPE_CHECKING

from coterie.groups.classic.state import Phase
from coterie.wire.errors import ErrorCode

if TYPE_CHECKING:
    from tests.groups.classic.conftest import Play


def test_the_first_join_phase_lasts_the_initial_delay(play: "Play") -> None:
    join = play.join()
    play.wait(2_999)
    assert play.waits(join)
    play.wait(1)
    assert (play.joined(join).generation, play.joined(join).leader) == (1, "m1")


def test_the_initial_delay_is_extended_while_members_come_up_to_the_rebalance_timeout(play: "Play") -> None:
    first = play.join(rebalance_ms=10_000)
    for _ in range(4):
        play.wait(2_000)
        play.join(rebalance_ms=10_000)
    assert play.waits(first)
    play.wait(2_000)
    assert len(play.joined(first).members) == 5
    assert play.now_ms == 10_000


def test_the_join_phase_ends_as_soon_as_everybody_has_rejoined(play: "Play") -> None:
    play.settle(3)
    joins = [play.join(member) for member in ("m1", "m3", "m2")]
    assert {play.joined(join).generation for join in joins} == {2}
    assert play.phase is Phase.COMPLETING_REBALANCE


def test_who_does_not_rejoin_within_the_rebalance_timeout_is_dropped(play: "Play") -> None:
    play.settle(2)
    join = play.join("m1", rebalance_ms=60_000)
    for _ in range(6):
        play.wait(9_000)
        play.heartbeat("m2")
    assert play.waits(join)
    play.wait(6_000)
    assert [one.member_id for one in play.joined(join).members] == ["m1"]
    assert play.heartbeat("m2") is ErrorCode.unknown_member_id


def test_the_longest_rebalance_timeout_counts(play: "Play") -> None:
    play.join(rebalance_ms=7_000)
    play.join(rebalance_ms=20_000, session_ms=30_000)
    play.wait(6_000)
    play.sync("m2")
    play.sync("m1")
    rejoin = play.join("m1", rebalance_ms=7_000)
    play.wait(19_999)
    assert play.waits(rejoin)
    play.wait(1)
    assert not play.waits(rejoin)


def test_the_leader_stays_the_leader_also_when_it_rejoins_last(play: "Play") -> None:
    play.settle(3)
    play.join("m3", protocols=(("v1", b"more"),))
    play.join("m2")
    assert play.joined(play.join("m1")).leader == "m1"


def test_a_leader_that_is_gone_is_followed_by_the_member_that_rejoined_first(play: "Play") -> None:
    play.settle(3)
    play.leave("m1")
    third = play.join("m3")
    second = play.join("m2")
    assert play.joined(third).leader == play.joined(second).leader == "m3"
    assert [one.member_id for one in play.joined(third).members] == ["m2", "m3"]
    assert play.joined(second).members == ()


def test_a_leader_that_does_not_rejoin_in_time_is_followed_likewise(play: "Play") -> None:
    play.settle(3)
    play.join("m3", protocols=(("v1", b"more"),))
    second = play.join("m2")
    play.wait(10_000)
    assert play.joined(second).leader == "m3"


def test_a_new_member_waits_five_minutes_at_most(play: "Play") -> None:
    play.settle(1)
    new = play.join(rebalance_ms=600_000)
    for _ in range(34):
        play.wait(8_800)
        assert play.heartbeat("m1") is ErrorCode.rebalance_in_progress
    play.wait(8_000)
    assert play.error(new) is ErrorCode.unknown_member_id


def test_the_session_of_a_member_that_waits_in_join_does_not_end(play: "Play") -> None:
    play.settle(2)
    waiting = play.join("m1")
    for _ in range(3):
        play.wait(8_000)
        play.heartbeat("m2")
    play.join("m2")
    assert play.joined(waiting).error is ErrorCode.none


def test_a_new_member_during_the_sync_phase_starts_the_round_again(play: "Play") -> None:
    play.settle(1)
    new = play.join()
    play.join("m1")
    assert not play.waits(new)
    newer = play.join()
    assert play.phase is Phase.PREPARING_REBALANCE
    play.join("m1")
    play.join("m2")
    assert play.joined(new).generation == 2
    assert play.joined(newer).generation == 3


NEW_AND_OLD, OLD = (("new", b""), ("old", b"")), (("old", b""),)


def test_after_a_load_members_may_offer_more_than_is_known_of_them_so_they_are_asked(play: "Play") -> None:
    """A worker that is bounced to an older protocol has a place in its group, also just after a coordinator's crash."""
    play.join(protocols=NEW_AND_OLD)
    play.wait(3_000)
    play.sync("m1", assignments={"m1": b"all"})
    play.restart()
    assert play.error(play.join(protocols=OLD)) is ErrorCode.coordinator_load_in_progress
    assert play.heartbeat("m1") is ErrorCode.rebalance_in_progress
    play.join("m1", protocols=NEW_AND_OLD)
    newcomer = play.join(protocols=OLD)
    play.join("m1", protocols=NEW_AND_OLD)
    assert play.joined(newcomer).protocol == "old"


def test_who_has_nothing_in_common_with_a_loaded_group_costs_it_one_round_and_is_refused(play: "Play") -> None:
    play.join(protocols=NEW_AND_OLD)
    play.wait(3_000)
    play.sync("m1", assignments={"m1": b"all"})
    play.restart()
    alien = (("alien", b""),)
    assert play.error(play.join(protocols=alien, protocol_type="consumer")) is ErrorCode.inconsistent_group_protocol
    assert play.phase is Phase.STABLE
    assert play.error(play.join(protocols=alien)) is ErrorCode.coordinator_load_in_progress
    play.join("m1", protocols=NEW_AND_OLD)
    play.sync("m1", assignments={"m1": b"all"})
    assert play.error(play.join(protocols=alien)) is ErrorCode.inconsistent_group_protocol
    assert (play.phase, play.group.generation) == (Phase.STABLE, 2)
