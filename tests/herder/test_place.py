"""A worker whose config log ends before its group's config offset, and members that read another config topic."""

import pytest

from coterie.herder.messages import SetTimer, StartTask, StopTask, TimerFired, WriteLogMessage
from coterie.nouns.ids import ConfigOffset, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.membership import LeaveAndRejoin, MemberReport, MembershipLost, SendAssignments, SetWorkerState
from coterie.wire.connect import AssignmentErrorCode, ConnectProtocol
from tests.herder.builders import ALL_JOBS, CONNECTOR_LINE, TASKS, configured_herder, jobs_of
from tests.herder.herder_driver import ME, OTHER, ROUND, HerderDriver, assignments_requested

THIRD = MemberId("third")


# -- a log that cannot be read ----------------------------------------------------------------------------------------


def lag_behind_group(herder: HerderDriver, *, error: AssignmentErrorCode = AssignmentErrorCode.NO_ERROR) -> None:
    """The group has read one record more than this worker, which cannot read it."""
    herder.config.append(CONNECTOR_LINE)
    herder.feed(ROUND)
    herder.assign(assigned=jobs_of(TASKS[1]) if error is AssignmentErrorCode.NO_ERROR else NO_JOBS, error=error)


@pytest.mark.parametrize("error", list(AssignmentErrorCode))
def test_a_worker_that_lags_too_long_leaves_and_rejoins_when_it_has_read_the_config_log(
    error: AssignmentErrorCode,
) -> None:
    herder = configured_herder()
    herder.assign(assigned=jobs_of(TASKS[0]))
    herder.run_all_chores()
    lag_behind_group(herder, error=error)
    assert not herder.pop_effects(StartTask)
    (timer,) = [order for order in herder.pop_effects(SetTimer) if order.timer == "behind"]
    assert timer.at_ms == herder.now_ms + 60_000
    herder.now_ms = timer.at_ms
    herder.feed(TimerFired(timer="behind"))
    herder.run_all_chores()  # If nothing was assigned, it first looks up the end of the config log.
    (abandoned,) = herder.pop_effects(LeaveAndRejoin)
    assert "this worker has read the config topic to offset 4 of 5" in abandoned.reason
    herder.pop_effects(SetWorkerState)
    herder.feed(MembershipLost(reason=abandoned.reason))
    (stop,) = herder.pop_effects(StopTask)
    assert stop.task == TASKS[0], "a task must not run without a membership"
    herder.run_chore(stop)
    assert not herder.herder.owned_jobs
    assert not herder.pop_effects(SetWorkerState), "the worker would lag again"
    herder.config.pop()
    herder.write(CONNECTOR_LINE)
    assert [order.owned for order in herder.pop_effects(SetWorkerState)] == [NO_JOBS]


def test_rebalances_while_a_worker_lags_do_not_extend_its_timeout() -> None:
    herder = configured_herder()
    lag_behind_group(herder)
    (timer,) = [order for order in herder.pop_effects(SetTimer) if order.timer == "behind"]
    herder.now_ms += 50_000
    lag_behind_group(herder)
    assert not [order for order in herder.pop_effects(SetTimer) if order.timer == "behind"]
    herder.now_ms = timer.at_ms
    herder.feed(TimerFired(timer="behind"))
    assert herder.pop_effects(LeaveAndRejoin)


def test_a_worker_that_caught_up_in_time_stays_in_the_group() -> None:
    herder = configured_herder()
    lag_behind_group(herder)
    herder.config.pop()
    herder.write(CONNECTOR_LINE)
    herder.now_ms += 60_000
    herder.feed(TimerFired(timer="behind"))
    assert not herder.pop_effects(LeaveAndRejoin)


# -- members that read another config topic ---------------------------------------------------------------------------


def compute_with_offsets(herder: HerderDriver, offsets: dict[MemberId, int], protocol: ConnectProtocol) -> None:
    """This leader, which owns all jobs, computes assignments for members that report ``offsets``."""
    herder.feed(ROUND)
    members = {
        member: MemberReport(
            url=WorkerUrl(f"http://{member}:8083/"),
            name=f"{member}-by-name",
            config_offset=ConfigOffset(offset),
            owned=ALL_JOBS if member == ME else NO_JOBS,
        )
        for member, offset in offsets.items()
    }
    herder.feed(assignments_requested(members, generation=herder.generation + 1, protocol=protocol))
    herder.run_all_chores()


