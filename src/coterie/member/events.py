"""The events and effects of any member machine, the same for each group protocol."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, NewType, TypeAlias, TypeVar

from coterie.nouns.membership import MembershipEvent, MembershipOrder, UpdateAssignor

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
class ResponseReceived(Generic[ResponseT_co]):
    """The response to the request with this ``id`` has arrived."""

    id: RequestId
    response: ResponseT_co


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFailed:
    """The response to the request will not arrive. The coordinator may have received the request or not."""

    id: RequestId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFired(Generic[TimerT_co]):
    """The time of a timer has come. The timer may have been moved or cancelled meanwhile: the machine checks its
    deadline."""

    timer: TimerT_co


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberStarted:
    """The loop that drives the member has started: the first event of a member, once. It only has an effect on a member
    that continues the membership of a previous process: in a classic group the member sends a heartbeat at once, in a
    connect group its lease begins."""


Event: TypeAlias = (
    MembershipOrder | UpdateAssignor | ResponseReceived[ResponseT] | RequestFailed | TimerFired[TimerT] | MemberStarted
)

# -- effects: orders to the driver of the member ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Send(Generic[RequestT_co]):
    """Send ``request`` to the coordinator → ResponseReceived | RequestFailed. The driver must send a heartbeat at once,
    also while a join has no response yet: the broker delays that response until all members have joined."""

    id: RequestId
    request: RequestT_co


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTimer(Generic[TimerT_co]):
    """Set ``timer`` to fire at ``at_ms``; if it is set already, move it to that time."""

    timer: TimerT_co
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelTimer(Generic[TimerT_co]):
    """Cancel ``timer``, if it is set."""

    timer: TimerT_co


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteLogMessage:
    """Write one message to the process's log."""

    text: str
    is_warning: bool = False
    """Whether the message is a warning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberEnded:
    """The member has ended, with or without a request that leaves the group. No further effect follows."""


Effect: TypeAlias = (
    Send[RequestT] | SetTimer[TimerT] | CancelTimer[TimerT] | WriteLogMessage | MembershipEvent | MemberEnded
)
