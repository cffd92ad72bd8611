"""The messages of a connect group's coordinator: its events, records and effects.

The events contain what the requests of the APIs 10000 to 10003 contain (`docs/protocol/messages`). Each group has its
own machine, so no event contains a group id.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from coterie.engine.output import Output
from coterie.groups import effects
from coterie.groups.effects import TimerFired
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.connect_groups import (
    Claims,
    ConfiguredJobs,
    HeartbeatResponse,
    InstallAssignmentResponse,
    PrepareAssignmentResponse,
    SupportedAssignor,
)
from coterie.nouns.ids import (
    ConfigOffset,
    GroupEpoch,
    InstanceId,
    LeaderEpoch,
    MemberEpoch,
    MemberId,
    ReplyTo,
    WorkerUrl,
)
from coterie.nouns.jobs import NO_JOBS, Jobs
from coterie.nouns.member_state import MemberState
from coterie.nouns.target_assignments import ComputedTarget, GroupSnapshot, TargetOfMember, UnplaceableJobs

# -- values ------------------------------------------------------------------------------------------------------------


class GroupState(StrEnum):
    """The state of a connect group, by the names of KIP-848. It is derived, never stored."""

    EMPTY = "Empty"
    """The group has no members."""
    ASSIGNING = "Assigning"
    """The group epoch is greater than the assignment epoch, and a leader has reported the configured jobs: a target
    assignment has to be computed."""
    RECONCILING = "Reconciling"
    """A member has not reached its target assignment."""
    STABLE = "Stable"
    """All members have exactly the jobs of their target assignments."""
    DEAD = "Dead"
    """The group does not exist. Only responses contain this value."""


NO_EPOCH = GroupEpoch(0)
NO_LEADER_EPOCH = LeaderEpoch(0)
NO_MEMBER = MemberId("")
"""In a response without a leader or a computing member."""

# -- events: a request's own name, or a past fact ---------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Heartbeat:
    """ConnectGroupHeartbeat. A field that is None has not changed since the member's last request. A request has all
    fields if it has the rebalance timeout, the owned jobs and the assignors. With ``resumes`` it announces a restart in
    place: the worker's process is about to replace itself.

    Nothing may change an event; the class is not frozen because building a frozen one of 20 fields takes four times as
    long, a sixth of the step of a heartbeat.
    """

    reply_to: ReplyTo
    connection_number: int
    """The number of the client's connection, which the shell assigns."""
    client_id: str
    client_host: str
    member_id: MemberId
    member_epoch: MemberEpoch
    """The member epoch of the member, or JOIN_EPOCH, LEAVE_EPOCH or LEAVE_BRIEFLY_EPOCH."""
    request_number: int = 0
    """Rises with each request of the member id; 0 if the client numbers no requests."""
    instance_id: InstanceId | None = None
    rebalance_timeout_ms: int | None = None
    server_assignor: str | None = None
    """The name of an assignor of the coordinator, which must compute the targets. Not set together with
    ``client_assignors``."""
    client_assignors: tuple[SupportedAssignor, ...] | None = None
    """The member's own assignors, in its order of preference."""
    owned: Jobs | None = None
    """The jobs that the worker owns. A job that is not in it has stopped there."""
    url: WorkerUrl | None = None
    name: str | None = None
    """The worker's name for operators."""
    config_offset: ConfigOffset | None = None
    """How far the worker has read the config topic."""
    config_topic_id: bytes | None = None
    """The topic id of the worker's config topic, 16 bytes."""
    configured: ConfiguredJobs | None = None
    """The configured jobs; only the leader sends them."""
    claims: Claims | None = None
    """The only jobs that may be assigned to the worker, whether it runs them or not; ``Claims(jobs=None)``: any job may
    be assigned to it."""
    draining: bool | None = None
    """Whether the worker must give all its jobs to other members."""
    max_wait_ms: int = 0
    """How long the response may be held while there is no news."""
    connection_grace_ms: int | None = None
    """How long after the end of its connection the worker may still run; 0 if the end of the connection has no
    effect."""
    resumes: bool = False
    """Whether the worker's process is about to replace itself (a restart in place): the end of its connection then has
    no effect."""

    @property
    def reports_changes(self) -> bool:
        """Whether the request sets any field that describes the member, or announces that the worker's process is about
        to replace itself (``resumes``)."""
        return not (
            self.owned is None
            and self.config_offset is None
            and self.configured is None
            and self.client_assignors is None
            and self.server_assignor is None
            and self.rebalance_timeout_ms is None
            and self.url is None
            and self.name is None
            and self.instance_id is None
            and self.config_topic_id is None
            and self.claims is None
            and self.draining is None
            and self.connection_grace_ms is None
            and not self.resumes
        )

    @property
    def has_all_fields(self) -> bool:
        """Whether the request contains the rebalance timeout and the owned jobs, as each join does. Members send all
        fields in a join, in the first request on a connection, after an error, and while another request is unanswered;
        the assignors are missing then if the member has none."""
        return self.rebalance_timeout_ms is not None and self.owned is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareAssignment:
    """ConnectGroupPrepareAssignment: the member that the coordinator has chosen to compute the target assignment asks
    for the state of the group."""

    reply_to: ReplyTo
    member_id: MemberId
    member_epoch: MemberEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallAssignment:
    """ConnectGroupInstallAssignment: the member that the coordinator has chosen to compute the target assignment
    returns the computed target."""

    reply_to: ReplyTo
    member_id: MemberId
    member_epoch: MemberEpoch
    group_epoch: GroupEpoch
    """The group epoch of the response to PrepareAssignment."""
    assignor_error: int = 0
    """The assignor's error code; 0 if it computed a target."""
    target: ComputedTarget
    members_listed_twice: frozenset[MemberId] = frozenset()
    """Members that the request lists more than once."""
    jobs_listed_twice: Jobs = NO_JOBS
    """Jobs that the request lists more than once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetComputed:
    """An assignor of the coordinator has computed the target that `ComputeTarget` ordered, or has failed: ``target`` is
    then None."""

    group_epoch: GroupEpoch
    target: ComputedTarget | None
    assignor_error: str = ""
    """Why the assignor failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroup:
    reply_to: ReplyTo
    includes_members: bool = True
    """Whether the response contains the members and the departed members; False for ListGroups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveMember:
    """An operator removes a member. Its jobs may still run, so no other member gets them until its session would have
    ended."""

    reply_to: ReplyTo
    member_id: MemberId
    """Empty if only the instance id is given."""
    instance_id: InstanceId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOffsetAccess:
    """Asks whether a client may commit or fetch offsets of the group now: the group's epochs fence both (KIP-848). The
    machine of a connect group does not keep the offsets themselves."""

    reply_to: ReplyTo
    member_id: MemberId
    """Empty for a client that is not a member."""
    member_epoch: MemberEpoch
    """Negative for a client that is not a member."""
    is_commit: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SetGroupConfigs:
    """IncrementalAlterConfigs: replaces all configs of the group by ``configs``. The shell has applied the increments
    to the present configs, and has validated the result. Empty ``configs`` remove all."""

    reply_to: ReplyTo
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroup:
    reply_to: ReplyTo


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseHeldResponse:
    """The response to this heartbeat of the member must be sent now: another request follows on the same connection."""

    reply_to: ReplyTo
    member_id: MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionClosed:
    """The client has closed a connection in an orderly way (FIN). At that time, all requests on it that were not
    answered were held heartbeats."""

    connection_number: int
    member_ids: tuple[MemberId, ...]
    """The members that sent heartbeats on the connection. They may have sent newer ones on other connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLoaded:
    """The first event of a machine: all records of the group have been replayed."""