def test_a_leader_that_has_read_more_than_the_others_assigns_jobs_with_its_own_config_offset() -> None:
    herder = configured_herder()
    herder.assign(leader=ME, protocol=ConnectProtocol.STATIC)
    end = len(herder.config)
    compute_with_offsets(herder, {ME: end, OTHER: 1, THIRD: -1}, ConnectProtocol.STATIC)
    computed = herder.computed()
    assert (computed.has_config_mismatch, computed.config_offset) == (False, end)
    assert computed.assignments[ME].revoked, (
        "it assigns the others their share; they start the tasks when they have read up to its offset"
    )


@pytest.mark.parametrize("protocol", list(ConnectProtocol))
def test_a_member_with_an_offset_beyond_the_config_log_is_logged_and_assigned_nothing(
    protocol: ConnectProtocol,
) -> None:
    herder = configured_herder()
    herder.assign(assigned=ALL_JOBS, leader=ME, protocol=protocol)
    herder.run_all_chores()
    compute_with_offsets(herder, {ME: 4, OTHER: 4, THIRD: 999}, protocol)
    computed, end = herder.computed(), len(herder.config)
    assert (computed.has_config_mismatch, computed.config_offset) == (False, end)
    assert (computed.assignments[THIRD].assigned, computed.assignments[THIRD].revoked) == (NO_JOBS, NO_JOBS)
    changed_jobs = [
        job
        for assignment in (computed.assignments[ME], computed.assignments[OTHER])
        for job in [*assignment.assigned, *assignment.revoked]
    ]
    assert changed_jobs, "the other members get assignments"
    warnings = [order.text for order in herder.pop_effects(WriteLogMessage) if order.is_warning]
    assert len(warnings) == 1
    assert f"third-by-name (third:8083) reported config offset 999, but the config topic ends at {end}." in warnings[0]
    assert "config.storage.topic" in warnings[0]


def test_a_leader_whose_offset_is_below_that_of_most_members_leaves_the_group() -> None:
    herder = configured_herder()
    end = herder.herder.config.offset
    compute_with_offsets(herder, {ME: 4, OTHER: 999, THIRD: 999}, ConnectProtocol.STATIC)
    assert not herder.pop_effects(SendAssignments), "it cannot read the other members' configs"
    (abandoned,) = herder.pop_effects(LeaveAndRejoin)
    assert abandoned.reason.startswith(f"most members reported config offsets beyond {end}, where this worker's")
    assert "config topic ends; the highest is 999." in abandoned.reason
    assert [order.text for order in herder.pop_effects(WriteLogMessage) if order.is_warning]
    herder.pop_effects(SetWorkerState)
    herder.feed(MembershipLost(reason=abandoned.reason))
    herder.run_all_chores()
    assert not herder.pop_effects(SetWorkerState), "it would report the same offset again"


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_worker_that_has_read_the_whole_log_stays_even_if_the_group_reports_a_higher_offset(is_lost: bool) -> None:
    """An older leader, or Kafka Connect's, trusts a member's offset: it assigns nothing, with config offset 999."""
    herder = configured_herder()
    herder.assign(assigned=jobs_of(TASKS[0]))
    herder.run_all_chores()
    herder.feed(ROUND)
    herder.assign(
        error=AssignmentErrorCode.CONFIG_MISMATCH, config_offset=ConfigOffset(999), protocol=ConnectProtocol.STATIC
    )
    if is_lost:
        herder.feed(MembershipLost(reason="a partition"))
        herder.run_all_chores()
    herder.pop_effects(SetWorkerState)
    herder.now_ms += 60_000
    herder.feed(TimerFired(timer="behind"))
    herder.run_all_chores()
    assert not herder.pop_effects(LeaveAndRejoin)
    assert [order.text for order in herder.pop_effects(WriteLogMessage) if order.is_warning]
    assert [order.owned for order in herder.pop_effects(SetWorkerState)] == ([NO_JOBS] if is_lost else [])
    assert herder.herder.place.assigned == (NO_JOBS if is_lost else jobs_of(TASKS[0]))
