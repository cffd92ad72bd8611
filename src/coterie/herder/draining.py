"""Scale-in: a worker that is to go for good hands its jobs over before it goes.

It says so in its next join, and asks for a round. The leader has it give back what others may take, in one round or in
as many as its policy wants; each job is stopped here at the end of its batch, and runs elsewhere one round later. When
it owns nothing and nothing runs, it leaves the group (a static member, too: nobody is to wait for it), and its process
ends with code 0. What nobody may take it goes on with, for as long as it takes.

The wish outlives the membership: who loses its place while it drains joins again, still draining.
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
            problem=Problem.SHUTTING_DOWN, message="This worker is restarting; drain it when it is back"
        )
    if not herder.place.member_id:
        message = "This worker has no place in its group at the moment, so nobody could take its jobs; ask again"
        return RequestRefused(problem=Problem.NO_LEADER, message=message)
    if (why := spoken.why_drain_waits(herder)) is not None:
        message = (
            f"{why[0].upper()}{why[1:]}. Until then stop this worker (SIGTERM): its jobs move when it has been gone "
            "for scheduled.rebalance.max.delay.ms"
        )
        return RequestRefused(problem=Problem.NOT_POSSIBLE, message=message)
    _turn_to(turn, draining=True, reason="this worker drains")
    return Done()


def uncordon(turn: Turn) -> Answer:
    _turn_to(turn, draining=False, reason="this worker takes work again")
    return Done()


def on_assignment(turn: Turn) -> None:
    """A group that a worker with an older setting has joined meanwhile hears of no drain, and may give it jobs."""
    herder = turn.herder
    if herder.life.is_draining and (why := spoken.why_drain_waits(herder)) is not None:
        turn.order(Say(text=f"The drain of this worker waits: {why}", warns=True))


def advance(turn: Turn) -> None:
    """Leave when the drain is complete; otherwise ask for a round that announces what has changed."""
    herder = turn.herder
    if not herder.place.is_settled or herder.life.is_leaving:
        return
    if herder.life.is_draining and not herder.owned and not asking.awaits_round(herder):
        ending.leave(turn, "it is drained", code=0, grace_ms=herder.settings.stop_grace_ms, for_good=True)
    elif herder.life.is_open:
        asking.announce(turn)


def _turn_to(turn: Turn, *, draining: bool, reason: str) -> None:
    life = turn.herder.life
    if life.is_draining is not draining:
        life.is_draining = draining
        asking.report_change(turn, reason)
        turn.order(Say(text=f"By order of an operator {reason}"))
