"""Scale-in: a worker that will be removed permanently hands its jobs over before it leaves the group.

The draining worker announces the drain in its next join, and requests a round. The leader revokes the jobs that other
workers may run, in one round or in as many as its policy requires; this worker stops each job at the end of its batch,
and the job runs on another worker one round later. When the worker owns no job and no task runs, it leaves the group
(also a static member, so that the group does not wait for it), and its process ends with code 0. The worker keeps
running the jobs that no other worker may run, without a time limit.

The drain continues over a loss of the membership: a worker that loses its membership during a drain rejoins as a
draining member.
"""

from coterie.herder import ending
from coterie.herder.messages import Say
from coterie.herder.requests import Answer, Done, Problem, RequestRefused
from coterie.herder.rounds import asking, spoken
from coterie.herder.state import Turn


def drain(turn: Turn) -> Answer:
    herder = turn.herder
    if herder.life.is_relaunching:
        return RequestRefused(
            problem=Problem.SHUTTING_DOWN, message="This worker is restarting; drain it after the restart"
        )
    if not herder.place.member_id:
        message = "This worker is not a member of its group now, so its jobs cannot move; retry the request"
        return RequestRefused(problem=Problem.NO_LEADER, message=message)
    if (why := spoken.why_drain_waits(herder)) is not None:
        message = (
            f"{why[0].upper()}{why[1:]}. Or stop this worker (SIGTERM): its jobs then move to other workers after "
            "scheduled.rebalance.max.delay.ms"
        )
        return RequestRefused(problem=Problem.NOT_POSSIBLE, message=message)
    _turn_to(turn, draining=True, reason="this worker drains")
    return Done()


def uncordon(turn: Turn) -> Answer:
    _turn_to(turn, draining=False, reason="this worker accepts jobs again")
    return Done()


def on_assignment(turn: Turn) -> None:
    """Warn when a worker that offers only older protocols has joined during the drain: the leader then does not receive
    the drain request, and may assign jobs to this worker."""
    herder = turn.herder
    if herder.life.is_draining and (why := spoken.why_drain_waits(herder)) is not None:
        turn.order(Say(text=f"The drain of this worker waits: {why}", warns=True))


def advance(turn: Turn) -> None:
    """Leave when the drain is complete; otherwise request a round that announces a change of this worker's state."""
    herder = turn.herder
    if not herder.place.is_settled or herder.life.is_leaving:
        return
    if herder.life.is_draining and not herder.owned and not asking.awaits_round(herder):
        ending.leave(turn, "its drain is complete", code=0, grace_ms=herder.settings.stop_grace_ms, for_good=True)
    elif herder.life.is_open:
        asking.announce(turn)


def _turn_to(turn: Turn, *, draining: bool, reason: str) -> None:
    life = turn.herder.life
    if life.is_draining is not draining:
        life.is_draining = draining
        asking.report_change(turn, reason)
        turn.order(Say(text=f"An operator ordered: {reason}"))
