"""All that can come in to a group's coordinator, be kept by it, and go out: events, records, effects.

Version-free: a field that an old API version lacks is filled in by whoever parses the bytes. One machine is one group,
so no event names its group. What a machine may not make itself (a fresh member id) comes in with the event.
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
    """Where a group stands: Kafka's words. Never stored, always derived."""

    EMPTY = "EMPTY"
    PREPARING_REBALANCE = "PREPARING_REBALANCE"
    COMPLETING_REBALANCE = "COMPLETING_REBALANCE"
    STABLE = "STABLE"
    DEAD = "DEAD"
    """There is no such group."""


NO_GENERATION = Generation(-1)
NO_MEMBER = MemberId("")

# -- events: a request's own name, or a past fact ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberProtocol:
    """One protocol that a member offers, with what it says of itself in that protocol's bytes."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroup:
    reply_to: ReplyTo
    member_id: MemberId
    """Empty for a member that is new."""
    fresh_member_id: MemberId
    """``<client id>-<uuid>``, or ``<instance id>-<uuid>``: taken when the member is new, or a static one is back."""
    requires_known_member_id: bool
    """JoinGroup v4 and later: a new member is first told its id, and only counts once it joins with it (KIP-394)."""
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    """JoinGroup v0 has none: there it is the session timeout."""
    protocol_type: str
    protocols: tuple[MemberProtocol, ...]
    """The preferred one first."""
    instance_id: InstanceId | None = None
    """A static member's (KIP-345); from v5 on."""
    can_skip_assignment: bool = False
    """JoinGroup v9 and later: a leader understands that it leads and need not assign (KIP-814)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroup:
    reply_to: ReplyTo
    member_id: MemberId
    generation: Generation
    protocol_type: str | None = None
    """From v5 on (KIP-559); None is not checked."""
    protocol: str | None = None
    assignments: tuple[tuple[MemberId, bytes], ...] = ()
    """From the leader only; what anybody else sends is ignored."""
    instance_id: InstanceId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    reply_to: ReplyTo
    member_id: MemberId
    generation: Generation
    instance_id: InstanceId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeavingMember:
    """Whom a LeaveGroup means: by its member id; or, with that empty, whoever holds the instance id now."""

    member_id: MemberId
    instance_id: InstanceId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroup:
    reply_to: ReplyTo
    members: tuple[LeavingMember, ...]
    """LeaveGroup v3 and later: any number of members at once; before, one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroup:
    reply_to: ReplyTo
    with_members: bool = True
    """False where a list of groups is wanted: a group may be large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLoaded:
    """The group's records have been replayed; the coordinator may answer again."""


Request: TypeAlias = Heartbeat | JoinGroup | SyncGroup | LeaveGroup | DescribeGroup | OffsetRequest
News: TypeAlias = GroupLoaded | TopicDeleted
"""Events that are no requests and no deadlines."""

# -- records: lines of the group's log; each is the whole of what is known about its key: the group, or a partition ----


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenMember:
    """One member as a record keeps it."""

    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    subscription: bytes
    """Its metadata in the group's protocol."""
    assignment: bytes
    instance_id: InstanceId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationWritten:
    """A generation, written when its join phase ends (``protocol`` None: nobody has an assignment yet), again when its
    leader has synced, and again when a static member has come back to it under a new member id. One without members
    is an empty group.

    Kafka does not write the first. It makes sure that no generation is ever given out twice: a
    late SyncGroup of before a crash can not pass for one of the generation that follows it.
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
    """One member of a generation as its leader is told of it."""

    member_id: MemberId
    metadata: bytes
    """In the protocol that was chosen."""
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
    """Everybody, for the leader only; in the order in which they joined."""
    skip_assignment: bool = False
    """Tells a static leader that it leads again and that what it assigned before still holds (KIP-814)."""


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
    """``error`` speaks of the whole request; each member has its own code in ``members``, in the request's order.

    Versions before 3 have one code: ``error``, or else that of the only member.
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
    """In the group's protocol; told of a STABLE group only, as by Kafka."""
    assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroupResponse:
    error: ErrorCode
    phase: Phase = Phase.DEAD
    protocol_type: str = ""
    protocol: str = ""
    """Of a STABLE group."""
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
    """The member has not been heard of for its session timeout."""

    member_id: MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingMemberTimer:
    """A member id was handed out and nobody joined with it."""

    member_id: MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class NewMemberTimer:
    """A new member has waited for its first join phase to end for as long as any may (5 minutes)."""

    member_id: MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinPhaseTimer:
    """Who has not rejoined by now is left behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncTimer:
    """Who has not sent its SyncGroup by now is removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryTimer:
    """Time to look for offsets that are older than they may be."""


TimerKey: TypeAlias = SessionTimer | PendingMemberTimer | NewMemberTimer | JoinPhaseTimer | SyncTimer | ExpiryTimer


Event: TypeAlias = Request | TimerFired[TimerKey] | News
Effect: TypeAlias = effects.Effect[Response, TimerKey]
