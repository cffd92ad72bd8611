"""Writes the statuses of a worker's jobs to the status topic. At most one append is in progress; new statuses wait in a
queue."""

from collections.abc import Mapping

from coterie.herder import active_topics, place
from coterie.herder.messages import AppendStatusLines, SetTimer, StatusAppendEnded, WriteLogMessage
from coterie.herder.state import Herder, Turn
from coterie.herder.status_records import Status, status_line_of_job
from coterie.herder.work import ReportedStatus
from coterie.nouns.ids import GenerationId
from coterie.nouns.jobs import ConnectorTaskId, Job, Jobs
from coterie.nouns.states import JobState
from coterie.nouns.text import without_lone_surrogates

RETRY_MS = 1_000
"""The wait before the statuses of a failed append are written again."""
WAITS_FOR_CONFIG_TRACE = "The connector is split again; the task waits for its config"
"""The trace of a task that is RESTARTING because its checkpoint generation is closed."""


def is_failed_or_restarting_after_error(status: Status) -> bool:
    """Whether the job with this status is FAILED, or RESTARTING because of an error, which is then its trace. A task
    that waits for its config (the trace :data:`WAITS_FOR_CONFIG_TRACE`) has no error."""
    has_error = status.trace not in (None, WAITS_FOR_CONFIG_TRACE)
    return status.state is JobState.FAILED or (status.state is JobState.RESTARTING and has_error)


def report_status(turn: Turn, job: Job, state: JobState, trace: str | None = None) -> None:
    """Queue a status of ``job`` for the status topic, unless it equals the last status that this worker reported.
    FAILED and UNASSIGNED are not written over the status of a newer owner."""
    herder = turn.herder
    # The message of an exception may be any text, and a status that cannot be encoded would end the worker.
    trace = None if trace is None else without_lone_surrogates(trace)
    report = ReportedStatus(state, trace, _plugin_version(herder, job))
    if herder.work.last_reported.get(job) == report:
        return
    status = Status(
        state=state,
        worker_id=herder.settings.worker_id,
        generation=GenerationId(herder.place.epoch),
        trace=trace,
        version=report.plugin_version,
    )
    herder.work.last_reported[job] = report
    if state not in (JobState.FAILED, JobState.UNASSIGNED) or herder.statuses.may_overwrite(job, status):
        herder.work.queued_statuses[job] = status
    else:
        herder.work.queued_statuses.pop(job, None)


def _plugin_version(herder: Herder, job: Job) -> str | None:
    """The version of the plug-in of the job's connector, which a status contains (KIP-891); None when it has none.
    Coterie's version when the config log contains no connector of that name any more."""
    connector = herder.config.connector(job.connector if isinstance(job, ConnectorTaskId) else job)
    class_name = "" if connector is None else connector.config.get("connector.class", "")
    return herder.settings.plugin_version(class_name.strip())


def report_deleted_job(turn: Turn, job: Job) -> None:
    """Queue a tombstone of the status of ``job``, which is not configured any more; if it is a connector, also
    tombstones of its active topics. Does nothing if this worker's last report of the job was a tombstone."""
    if turn.herder.work.last_reported.get(job, job) is not None:
        turn.herder.work.last_reported[job] = None
        turn.herder.work.queued_statuses[job] = None
        if not isinstance(job, ConnectorTaskId):
            active_topics.queue_topic_tombstones(turn, job)


def report_release_or_deletion(turn: Turn, job: Job) -> None:
    """Queue this worker's last status of a job that it has released: UNASSIGNED, or a tombstone if the job is not
    configured any more. Then forget which status was reported last."""
    herder = turn.herder
    if is_job_configured(turn, job):
        report_status(turn, job, JobState.UNASSIGNED)
    else:
        report_deleted_job(turn, job)
    herder.work.last_reported.pop(job, None)


