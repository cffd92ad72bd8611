"""Restarts that an operator orders: every worker restarts its own jobs when it reads the line; a task on its worker."""

from dataclasses import replace

import pytest

from coterie.assignors.members import MemberSpec
from coterie.herder import config_records
from coterie.herder.config_records import ConnectorRestartRequested
from coterie.herder.messages import SplitConnector, SplitFailed, SplitSucceeded, StartTask, StopTask, TaskStartFailed
from coterie.herder.requests.kinds import Request
from coterie.herder.requests.orders import RestartConnectorTask
from coterie.herder.requests.reads import ConnectorStatus
from coterie.herder.requests.refusals import Problem, RequestRefused, SuccessWithoutContent
from coterie.herder.requests.writes import RestartConnector
from coterie.herder.seams import TaskDied, TaskProgressed
from coterie.nouns.ids import WorkerId, WorkerUrl
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId, Job
from coterie.nouns.membership import MembershipLost
from coterie.nouns.states import JobState, TargetState
from coterie.wire.connect import ConnectProtocol
from tests.herder.builders import (
    ALL_JOBS,
    BOTH_TASKS,
    CONNECTOR_LINE,
    ORDERS,
    TASK_CONFIG_LINES,
    TASKS,
    configured_herder,
    jobs_of,
    lead_round,
)
from tests.herder.herder_driver import ME, OTHER, HerderDriver
from tests.herder.shown_round import round_snapshot


def restart_line(*, include_tasks: bool = False, only_failed: bool = False) -> ConnectorRestartRequested:
    return ConnectorRestartRequested(connector=ORDERS, include_tasks=include_tasks, only_failed=only_failed)


def running() -> HerderDriver:
    """A worker that runs the connector and both of its tasks."""
    driver = configured_herder()
    driver.assign(assigned=ALL_JOBS)
    driver.run_all_chores()
    for task in TASKS:
        driver.feed(TaskProgressed(task=task, batch_id=0, input_rows=1))
    driver.run_all_chores()
    driver.effects.clear()
    return driver


def fail(driver: HerderDriver, task: ConnectorTaskId) -> None:
    driver.feed(TaskDied(task=task, trace="the table is gone", holds_checkpoint=True, can_restart=False))
    driver.run_all_chores()
    assert state_of(driver, task) is JobState.FAILED
    driver.effects.clear()


def state_of(driver: HerderDriver, job: Job) -> JobState:
    status = driver.herder.statuses.get(job)
    assert status is not None
    return status.state


def test_a_restart_with_tasks_splits_the_connector_again_and_stops_and_starts_each_task() -> None:
    driver = running()
    driver.write(config_records.restart_line(restart_line(include_tasks=True)))
    assert [stop.task for stop in driver.pop_effects(StopTask)] == TASKS
    assert driver.pop_effects(SplitConnector)
    assert not driver.pop_effects(StartTask), "a task starts when it has stopped"


def test_restarted_jobs_are_restarting_until_they_run() -> None:
    driver = running()
    driver.write(config_records.restart_line(restart_line(include_tasks=True)))
    for _ in range(3):
        for chore in driver.chores():
            if not isinstance(chore, SplitConnector):
                driver.run_chore(chore)
    assert {state_of(driver, job) for job in ALL_JOBS} == {JobState.RESTARTING}
    assert driver.herder.work.local_tasks[TASKS[0]].starts == 2
    for task in TASKS:
        driver.feed(TaskProgressed(task=task, batch_id=1, input_rows=1))
    driver.run_all_chores()
    assert {state_of(driver, task) for task in TASKS} == {JobState.RUNNING}


def test_a_plain_restart_stops_no_task() -> None:
    driver = running()
    driver.write(config_records.restart_line(restart_line()))
    assert driver.pop_effects(SplitConnector)
    assert not driver.pop_effects(StopTask)


def test_a_restart_of_failed_jobs_restarts_only_the_failed_task() -> None:
    driver = running()
    fail(driver, TASKS[1])
    driver.write(config_records.restart_line(restart_line(include_tasks=True, only_failed=True)))
    assert [start.spec.task for start in driver.pop_effects(StartTask)] == [TASKS[1]]
    assert not driver.pop_effects(StopTask)
    assert not driver.pop_effects(SplitConnector), "the connector has not failed"


def test_a_connector_that_could_not_be_split_is_split_again_by_a_restart_of_failed_jobs() -> None:
    driver = configured_herder()
    driver.assign(assigned=jobs_of(ORDERS))
    (split,) = driver.pop_effects(SplitConnector)
    driver.feed(SplitFailed(connector=ORDERS, config_line_offset=split.config_line_offset, trace="no such table"))
    driver.run_all_chores()
    assert state_of(driver, ORDERS) is JobState.FAILED
    driver.write(config_records.restart_line(restart_line(only_failed=True)))
    driver.run_all_chores()
    assert state_of(driver, ORDERS) is JobState.RUNNING


def test_a_restart_during_a_split_uses_the_result_of_a_new_split() -> None:
    driver = configured_herder()
    driver.assign(assigned=jobs_of(ORDERS))
    (split,) = driver.pop_effects(SplitConnector)
    driver.write(config_records.restart_line(restart_line()))
    assert not driver.pop_effects(SplitConnector), "a connector never has two splits at a time"
    offset = split.config_line_offset
    driver.feed(SplitSucceeded(connector=ORDERS, config_line_offset=offset, task_configs=[{"share": "old"}]))
    assert driver.pop_effects(SplitConnector)


