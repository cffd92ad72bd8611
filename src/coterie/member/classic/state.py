"""What a classic member stores: its place in the group, how far its round is, and how it ends; and what always holds.

Three facts vary by themselves, so each is a union of its own. The place and its proof go on through a join, as do the
heartbeats; a member that was refused keeps its place until it leaves; a loss ends both the place and the round.

Their states, events and transitions stand as tables in docs/states.md.
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
"""How long after the last revoked job has stopped another round may still follow at once."""
PARKED_GRACE_MS = 5_000
"""How much longer than the rebalance timeout a parked request is waited for, as in Kafka's clients."""
HOLD_MAX_MS = 2_000
"""How long a join waits for stops at most: with stops of 0.1 to 2 s waiting saves a round and stops no other job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    group_id: GroupId
    instance_id: InstanceId | None = None
    """``group.instance.id``: with it this is a static member, which leaves without a LeaveGroup (KIP-345)."""
    url: WorkerUrl
    """Where this worker's REST listens; leaders send it to all members."""
    protocols: tuple[ConnectProtocol, ...] = ConnectProtocol.STATIC.offered
    """What this worker offers, the preferred one first."""
    name: str | None = None
    """``worker.name``; None for the worker's ``host:port``."""
    claims: Jobs | None = None
    """``static.connectors`` and ``static.tasks``: the only jobs that this worker may run; None: any job (KIP-987)."""
    session_timeout_ms: int = defaults.SESSION_TIMEOUT_MS
    rebalance_timeout_ms: int = defaults.REBALANCE_TIMEOUT_MS
    heartbeat_interval_ms: int = defaults.HEARTBEAT_INTERVAL_MS
    rebalance_heartbeat_interval_ms: int = defaults.REBALANCE_HEARTBEAT_INTERVAL_MS
    """The interval while the next round is expected."""
    quiet_ms: int = defaults.TASK_SHUTDOWN_GRACEFUL_TIMEOUT_MS + QUIET_MARGIN_MS
    """How long after an assignment the next round is expected: longer than stopping what was revoked may take."""
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000

    @property
    def lease(self) -> Lease:
        return Lease(self.session_timeout_ms)

    @property
    def lease_ms(self) -> int:
        """For how long an answer proves that this worker may run its jobs, from the sending of the request."""
        return self.lease.proved_ms

    @property
    def hold_ms(self) -> int:
        """How long a join waits for stops: a join later than the rebalance timeout would lose the place."""
        return min(HOLD_MAX_MS, self.rebalance_timeout_ms // 2)

    @property
    def answer_timeout_ms(self) -> int:
        """How long the answer to a join or sync is waited for: the coordinator parks them for a rebalance timeout at
        most."""
        return self.rebalance_timeout_ms + PARKED_GRACE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight(Generic[RequestT_co]):
    """A request that is not answered yet."""

    id: RequestId
    request: RequestT_co
    sent_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """A reason why requests currently fail, and when it was logged last."""

    since_ms: int
    said_at_ms: int


# -- place ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NeverIn:
    """No join of this worker has been accepted yet."""

    member_id: MemberId = NO_MEMBER
    """Empty until the coordinator has assigned an id for the first join (KIP-394)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WasIn:
    """The place is lost, or was left; everything must stop before the next join."""

    member_id: MemberId
    """The next join uses this id again; empty when the coordinator does not know it any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InGroup:
    """A join was accepted, and the coordinator may count on this member. Holds all that a join does not change."""

    member_id: MemberId
    generation: Generation
    """Of the last join that was answered."""
    protocol: ConnectProtocol | None
    """The group's choice in that join; None for a protocol that this worker did not offer."""
    assignment: WorkerAssignment | None = None
    """The last assignment that was received in this place. The next join sends its leader and config offset."""
    proved_until_ms: int | None = None
    """Until when an answer proves that the coordinator counts this member in; None before the first such answer."""
    may_have_missed_vote: bool = False
    """A join was sent whose answer never arrived: the group may speak another protocol than ``protocol`` by now."""
    next_round_expected_until_ms: int = 0
    """Heartbeats are sent at the shorter interval until then."""
    heartbeat: InFlight[HeartbeatRequest] | None = None
    """The last heartbeat, while it is not answered."""


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
    """A static member without an id asks whether the group has one for its ``instance_id`` from a former life."""

    asked: InFlight[HeartbeatRequest]


class FormerLife(Enum):
    """Whether the next assignment may have been made for a former life of a static member's instance id."""

    UNASKED = auto()
    """The group was not asked yet."""
    ABSENT = auto()
    PRESENT = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Joins:
    asked: InFlight[JoinRequest]
    reported: Subscribe
    """What the join reports."""
    former_life: FormerLife
    """``Member.former_life`` as it was before this join was sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Computes:
    """This member leads the generation, and its herder computes the assignments."""

    protocol: ConnectProtocol
    """The group's choice in this generation; the assignments are encoded by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Syncs:
    asked: InFlight[SyncRequest]
    protocol: ConnectProtocol
    """The group's choice in this generation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasesAll:
    """All jobs must stop before the next join: the place is lost, or (in the group) the group speaks eager."""

    until_ms: int | None = None
    """When the back-off ends, if the place was lost by a failure; None: there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The assignment of the generation was received; the next join needs a ``Member.rejoin_reason``."""

    hold_join_until_ms: int = 0
    """Until when the next join waits while a job that the assignment revoked is still owned."""


AwaitsAnswer: TypeAlias = AsksWhetherKnown | Joins | Syncs
Round: TypeAlias = NotSubscribed | WaitsToJoin | AwaitsAnswer | Computes | ReleasesAll | Settled


# -- ending -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The group never accepts this worker with its present settings. Heartbeats go on; no further join is sent."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """A LeaveGroup request was sent; nothing but its answer or its timer counts any more."""

    asked: InFlight[LeaveRequest]


@dataclass(frozen=True, slots=True, kw_only=True)
class HasLeft:
    """No event has any effect any more."""


Ending: TypeAlias = Refused | Leaving | HasLeft


class Member:
    """All of it is soft: a worker that starts again is another member."""

    def __init__(self, settings: MemberSettings, place: PlaceHandover | None = None) -> None:
        """``place`` is what a former life of this process has handed on: heartbeats go on in it."""
        self.settings = settings
        self.request_ids = map(RequestId, count(1))

        self.place: Presence = NeverIn()
        self.round: Round = NotSubscribed()
        self.ending: Ending | None = None

        self.subscription = Subscribe(config_offset=ConfigOffset(-1), owned=NO_JOBS)
        """What the next join reports: the last order of the herder, with ``assigned_unconfirmed``."""
        self.assigned_unconfirmed: Jobs = NO_JOBS
        """Assigned, and not in a ``Subscribe`` of the herder yet: such an order may be older than the assignment, so
        these jobs are added to what it owns."""
        self.rejoin_reason: str | None = None
        """Why another round is wanted; None when none is. May be set in any round: the next join sends it."""
        self.former_life = FormerLife.UNASKED
        """No part of the place, as a loss before the next assignment does not change it."""
        self.retries = 0
        """Retries since the last assignment; they set the back-off."""
        self.malformed_assignments = 0
        """Assignments in a row that could not be decoded. Not reset by a loss: each join must differ from the last."""
        self.troubles: dict[str, Trouble] = {}
        """Reasons why requests currently fail, by message; empty after an answer that proves the place."""
        self.announced: ConnectProtocol | None = None
        """The group's protocol as last logged."""
        if place is not None:
            self._go_on_in(place)

    @property
    def member_id(self) -> MemberId:
        return self.place.member_id

    @property
    def owned(self) -> Jobs:
        """What runs here, or is assigned and may be about to start."""
        return self.subscription.owned

    @property
    def revoked_unreleased(self) -> Jobs:
        """What the last assignment revoked and still runs here."""
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
    """What holds after every step beyond what the unions state."""
    if isinstance(member.ending, Refused):
        assert isinstance(member.round, NotSubscribed | WaitsToJoin | ReleasesAll), "a refused member is in no round"
    if isinstance(member.place, InGroup) and member.place.heartbeat is not None:
        assert member.place.heartbeat.request.member_id == member.place.member_id, "a heartbeat is of this place"
    match member.place, member.round:
        case InGroup(protocol=protocol), Computes(protocol=of_round):
            assert protocol is of_round, "the round has the protocol of the last join"
        case InGroup(generation=generation, protocol=protocol), Syncs(asked=asked, protocol=of_round):
            assert asked.request.generation == generation, "a sync is of the last join"
            assert protocol is of_round, "the round has the protocol of the last join"
        case InGroup(protocol=protocol), ReleasesAll():
            assert protocol is ConnectProtocol.EAGER, "in the group only an eager vote stops everything"
        case InGroup(), round_:
            assert not isinstance(round_, NotSubscribed | AsksWhetherKnown), "only a worker outside asks who it is"
        case NeverIn() | WasIn(), round_:
            assert not isinstance(round_, Computes | Syncs | Settled), "a round is of a generation"
