"""What a worker tells the status topic of the jobs it has."""

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
    """Say that ``job`` is in ``state``, unless that was the last thing said."""
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
    """Say that there is no such job any more."""
    if turn.herder.work.shown.get(job, job) is not None:
        turn.herder.work.shown[job] = None
        turn.herder.work.unwritten[job] = None


def part(turn: Turn, job: Job) -> None:
    """``job`` has been released: the last word about it from here."""
    herder = turn.herder
    if is_configured(turn, job):
        show(turn, job, State.UNASSIGNED)
    else:
        forget(turn, job)
    herder.work.shown.pop(job, None)


def forget_the_deleted(turn: Turn) -> None:
    """The leader's duty after each round: no status outlives its job."""
    herder = turn.herder
    said = herder.statuses.jobs() | Jobs.of([*herder.work.writing, *herder.work.unwritten])
    for job in said - herder.config.jobs():
        # Who still has it says so when it has released it.
        if job not in herder.work.shown:
            herder.work.unwritten[job] = None


def tell_unassigned(turn: Turn) -> None:
    """Its other one: what has nobody is UNASSIGNED, with the reason, also while it waits for a worker that has left.

    Connect writes nothing, so that for the whole delay a job is shown as RUNNING on a worker that is dead.
    """
    herder = turn.herder
    on_its_way = {**herder.work.writing, **herder.work.unwritten}
    for job, reason in leading.unassigned_reasons(herder).items():
        status = Status(
            state=State.UNASSIGNED,
            worker_id=herder.settings.worker_id,  # Who says it, as in all of Connect's.
            generation=Generation(herder.place.epoch),
            trace=reason,
        )
        known = on_its_way.get(job, herder.statuses.get(job))
        is_said = known is not None and (known.state, known.trace) == (status.state, reason)
        if not is_said and is_configured(turn, job) and herder.statuses.may_say_safely(job, status):
            herder.work.unwritten[job] = status


def flush(turn: Turn) -> None:
    """Order what is unwritten to be written; one append is under way at a time, and takes all that gathered."""
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
    turn.order(Say(text=f"Statuses could not be written, and will be in {RETRY_MS} ms: {event.failure}"))
    turn.order(SetTimer(timer="statuses", at_ms=turn.now_ms + RETRY_MS))


def on_retry(turn: Turn) -> None:
    """What was said of a job meanwhile counts more, here or by a newer owner."""
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
