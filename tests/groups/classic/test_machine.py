"""Which requests are allowed in which phase, and the error codes of the others (the order of checks is Kafka's)."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from coterie.groups.classic.machine import step
from coterie.groups.classic.messages import PendingMemberTimer, SessionTimer
from coterie.groups.classic.state import ClassicGroupSettings, Group, GroupPhase
from coterie.groups.effects import TimerFired
from coterie.nouns.ids import GroupId, MemberId
from coterie.wire.errors import ErrorCode

if TYPE_CHECKING:
    from tests.groups.classic.conftest import GroupDriver


# -- JoinGroup ------------------------------------------------------------------------------------------------------


def test_a_group_without_an_id_is_refused(driver: "GroupDriver") -> None:
    driver.group = Group(GroupId(""), ClassicGroupSettings())
    assert driver.error(driver.join()) is ErrorCode.invalid_group_id
    assert driver.heartbeat("m1") is ErrorCode.invalid_group_id
    assert driver.error(driver.sync("m1")) is ErrorCode.invalid_group_id
    assert driver.leave("m1").error is ErrorCode.invalid_group_id


@pytest.mark.parametrize("session_ms", [5_999, 1_800_001])
def test_a_session_timeout_out_of_range_is_refused(driver: "GroupDriver", session_ms: int) -> None:
    assert driver.error(driver.join(session_ms=session_ms)) is ErrorCode.invalid_session_timeout


def test_a_member_id_that_was_never_issued_is_unknown_also_in_a_nonexistent_group(driver: "GroupDriver") -> None:
    join = driver.join("ghost", protocols=())
    assert driver.join_response(join).error is ErrorCode.unknown_member_id
    assert driver.join_response(join).member_id == "ghost"
    assert driver.group.is_nonexistent


@pytest.mark.parametrize(
    ("protocol_type", "protocols"),
    [("", (("v1", b""),)), ("connect", ()), ("consumer", (("v1", b""),)), ("connect", (("v0", b""),))],
)
def test_a_member_that_shares_no_protocol_with_the_others_is_refused(
    driver: "GroupDriver", protocol_type: str, protocols: tuple[tuple[str, bytes], ...]
) -> None:
    driver.settle(2)
    assert driver.error(driver.join(protocol_type=protocol_type, protocols=protocols)) is (
        ErrorCode.inconsistent_group_protocol
    )
    assert driver.phase is GroupPhase.STABLE


def test_the_first_member_must_support_a_protocol_too(driver: "GroupDriver") -> None:
    assert driver.error(driver.join(protocols=())) is ErrorCode.inconsistent_group_protocol
    assert driver.error(driver.join(protocol_type="")) is ErrorCode.inconsistent_group_protocol
    assert driver.phase is GroupPhase.EMPTY


def test_a_new_member_gets_its_id_first_if_its_api_version_requires_it(driver: "GroupDriver") -> None:
    first = driver.join_response(driver.join(requires_known_member_id=True))
    assert (first.error, first.member_id) == (ErrorCode.member_id_required, "m1")
    assert not driver.group.members
    second = driver.join("m1", requires_known_member_id=True)
    assert driver.is_parked(second)
    assert driver.phase is GroupPhase.PREPARING_REBALANCE


def test_an_unused_member_id_expires_after_its_session_timeout(driver: "GroupDriver") -> None:
    driver.join(requires_known_member_id=True)
    driver.advance_clock(10_000)
    assert driver.error(driver.join("m1")) is ErrorCode.unknown_member_id


def test_a_join_phase_waits_for_issued_member_ids(driver: "GroupDriver") -> None:
    driver.settle(1)
    driver.join(requires_known_member_id=True)
    rejoin = driver.join("m1")
    assert driver.is_parked(rejoin)
    driver.advance_clock(10_000)
    assert driver.join_response(rejoin).generation == 2


def test_a_follower_that_rejoins_unchanged_gets_the_same_generation(driver: "GroupDriver") -> None:
    driver.settle(2)
    response = driver.join_response(driver.join("m2"))
    assert (response.error, response.generation, response.leader, response.members) == (ErrorCode.none, 1, "m1", ())
    assert driver.phase is GroupPhase.STABLE


def test_a_follower_that_rejoins_with_other_metadata_starts_a_rebalance(driver: "GroupDriver") -> None:
    driver.settle(2)
    assert driver.is_parked(driver.join("m2", protocols=(("v1", b"I run more now"),)))
    assert driver.phase is GroupPhase.PREPARING_REBALANCE


def test_a_leader_that_rejoins_always_starts_a_rebalance(driver: "GroupDriver") -> None:
    driver.settle(2)
    assert driver.is_parked(driver.join("m1"))
    assert driver.phase is GroupPhase.PREPARING_REBALANCE


def test_a_repeated_join_in_the_sync_phase_gets_the_same_response(driver: "GroupDriver") -> None:
    leader, follower = driver.join(), driver.join()
    driver.advance_clock(6_000)
    assert driver.phase is GroupPhase.COMPLETING_REBALANCE
    assert driver.join_response(driver.join("m1")).members == driver.join_response(leader).members
    assert driver.join_response(driver.join("m2")) == driver.join_response(follower)
    assert driver.phase is GroupPhase.COMPLETING_REBALANCE


def test_a_repeated_join_replaces_the_parked_one(driver: "GroupDriver") -> None:
    driver.settle(2)
    lost = driver.join("m1")
    again = driver.join("m1")
    assert driver.error(lost) is ErrorCode.rebalance_in_progress
    driver.join("m2")
    assert driver.join_response(again).generation == 2


def test_a_full_group_refuses_another_member(new_driver: "Callable[[ClassicGroupSettings], GroupDriver]") -> None:
    driver = new_driver(ClassicGroupSettings(group_size_max=2))
    driver.settle(2)
    assert driver.error(driver.join()) is ErrorCode.group_max_size_reached
    assert driver.heartbeat("m1") is ErrorCode.none


# -- SyncGroup ------------------------------------------------------------------------------------------------------


def test_followers_wait_for_the_leaders_sync_and_get_their_own_assignments(driver: "GroupDriver") -> None:
    driver.join()
    driver.join()
    driver.advance_clock(6_000)
    follower = driver.sync("m2")
    assert driver.is_parked(follower)
    leader = driver.sync("m1", assignments={"m1": b"one", "m2": b"two"})
    assert (driver.sync_response(leader).assignment, driver.sync_response(follower).assignment) == (b"one", b"two")
    assert driver.sync_response(driver.sync("m2")).assignment == b"two", "a stable group repeats the response"


def test_a_member_missing_in_the_leaders_sync_gets_no_assignment_and_an_unknown_one_is_ignored(
    driver: "GroupDriver",
) -> None:
    driver.join()
    driver.join()
    driver.advance_clock(6_000)
    follower = driver.sync("m2")
    driver.sync("m1", assignments={"m1": b"one", "m9": b"nine"})
    assert driver.sync_response(follower).assignment == b""
    assert driver.group.generation_record is not None
    assert set(driver.group.generation_record.members) == {"m1", "m2"}


def test_a_sync_is_checked_for_member_generation_and_protocol_in_this_order(driver: "GroupDriver") -> None:
    driver.settle(2)
    assert driver.error(driver.sync("ghost", 7)) is ErrorCode.unknown_member_id
    assert driver.error(driver.sync("m1", 0, protocol="v9")) is ErrorCode.illegal_generation
    assert driver.error(driver.sync("m1", protocol="v9")) is ErrorCode.inconsistent_group_protocol
    assert driver.error(driver.sync("m1", protocol_type="consumer")) is ErrorCode.inconsistent_group_protocol
    assert driver.error(driver.sync("m1", protocol_type="connect", protocol="v1")) is ErrorCode.none
    driver.join("m1")
    assert driver.error(driver.sync("m2")) is ErrorCode.rebalance_in_progress


def test_parked_syncs_get_rebalance_in_progress_when_another_rebalance_begins(driver: "GroupDriver") -> None:
    driver.join()
    driver.join()
    driver.advance_clock(6_000)
    follower = driver.sync("m2")
    driver.join()
    assert driver.error(follower) is ErrorCode.rebalance_in_progress
    assert driver.phase is GroupPhase.PREPARING_REBALANCE


def test_a_member_that_does_not_sync_within_the_rebalance_timeout_is_removed(driver: "GroupDriver") -> None:
    driver.join(rebalance_ms=8_000)
    driver.join(rebalance_ms=8_000)
    driver.advance_clock(6_000)
    follower = driver.sync("m2")
    driver.advance_clock(8_000)
    assert driver.error(follower) is ErrorCode.rebalance_in_progress
    assert driver.heartbeat("m1") is ErrorCode.unknown_member_id
    assert driver.join_response(driver.join("m2")).leader == "m2"


# -- Heartbeat ------------------------------------------------------------------------------------------------------


def test_the_response_to_a_heartbeat_depends_on_the_phase(driver: "GroupDriver") -> None:
    assert driver.heartbeat("m1", 0) is ErrorCode.unknown_member_id
    driver.join()
    driver.join()
    driver.advance_clock(6_000)
    assert driver.phase is GroupPhase.COMPLETING_REBALANCE
    assert driver.heartbeat("m2") is ErrorCode.none
    assert driver.heartbeat("m2", 0) is ErrorCode.illegal_generation
    driver.sync("m1")
    assert driver.heartbeat("m2") is ErrorCode.none
    driver.join("m1")
    assert driver.heartbeat("m2") is ErrorCode.rebalance_in_progress
    assert driver.heartbeat("ghost") is ErrorCode.unknown_member_id


def test_a_member_without_heartbeats_is_removed_after_its_session_timeout(driver: "GroupDriver") -> None:
    driver.settle(2)
    driver.advance_clock(6_000)
    assert driver.heartbeat("m1") is ErrorCode.none
    driver.advance_clock(4_000)
    assert driver.heartbeat("m2", 1) is ErrorCode.unknown_member_id
    assert driver.heartbeat("m1") is ErrorCode.rebalance_in_progress


def test_heartbeats_keep_a_member_also_in_the_join_phase(driver: "GroupDriver") -> None:
    driver.settle(2)
    driver.join("m1")
    for _ in range(5):
        driver.advance_clock(9_000)
        assert driver.heartbeat("m2") is ErrorCode.rebalance_in_progress


# -- LeaveGroup -----------------------------------------------------------------------------------------------------


def test_several_members_may_leave_in_one_request_each_with_its_own_error_code(driver: "GroupDriver") -> None:
    driver.settle(3)
    driver.join(requires_known_member_id=True)
    response = driver.leave("m2", "ghost", "m3", "m4")
    assert response.error is ErrorCode.none
    assert response.members == (
        ("m2", ErrorCode.none),
        ("ghost", ErrorCode.unknown_member_id),
        ("m3", ErrorCode.none),
        ("m4", ErrorCode.none),
    )
    assert driver.heartbeat("m1") is ErrorCode.rebalance_in_progress


def test_after_the_last_leave_the_group_is_empty_in_a_new_generation(driver: "GroupDriver") -> None:
    driver.settle(1)
    driver.leave("m1")
    assert (driver.phase, driver.group.generation) == (GroupPhase.EMPTY, 2)
    assert driver.generations[-1].members == {}
    driver.restart()
    assert (driver.phase, driver.group.generation) == (GroupPhase.EMPTY, 2)


def test_a_leave_from_a_nonexistent_group_gets_unknown_member_id(driver: "GroupDriver") -> None:
    response = driver.leave("m1", "")
    assert response.error is ErrorCode.none
    assert response.members == (("m1", ErrorCode.unknown_member_id), ("", ErrorCode.unknown_member_id))


def test_a_leave_completes_a_parked_join_with_unknown_member_id(driver: "GroupDriver") -> None:
    driver.settle(2)
    join = driver.join("m1")
    driver.leave("m1")
    assert driver.error(join) is ErrorCode.unknown_member_id


# -- timers and restarts --------------------------------------------------------------------------------------------


def test_a_timer_that_fires_early_or_without_its_member_has_no_effect(driver: "GroupDriver") -> None:
    driver.settle(2)
    for key in (SessionTimer(member_id=MemberId("m1")), PendingMemberTimer(member_id=MemberId("m9"))):
        output = step(driver.group, TimerFired(key=key), now_ms=driver.now_ms)
        assert (output.records, output.effects) == ((), ())


def test_after_a_restart_every_stable_member_has_a_full_session_and_its_generation(driver: "GroupDriver") -> None:
    driver.settle(3)
    driver.advance_clock(9_000)
    driver.restart()
    assert driver.phase is GroupPhase.STABLE
    driver.advance_clock(9_999)
    for member_id in ("m1", "m2", "m3"):
        assert driver.heartbeat(member_id, 1) is ErrorCode.none
    assert driver.sync_response(driver.sync("m3")).assignment == b"m3"


def test_after_a_restart_the_leader_is_still_the_leader(driver: "GroupDriver") -> None:
    driver.settle(2)
    driver.restart()
    driver.join("m2", protocols=(("v1", b"more"),))
    rejoin = driver.join("m1")
    assert driver.join_response(rejoin).leader == "m1"


def test_after_a_restart_an_unassigned_generation_is_skipped_by_a_new_rebalance(
    driver: "GroupDriver",
) -> None:
    driver.settle(2)
    driver.join("m2", protocols=(("v1", b"more"),))
    driver.join("m1")
    assert (driver.phase, driver.group.generation) == (GroupPhase.COMPLETING_REBALANCE, 2)
    driver.restart()
    assert driver.phase is GroupPhase.PREPARING_REBALANCE
    assert driver.error(driver.sync("m1", 2, assignments={"m1": b"late"})) is ErrorCode.rebalance_in_progress
    driver.join("m2")
    assert driver.join_response(driver.join("m1")).generation == 3


def test_after_a_restart_a_sync_with_the_forgotten_protocol_gets_rebalance_in_progress(driver: "GroupDriver") -> None:
    """A consumer that gets INCONSISTENT_GROUP_PROTOCOL ends; one that gets REBALANCE_IN_PROGRESS rejoins."""
    driver.settle(1)
    driver.join("m1")
    assert (driver.phase, driver.group.generation) == (GroupPhase.COMPLETING_REBALANCE, 2)
    driver.restart()
    sync = driver.sync("m1", 2, assignments={"m1": b"late"}, protocol_type="connect", protocol="v1")
    assert driver.error(sync) is ErrorCode.rebalance_in_progress
    sync = driver.sync("m1", 2, protocol_type="consumer", protocol="v1")
    assert driver.error(sync) is ErrorCode.inconsistent_group_protocol
    rejoined = driver.join_response(driver.join("m1"))
    assert (rejoined.generation, rejoined.protocol) == (3, "v1")
