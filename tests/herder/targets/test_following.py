"""A worker of a connect group: it starts and stops what the coordinator assigns, and stops all after a loss."""

from coterie.herder.messages import StartTask, StopTask, TaskStopped
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.member_state import MemberState
from coterie.nouns.membership import (
    LeaseRenewed,
    MembershipLost,
    MemberStateChanged,
    RequestGroupDescription,
    SetConfiguredJobs,
    SetWorkerState,
)
from tests.herder.builders import BOTH_TASKS, FIRST
from tests.herder.herder_driver import ME
from tests.herder.targets.connect_driver import configured_driver


def test_an_assigned_task_starts_and_a_revoked_task_stops() -> None:
    driver = configured_driver()
    driver.receive(BOTH_TASKS)
    starts = driver.chores()
    assert {start.spec.task for start in starts if isinstance(start, StartTask)} == BOTH_TASKS.tasks
    for start in starts:
        driver.run_chore(start)
    driver.receive(FIRST, revoked=BOTH_TASKS - FIRST)
    assert {stop.task for stop in driver.pop_effects(StopTask)} == (BOTH_TASKS - FIRST).tasks


def test_a_shorter_session_ends_the_lease_earlier() -> None:
    driver = configured_driver()
    driver.receive(BOTH_TASKS)
    driver.feed(LeaseRenewed(lease_ends_ms=20_000, session_timeout_ms=30_000))
    driver.feed(LeaseRenewed(lease_ends_ms=15_000, session_timeout_ms=30_000))
    assert driver.herder.place.lease_ends_ms == 20_000, "an older response"
    driver.feed(LeaseRenewed(lease_ends_ms=5_000, session_timeout_ms=6_000))
    assert driver.herder.place.lease_ends_ms == 5_000


def test_each_stop_is_reported_at_once() -> None:
    driver = configured_driver()
    driver.receive(BOTH_TASKS)
    driver.run_all_chores()
    driver.receive(NO_JOBS, revoked=BOTH_TASKS)
    driver.pop_effects(SetWorkerState)
    first, second = driver.pop_effects(StopTask)
    driver.feed(TaskStopped(task=first.task))
    (report,) = driver.pop_effects(SetWorkerState)
    assert report.owned.tasks == {second.task}
    driver.feed(TaskStopped(task=second.task))
    (report,) = driver.pop_effects(SetWorkerState)
    assert not report.owned


def test_after_a_loss_all_tasks_stop_and_the_next_assignment_counts() -> None:
    driver = configured_driver()
    driver.receive(BOTH_TASKS)
    driver.run_all_chores()
    driver.feed(MembershipLost(reason="its lease has ended"))
    assert {stop.task for stop in driver.chores() if isinstance(stop, StopTask)} == BOTH_TASKS.tasks
    for task in sorted(BOTH_TASKS.tasks):
        driver.feed(TaskStopped(task=task))
    assert driver.herder.place.member_state is MemberState.UNJOINED
    driver.receive(FIRST)
    assert {start.spec.task for start in driver.pop_effects(StartTask)} == FIRST.tasks


def test_the_state_in_a_rebalance_is_shown_and_disturbs_no_task() -> None:
    driver = configured_driver()
    driver.receive(BOTH_TASKS)
    driver.run_all_chores()
    for state in (MemberState.PREPARING_REBALANCE, MemberState.COMPLETING_REBALANCE, MemberState.STABLE):
        driver.feed(MemberStateChanged(state=state))
        assert driver.herder.place.member_state is state
        assert driver.herder.place.has_current_assignment
        assert not driver.chores()


def test_a_worker_that_is_not_the_leader_reports_no_configured_jobs() -> None:
    driver = configured_driver()
    driver.receive(BOTH_TASKS)
    driver.run_all_chores()
    assert not driver.pop_effects(SetConfiguredJobs)
    assert not driver.pop_effects(RequestGroupDescription)


def test_the_leader_asks_for_the_group_description_after_each_assignment() -> None:
    driver = configured_driver()
    driver.receive(BOTH_TASKS, leader=ME)
    assert len(driver.pop_effects(RequestGroupDescription)) == 1
    driver.receive(FIRST, leader=ME)
    assert not driver.pop_effects(RequestGroupDescription), "the first request has no answer yet"
