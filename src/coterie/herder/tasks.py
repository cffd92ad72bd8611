"""The tasks of this worker: each is brought from its actual state to its target state, by one chore at a time.

After every event (an assignment, a config, a target state, a failed query), the same comparison decides:
`Herder.spec_to_run` (the target) is compared with `LocalTask.state` (the actual state). So no task is started twice,
and a change that arrives during a chore is handled when the chore ends. A start and a stop of one task never overlap;
the chores of different tasks are independent.
"""

from dataclasses import replace

from coterie.engine.lease import LeaseDurations
from coterie.herder import active_topics, closed_checkpoints, connectors, place, statuses
from coterie.herder.messages import (
    AbortTaskStart,
    RestartTask,
    SetTimer,
    StartTask,
    StopTask,
    TaskStarted,
    TaskStartFailed,
    TaskStopped,
    WriteLogMessage,
)
from coterie.herder.restart_policy import RestartPolicy, jittered_delay_ms
from coterie.herder.seams import (
    TaskCheckpointClosed,
    TaskDied,
    TaskHaltedWithoutOrder,
    TaskProgressed,
    TaskRetrying,
    TaskSpec,
)
from coterie.herder.state import Turn
from coterie.herder.timers import TaskRestartDue
from coterie.herder.work import (
    AffectedConnectors,
    CheckpointClosed,
    Failed,
    FailedQueryHoldingCheckpoint,
    LocalTask,
    NotStarted,
    OwnershipUnconfirmed,
    Restarting,
    Running,
    Starting,
    StartRetryPending,
    Stopping,
)
from coterie.nouns.jobs import ConnectorTaskId
from coterie.nouns.membership import LeaseRenewed
from coterie.nouns.states import JobState, TargetState

REPORTED_RESTART_DELAY_MIN_MS = 1_000
"""The shortest wait before the restart of a failed query, by the policy, that the task's status contains: a shorter
wait is over before a reader sees the status."""


def reconcile(turn: Turn, affected: AffectedConnectors = None) -> None:
    """Bring each task of the ``affected`` connectors on this worker one chore nearer to its target state, and report
    its status. A newly assigned task is only noticed if ``affected`` is None, which means all connectors."""
    herder, runs = turn.herder, turn.herder.work.local_tasks
    if affected is None:
        for task in herder.place.assigned.tasks - runs.keys():
            runs[task] = LocalTask()
    for task in sorted(runs if affected is None else [task for task in runs if task.connector in affected]):
        _reconcile_task(turn, task, runs[task])


def _reconcile_task(turn: Turn, task: ConnectorTaskId, run: LocalTask) -> None:
    """Start, restart or stop the task if its state requires this and no chore of the task is in progress, then report
    its status. A task that neither runs nor is assigned here is removed."""
    herder = turn.herder
    spec = herder.spec_to_run(task)
    run.restart_is_ordered = run.restart_is_ordered and spec is not None
    if isinstance(run.state, StartRetryPending) and run.state.spec != spec:
        run.state = NotStarted()
        run.restarting_reason = None
    match run.state:
        case Running(spec=start) | FailedQueryHoldingCheckpoint(spec=start) if start != spec or run.restart_is_ordered:
            run.state = Stopping(spec=start)
            turn.emit(StopTask(task=task, grace_ms=herder.task_stop_grace_ms(turn.now_ms)))
        case FailedQueryHoldingCheckpoint(spec=start, trace=trace, restarts_at_ms=None):
            run.state = Stopping(spec=start, next_state=Failed(spec=start, trace=trace))
            turn.emit(StopTask(task=task, grace_ms=0))
        case FailedQueryHoldingCheckpoint(restarts_at_ms=int(at_ms)) as dead if (
            turn.now_ms >= at_ms and herder.place.has_valid_lease(turn.now_ms)
        ):
            run.state = Restarting(
                spec=dead.spec,
                has_progressed_since_start=dead.has_progressed_since_start,
                failures_since_progress=dead.failures_since_progress,
                restart_policy=dead.restart_policy,
            )
            turn.emit(RestartTask(task=task))
        case Starting(spec=start, is_needed=True) | Restarting(spec=start, is_needed=True) as state if (
            start != spec or run.restart_is_ordered
        ):
            # A plug-in may block in the start. The task must not keep its job for as long as that.
            run.state = replace(state, is_needed=False)
            turn.emit(AbortTaskStart(task=task, grace_ms=herder.task_stop_grace_ms(turn.now_ms)))
        case NotStarted() | Failed() | StartRetryPending() | CheckpointClosed() if spec is not None and _may_start(
            turn, run, spec
        ):
            _start(turn, run, spec)
        case _:
            pass
    if not run.may_hold_checkpoint and task not in herder.place.assigned:
        statuses.report_release_or_deletion(turn, task)
        del herder.work.local_tasks[task]
    else:
        _report_status(turn, task, run)


