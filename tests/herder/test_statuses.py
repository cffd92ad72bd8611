"""Statuses of unassigned jobs, and which status wins if two workers write one at the same time."""

import json
from typing import Any

import pytest

from coterie.engine.log import NewTopicRecord, TopicRecord
from coterie.herder.config_records import connector_and_target_state_tombstones, connector_line
from coterie.herder.messages import (
    AppendStatusLines,
    StartTask,
    StatusAppendEnded,
    StatusLinesRead,
    StopTask,
    TaskStartFailed,
    TimerFired,
)
from coterie.herder.seams import TaskProgressed
from coterie.herder.status_records import Status, status_line_of_job
from coterie.nouns.ids import GenerationId, MemberId, WorkerId
from coterie.nouns.jobs import NO_JOBS, Job, Jobs
from coterie.nouns.membership import ComputedAssignments
from coterie.nouns.states import JobState
from coterie.wire.connect import ConnectProtocol
from tests.herder.builders import (
    CONNECTOR_LINE,
    INCARNATION,
    ORDERS,
    TASK_CONFIG_LINES,
    TASKS,
    compute_round,
    configured_herder,
    jobs_of,
    lead_round,
    working,
)
from tests.herder.herder_driver import ME, OTHER, HerderDriver

STATIC = ConnectProtocol.STATIC
THIRD = MemberId("third")
NO_ELIGIBLE_WORKER = "no worker claims it, and every worker that is not draining runs only the jobs that it claims"


def lead_static(
    herder: HerderDriver, owned: dict[MemberId, Jobs], claims: dict[MemberId, Jobs] | None = None
) -> ComputedAssignments:
    computed = compute_round(herder, herder.generation + 1, STATIC, owned, claims)
    assignment = computed.assignments[ME]
    herder.assign(assigned=assignment.assigned, revoked=assignment.revoked, leader=ME, protocol=STATIC)
    return computed


def pending_status_lines(herder: HerderDriver) -> list[tuple[str, dict[str, Any]]]:
    """Key and value of the statuses in the pending append requests."""
    lines = [line for order in herder.effects if isinstance(order, AppendStatusLines) for line in order.lines]
    return [(line.key.decode(), json.loads(line.value)) for line in lines if line.value is not None]


def stored_status(herder: HerderDriver, job: Job) -> tuple[JobState, str | None, str] | None:
    status = herder.herder.statuses.get(job)
    return None if status is None else (status.state, status.trace, status.worker_id)


def append_status(herder: HerderDriver, job: Job, state: JobState, worker: str, generation: int) -> None:
    """The herder reads another worker's status from the status log."""
    line = status_line_of_job(job, Status(state=state, worker_id=WorkerId(worker), generation=GenerationId(generation)))
    apply_line(herder, line)


def apply_line(herder: HerderDriver, line: NewTopicRecord) -> None:
    herder.feed(
        StatusLinesRead(lines=[TopicRecord(partition=0, offset=0, timestamp_ms=0, key=line.key, value=line.value)])
    )


@pytest.mark.parametrize(
    ("class_name", "version"), [("theirs.Source", "2.1"), ("theirs.Unversioned", None), ("FileSource", "1")]
)
def test_a_status_contains_the_version_of_the_connectors_plugin(class_name: str, version: str | None) -> None:
    herder = HerderDriver(version_by_plugin_name={"theirs.Source": "2.1", "theirs.Unversioned": None})
    herder.open_runtime()
    herder.write(connector_line(ORDERS, {"connector.class": class_name}, INCARNATION), *TASK_CONFIG_LINES)
    herder.assign(assigned=jobs_of(ORDERS, *TASKS))
    herder.run_all_chores()
    versions = {line.key: json.loads(line.value)["version"] for line in herder.statuses if line.value is not None}
    assert versions == {
        b"status-connector-orders": version,
        b"status-task-orders-0": version,
        b"status-task-orders-1": version,
    }