Request: TypeAlias = (
    Heartbeat
    | PrepareAssignment
    | InstallAssignment
    | DescribeGroup
    | CheckOffsetAccess
    | RemoveMember
    | SetGroupConfigs
    | DeleteGroup
)
Notification: TypeAlias = GroupLoaded | TargetComputed | ReleaseHeldResponse | ConnectionClosed

# -- records of the group's log: each contains the whole state of its key ---------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """The state of the group as a whole (key version 3). Every step that writes a target assignment or a group epoch
    has one such record, after all records of configured jobs, targets, and members that join or leave. So a
    `TargetWritten` with a later epoch than the last `GroupRecord` belongs to a step that was not written completely.
    Only current assignments and session timeouts, which the response of the step reports, may follow it."""

    group_epoch: GroupEpoch
    assignment_epoch: GroupEpoch
    leader: MemberId | None
    leader_epoch: LeaderEpoch
    unplaceable: tuple[UnplaceableJobs, ...] = ()
    assignment_error: str = ""
    """Why the last computation failed; empty if it succeeded."""
    next_at_ms: int | None = None
    """The time at which the next target has to be computed (`ComputedTarget.next_in_ms`); None if none was ordered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredJobsWritten:
    """The configured jobs, as the leader has reported them (key version 4)."""

    group_epoch: GroupEpoch
    """The group epoch at the end of the step that wrote this record."""
    config_topic_id: bytes
    leader_epoch: LeaderEpoch
    """The leader epoch of the leader that sent them."""
    configured: ConfiguredJobs


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRecord:
    """The record of a present member (key version 5): what it has sent in its requests, and what the coordinator has
    added. ``former`` are the jobs that were deferred for the member until it returned."""

    member_id: MemberId
    group_epoch: GroupEpoch
    """The group epoch when the member last joined or changed its metadata, before the jobs that the same request may
    report raise it. ``former`` counts until a target is computed for this epoch or a later one."""
    joined_epoch: GroupEpoch
    """The group epoch that began when the member joined: members are ordered by it."""
    instance_id: InstanceId | None
    client_id: str
    client_host: str
    url: WorkerUrl
    name: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    """The session timeout from which the worker computes its lease: the last one that it certainly received, or the
    longest that it may have received."""
    connection_grace_ms: int
    server_assignor: str | None
    client_assignors: tuple[SupportedAssignor, ...]
    claims: Jobs | None
    """The only jobs that the worker may run; None: any job."""
    draining: bool
    former: Jobs = NO_JOBS
    """The jobs that the worker had when it left, and that were deferred for it. They count until the next target
    assignment: while ``group_epoch`` is greater than the assignment epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRemoved:
    """The tombstone of a member's record (key version 5)."""

    member_id: MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetWritten:
    """The target assignment of a member (key version 6). Every member has such a record."""

    member_id: MemberId
    assignment_epoch: GroupEpoch
    """The group epoch for which the target was computed; `NO_EPOCH` before the member's first target."""
    target: TargetOfMember


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRemoved:
    """The tombstone of a member's target assignment (key version 6)."""

    member_id: MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentAssignment:
    """The current assignment of a member (key version 7): it may run the jobs in ``assigned``. The jobs in ``pending``
    were revoked, and the member has not given them back. ``job_epochs`` has all these jobs, by the assignment epoch at
    which each was assigned to the member (its job epoch)."""

    member_id: MemberId
    member_epoch: MemberEpoch
    previous_epoch: MemberEpoch
    """The previous member epoch: a request with it is accepted if the response with the new epoch was lost."""
    assigned: Jobs = NO_JOBS
    pending: Jobs = NO_JOBS
    job_epochs: Mapping[GroupEpoch, Jobs] = field(default_factory=dict)
    request_number: int = 0
    """The number of the member's last request when this was written."""

    @property
    def held_jobs(self) -> Jobs:
        """The jobs that may run on the member, so that no other member may get them."""
        return self.assigned | self.pending


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentAssignmentRemoved:
    """The tombstone of a member's current assignment (key version 7)."""

    member_id: MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigsWritten:
    """The configs of the group (key version 8)."""

    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDeparted:
    """A member that has left, or was removed, while jobs are deferred for it (kept unassigned in case it returns) or
    may still run on it (key version 9)."""

    member_id: MemberId
    instance_id: InstanceId | None
    url: WorkerUrl
    jobs: Jobs
    """The jobs that are deferred for the member; empty if none is."""
    held: Jobs
    """The jobs that may still run on the member, until ``held_until_ms``."""
    held_until_ms: int
    """The end of the member's session; the jobs in ``held`` are released then."""
    left_at_ms: int
    """When the member left; the scheduled rebalance delay counts from then."""
    deadline_ms: int | None
    """The end of the scheduled rebalance delay; None before an assignor has set it."""
    request_number: int = 0
    """The number of the last request of the member id."""
    reason: str = ""
    """Why the member has left, or was removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DepartedMemberRemoved:
    """The tombstone of a departed member (key version 9): it is forgotten."""

    member_id: MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRemoved:
    """The tombstone of the group's record (key version 3): the group does not exist any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredJobsRemoved:
    """The tombstone of the configured jobs (key version 4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigsRemoved:
    """The tombstone of the group's configs (key version 8)."""


