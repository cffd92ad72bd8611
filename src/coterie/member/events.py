"""What any member machine takes and yields, whatever protocol its group speaks: events and effects."""

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
"""Which request an answer belongs to; counts upwards and is never used twice."""

# -- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered(Generic[ResponseT_co]):
    id: RequestId
    response: ResponseT_co


@dataclass(frozen=True, slots=True, kw_only=True)
class Unanswered:
    """No answer arrives; the coordinator may have received the request or not."""

    id: RequestId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFired(Generic[TimerT_co]):
    """A claim to check: the timer may have been moved or cancelled meanwhile."""

    timer: TimerT_co


@dataclass(frozen=True, slots=True, kw_only=True)
class Began:
    """The driver begins: the first event of a member."""


Event: TypeAlias = MembershipOrder | Answered[ResponseT] | Unanswered | TimerFired[TimerT] | Began

# -- effects: orders to the driver of the member ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Send(Generic[RequestT_co]):
    """Ask the coordinator → Answered | Unanswered. A heartbeat must not wait behind a join that the broker parks."""

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
    """One line for the process's log."""

    text: str
    warns: bool = False
    """An operator should see it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """The member has left the group, whether the coordinator was told or not. Nothing follows."""


Effect: TypeAlias = Send[RequestT] | SetTimer[TimerT] | CancelTimer[TimerT] | Say | MembershipEvent | Left
