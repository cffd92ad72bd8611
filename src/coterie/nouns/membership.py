"""The orders and events that a worker's member and its herder exchange, the same for each group protocol.

`member` derives the events from the protocol's messages, and `herder` handles them; neither imports the other. A
``token`` is a value of one protocol: only the modules of that protocol read it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from coterie.nouns.ids import ConfigOffset, Generation, InstanceId, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, Jobs


class MemberState(StrEnum):
    """How far a worker is in its group's current rebalance, by Connect's names."""

    UNJOINED = "UNJOINED"
    PREPARING_REBALANCE = "PREPARING_REBALANCE"
    """The worker has sent JoinGroup and waits for the other members."""
    COMPLETING_REBALANCE = "COMPLETING_REBALANCE"
    """All members have joined, and the worker waits for its assignment."""
    STABLE = "STABLE"


# -- members' reports, and the assignments that the leader's herder computes from them --------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberReport:
    """The metadata that one member reported when it joined."""

    url: WorkerUrl
    name: str | None = None
    """``worker.name``; None when the member reports none."""
    instance_id: InstanceId | None = None
    config_offset: ConfigOffset
    owned: Jobs = NO_JOBS
    claims: Jobs | None = None
    """The only jobs that the member may run (KIP-987); None means any job."""
    draining: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberAssignment:
    """The change that the leader computed for one member: only jobs that are newly assigned or revoked."""

    assigned: Jobs = NO_JOBS
    revoked: Jobs = NO_JOBS


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """The assignments that the leader computed in response to :class:`AssignmentWanted`."""

    config_offset: ConfigOffset
    """How far the config log was read for these assignments; with ``has_config_mismatch``: how far it must be read."""
    assignments: Mapping[MemberId, MemberAssignment]
    """Contains every member of ``AssignmentWanted.members``."""
    delay_ms: int = 0
    """What is left of the scheduled rebalance delay: the members join again after this time. 0 means no delay."""
    has_config_mismatch: bool = False
    """The leader has not read the config log as far as another member: no assignment changes in this rebalance."""


# -- orders of the herder to its member -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribe:
    """Sets the worker state that the next JoinGroup reports; the herder sends this order again after each change. The
    first order makes the member join. After `Lost`, the first order that owns no job makes it join again."""

    config_offset: ConfigOffset
    owned: Jobs
    draining: bool = False
    """This worker is being drained: the leader moves its jobs away while the worker still runs them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejoin:
    """Start a rebalance; the jobs keep running."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Install:
    """Send the assignments that this leader computed for the :class:`AssignmentWanted` of ``token``. The member drops
    the order when that rebalance is over."""

    token: object
    computed: Computed


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandon:
    """Leave the group, because the herder is stuck or cannot start its jobs; `Lost` follows. The member joins again
    after a `Subscribe` that owns no job."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """Leave the group, after all owned jobs have stopped → GroupLeft."""

    reason: str
    for_good: bool = False
    """The worker will not return, so a static member sends LeaveGroup, too: the group must not wait for it."""


MembershipOrder: TypeAlias = Subscribe | Rejoin | Install | Abandon | Leave


# -- events for the herder --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberStateChanged:
    """The member has reached this state of a rebalance; the jobs keep running. :class:`Assigned` ends a rebalance."""

    state: MemberState


@dataclass(frozen=True, slots=True, kw_only=True)
class MustReleaseAll:
    """A rebalance has begun that this worker joins only when it owns no job: the herder stops all jobs, then sends a
    `Subscribe` that owns no job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentWanted:
    """This worker is the leader: its herder has to compute the assignments of all ``members``."""

    token: object
    """The ``token`` of the `Install` that follows."""
    member_id: MemberId
    """The member id of this worker."""
    members: Mapping[MemberId, MemberReport]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """This worker's assignment."""

    member_id: MemberId
    epoch: int
    """The epoch of the assignment: in a classic group its generation."""
    jobs: Jobs
    revoked: Jobs = NO_JOBS
    is_whole: bool = False
    """``jobs`` replaces the previous assignment. Otherwise ``jobs`` is added to it, and ``revoked`` is removed."""
    leader: MemberId
    leader_url: WorkerUrl
    config_offset: ConfigOffset
    """How far the config log has to be read before the assigned jobs may start."""
    token: object


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvedUntil:
    """The coordinator's response to a request renewed the lease: this worker may run its jobs until ``until_ms``."""

    until_ms: int
    """The end of the lease on the steady clock: when the request was sent, plus `Lease.proved_ms`."""
    session_timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """This worker may run no job any longer: it was removed from the group, or its lease ended. The member joins again
    when the herder has sent a `Subscribe` that owns no job."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipRefused:
    """The group cannot accept this worker with its current settings. The worker stops its jobs, leaves and exits with
    ``reason``, which contains the settings to change. The member sends no further requests, except LeaveGroup."""

    reason: str


MembershipEvent: TypeAlias = (
    MemberStateChanged | MustReleaseAll | AssignmentWanted | Assigned | ProvedUntil | Lost | MembershipRefused
)


# -- from one process of a worker to the next -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceHandover:
    """The membership state that a worker's process passes to the next process when it re-executes itself.

    The next process continues as the same member of the group, if its first heartbeat arrives within the session
    timeout: there is no rebalance and no scheduled rebalance delay, and no job moves.
    """

    member_id: MemberId
    generation: Generation
    protocol: str
    """The protocol that the group uses, as a value of ``connect.protocol``."""
    leader: MemberId
    leader_url: WorkerUrl
    config_offset: ConfigOffset
    """How far the leader had read the config log when it assigned ``jobs``."""
    jobs: Jobs
    deferred_until_ms: int | None = None
    """End of the scheduled rebalance delay, if one runs, on the host's steady clock, which both processes share."""
    may_have_missed_vote: bool = False
    """A rebalance was in progress: the group may have selected a protocol that the next process does not know."""
    must_ask_for_round: bool = False
    """The next process must start a rebalance: it is the leader and has lost its state, or something has changed that
    the last JoinGroup did not report."""
