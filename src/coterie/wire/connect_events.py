"""What a worker's member tells its herder, in the values of the embedded Connect protocol.

`member` says these, `herder` takes them, and neither room knows the other; whatever is between them hands them over as
they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from coterie.nouns.ids import Generation, InstanceId, MemberId
from coterie.wire.connect import ConnectProtocol, WorkerAssignment, WorkerMetadata


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalanceStarted:
    """This worker is joining, and its work goes on: until the next assignment nobody is asked to start or stop
    anything. Unless ``everything_stops``: then it is to join, and does so when it says that nothing is owned."""

    everything_stops: bool = False
    """The group speaks eager, in which the leader is not told what anybody runs, and deals all out anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationJoined:
    """All have joined; what is missing are the assignments, which the leader computes."""

    generation: Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentWanted:
    """This worker is the leader of ``generation`` and has to answer with the assignments of all members."""

    generation: Generation
    protocol: ConnectProtocol
    """What the group has voted for: the newest that all members speak."""
    member_id: MemberId
    members: Mapping[MemberId, WorkerMetadata]
    instance_ids: Mapping[MemberId, InstanceId] = field(default_factory=dict)
    """Of those ``members`` that are static: who they are over all of their lives."""
    left_out: frozenset[MemberId] = frozenset()
    """Who is in the group, too, and could not be understood: it is not among ``members``, and may still be at work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentReceived:
    """The round has ended: what is newly assigned to this worker and what it has to give back."""

    generation: Generation
    protocol: ConnectProtocol
    """What the group had voted for in that round."""
    member_id: MemberId
    assignment: WorkerAssignment


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAnswered:
    """The coordinator still counted this worker in when it answered what was sent at ``sent_at_ms``."""

    sent_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipLost:
    """This worker may no longer run anything: it was removed, or it cannot reach its coordinator in time. It joins
    again when it says that nothing is owned any more."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipRefused:
    """The group will never take this worker as it is set: it stops, leaves and exits with ``reason``, which says what
    to set instead. The member asks for nothing more."""

    reason: str


MembershipEvent: TypeAlias = (
    RebalanceStarted
    | GenerationJoined
    | AssignmentWanted
    | AssignmentReceived
    | HeartbeatAnswered
    | MembershipLost
    | MembershipRefused
)
