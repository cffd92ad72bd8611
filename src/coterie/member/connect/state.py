"""The state of a member of a connect group: its membership (``place``), its heartbeats, the computation of a target
assignment that it was chosen for, and its ending; and its invariants.

The four change independently, so each is a separate union. docs/states.md lists their states, events and transitions.
"""

from dataclasses import dataclass, replace
from enum import Enum, auto
from itertools import count
from typing import TypeAlias

from coterie.config import defaults
from coterie.engine.lease import LeaseDurations
from coterie.member.connect.messages import HeartbeatRequest, InstallAssignmentRequest, PrepareAssignmentRequest
from coterie.member.events import RequestId
from coterie.member.failure_log import FailureLog
from coterie.member.in_flight import InFlight
from coterie.member.leadership import LeadershipCheck
from coterie.nouns.connect_groups import JOIN_EPOCH, AssignmentToMember, LeaderOfGroup
from coterie.nouns.ids import (
    ConfigOffset,
    GroupEpoch,
    GroupId,
    InstanceId,
    LeaderEpoch,
    MemberEpoch,
    MemberId,
    WorkerUrl,
)
from coterie.nouns.jobs import NO_JOBS, Jobs
from coterie.nouns.member_state import MemberState
from coterie.nouns.membership import ConnectMembershipHandover, SetConfiguredJobs, SetWorkerState
from coterie.nouns.target_assignments import ComputedTarget

SESSION_TIMEOUT_HOLD_DIVISOR = 6
"""A coordinator holds a response for at most the session timeout divided by this number. After the longest hold, the
member waits the same time again for the response."""
COORDINATOR_HOLD_MAX_DEFAULT_MS = 5_000
"""The default of the time for which the coordinator may delay ("hold") a response while it has no news. The coordinator
shortens it according to the session timeout and the connection grace."""

# -- settings ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedAssignor:
    """One client-side assignor of this worker (K848C, "Assignor")."""

    name: str
    minimum_version: int
    """The lowest metadata version that the assignor can read."""
    maximum_version: int
    """The highest metadata version that the assignor can read."""
    metadata_version: int
    """The version of ``metadata``."""
    metadata: bytes = b""
    reason: int = 0
    """Why the assignor asks for a new target assignment (`nouns.connect_groups.AssignorChangeReason`), until a
    heartbeat with it is accepted; 0: it does not ask."""
    update_count: int = 0
    """Counts the ``UpdateAssignor`` orders for this assignor: two orders with the same reason ask twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    """The data that a member sends to its group, and its time limits. The session timeout is the group's: the
    coordinator sends it to the member."""

    group_id: GroupId
    member_id: MemberId
    """A UUID, which the worker's process creates when it starts and keeps until it ends (KIP-1082). If the previous
    process passed its membership on, the UUID of that process."""
    instance_id: InstanceId | None = None
    """``group.instance.id`` of a static member; None: a dynamic member."""
    url: WorkerUrl
    """The URL of this worker's REST listener. The coordinator sends the leader's URL to all members."""
    worker_name: str | None = None
    """``worker.name``; None if it is not set."""
    claims: Jobs | None = None
    """``static.connectors`` and ``static.tasks``: the only jobs that this worker may run; None: any job (KIP-987)."""
    assignors: tuple[OfferedAssignor, ...] = ()
    """The client-side assignors of this worker when it starts, the preferred one first; empty: it uses
    ``server_assignor``."""
    server_assignor: str | None = None
    """The name of an assignor of the coordinator; None if this worker offers ``assignors``."""
    rebalance_timeout_ms: int = defaults.REBALANCE_TIMEOUT_MS
    config_topic_id: bytes | None = None
    """The topic id of this worker's config topic, 16 bytes; None if it is not known."""
    connection_grace_ms: int = defaults.CONNECTION_GRACE_MS
    """How long after the end of its connection this worker may still run; 0: the end of a connection has no effect."""
    coordinator_hold_max_ms: int = COORDINATOR_HOLD_MAX_DEFAULT_MS
    """How long the coordinator may hold a response while it has no news. 0: it responds at once, and the member sends
    heartbeats at the interval that the coordinator states."""
    retry_backoff_ms: int = 100
    """The first back-off in ms; it doubles with each retry."""
    retry_backoff_max_ms: int = 1_000
    """The longest back-off."""
    response_timeout_ms: int = 5_000
    """How long the member waits for each response while it is not in the group. In the group this time follows from the
    session timeout (`requests.response_timeout_ms`)."""

    def __post_init__(self) -> None:
        assert bool(self.assignors) != (self.server_assignor is not None), (
            "a member offers either assignors or names one of the coordinator"
        )


