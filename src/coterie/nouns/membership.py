"""What a worker's member and its herder exchange, whatever protocol the group speaks.

`member` makes the events out of the protocol's messages, and `herder` takes them; neither room knows the other. A
``token`` carries what only one protocol knows: it is opaque to all but the module that knows that protocol.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from coterie.nouns.ids import ConfigOffset, Generation, InstanceId, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, Jobs


class MemberState(StrEnum):
    """How far a worker is in its group's rounds, as Connect names it."""

    UNJOINED = "UNJOINED"
    PREPARING_REBALANCE = "PREPARING_REBALANCE"
    """It has asked to join, and waits for the other members."""
    COMPLETING_REBALANCE = "COMPLETING_REBALANCE"
    """All members have joined, and it waits for its assignment."""
    STABLE = "STABLE"


# -- what a leader's herder reads of the members, and decides for them ------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberReport:
    """What one member reported of itself when it joined."""

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
    """What the leader decided for one member: only what is newly assigned and what is revoked."""

    assigned: Jobs = NO_JOBS
    revoked: Jobs = NO_JOBS


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """The leader's answer to :class:`AssignmentWanted`."""

    config_offset: ConfigOffset
    """How far the config log was read for these assignments; with ``has_config_mismatch``: how far it must be read."""
    assignments: Mapping[MemberId, MemberAssignment]
    """Of every member that was reported."""
    delay_ms: int = 0
    """When the members have to join again at the latest; 0 means no such time."""
    has_config_mismatch: bool = False
    """The leader's config log lags: no member's assignment changes in this round."""


# -- orders of the herder to its member -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribe:
    """What the next join reports, ordered again whenever it changes. The first order makes the member join; after a
    loss, an order that owns no job does."""

    config_offset: ConfigOffset
    owned: Jobs
    draining: bool = False
    """This worker leaves for good: its jobs move away while it still runs them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejoin:
    """Ask for a round; the work goes on meanwhile."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Install:
    """The leader's answer to the :class:`AssignmentWanted` of ``token``; dropped when the group has moved on."""

    token: object
    computed: Computed


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandon:
    """Give the place up, because the herder is stuck or cannot start its jobs; `Lost` follows. The member joins again
    after a `Subscribe` with nothing owned."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """Leave the group; what was owned has stopped before → GroupLeft."""

    reason: str
    for_good: bool = False
    """A static member sends a LeaveGroup, too: the group must not wait for it."""


MembershipOrder: TypeAlias = Subscribe | Rejoin | Install | Abandon | Leave


# -- events for the herder --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberStateChanged:
    """The member has come that far in a round; the work goes on. The end of a round is :class:`Assigned`."""

    state: MemberState


@dataclass(frozen=True, slots=True, kw_only=True)
class MustReleaseAll:
    """A round has begun that this worker joins only when it owns nothing: the herder stops everything, and tells the
    membership so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentWanted:
    """This worker leads: its herder has to compute the assignments of all ``members``."""

    token: object
    """Handed back with the answer."""
    member_id: MemberId
    """This worker's own."""
    members: Mapping[MemberId, MemberReport]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """This worker's assignment."""

    member_id: MemberId
    epoch: int
    """Of the assignment: in a classic group its generation."""
    jobs: Jobs
    revoked: Jobs = NO_JOBS
    is_whole: bool = False
    """``jobs`` replaces all that the worker had. Otherwise ``jobs`` is added, and ``revoked`` is taken away."""
    leader: MemberId
    leader_url: WorkerUrl
    config_offset: ConfigOffset
    """How far the config log has to be read before the assigned jobs may start."""
    token: object


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvedUntil:
    """The coordinator counted this worker as a member when it answered a request; so its work may run on."""

    until_ms: int
    """On the steady clock: when the request was sent, plus `Lease.proved_ms`."""
    session_timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """This worker may no longer run anything: it was removed, or cannot reach its coordinator in time. The member joins
    again when the herder tells it that nothing is owned."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipRefused:
    """The group will never take this worker with its current settings: the worker stops, leaves and exits with
    ``reason``, which says what to set instead. The member sends no further requests, except to leave."""

    reason: str


MembershipEvent: TypeAlias = (
    MemberStateChanged | MustReleaseAll | AssignmentWanted | Assigned | ProvedUntil | Lost | MembershipRefused
)


# -- from one life of a process to the next ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceHandover:
    """A worker's place in its group, which one life of its process hands on to the next.

    A process that executes itself anew is the same member to its group, as long as its heartbeats go on within the
    session: no round, no delay, no job that moves.
    """

    member_id: MemberId
    generation: Generation
    protocol: str
    """What the group speaks, as ``connect.protocol`` names it."""
    leader: MemberId
    leader_url: WorkerUrl
    config_offset: ConfigOffset
    """How far the leader had read the config log when it assigned ``jobs``."""
    jobs: Jobs
    deferred_until_ms: int | None = None
    """End of the scheduled rebalance delay, if one runs, on the machine's steady clock, which both lives share."""
    may_have_missed_vote: bool = False
    """A round was under way: the group may have had a vote that the next life does not know of."""
    must_ask_for_round: bool = False
    """The next life has to ask for a round: it leads and remembers nothing, or something changed that no join said."""
