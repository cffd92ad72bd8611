"""The join phase: for which members it waits, for how long, and which member leads afterwards."""

from typing import TYPE_CHECKING

from coterie.groups.classic.state import GroupPhase
from coterie.wire.errors import ErrorCode

if TYPE_CHECKING:
    from tests.groups.classic.conftest import GroupDriver


def test_the_first_join_phase_lasts_the_initial_delay(driver: "GroupDriver") -> None:
    join = driver.join()
    driver.advance_clock(2_999)
    assert driver.is_parked(join)
    driver.advance_clock(1)
    assert (driver.join_response(join).generation, driver.join_response(join).leader) == (1, "m1")


def test_the_initial_delay_is_extended_while_members_join_up_to_the_rebalance_timeout(driver: "GroupDriver") -> None:
    first = driver.join(rebalance_ms=10_000)
    for _ in range(4):
        driver.advance_clock(2_000)
        driver.join(rebalance_ms=10_000)
    assert driver.is_parked(first)
    driver.advance_clock(2_000)
    assert len(driver.join_response(first).members) == 5
    assert driver.now_ms == 10_000


def test_the_join_phase_ends_as_soon_as_all_members_have_rejoined(driver: "GroupDriver") -> None:
    driver.settle(3)
    joins = [driver.join(member) for member in ("m1", "m3", "m2")]
    assert {driver.join_response(join).generation for join in joins} == {2}
    assert driver.phase is GroupPhase.COMPLETING_REBALANCE


def test_a_member_that_does_not_rejoin_within_the_rebalance_timeout_is_removed(driver: "GroupDriver") -> None:
    driver.settle(2)
    join = driver.join("m1", rebalance_ms=60_000)
    for _ in range(6):
        driver.advance_clock(9_000)
        driver.heartbeat("m2")
    assert driver.is_parked(join)
    driver.advance_clock(6_000)
    assert [member.member_id for member in driver.join_response(join).members] == ["m1"]
    assert driver.heartbeat("m2") is ErrorCode.unknown_member_id


def test_the_longest_rebalance_timeout_of_all_members_applies(driver: "GroupDriver") -> None:
    driver.join(rebalance_ms=7_000)
    driver.join(rebalance_ms=20_000, session_ms=30_000)
    driver.advance_clock(6_000)
    driver.sync("m2")
    driver.sync("m1")
    rejoin = driver.join("m1", rebalance_ms=7_000)
    driver.advance_clock(19_999)
    assert driver.is_parked(rejoin)
    driver.advance_clock(1)
    assert not driver.is_parked(rejoin)


def test_the_leader_stays_the_leader_also_if_it_rejoins_last(driver: "GroupDriver") -> None:
    driver.settle(3)
    driver.join("m3", protocols=(("v1", b"more"),))
    driver.join("m2")
    assert driver.join_response(driver.join("m1")).leader == "m1"


def test_after_the_leader_left_the_member_that_rejoined_first_leads(driver: "GroupDriver") -> None:
    driver.settle(3)
    driver.leave("m1")
    third = driver.join("m3")
    second = driver.join("m2")
    assert driver.join_response(third).leader == driver.join_response(second).leader == "m3"
    assert [member.member_id for member in driver.join_response(third).members] == ["m2", "m3"]
    assert driver.join_response(second).members == ()


def test_after_the_leader_missed_the_join_phase_the_member_that_rejoined_first_leads(driver: "GroupDriver") -> None:
    driver.settle(3)
    driver.join("m3", protocols=(("v1", b"more"),))
    second = driver.join("m2")
    driver.advance_clock(10_000)
    assert driver.join_response(second).leader == "m3"


def test_a_join_of_a_new_member_waits_for_at_most_five_minutes(driver: "GroupDriver") -> None:
    driver.settle(1)
    new = driver.join(rebalance_ms=600_000)
    for _ in range(34):
        driver.advance_clock(8_800)
        assert driver.heartbeat("m1") is ErrorCode.rebalance_in_progress
    driver.advance_clock(8_000)
    assert driver.error(new) is ErrorCode.unknown_member_id


def test_the_session_of_a_member_with_a_parked_join_does_not_end(driver: "GroupDriver") -> None:
    driver.settle(2)
    waiting = driver.join("m1")
    for _ in range(3):
        driver.advance_clock(8_000)
        driver.heartbeat("m2")
    driver.join("m2")
    assert driver.join_response(waiting).error is ErrorCode.none


def test_a_new_member_in_the_sync_phase_starts_another_rebalance(driver: "GroupDriver") -> None:
    driver.settle(1)
    new = driver.join()
    driver.join("m1")
    assert not driver.is_parked(new)
    newer = driver.join()
    assert driver.phase is GroupPhase.PREPARING_REBALANCE
    driver.join("m1")
    driver.join("m2")
    assert driver.join_response(new).generation == 2
    assert driver.join_response(newer).generation == 3


NEW_AND_OLD, OLD = (("new", b""), ("old", b"")), (("old", b""),)


def test_after_a_load_the_members_are_made_to_send_all_their_protocols_again(driver: "GroupDriver") -> None:
    """A worker restarted with an older protocol can rejoin its group also just after a coordinator's crash."""
    driver.join(protocols=NEW_AND_OLD)
    driver.advance_clock(3_000)
    driver.sync("m1", assignments={"m1": b"all"})
    driver.restart()
    assert driver.error(driver.join(protocols=OLD)) is ErrorCode.coordinator_load_in_progress
    assert driver.heartbeat("m1") is ErrorCode.rebalance_in_progress
    driver.join("m1", protocols=NEW_AND_OLD)
    new_member = driver.join(protocols=OLD)
    driver.join("m1", protocols=NEW_AND_OLD)
    assert driver.join_response(new_member).protocol == "old"


def test_a_join_without_a_common_protocol_triggers_one_rebalance_after_a_load_and_is_refused(
    driver: "GroupDriver",
) -> None:
    driver.join(protocols=NEW_AND_OLD)
    driver.advance_clock(3_000)
    driver.sync("m1", assignments={"m1": b"all"})
    driver.restart()
    unsupported = (("alien", b""),)
    assert (
        driver.error(driver.join(protocols=unsupported, protocol_type="consumer"))
        is ErrorCode.inconsistent_group_protocol
    )
    assert driver.phase is GroupPhase.STABLE
    assert driver.error(driver.join(protocols=unsupported)) is ErrorCode.coordinator_load_in_progress
    driver.join("m1", protocols=NEW_AND_OLD)
    driver.sync("m1", assignments={"m1": b"all"})
    assert driver.error(driver.join(protocols=unsupported)) is ErrorCode.inconsistent_group_protocol
    assert (driver.phase, driver.group.generation) == (GroupPhase.STABLE, 2)
