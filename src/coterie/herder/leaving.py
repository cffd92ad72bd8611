"""How a worker ends: everything here stops, its last statuses are written, it leaves the group, the process exits."""

from dataclasses import replace

from coterie.herder import place, reads, writes
from coterie.herder.messages import Exit, LeaveGroup, Say, SetTimer
from coterie.herder.requests import Problem
from coterie.herder.state import Leaving, Turn

FAREWELL_MS = 1_000
"""For the last statuses, on top of the grace of the tasks."""


def leave(turn: Turn, reason: str, *, code: int, grace_ms: int, for_good: bool = False) -> None:
    """Begin to leave; the first reason stands."""
    herder = turn.herder
    if herder.leaving is not None:
        return
    turn.order(Say(text=f"This worker is leaving: {reason}"))
    herder.leaving = Leaving(code=code, reason=reason, for_good=for_good)
    place.drop_jobs(turn)
    writes.refuse_all(turn, Problem.SHUTTING_DOWN, "Worker is shutting down")
    reads.refuse_all(turn, Problem.SHUTTING_DOWN, "Worker is shutting down")
    turn.order(SetTimer(timer="shutdown", at_ms=turn.now_ms + grace_ms + FAREWELL_MS))


def advance(turn: Turn) -> None:
    """Leave when all has stopped and the statuses are written."""
    herder = turn.herder
    if herder.leaving is not None and not herder.work.runs and herder.work.is_all_written:
        _say_farewell(turn)


def on_patience_over(turn: Turn) -> None:
    """What has not stopped by now is stopped with the process; the group need not wait for it."""
    _say_farewell(turn)


def on_left(turn: Turn) -> None:
    leaving = turn.herder.leaving
    assert leaving is not None
    turn.order(Exit(code=leaving.code, reason=leaving.reason))


def _say_farewell(turn: Turn) -> None:
    leaving = turn.herder.leaving
    if leaving is not None and not leaving.said:
        turn.herder.leaving = replace(leaving, said=True)
        turn.order(LeaveGroup(reason=leaving.reason, for_good=leaving.for_good))