Record: TypeAlias = (
    GroupRecord
    | GroupRemoved
    | ConfiguredJobsWritten
    | ConfiguredJobsRemoved
    | MemberRecord
    | MemberRemoved
    | TargetWritten
    | TargetRemoved
    | CurrentAssignment
    | CurrentAssignmentRemoved
    | ConfigsWritten
    | ConfigsRemoved
    | MemberDeparted
    | DepartedMemberRemoved
)

# -- effects: orders to the shell -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorOnlyResponse:
    """The response to RemoveMember, SetGroupConfigs, DeleteGroup and CheckOffsetAccess."""

    error: ConnectErrorCode = ConnectErrorCode.NONE
    message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedMember:
    """One member in the response to ConnectGroupDescribe."""

    metadata: MemberRecord
    member_epoch: MemberEpoch
    state: MemberState
    config_offset: ConfigOffset
    assigned: Jobs
    pending: Jobs
    target: Jobs
    awaited_jobs_by_holder: Mapping[MemberId, Jobs]
    """The jobs of the target that other members still hold, by holder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedDepartedMember:
    """One departed member in the response to ConnectGroupDescribe."""

    departed_member: MemberDeparted
    delay_left_ms: int | None
    """The rest of the scheduled rebalance delay; None if no assignor has deferred the member's jobs yet."""
    held_jobs_left_ms: int
    """How long the held jobs of ``departed_member`` may still run on the member; 0 if it holds none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroupResponse:
    error: ConnectErrorCode = ConnectErrorCode.NONE
    message: str | None = None
    state: GroupState = GroupState.DEAD
    group_epoch: GroupEpoch = NO_EPOCH
    assignment_epoch: GroupEpoch = NO_EPOCH
    assignor: str = ""
    computing_member: MemberId = NO_MEMBER
    assignment_error: str = ""
    leader: MemberId = NO_MEMBER
    leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    config_offset: ConfigOffset = ConfigOffset(-1)
    members: tuple[DescribedMember, ...] = ()
    departed_members: tuple[DescribedDepartedMember, ...] = ()
    unplaceable: tuple[UnplaceableJobs, ...] = ()
    configs: Mapping[str, str] = field(default_factory=dict)
    """The configs that were set on the group."""
    effective_configs: Mapping[str, str] = field(default_factory=dict)
    """The configs that apply to the group: its own, and otherwise the broker's defaults."""


