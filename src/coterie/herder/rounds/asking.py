"""When this worker asks its group for a round. Every wish goes through `ask_for_round`."""

from coterie.herder.rounds.state import AfterReading, AfterRelease, ForNews, Owed
from coterie.herder.state import Herder, Turn
from coterie.nouns.membership import Rejoin


def ask_for_round(turn: Turn, reason: str) -> None:
    if not turn.herder.life.is_leaving:
        turn.herder.rounds.is_asked = True
        turn.order(Rejoin(reason=reason))


def owe(turn: Turn, owed: Owed) -> None:
    """Ask for a round for this reason as soon as it can be asked for."""
    drop(turn, type(owed))
    turn.herder.rounds.owed += (owed,)


def drop(turn: Turn, *kinds: type[Owed]) -> None:
    rounds = turn.herder.rounds
    rounds.owed = tuple(owed for owed in rounds.owed if not isinstance(owed, kinds))


def owes(herder: Herder, kind: type[Owed]) -> bool:
    return any(isinstance(owed, kind) for owed in herder.rounds.owed)


def on_end(turn: Turn) -> None:
    """A round has ended, or the place is lost: what was asked for has come, or never will."""
    turn.herder.rounds.is_asked = False


def advance(turn: Turn) -> None:
    """Ask for the rounds that are owed and can be asked for now, but for those of `announce`."""
    herder = turn.herder
    for owed in herder.rounds.owed:
        match owed:
            # Not while a round is under way: its join may have been sent when something of what was revoked still ran,
            # and then the leader thinks that this worker keeps it. The round after it puts that right.
            case AfterRelease() if herder.place.is_settled and herder.owned == herder.place.assigned:
                drop(turn, AfterRelease)
                ask_for_round(turn, "what was revoked has been released")
            case AfterReading(end=end) if herder.has_read(end):
                drop(turn, AfterReading)
                ask_for_round(turn, "the config log is read")
            case _:
                pass


def announce(turn: Turn) -> None:
    """Ask for the round in which the group learns what has changed about this worker."""
    for owed in turn.herder.rounds.owed:
        if isinstance(owed, ForNews):
            drop(turn, ForNews)
            ask_for_round(turn, owed.reason)