def _start(turn: Turn, run: LocalTask, spec: TaskSpec) -> None:
    """Order the start of the task. If the last start has failed, its error stays in the task's status
    (:attr:`.LocalTask.restarting_reason`) until the query progresses."""
    failed_starts = 0
    if isinstance(run.state, StartRetryPending):
        failed_starts = run.state.failed_starts
    else:
        run.restarting_reason = None
    run.state = Starting(spec=spec, failures_since_progress=failed_starts, is_operator_restart=run.restart_is_ordered)
    run.restart_is_ordered = False
    run.starts += 1
    turn.emit(StartTask(spec=spec))


def _may_start(turn: Turn, run: LocalTask, spec: TaskSpec) -> bool:
    """Whether the task may start now. False until the runtime is open, the config log is read to the last assignment's
    offset, and the wait after a failed start is over; and while the lease is not valid or the worker is leaving.

    A worker that starts no new jobs starts only a task that it has started before. A ``spec`` that has failed, or whose
    checkpoint generation is closed, is not started again."""
    herder = turn.herder
    if not (herder.is_caught_up and herder.place.has_valid_lease(turn.now_ms)) or not herder.lifecycle.is_runtime_open:
        return False
    if herder.lifecycle.no_new_jobs_reason is not None and run.starts == 0:
        return False
    if isinstance(run.state, StartRetryPending) and turn.now_ms < run.state.starts_at_ms:
        return False
    has_ended_so = isinstance(run.state, Failed | CheckpointClosed) and run.state.spec == spec
    return not has_ended_so and not herder.lifecycle.is_shutting_down


def _report_status(turn: Turn, task: ConnectorTaskId, run: LocalTask) -> None:
    """Queue the status that follows from the task's state, if the state determines one."""
    herder = turn.herder
    match run.state:
        case _ if run.restart_is_ordered:
            statuses.report_status(turn, task, JobState.RESTARTING)
        case Failed(trace=trace):
            statuses.report_status(turn, task, JobState.FAILED, trace)
        case Starting() | Running() | FailedQueryHoldingCheckpoint() | Restarting() | StartRetryPending() if (
            run.restarting_reason is not None
        ):
            statuses.report_status(turn, task, JobState.RESTARTING, run.restarting_reason)
        case Starting(is_operator_restart=True):
            statuses.report_status(turn, task, JobState.RESTARTING)
        case Starting():
            # The last status of the former owner is no longer valid.
            statuses.report_status(turn, task, JobState.UNASSIGNED)
        case (
            Running(has_progressed_since_start=True)
            | FailedQueryHoldingCheckpoint(has_progressed_since_start=True)
            | Restarting(has_progressed_since_start=True)
        ):
            statuses.report_status(turn, task, JobState.RUNNING)
        case CheckpointClosed() if herder.config.target_state(task.connector) is TargetState.STARTED:
            statuses.report_status(turn, task, JobState.RESTARTING, statuses.WAITS_FOR_CONFIG_TRACE)
        case NotStarted() | OwnershipUnconfirmed() | CheckpointClosed() if herder.lifecycle.is_relaunching:
            statuses.report_status(turn, task, JobState.RESTARTING)
        case NotStarted() | OwnershipUnconfirmed() | CheckpointClosed() if herder.is_caught_up:
            _report_status_of_idle_task(turn, task, run)
        case _:
            pass


def restart(turn: Turn, task: ConnectorTaskId, *, only_failed: bool = False) -> None:
    """Stop ``task`` if it runs, and start it again, because an operator has ordered its restart; with ``only_failed``,
    do so only if it is FAILED. Does nothing for a task that is not assigned here. A task that should not run now, for
    example because its connector is paused, is not restarted; but if it was FAILED, it may start later with the same
    config."""
    run = turn.herder.work.local_tasks.get(task)
    if run is None or task not in turn.herder.place.assigned:
        return
    match run.state:
        case Failed():
            run.state = NotStarted()
            run.restart_is_ordered = True
        case StartRetryPending() if not only_failed:
            run.state = NotStarted()
            run.restarting_reason = None
            run.restart_is_ordered = True
        case Stopping(next_state=Failed()) as stopping:
            run.state = replace(stopping, next_state=None)
            run.restart_is_ordered = True
        case Starting() | Running() | FailedQueryHoldingCheckpoint() | Restarting() if not only_failed:
            run.restart_is_ordered = True
        case _:
            pass  # It starts anyway as soon as it may: after its stop, with another config, or when it is confirmed.