# -- membership -------------------------------------------------------------------------------------------------------


class PreviousMembershipEnd(Enum):
    """How a member that is not in the group lost its previous membership."""

    NONE = auto()
    """This worker was not in the group before."""
    LOST = auto()
    """The membership was lost: all jobs must stop before the next join."""
    LEAVES = auto()
    """The herder ordered the member to leave and to rejoin: when all jobs have stopped it sends a request that leaves
    the group, and then the join."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotInGroup:
    """The coordinator has not accepted a join of this worker since its start, or since the membership was lost."""

    previous_membership_end: PreviousMembershipEnd = PreviousMembershipEnd.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedData:
    """The data of a heartbeat that later heartbeats leave out while it does not change."""

    owned: Jobs
    config_offset: ConfigOffset
    draining: bool
    claims: Jobs | None
    assignors: tuple[OfferedAssignor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredJobsReport:
    """The configured jobs that a heartbeat has reported, and the leader epoch for which this leader reported them."""

    leader_epoch: LeaderEpoch
    configured_jobs: SetConfiguredJobs


@dataclass(frozen=True, slots=True, kw_only=True)
class InGroup:
    """A join was accepted, and no later response or time limit has ended the membership. After an error
    ``accepted_data`` is None, since it is not certain what the coordinator has processed; ``last_accepted_owned`` is
    kept, and shows which stopped jobs no accepted heartbeat has acknowledged."""

    member_epoch: MemberEpoch
    """JOIN until the first target assignment."""
    session_timeout_ms: int
    """The session timeout in the last response that had one."""
    lease_ends_ms: int
    """The point of time at which the lease ends."""
    heartbeat_interval_ms: int
    """The time until the next heartbeat if responses are not held."""
    leader: LeaderOfGroup
    assignment: AssignmentToMember
    """The jobs that this worker may run."""
    accepted_data: ReportedData | None = None
    """The data in this member's last request, which the coordinator has certainly processed; None if that is not
    certain: the next heartbeat then contains all fields."""
    last_accepted_owned: Jobs = NO_JOBS
    """The owned jobs in the last heartbeat that was accepted. A job in it that is no longer owned has stopped, and no
    accepted heartbeat has acknowledged that yet."""
    configured_report: ConfiguredJobsReport | None = None
    """The last configured jobs that the coordinator has accepted from this member; None if there are none."""
    is_lease_confirmed: bool = True
    """False after a relaunch, until a heartbeat of this process is accepted: the herder has received no lease yet."""

    @property
    def lease_durations(self) -> LeaseDurations:
        """The durations that follow from the group's session timeout."""
        return LeaseDurations(self.session_timeout_ms)


Presence: TypeAlias = NotInGroup | InGroup

