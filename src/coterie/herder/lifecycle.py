"""The end of a worker's process: the worker leaves its group, or it relaunches and keeps its membership.

*Shutting down*: all tasks stop, the last statuses are written, the worker leaves the group, the process exits.

*Relaunching*, for a new version or for other settings: tasks stop at the ends of their batches and the runtime closes,
while heartbeats continue. Then the process executes itself again and continues as the same member: it owns the same
jobs, the group does not rebalance, and no job moves. If the relaunch takes longer than the session timeout, the worker
loses its membership like every other worker. Of its earlier rounds, a relaunched leader keeps only the end of the
scheduled rebalance delay, which every new leader receives. It therefore requests a round to receive its members'
metadata again; no job moves in this round.
"""

from coterie.herder import active_topics, offsets, place, questions, reads, statuses, writes
from coterie.herder.group_protocol import protocol_of
from coterie.herder.messages import CloseRuntime, Exit, SetTimer, WriteLogMessage
from coterie.herder.requests.kinds import Answer
from coterie.herder.requests.refusals import Done, Problem, RequestRefused
from coterie.herder.state import ClosingRuntime, LeavingGroup, Relaunching, ShuttingDown, Turn
from coterie.nouns.membership import ConnectPlaceHandover, Handover, Leave
from coterie.nouns.states import State

FINAL_STATUSES_TIMEOUT_MS = 1_000
"""The time to write the last statuses, in addition to the grace period of the tasks."""


def begin_shutdown(turn: Turn, reason: str, *, code: int, grace_ms: int, is_permanent: bool = False) -> None:
    """Start the shutdown: all jobs are dropped, all pending requests are refused, and this worker leaves the group when
    its tasks have stopped, after ``grace_ms`` and :data:`FINAL_STATUSES_TIMEOUT_MS` at the latest. Does nothing if a
    shutdown has already begun."""
    lifecycle = turn.herder.lifecycle
    if lifecycle.is_leaving:
        return
    turn.emit(WriteLogMessage(text=f"This worker stops its tasks and leaves the group: {reason}"))
    lifecycle.phase = ShuttingDown(code=code, reason=reason, is_permanent=is_permanent)
    place.drop_jobs(turn)
    _refuse_all(turn, "Worker is shutting down")
    turn.emit(SetTimer(timer="shutdown", at_ms=turn.now_ms + grace_ms + FINAL_STATUSES_TIMEOUT_MS))


def begin_relaunch(turn: Turn, settings_error: str | None) -> Answer:
    """Start the relaunch, and return the response to the request. Refused while this worker drains, and if
    ``settings_error`` says that it could not start again. Only the first call starts a relaunch."""
    herder = turn.herder
    if herder.lifecycle.is_draining:
        message = "This worker is draining and exits when the drain is complete. To restart it, uncordon it first"
        return RequestRefused(problem=Problem.NOT_POSSIBLE, message=message)
    if not herder.lifecycle.is_relaunching:
        if settings_error is not None:
            message = (
                f"{herder.settings.display_name} was not restarted: it could not start with its current settings. "
                f"{settings_error}"
            )
            return RequestRefused(problem=Problem.NOT_POSSIBLE, message=message)
        turn.emit(
            WriteLogMessage(text="This worker stops its tasks and relaunches itself: an operator ordered a restart")
        )
        herder.lifecycle.phase = Relaunching()
        _refuse_all(turn, "Worker is restarting")
        for name in sorted(herder.place.assigned.connectors):
            statuses.report(turn, name, State.RESTARTING)
        timeout_ms = herder.settings.stop_grace_ms + FINAL_STATUSES_TIMEOUT_MS
        turn.emit(SetTimer(timer="relaunch", at_ms=turn.now_ms + timeout_ms))
    return Done()


def advance(turn: Turn) -> None:
    """Leave the group (shutdown) or close the runtime (relaunch), if no task runs and all statuses are written. A
    relaunch also waits for the end of a round."""
    herder, work = turn.herder, turn.herder.work
    match herder.lifecycle.phase:
        case ShuttingDown() as course if not work.task_runs and work.are_statuses_written:
            _leave_group(turn, course)
        case Relaunching() if herder.place.is_settled and work.are_statuses_written and not work.active_tasks:
            _close_runtime(turn)
        case _:
            pass


def on_shutdown_due(turn: Turn) -> None:
    """The time of the shutdown is over: leave the group although some tasks still run. They end with the process."""
    if isinstance(course := turn.herder.lifecycle.phase, ShuttingDown):
        _leave_group(turn, course)


def on_relaunch_due(turn: Turn) -> None:
    """The time is over in which the tasks should have stopped: close the runtime, which ends the tasks that still run.
    If a round is running, the relaunched process joins it again."""
    if isinstance(turn.herder.lifecycle.phase, Relaunching):
        _close_runtime(turn)


def on_left(turn: Turn) -> None:
    """This worker has left its group: end the process."""
    phase = turn.herder.lifecycle.phase
    assert isinstance(phase, LeavingGroup)
    turn.emit(Exit(code=phase.code, reason=phase.reason))


def on_runtime_closed(turn: Turn) -> None:
    """The runtime is closed: end the process and execute it again, with the membership that the next process continues.
    Does nothing if the worker has begun to shut down since then: it exits when it has left the group."""
    if turn.herder.lifecycle.is_relaunching:  # Otherwise the worker is leaving, and exits when it has left the group.
        protocol_of(turn.herder).hand_over(turn)


def on_suspended(turn: Turn, handover: ConnectPlaceHandover | None) -> None:
    """The member sends no further request: end the process and execute it again. Does nothing if the
    worker has begun to shut down since then."""
    if turn.herder.lifecycle.is_relaunching:
        turn.emit(relaunch(handover))


def relaunch(handover: Handover | None) -> Exit:
    """The order to execute the process again, with the membership that the next process continues."""
    return Exit(code=0, reason="it relaunches itself, as ordered", relaunches=True, handover=handover)


def _leave_group(turn: Turn, phase: ShuttingDown) -> None:
    """Order the member to leave the group."""
    turn.herder.lifecycle.phase = LeavingGroup(code=phase.code, reason=phase.reason)
    turn.emit(Leave(reason=phase.reason, is_permanent=phase.is_permanent))


def _close_runtime(turn: Turn) -> None:
    turn.herder.lifecycle.phase = ClosingRuntime()
    turn.emit(CloseRuntime())


def _refuse_all(turn: Turn, message: str) -> None:
    """Refuse all pending requests, with ``message``."""
    writes.refuse_all(turn, Problem.SHUTTING_DOWN, message)
    reads.refuse_all(turn, Problem.SHUTTING_DOWN, message)
    active_topics.refuse_all(turn, Problem.SHUTTING_DOWN, message)
    questions.refuse_all(turn, Problem.SHUTTING_DOWN, message)
    offsets.refuse_all(turn, Problem.SHUTTING_DOWN, message)