Response: TypeAlias = (
    HeartbeatResponse
    | PrepareAssignmentResponse
    | InstallAssignmentResponse
    | ErrorOnlyResponse
    | DescribeGroupResponse
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeTarget:
    """Let the coordinator's assignor ``snapshot.assignor`` compute a target assignment. The result is the event
    `TargetComputed`."""

    snapshot: GroupSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionTimer:
    """Key of the timer that fires when the member's session may have ended: no request of it was accepted for a session
    timeout. Heartbeats do not move the timer; it is set again if the session has been renewed meanwhile."""

    member_id: MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class RevocationTimer:
    """Key of the timer that fires when the member has not given back revoked jobs within its rebalance timeout: the
    member is removed."""

    member_id: MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseHoldTimer:
    """Key of the timer that fires when the longest time for which the response to the member may be held has passed:
    the response is sent."""

    member_id: MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionGraceTimer:
    """Key of the timer that fires when a member's connection was closed, and within the connection grace no request of
    the member has arrived on another connection."""

    member_id: MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldJobsTimer:
    """Key of the timer that fires when the session of a departed member would have ended. So its worker runs no job any
    more: the jobs that are held for it become free."""

    member_id: MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalanceDelayTimer:
    """Key of the timer that fires when the scheduled rebalance delay of a departed member has ended: the group epoch
    rises, so that a new target assigns the member's jobs."""

    member_id: MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class NextComputationTimer:
    """Key of the timer that fires when a target assignment may be computed: the initial delay, the interval between two
    computations, or the pause after failed ones has ended; or the next target is due (`ComputedTarget.next_in_ms`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputationTimeoutTimer:
    """Key of the timer that fires when the member that was chosen to compute the target assignment has not installed
    one in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptyGroupExpiryTimer:
    """Key of the timer that fires when the group has had no members for the retention time: the group is removed."""


TimerKey: TypeAlias = (
    SessionTimer
    | RevocationTimer
    | ResponseHoldTimer
    | ConnectionGraceTimer
    | HeldJobsTimer
    | RebalanceDelayTimer
    | NextComputationTimer
    | ComputationTimeoutTimer
    | EmptyGroupExpiryTimer
)

Event: TypeAlias = Request | TimerFired[TimerKey] | Notification
Effect: TypeAlias = effects.Effect[Response, TimerKey] | ComputeTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """One member that a step has removed, with what the broker logs about the removal."""

    member_id: MemberId
    url: WorkerUrl
    reason: str
    """Why the member has left, or was removed."""
    departed: MemberDeparted | None
    """The record of the departed member; None if no job is deferred until it returns, and none may still run on its
    worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectOutput(Output[Record, Effect]):
    """The result of one step, with the members that it has removed."""

    removals: tuple[Removal, ...] = ()