def test_a_connector_that_keeps_running_is_reported_again_when_its_plugin_has_another_version() -> None:
    herder = HerderDriver(version_by_plugin_name={"theirs.Source": "2.1", "theirs.Other": "2.2"})
    herder.open_runtime()
    for class_name, version in (("theirs.Source", "2.1"), ("theirs.Other", "2.2")):
        herder.write(connector_line(ORDERS, {"connector.class": class_name}, INCARNATION))
        herder.assign(assigned=jobs_of(ORDERS))
        herder.run_all_chores()
        status = herder.herder.statuses.get(ORDERS)
        assert status is not None
        assert (status.state, status.version) == (JobState.RUNNING, version)


def test_a_job_without_an_eligible_worker_is_reported_unassigned_once_with_the_reason() -> None:
    herder = configured_herder()
    claims = {ME: jobs_of(ORDERS), OTHER: jobs_of(TASKS[0])}
    lead_static(herder, {ME: NO_JOBS, OTHER: NO_JOBS}, claims)
    herder.run_all_chores()
    assert stored_status(herder, TASKS[1]) == (JobState.UNASSIGNED, NO_ELIGIBLE_WORKER, "here:8083")
    written = len(herder.statuses)
    for _ in range(3):
        lead_static(herder, {ME: jobs_of(ORDERS), OTHER: jobs_of(TASKS[0])}, claims)
        herder.run_all_chores()
    assert len(herder.statuses) == written, "no status has changed"


def test_a_job_deferred_for_a_departed_worker_is_not_shown_as_running() -> None:
    herder = configured_herder()
    computed = lead_round(herder, STATIC, {ME: NO_JOBS, OTHER: NO_JOBS})
    herder.run_all_chores()
    lost = computed.assignments[OTHER].assigned
    for job in lost:
        append_status(herder, job, JobState.RUNNING, "other", herder.generation)
    lead_round(herder, STATIC, {ME: computed.assignments[ME].assigned})
    herder.run_all_chores()
    reason = "other has left the group and may rejoin: the job waits for scheduled.rebalance.max.delay.ms"
    assert {stored_status(herder, job) for job in lost} == {(JobState.UNASSIGNED, reason, "here:8083")}
    written = len(herder.statuses)
    herder.now_ms += 10_000  # Another rebalance, with a shorter remaining delay.
    computed = lead_round(herder, STATIC, {ME: computed.assignments[ME].assigned, THIRD: NO_JOBS})
    herder.run_all_chores()
    assert len(herder.statuses) == written
    # The delay is over: the next owner reports the status itself when the task runs.
    herder.now_ms += 300_000
    computed = lead_round(herder, STATIC, {ME: herder.herder.owned_jobs, THIRD: NO_JOBS})
    assignment = [task for task in computed.assignments[ME].assigned.tasks if task in lost]
    herder.run_all_chores()
    for task in assignment:
        herder.feed(TaskProgressed(task=task, batch_id=0, input_rows=1))
    herder.run_all_chores()
    for job in (job for job in computed.assignments[THIRD].assigned if job in lost):
        append_status(herder, job, JobState.RUNNING, "third", herder.generation)
        assert stored_status(herder, job) == (JobState.RUNNING, None, "third")
    assert {stored_status(herder, task) for task in assignment} <= {(JobState.RUNNING, None, "here:8083")}


def test_a_late_reason_does_not_overwrite_the_next_owners_status() -> None:
    herder = configured_herder()
    claims = {ME: jobs_of(ORDERS), OTHER: jobs_of(TASKS[0])}
    lead_static(herder, {ME: NO_JOBS, OTHER: NO_JOBS}, claims)
    while not any(key == "status-task-orders-1" for key, _ in pending_status_lines(herder)):
        herder.pop_effects(AppendStatusLines)
        herder.feed(StatusAppendEnded())
    herder.pop_effects(AppendStatusLines)
    herder.feed(StatusAppendEnded(failure="the log cannot be reached"))
    lead_static(herder, {ME: herder.herder.owned_jobs, OTHER: jobs_of(TASKS[0]), THIRD: NO_JOBS})
    append_status(herder, TASKS[1], JobState.PAUSED, "third", herder.generation)
    herder.feed(TimerFired(timer="statuses"))
    assert not any(key == "status-task-orders-1" for key, _ in pending_status_lines(herder))


