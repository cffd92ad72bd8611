"""Who may do what in which phase, and the codes that say so (the order of checks is Kafka's)."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from coterie.groups.classic.machine import step
from coterie.groups.classic.messages import PendingMemberTimer, SessionTimer
from coterie.groups.classic.state import Group, Limits, Phase
from coterie.groups.effects import TimerFired
from coterie.nouns.ids import GroupId, MemberId
from coterie.wire.errors import ErrorCode

if TYPE_CHECKING:
    from tests.groups.classic.conftest import Play


# -- JoinGroup ------------------------------------------------------------------------------------------------------


def test_a_group_without_a_name_is_refused(play: "Play") -> None:
    play.group = Group(GroupId(""), Limits())
    assert play.error(play.join()) is ErrorCode.invalid_group_id
    assert play.heartbeat("m1") is ErrorCode.invalid_group_id
    assert play.error(play.sync("m1")) is ErrorCode.invalid_group_id
    assert play.leave("m1").error is ErrorCode.invalid_group_id


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001])
def test_a_session_timeout_out_of_range_is_refused(play: "Play", session_ms: int) -> None:
    assert play.error(play.join(session_ms=session_ms)) is ErrorCode.invalid_session_timeout


def test_an_id_that_was_never_handed_out_is_unknown_also_in_a_group_that_nobody_heard_of(play: "Play") -> None:
    join = play.join("ghost", protocols=())
    assert play.joined(join).error is ErrorCode.unknown_member_id
    assert play.joined(join).member_id == "ghost"
    assert play.group.is_unheard_of


@pytest.mark.parametrize(
    ("protocol_type", "protocols"),
    [("", (("v1", b""),)), ("connect", ()), ("consumer", (("v1", b""),)), ("connect", (("v0", b""),))],
)
def test_a_member_that_shares_no_protocol_with_the_others_is_refused(
    play: "Play", protocol_type: str, protocols: tuple[tuple[str, bytes], ...]
) -> None:
    play.settle(2)
    assert play.error(play.join(protocol_type=protocol_type, protocols=protocols)) is (
        ErrorCode.inconsistent_group_protocol
    )
    assert play.phase is Phase.STABLE


def test_the_first_member_too_has_to_offer_something(play: "Play") -> None:
    assert play.error(play.join(protocols=())) is ErrorCode.inconsistent_group_protocol
    assert play.error(play.join(protocol_type="")) is ErrorCode.inconsistent_group_protocol
    assert play.phase is Phase.EMPTY


def test_a_new_member_learns_its_id_first_where_its_version_knows_of_that(play: "Play") -> None:
    first = play.joined(play.join(knows_ids=True))
    assert (first.error, first.member_id) == (ErrorCode.member_id_required, "m1")
    assert not play.group.members
    second = play.join("m1", knows_ids=True)
    assert play.waits(second)
    assert play.phase is Phase.PREPARING_REBALANCE


def test_an_id_that_nobody_joins_with_is_forgotten_after_its_session_timeout(play: "Play") -> None:
    play.join(knows_ids=True)
    play.wait(10_000)
    assert play.error(play.join("m1")) is ErrorCode.unknown_member_id


def test_a_join_phase_waits_for_the_ids_that_were_handed_out(play: "Play") -> None:
    play.settle(1)
    play.join(knows_ids=True)
    rejoin = play.join("m1")
    assert play.waits(rejoin)
    play.wait(10_000)
    assert play.joined(rejoin).generation == 2


def test_a_follower_that_rejoins_unchanged_gets_the_same_generation(play: "Play") -> None:
    play.settle(2)
    answer = play.joined(play.join("m2"))
    assert (answer.error, answer.generation, answer.leader, answer.members) == (ErrorCode.none, 1, "m1", ())
    assert play.phase is Phase.STABLE


def test_a_follower_that_rejoins_with_other_metadata_starts_a_round(play: "Play") -> None:
    play.settle(2)
    assert play.waits(play.join("m2", protocols=(("v1", b"I run more now"),)))
    assert play.phase is Phase.PREPARING_REBALANCE


def test_a_leader_that_rejoins_always_starts_a_round(play: "Play") -> None:
    play.settle(2)
    assert play.waits(play.join("m1"))
    assert play.phase is Phase.PREPARING_REBALANCE


def test_who_missed_the_answer_to_its_join_is_told_again(play: "Play") -> None:
    leader, follower = play.join(), play.join()
    play.wait(6_000)
    assert play.phase is Phase.COMPLETING_REBALANCE
    assert play.joined(play.join("m1")).members == play.joined(leader).members
    assert play.joined(play.join("m2")) == play.joined(follower)
    assert play.phase is Phase.COMPLETING_REBALANCE


def test_a_join_that_is_sent_again_replaces_the_parked_one(play: "Play") -> None:
    play.settle(2)
    lost = play.join("m1")
    again = play.join("m1")
    assert play.error(lost) is ErrorCode.rebalance_in_progress
    play.join("m2")
    assert play.joined(again).generation == 2


def test_a_group_has_room_for_so_many(new_play: "Callable[[Limits], Play]") -> None:
    play = new_play(Limits(group_size_max=2))
    play.settle(2)
    assert play.error(play.join()) is ErrorCode.group_max_size_reached
    assert play.heartbeat("m1") is ErrorCode.none


# -- SyncGroup ------------------------------------------------------------------------------------------------------


def test_followers_wait_for_the_leaders_sync_and_get_their_own_part(play: "Play") -> None:
    play.join()
    play.join()
    play.wait(6_000)
    follower = play.sync("m2")
    assert play.waits(follower)
    leader = play.sync("m1", assignments={"m1": b"one", "m2": b"two"})
    assert (play.synced(leader).assignment, play.synced(follower).assignment) == (b"one", b"two")
    assert play.synced(play.sync("m2")).assignment == b"two", "a stable group says it again"


def test_whom_the_leader_forgot_gets_nothing_and_whom_it_invented_is_ignored(play: "Play") -> None:
    play.join()
    play.join()
    play.wait(6_000)
    follower = play.sync("m2")
    play.sync("m1", assignments={"m1": b"one", "m9": b"nine"})
    assert play.synced(follower).assignment == b""
    assert play.group.written is not None
    assert set(play.group.written.members) == {"m1", "m2"}


def test_a_sync_is_refused_by_member_generation_and_protocol_in_this_order(play: "Play") -> None:
    play.settle(2)
    assert play.error(play.sync("ghost", 7)) is ErrorCode.unknown_member_id
    assert play.error(play.sync("m1", 0, protocol="v9")) is ErrorCode.illegal_generation
    assert play.error(play.sync("m1", protocol="v9")) is ErrorCode.inconsistent_group_protocol
    assert play.error(play.sync("m1", protocol_type="consumer")) is ErrorCode.inconsistent_group_protocol
    assert play.error(play.sync("m1", protocol_type="connect", protocol="v1")) is ErrorCode.none
    play.join("m1")
    assert play.error(play.sync("m2")) is ErrorCode.rebalance_in_progress


def test_parked_syncs_are_told_to_rejoin_when_another_round_begins(play: "Play") -> None:
    play.join()
    play.join()
    play.wait(6_000)
    follower = play.sync("m2")
    play.join()
    assert play.error(follower) is ErrorCode.rebalance_in_progress
    assert play.phase is Phase.PREPARING_REBALANCE


def test_who_does_not_sync_within_the_rebalance_timeout_is_removed(play: "Play") -> None:
    play.join(rebalance_ms=8_000)
    play.join(rebalance_ms=8_000)
    play.wait(6_000)
    follower = play.sync("m2")
    play.wait(8_000)
    assert play.error(follower) is ErrorCode.rebalance_in_progress
    assert play.heartbeat("m1") is ErrorCode.unknown_member_id
    assert play.joined(play.join("m2")).leader == "m2"


# -- Heartbeat ------------------------------------------------------------------------------------------------------


def test_a_heartbeat_is_answered_by_phase(play: "Play") -> None:
    assert play.heartbeat("m1", 0) is ErrorCode.unknown_member_id
    play.join()
    play.join()
    play.wait(6_000)
    assert play.phase is Phase.COMPLETING_REBALANCE
    assert play.heartbeat("m2") is ErrorCode.none
    assert play.heartbeat("m2", 0) is ErrorCode.illegal_generation
    play.sync("m1")
    assert play.heartbeat("m2") is ErrorCode.none
    play.join("m1")
    assert play.heartbeat("m2") is ErrorCode.rebalance_in_progress
    assert play.heartbeat("ghost") is ErrorCode.unknown_member_id


def test_a_silent_member_is_removed_after_its_session_timeout(play: "Play") -> None:
    play.settle(2)
    play.wait(6_000)
    assert play.heartbeat("m1") is ErrorCode.none
    play.wait(4_000)
    assert play.heartbeat("m2", 1) is ErrorCode.unknown_member_id
    assert play.heartbeat("m1") is ErrorCode.rebalance_in_progress


def test_a_heartbeat_keeps_a_member_also_while_the_group_waits_for_it(play: "Play") -> None:
    play.settle(2)
    play.join("m1")
    for _ in range(5):
        play.wait(9_000)
        assert play.heartbeat("m2") is ErrorCode.rebalance_in_progress


# -- LeaveGroup -----------------------------------------------------------------------------------------------------


def test_several_may_leave_at_once_each_with_its_own_code(play: "Play") -> None:
    play.settle(3)
    play.join(knows_ids=True)
    left = play.leave("m2", "ghost", "m3", "m4")
    assert left.error is ErrorCode.none
    assert left.members == (
        ("m2", ErrorCode.none),
        ("ghost", ErrorCode.unknown_member_id),
        ("m3", ErrorCode.none),
        ("m4", ErrorCode.none),
    )
    assert play.heartbeat("m1") is ErrorCode.rebalance_in_progress


def test_the_last_one_to_leave_makes_the_group_empty_with_a_generation_of_its_own(play: "Play") -> None:
    play.settle(1)
    play.leave("m1")
    assert (play.phase, play.group.generation) == (Phase.EMPTY, 2)
    assert play.generations[-1].members == {}
    play.restart()
    assert (play.phase, play.group.generation) == (Phase.EMPTY, 2)


def test_nobody_is_a_member_of_a_group_that_nobody_heard_of(play: "Play") -> None:
    left = play.leave("m1", "")
    assert left.error is ErrorCode.none
    assert left.members == (("m1", ErrorCode.unknown_member_id), ("", ErrorCode.unknown_member_id))


def test_who_leaves_while_it_waits_is_answered(play: "Play") -> None:
    play.settle(2)
    join = play.join("m1")
    play.leave("m1")
    assert play.error(join) is ErrorCode.unknown_member_id


# -- timers and the group's own life ----------------------------------------------------------------------------------


def test_a_timer_that_comes_too_early_or_belongs_to_nobody_is_nothing(play: "Play") -> None:
    play.settle(2)
    for key in (SessionTimer(member_id=MemberId("m1")), PendingMemberTimer(member_id=MemberId("m9"))):
        output = step(play.group, TimerFired(key=key), now_ms=play.now_ms)
        assert (output.records, output.effects) == ((), ())


def test_after_a_restart_every_stable_member_has_a_full_session_and_its_generation(play: "Play") -> None:
    play.settle(3)
    play.wait(9_000)
    play.restart()
    assert play.phase is Phase.STABLE
    play.wait(9_999)
    for member_id in ("m1", "m2", "m3"):
        assert play.heartbeat(member_id, 1) is ErrorCode.none
    assert play.synced(play.sync("m3")).assignment == b"m3"


def test_after_a_restart_the_leader_is_still_the_leader(play: "Play") -> None:
    play.settle(2)
    play.restart()
    play.join("m2", protocols=(("v1", b"more"),))
    rejoin = play.join("m1")
    assert play.joined(rejoin).leader == "m1"


def test_a_generation_that_was_never_assigned_is_joined_anew_after_a_restart_and_never_given_out_again(
    play: "Play",
) -> None:
    play.settle(2)
    play.join("m2", protocols=(("v1", b"more"),))
    play.join("m1")
    assert (play.phase, play.group.generation) == (Phase.COMPLETING_REBALANCE, 2)
    play.restart()
    assert play.phase is Phase.PREPARING_REBALANCE
    assert play.error(play.sync("m1", 2, assignments={"m1": b"late"})) is ErrorCode.rebalance_in_progress
    play.join("m2")
    assert play.joined(play.join("m1")).generation == 3