def _report_status_of_idle_task(turn: Turn, task: ConnectorTaskId, run: LocalTask) -> None:
    """Queue the status of a task that does not run here: a tombstone if it is deleted, PAUSED, or UNASSIGNED with the
    reason why this worker starts no new jobs. Does nothing for any other task."""
    herder = turn.herder
    if herder.config.task_config(task) is None:
        statuses.report_deleted_job(turn, task)
    elif herder.config.target_state(task.connector) is TargetState.PAUSED:
        statuses.report_status(turn, task, JobState.PAUSED)
    elif (reason := herder.lifecycle.no_new_jobs_reason) is not None and run.starts == 0:
        statuses.report_status(turn, task, JobState.UNASSIGNED, reason)


# -- events of tasks --------------------------------------------------------------------------------------------------


def on_started(turn: Turn, event: TaskStarted) -> None:
    """A start or restart has returned without an error. The task runs, unless it has ended before the start
    returned."""
    run = turn.herder.work.local_tasks[event.task]
    state = run.state
    assert isinstance(state, Starting | Restarting), f"{event.task} has started, but no start was ordered"
    running = Running(
        spec=state.spec,
        has_progressed_since_start=state.has_progressed_since_start,
        failures_since_progress=state.failures_since_progress,
    )
    run.state = state.early_end or running


def on_start_failed(turn: Turn, event: TaskStartFailed) -> None:
    """A start has failed. If it is still needed, the task is started again, as the event's policy says, or is FAILED; a
    task that was taken over, halted or closed meanwhile stays so. A failed restart counts as another failure of the
    query."""
    run = turn.herder.work.local_tasks[event.task]
    match run.state:
        case Starting(is_needed=False):
            run.state = NotStarted()
        case Starting(early_end=OwnershipUnconfirmed() | CheckpointClosed() as early_end):
            run.state = early_end
        case Starting() as state:
            run.state = _schedule_start_retry_or_fail(turn, event, run, state)
        case Restarting() as state:
            died = TaskDied(
                task=event.task, trace=event.trace, holds_checkpoint=True, restart_policy=state.restart_policy
            )
            run.state = state.early_end or _schedule_query_restart_or_fail(
                turn, died, run, state, what_failed="The restart of the query"
            )
        case _:
            raise AssertionError(
                f"the start of {event.task} has failed, but no start was ordered: this is a bug in Coterie"
            )


def on_stopped(turn: Turn, event: TaskStopped) -> None:
    """A stop is complete: the task is now in ``Stopping.next_state``, or may start again if that is None."""
    run = turn.herder.work.local_tasks[event.task]
    assert isinstance(run.state, Stopping), f"{event.task} has stopped, but no stop was ordered"
    run.state = run.state.next_state or NotStarted()


def on_progress(turn: Turn, event: TaskProgressed) -> None:
    """The query has progressed: count its failures from 0 again, and clear :attr:`.LocalTask.restarting_reason`. If the
    query has failed after this progress, before the event arrived, the number of failures and the reason stay. Also
    stores the numbers of the batch, passes the event to `active_topics`, and reports the status."""
    run = turn.herder.work.local_tasks.get(event.task)
    if run is None or not run.may_hold_checkpoint:
        return
    match run.state:
        case Starting() | Running() | Restarting() as state if (
            state.failures_since_progress or not state.has_progressed_since_start
        ):
            run.state = replace(state, has_progressed_since_start=True, failures_since_progress=0)
        case FailedQueryHoldingCheckpoint(has_progressed_since_start=False) as dead:
            run.state = replace(dead, has_progressed_since_start=True)
        case _:
            pass
    if not run.has_failed_query:
        run.restarting_reason = None
    run.batch_id = event.batch_id
    run.input_rows += event.input_rows
    run.bad_records = event.bad_records
    active_topics.queue_new_topic_uses(turn, event)
    _report_status(turn, event.task, run)


