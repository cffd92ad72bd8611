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
"""``heartbeat``: send the next one · ``lease``: the proof of the place ends · ``answer``: the answer to a join or sync
is overdue · ``retry``: a back-off ends · ``held``: send a held join · ``leave``: leave without an answer."""

# -- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribed:
    """What the next join reports. The first one makes the member join; after a loss, one that owns no job does."""

    config_offset: ConfigOffset
    owned: Jobs
    draining: bool = False
    """This worker leaves for good: its jobs move away while it still runs them."""


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
    """Give the place up until everything has stopped: the herder is stuck, or cannot start its jobs."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveWanted:
    reason: str
    for_good: bool = False
    """A static member sends a LeaveGroup, too: the group must not wait for it."""


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
class TimerFired:
    """A claim to check: the timer may have been moved or cancelled meanwhile."""

    timer: Timer


HerderOrder: TypeAlias = Subscribed | RejoinWanted | Installed | AbandonWanted | LeaveWanted
"""What the herder asks for."""
Event: TypeAlias = HerderOrder | Answered[ResponseT] | Unanswered | TimerFired

# -- effects: orders to the driver of the member ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Send(Generic[RequestT_co]):
    """Ask the coordinator → Answered | Unanswered. A heartbeat must not wait behind a join that the broker parks."""

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
    """The member has left the group, whether the coordinator was told or not. Nothing follows."""


Effect: TypeAlias = Send[RequestT] | SetTimer | CancelTimer | Say | MembershipEvent | Left
