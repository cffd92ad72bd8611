"""The end of a worker's process: the worker leaves its group, or it relaunches and keeps its membership.

*Shutting down*: all tasks stop, the last statuses are written, the last requests are answered, the worker leaves the
group, the process exits. After the drain of a restart with moved jobs, it executes itself again instead.

*Relaunching*, for a new version or for other settings: tasks stop at the ends of their batches, the last requests are
answered and the runtime closes, while heartbeats continue. Then the process executes itself again and continues as the
same member: it owns the same jobs, the group does not rebalance, and no job moves. If the relaunch takes longer than
the session timeout, the worker loses its membership like every other worker. Of its earlier rounds, a relaunched leader
keeps only the end of the scheduled rebalance delay, which every new leader receives. It therefore requests a round to
receive its members' metadata again; no job moves in this round.

While its tasks stop, the worker serves requests as before: no other worker can write while it is the leader. Then it
accepts no more requests, so that a client turns to another worker, and ends only when the writes that have reached it
are answered.
"""

from dataclasses import replace
from typing import Literal

from coterie.herder import (
    active_topics,
    logger_levels,
    offsets,
    place,
    questions,
    reads,
    statuses,
    view_requests,
    writes,
)
from coterie.herder.group_protocol import protocol_of
from coterie.herder.messages import CloseRequestIntake, CloseRuntime, Exit, SetTimer, WriteLogMessage
from coterie.herder.requests.kinds import Answer
from coterie.herder.requests.refusals import Problem, RequestRefused, SuccessWithoutContent
from coterie.herder.state import (
    ClosingRuntime,
    Drain,
    Herder,
    LeavingGroup,
    Relaunching,
    RequestIntakeState,
    ShuttingDown,
    Turn,
)
from coterie.nouns.membership import ConnectMembershipHandover, Handover, Leave
from coterie.nouns.states import JobState

FINAL_STATUSES_TIMEOUT_MS = 1_000
"""The time to write the last statuses and to answer the last requests, in addition to the tasks' grace period."""


def begin_shutdown(
    turn: Turn, reason: str, *, code: int, grace_ms: int, is_permanent: bool = False, relaunches: bool = False
) -> None:
    """Start the shutdown: all jobs are dropped, and this worker leaves the group when its tasks have stopped and its
    last requests are answered, after ``grace_ms`` and :data:`FINAL_STATUSES_TIMEOUT_MS` at the latest. ``code`` is the
    exit code of the process; ``is_permanent``: the worker has been drained, so its group does not wait for its return;
    ``relaunches``: the process executes itself again instead of exiting. If a shutdown has already begun, the only
    effect is that its process exits instead of executing itself again."""
    lifecycle = turn.herder.lifecycle
    match lifecycle.phase:
        case ShuttingDown(relaunches=True) | LeavingGroup(relaunches=True) as phase if not relaunches:
            lifecycle.phase = replace(phase, exit_code=code, reason=reason, relaunches=False)
            return
        case ShuttingDown() | LeavingGroup():
            return
        case _:
            pass
    turn.emit(WriteLogMessage(text=f"This worker stops its tasks and leaves the group: {reason}"))
    lifecycle.phase = ShuttingDown(exit_code=code, reason=reason, is_permanent=is_permanent, relaunches=relaunches)
    place.drop_jobs(turn)
    _set_ending_timers(turn, "shutdown", grace_ms)


def begin_relaunch(turn: Turn, settings_error: str | None) -> Answer:
    """Start the relaunch, and return the response to the request. Refused while this worker drains, and if
    ``settings_error`` says that it could not start again. Only the first call starts a relaunch."""
    herder = turn.herder
    assert not herder.lifecycle.is_shutting_down, "an order to a worker that is leaving is refused"
    if not herder.lifecycle.is_relaunching:
        if (refusal := relaunch_refusal(herder, settings_error)) is not None:
            return refusal
        turn.emit(
            WriteLogMessage(text="This worker stops its tasks and relaunches itself: an operator ordered a restart")
        )
        herder.lifecycle.phase = Relaunching()
        for name in sorted(herder.place.assigned.connectors):
            statuses.report_status(turn, name, JobState.RESTARTING)
        _set_ending_timers(turn, "relaunch", herder.settings.stop_grace_ms)
    return SuccessWithoutContent()


