"""The messages of a group's coordinator: its events, records and effects.

Independent of API versions: the parser of a request fills in the fields that an old version lacks. Each group has its
own machine, so no event contains a group id. A value that a machine may not generate itself (a fresh member id) is part
of the event.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from coterie.groups import effects
from coterie.groups.classic.offset_messages import OffsetRecord, OffsetRequest, OffsetResponse, TopicDeleted
from coterie.groups.effects import TimerFired
from coterie.nouns.ids import Generation, InstanceId, MemberId
from coterie.nouns.ids import ReplyTo as ReplyTo
from coterie.wire.errors import ErrorCode


class Phase(StrEnum):
    """The state of a group, by Kafka's names. Never stored, always derived."""

    EMPTY = "EMPTY"
    PREPARING_REBALANCE = "PREPARING_REBALANCE"
    COMPLETING_REBALANCE = "COMPLETING_REBALANCE"
    STABLE = "STABLE"
    DEAD = "DEAD"
    """The group does not exist."""


NO_GENERATION = Generation(-1)
NO_MEMBER = MemberId("")

# -- events: a request's own name, or a past fact ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberProtocol:
    """One protocol that a member offers, with the member's metadata encoded for that protocol."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroup:
    reply_to: ReplyTo
    member_id: MemberId
    """Empty for a member that is new."""
    fresh_member_id: MemberId
    """``<client id>-<uuid>``, or ``<instance id>-<uuid>``: used for a new member, and for a static one that rejoins."""
    requires_known_member_id: bool
    """JoinGroup v4 and later: a new client first receives its member id, and becomes a member when it joins with that
    id (KIP-394)."""
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    """The session timeout for JoinGroup v0, which lacks this field."""
    protocol_type: str
    protocols: tuple[MemberProtocol, ...]
    """In the order of preference."""
    instance_id: InstanceId | None = None
    """The instance id of a static member (KIP-345); from v5 on."""
    can_skip_assignment: bool = False
    """JoinGroup v9 and later: the client supports ``JoinGroupResponse.skip_assignment`` (KIP-814)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroup:
    reply_to: ReplyTo
    member_id: MemberId
    generation: Generation
    protocol_type: str | None = None
    """From v5 on (KIP-559); not checked when None."""
    protocol: str | None = None
    assignments: tuple[tuple[MemberId, bytes], ...] = ()
    """Sent by the leader; ignored from other members."""
    instance_id: InstanceId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    reply_to: ReplyTo
    member_id: MemberId
    generation: Generation
    instance_id: InstanceId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeavingMember:
    """One member in a LeaveGroup, identified by its member id. If that is empty: the current member of the instance
    id."""

    member_id: MemberId
    instance_id: InstanceId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroup:
    reply_to: ReplyTo
    members: tuple[LeavingMember, ...]
    """Any number of members from LeaveGroup v3 on; one member in older versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroup:
    reply_to: ReplyTo
    with_members: bool = True
    """False for ListGroups, because a group may have many members."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLoaded:
    """The group's records have been replayed; the coordinator may send responses again."""


Request: TypeAlias = Heartbeat | JoinGroup | SyncGroup | LeaveGroup | DescribeGroup | OffsetRequest
News: TypeAlias = GroupLoaded | TopicDeleted
"""Events that come from the broker itself."""

# -- records of the group's log: each contains the whole state of its key, which is the group or a partition ----------


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenMember:
    """One member as stored in a record."""

    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    subscription: bytes
    """The member's metadata in the group's protocol."""
    assignment: bytes
    instance_id: InstanceId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationWritten:
    """A generation. It is written when its join phase ends (``protocol`` None: no member has an assignment yet), again
    when its leader has synced, and again when a static member has rejoined under a new member id. A generation without
    members is an empty group.

    Kafka does not write the first of these records. It guarantees that no generation number is used twice: a late
    SyncGroup from before a crash cannot be taken for one of the next generation.
    """

    protocol_type: str
    generation: Generation
    protocol: str | None
    leader: MemberId | None
    written_at_ms: int
    members: Mapping[MemberId, WrittenMember]


Record: TypeAlias = GenerationWritten | OffsetRecord

# -- effects: orders to the shell ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    """One member of a generation, as listed in the leader's response."""

    member_id: MemberId
    metadata: bytes
    """The member's metadata in the selected protocol."""
    instance_id: InstanceId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroupResponse:
    error: ErrorCode
    generation: Generation = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: MemberId = NO_MEMBER
    member_id: MemberId = NO_MEMBER
    members: tuple[JoinedMember, ...] = ()
    """All members in the order in which they joined; empty in responses to other members than the leader."""
    skip_assignment: bool = False
    """For a static member that rejoins as the leader: its previous assignments are still valid (KIP-814)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroupResponse:
    error: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatResponse:
    error: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroupResponse:
    """``error`` concerns the whole request; each member has its own code in ``members``, in the request's order.

    Versions before 3 have one code: ``error`` if it is not NONE, otherwise the code of the only member.
    """

    error: ErrorCode
    members: tuple[tuple[MemberId, ErrorCode], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedMember:
    member_id: MemberId
    instance_id: InstanceId | None
    client_id: str
    client_host: str
    metadata: bytes = b""
    """The metadata in the group's protocol. Empty unless the group is STABLE, as in Kafka."""
    assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroupResponse:
    error: ErrorCode
    phase: Phase = Phase.DEAD
    protocol_type: str = ""
    protocol: str = ""
    """Empty unless the group is STABLE."""
    members: tuple[DescribedMember, ...] = ()


Response: TypeAlias = (
    HeartbeatResponse
    | JoinGroupResponse
    | SyncGroupResponse
    | LeaveGroupResponse
    | DescribeGroupResponse
    | OffsetResponse
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionTimer:
    """The coordinator has received no request from the member for its session timeout."""

    member_id: MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingMemberTimer:
    """A member id was issued and no client has joined with it in time."""

    member_id: MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class NewMemberTimer:
    """A new member has waited for the end of its first join phase for the maximum time (5 minutes)."""

    member_id: MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinPhaseTimer:
    """The join phase is over: members that have not rejoined are removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncTimer:
    """The sync phase is over: members that have not sent SyncGroup are removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryTimer:
    """It is time to remove expired offsets."""


TimerKey: TypeAlias = SessionTimer | PendingMemberTimer | NewMemberTimer | JoinPhaseTimer | SyncTimer | ExpiryTimer


Event: TypeAlias = Request | TimerFired[TimerKey] | News
Effect: TypeAlias = effects.Effect[Response, TimerKey]
