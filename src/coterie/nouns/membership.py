"""The orders and events that a worker's member and its herder exchange, the same for each group protocol.

`member` derives the events from the protocol's messages, and `herder` handles them; neither imports the other. A
``token``, or a value in ``protocol_details``, is read only by modules of one group protocol: for a classic group it is
a `RoundToken` or a `ClassicAssignmentDetails` of `wire.connect`, for a connect group the values that each message
names.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from coterie.nouns.group_description import GroupDescription
from coterie.nouns.ids import (
    ConfigOffset,
    GenerationId,
    GroupEpoch,
    InstanceId,
    LeaderEpoch,
    MemberEpoch,
    MemberId,
    WorkerUrl,
)
from coterie.nouns.jobs import NO_JOBS, Jobs
from coterie.nouns.member_state import MemberState
from coterie.nouns.target_assignments import ComputedTarget, GroupSnapshot


class GroupProtocolName(StrEnum):
    """The protocol between a worker and the coordinator of its group: the values of ``group.protocol``."""

    CLASSIC = "classic"
    """Kafka's group protocol with generations, in which the leader computes the assignments (KIP-415, KIP-987)."""
    CONNECT = "connect"
    """The epoch-based protocol, in which the coordinator reconciles the members with a target assignment (K848C)."""


# -- members' reports, and the assignments that the leader's herder computes from them --------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberReport:
    """The metadata of one member of a classic group, as its last JoinGroup reported them. ``owned`` is empty if the
    group's protocol is eager, whose JoinGroup does not contain these jobs."""

    url: WorkerUrl
    name: str | None = None
    """``worker.name``; None when the member reports none."""
    instance_id: InstanceId | None = None
    """``group.instance.id`` of a static member; None for every other member."""
    config_offset: ConfigOffset
    """How far the member has read the config log."""
    owned: Jobs = NO_JOBS
    """The jobs that run on the member or are assigned to it. Empty if the group's protocol is eager, whose JoinGroup
    does not contain these jobs."""
    claims: Jobs | None = None
    """The only jobs that the member may run (KIP-987); None means any job."""
    draining: bool = False
    """Whether the worker is being drained: its jobs have to be moved to other workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentChange:
    """The change that the leader computed for one member. In an eager rebalance, ``assigned`` contains all jobs of the
    member; in every other rebalance, only the jobs that are newly assigned or revoked."""

    assigned: Jobs = NO_JOBS
    revoked: Jobs = NO_JOBS


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedAssignments:
    """The assignments that the leader computed in response to :class:`AssignmentsRequested`. With
    ``has_config_mismatch`` they change nothing, and ``config_offset`` is how far the leader must read the config log
    first."""

    config_offset: ConfigOffset
    """How far the leader had read the config log when it computed these assignments; with ``has_config_mismatch``, how
    far the leader must read it first."""
    assignments: Mapping[MemberId, AssignmentChange]
    """The change of each member in ``AssignmentsRequested.members``."""
    delay_ms: int = 0
    """The remaining time of the scheduled rebalance delay, after which the members join again; 0 when there is no
    delay."""
    has_config_mismatch: bool = False
    """Whether the leader has read less of the config log than another member: this rebalance then changes no
    assignment."""


# -- orders of the herder to its member -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SetWorkerState:
    """Sets the worker state that the next JoinGroup (in a connect group, the next heartbeat) reports; the herder sends
    this order again after each change. The first order makes the member join. After `MembershipLost`, the first order
    with an empty ``owned`` makes it join again. When too many threads have hung in plug-ins,
    ``allowed_jobs_until_restart`` are the only jobs that this worker may run until it is restarted; `claims` combines
    them with the claims in the settings."""

    config_offset: ConfigOffset
    """How far this worker has read the config log."""
    owned: Jobs
    """The jobs that run on this worker or are assigned to it."""
    draining: bool = False
    """Whether this worker is being drained: the assignor moves its jobs to other workers. Each job runs here until it
    is revoked, and starts on another worker only after it has stopped here."""
    allowed_jobs_until_restart: Jobs | None = None
    """The only jobs that this worker may run until it is restarted: those of its jobs that it has started. Set after
    too many of its threads have hung in plug-ins (``plugin.lost.threads.max``). None: it takes new jobs."""

    def claims(self, configured: Jobs | None) -> Jobs | None:
        """The claims that this worker reports to its group: the only jobs that it may run (KIP-987); None: any job.
        ``configured`` are the claims in its settings, None without them. If ``allowed_jobs_until_restart`` is not None,
        the worker claims those of its jobs that ``configured`` allows, so that it gets no other job."""
        if self.allowed_jobs_until_restart is None or configured is None:
            return configured if self.allowed_jobs_until_restart is None else self.allowed_jobs_until_restart
        return self.allowed_jobs_until_restart & configured


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejoin:
    """Send JoinGroup, which starts a rebalance; the jobs keep running. Only in a classic group. Without effect if a
    JoinGroup that reports the current worker state has no response yet."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SendAssignments:
    """Send the assignments that this leader computed for the :class:`AssignmentsRequested` with the same ``token``.
    Only in a classic group. The member ignores the order when that rebalance is over."""

    token: object
    computed: ComputedAssignments


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveAndRejoin:
    """Leave the group, because the herder is stuck, lags behind the group's config offset, or is the leader although
    most members read another config topic; `MembershipLost` follows. A static member of a classic group sends no
    LeaveGroup here. The member joins again after a `SetWorkerState` with an empty ``owned``."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """Leave the group, and end the member → GroupLeft. The herder sends this order when all owned jobs have stopped, or
    the time limit of the shutdown is over. ``is_permanent``: the worker will not return, so the group does not wait for
    it, and a static member of a classic group sends LeaveGroup, too; otherwise it sends none."""

    reason: str
    is_permanent: bool = False
    """Whether the worker will not return: the group then does not wait for it, but assigns its jobs to other workers at
    once. In a classic group, a static member sends LeaveGroup in this case, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmLeadership:
    """Confirm that this worker is the leader → `LeadershipConfirmed`. The member sends a heartbeat as soon as it can
    send one after this order. A later order replaces one that is not confirmed yet."""

    token: int
    """Identifies the order; the member returns it in the event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetConfiguredJobs:
    """Sets the jobs that are configured, as this worker has read them from the config log; the herder sends this order
    again after each change. Only in a connect group. The member sends them to the coordinator while this worker is the
    group's leader."""

    leader_epoch: LeaderEpoch
    """The number of the appointment of this worker as leader for which the jobs were read. The member sends the jobs
    only during this appointment: before a later one, another leader may have reported newer jobs."""
    config_offset: ConfigOffset
    """How far this worker had read the config log."""
    jobs: Jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallTarget:
    """Send the target assignment that this worker has computed for the :class:`TargetRequested` with the same
    ``token``. Only in a connect group. The member ignores the order when that computation is over."""

    token: object
    target: ComputedTarget | None
    """None if the assignor has failed."""
    error: str = ""
    """Why the assignor has failed; empty if it has computed a target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestGroupDescription:
    """Ask the coordinator for the description of the group → `GroupDescribed`. Only in a connect group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendMembership:
    """Tell the coordinator that this process is about to replace itself, and send nothing afterwards →
    `MembershipSuspended`. Only in a connect group: its coordinator takes the end of a connection for the end of the
    process, and the request numbers of the next process must be above those of this process."""


