"""Static members (KIP-345): who keeps its place over a restart, and who is fenced."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from coterie.groups.classic.messages import JoinedMember, JoinPhaseTimer
from coterie.groups.classic.state import Limits, Phase
from coterie.groups.effects import TimerFired
from coterie.nouns.ids import InstanceId, MemberId
from coterie.wire.errors import ErrorCode

if TYPE_CHECKING:
    from tests.groups.classic.conftest import Play


def settle(play: "Play", *instances: str, session_ms: int = 10_000) -> list[str]:
    """A stable group of static members; the first one leads, each has its instance id as its assignment."""
    joins = [play.join(instance=instance, session_ms=session_ms) for instance in instances]
    play.wait(play.limits.initial_rebalance_delay_ms * 2)
    member_ids = [str(play.joined(join).member_id) for join in joins]
    assignments = {member_id: instance.encode() for member_id, instance in zip(member_ids, instances, strict=True)}
    for member_id, instance in reversed(list(zip(member_ids, instances, strict=True))):
        play.sync(member_id, assignments=assignments, instance=instance)
    assert play.phase is Phase.STABLE
    return member_ids


# -- a restart --------------------------------------------------------------------------------------------------------


def test_a_static_member_needs_no_second_request_to_learn_its_id(play: "Play") -> None:
    join = play.join(instance="a", knows_ids=True)
    play.wait(6_000)
    assert (play.error(join), play.joined(join).member_id) == (ErrorCode.none, "m1")


def test_a_static_member_bounces_and_nobody_notices(play: "Play") -> None:
    settle(play, "a", "b", "c")
    # b is killed: it says nothing, and is back before its session ends, with other things to say of itself.
    play.wait(5_000)
    for member_id, instance in (("m1", "a"), ("m3", "c")):
        assert play.heartbeat(member_id, 1, instance=instance) is ErrorCode.none
    back = play.joined(play.join(instance="b", protocols=(("v1", b"I own nothing yet"),)))
    assert (back.error, back.generation, back.member_id, back.leader) == (ErrorCode.none, 1, "m4", "m1")
    assert (back.members, back.skip_assignment) == ((), False)
    # It gets what it had, the others go on, and its session is whole.
    assert play.synced(play.sync("m4", 1, instance="b")).assignment == b"b"
    play.wait(9_999)
    assert play.heartbeat("m4", 1, instance="b") is ErrorCode.none
    assert play.phase is Phase.STABLE


def test_the_new_member_id_is_written_before_anybody_hears_of_it(play: "Play") -> None:
    settle(play, "a", "b")
    lines = len(play.generations)
    play.join(instance="b", protocols=(("v1", b"back"),))
    (record,) = play.generations[lines:]
    assert record.members.keys() == {"m1", "m3"}
    assert (record.generation, record.leader, record.protocol) == (1, "m1", "v1")
    assert record.members[MemberId("m3")].assignment == b"b"
    assert record.members[MemberId("m3")].subscription == b"back"
    assert record.members[MemberId("m3")].instance_id == "b"
    play.restart()
    assert play.heartbeat("m3", 1, instance="b") is ErrorCode.none
    assert play.heartbeat("m2", 1, instance="b") is ErrorCode.fenced_instance_id


def test_a_leader_bounces_and_is_told_that_it_leads_and_need_not_assign(play: "Play") -> None:
    settle(play, "a", "b")
    back = play.joined(play.join(instance="a", protocols=(("v1", b"back"),)))
    assert (back.generation, back.member_id, back.leader, back.skip_assignment) == (1, "m3", "m3", True)
    assert back.members == (
        JoinedMember(member_id=MemberId("m2"), metadata=b"I am new", instance_id=InstanceId("b")),
        JoinedMember(member_id=MemberId("m3"), metadata=b"back", instance_id=InstanceId("a")),
    )
    assert play.synced(play.sync("m3", 1, instance="a")).assignment == b"a"
    # As the leader it may ask for a round whenever it likes.
    assert play.waits(play.join("m3", instance="a"))


def test_a_leader_of_an_older_version_that_bounces_takes_itself_for_a_follower(play: "Play") -> None:
    settle(play, "a", "b")
    back = play.joined(play.join(instance="a", version=8))
    assert (back.member_id, back.leader, back.skip_assignment, back.members) == ("m3", "m1", False, ())
    assert play.group.leader == "m3"


def test_three_static_members_are_upgraded_one_by_one_in_one_generation(play: "Play") -> None:
    settle(play, "a", "b", "c")
    known = {"a": "m1", "b": "m2", "c": "m3"}
    for instance in ("b", "a", "c"):
        for _ in range(2):
            play.wait(4_500)
            for other in known.keys() - {instance}:
                assert play.heartbeat(known[other], 1, instance=other) is ErrorCode.none
        back = play.joined(play.join(instance=instance, protocols=(("v1", b"a newer build"),)))
        assert back.error is ErrorCode.none
        known[instance] = back.member_id
        assert play.synced(play.sync(back.member_id, 1, instance=instance)).assignment == instance.encode()
    assert (play.phase, play.group.generation) == (Phase.STABLE, 1)


def test_a_protocol_that_would_win_the_vote_makes_a_round(play: "Play") -> None:
    settle(play, "a")
    back = play.joined(play.join(instance="a", protocols=(("v2", b""), ("v1", b""))))
    assert (back.generation, back.protocol, back.skip_assignment) == (2, "v2", False)


def test_a_member_that_is_back_while_the_group_syncs_starts_the_round_again(play: "Play") -> None:
    play.join(instance="a")
    play.join(instance="b")
    play.wait(6_000)
    waiting = play.sync("m2", instance="b")
    back = play.join(instance="a")
    # The leader might have assigned to an id that is nobody's any more.
    assert play.error(waiting) is ErrorCode.rebalance_in_progress
    assert play.waits(back)
    play.join("m2", instance="b")
    assert (play.joined(back).generation, play.joined(back).leader) == (2, "m3")


def test_a_member_that_is_back_while_the_group_joins_takes_its_own_place(play: "Play") -> None:
    settle(play, "a", "b")
    leader = play.join("m1", instance="a")
    back = play.join(instance="b")
    assert [one.instance_id for one in play.joined(leader).members] == ["a", "b"]
    assert (play.joined(back).member_id, play.joined(back).generation) == ("m3", 2)


def test_a_member_that_is_back_without_having_synced_still_has_to(play: "Play") -> None:
    joins = [play.join(instance=instance) for instance in "ab"]
    play.wait(6_000)
    assert not any(play.waits(join) for join in joins)
    play.sync("m1", instance="a")
    back = play.joined(play.join(instance="b"))
    assert (back.generation, back.member_id, play.phase) == (1, "m3", Phase.STABLE)
    for _ in range(12):
        assert {play.heartbeat("m1", 1), play.heartbeat("m3", 1)} == {ErrorCode.none}
        play.wait(5_000)
    assert play.heartbeat("m3", 1) is ErrorCode.unknown_member_id
    assert play.heartbeat("m1", 1) is ErrorCode.rebalance_in_progress


def test_a_full_group_has_room_for_the_one_that_comes_back(new_play: "Callable[[Limits], Play]") -> None:
    play = new_play(Limits(group_size_max=2))
    settle(play, "a", "b")
    assert play.joined(play.join(instance="b")).generation == 1
    assert play.error(play.join(instance="c")) is ErrorCode.group_max_size_reached


def test_nobody_is_let_in_on_the_place_of_one_that_is_away(new_play: "Callable[[Limits], Play]") -> None:
    play = new_play(Limits(group_size_max=2))
    settle(play, "a", "b")
    leader = play.join("m1", instance="a")
    assert play.error(play.join()) is ErrorCode.group_max_size_reached
    back = play.joined(play.join(instance="b"))
    assert (back.error, back.generation) == (ErrorCode.none, 2)
    assert [one.instance_id for one in play.joined(leader).members] == ["a", "b"]


# -- away -------------------------------------------------------------------------------------------------------------


def test_who_stays_away_is_missed_when_its_session_ends(play: "Play") -> None:
    settle(play, "a", "b")
    play.wait(6_000)
    play.heartbeat("m1", 1)
    play.wait(4_000)
    assert play.heartbeat("m1", 1) is ErrorCode.rebalance_in_progress
    assert play.heartbeat("m2", 1, instance="b") is ErrorCode.unknown_member_id
    assert play.waits(play.join(instance="b")), "it comes back as a new member"


def test_a_join_phase_does_not_drop_a_static_member_that_is_away(play: "Play") -> None:
    settle(play, "a", "b", session_ms=90_000)
    dynamic = play.join()
    play.join("m1", instance="a", session_ms=90_000)
    play.wait(60_000)
    assert [one.instance_id for one in play.joined(play.join("m1", instance="a")).members] == ["a", "b", None]
    play.sync("m1", assignments={"m2": b"kept for b"}, instance="a")
    play.sync("m3")
    assert not play.waits(dynamic)
    # Back in time, it has what the leader gave it meanwhile; and it is not missed for its sync either.
    back = play.joined(play.join(instance="b"))
    assert (back.error, back.generation) == (ErrorCode.none, 2)
    assert play.synced(play.sync(back.member_id, 2, instance="b")).assignment == b"kept for b"


def test_who_is_away_is_not_waited_for_in_sync_but_its_session_runs_on(play: "Play") -> None:
    settle(play, "a", "b", session_ms=90_000)
    play.join()
    play.join("m1", instance="a", session_ms=90_000)
    play.wait(60_000)
    play.sync("m1", instance="a")
    play.sync("m3")
    for _ in range(4):
        assert play.heartbeat("m3", 2) is ErrorCode.none
        play.wait(6_000)
    assert play.heartbeat("m3", 2) is ErrorCode.none
    play.wait(6_000)
    assert "m2" not in play.group.members
    assert play.heartbeat("m3", 2) is ErrorCode.rebalance_in_progress


def test_a_leader_that_is_away_leads_no_round(play: "Play") -> None:
    settle(play, "a", "b", session_ms=90_000)
    rejoin = play.join("m2", instance="b", protocols=(("v1", b"more"),), session_ms=90_000)
    play.wait(60_000)
    assert play.joined(rejoin).leader == "m2"
    assert {one.instance_id for one in play.joined(rejoin).members} == {"a", "b"}


def test_a_round_to_which_nobody_comes_waits_for_the_first_who_does(play: "Play") -> None:
    settle(play, "a", "b", session_ms=200_000)
    join = play.join()
    play.leave("m3")
    assert play.error(join) is ErrorCode.unknown_member_id
    play.wait(100_000)
    assert (play.phase, play.group.generation) == (Phase.PREPARING_REBALANCE, 1)
    back = play.join(instance="b", session_ms=200_000)
    play.wait(60_000)
    assert (play.joined(back).generation, play.joined(back).leader) == (2, "m4")


def test_a_round_to_which_nobody_comes_looks_again_no_sooner_than_a_session_may_end(play: "Play") -> None:
    settle(play, "a")
    # It leads, so it may ask for a round: from now on with no time for one.
    play.join("m1", instance="a", session_ms=200_000, rebalance_ms=0)
    play.sync("m1", instance="a")
    play.join(rebalance_ms=1_000)
    play.leave("m2")
    play.now_ms = play.group.deadlines[JoinPhaseTimer()]
    play.feed(TimerFired(key=JoinPhaseTimer()))
    assert play.phase is Phase.PREPARING_REBALANCE
    assert play.group.deadlines[JoinPhaseTimer()] == play.now_ms + play.limits.session_timeout_min_ms


def test_after_a_crash_in_the_sync_phase_a_static_member_has_to_come_back_like_the_others(play: "Play") -> None:
    settle(play, "a", "b", session_ms=90_000)
    play.join("m1", instance="a", session_ms=90_000)
    play.join("m2", instance="b", session_ms=90_000)
    assert (play.phase, play.group.generation) == (Phase.COMPLETING_REBALANCE, 2)
    play.restart()
    # Nothing is known of what they offer: no leader could assign to the one that is away.
    rejoin = play.join("m1", instance="a", session_ms=90_000)
    play.wait(60_000)
    assert [one.instance_id for one in play.joined(rejoin).members] == ["a"]


# -- fencing ----------------------------------------------------------------------------------------------------------


def test_the_one_who_came_last_is_the_one_and_the_other_is_fenced_whatever_it_asks(play: "Play") -> None:
    settle(play, "a", "b")
    play.join(instance="b")
    assert play.heartbeat("m2", 1, instance="b") is ErrorCode.fenced_instance_id
    assert play.error(play.sync("m2", 1, instance="b")) is ErrorCode.fenced_instance_id
    fenced = play.joined(play.join("m2", instance="b"))
    assert (fenced.error, fenced.member_id) == (ErrorCode.fenced_instance_id, "m2")
    assert play.leave("m2", instance="b").members == (("m2", ErrorCode.fenced_instance_id),)
    # Without its instance id it is nobody at all.
    assert play.heartbeat("m2", 1) is ErrorCode.unknown_member_id
    assert play.heartbeat("m3", 1, instance="b") is ErrorCode.none


def test_who_waits_in_join_is_fenced_at_once(play: "Play") -> None:
    first = play.join(instance="a")
    second = play.join(instance="a")
    assert (play.error(first), play.joined(first).member_id) == (ErrorCode.fenced_instance_id, "m1")
    play.wait(6_000)
    assert (play.error(second), len(play.joined(second).members)) == (ErrorCode.none, 1)


def test_who_waits_in_sync_is_fenced_at_once(play: "Play") -> None:
    play.join(instance="a")
    play.join(instance="b")
    play.wait(6_000)
    waiting = play.sync("m2", instance="b")
    play.join(instance="b")
    assert play.error(waiting) is ErrorCode.fenced_instance_id


def test_an_instance_that_nobody_knows_is_an_unknown_member(play: "Play") -> None:
    settle(play, "a")
    assert play.heartbeat("m1", 1, instance="z") is ErrorCode.unknown_member_id
    assert play.error(play.sync("m1", 1, instance="z")) is ErrorCode.unknown_member_id
    assert play.error(play.join("m1", instance="z")) is ErrorCode.unknown_member_id


def test_an_id_that_was_handed_out_to_a_dynamic_member_is_no_static_one(play: "Play") -> None:
    play.join(knows_ids=True)
    assert play.error(play.join("m1", instance="z")) is ErrorCode.unknown_member_id


# -- leaving ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("member_id", "instance"), [("", "b"), ("m2", "b"), ("m2", None)])
def test_a_static_member_may_be_made_to_leave_by_instance_or_by_member_id(
    play: "Play", member_id: str, instance: str | None
) -> None:
    settle(play, "a", "b")
    assert play.leave(member_id, instance=instance).members == ((member_id, ErrorCode.none),)
    assert play.group.static_members.keys() == {"a"}
    assert play.heartbeat("m1", 1) is ErrorCode.rebalance_in_progress


def test_nobody_leaves_under_an_instance_id_that_is_not_there(play: "Play") -> None:
    settle(play, "a")
    assert play.leave("", instance="z").members == (("", ErrorCode.unknown_member_id),)
    assert play.leave("m1", instance="z").members == (("m1", ErrorCode.unknown_member_id),)
    assert play.phase is Phase.STABLE
