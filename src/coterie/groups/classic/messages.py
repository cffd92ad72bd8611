"""The messages of a group's coordinator: its events, records and effects.

The messages are independent of API versions: the parser of a request fills in the fields that an old version lacks.
Each group has its own machine, so no event contains a group id. A value that a machine may not generate itself (a fresh
member id) is part of the event.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from coterie.groups import effects
from coterie.groups.classic.offset_messages import (
    OffsetRecord,
    OffsetRequest,
    OffsetResponse,
    TopicDeleted,
    TransactionEnded,
)
from coterie.groups.effects import TimerFired
from coterie.nouns.ids import GenerationId, InstanceId, MemberId
from coterie.nouns.ids import ReplyTo as ReplyTo
from coterie.wire.errors import ErrorCode


class GroupPhase(StrEnum):
    """The state of a group, by Kafka's names. It is never stored: `Group.phase` derives it from the group's other
    state."""

    EMPTY = "EMPTY"
    """The group has no members; it may have committed offsets."""
    PREPARING_REBALANCE = "PREPARING_REBALANCE"
    """The join phase: JoinGroup requests are parked until it ends."""
    COMPLETING_REBALANCE = "COMPLETING_REBALANCE"
    """The sync phase: the members have a generation, and wait for the leader's assignments."""
    STABLE = "STABLE"
    """The members have their assignments."""
    DEAD = "DEAD"
    """The group does not exist. Only responses contain this value."""


