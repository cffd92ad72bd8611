"""When this worker asks its group for a round. Every wish goes through `ask_for_round`."""

from coterie.herder.rounds.state import AfterReading, AfterRelease, ForNews, RoundReason
from coterie.herder.state import Herder, Turn
from coterie.nouns.membership import Rejoin


def ask_for_round(turn: Turn, reason: str) -> None:
    if not turn.herder.life.is_leaving:
        turn.herder.rounds.is_asked = True
        turn.order(Rejoin(reason=reason))


def add_reason(turn: Turn, reason: RoundReason) -> None:
    """Ask for a round for this reason as soon as it can be asked for."""
    drop_reasons(turn, type(reason))
    turn.herder.rounds.pending_reasons += (reason,)


def drop_reasons(turn: Turn, *kinds: type[RoundReason]) -> None:
    rounds = turn.herder.rounds
    rounds.pending_reasons = tuple(reason for reason in rounds.pending_reasons if not isinstance(reason, kinds))


def has_reason(herder: Herder, kind: type[RoundReason]) -> bool:
    return any(isinstance(reason, kind) for reason in herder.rounds.pending_reasons)


def awaits_round(herder: Herder) -> bool:
    """Whether a round has to come before this worker may go: one was asked for, or released jobs make one necessary."""
    return has_reason(herder, AfterRelease) or herder.rounds.is_asked


def report_change(turn: Turn, reason: str) -> None:
    """What this worker reports of itself has changed: `announce` asks for the round in which the group learns it."""
    add_reason(turn, ForNews(reason=reason))


def on_end(turn: Turn) -> None:
    """A round has ended, or the place is lost: what was asked for has come, or never will."""
    turn.herder.rounds.is_asked = False


def advance(turn: Turn) -> None:
    """Ask for a round for each pending reason whose round can be asked for now, but for those of `announce`."""
    herder = turn.herder
    for reason in herder.rounds.pending_reasons:
        match reason:
            # Not while a round is under way: its join may have been sent when something of what was revoked still ran,
            # and then the leader thinks that this worker keeps it. The round after it puts that right.
            case AfterRelease() if herder.place.is_settled and herder.owned == herder.place.assigned:
                drop_reasons(turn, AfterRelease)
                ask_for_round(turn, "what was revoked has been released")
            case AfterReading(end=end) if herder.has_read(end):
                drop_reasons(turn, AfterReading)
                ask_for_round(turn, "the config log is read")
            case _:
                pass


def announce(turn: Turn) -> None:
    """Ask for the round in which the group learns what has changed about this worker."""
    for reason in turn.herder.rounds.pending_reasons:
        if isinstance(reason, ForNews):
            drop_reasons(turn, ForNews)
            ask_for_round(turn, reason.reason)