# -- heartbeats -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NoHeartbeat:
    """No heartbeat is due: the worker does not join yet, or sends no further heartbeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatDue:
    """The next heartbeat is sent at ``at_ms``. Unless this is a back-off, it is sent earlier if there is something to
    report."""

    at_ms: int
    is_backoff: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatSent:
    """The newest heartbeat has no response yet."""

    in_flight: InFlight[HeartbeatRequest]
    reported_data: ReportedData
    configured_report: ConfiguredJobsReport | None
    """The configured jobs that this heartbeat contains; None if it contains none."""

    @property
    def may_response_be_held(self) -> bool:
        """Whether the coordinator may hold the response. Otherwise it responds at once."""
        return self.in_flight.request.max_wait_ms > 0

    @property
    def is_hold_certain(self) -> bool:
        """Whether the coordinator certainly holds the response while it has no news. If the request has all fields and
        is not a join, the coordinator may respond at once, to repeat the contents of an earlier response."""
        request = self.in_flight.request
        return self.may_response_be_held and (
            request.rebalance_timeout_ms is None or request.member_epoch == JOIN_EPOCH
        )


Heartbeats: TypeAlias = NoHeartbeat | HeartbeatDue | HeartbeatSent

# -- the computation of a target assignment ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NotComputing:
    """This member is not chosen to compute a target assignment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareSent:
    """ConnectGroupPrepareAssignment was sent, and has no response yet."""

    in_flight: InFlight[PrepareAssignmentRequest]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareDue:
    """The response to ConnectGroupPrepareAssignment was lost, or the request had an older member epoch: it is sent
    again after the next heartbeat that is accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputationToken:
    """Identifies one computation of a target assignment by this member. The herder receives it in `TargetRequested` and
    returns it in `InstallTarget`; the member ignores the result of a computation that has ended."""

    number: int
    """The number of this computation, counted by the member."""
    group_epoch: GroupEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Computing:
    """The herder computes the target assignment."""

    token: ComputationToken


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallSent:
    """ConnectGroupInstallAssignment was sent, and has no response yet."""

    in_flight: InFlight[InstallAssignmentRequest]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallDue:
    """The response to ConnectGroupInstallAssignment was lost, or the request had an older member epoch: it is sent
    again after the next heartbeat that is accepted."""

    group_epoch: GroupEpoch
    error: int
    target: ComputedTarget


Computation: TypeAlias = NotComputing | PrepareSent | PrepareDue | Computing | InstallSent | InstallDue

# -- ending -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The group cannot accept this worker with its current settings: no further heartbeat is sent."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """A heartbeat that leaves the group was sent. Only its response, its failure or its timer has an effect now."""

    in_flight: InFlight[HeartbeatRequest]


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspending:
    """A heartbeat that announces the next process was sent. Only its response, its failure, its timer or an order to
    leave has an effect now."""

    in_flight: InFlight[HeartbeatRequest]


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspended:
    """The next process continues the membership; this process sends nothing. Only an order to leave still has an
    effect: the member then ends without a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HasLeft:
    """The member has ended: no event has any effect any more."""


Ending: TypeAlias = Refused | Leaving | Suspending | Suspended | HasLeft