def relaunch_refusal(herder: Herder, settings_error: str | None) -> RequestRefused | None:
    """Why this worker refuses to restart: it drains, or ``settings_error`` says that it could not start again. None if
    it can restart."""
    match herder.lifecycle.drain:
        case Drain(relaunches=True):
            message = (
                "This worker moves its jobs and then restarts. To restart it without moving its jobs, uncordon it first"
            )
        case Drain():
            message = "This worker is draining and exits when the drain is complete. To restart it, uncordon it first"
        case None if settings_error is not None:
            message = (
                f"{herder.settings.display_name} was not restarted: it could not start with its current settings. "
                f"{settings_error}"
            )
        case None:
            return None
    return RequestRefused(problem=Problem.NOT_POSSIBLE, message=message)


def ending_refusal(herder: Herder) -> RequestRefused | None:
    """The refusal of an order, because this worker is leaving its group or relaunching; None if it does neither."""
    if not (herder.lifecycle.is_shutting_down or herder.lifecycle.is_relaunching):
        return None
    doing = "shutting down" if herder.lifecycle.is_shutting_down else "restarting"
    return RequestRefused(problem=Problem.SHUTTING_DOWN, message=f"Worker is {doing}")


def _set_ending_timers(turn: Turn, end: Literal["shutdown", "relaunch"], grace_ms: int) -> None:
    """Set the time limits of a shutdown or a relaunch whose tasks have ``grace_ms`` to stop."""
    turn.emit(SetTimer(timer="last requests", at_ms=turn.now_ms + grace_ms))
    turn.emit(SetTimer(timer=end, at_ms=turn.now_ms + grace_ms + FINAL_STATUSES_TIMEOUT_MS))


def leave_or_close_runtime_if_ready(turn: Turn) -> None:
    """Leave the group (shutdown) or close the runtime (relaunch), if no task runs, all statuses are written, and all
    requests are answered (:func:`_close_intake_and_test_all_answered`, which first closes the intake of requests). A
    relaunch also waits for the end of a round."""
    herder, work = turn.herder, turn.herder.work
    match herder.lifecycle.phase:
        case ShuttingDown() as course if not work.local_tasks and work.are_statuses_written:
            if _close_intake_and_test_all_answered(turn):
                _refuse_requests_and_leave_group(turn, course)
        case Relaunching() if (
            herder.place.has_current_assignment
            and work.are_statuses_written
            and not work.tasks_that_may_hold_checkpoint
        ):
            if _close_intake_and_test_all_answered(turn):
                _refuse_requests_and_close_runtime(turn)
        case _:
            pass


def _close_intake_and_test_all_answered(turn: Turn) -> bool:
    """Order that no more requests are accepted, if this was not ordered yet. Returns whether no more requests are
    accepted and all requests that have reached this worker are answered."""
    _close_request_intake(turn)
    return turn.herder.lifecycle.intake is RequestIntakeState.CLOSED and turn.herder.requests.are_all_answered


def _close_request_intake(turn: Turn) -> None:
    """Order that this worker accepts no more requests, if this was not ordered yet."""
    if turn.herder.lifecycle.intake is RequestIntakeState.OPEN:
        turn.herder.lifecycle.intake = RequestIntakeState.CLOSING
        turn.emit(CloseRequestIntake())


def on_request_intake_closed(turn: Turn) -> None:
    """No more requests arrive: this worker ends when those that have arrived are answered."""
    turn.herder.lifecycle.intake = RequestIntakeState.CLOSED