NO_GENERATION = GenerationId(-1)
"""In a response without a generation."""
NO_MEMBER = MemberId("")
"""In a response without a leader or a member id."""

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
    """Empty for a client that has no member id yet, and for a static member that has restarted."""
    fresh_member_id: MemberId
    """``<client id>-<uuid>``, or ``<instance id>-<uuid>``: the member id that a new member gets, and that a static
    member gets when it rejoins without a member id."""
    requires_known_member_id: bool
    """True for JoinGroup v4 and later: a new dynamic client first receives its member id, and becomes a member when it
    joins with that id (KIP-394)."""
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    """The session timeout for JoinGroup v0, which lacks this field."""
    protocol_type: str
    protocols: tuple[MemberProtocol, ...]
    """The protocols that the client offers, in its order of preference."""
    instance_id: InstanceId | None = None
    """The instance id of a static member (KIP-345); from v5 on."""
    supports_skip_assignment: bool = False
    """Whether the client supports ``JoinGroupResponse.skip_assignment`` (KIP-814): JoinGroup v9 and later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroup:
    reply_to: ReplyTo
    member_id: MemberId
    generation: GenerationId
    protocol_type: str | None = None
    """The group's protocol type in the response to the client's JoinGroup (SyncGroup v5 and later, KIP-559). A request
    with another type than the group's is refused; None is not checked."""
    protocol: str | None = None
    """The selected protocol in the response to the client's JoinGroup; checked like ``protocol_type``."""
    assignments: tuple[tuple[MemberId, bytes], ...] = ()
    """Member ids and their assignments, sent by the leader; ignored from other members."""
    instance_id: InstanceId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    reply_to: ReplyTo
    member_id: MemberId
    generation: GenerationId
    instance_id: InstanceId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeavingMember:
    """One member that a LeaveGroup removes: the member with ``member_id`` or, if that is empty, the current member with
    ``instance_id``."""

    member_id: MemberId
    instance_id: InstanceId | None = None
    """Together with a member id: the member must be the current one with this instance id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroup:
    reply_to: ReplyTo
    members: tuple[LeavingMember, ...]
    """Any number of members from LeaveGroup v3 on; exactly one in older versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroup:
    """DescribeGroups; or, without ``includes_members``, ListGroups, whose response lists no members."""

    reply_to: ReplyTo
    includes_members: bool = True
    """False for ListGroups, whose response lists no members: a group may have many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLoaded:
    """The first event of a machine: all records of the group have been replayed. From now on the coordinator may send
    responses."""


Request: TypeAlias = Heartbeat | JoinGroup | SyncGroup | LeaveGroup | DescribeGroup | OffsetRequest
Notification: TypeAlias = GroupLoaded | TopicDeleted | TransactionEnded
"""Events that come from the broker itself."""

# -- records of the group's log: each contains the whole state of its key, which is the group or a partition ----------


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMember:
    """One member as stored in a `GenerationWritten`."""

    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    subscription: bytes
    """The member's metadata in the group's protocol; empty while the generation has no protocol."""
    assignment: bytes
    """Empty until the leader has sent the assignments."""
    instance_id: InstanceId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationWritten:
    """A generation of the group with its members; without members the group is empty. The record is written when the
    join phase ends (``protocol`` is None then: no member has an assignment yet), again when the leader's SyncGroup has
    brought the assignments, and again when a static member has rejoined under a new member id.

    Kafka does not write the record at the end of the join phase. Here this record guarantees that no generation number
    is used twice: a late SyncGroup from before a crash cannot be taken for one of the next generation.
    """

    protocol_type: str
    generation: GenerationId
    """The number of the generation."""
    protocol: str | None
    """The selected protocol; None until the leader has sent the assignments, and in a generation without members."""
    leader: MemberId | None
    """None in a generation without members."""
    written_at_ms: int
    """When the join phase ended or the assignments were written; a new member id does not change it."""
    members: Mapping[MemberId, StoredMember]


Record: TypeAlias = GenerationWritten | OffsetRecord

# -- effects: orders to the shell ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    """One member of a generation, as listed in the response to the leader's JoinGroup."""

    member_id: MemberId
    metadata: bytes
    """The member's metadata in the selected protocol."""
    instance_id: InstanceId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroupResponse:
    error: ErrorCode
    generation: GenerationId = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: MemberId = NO_MEMBER
    member_id: MemberId = NO_MEMBER
    """The member id of the client that receives the response."""
    members: tuple[JoinedMember, ...] = ()
    """All members of the generation, in the order in which they were added to the group; empty in responses to other
    members than the leader."""
    skip_assignment: bool = False
    """True for a static member that rejoins as the leader: the generation's assignments are still valid, and the leader
    computes none (KIP-814)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroupResponse:
    error: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""
    """The receiver's assignment; empty if the leader sent none for this member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatResponse:
    error: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroupResponse:
    """``error`` concerns the whole request; ``members`` has the error code of each member of the request, with the
    member id in the request, in the request's order.

    LeaveGroup v0 to v2 removes one member, and its response has one code: ``error`` if it is not NONE, otherwise the
    code of that member.
    """

    error: ErrorCode
    members: tuple[tuple[MemberId, ErrorCode], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedMember:
    """One member in the response to DescribeGroups."""

    member_id: MemberId
    instance_id: InstanceId | None
    client_id: str
    client_host: str
    metadata: bytes = b""
    """The metadata in the group's protocol. Empty unless the group is STABLE, as in Kafka."""
    assignment: bytes = b""
    """The member's assignment in the last generation, also during a join phase."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroupResponse:
    error: ErrorCode
    phase: GroupPhase = GroupPhase.DEAD
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
    """Key of the timer that fires when the member's session timeout has passed since its session was last renewed, by a
    request or by the response to a parked request."""

    member_id: MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingMemberTimer:
    """Key of the timer that fires when a session timeout has passed since this member id was issued, and no client has
    joined with it."""

    member_id: MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class NewMemberTimer:
    """Key of the timer that fires when a new member has waited for the response to its first JoinGroup for
    ``ClassicGroupSettings.first_join_response_timeout_ms``: the member is removed."""

    member_id: MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinPhaseTimer:
    """Key of the timer that fires when the time of the join phase, or of the current part of its initial delay, has
    passed. If the join phase ends then, members that have not rejoined are removed, except static members."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncTimer:
    """Key of the timer that fires when the time of the sync phase has passed: members that have not sent SyncGroup are
    removed, and a rebalance starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetExpiryTimer:
    """Key of the timer that fires when it is time to remove the group's expired offsets, and the group itself if it is
    empty and has no offset left."""


TimerKey: TypeAlias = (
    SessionTimer | PendingMemberTimer | NewMemberTimer | JoinPhaseTimer | SyncTimer | OffsetExpiryTimer
)
"""A `TimerFired` with one of these keys says that the timer's time has come, not that the deadline still counts."""


Event: TypeAlias = Request | TimerFired[TimerKey] | Notification
Effect: TypeAlias = effects.Effect[Response, TimerKey]
