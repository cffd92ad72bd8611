"""How the life of a worker's process ends: it leaves its group, or begins anew in the same place.

*Shutting down*: everything here stops, the last statuses are written, the worker leaves the group, the process exits.

*Relaunching*, for a new version or for other settings: tasks stop at the ends of their batches and the runtime closes,
while heartbeats go on. Then the process executes itself and goes on as the very member that it was: it owns what it
owned, its group notices nothing, and no job moves. Only if that takes longer than the session has it lost its place, as
any worker that was away for so long. A leader remembers nothing of its rounds in its next life, but for the delay that
it was told of, as any new leader does. So that it knows its members again it asks for a round, in which nobody has to
move.
"""

from coterie.herder import place, reads, statuses, writes
from coterie.herder.messages import CloseRuntime, Exit, Say, SetTimer
from coterie.herder.requests import Answer, Done, Problem, RequestRefused
from coterie.herder.rounds import following
from coterie.herder.state import ClosingRuntime, LeavingGroup, Relaunching, ShuttingDown, Turn
from coterie.nouns.membership import Leave
from coterie.nouns.states import State

FAREWELL_MS = 1_000
"""For the last statuses, on top of the grace of the tasks."""


def leave(turn: Turn, reason: str, *, code: int, grace_ms: int, for_good: bool = False) -> None:
    """Begin to leave; the first reason stands."""
    life = turn.herder.life
    if life.is_leaving:
        return
    turn.order(Say(text=f"This worker is leaving: {reason}"))
    life.course = ShuttingDown(code=code, reason=reason, for_good=for_good)
    place.drop_jobs(turn)
    _refuse_all(turn, "Worker is shutting down")
    turn.order(SetTimer(timer="shutdown", at_ms=turn.now_ms + grace_ms + FAREWELL_MS))


def restart(turn: Turn, obstacle: str | None) -> Answer:
    herder = turn.herder
    if herder.life.is_draining:
        message = "This worker drains: it ends when it is done. To keep it, call it back first (uncordon)"
        return RequestRefused(problem=Problem.NOT_POSSIBLE, message=message)
    if not herder.life.is_relaunching:
        if obstacle is not None:
            message = f"{herder.settings.shown_name} would not start again, so it goes on as it is. {obstacle}"
            return RequestRefused(problem=Problem.NOT_POSSIBLE, message=message)
        turn.order(Say(text="By order of an operator this worker restarts"))
        herder.life.course = Relaunching()
        _refuse_all(turn, "Worker is restarting")
        for name in sorted(herder.place.assigned.connectors):
            statuses.show(turn, name, State.RESTARTING)
        patience_ms = herder.settings.stop_grace_ms + FAREWELL_MS
        turn.order(SetTimer(timer="relaunch", at_ms=turn.now_ms + patience_ms))
    return Done()


def advance(turn: Turn) -> None:
    """Leave or relaunch when no task runs and all statuses are written; a relaunch also waits for a round's end."""
    herder, work = turn.herder, turn.herder.work
    match herder.life.course:
        case ShuttingDown() as course if not work.runs and work.is_all_written:
            _leave_group(turn, course)
        case Relaunching() if herder.place.is_settled and work.is_all_written and not work.active_tasks:
            _close_runtime(turn)
        case _:
            pass


def on_shutdown_due(turn: Turn) -> None:
    """What has not stopped by now is stopped with the process; the group need not wait for it."""
    if isinstance(course := turn.herder.life.course, ShuttingDown):
        _leave_group(turn, course)


def on_relaunch_due(turn: Turn) -> None:
    """What has not stopped by now is stopped with the runtime; a round that has not ended is joined once more."""
    if isinstance(turn.herder.life.course, Relaunching):
        _close_runtime(turn)


def on_left(turn: Turn) -> None:
    course = turn.herder.life.course
    assert isinstance(course, LeavingGroup)
    turn.order(Exit(code=course.code, reason=course.reason))


def on_closed(turn: Turn) -> None:
    if turn.herder.life.is_relaunching:  # Otherwise it leaves by now, and exits when it has left.
        turn.order(Exit(code=0, reason="it restarts", restarts=True, place=following.handover_of(turn.herder)))


def _leave_group(turn: Turn, course: ShuttingDown) -> None:
    turn.herder.life.course = LeavingGroup(code=course.code, reason=course.reason)
    turn.order(Leave(reason=course.reason, for_good=course.for_good))


def _close_runtime(turn: Turn) -> None:
    turn.herder.life.course = ClosingRuntime()
    turn.order(CloseRuntime())


def _refuse_all(turn: Turn, message: str) -> None:
    writes.refuse_all(turn, Problem.SHUTTING_DOWN, message)
    reads.refuse_all(turn, Problem.SHUTTING_DOWN, message)
