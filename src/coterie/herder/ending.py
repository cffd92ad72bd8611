"""The end of a worker's process: it leaves its group, or it relaunches and keeps its membership.

*Shutting down*: all tasks stop, the last statuses are written, the worker leaves the group, the process exits.

*Relaunching*, for a new version or for other settings: tasks stop at the ends of their batches and the runtime closes,
while heartbeats continue. Then the process executes itself and continues as the same member: it owns the same jobs, the
group does not rebalance, and no job moves. If the relaunch takes longer than the session timeout, the worker loses its
membership like every other worker. A relaunched leader keeps nothing of its earlier rounds except the end of the
scheduled rebalance delay, which every new leader receives. It therefore requests a round to receive its members'
metadata again; no job moves in this round.
"""

from coterie.herder import place, reads, statuses, writes
from coterie.herder.messages import CloseRuntime, Exit, Say, SetTimer
from coterie.herder.requests import Answer, Done, Problem, RequestRefused
from coterie.herder.rounds import following
from coterie.herder.state import ClosingRuntime, LeavingGroup, Relaunching, ShuttingDown, Turn
from coterie.nouns.membership import Leave
from coterie.nouns.states import State

FAREWELL_MS = 1_000
"""The time to write the last statuses, in addition to the grace of the tasks."""


def leave(turn: Turn, reason: str, *, code: int, grace_ms: int, for_good: bool = False) -> None:
    """Start the shutdown, after which the worker leaves the group; the reason of the first call is kept."""
    life = turn.herder.life
    if life.is_leaving:
        return
    turn.order(Say(text=f"This worker stops its tasks and leaves the group: {reason}"))
    life.course = ShuttingDown(code=code, reason=reason, for_good=for_good)
    place.drop_jobs(turn)
    _refuse_all(turn, "Worker is shutting down")
    turn.order(SetTimer(timer="shutdown", at_ms=turn.now_ms + grace_ms + FAREWELL_MS))


def restart(turn: Turn, obstacle: str | None) -> Answer:
    herder = turn.herder
    if herder.life.is_draining:
        message = "This worker is draining and exits when the drain is complete. To restart it, uncordon it first"
        return RequestRefused(problem=Problem.NOT_POSSIBLE, message=message)
    if not herder.life.is_relaunching:
        if obstacle is not None:
            message = (
                f"{herder.settings.shown_name} was not restarted: it could not start with its current settings. "
                f"{obstacle}"
            )
            return RequestRefused(problem=Problem.NOT_POSSIBLE, message=message)
        turn.order(Say(text="This worker restarts: an operator ordered it"))
        herder.life.course = Relaunching()
        _refuse_all(turn, "Worker is restarting")
        for name in sorted(herder.place.assigned.connectors):
            statuses.show(turn, name, State.RESTARTING)
        patience_ms = herder.settings.stop_grace_ms + FAREWELL_MS
        turn.order(SetTimer(timer="relaunch", at_ms=turn.now_ms + patience_ms))
    return Done()


def advance(turn: Turn) -> None:
    """Leave or relaunch when no task runs and all statuses are written. A relaunch also waits for the end of a
    round."""
    herder, work = turn.herder, turn.herder.work
    match herder.life.course:
        case ShuttingDown() as course if not work.runs and work.is_all_written:
            _leave_group(turn, course)
        case Relaunching() if herder.place.is_settled and work.is_all_written and not work.active_tasks:
            _close_runtime(turn)
        case _:
            pass


def on_shutdown_due(turn: Turn) -> None:
    """Leave the group although some tasks still run: they end with the process."""
    if isinstance(course := turn.herder.life.course, ShuttingDown):
        _leave_group(turn, course)


def on_relaunch_due(turn: Turn) -> None:
    """Close the runtime, which ends the tasks that still run. A round that has not ended is joined again after the
    relaunch."""
    if isinstance(turn.herder.life.course, Relaunching):
        _close_runtime(turn)


def on_left(turn: Turn) -> None:
    course = turn.herder.life.course
    assert isinstance(course, LeavingGroup)
    turn.order(Exit(code=course.code, reason=course.reason))


def on_closed(turn: Turn) -> None:
    if turn.herder.life.is_relaunching:  # Otherwise the worker is leaving, and exits when it has left the group.
        turn.order(Exit(code=0, reason="this worker restarts", restarts=True, place=following.handover_of(turn.herder)))


def _leave_group(turn: Turn, course: ShuttingDown) -> None:
    turn.herder.life.course = LeavingGroup(code=course.code, reason=course.reason)
    turn.order(Leave(reason=course.reason, for_good=course.for_good))


def _close_runtime(turn: Turn) -> None:
    turn.herder.life.course = ClosingRuntime()
    turn.order(CloseRuntime())


def _refuse_all(turn: Turn, message: str) -> None:
    writes.refuse_all(turn, Problem.SHUTTING_DOWN, message)
    reads.refuse_all(turn, Problem.SHUTTING_DOWN, message)