def delete_orphaned_statuses(turn: Turn) -> None:
    """Queue tombstones of the statuses and active topics of jobs that are not configured any more. The leader calls
    this when a round has ended without an error, in a connect group when it has received an assignment. A job that this
    worker still runs is left out: its status is deleted when the job is released."""
    herder = turn.herder
    jobs_with_status = herder.statuses.jobs_with_status() | Jobs.of(
        [*herder.work.statuses_in_flight, *herder.work.queued_statuses]
    )
    for job in jobs_with_status - herder.config.jobs():
        # A worker that still runs the job deletes the status itself when it has released the job.
        if job not in herder.work.last_reported:
            herder.work.queued_statuses[job] = None
    active_topics.queue_orphaned_topic_tombstones(turn)


def report_unassigned_jobs(turn: Turn, reason_by_job: Mapping[Job, str]) -> None:
    """Queue the status UNASSIGNED, with the reason, for each job in ``reason_by_job`` that is configured, unless its
    last status is the same or that of a newer owner. The leader calls this when it has the list of the jobs without a
    worker.

    If this leader takes no new jobs (:attr:`.Lifecycle.no_new_jobs_reason`), its own reason is added to each status.
    The reason in ``reason_by_job`` may only say that no worker may run the job, and the cause may be that all workers,
    also this leader, take no new jobs.

    Connect writes no such status: for the whole scheduled rebalance delay it lists the job as RUNNING on a worker that
    has ended.
    """
    herder = turn.herder
    on_its_way = {**herder.work.statuses_in_flight, **herder.work.queued_statuses}
    of_leader = herder.lifecycle.no_new_jobs_reason
    for job, group_reason in reason_by_job.items():
        reason = group_reason if of_leader is None else f"{group_reason}. {of_leader}"
        status = Status(
            state=JobState.UNASSIGNED,
            worker_id=herder.settings.worker_id,  # The worker that writes the status, as in Connect.
            generation=GenerationId(herder.place.epoch),
            trace=reason,
        )
        known = on_its_way.get(job, herder.statuses.get(job))
        has_this_status = known is not None and (known.state, known.trace) == (status.state, reason)
        if not has_this_status and is_job_configured(turn, job) and herder.statuses.may_overwrite(job, status):
            herder.work.queued_statuses[job] = status


def append_queued_statuses(turn: Turn) -> None:
    """Append all queued statuses and uses of topics to the status topic. Does nothing while an append is in progress or
    waits for its retry."""
    work = turn.herder.work
    if work.is_append_in_progress or not work.has_queued_lines:
        return
    work.statuses_in_flight, work.queued_statuses = work.queued_statuses, {}
    lines = tuple(status_line_of_job(job, status) for job, status in work.statuses_in_flight.items())
    turn.emit(AppendStatusLines(lines=lines + active_topics.mark_queued_topics_in_flight(turn)))


def on_status_append_ended(turn: Turn, event: StatusAppendEnded) -> None:
    """The append of the lines in flight has ended. If it has succeeded, forget them. If it has failed, log this and set
    the timer of the retry; a join that waits for these statuses then no longer waits."""
    herder = turn.herder
    if event.failure is None:
        herder.work.statuses_in_flight = {}
        active_topics.clear_topics_in_flight(turn)
        return
    place.allow_join_before_statuses_written(turn)
    turn.emit(
        WriteLogMessage(
            text=f"Statuses could not be written to the status topic; the next attempt is in {RETRY_MS} ms: "
            f"{event.failure}"
        )
    )
    turn.emit(SetTimer(timer="statuses", at_ms=turn.now_ms + RETRY_MS))


def requeue_failed_statuses(turn: Turn) -> None:
    """Queue the statuses of the failed append again. Left out are those that this worker has replaced since then, those
    that would be written over the status of a newer owner, and tombstones of jobs that are configured again."""
    herder = turn.herder
    again = {**herder.work.statuses_in_flight, **herder.work.queued_statuses}
    herder.work.queued_statuses = {
        job: status
        for job, status in again.items()
        if (not is_job_configured(turn, job) if status is None else herder.statuses.may_overwrite(job, status))
    }
    herder.work.statuses_in_flight = {}
    active_topics.requeue_topics_in_flight(turn)


def is_job_configured(turn: Turn, job: Job) -> bool:
    """Whether the job is in the config log: a connector, or a committed task."""
    config = turn.herder.config
    if isinstance(job, ConnectorTaskId):
        return config.task_config(job) is not None
    return config.connector(job) is not None
