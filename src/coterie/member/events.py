"""What any member machine takes and yields, whatever protocol its group speaks: events and effects."""

from dataclasses import dataclass
from typing import Generic, Literal, NewType, TypeAlias, TypeVar

from coterie.nouns.ids import ConfigOffset
from coterie.nouns.jobs import Jobs
from coterie.nouns.membership import Computed, MembershipEvent

RequestT = TypeVar("RequestT")
RequestT_co = TypeVar("RequestT_co", covariant=True)
ResponseT = TypeVar("ResponseT")
ResponseT_co = TypeVar("ResponseT_co", covariant=True)

RequestId = NewType("RequestId", int)
"""Which request an answer belongs to; counts upwards and is never used twice."""

Timer: TypeAlias = Literal["heartbeat", "lease", "answer", "retry", "held", "leave"]
"""``heartbeat``: send the next · ``lease``: nobody has answered for too long · ``answer``: a join or sync was waited
for long enough · ``retry``: ask again · ``leave``: go without an answer."""

# -- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribed:
    """What the next join will say. The first one makes the member join; after a loss, one that owns nothing does."""

    config_offset: ConfigOffset
    owned: Jobs
    draining: bool = False
    """This worker is to go for good: its jobs move away while it still runs them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RejoinWanted:
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """The leader's answer to ``AssignmentWanted``."""

    token: object
    computed: Computed


@dataclass(frozen=True, slots=True, kw_only=True)
class AbandonWanted:
    """Give the place up, but not for good: whoever should do the work here is stuck."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveWanted:
    reason: str
    for_good: bool = False
    """A static member says farewell, too: nobody is to wait for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered(Generic[ResponseT_co]):
    id: RequestId
    response: ResponseT_co


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The coordinator could not be asked, or nobody knows whether it was."""

    id: RequestId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFired:
    """A claim to check: the timer may have been moved or cancelled meanwhile."""

    timer: Timer


Ordered: TypeAlias = Subscribed | RejoinWanted | Installed | AbandonWanted | LeaveWanted
"""What the herder asks for."""
Event: TypeAlias = Ordered | Answered[ResponseT] | Failed | TimerFired

# -- effects: orders to whoever drives the member ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Send(Generic[RequestT_co]):
    """Ask the coordinator → Answered | Failed. A heartbeat must not wait behind a join that is parked there."""

    id: RequestId
    request: RequestT_co


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTimer:
    """Fire ``timer`` at ``at_ms``; if it is set already, move it."""

    timer: Timer
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelTimer:
    timer: Timer


@dataclass(frozen=True, slots=True, kw_only=True)
class Say:
    """One line for the process's log."""

    text: str
    warns: bool = False
    """An operator should see it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """The member has left the group, whether anybody heard it or not. Nothing follows."""


Effect: TypeAlias = Send[RequestT] | SetTimer | CancelTimer | Say | MembershipEvent | Left
