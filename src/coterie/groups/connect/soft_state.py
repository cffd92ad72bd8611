"""The soft state of a connect group's coordinator: the members' sessions, and the computation in progress. It is not
written to the log; after a reload the members' next requests restore it."""

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from coterie.groups.connect.messages import Heartbeat
from coterie.nouns.connect_groups import HeartbeatResponse
from coterie.nouns.ids import ConfigOffset, GroupEpoch, LeaderEpoch, MemberId, WorkerUrl
from coterie.nouns.jobs import Jobs
from coterie.nouns.target_assignments import GroupSnapshot

# -- the computation of a target assignment ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NoComputation:
    """No computation is in progress."""


@dataclass(frozen=True, slots=True)
class InitialRebalanceDelay:
    """No computation begins before ``ends_at_ms``, so that more members can join: the group had no present member when
    the first one joined."""

    ends_at_ms: int


@dataclass(frozen=True, slots=True)
class PauseAfterFailures:
    """No computation begins before ``ends_at_ms``, because computations have failed. A member that joins ends the
    pause."""

    ends_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemberChosenToCompute:
    """A member was chosen to compute the target assignment, and has not asked for the state of the group yet. Each
    choice equals only itself: a second choice of the same member is news for it (`ResponseContents.has_news_since`)."""

    member_id: MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberComputing:
    """The member that was chosen to compute the target assignment has received ``snapshot``, the state of the group,
    and computes."""

    member_id: MemberId
    snapshot: GroupSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorComputing:
    """The coordinator itself computes the target assignment, with one of its own assignors."""

    snapshot: GroupSnapshot


Idle: TypeAlias = NoComputation | InitialRebalanceDelay | PauseAfterFailures
"""The states in which no computation is in progress."""
Computation: TypeAlias = Idle | MemberChosenToCompute | MemberComputing | CoordinatorComputing


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTargetReason:
    """Why a member asks for a new target assignment."""

    reason: int
    """The assignor's code for the reason; never `AssignorChangeReason.NONE`."""
    group_epoch: GroupEpoch
    """The group epoch that the request has caused: a computation for an older epoch has not received the reason."""


# -- the connection of a member ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NotConnected:
    """The member has no open connection, as far as the coordinator knows: it has sent no request since the last load,
    or the client has closed the connection of its last request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    """The member's last request arrived on the open connection ``connection_number``. With ``resumes`` it announced
    that the member's process is about to replace itself: the end of the connection then has no effect."""

    connection_number: int
    resumes: bool = False
    """Whether the member's process is about to replace itself (a restart in place): the end of the connection then has
    no effect."""


ConnectionState: TypeAlias = NotConnected | Connected


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionClosure:
    """The client has closed the connection of a member's last request. A closure is kept also when the member has sent
    a request on another connection, because it shows that the connections of several members were closed together."""

    closed_at_ms: int
    grace_ms: int
    """The member's connection grace, by the configs at that time: how long it had to send another request."""
    group_size: int
    """The number of members at that time."""


# -- the session of a member -------------------------------------------------------------------------------------------


class ResponseContents(NamedTuple):
    """The values that responses to a member report. A response that leaves a field out confirms its last value."""

    jobs: Jobs
    leader_epoch: LeaderEpoch
    leader_url: WorkerUrl
    session_timeout_ms: int
    chosen_computation: MemberChosenToCompute | None
    """The computation for which the member was chosen, until it has requested the state of the group."""

    def has_news_since(self, sent: "ResponseContents | None") -> bool:
        """Whether these contents differ from ``sent``, the contents of the responses to the member so far (None: it has
        received none). The end of a computation is no news."""
        return sent is None or (self != sent and self != sent._replace(chosen_computation=None))


class ResponseWithoutNews(NamedTuple):
    """A response that contains no news. The next heartbeat of the member gets the same one if it reports no change and
    the group has not changed."""

    response: HeartbeatResponse
    record_count: int
    """How many records had been applied to the group (`Group.record_count`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Revocation:
    """Jobs that were revoked from a member in one step, as far as the member has not given them back."""

    revoked_at_ms: int
    unreleased_jobs: Jobs


@dataclass(slots=True, kw_only=True)
class Session:
    """The soft state of one member since the last load."""

    ends_at_ms: int = 0
    """The end of the session, unless another request arrives."""
    request_number: int = 0
    """The number of the member's last request."""
    config_offset: ConfigOffset = ConfigOffset(-1)
    """How far the worker has read the config topic."""
    config_topic_id: bytes | None = None
    """The topic id of the worker's config topic, 16 bytes; None if the member has not sent it."""
    connection: ConnectionState = NotConnected()
    held_heartbeat: Heartbeat | None = None
    """The heartbeat whose response is held."""
    sent_contents: ResponseContents | None = None
    """The contents of the responses to the member so far; None before the first response."""
    has_confirmed_all_responses: bool = False
    """Whether the last request of the member shows that it has processed all responses so far. A request with all
    fields does not show this: a member sends all fields on a new connection, and while it waits for a response."""
    response_without_news: ResponseWithoutNews | None = None
    """The last response to the member; None if the response contained news, or the step wrote a record."""
    revocations: tuple[Revocation, ...] = ()
    """The jobs that the member has to give back, ordered by the time of their revocation."""
