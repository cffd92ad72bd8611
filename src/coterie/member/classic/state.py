"""The state of a classic member: its membership (``place``), its round and its ending; and its invariants.

The three change independently, so each is a separate union. Membership, lease and heartbeats continue during a join; a
refused member that is in the group stays there until it leaves; a loss ends both the membership and the round.

docs/states.md lists their states, events and transitions as tables.
"""

from dataclasses import dataclass
from enum import Enum, auto
from itertools import count
from typing import TypeAlias

from coterie.config import defaults
from coterie.engine.lease import LeaseDurations
from coterie.member.classic.messages import HeartbeatRequest, JoinRequest, LeaveRequest, SyncRequest
from coterie.member.events import RequestId
from coterie.member.failure_log import FailureLog
from coterie.member.in_flight import InFlight
from coterie.member.leadership import LeadershipCheck
from coterie.nouns.ids import ConfigOffset, GenerationId, GroupId, InstanceId, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, Jobs
from coterie.nouns.membership import ClassicMembershipHandover, SetWorkerState
from coterie.wire.connect import ConnectProtocol, WorkerAssignment

NO_GENERATION = GenerationId(-1)
"""The generation that a request of a worker outside the group contains."""
NO_MEMBER = MemberId("")
"""The member id of a worker that has none."""
NEXT_ROUND_MARGIN_MS = 1_000
"""How long a further round is still expected after the time in which revoked jobs must stop
(``task.shutdown.graceful.timeout.ms``) has passed."""
PARKED_TIMEOUT_MARGIN_MS = 5_000
"""How much longer than the rebalance timeout a member waits for the response to a join or sync, as in Kafka's
clients."""
JOIN_HOLD_MAX_MS = 2_000
"""The longest time that a join waits for revoked jobs to stop. If stops take 0.1 to 2 s, waiting saves a round and
stops no other job."""
STATIC_JOIN_HOLD_MAX_MS = 500
"""The longest time that a join waits for revoked jobs to stop in a group with protocol static. Its leader revokes a job
again that a member is still stopping, and no other job instead, so an early join stops no other job. Waiting only makes
jobs that stop at about the same time share a round, while none of them runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    """The data that a member sends to its group, and its time limits."""

    group_id: GroupId
    instance_id: InstanceId | None = None
    """``group.instance.id``; with it this is a static member, which leaves without a LeaveGroup request (KIP-345).
    None: a dynamic member."""
    url: WorkerUrl
    """The URL of this worker's REST listener; leaders send it to all members."""
    protocols: tuple[ConnectProtocol, ...] = ConnectProtocol.STATIC.versions_to_offer
    """The protocols that this worker offers, the preferred protocol first."""
    worker_name: str | None = None
    """``worker.name``; None if it is not set."""
    claims: Jobs | None = None
    """``static.connectors`` and ``static.tasks``: the only jobs that this worker may run; None: any job (KIP-987)."""
    session_timeout_ms: int = defaults.SESSION_TIMEOUT_MS
    rebalance_timeout_ms: int = defaults.REBALANCE_TIMEOUT_MS
    heartbeat_interval_ms: int = defaults.HEARTBEAT_INTERVAL_MS
    rebalance_heartbeat_interval_ms: int = defaults.REBALANCE_HEARTBEAT_INTERVAL_MS
    """The heartbeat interval while a further round is expected."""
    next_round_window_ms: int = defaults.TASK_SHUTDOWN_GRACEFUL_TIMEOUT_MS + NEXT_ROUND_MARGIN_MS
    """How long after an assignment a further round is expected: longer than the revoked jobs may take to stop."""
    retry_backoff_ms: int = 100
    """The first back-off; it doubles with each retry."""
    retry_backoff_max_ms: int = 1_000
    """The longest back-off."""

    @property
    def lease_durations(self) -> LeaseDurations:
        """The durations that follow from this worker's session timeout."""
        return LeaseDurations(self.session_timeout_ms)

    @property
    def lease_duration_ms(self) -> int:
        """How long an answered request lets this worker run its jobs, counted from the sending of the request."""
        return self.lease_durations.duration_ms

    def join_hold_max_ms(self, protocol: ConnectProtocol) -> int:
        """How long, in ms from an assignment, the next join waits at most for revoked jobs to stop:
        STATIC_JOIN_HOLD_MAX_MS if the group's ``protocol`` is static, else JOIN_HOLD_MAX_MS; but never more than half
        of the rebalance timeout, because a member that joins after this timeout loses its membership."""
        hold_max_ms = STATIC_JOIN_HOLD_MAX_MS if protocol is ConnectProtocol.STATIC else JOIN_HOLD_MAX_MS
        return min(hold_max_ms, self.rebalance_timeout_ms // 2)

    @property
    def round_response_timeout_ms(self) -> int:
        """How long the member waits for the response to a join, a sync or a check for a prior member, from the sending
        of the request. The coordinator delays the response to a join or sync for the rebalance timeout at most."""
        return self.rebalance_timeout_ms + PARKED_TIMEOUT_MARGIN_MS


# -- membership -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NeverInGroup:
    """The coordinator has not accepted a join of this worker yet; ``member_id`` is the id that it has issued for this
    join, empty before."""

    member_id: MemberId = NO_MEMBER
    """Empty until the coordinator has issued an id in the response to the first join (KIP-394)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WasInGroup:
    """The membership was lost, and the next join is not accepted yet. All jobs must stop before that join."""

    member_id: MemberId
    """The id that the next join contains. Empty when the coordinator has removed the member, or the member has left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InGroup:
    """A join was accepted, and the coordinator may count this worker as a member. A further join does not change this
    state until its response arrives. ``protocol`` is None if the group has selected one that this worker did not offer;
    ``assignment`` and ``lease_ends_ms`` are None before the first. ``may_have_missed_protocol_change`` is set when the
    response to a join was lost, or the membership was handed over during a rebalance."""

    member_id: MemberId
    generation: GenerationId
    """The generation in the response to the last accepted join."""
    protocol: ConnectProtocol | None
    """The selected protocol in that response; None when this worker did not offer it."""
    assignment: WorkerAssignment | None = None
    """The last assignment since this worker became a member; None before the first. The next join contains its leader
    and config offset."""
    lease_ends_ms: int | None = None
    """The end of the lease; None before the first response that grants one."""
    may_have_missed_protocol_change: bool = False
    """Whether the response to a join was lost, or the previous process handed the membership over during a rebalance:
    the group may then have selected another protocol than ``protocol``."""
    next_round_expected_until_ms: int = 0
    """Until when heartbeats are sent at the shorter interval."""
    unanswered_heartbeat: InFlight[HeartbeatRequest] | None = None
    """The last heartbeat, until its response arrives; None when there is no such heartbeat."""


Presence: TypeAlias = NeverInGroup | WasInGroup | InGroup

# -- round ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitingWorkerState:
    """The herder has not sent a `SetWorkerState` yet: this worker does not join."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingToJoin:
    """No round is running. JoinGroup is sent when nothing prevents it (`join_or_prepare_join_if_due`), and after the
    back-off if there is one."""

    backoff_ends_ms: int | None = None
    """When the back-off after a failure ends; None when there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckingPriorMember:
    """A static member without a member id has asked the coordinator whether the group has a member with its
    ``instance_id``, from a previous process."""

    in_flight: InFlight[HeartbeatRequest]


class PriorMemberStatus(Enum):
    """Whether the group has a member with this worker's instance id from a previous process. The next assignment may
    then have been computed for that process."""

    UNCHECKED = auto()
    """This worker has not checked yet whether the group has such a member."""
    NOT_IN_GROUP = auto()
    """The group has no such member, or this process has taken its place."""
    IN_GROUP = auto()
    """The group has such a member, or may have one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinSent:
    """JoinGroup was sent, and its response has not arrived yet."""

    in_flight: InFlight[JoinRequest]
    sent_worker_state: SetWorkerState
    """The worker state that this JoinGroup contains."""
    prior_member: PriorMemberStatus
    """The value of ``Member.prior_member`` before JoinGroup was sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputingAssignments:
    """This member is the leader of the generation, and its herder computes the assignments."""

    protocol: ConnectProtocol
    """The selected protocol of this generation; the assignments are encoded for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncSent:
    """SyncGroup was sent, and its response has not arrived yet."""

    in_flight: InFlight[SyncRequest]
    protocol: ConnectProtocol
    """The selected protocol of this generation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppingAllJobs:
    """All jobs must stop before the next join: either the membership is lost, or this worker is still a member and the
    group's protocol is eager."""

    backoff_ends_ms: int | None = None
    """When the back-off ends, which precedes the next join; None when there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentReceived:
    """The assignment of the generation was received, and no round is running. The next join needs a
    ``Member.rejoin_reason``. Until ``hold_join_until_ms``, the next join also waits while a job that the
    assignment revoked is still owned."""

    hold_join_until_ms: int = 0
    """Until then, the next join waits while a job that the assignment revoked is still owned."""


AwaitingResponse: TypeAlias = CheckingPriorMember | JoinSent | SyncSent
Round: TypeAlias = (
    AwaitingWorkerState | WaitingToJoin | AwaitingResponse | ComputingAssignments | StoppingAllJobs | AssignmentReceived
)


# -- ending -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The group cannot accept this worker with its current settings: no further join is sent. If a join or a sync was
    refused, a worker that is a member stays one, and sends heartbeats until it leaves; the refusal of a heartbeat, and
    FENCED_INSTANCE_ID, also end the membership."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """LeaveGroup was sent. Only its response, its failure or its timer has an effect now."""

    in_flight: InFlight[LeaveRequest]


@dataclass(frozen=True, slots=True, kw_only=True)
class HasLeft:
    """The member has ended: no event has any effect any more."""


Ending: TypeAlias = Refused | Leaving | HasLeft


class Member:
    """The state of one member. It is not stored durably: a worker that starts again is a new member, unless it is
    static or its process relaunches (`ClassicMembershipHandover`). ``owned`` also contains assigned jobs that the
    herder has not confirmed yet."""

    def __init__(self, settings: MemberSettings, place: ClassicMembershipHandover | None = None) -> None:
        """``place`` is the membership that the previous process of this worker passed on: this member continues that
        membership, with the same member id. None: there is no such membership, and this worker is in no group yet."""
        self.settings = settings
        self.request_ids = map(RequestId, count(1))

        self.place: Presence = NeverInGroup()
        """Whether this worker is in the group, with its member id, generation, assignment and lease."""
        self.round: Round = AwaitingWorkerState()
        """How far the current join and sync are."""
        self.ending: Ending | None = None
        """None while this member may join and stay in the group."""

        self.worker_state = SetWorkerState(config_offset=ConfigOffset(-1), owned=NO_JOBS)
        """The worker state that the next join contains: the last ``SetWorkerState`` of the herder, with
        ``assigned_unconfirmed`` added to its ``owned``."""
        self.assigned_unconfirmed: Jobs = NO_JOBS
        """Assigned jobs that no ``SetWorkerState`` of the herder has contained yet. A ``SetWorkerState`` may be older
        than the assignment, so these jobs are added to its ``owned``."""
        self.rejoin_reason: str | None = None
        """Why another round is requested, for the next JoinGroup; None when none is requested. May be set during a
        round."""
        self.prior_member = PriorMemberStatus.UNCHECKED
        """Whether the group has a member from a previous process of this worker. Not a field of ``place``, because a
        loss of the membership before the next assignment does not change it."""
        self.retries = 0
        """The number of retries since the last assignment, which determines the back-off."""
        self.malformed_assignment_count = 0
        """How many assignments in a row could not be decoded. A loss of the membership does not reset it: each join
        must differ from the one before."""
        self.failures = FailureLog()
        """The failures of this member's requests since a response last renewed the lease."""
        self.leadership_check: LeadershipCheck | None = None
        """The check that the herder has ordered; None when a heartbeat has confirmed it."""
        self.logged_protocol: ConnectProtocol | None = None
        """The group's protocol that was logged last."""
        if place is not None:
            self._continue_membership(place)

    @property
    def member_id(self) -> MemberId:
        """This worker's member id; empty when it has none."""
        return self.place.member_id

    @property
    def is_leader_between_rounds(self) -> bool:
        """Whether this member leads the generation of its last assignment. False during a join or a sync."""
        match self.place, self.round:
            case InGroup(member_id=member_id, assignment=WorkerAssignment(leader=leader)), AssignmentReceived():
                return leader == member_id
            case _:
                return False

    @property
    def owned(self) -> Jobs:
        """The jobs that run here, or that are assigned and may be about to start."""
        return self.worker_state.owned

    @property
    def revoked_unreleased(self) -> Jobs:
        """The jobs that the last assignment revoked and that are still owned."""
        match self.place:
            case InGroup(assignment=WorkerAssignment(revoked=revoked)):
                return revoked & self.owned
            case _:
                return NO_JOBS

    def _continue_membership(self, place: ClassicMembershipHandover) -> None:
        """Continue the membership that the previous process passed on."""
        self.worker_state = SetWorkerState(config_offset=place.config_offset, owned=place.jobs)
        self.place = InGroup(
            member_id=place.member_id,
            generation=place.generation,
            protocol=ConnectProtocol.from_setting(place.protocol),
            assignment=WorkerAssignment(
                leader=place.leader, leader_url=place.leader_url, config_offset=place.config_offset
            ),
            may_have_missed_protocol_change=place.may_have_missed_protocol_change,
        )
        self.round = AssignmentReceived()


def check_invariants(member: Member) -> None:
    """Assert the invariants that hold after every step and that the types of the unions do not already guarantee.

    :raises AssertionError: when an invariant does not hold, which is a bug in Coterie.
    """
    if isinstance(member.ending, Refused):
        assert isinstance(member.round, AwaitingWorkerState | WaitingToJoin | StoppingAllJobs), (
            "a refused member is in no round"
        )
    if isinstance(member.place, InGroup) and member.place.unanswered_heartbeat is not None:
        assert member.place.unanswered_heartbeat.request.member_id == member.place.member_id, (
            "a heartbeat has this member's id"
        )
    match member.place, member.round:
        case InGroup(protocol=protocol), ComputingAssignments(protocol=of_round):
            assert protocol is of_round, "the round has the protocol of the last join"
        case InGroup(generation=generation, protocol=protocol), SyncSent(in_flight=asked, protocol=of_round):
            assert asked.request.generation == generation, "a sync has the generation of the last join"
            assert protocol is of_round, "the round has the protocol of the last join"
        case InGroup(protocol=protocol), StoppingAllJobs():
            assert protocol is ConnectProtocol.EAGER, "in the group all jobs stop only if the protocol is eager"
        case InGroup(), round_:
            assert not isinstance(round_, AwaitingWorkerState | CheckingPriorMember), (
                "only a worker outside the group checks for a prior member"
            )
        case NeverInGroup() | WasInGroup(), round_:
            assert not isinstance(round_, ComputingAssignments | SyncSent | AssignmentReceived), (
                "a worker outside the group has no generation"
            )