def on_retrying(turn: Turn, event: TaskRetrying) -> None:
    """A server that the task needs cannot be reached: store the reason, which the task's status contains."""
    run = turn.herder.work.local_tasks.get(event.task)
    if run is None or not run.may_hold_checkpoint:
        return
    run.restarting_reason = event.trace
    _report_status(turn, event.task, run)


def on_died(turn: Turn, event: TaskDied) -> None:
    """The query has failed. If this worker still holds the checkpoint, schedule a restart, or let the task fail if a
    restart cannot help or its policy has no further one; otherwise the task may start here again only after the group
    has confirmed that it is assigned to this worker."""
    if not event.holds_checkpoint:
        _mark_ownership_unconfirmed(turn, event.task, f"stopped: {event.trace}")
        return
    if (run := turn.herder.work.local_tasks.get(event.task)) is None:
        return
    run.restarting_reason = None
    match run.state:
        case Running() as state:
            run.state = _schedule_query_restart_or_fail(turn, event, run, state)
        case Starting(early_end=None) | Restarting(early_end=None) as state:
            run.state = replace(state, early_end=_schedule_query_restart_or_fail(turn, event, run, state))
        case _:
            pass  # The task is being stopped; `TaskStopped` ends it.


def on_halted(turn: Turn, event: TaskHaltedWithoutOrder) -> None:
    """The task was ended because the event loop or the herder was blocked: it may start here again only after the group
    has confirmed that it is assigned to this worker."""
    _mark_ownership_unconfirmed(turn, event.task, "halted because this worker's event loop or herder was blocked")


def on_checkpoint_closed(turn: Turn, event: TaskCheckpointClosed) -> None:
    """The checkpoint generation of the task's config is closed: the task waits for another config. A timer is set,
    after which this worker creates the next checkpoint generation if no other worker does (`closed_checkpoints`). If
    the config is from this worker's own split, the connector is split again."""
    run = turn.herder.work.local_tasks.get(event.task)
    closed_checkpoints.set_closed_checkpoint_timer(turn, event.task.connector)
    match run and run.state:
        case Running(spec=start) | FailedQueryHoldingCheckpoint(spec=start):
            assert run is not None
            run.state = CheckpointClosed(spec=start)
            connectors.resplit_if_config_is_of_last_split(turn, start)
        case Starting(early_end=None) | Restarting(early_end=None) as state:
            assert run is not None
            run.state = replace(state, early_end=CheckpointClosed(spec=state.spec))
            connectors.resplit_if_config_is_of_last_split(turn, state.spec)
        case _:
            pass  # The task is being stopped; another start would find the checkpoint generation closed again.


def _schedule_start_retry_or_fail(
    turn: Turn, event: TaskStartFailed, run: LocalTask, before: Starting
) -> StartRetryPending | Failed:
    """The state after a failed start, which holds no checkpoint. The task is started again, as the event's policy says,
    and the error is stored as ``run.restarting_reason``, which the task's status contains. If the policy has no further
    start, or no start can help, the task fails."""
    failures = before.failures_since_progress + 1
    delay_ms = None if event.restart_policy is None else event.restart_policy.delay_ms(failures)
    if delay_ms is None:
        return Failed(
            spec=before.spec, trace=_log_final_failure_and_make_trace(turn, event, failures, event.restart_policy)
        )
    starts_at_ms = _set_restart_timer(turn, event.task, failures, delay_ms)
    # Shown also for a short wait, unlike the failure of a query: the next start may take long before it fails.
    run.restarting_reason = (
        f"Start {failures} of the task has failed; the next one follows after "
        f"{(starts_at_ms - turn.now_ms) / 1000:g} s: {event.trace}"
    )
    return StartRetryPending(spec=before.spec, failed_starts=failures, starts_at_ms=starts_at_ms)


