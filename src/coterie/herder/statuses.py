"""Writes the statuses of a worker's jobs to the status topic."""

from coterie.herder import place
from coterie.herder.messages import AppendStatuses, Say, SetTimer, StatusesAppended
from coterie.herder.rounds import leading
from coterie.herder.state import Turn
from coterie.herder.status_records import Status, line_of
from coterie.nouns.ids import Generation
from coterie.nouns.jobs import ConnectorTaskId, Job, Jobs
from coterie.nouns.states import State

RETRY_MS = 1_000


def show(turn: Turn, job: Job, state: State, trace: str | None = None) -> None:
    """Queue a status of ``job`` for the status topic, unless it equals the last status that this worker reported."""
    herder = turn.herder
    if herder.work.shown.get(job) == (state, trace):
        return
    status = Status(
        state=state,
        worker_id=herder.settings.worker_id,
        generation=Generation(herder.place.epoch),
        trace=trace,
        version=herder.settings.version,
    )
    herder.work.shown[job] = (state, trace)
    if state not in (State.FAILED, State.UNASSIGNED) or herder.statuses.may_say_safely(job, status):
        herder.work.unwritten[job] = status
    else:
        herder.work.unwritten.pop(job, None)


def forget(turn: Turn, job: Job) -> None:
    """Queue a tombstone: ``job`` was deleted."""
    if turn.herder.work.shown.get(job, job) is not None:
        turn.herder.work.shown[job] = None
        turn.herder.work.unwritten[job] = None


def part(turn: Turn, job: Job) -> None:
    """``job`` has been released: queue this worker's last status of it."""
    herder = turn.herder
    if is_configured(turn, job):
        show(turn, job, State.UNASSIGNED)
    else:
        forget(turn, job)
    herder.work.shown.pop(job, None)


def forget_the_deleted(turn: Turn) -> None:
    """The leader calls this after each round: it deletes the statuses of jobs that were deleted."""
    herder = turn.herder
    said = herder.statuses.jobs() | Jobs.of([*herder.work.writing, *herder.work.unwritten])
    for job in said - herder.config.jobs():
        # A worker that still runs the job deletes the status itself when it has released the job.
        if job not in herder.work.shown:
            herder.work.unwritten[job] = None


def tell_unassigned(turn: Turn) -> None:
    """The leader calls this after each round: a job without a worker gets the status UNASSIGNED with the reason, also
    while the job waits for a worker that has left.

    Connect writes no such status: for the whole scheduled rebalance delay it lists the job as RUNNING on a worker that
    has ended.
    """
    herder = turn.herder
    on_its_way = {**herder.work.writing, **herder.work.unwritten}
    for job, reason in leading.unassigned_reasons(herder).items():
        status = Status(
            state=State.UNASSIGNED,
            worker_id=herder.settings.worker_id,  # The worker that writes the status, as in Connect.
            generation=Generation(herder.place.epoch),
            trace=reason,
        )
        known = on_its_way.get(job, herder.statuses.get(job))
        is_said = known is not None and (known.state, known.trace) == (status.state, reason)
        if not is_said and is_configured(turn, job) and herder.statuses.may_say_safely(job, status):
            herder.work.unwritten[job] = status


def flush(turn: Turn) -> None:
    """Append all queued statuses to the status topic, unless an append is still in progress."""
    herder = turn.herder
    if herder.work.writing or not herder.work.unwritten:
        return
    herder.work.writing, herder.work.unwritten = herder.work.unwritten, {}
    turn.order(AppendStatuses(lines=tuple(line_of(job, status) for job, status in herder.work.writing.items())))


def on_appended(turn: Turn, event: StatusesAppended) -> None:
    herder = turn.herder
    if event.failure is None:
        herder.work.writing = {}
        return
    place.release_without_statuses(turn)
    turn.order(Say(text=f"Statuses could not be written; the next attempt is in {RETRY_MS} ms: {event.failure}"))
    turn.order(SetTimer(timer="statuses", at_ms=turn.now_ms + RETRY_MS))


def on_retry(turn: Turn) -> None:
    """Queue the statuses of the failed append again, except those that this worker or a newer owner has replaced."""
    herder = turn.herder
    again = {**herder.work.writing, **herder.work.unwritten}
    herder.work.unwritten = {
        job: status for job, status in again.items() if status is None or herder.statuses.may_say_safely(job, status)
    }
    herder.work.writing = {}


def is_configured(turn: Turn, job: Job) -> bool:
    config = turn.herder.config
    if isinstance(job, ConnectorTaskId):
        return config.task_config(job) is not None
    return config.connector(job) is not None