ClassicOrder: TypeAlias = SetWorkerState | Rejoin | SendAssignments | ConfirmLeadership | LeaveAndRejoin | Leave
"""The orders to the member of a classic group."""
ConnectOrder: TypeAlias = (
    SetWorkerState
    | SetConfiguredJobs
    | InstallTarget
    | RequestGroupDescription
    | ConfirmLeadership
    | SuspendMembership
    | LeaveAndRejoin
    | Leave
)
"""The orders to the member of a connect group."""
MembershipOrder: TypeAlias = ClassicOrder | ConnectOrder


# -- orders of the worker's shell to its member -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateAssignor:
    """One client-side assignor of this worker has new metadata, or asks for a new target assignment. The member sends
    the metadata and the reason in its next heartbeat, at once if it can. Only in a connect group."""

    name: str
    metadata_version: int
    """The version of ``metadata``."""
    metadata: bytes
    reason: int = 0
    """Why the assignor asks for a new target assignment: see `nouns.connect_groups.AssignorChangeReason`. 0: it does
    not ask; a reason that was not accepted yet is then kept."""


# -- from one process of a worker to the next -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicMembershipHandover:
    """The membership of a classic group that a worker's process passes to the next process when it re-executes itself.

    The next process continues as the same member of the group, if its first heartbeat arrives within the session
    timeout: there is no rebalance and no scheduled rebalance delay, and no job moves. ``protocol`` is a value of
    ``connect.protocol``; ``config_offset`` is how far the leader had read the config log when it assigned ``jobs``;
    ``rebalance_delay_ends_ms`` is a time on the host's steady clock, which both processes share."""

    member_id: MemberId
    generation: GenerationId
    protocol: str
    """The protocol that the group uses, as a value of ``connect.protocol``."""
    leader: MemberId
    leader_url: WorkerUrl
    config_offset: ConfigOffset
    """How far the leader had read the config log when it assigned ``jobs``."""
    jobs: Jobs
    """All jobs that are assigned to this worker."""
    rebalance_delay_ends_ms: int | None = None
    """End of the scheduled rebalance delay on the host's steady clock, which both processes share; None when no delay
    runs."""
    may_have_missed_protocol_change: bool = False
    """Whether a rebalance was in progress: the group may then have selected another protocol than ``protocol``."""
    must_start_rebalance: bool = False
    """Whether the next process must start a rebalance: it is the leader and has lost the leader's state, or released
    jobs must be assigned to other workers, or a rebalance was in progress, or its settings differ from those in the
    last JoinGroup."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectMembershipHandover:
    """The membership of a connect group that a worker's process passes to the next process when it re-executes itself.

    The next process continues as the same member: member id, epochs and jobs stay, and no job moves.
    """

    member_id: MemberId
    member_epoch: MemberEpoch
    request_number: int
    """The number of the last request of this member id; the next process continues above it."""
    session_timeout_ms: int
    """The session timeout of the group, by which the lease is counted."""
    leader: MemberId
    leader_url: WorkerUrl
    leader_epoch: LeaderEpoch
    assignment_epoch: GroupEpoch
    config_offset: ConfigOffset
    """How far the config log has to be read before ``jobs`` may start."""
    jobs: Jobs
    """All jobs that are assigned to this worker."""
    jobs_by_assignment_epoch: Mapping[GroupEpoch, Jobs]
    """``jobs``, by the assignment epoch in which each was assigned to this worker."""
    version: int = 0
    """The version of ``metadata``."""
    metadata: bytes = b""
    """The assignor's message to this worker."""


