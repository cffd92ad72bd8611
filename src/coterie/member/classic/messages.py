"""The requests, responses and timers of a classic member. They are the same for all API versions, which only `wire`,
`broker` and `kafka` distinguish."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from coterie.member import events
from coterie.nouns.ids import GenerationId, GroupId, InstanceId, MemberId
from coterie.wire.errors import ErrorCode

# -- requests to the coordinator and their responses -----------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """The JoinGroup request."""

    group_id: GroupId
    member_id: MemberId
    """Empty while this worker has no member id, or has none any more: the coordinator then issues one."""
    instance_id: InstanceId | None = None
    """The instance id of a static member, which stays a member after its process has ended until its session ends
    (KIP-345). None for a dynamic member, also in the other requests."""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """Name and metadata of each offered protocol, the preferred protocol first."""
    reason: str = ""
    """Why the member joins, for the coordinator's log (KIP-800)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinResponse:
    """The response to JoinGroup. The fields after ``error`` are only valid without an error, except ``member_id`` with
    MEMBER_ID_REQUIRED."""

    error: ErrorCode
    generation: GenerationId = GenerationId(-1)
    protocol: str = ""
    """The name of the protocol that the group selected."""
    leader: MemberId = MemberId("")
    member_id: MemberId = MemberId("")
    metadata_by_member: Mapping[MemberId, bytes] | None = None
    """The metadata of all members, by member id; None or empty unless this member is the leader."""
    instance_id_by_member: Mapping[MemberId, InstanceId] = field(default_factory=dict)
    """The instance ids of those members in ``metadata_by_member`` that are static."""
    skip_assignment: bool = False
    """Whether this leader has rejoined a generation that already has its assignments: then it computes none
    (KIP-814)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """The SyncGroup request. The leader's request contains the assignments of all members."""

    group_id: GroupId
    member_id: MemberId
    instance_id: InstanceId | None = None
    generation: GenerationId
    protocol_type: str
    protocol: str
    assignments: tuple[tuple[MemberId, bytes], ...] = ()
    """Member id and assignment of each member, if this member is the leader and has computed them; else empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResponse:
    """The response to SyncGroup."""

    error: ErrorCode
    assignment: bytes = b""
    """This member's assignment. Empty when the leader has assigned nothing to this member, for example because the
    leader could not decode the member's metadata."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest:
    """The Heartbeat request."""

    group_id: GroupId
    member_id: MemberId
    """Empty in the request that asks for a member of a previous process of this static worker."""
    instance_id: InstanceId | None = None
    generation: GenerationId


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatResponse:
    """The response to Heartbeat."""

    error: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveRequest:
    """The LeaveGroup request."""

    group_id: GroupId
    member_id: MemberId
    instance_id: InstanceId | None = None
    """The instance id of a static member that will not return; None for a dynamic member."""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveResponse:
    """The response to LeaveGroup."""

    error: ErrorCode


Request: TypeAlias = JoinRequest | SyncRequest | HeartbeatRequest | LeaveRequest
Response: TypeAlias = JoinResponse | SyncResponse | HeartbeatResponse | LeaveResponse

# -- timers -----------------------------------------------------------------------------------------------------------

Timer: TypeAlias = Literal["heartbeat", "lease", "answer", "retry", "held", "leave"]
"""``heartbeat``: send the next heartbeat · ``lease``: the lease ends · ``answer``: the response to a join or sync, or
to the check for a prior member, is overdue · ``retry``: a back-off ends · ``held``: a join that waits for revoked jobs
to stop must wait no longer · ``leave``: end without the response to LeaveGroup."""

Event: TypeAlias = events.Event[Response, Timer]
Effect: TypeAlias = events.Effect[Request, Timer]