def on_shutdown_or_relaunch_timer(turn: Turn, timer: Literal["last requests", "shutdown", "relaunch"]) -> None:
    """A time limit of a shutdown or of a relaunch is over, although some tasks may still run; they end with the process
    or with the runtime. If ``timer`` is ``last requests``, accept no more requests; if it is ``shutdown``, leave the
    group; if it is ``relaunch``, close the runtime. If a round is running, a relaunched process joins it again. Does
    nothing if this step is already taken or no longer needed."""
    match timer, turn.herder.lifecycle.phase:
        case "last requests", ShuttingDown() | Relaunching():
            _close_request_intake(turn)
        case "shutdown", ShuttingDown() as phase:
            _refuse_requests_and_leave_group(turn, phase)
        case "relaunch", Relaunching():
            _refuse_requests_and_close_runtime(turn)
        case _:
            pass


def exit_or_relaunch_as_new_member(turn: Turn) -> None:
    """This worker has left its group: end the process, or execute it again as a new member."""
    phase = turn.herder.lifecycle.phase
    assert isinstance(phase, LeavingGroup)
    if phase.relaunches:
        turn.emit(make_relaunching_exit(handover=None))
    else:
        turn.emit(Exit(exit_code=phase.exit_code, reason=phase.reason))


def exit_and_hand_over_if_relaunching(turn: Turn) -> None:
    """The runtime is closed: end the process and execute it again, with the membership that the next process continues.
    Does nothing if the worker has begun to shut down since then: it exits when it has left the group."""
    if turn.herder.lifecycle.is_relaunching:
        protocol_of(turn.herder).exit_and_hand_over_membership(turn)


def on_membership_suspended(turn: Turn, handover: ConnectMembershipHandover | None) -> None:
    """The member has sent its last request, in a connect group: end the process and execute it again, with the
    membership in ``handover``. Does nothing if the worker has begun to shut down since then."""
    if turn.herder.lifecycle.is_relaunching:
        turn.emit(make_relaunching_exit(handover))


def make_relaunching_exit(handover: Handover | None) -> Exit:
    """The effect that ends this process and executes it again; the next process continues the membership in
    ``handover``. With None, the next process joins as a new member."""
    return Exit(exit_code=0, reason="it relaunches itself, as ordered", relaunches=True, handover=handover)


def _refuse_requests_and_leave_group(turn: Turn, phase: ShuttingDown) -> None:
    """Order the member to leave the group. Requests that are not answered are refused."""
    _close_intake_and_refuse_all(turn, "Worker is shutting down")
    turn.herder.lifecycle.phase = LeavingGroup(
        exit_code=phase.exit_code, reason=phase.reason, relaunches=phase.relaunches
    )
    turn.emit(Leave(reason=phase.reason, is_permanent=phase.is_permanent))


def _refuse_requests_and_close_runtime(turn: Turn) -> None:
    """Order the runtime to close. Requests that are not answered are refused."""
    _close_intake_and_refuse_all(turn, "Worker is restarting")
    turn.herder.lifecycle.phase = ClosingRuntime()
    turn.emit(CloseRuntime())


def _close_intake_and_refuse_all(turn: Turn, message: str) -> None:
    """Refuse all pending requests with ``message``, and close the intake: further requests are refused, except those
    that a worker always answers (`machine`), such as for its own description."""
    turn.herder.lifecycle.intake = RequestIntakeState.CLOSED
    writes.refuse_all(turn, Problem.SHUTTING_DOWN, message)
    reads.refuse_all(turn, Problem.SHUTTING_DOWN, message)
    active_topics.refuse_pending_resets(turn, Problem.SHUTTING_DOWN, message)
    questions.refuse_all(turn, Problem.SHUTTING_DOWN, message)
    offsets.refuse_all(turn, Problem.SHUTTING_DOWN, message)
    view_requests.refuse_all(turn, Problem.SHUTTING_DOWN, message)
    logger_levels.refuse_all(turn, message)