def _schedule_query_restart_or_fail(
    turn: Turn,
    event: TaskDied,
    run: LocalTask,
    before: Starting | Running | Restarting,
    *,
    what_failed: str = "The query",
) -> FailedQueryHoldingCheckpoint:
    """The state after a failure of the query. The query is restarted on the same checkpoint, as the event's policy
    says. If the wait before the restart is :data:`REPORTED_RESTART_DELAY_MIN_MS` or longer, the failure is stored as
    :attr:`.LocalTask.restarting_reason`, which the task's status contains; ``what_failed`` is the subject of its text.
    If the policy has no further restart, or no restart can help, ``restarts_at_ms`` is None: the task is then stopped
    and FAILED."""
    failures, restarts_at_ms, trace = before.failures_since_progress + 1, None, event.trace
    run.restarting_reason = None
    delay_ms = event.restart_policy.delay_ms(failures) if event.can_restart else None
    if delay_ms is not None:
        restarts_at_ms = _set_restart_timer(turn, event.task, failures, delay_ms)
        if delay_ms >= REPORTED_RESTART_DELAY_MIN_MS:
            run.restarting_reason = (
                f"{what_failed} has failed (failures without progress: {failures}); the next attempt follows "
                f"after {(restarts_at_ms - turn.now_ms) / 1000:g} s: {event.trace}"
            )
    elif event.can_restart:
        trace = _log_final_failure_and_make_trace(turn, event, failures, event.restart_policy)
    return FailedQueryHoldingCheckpoint(
        spec=before.spec,
        has_progressed_since_start=before.has_progressed_since_start,
        failures_since_progress=failures,
        trace=trace,
        restarts_at_ms=restarts_at_ms,
        restart_policy=event.restart_policy,
    )


def _log_final_failure_and_make_trace(
    turn: Turn, event: TaskDied | TaskStartFailed, failures: int, policy: RestartPolicy | None
) -> str:
    """The trace of the status FAILED of a task that has failed so often that ``policy`` has no further restart, after
    logging that the task is not started again. It is the trace of ``event`` alone if the policy has no restart at all,
    or there is no policy because no restart can help."""
    if policy is None or policy.restarts_max == 0:
        return event.trace
    text = (
        f"The task has failed {failures} times without progress and is not started again, because errors.restart.max "
        "allows no more restarts; raise errors.restart.max, or set it to -1 for restarts without limit"
    )
    turn.emit(WriteLogMessage(text=f"Task {event.task}: {text}", is_warning=True))
    return f"{text}: {event.trace}"


def _set_restart_timer(turn: Turn, task: ConnectorTaskId, failures: int, delay_ms: int) -> int:
    """Set the timer of the restart after so many ``failures``, and return its time: after ``delay_ms`` or up to a fifth
    earlier."""
    at_ms = turn.now_ms + jittered_delay_ms(delay_ms, f"{task} {failures}")
    turn.emit(SetTimer(timer=TaskRestartDue(task=task), at_ms=at_ms))
    return at_ms


def _mark_ownership_unconfirmed(turn: Turn, task: ConnectorTaskId, how: str) -> None:
    """Another worker took the task over, or the task was halted: it may be assigned to another worker now, and may
    start here again only after the group has confirmed that it is still assigned to this worker. ``how`` is the end of
    the log message's first sentence, "Task … was …": for example ``halted because …``."""
    run = turn.herder.work.local_tasks.get(task)
    if run is None or not run.may_hold_checkpoint:
        return
    unconfirmed = OwnershipUnconfirmed(unconfirmed_since_ms=turn.now_ms)
    match run.state:
        case Starting() | Restarting() as state:
            run.state = replace(state, early_end=unconfirmed)
        case Stopping(next_state=Failed()):
            return  # The task has failed: this start is not tried again.
        case Stopping() as stopping:
            run.state = replace(stopping, next_state=unconfirmed)
        case _:
            run.state = unconfirmed
    text = (
        f"Task {task} was {how}. If it is still assigned to this worker, it starts again after the coordinator has "
        "answered a heartbeat that is sent from now on."
    )
    turn.emit(WriteLogMessage(text=text))


def on_lease_renewed(turn: Turn, event: LeaseRenewed) -> None:
    """Store the renewed lease. If the lease had ended, reconcile all tasks. A task in state `OwnershipUnconfirmed` may
    start again if it is still assigned here and the answered heartbeat was sent *after* the task was taken over or
    halted.

    The response to an earlier heartbeat does not confirm the ownership: it may have waited in the socket while this
    process was paused.
    """
    herder = turn.herder
    was_expired = not herder.place.has_valid_lease(turn.now_ms)
    place.renew_lease(turn, event)
    if was_expired:
        reconcile(turn)
    sent_at_ms = event.lease_ends_ms - LeaseDurations(event.session_timeout_ms).duration_ms
    for task, run in list(herder.work.local_tasks.items()):
        match run.state:
            case OwnershipUnconfirmed(unconfirmed_since_ms=at_ms) if sent_at_ms > at_ms:
                run.state = NotStarted()
                _reconcile_task(turn, task, run)
            case Stopping(next_state=OwnershipUnconfirmed(unconfirmed_since_ms=at_ms)) as state if sent_at_ms > at_ms:
                run.state = replace(state, next_state=None)
            case _:
                pass