class Member:
    """The state of one member. It is not stored durably: a worker that starts again joins with a new member id, unless
    its process relaunches (`ConnectMembershipHandover`). A static worker then takes the place of the member with its
    ``instance_id``. ``owned`` also contains assigned jobs that the herder has not confirmed yet."""

    def __init__(self, settings: MemberSettings, place: ConnectMembershipHandover | None = None) -> None:
        """``place`` is the membership that the previous process passed on: this member continues it, with the member id
        of ``place``."""
        self.settings = settings if place is None else replace(settings, member_id=place.member_id)
        self.request_ids = map(RequestId, count(1))
        self.request_number = 0
        """The request number of the last heartbeat that was sent, also of one that leaves the group."""
        self.computation_count = 0
        """How many computations this member has begun: the number in the token of the last one."""

        self.place: Presence = NotInGroup()
        """Whether this worker is in the group, with its epoch, assignment and lease."""
        self.heartbeat: Heartbeats = NoHeartbeat()
        self.computation: Computation = NotComputing()
        self.ending: Ending | None = None

        self.older_heartbeats: dict[RequestId, int] = {}
        """The time when each older heartbeat without a response was sent. Its response renews the lease and has no
        other effect."""
        self.last_request_id = RequestId(0)
        """The id of the last request of any kind."""
        self.description_request_id: RequestId | None = None
        """The request for the group's description that has no response yet."""
        self.worker_state: SetWorkerState | None = None
        """The last ``SetWorkerState`` of the herder; None before the first."""
        self.assigned_unconfirmed: Jobs = NO_JOBS
        """Assigned jobs that no ``SetWorkerState`` of the herder has contained since. They count as owned, because a
        ``SetWorkerState`` may be older than the assignment, and the herder may be about to start them."""
        self.assignors = settings.assignors
        """The client-side assignors with their newest metadata, and with their reasons until a heartbeat with these is
        accepted."""
        self.configured: SetConfiguredJobs | None = None
        """The last ``SetConfiguredJobs`` of the herder; None before the first."""
        self.retries = 0
        """The number of retries since the last heartbeat that was accepted, which determines the back-off."""
        self.failures = FailureLog()
        """The failures of this member's requests since a heartbeat was last accepted."""
        self.leadership_check: LeadershipCheck | None = None
        """The check that the herder has ordered; None when a heartbeat has confirmed it."""
        self.reported_state = MemberState.UNJOINED
        """The member state that the herder received last."""
        if place is not None:
            self._continue_membership(place)

    @property
    def owned(self) -> Jobs:
        """The jobs that run here, or that are assigned and may be about to start."""
        known = NO_JOBS if self.worker_state is None else self.worker_state.owned
        return known | self.assigned_unconfirmed

    @property
    def rebalance_state(self) -> MemberState:
        """How far this member is in the rebalance. COMPLETING_REBALANCE: a job has stopped, and no accepted heartbeat
        has reported that yet. The member does not know which jobs of its target other members still hold; the
        coordinator's description of the group contains them."""
        match self.place:
            case InGroup() as place:
                if place.member_epoch == JOIN_EPOCH or not self.owned <= place.assignment.jobs:
                    return MemberState.PREPARING_REBALANCE
                is_acknowledged = place.last_accepted_owned <= self.owned
                return MemberState.STABLE if is_acknowledged else MemberState.COMPLETING_REBALANCE
            case NotInGroup():
                return MemberState.UNJOINED

    @property
    def is_leader(self) -> bool:
        """Whether the last response about the leader named this member. False outside of the group."""
        return isinstance(self.place, InGroup) and self.place.leader.member_id == self.settings.member_id

    def _continue_membership(self, place: ConnectMembershipHandover) -> None:
        """Continue the membership that the previous process passed on."""
        self.request_number = place.request_number
        self.worker_state = SetWorkerState(config_offset=place.config_offset, owned=place.jobs)
        self.place = InGroup(
            member_epoch=place.member_epoch,
            session_timeout_ms=place.session_timeout_ms,
            lease_ends_ms=0,
            heartbeat_interval_ms=0,
            leader=LeaderOfGroup(member_id=place.leader, leader_epoch=place.leader_epoch, url=place.leader_url),
            assignment=AssignmentToMember(
                jobs=place.jobs,
                jobs_by_assignment_epoch=place.jobs_by_assignment_epoch,
                assignment_epoch=place.assignment_epoch,
                config_offset=place.config_offset,
                version=place.version,
                metadata=place.metadata,
            ),
            last_accepted_owned=place.jobs,
            is_lease_confirmed=False,
        )
        self.heartbeat = HeartbeatDue(at_ms=0)


def check_invariants(member: Member) -> None:
    """Assert the invariants that hold after every step and that the types of the unions do not already guarantee.

    :raises AssertionError: when an invariant does not hold, which is a bug in Coterie.
    """
    if isinstance(member.place, NotInGroup):
        assert isinstance(member.computation, NotComputing), "only a member computes"
        assert not member.older_heartbeats, "responses to heartbeats of a lost membership have no effect"
    if isinstance(member.heartbeat, HeartbeatSent):
        request = member.heartbeat.in_flight.request
        assert request.request_number == member.request_number, "the newest heartbeat has the last number"
        assert member.heartbeat.in_flight.id not in member.older_heartbeats, "the newest heartbeat is not an older one"
    if member.ending is not None:
        assert isinstance(member.heartbeat, NoHeartbeat), "a member that ends sends no further heartbeat"
    elif isinstance(member.place, InGroup):
        assert not isinstance(member.heartbeat, NoHeartbeat), "a member always has a heartbeat out, or one is due"
