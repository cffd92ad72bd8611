"""The events and effects of any member machine, the same for each group protocol."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, NewType, TypeAlias, TypeVar

from coterie.nouns.membership import MembershipEvent, MembershipOrder

RequestT = TypeVar("RequestT")
RequestT_co = TypeVar("RequestT_co", covariant=True)
ResponseT = TypeVar("ResponseT")
ResponseT_co = TypeVar("ResponseT_co", covariant=True)
TimerT = TypeVar("TimerT", bound=Hashable)
TimerT_co = TypeVar("TimerT_co", bound=Hashable, covariant=True)

RequestId = NewType("RequestId", int)
"""Identifies a request and its response; counts upwards and is never used twice."""

# -- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered(Generic[ResponseT_co]):
    id: RequestId
    response: ResponseT_co


@dataclass(frozen=True, slots=True, kw_only=True)
class Unanswered:
    """The response to the request will not arrive; the coordinator may have received the request or not."""

    id: RequestId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFired(Generic[TimerT_co]):
    """A deadline passed. The timer may have been moved or cancelled meanwhile: the machine checks the deadline."""

    timer: TimerT_co


@dataclass(frozen=True, slots=True, kw_only=True)
class Began:
    """The driver has started: the first event of a member."""


Event: TypeAlias = MembershipOrder | Answered[ResponseT] | Unanswered | TimerFired[TimerT] | Began

# -- effects: orders to the driver of the member ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Send(Generic[RequestT_co]):
    """Send ``request`` to the coordinator → Answered | Unanswered. A heartbeat must not wait behind a join that the
    broker parks."""

    id: RequestId
    request: RequestT_co


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTimer(Generic[TimerT_co]):
    """Fire ``timer`` at ``at_ms``; if it is set already, move it."""

    timer: TimerT_co
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelTimer(Generic[TimerT_co]):
    timer: TimerT_co


@dataclass(frozen=True, slots=True, kw_only=True)
class Say:
    """One message for the process's log."""

    text: str
    warns: bool = False
    """The message is a warning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """The member has left the group, with or without a LeaveGroup. No effect follows."""


Effect: TypeAlias = Send[RequestT] | SetTimer[TimerT] | CancelTimer[TimerT] | Say | MembershipEvent | Left