def test_a_restart_that_is_read_as_history_is_ignored() -> None:
    driver = HerderDriver()
    driver.write(config_records.restart_line(restart_line(include_tasks=True)))
    driver.write(CONNECTOR_LINE, *TASK_CONFIG_LINES)
    driver.open_runtime()
    driver.assign(assigned=ALL_JOBS)
    assert [start.spec.task for start in driver.pop_effects(StartTask)] == TASKS
    driver.run_all_chores()
    assert not driver.pop_effects(StopTask)


def test_a_restart_of_a_paused_connector_starts_nothing_and_takes_a_failed_task_out_of_its_failed_state() -> None:
    driver = running()
    fail(driver, TASKS[0])
    driver.write(config_records.target_state_line(ORDERS, TargetState.PAUSED))
    driver.run_all_chores()
    driver.write(config_records.restart_line(restart_line(include_tasks=True)))
    assert not driver.pop_effects(StartTask)
    driver.run_all_chores()
    assert {state_of(driver, job) for job in ALL_JOBS} == {JobState.PAUSED}


def test_a_start_that_fails_after_a_restart_was_ordered_is_tried_again() -> None:
    driver = configured_herder()
    driver.assign(assigned=jobs_of(TASKS[0]))
    driver.pop_effects(StartTask)
    driver.write(config_records.restart_line(restart_line(include_tasks=True)))
    driver.feed(TaskStartFailed(task=TASKS[0], trace="the server was down"))
    assert driver.pop_effects(StartTask)
    driver.feed(TaskStartFailed(task=TASKS[0], trace="the server is still down"))
    assert not driver.pop_effects(StartTask)


def test_a_restarted_task_that_is_revoked_does_not_start() -> None:
    driver = running()
    driver.write(config_records.restart_line(restart_line(include_tasks=True)))
    driver.feed(MembershipLost(reason="the lease is over"))
    driver.run_all_chores()
    assert not driver.herder.owned_jobs.tasks


# -- the requests -----------------------------------------------------------------------------------------------------


def leading() -> HerderDriver:
    driver = running()
    lead_round(driver, ConnectProtocol.STATIC, {ME: ALL_JOBS})
    driver.run_all_chores()
    driver.effects.clear()
    return driver


@pytest.mark.parametrize(
    ("include_tasks", "only_failed", "states"),
    [
        (True, False, [JobState.RESTARTING, JobState.RESTARTING, JobState.RESTARTING]),
        (False, False, [JobState.RESTARTING, JobState.RUNNING, JobState.FAILED]),
        (True, True, [JobState.RUNNING, JobState.RUNNING, JobState.RESTARTING]),
        (False, True, [JobState.RUNNING, JobState.RUNNING, JobState.FAILED]),
    ],
)
def test_the_answer_shows_what_is_restarted_as_recorded(
    include_tasks: bool, only_failed: bool, states: list[JobState]
) -> None:
    driver = leading()
    fail(driver, TASKS[1])
    id_ = driver.send_request(RestartConnector(connector=ORDERS, include_tasks=include_tasks, only_failed=only_failed))
    driver.run_all_chores()
    answer = driver.answer(id_)
    assert isinstance(answer, ConnectorStatus)
    assert [answer.status.state, *(status.state for _, status in answer.tasks)] == states


def test_an_unknown_connector_or_task_is_refused_as_recorded() -> None:
    driver = leading()
    none = ConnectorName("nope")
    messages: dict[Request, str] = {
        RestartConnector(connector=none, include_tasks=True, only_failed=False): "Unknown connector: nope",
        RestartConnectorTask(task=ConnectorTaskId(none, 0)): "Unknown connector: nope",
        RestartConnectorTask(task=ConnectorTaskId(ORDERS, 9)): "Unknown task: orders-9",
    }
    for request, message in messages.items():
        id_ = driver.send_request(request)
        driver.run_all_chores()
        assert driver.answer(id_) == RequestRefused(problem=Problem.NOT_FOUND, message=message)


def test_a_task_is_restarted_on_the_worker_that_has_it() -> None:
    driver = running()
    id_ = driver.send_request(RestartConnectorTask(task=TASKS[0]))
    for chore in driver.chores():
        driver.run_chore(chore)
    assert driver.answer(id_) == SuccessWithoutContent()
    assert [stop.task for stop in driver.pop_effects(StopTask)] == [TASKS[0]]


def test_a_task_of_another_worker_is_referred_by_a_follower_to_the_leader_and_by_the_leader_to_its_worker() -> None:
    follower = configured_herder()
    follower.assign(assigned=jobs_of(TASKS[1]))
    id_ = follower.send_request(RestartConnectorTask(task=TASKS[0]))
    follower.run_all_chores()
    answer = follower.answer(id_)
    assert isinstance(answer, RequestRefused)
    assert (answer.problem, answer.redirect_url) == (Problem.NOT_LEADER, "http://leader:8083/")

    leader = configured_herder()
    leader.assign(assigned=jobs_of(TASKS[1]), leader=ME, protocol=ConnectProtocol.STATIC)
    snapshot = round_snapshot({OTHER: MemberSpec()})
    (member,) = snapshot.members
    owner = replace(member, url=WorkerUrl("http://owner:8083/"), worker_id=WorkerId("owner:8083"))
    for owned, problem, url in (
        (BOTH_TASKS, Problem.NOT_THIS_WORKER, "http://owner:8083/"),
        (jobs_of(ORDERS), Problem.UNASSIGNED, None),
    ):
        leader.herder.leader_state.last_round = replace(snapshot, members=(replace(owner, owned=owned),))
        id_ = leader.send_request(RestartConnectorTask(task=TASKS[0]))
        leader.run_all_chores()
        answer = leader.answer(id_)
        assert isinstance(answer, RequestRefused)
        assert (answer.problem, answer.redirect_url) == (problem, url)
