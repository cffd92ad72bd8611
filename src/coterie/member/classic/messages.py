"""The requests, responses and timers of a classic member. They are independent of API versions, which only `wire`,
`broker` and `kafka` handle."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from coterie.member import events
from coterie.nouns.ids import Generation, GroupId, InstanceId, MemberId
from coterie.wire.errors import ErrorCode

# -- requests to the coordinator and their responses -----------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    group_id: GroupId
    member_id: MemberId
    """Empty at first: the coordinator then issues a member id."""
    instance_id: InstanceId | None = None
    """The instance id of a static member, which stays a member after its process ends until its session ends
    (KIP-345)."""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """Name and metadata of each protocol, in the order of preference."""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinResponse:
    error: ErrorCode
    generation: Generation = Generation(-1)
    protocol: str = ""
    leader: MemberId = MemberId("")
    member_id: MemberId = MemberId("")
    members: Mapping[MemberId, bytes] | None = None
    """The metadata of all members, for the leader only."""
    instance_ids: Mapping[MemberId, InstanceId] = field(default_factory=dict)
    """The instance ids of those ``members`` that are static."""
    skip_assignment: bool = False
    """This leader rejoined a generation that already has its assignments: it computes none (KIP-814)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    group_id: GroupId
    member_id: MemberId
    instance_id: InstanceId | None = None
    generation: Generation
    protocol_type: str
    protocol: str
    assignments: tuple[tuple[MemberId, bytes], ...] = ()
    """Empty unless this member is the leader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResponse:
    error: ErrorCode
    assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest:
    group_id: GroupId
    member_id: MemberId
    instance_id: InstanceId | None = None
    generation: Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatResponse:
    error: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveRequest:
    group_id: GroupId
    member_id: MemberId
    instance_id: InstanceId | None = None
    """The instance id of a static member that will not return."""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveResponse:
    error: ErrorCode


Request: TypeAlias = JoinRequest | SyncRequest | HeartbeatRequest | LeaveRequest
Response: TypeAlias = JoinResponse | SyncResponse | HeartbeatResponse | LeaveResponse

# -- timers -----------------------------------------------------------------------------------------------------------

Timer: TypeAlias = Literal["heartbeat", "lease", "answer", "retry", "held", "leave"]
"""``heartbeat``: send the next heartbeat · ``lease``: the lease ends · ``answer``: the response to a join or sync is
overdue · ``retry``: a back-off ends · ``held``: send a join that was held back · ``leave``: leave without a
response."""

Event: TypeAlias = events.Event[Response, Timer]
Effect: TypeAlias = events.Effect[Request, Timer]
