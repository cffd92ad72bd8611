"""A worker that begins its process anew, in the same place: for a new version, or for other settings.

Its tasks stop at the ends of their batches and the runtime closes, while heartbeats go on. Then the process executes
itself and goes on as the very member that it was: it owns what it owned, its group notices nothing, and no job moves.
Only if that takes longer than the session it has lost its place, as any worker that was away for so long.

A leader remembers nothing of its rounds in its next life, but for the delay that it was told of, as any new leader
does. So that it knows its members again it asks for a round, in which nobody has to move.
"""

from coterie.herder import reads, statuses, writes
from coterie.herder.leaving import FAREWELL_MS
from coterie.herder.messages import CloseRuntime, Exit, Say, SetTimer
from coterie.herder.requests import Answer, Done, Problem, Refused
from coterie.herder.rounds import asking, spoken
from coterie.herder.rounds.state import AfterRelease
from coterie.herder.state import Herder, Turn
from coterie.nouns.ids import Generation
from coterie.nouns.membership import PlaceHandover
from coterie.nouns.states import State

REASON = "it restarts"


def restart(turn: Turn, obstacle: str | None) -> Answer:
    herder = turn.herder
    if herder.draining:
        message = "This worker drains: it ends when it is done. To keep it, call it back first (uncordon)"
        return Refused(problem=Problem.NOT_POSSIBLE, message=message)
    if not herder.restarting:
        if obstacle is not None:
            message = f"{herder.settings.shown_name} would not start again, so it goes on as it is. {obstacle}"
            return Refused(problem=Problem.NOT_POSSIBLE, message=message)
        turn.order(Say(text="By order of an operator this worker restarts"))
        herder.restarting = True
        message = "Worker is restarting"
        writes.refuse_all(turn, Problem.SHUTTING_DOWN, message)
        reads.refuse_all(turn, Problem.SHUTTING_DOWN, message)
        for name in sorted(herder.place.assigned.connectors):
            statuses.show(turn, name, State.RESTARTING)
        patience_ms = herder.settings.stop_grace_ms + FAREWELL_MS
        turn.order(SetTimer(timer="restart", at_ms=turn.now_ms + patience_ms))
    return Done()


def advance(turn: Turn) -> None:
    """Close the runtime when all has stopped, the statuses are written and no round is under way."""
    herder = turn.herder
    is_quiet = herder.place.is_settled and herder.work.is_all_written and not herder.work.active_tasks
    if herder.restarting and herder.leaving is None and is_quiet:
        _close(turn)


def on_patience_over(turn: Turn) -> None:
    """What has not stopped by now is stopped with the runtime, and a round that has not ended is joined once more."""
    if turn.herder.restarting and turn.herder.leaving is None:
        _close(turn)


def on_closed(turn: Turn) -> None:
    if turn.herder.leaving is None:  # Otherwise it is to end, which it does by itself.
        turn.order(Exit(code=0, reason=REASON, restarts=True, place=_place(turn.herder)))


def _close(turn: Turn) -> None:
    if not turn.herder.closing:
        turn.herder.closing = True
        turn.order(CloseRuntime())


def _place(herder: Herder) -> PlaceHandover | None:
    """What the next life goes on with; None when there is no place to go on in."""
    place, protocol = herder.place, spoken.setting(herder)
    if protocol is None or not place.member_id:
        return None
    return PlaceHandover(
        member_id=place.member_id,
        generation=Generation(place.epoch),
        protocol=protocol,
        leader=place.leader,
        leader_url=place.leader_url,
        config_offset=place.assignment_offset,
        jobs=place.assigned,
        deferred_until_ms=herder.rounds.deferred_until_ms,
        unheard=not place.is_settled,
        owes_round=place.leader == place.member_id or asking.owes(herder, AfterRelease) or not place.is_settled,
    )