@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.PAUSED, JobState.FAILED])
def test_a_reader_ignores_a_late_reason(state: JobState) -> None:
    herder = configured_herder()
    herder.assign()
    append_status(herder, TASKS[1], state, "third", 7)
    late = Status(
        state=JobState.UNASSIGNED,
        worker_id=WorkerId("leader"),
        generation=GenerationId(6),
        trace="every worker is draining",
    )
    apply_line(herder, status_line_of_job(TASKS[1], late))
    assert stored_status(herder, TASKS[1]) == (state, None, "third")


def test_a_late_unassigned_status_of_a_former_owner_does_not_hide_the_reason() -> None:
    herder = configured_herder()
    claims = {ME: jobs_of(ORDERS), OTHER: jobs_of(TASKS[0])}
    lead_static(herder, {ME: NO_JOBS, OTHER: NO_JOBS}, claims)
    herder.run_all_chores()
    append_status(herder, TASKS[1], JobState.UNASSIGNED, "third", 0)
    assert stored_status(herder, TASKS[1]) == (JobState.UNASSIGNED, NO_ELIGIBLE_WORKER, "here:8083")


def test_a_follower_reports_no_status_of_unassigned_jobs() -> None:
    herder = configured_herder()
    compute_round(herder, 1, STATIC, {ME: NO_JOBS, OTHER: NO_JOBS}, {ME: jobs_of(ORDERS), OTHER: jobs_of(TASKS[0])})
    herder.assign(leader=OTHER, protocol=STATIC)
    assert not pending_status_lines(herder), "another worker led the rebalance"


def test_an_unwritten_reason_is_removed_with_its_deleted_job() -> None:
    herder = configured_herder()
    claims = {ME: jobs_of(TASKS[0]), OTHER: jobs_of(ORDERS)}
    lead_static(herder, {ME: NO_JOBS, OTHER: NO_JOBS}, claims)
    assert any(key == "status-task-orders-1" for key, _ in pending_status_lines(herder))
    appends = herder.pop_effects(AppendStatusLines)
    herder.write(*connector_and_target_state_tombstones(ORDERS))
    lead_static(herder, {ME: herder.herder.owned_jobs, OTHER: NO_JOBS}, claims)
    for append in appends:
        herder.run_chore(append)
    herder.run_all_chores()
    assert stored_status(herder, TASKS[1]) is None


def test_a_late_tombstone_does_not_delete_the_status_of_a_connector_that_was_created_again() -> None:
    herder = working()
    herder.write(*connector_and_target_state_tombstones(ORDERS))
    for stop in herder.pop_effects(StopTask):
        herder.run_chore(stop)
    deleted = [
        line.key for append in herder.pop_effects(AppendStatusLines) for line in append.lines if line.value is None
    ]
    assert b"status-task-orders-0" in deleted
    herder.feed(StatusAppendEnded(failure="the log cannot be reached"))
    herder.write(CONNECTOR_LINE, *TASK_CONFIG_LINES)
    append_status(herder, TASKS[0], JobState.RUNNING, "third", herder.generation + 1)
    herder.feed(TimerFired(timer="statuses"))
    herder.run_all_chores()
    assert stored_status(herder, TASKS[0]) == (JobState.RUNNING, None, "third")


def test_a_trace_with_half_of_a_surrogate_pair_is_written_without_it() -> None:
    """Such a text, of an exception of a plug-in, cannot be encoded: it would end one worker after the other."""
    herder = configured_herder()
    herder.assign(assigned=jobs_of(TASKS[0]))
    (start,) = herder.pop_effects(StartTask)
    herder.feed(TaskStartFailed(task=start.spec.task, trace="cannot read caf\ud83d"))
    herder.run_all_chores()
    assert stored_status(herder, TASKS[0]) == (JobState.FAILED, "cannot read caf\ufffd", "here:8083")
