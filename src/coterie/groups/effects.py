"""The effects of the machines of groups, for every group protocol: responses and timers. And the event of a timer that
has fired."""

from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from coterie.nouns.ids import ReplyTo

KeyT = TypeVar("KeyT")
ResponseT = TypeVar("ResponseT")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFired(Generic[KeyT]):
    """The time of the timer ``key`` has come. The timer may have been moved or cancelled meanwhile, so the machine
    checks the deadline."""

    key: KeyT


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply(Generic[ResponseT]):
    """Send ``response`` to the request ``to``."""

    to: ReplyTo
    response: ResponseT


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTimer(Generic[KeyT]):
    """Send `TimerFired` with ``key`` at ``at_ms``; if the timer is set already, move it."""

    key: KeyT
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelTimer(Generic[KeyT]):
    """Cancel the timer ``key``."""

    key: KeyT


Effect: TypeAlias = Reply[ResponseT] | SetTimer[KeyT] | CancelTimer[KeyT]
