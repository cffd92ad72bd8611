"""The state of a classic member: its membership (``place``), its round and its ending; and its invariants.

These three change independently, so each is a separate union. Membership, lease and heartbeats continue during a
join; a refused member stays in the group until it leaves; a loss ends both the membership and the round.

docs/states.md lists their states, events and transitions as tables.
"""

from dataclasses import dataclass
from enum import Enum, auto
from itertools import count
from typing import Generic, TypeAlias, TypeVar

from coterie.config import defaults
from coterie.engine.lease import Lease
from coterie.member.classic.messages import HeartbeatRequest, JoinRequest, LeaveRequest, Request, SyncRequest
from coterie.member.events import RequestId
from coterie.nouns.ids import ConfigOffset, Generation, GroupId, InstanceId, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, Jobs
from coterie.nouns.membership import PlaceHandover, Subscribe
from coterie.wire.connect import ConnectProtocol, WorkerAssignment

RequestT_co = TypeVar("RequestT_co", bound=Request, covariant=True)

NO_GENERATION = Generation(-1)
NO_MEMBER = MemberId("")
QUIET_MARGIN_MS = 1_000
"""How long after the last revoked job has stopped an immediate further round is still expected."""
PARKED_GRACE_MS = 5_000
"""How much longer than the rebalance timeout the response to a parked request is awaited, as in Kafka's clients."""
HOLD_MAX_MS = 2_000
"""The longest time that a join waits for revoked jobs to stop. With stops of 0.1 to 2 s, waiting saves a round and
stops no other job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    group_id: GroupId
    instance_id: InstanceId | None = None
    """``group.instance.id``: with it this is a static member, which leaves without a LeaveGroup (KIP-345)."""
    url: WorkerUrl
    """The URL of this worker's REST listener; leaders send it to all members."""
    protocols: tuple[ConnectProtocol, ...] = ConnectProtocol.STATIC.offered
    """The protocols that this worker offers, in the order of preference."""
    name: str | None = None
    """``worker.name``; None for the worker's ``host:port``."""
    claims: Jobs | None = None
    """``static.connectors`` and ``static.tasks``: the only jobs that this worker may run; None: any job (KIP-987)."""
    session_timeout_ms: int = defaults.SESSION_TIMEOUT_MS
    rebalance_timeout_ms: int = defaults.REBALANCE_TIMEOUT_MS
    heartbeat_interval_ms: int = defaults.HEARTBEAT_INTERVAL_MS
    rebalance_heartbeat_interval_ms: int = defaults.REBALANCE_HEARTBEAT_INTERVAL_MS
    """The heartbeat interval while the next round is expected."""
    quiet_ms: int = defaults.TASK_SHUTDOWN_GRACEFUL_TIMEOUT_MS + QUIET_MARGIN_MS
    """How long after an assignment the next round is expected: longer than stopping the revoked jobs may take."""
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000

    @property
    def lease(self) -> Lease:
        return Lease(self.session_timeout_ms)

    @property
    def lease_ms(self) -> int:
        """For how long after the sending of a request its response lets this worker run its jobs."""
        return self.lease.proved_ms

    @property
    def hold_ms(self) -> int:
        """How long a join waits for revoked jobs to stop. A member that joins after the rebalance timeout loses its
        membership."""
        return min(HOLD_MAX_MS, self.rebalance_timeout_ms // 2)

    @property
    def answer_timeout_ms(self) -> int:
        """How long the response to a join or sync is awaited: the coordinator parks them for at most the rebalance
        timeout."""
        return self.rebalance_timeout_ms + PARKED_GRACE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight(Generic[RequestT_co]):
    """A request whose response has not arrived yet."""

    id: RequestId
    request: RequestT_co
    sent_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """When requests began to fail for one reason, and when that reason was logged last."""

    since_ms: int
    said_at_ms: int


# -- membership -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NeverIn:
    """No join of this worker has been accepted yet."""

    member_id: MemberId = NO_MEMBER
    """Empty until the coordinator has assigned an id for the first join (KIP-394)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WasIn:
    """The membership was lost; all jobs must stop before the next join."""

    member_id: MemberId
    """The next join uses this id again; empty when the coordinator has removed the member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InGroup:
    """A join was accepted, and the coordinator may count this worker as a member. A further join does not change this
    state until its response arrives."""

    member_id: MemberId
    generation: Generation
    """The generation in the response to the last accepted join."""
    protocol: ConnectProtocol | None
    """The selected protocol in that response; None for a protocol that this worker did not offer."""
    assignment: WorkerAssignment | None = None
    """The last assignment since the worker became a member. The next join sends its leader and config offset."""
    proved_until_ms: int | None = None
    """The end of the lease; None before the first response that grants one."""
    may_have_missed_vote: bool = False
    """The response to a join did not arrive: the group may have selected another protocol than ``protocol``."""
    next_round_expected_until_ms: int = 0
    """Heartbeats are sent at the shorter interval until then."""
    heartbeat: InFlight[HeartbeatRequest] | None = None
    """The last heartbeat, until its response arrives."""


Presence: TypeAlias = NeverIn | WasIn | InGroup

# -- round ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NotSubscribed:
    """No `Subscribe` has arrived yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitsToJoin:
    until_ms: int | None = None
    """When the back-off after a failure ends; None: join as soon as nothing else prevents it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AsksWhetherKnown:
    """A static member without a member id checks whether the group has a member of its ``instance_id`` from a previous
    process."""

    asked: InFlight[HeartbeatRequest]


class FormerLife(Enum):
    """Whether the next assignment may have been computed for a previous process of this static member."""

    UNASKED = auto()
    """Not checked yet."""
    ABSENT = auto()
    PRESENT = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Joins:
    asked: InFlight[JoinRequest]
    reported: Subscribe
    """The worker state that the join reports."""
    former_life: FormerLife
    """The value of ``Member.former_life`` before this join was sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Computes:
    """This member is the leader of the generation, and its herder computes the assignments."""

    protocol: ConnectProtocol
    """The selected protocol of this generation; the assignments are encoded for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Syncs:
    asked: InFlight[SyncRequest]
    protocol: ConnectProtocol
    """The selected protocol of this generation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasesAll:
    """All jobs must stop before the next join: the membership is lost, or (in the group) the group uses eager."""

    until_ms: int | None = None
    """When the back-off ends, if the membership was lost by a failure; None: there is no back-off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The assignment of the generation was received; the next join needs a ``Member.rejoin_reason``."""

    hold_join_until_ms: int = 0
    """Until then the next join waits while a job that the assignment revoked is still owned."""


AwaitsAnswer: TypeAlias = AsksWhetherKnown | Joins | Syncs
Round: TypeAlias = NotSubscribed | WaitsToJoin | AwaitsAnswer | Computes | ReleasesAll | Settled


# -- ending -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The group cannot accept this worker with its current settings. Heartbeats continue; no further join is sent."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """A LeaveGroup request was sent; only its response or its timer has an effect now."""

    asked: InFlight[LeaveRequest]


@dataclass(frozen=True, slots=True, kw_only=True)
class HasLeft:
    """No event has any effect any more."""


Ending: TypeAlias = Refused | Leaving | HasLeft


class Member:
    """The state of one member. Nothing of it is stored durably: a worker that starts again is another member."""

    def __init__(self, settings: MemberSettings, place: PlaceHandover | None = None) -> None:
        """``place`` is the membership that the previous process passed on: heartbeats continue in it."""
        self.settings = settings
        self.request_ids = map(RequestId, count(1))

        self.place: Presence = NeverIn()
        self.round: Round = NotSubscribed()
        self.ending: Ending | None = None

        self.subscription = Subscribe(config_offset=ConfigOffset(-1), owned=NO_JOBS)
        """The worker state that the next join reports: the last ``Subscribe`` of the herder, with
        ``assigned_unconfirmed`` added to its ``owned``."""
        self.assigned_unconfirmed: Jobs = NO_JOBS
        """Assigned jobs that no ``Subscribe`` of the herder contains yet. A ``Subscribe`` may be older than the
        assignment, so these jobs are added to its ``owned``."""
        self.rejoin_reason: str | None = None
        """Why another round is requested; None when none is. May be set during any round: the next join sends it."""
        self.former_life = FormerLife.UNASKED
        """Not a field of ``place``, because a loss before the next assignment does not change it."""
        self.retries = 0
        """Retries since the last assignment; they set the back-off."""
        self.malformed_assignments = 0
        """How many assignments in a row could not be decoded. Not reset by a loss: each join must differ from the
        last."""
        self.troubles: dict[str, Trouble] = {}
        """Reasons why requests currently fail, by message; cleared when a response renews the lease."""
        self.announced: ConnectProtocol | None = None
        """The group's protocol that was logged last."""
        if place is not None:
            self._go_on_in(place)

    @property
    def member_id(self) -> MemberId:
        return self.place.member_id

    @property
    def owned(self) -> Jobs:
        """The jobs that run here, or that are assigned and may be about to start."""
        return self.subscription.owned

    @property
    def revoked_unreleased(self) -> Jobs:
        """The jobs that the last assignment revoked and that still run here."""
        match self.place:
            case InGroup(assignment=WorkerAssignment(revoked=revoked)):
                return revoked & self.owned
            case _:
                return NO_JOBS

    def _go_on_in(self, place: PlaceHandover) -> None:
        self.subscription = Subscribe(config_offset=place.config_offset, owned=place.jobs)
        self.place = InGroup(
            member_id=place.member_id,
            generation=place.generation,
            protocol=ConnectProtocol.named(place.protocol),
            assignment=WorkerAssignment(
                leader=place.leader, leader_url=place.leader_url, config_offset=place.config_offset
            ),
            may_have_missed_vote=place.may_have_missed_vote,
        )
        self.round = Settled()


def check(member: Member) -> None:
    """Assert the invariants that hold after every step, besides those that the types of the unions guarantee."""
    if isinstance(member.ending, Refused):
        assert isinstance(member.round, NotSubscribed | WaitsToJoin | ReleasesAll), "a refused member is in no round"
    if isinstance(member.place, InGroup) and member.place.heartbeat is not None:
        assert member.place.heartbeat.request.member_id == member.place.member_id, "a heartbeat has this member's id"
    match member.place, member.round:
        case InGroup(protocol=protocol), Computes(protocol=of_round):
            assert protocol is of_round, "the round has the protocol of the last join"
        case InGroup(generation=generation, protocol=protocol), Syncs(asked=asked, protocol=of_round):
            assert asked.request.generation == generation, "a sync has the generation of the last join"
            assert protocol is of_round, "the round has the protocol of the last join"
        case InGroup(protocol=protocol), ReleasesAll():
            assert protocol is ConnectProtocol.EAGER, "in the group all jobs stop only if the protocol is eager"
        case InGroup(), round_:
            assert not isinstance(round_, NotSubscribed | AsksWhetherKnown), (
                "only a worker outside the group checks for a prior member"
            )
        case NeverIn() | WasIn(), round_:
            assert not isinstance(round_, Computes | Syncs | Settled), "a worker outside the group has no generation"
