"""The orders that any group's machine sends to its host, and the events of deadlines that passed; the same for each
group protocol."""

from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from coterie.nouns.ids import ReplyTo

KeyT = TypeVar("KeyT")
ResponseT = TypeVar("ResponseT")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFired(Generic[KeyT]):
    """A deadline passed. The timer may have been moved or cancelled meanwhile: the machine checks the deadline."""

    key: KeyT


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply(Generic[ResponseT]):
    to: ReplyTo
    response: ResponseT


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTimer(Generic[KeyT]):
    """Fire ``key`` at ``at_ms``; if it is set already, move it."""

    key: KeyT
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelTimer(Generic[KeyT]):
    key: KeyT


Effect: TypeAlias = Reply[ResponseT] | SetTimer[KeyT] | CancelTimer[KeyT]
