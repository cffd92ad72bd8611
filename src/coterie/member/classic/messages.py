"""What a classic member exchanges with its driver: requests and their answers, free of API versions (these end in
`wire`, `broker`, `kafka`), and its timers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from coterie.member import events
from coterie.nouns.ids import Generation, GroupId, InstanceId, MemberId
from coterie.wire.errors import ErrorCode

# -- requests to the coordinator and their answers -------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    group_id: GroupId
    member_id: MemberId
    """Empty at first: the coordinator then hands one out."""
    instance_id: InstanceId | None = None
    """Of a static member: it keeps its place when its process ends, until the session is over (KIP-345)."""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """Name and metadata, the preferred one first."""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinResponse:
    error: ErrorCode
    generation: Generation = Generation(-1)
    protocol: str = ""
    leader: MemberId = MemberId("")
    member_id: MemberId = MemberId("")
    members: Mapping[MemberId, bytes] | None = None
    """Everybody's metadata, for the leader only."""
    instance_ids: Mapping[MemberId, InstanceId] = field(default_factory=dict)
    """Of those ``members`` that are static."""
    skip_assignment: bool = False
    """This leader came back to a generation that has its assignments already: it computes none (KIP-814)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    group_id: GroupId
    member_id: MemberId
    instance_id: InstanceId | None = None
    generation: Generation
    protocol_type: str
    protocol: str
    assignments: tuple[tuple[MemberId, bytes], ...] = ()
    """From the leader only."""


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
    """Of a static member that is not coming back."""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveResponse:
    error: ErrorCode


Request: TypeAlias = JoinRequest | SyncRequest | HeartbeatRequest | LeaveRequest
Response: TypeAlias = JoinResponse | SyncResponse | HeartbeatResponse | LeaveResponse

# -- timers -----------------------------------------------------------------------------------------------------------

Timer: TypeAlias = Literal["heartbeat", "lease", "answer", "retry", "held", "leave"]
"""``heartbeat``: send the next one · ``lease``: the proof of the place ends · ``answer``: the answer to a join or sync
is overdue · ``retry``: a back-off ends · ``held``: send a held join · ``leave``: leave without an answer."""

Event: TypeAlias = events.Event[Response, Timer]
Effect: TypeAlias = events.Effect[Request, Timer]
