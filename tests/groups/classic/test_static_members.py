"""Static members (KIP-345): which member keeps its membership over a restart, and which is fenced."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from coterie.groups.classic.messages import JoinedMember, JoinPhaseTimer
from coterie.groups.classic.state import ClassicGroupSettings, GroupPhase
from coterie.groups.effects import TimerFired
from coterie.nouns.ids import InstanceId, MemberId
from coterie.wire.errors import ErrorCode

if TYPE_CHECKING:
    from tests.groups.classic.conftest import GroupDriver


def settle(driver: "GroupDriver", *instances: str, session_ms: int = 10_000) -> list[str]:
    """A stable group of static members; the first one leads, each has its instance id as its assignment."""
    joins = [driver.join(instance=instance, session_ms=session_ms) for instance in instances]
    driver.advance_clock(driver.limits.initial_rebalance_delay_ms * 2)
    member_ids = [str(driver.join_response(join).member_id) for join in joins]
    assignments = {member_id: instance.encode() for member_id, instance in zip(member_ids, instances, strict=True)}
    for member_id, instance in reversed(list(zip(member_ids, instances, strict=True))):
        driver.sync(member_id, assignments=assignments, instance=instance)
    assert driver.phase is GroupPhase.STABLE
    return member_ids


# -- a restart --------------------------------------------------------------------------------------------------------


def test_a_static_member_needs_no_second_request_to_get_its_id(driver: "GroupDriver") -> None:
    join = driver.join(instance="a", requires_known_member_id=True)
    driver.advance_clock(6_000)
    assert (driver.error(join), driver.join_response(join).member_id) == (ErrorCode.none, "m1")


def test_a_static_member_restarts_without_a_rebalance(driver: "GroupDriver") -> None:
    settle(driver, "a", "b", "c")
    # b is killed without a LeaveGroup, and joins again before its session ends, with other metadata.
    driver.advance_clock(5_000)
    for member_id, instance in (("m1", "a"), ("m3", "c")):
        assert driver.heartbeat(member_id, 1, instance=instance) is ErrorCode.none
    rejoined = driver.join_response(driver.join(instance="b", protocols=(("v1", b"I own nothing yet"),)))
    assert (rejoined.error, rejoined.generation, rejoined.member_id, rejoined.leader) == (ErrorCode.none, 1, "m4", "m1")
    assert (rejoined.members, rejoined.skip_assignment) == ((), False)
    # It gets its former assignment, the others continue, and it has a full session.
    assert driver.sync_response(driver.sync("m4", 1, instance="b")).assignment == b"b"
    driver.advance_clock(9_999)
    assert driver.heartbeat("m4", 1, instance="b") is ErrorCode.none
    assert driver.phase is GroupPhase.STABLE


def test_a_new_member_id_is_written_before_the_join_response(driver: "GroupDriver") -> None:
    settle(driver, "a", "b")
    lines = len(driver.generations)
    driver.join(instance="b", protocols=(("v1", b"back"),))
    (record,) = driver.generations[lines:]
    assert record.members.keys() == {"m1", "m3"}
    assert (record.generation, record.leader, record.protocol) == (1, "m1", "v1")
    assert record.members[MemberId("m3")].assignment == b"b"
    assert record.members[MemberId("m3")].subscription == b"back"
    assert record.members[MemberId("m3")].instance_id == "b"
    driver.restart()
    assert driver.heartbeat("m3", 1, instance="b") is ErrorCode.none
    assert driver.heartbeat("m2", 1, instance="b") is ErrorCode.fenced_instance_id


def test_a_leader_that_restarts_leads_again_and_may_skip_the_assignment(driver: "GroupDriver") -> None:
    settle(driver, "a", "b")
    rejoined = driver.join_response(driver.join(instance="a", protocols=(("v1", b"back"),)))
    assert (rejoined.generation, rejoined.member_id, rejoined.leader, rejoined.skip_assignment) == (1, "m3", "m3", True)
    assert rejoined.members == (
        JoinedMember(member_id=MemberId("m2"), metadata=b"I am new", instance_id=InstanceId("b")),
        JoinedMember(member_id=MemberId("m3"), metadata=b"back", instance_id=InstanceId("a")),
    )
    assert driver.sync_response(driver.sync("m3", 1, instance="a")).assignment == b"a"
    # As the leader it may start a rebalance at any time.
    assert driver.is_parked(driver.join("m3", instance="a"))


def test_a_restarted_leader_with_an_older_api_version_gets_a_followers_response(driver: "GroupDriver") -> None:
    settle(driver, "a", "b")
    rejoined = driver.join_response(driver.join(instance="a", version=8))
    assert (rejoined.member_id, rejoined.leader, rejoined.skip_assignment, rejoined.members) == ("m3", "m1", False, ())
    assert driver.group.leader == "m3"


def test_three_static_members_are_upgraded_one_by_one_in_one_generation(driver: "GroupDriver") -> None:
    settle(driver, "a", "b", "c")
    member_id_by_instance = {"a": "m1", "b": "m2", "c": "m3"}
    for instance in ("b", "a", "c"):
        for _ in range(2):
            driver.advance_clock(4_500)
            for other in member_id_by_instance.keys() - {instance}:
                assert driver.heartbeat(member_id_by_instance[other], 1, instance=other) is ErrorCode.none
        rejoined = driver.join_response(driver.join(instance=instance, protocols=(("v1", b"a newer build"),)))
        assert rejoined.error is ErrorCode.none
        member_id_by_instance[instance] = rejoined.member_id
        assert (
            driver.sync_response(driver.sync(rejoined.member_id, 1, instance=instance)).assignment == instance.encode()
        )
    assert (driver.phase, driver.group.generation) == (GroupPhase.STABLE, 1)


def test_a_rejoin_that_changes_the_selected_protocol_triggers_a_rebalance(driver: "GroupDriver") -> None:
    settle(driver, "a")
    rejoined = driver.join_response(driver.join(instance="a", protocols=(("v2", b""), ("v1", b""))))
    assert (rejoined.generation, rejoined.protocol, rejoined.skip_assignment) == (2, "v2", False)


def test_a_static_member_that_rejoins_in_the_sync_phase_starts_another_rebalance(driver: "GroupDriver") -> None:
    driver.join(instance="a")
    driver.join(instance="b")
    driver.advance_clock(6_000)
    waiting = driver.sync("m2", instance="b")
    rejoined = driver.join(instance="a")
    # The leader might have assigned to a member id that no longer exists.
    assert driver.error(waiting) is ErrorCode.rebalance_in_progress
    assert driver.is_parked(rejoined)
    driver.join("m2", instance="b")
    assert (driver.join_response(rejoined).generation, driver.join_response(rejoined).leader) == (2, "m3")


def test_a_static_member_that_rejoins_in_the_join_phase_replaces_itself(driver: "GroupDriver") -> None:
    settle(driver, "a", "b")
    leader = driver.join("m1", instance="a")
    rejoined = driver.join(instance="b")
    assert [member.instance_id for member in driver.join_response(leader).members] == ["a", "b"]
    assert (driver.join_response(rejoined).member_id, driver.join_response(rejoined).generation) == ("m3", 2)


def test_a_static_member_that_rejoins_before_its_sync_must_still_sync(driver: "GroupDriver") -> None:
    joins = [driver.join(instance=instance) for instance in "ab"]
    driver.advance_clock(6_000)
    assert not any(driver.is_parked(join) for join in joins)
    driver.sync("m1", instance="a")
    rejoined = driver.join_response(driver.join(instance="b"))
    assert (rejoined.generation, rejoined.member_id, driver.phase) == (1, "m3", GroupPhase.STABLE)
    for _ in range(12):
        assert {driver.heartbeat("m1", 1), driver.heartbeat("m3", 1)} == {ErrorCode.none}
        driver.advance_clock(5_000)
    assert driver.heartbeat("m3", 1) is ErrorCode.unknown_member_id
    assert driver.heartbeat("m1", 1) is ErrorCode.rebalance_in_progress


def test_a_full_group_accepts_a_returning_static_member(
    new_driver: "Callable[[ClassicGroupSettings], GroupDriver]",
) -> None:
    driver = new_driver(ClassicGroupSettings(group_size_max=2))
    settle(driver, "a", "b")
    assert driver.join_response(driver.join(instance="b")).generation == 1
    assert driver.error(driver.join(instance="c")) is ErrorCode.group_max_size_reached


def test_an_absent_static_member_counts_for_the_size_limit(
    new_driver: "Callable[[ClassicGroupSettings], GroupDriver]",
) -> None:
    driver = new_driver(ClassicGroupSettings(group_size_max=2))
    settle(driver, "a", "b")
    leader = driver.join("m1", instance="a")
    assert driver.error(driver.join()) is ErrorCode.group_max_size_reached
    rejoined = driver.join_response(driver.join(instance="b"))
    assert (rejoined.error, rejoined.generation) == (ErrorCode.none, 2)
    assert [member.instance_id for member in driver.join_response(leader).members] == ["a", "b"]


# -- absent members ---------------------------------------------------------------------------------------------------


def test_an_absent_static_member_is_removed_when_its_session_ends(driver: "GroupDriver") -> None:
    settle(driver, "a", "b")
    driver.advance_clock(6_000)
    driver.heartbeat("m1", 1)
    driver.advance_clock(4_000)
    assert driver.heartbeat("m1", 1) is ErrorCode.rebalance_in_progress
    assert driver.heartbeat("m2", 1, instance="b") is ErrorCode.unknown_member_id
    assert driver.is_parked(driver.join(instance="b")), "it joins as a new member"


def test_a_join_phase_does_not_remove_an_absent_static_member(driver: "GroupDriver") -> None:
    settle(driver, "a", "b", session_ms=90_000)
    dynamic = driver.join()
    driver.join("m1", instance="a", session_ms=90_000)
    driver.advance_clock(60_000)
    assert [member.instance_id for member in driver.join_response(driver.join("m1", instance="a")).members] == [
        "a",
        "b",
        None,
    ]
    driver.sync("m1", assignments={"m2": b"kept for b"}, instance="a")
    driver.sync("m3")
    assert not driver.is_parked(dynamic)
    # Back in time, it gets what the leader assigned to it meanwhile; its missing sync does not remove it either.
    rejoined = driver.join_response(driver.join(instance="b"))
    assert (rejoined.error, rejoined.generation) == (ErrorCode.none, 2)
    assert driver.sync_response(driver.sync(rejoined.member_id, 2, instance="b")).assignment == b"kept for b"


def test_the_sync_phase_does_not_wait_for_an_absent_static_member_but_its_session_continues(
    driver: "GroupDriver",
) -> None:
    settle(driver, "a", "b", session_ms=90_000)
    driver.join()
    driver.join("m1", instance="a", session_ms=90_000)
    driver.advance_clock(60_000)
    driver.sync("m1", instance="a")
    driver.sync("m3")
    for _ in range(4):
        assert driver.heartbeat("m3", 2) is ErrorCode.none
        driver.advance_clock(6_000)
    assert driver.heartbeat("m3", 2) is ErrorCode.none
    driver.advance_clock(6_000)
    assert "m2" not in driver.group.members
    assert driver.heartbeat("m3", 2) is ErrorCode.rebalance_in_progress


def test_an_absent_leader_is_replaced_as_the_leader(driver: "GroupDriver") -> None:
    settle(driver, "a", "b", session_ms=90_000)
    rejoin = driver.join("m2", instance="b", protocols=(("v1", b"more"),), session_ms=90_000)
    driver.advance_clock(60_000)
    assert driver.join_response(rejoin).leader == "m2"
    assert {member.instance_id for member in driver.join_response(rejoin).members} == {"a", "b"}


def test_a_join_phase_without_joins_waits_for_the_first_join(driver: "GroupDriver") -> None:
    settle(driver, "a", "b", session_ms=200_000)
    join = driver.join()
    driver.leave("m3")
    assert driver.error(join) is ErrorCode.unknown_member_id
    driver.advance_clock(100_000)
    assert (driver.phase, driver.group.generation) == (GroupPhase.PREPARING_REBALANCE, 1)
    rejoined = driver.join(instance="b", session_ms=200_000)
    driver.advance_clock(60_000)
    assert (driver.join_response(rejoined).generation, driver.join_response(rejoined).leader) == (2, "m4")


def test_a_join_phase_without_joins_is_checked_again_no_sooner_than_a_session_may_end(driver: "GroupDriver") -> None:
    settle(driver, "a")
    # It leads, so it may start a rebalance: from now on with a rebalance timeout of zero.
    driver.join("m1", instance="a", session_ms=200_000, rebalance_ms=0)
    driver.sync("m1", instance="a")
    driver.join(rebalance_ms=1_000)
    driver.leave("m2")
    driver.now_ms = driver.group.deadlines[JoinPhaseTimer()]
    driver.feed(TimerFired(key=JoinPhaseTimer()))
    assert driver.phase is GroupPhase.PREPARING_REBALANCE
    assert driver.group.deadlines[JoinPhaseTimer()] == driver.now_ms + driver.limits.session_timeout_min_ms


def test_after_a_crash_in_the_sync_phase_a_static_member_has_to_rejoin_like_the_others(driver: "GroupDriver") -> None:
    settle(driver, "a", "b", session_ms=90_000)
    driver.join("m1", instance="a", session_ms=90_000)
    driver.join("m2", instance="b", session_ms=90_000)
    assert (driver.phase, driver.group.generation) == (GroupPhase.COMPLETING_REBALANCE, 2)
    driver.restart()
    # The members' protocols are unknown: no leader could assign to the absent member.
    rejoin = driver.join("m1", instance="a", session_ms=90_000)
    driver.advance_clock(60_000)
    assert [member.instance_id for member in driver.join_response(rejoin).members] == ["a"]


# -- fencing ----------------------------------------------------------------------------------------------------------


def test_the_latest_join_fences_every_request_of_the_previous_member_id(driver: "GroupDriver") -> None:
    settle(driver, "a", "b")
    driver.join(instance="b")
    assert driver.heartbeat("m2", 1, instance="b") is ErrorCode.fenced_instance_id
    assert driver.error(driver.sync("m2", 1, instance="b")) is ErrorCode.fenced_instance_id
    fenced = driver.join_response(driver.join("m2", instance="b"))
    assert (fenced.error, fenced.member_id) == (ErrorCode.fenced_instance_id, "m2")
    assert driver.leave("m2", instance="b").members == (("m2", ErrorCode.fenced_instance_id),)
    # Without its instance id it is an unknown member.
    assert driver.heartbeat("m2", 1) is ErrorCode.unknown_member_id
    assert driver.heartbeat("m3", 1, instance="b") is ErrorCode.none


def test_a_parked_join_of_a_replaced_member_is_fenced_at_once(driver: "GroupDriver") -> None:
    first = driver.join(instance="a")
    second = driver.join(instance="a")
    assert (driver.error(first), driver.join_response(first).member_id) == (ErrorCode.fenced_instance_id, "m1")
    driver.advance_clock(6_000)
    assert (driver.error(second), len(driver.join_response(second).members)) == (ErrorCode.none, 1)


def test_a_parked_sync_of_a_replaced_member_is_fenced_at_once(driver: "GroupDriver") -> None:
    driver.join(instance="a")
    driver.join(instance="b")
    driver.advance_clock(6_000)
    waiting = driver.sync("m2", instance="b")
    driver.join(instance="b")
    assert driver.error(waiting) is ErrorCode.fenced_instance_id


def test_an_unknown_instance_id_gets_unknown_member_id(driver: "GroupDriver") -> None:
    settle(driver, "a")
    assert driver.heartbeat("m1", 1, instance="z") is ErrorCode.unknown_member_id
    assert driver.error(driver.sync("m1", 1, instance="z")) is ErrorCode.unknown_member_id
    assert driver.error(driver.join("m1", instance="z")) is ErrorCode.unknown_member_id


def test_a_member_id_issued_to_a_dynamic_member_cannot_be_used_by_a_static_one(driver: "GroupDriver") -> None:
    driver.join(requires_known_member_id=True)
    assert driver.error(driver.join("m1", instance="z")) is ErrorCode.unknown_member_id


# -- leaving ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("member_id", "instance"), [("", "b"), ("m2", "b"), ("m2", None)])
def test_a_static_member_can_be_removed_by_instance_id_or_by_member_id(
    driver: "GroupDriver", member_id: str, instance: str | None
) -> None:
    settle(driver, "a", "b")
    assert driver.leave(member_id, instance=instance).members == ((member_id, ErrorCode.none),)
    assert driver.group.static_members.keys() == {"a"}
    assert driver.heartbeat("m1", 1) is ErrorCode.rebalance_in_progress


def test_a_leave_with_an_unknown_instance_id_removes_no_member(driver: "GroupDriver") -> None:
    settle(driver, "a")
    assert driver.leave("", instance="z").members == (("", ErrorCode.unknown_member_id),)
    assert driver.leave("m1", instance="z").members == (("m1", ErrorCode.unknown_member_id),)
    assert driver.phase is GroupPhase.STABLE
