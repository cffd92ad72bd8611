from collections.abc import Callable
from typing import TYPE_CHECKING

from coterie.groups.classic.state import ClassicGroupSettings, GroupPhase
from coterie.wire.errors import ErrorCode

if TYPE_CHECKING:
    from tests.groups.classic.conftest import GroupDriver


def test_a_pending_member_id_does_not_count_for_the_size_limit(
    new_driver: "Callable[[ClassicGroupSettings], GroupDriver]",
) -> None:
    driver = new_driver(ClassicGroupSettings(group_size_max=2))
    driver.settle(1)
    pending = driver.join(requires_known_member_id=True)
    assert driver.error(pending) is ErrorCode.member_id_required
    second = driver.join()
    driver.join("m1")
    # Both members joined before the pending id did.
    assert driver.is_parked(second), "the join phase waits for the pending id"
    assert driver.error(driver.join("m2")) is ErrorCode.group_max_size_reached
    assert not driver.is_parked(second)


def test_in_an_oversized_group_the_first_members_to_rejoin_are_accepted(
    new_driver: "Callable[[ClassicGroupSettings], GroupDriver]",
) -> None:
    driver = new_driver(ClassicGroupSettings())
    driver.settle(3)
    driver.limits = ClassicGroupSettings(group_size_max=2)
    driver.restart()
    assert driver.phase is GroupPhase.PREPARING_REBALANCE, "its size limit was reduced while its coordinator was down"
    third, first = driver.join("m3"), driver.join("m1")
    assert driver.error(driver.join("m2")) is ErrorCode.group_max_size_reached
    assert {
        member.member_id for member in driver.join_response(first).members + driver.join_response(third).members
    } == {
        "m1",
        "m3",
    }


def test_the_number_of_pending_member_ids_is_limited(
    new_driver: "Callable[[ClassicGroupSettings], GroupDriver]",
) -> None:
    driver = new_driver(ClassicGroupSettings(pending_members_max=2))
    for _ in range(2):
        assert driver.error(driver.join(requires_known_member_id=True)) is ErrorCode.member_id_required
    assert driver.error(driver.join(requires_known_member_id=True)) is ErrorCode.coordinator_load_in_progress, (
        "clients retry"
    )
    driver.join("m1")
    assert driver.error(driver.join(requires_known_member_id=True)) is ErrorCode.member_id_required
    driver.advance_clock(10_000)
    assert driver.error(driver.join(requires_known_member_id=True)) is ErrorCode.member_id_required


def test_the_total_size_of_the_members_metadata_is_limited(
    new_driver: "Callable[[ClassicGroupSettings], GroupDriver]",
) -> None:
    driver = new_driver(ClassicGroupSettings(protocols_or_assignments_size_max_bytes=20))
    driver.join(protocols=(("v1", b"8 bytes."),))
    driver.join(protocols=(("v1", b"8 bytes."),))
    driver.advance_clock(6_000)
    driver.sync("m2")
    driver.sync("m1")
    assert driver.error(driver.join(protocols=(("v1", b""),))) is ErrorCode.group_max_size_reached
    assert driver.error(driver.join("m2", protocols=(("v1", b"9 bytes.."),))) is ErrorCode.group_max_size_reached
    assert driver.phase is GroupPhase.STABLE
    assert driver.heartbeat("m2") is ErrorCode.none, "it may stay in the group with its old metadata"
    assert driver.is_parked(driver.join("m2", protocols=(("v1", b"7 bytes"),)))


def test_the_total_size_of_the_assignments_is_limited(
    new_driver: "Callable[[ClassicGroupSettings], GroupDriver]",
) -> None:
    driver = new_driver(ClassicGroupSettings(protocols_or_assignments_size_max_bytes=30))
    driver.join()
    driver.join()
    driver.advance_clock(6_000)
    follower = driver.sync("m2")
    leader = driver.sync("m1", assignments={"m1": b"x" * 30, "m2": b"x"})
    assert (driver.error(follower), driver.error(leader)) == 2 * (ErrorCode.unknown_server_error,)
    assert driver.phase is GroupPhase.PREPARING_REBALANCE


def test_a_pending_member_that_leaves_removes_the_group_completely(driver: "GroupDriver") -> None:
    driver.join(requires_known_member_id=True)
    assert driver.leave("m1").members == (("m1", ErrorCode.none),)
    assert driver.group.is_nonexistent
    assert driver.timers.next_deadline_ms() is None