Handover: TypeAlias = ClassicMembershipHandover | ConnectMembershipHandover
"""The membership that a worker's process passes to the next process, of either group protocol."""


# -- events for the herder --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberStateChanged:
    """The member is now in ``state``; the jobs keep running. In a classic group there is no such event for STABLE:
    :class:`Assigned` is the end of a rebalance."""

    state: MemberState


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAllBeforeJoin:
    """This worker has to join a rebalance of a classic group with the protocol eager, which it does only when it owns
    no job: the herder stops all jobs, then sends a `SetWorkerState` with an empty ``owned``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentsRequested:
    """This worker is the leader of the rebalance of a classic group: its herder computes the assignments of all
    ``members`` and sends `SendAssignments`."""

    token: object
    """Identifies the rebalance; the herder returns it in `SendAssignments`."""
    member_id: MemberId
    """The member id of this worker."""
    members: Mapping[MemberId, MemberReport]
    """The members' reports. A member whose metadata could not be decoded is not included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """An assignment that this worker has received: in a classic group, at the end of a rebalance; in a connect group,
    in a response that changes the jobs, the leader or the member epoch."""

    member_id: MemberId
    epoch: int
    """The epoch of the assignment: in a classic group, the generation; in a connect group, the member epoch."""
    jobs: Jobs
    """The newly assigned jobs; with ``replaces_all``, all jobs of this worker."""
    revoked: Jobs = NO_JOBS
    """The jobs that this worker must stop."""
    replaces_all: bool = False
    """Whether ``jobs`` replaces the previous assignment (eager, and always in a connect group). Otherwise ``jobs`` are
    added to it, and ``revoked`` are removed."""
    leader: MemberId
    leader_url: WorkerUrl
    """The URL of the leader's REST listener."""
    config_offset: ConfigOffset
    """How far the config log has to be read before the assigned jobs may start."""
    protocol_details: object
    """What the protocol adds: in a classic group a `ClassicAssignmentDetails` with the protocol, the leader's error and
    the delay; in a connect group :class:`ConnectAssignmentDetails`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectAssignmentDetails:
    """What a connect group adds to `Assigned`, as its ``protocol_details``: the epochs of the leader, of the target
    assignment and of the jobs, and the assignor's metadata for this worker."""

    leader_epoch: LeaderEpoch
    """The number of the leader's appointment."""
    assignment_epoch: GroupEpoch
    """The assignment epoch of the target assignment that ``jobs`` are a part of."""
    jobs_by_assignment_epoch: Mapping[GroupEpoch, Jobs]
    """The jobs, by the assignment epoch in which each was assigned to this worker."""
    metadata_version: int = 0
    """The version of ``metadata``."""
    metadata: bytes = b""
    """The assignor's message to this worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRequested:
    """The coordinator has chosen this worker to compute the target assignment of its connect group: the herder orders
    the computation and sends `InstallTarget`."""

    token: object
    """Identifies the computation; the herder returns it in `InstallTarget`."""
    snapshot: GroupSnapshot
    """The state of the group, from the response to ConnectGroupPrepareAssignment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescribed:
    """The response to `RequestGroupDescription`."""

    description: GroupDescription | None
    """None if the coordinator did not respond, or responded with an error, for example because the group does not
    exist."""
    error: str = ""
    """Why ``description`` is None; empty if there is a description."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipSuspended:
    """The member sends no further request (`SuspendMembership`): this process may replace itself."""

    handover: ConnectMembershipHandover | None
    """The membership for the next process; None if this worker is not a member now: the next process joins with a new
    member id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRenewed:
    """A response of the coordinator has changed the end of the lease: this worker may run its jobs until
    ``lease_ends_ms``."""

    lease_ends_ms: int
    """The end of the lease on the steady clock: the time at which the request was sent, plus
    `LeaseDurations.duration_ms`. It may be earlier than before if a connect group's session timeout was shortened."""
    session_timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadershipConfirmed:
    """The coordinator has accepted a heartbeat that was sent after the `ConfirmLeadership` order with this ``token``,
    and this worker was the leader then: in a classic group of the generation of the heartbeat, in a connect group
    according to the response."""

    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipLost:
    """This worker must stop all jobs: the coordinator or this worker ended its membership, or its lease ended. The
    member joins again when the herder has sent a `SetWorkerState` with an empty ``owned``."""

    reason: str
    has_lease_ended: bool = False
    """Whether the lease has ended: the coordinator may have assigned the jobs to other workers meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipRefused:
    """The group cannot accept this worker with its current settings. The worker stops its jobs, leaves and exits with
    ``reason``, which contains the settings to change. The member does not join again."""

    reason: str


MembershipEvent: TypeAlias = (
    MemberStateChanged
    | StopAllBeforeJoin
    | AssignmentsRequested
    | TargetRequested
    | GroupDescribed
    | MembershipSuspended
    | Assigned
    | LeaseRenewed
    | LeadershipConfirmed
    | MembershipLost
    | MembershipRefused
)
