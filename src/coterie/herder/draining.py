"""Drains: a worker that will be removed permanently, or that will restart without jobs, hands its jobs over to other
workers before it leaves the group.

The draining worker requests a round and reports the drain in its JoinGroup. The leader revokes the jobs that other
workers may run, in one round or in as many as its policy requires. This worker stops each revoked job at the end of its
batch, and the next round assigns the job to another worker. When the worker owns no job and no task runs, it leaves the
group (also a static member, so that the group does not wait for it). Then its process ends with code 0, or executes
itself again and joins as a new member. The worker keeps running the jobs that no other worker may run, without a time
limit.

A loss of the membership does not end the drain: the worker rejoins as a draining member.
"""

from coterie.herder import lifecycle
from coterie.herder.group_protocol import protocol_of
from coterie.herder.messages import WriteLogMessage
from coterie.herder.requests.kinds import Answer
from coterie.herder.requests.refusals import Problem, RequestRefused, SuccessWithoutContent
from coterie.herder.state import Drain, Herder, Turn


def start_drain(turn: Turn) -> Answer:
    """Start the drain of this worker, if it does not drain already. If it drains in order to restart, it will end
    instead. Refused while the worker relaunches, while it is not a member, and when the group's protocol cannot report
    a drain."""
    refusal = _drain_refusal(
        turn.herder,
        alternative="Or stop this worker (SIGTERM): its jobs then move to other workers after "
        "scheduled.rebalance.max.delay.ms",
    )
    if refusal is not None:
        return refusal
    _set_drain(turn, Drain(relaunches=False), reason="this worker drains")
    return SuccessWithoutContent()


def start_drain_before_relaunch(turn: Turn, settings_error: str | None) -> Answer:
    """Start a drain of this worker at whose end the process executes itself again, unless such a drain has begun.
    Refused in the cases of :func:`start_drain`, while the worker drains in order to end, and if ``settings_error`` says
    that it could not start again."""
    herder = turn.herder
    if herder.lifecycle.drain == Drain(relaunches=True):
        return SuccessWithoutContent()
    refusal = _drain_refusal(herder, alternative="Or restart this worker without moving its jobs")
    if refusal is None:
        refusal = lifecycle.relaunch_refusal(herder, settings_error)
    if refusal is not None:
        return refusal
    _set_drain(turn, Drain(relaunches=True), reason="this worker moves its jobs to other workers, then restarts")
    return SuccessWithoutContent()


def cancel_drain(turn: Turn) -> Answer:
    """Cancel the drain of this worker, if it drains: it can be assigned jobs again."""
    _set_drain(turn, None, reason="this worker accepts jobs again")
    return SuccessWithoutContent()


def warn_if_drain_cannot_be_reported(turn: Turn) -> None:
    """This worker has received an assignment. If it drains and its report of the drain cannot reach the leader, because
    a worker that offers only older protocols has joined, log a warning: the leader may then assign jobs to this
    worker."""
    herder = turn.herder
    if herder.lifecycle.is_draining and (why := protocol_of(herder).drain_unreportable_reason(herder)) is not None:
        turn.emit(WriteLogMessage(text=f"The drain of this worker waits: {why}", is_warning=True))


def finish_drain_or_request_round_for_changed_state(turn: Turn) -> None:
    """Begin the shutdown if the drain is complete: this worker owns no job, and no round that it needs is outstanding.
    Otherwise, if a state that this worker reports has changed (it drains, or accepts jobs again), request the round in
    which the leader of a classic group receives the change. Does nothing while a round is running or the worker is
    leaving."""
    herder = turn.herder
    if not herder.place.has_current_assignment or herder.lifecycle.is_shutting_down:
        return
    drain = herder.lifecycle.drain
    if drain is not None and not herder.owned_jobs and not protocol_of(herder).must_stay_after_drain(herder):
        lifecycle.begin_shutdown(
            turn,
            "its drain is complete",
            code=0,
            grace_ms=herder.settings.stop_grace_ms,
            is_permanent=True,
            relaunches=drain.relaunches,
        )
    elif herder.lifecycle.is_runtime_open:
        protocol_of(herder).report_worker_state_changes(turn)


def _drain_refusal(herder: Herder, *, alternative: str) -> RequestRefused | None:
    """Why this worker cannot start a drain now; None if it can. ``alternative``: what the operator can do if the
    group's protocol cannot report a drain."""
    if herder.lifecycle.is_relaunching:
        return RequestRefused(
            problem=Problem.SHUTTING_DOWN, message="This worker is restarting; drain it after the restart"
        )
    if not herder.place.member_id:
        message = "This worker is not a member of its group now, so its jobs cannot move; retry the request"
        return RequestRefused(problem=Problem.NO_LEADER, message=message)
    if (why := protocol_of(herder).drain_unreportable_reason(herder)) is not None:
        return RequestRefused(problem=Problem.NOT_POSSIBLE, message=f"{why[0].upper()}{why[1:]}. {alternative}")
    return None


def _set_drain(turn: Turn, drain: Drain | None, *, reason: str) -> None:
    """Set the drain of this worker; None ends the drain. Log ``reason`` if this is a change. If the worker begins to
    drain or drains no longer, report that to the group; whether the process executes itself again after the drain is
    not reported."""
    herder = turn.herder
    if herder.lifecycle.drain == drain:
        return
    was_draining = herder.lifecycle.is_draining
    herder.lifecycle.drain = drain
    if herder.lifecycle.is_draining is not was_draining:
        protocol_of(herder).store_worker_state_change(turn, reason)
    turn.emit(WriteLogMessage(text=f"An operator ordered: {reason}"))
