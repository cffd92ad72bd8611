"""What a classic member knows of its place in the group, and what must be true of it at any time."""

from dataclasses import dataclass
from itertools import count
from typing import Generic, TypeAlias, TypeVar

from coterie.engine.lease import Lease
from coterie.member.classic.events import RequestId
from coterie.member.classic.messages import HeartbeatRequest, LeaveRequest, Request, SyncRequest
from coterie.nouns.ids import ConfigOffset, Generation, GroupId, InstanceId, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, Jobs
from coterie.nouns.membership import PlaceHandover
from coterie.wire.connect import ConnectProtocol, WorkerAssignment

RequestT_co = TypeVar("RequestT_co", bound=Request, covariant=True)

NO_GENERATION = Generation(-1)
NO_MEMBER = MemberId("")
HOLD_MAX_MS = 2_000
"""For how long at most a join waits for stops: with stops of 0.1 to 2 s it saves a round and stops for nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    group_id: GroupId
    instance_id: InstanceId | None = None
    """``group.instance.id``: with it this is a static member, which never says that it leaves (KIP-345)."""
    url: WorkerUrl
    """Where this worker's REST listens: leaders tell it to everybody."""
    protocols: tuple[ConnectProtocol, ...] = ConnectProtocol.STATIC.offered
    """What this worker offers, the preferred one first."""
    name: str | None = None
    """``worker.name``: what people call it; None for its ``host:port``."""
    claims: Jobs | None = None
    """``static.connectors`` and ``static.tasks``: the only jobs that it takes; None takes any (KIP-987)."""
    session_timeout_ms: int = 10_000
    rebalance_timeout_ms: int = 60_000
    heartbeat_interval_ms: int = 3_000
    rebalance_heartbeat_interval_ms: int = 200
    """While the next round may come soon."""
    quiet_ms: int = 6_000
    """For how long after an assignment that is so: longer than stopping what was revoked may take."""
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000

    @property
    def lease_ms(self) -> int:
        """For how long an answer proves that this worker may run what it has."""
        return Lease(self.session_timeout_ms).proved_ms

    @property
    def hold_ms(self) -> int:
        """For how long a join waits for stops: whoever joins later than the rebalance timeout has lost its place."""
        return min(HOLD_MAX_MS, self.rebalance_timeout_ms // 2)

    @property
    def answer_timeout_ms(self) -> int:
        """Joins and syncs are parked by the coordinator, for a rebalance timeout at most (Kafka's clients add 5 s)."""
        return self.rebalance_timeout_ms + 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight(Generic[RequestT_co]):
    """A request that is not answered yet."""

    id: RequestId
    request: RequestT_co
    sent_at_ms: int


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


Place: TypeAlias = NeverIn | WasIn | InGroup

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """What keeps a member from its place, and passes by itself."""

    since_ms: int
    said_at_ms: int


class Member:
    """All of it is soft: a worker that starts again is another member."""

    def __init__(self, settings: MemberSettings, place: PlaceHandover | None = None) -> None:
        """``place`` is what a former life of this process has handed on: heartbeats go on in it."""
        self.settings = settings
        self.request_ids = map(RequestId, count(1))

        # What this worker says of itself.
        self.config_offset = ConfigOffset(-1)
        self.owned: Jobs | None = None
        """What the next join will say that it runs; None before the herder has said anything."""
        self.handed: Jobs = NO_JOBS
        """What it was assigned and the herder has not taken up yet: what it says until then was said before."""
        self.draining = False
        """Whether the next join will say that this worker is to go for good."""
        self.said: tuple[ConfigOffset, Jobs, bool] | None = None
        """What the last join said: config offset, work, whether it drains."""

        self.place: Place = NeverIn()
        self.withholds = False
        """The last join did not offer eager."""
        self.announced: ConnectProtocol | None = None
        """What the process's log was last told that the group speaks."""
        self.completed = False
        """Whether that generation's assignment has been received."""
        self.known: bool | None = None
        """Whether the group may know this static member from a former life; None: it was not asked yet."""
        self.returning = False
        """Whether the assignment that is to come may have been made for a former life."""
        self.computing = False
        """It leads ``generation``, and the herder has not said yet who gets what."""

        # What is under way.
        self.asking: InFlight[Request] | None = None
        """The one join or sync (or question before) that is out."""
        self.retry_at_ms: int | None = None
        self.retries = 0
        self.misread = 0
        """How many assignments, one after the other, were malformed."""
        self.rejoin_reason: str | None = None
        self.giving_back: Jobs = NO_JOBS
        """What the last assignment revoked."""
        self.held_until_ms = 0
        """Until when a join waits for the stops of what is given back."""
        self.troubles: dict[str, Trouble] = {}
        """Why nothing comes of asking, in so many words; empty when something does."""

        # What ends.
        self.releasing = False
        """The place is kept, but the group speaks eager: nothing may run any more when this member joins."""
        self.stopping = False
        """The membership is lost, and not all has stopped yet."""
        self.ending: Ending | None = None
        if place is not None:
            self._go_on_in(place)

    @property
    def member_id(self) -> MemberId:
        return self.place.member_id

    def _go_on_in(self, place: PlaceHandover) -> None:
        self.config_offset, self.owned = place.config_offset, place.jobs
        self.place = InGroup(
            member_id=place.member_id,
            generation=place.generation,
            protocol=ConnectProtocol.named(place.protocol),
            assignment=WorkerAssignment(
                leader=place.leader, leader_url=place.leader_url, config_offset=place.config_offset
            ),
            may_have_missed_vote=place.unheard,
        )
        self.completed = self.known = True


def check(member: Member) -> None:
    """What is always true, after every step."""
    asking, place = member.asking, member.place
    if asking is not None and isinstance(asking.request, HeartbeatRequest):
        assert asking.request.generation < 0, "a heartbeat proper is no part of a round"
    if asking is not None and isinstance(asking.request, SyncRequest):
        assert isinstance(place, InGroup)
        assert asking.request.generation == place.generation, "a sync is of the last join"
        assert not member.completed
    assert isinstance(place, InGroup) or not (member.completed or member.computing), "a round is of a generation"
    assert not (member.computing and asking is not None), "a leader that computes asks for nothing"
    assert not (member.stopping and asking is not None), "no join before all has stopped"
    assert not (member.releasing and asking is not None), "no join before all is released"
    assert not (member.ending is not None and asking is not None), "whoever is refused or leaves asks no more"
