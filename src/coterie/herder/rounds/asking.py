"""When this worker requests a round of its group. Every request goes through `ask_for_round`."""

from coterie.herder.rounds.state import AfterReading, AfterRelease, ForNews, RoundReason
from coterie.herder.state import Herder, Turn
from coterie.nouns.membership import Rejoin


def ask_for_round(turn: Turn, reason: str) -> None:
    if not turn.herder.life.is_leaving:
        turn.herder.rounds.is_asked = True
        turn.order(Rejoin(reason=reason))


def add_reason(turn: Turn, reason: RoundReason) -> None:
    """Request a round for ``reason`` as soon as possible; it replaces a pending reason of the same kind."""
    drop_reasons(turn, type(reason))
    turn.herder.rounds.pending_reasons += (reason,)


def drop_reasons(turn: Turn, *kinds: type[RoundReason]) -> None:
    rounds = turn.herder.rounds
    rounds.pending_reasons = tuple(reason for reason in rounds.pending_reasons if not isinstance(reason, kinds))


def has_reason(herder: Herder, kind: type[RoundReason]) -> bool:
    return any(isinstance(reason, kind) for reason in herder.rounds.pending_reasons)


def awaits_round(herder: Herder) -> bool:
    """Whether a round must follow before this worker may leave: a round was requested, or released jobs need a
    round."""
    return has_reason(herder, AfterRelease) or herder.rounds.is_asked


def report_change(turn: Turn, reason: str) -> None:
    """This worker's reported state has changed: `announce` requests the round in which the leader receives it."""
    add_reason(turn, ForNews(reason=reason))


def on_end(turn: Turn) -> None:
    """A round has ended, or the membership is lost: no requested round is outstanding any more."""
    turn.herder.rounds.is_asked = False


def advance(turn: Turn) -> None:
    """Request a round for each pending reason whose condition is met, except for the reasons of `announce`."""
    herder = turn.herder
    for reason in herder.rounds.pending_reasons:
        match reason:
            # Not while a round is running: its join may have been sent while a revoked job still ran, and then the
            # leader counts this job as owned by this worker. The round after it corrects that.
            case AfterRelease() if herder.place.is_settled and herder.owned == herder.place.assigned:
                drop_reasons(turn, AfterRelease)
                ask_for_round(turn, "the revoked jobs have been released")
            case AfterReading(end=end) if herder.has_read(end):
                drop_reasons(turn, AfterReading)
                ask_for_round(turn, "the config log is read")
            case _:
                pass


def announce(turn: Turn) -> None:
    """Request the round in which the leader receives a change of this worker's state."""
    for reason in turn.herder.rounds.pending_reasons:
        if isinstance(reason, ForNews):
            drop_reasons(turn, ForNews)
            ask_for_round(turn, reason.reason)
