"""The state of a herder that is kept from round to round. Each field is assigned in one module, named in a comment."""

from dataclasses import dataclass
from typing import TypeAlias

from coterie.assignors.memory import Memory
from coterie.herder.config_state import UNREAD
from coterie.herder.group_view import Dealt
from coterie.nouns.ids import ConfigOffset, Generation
from coterie.nouns.jobs import Jobs
from coterie.nouns.membership import AssignmentWanted, PlaceHandover
from coterie.wire.connect import ConnectProtocol

# -- reasons for which this worker must request a round ---------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterRelease:
    """Jobs were revoked; after this worker has released them, a round can assign them to other workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterReading:
    """The last round failed because this worker's config log lagged."""

    end: ConfigOffset
    """The config log must be read to this offset before the round is requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForNews:
    """This worker's reported state has changed."""

    reason: str


RoundReason: TypeAlias = AfterRelease | AfterReading | ForNews


class Rounds:
    """The state of every member, leader or follower."""

    def __init__(self, handover: PlaceHandover | None) -> None:
        # `following`
        self.protocol = ConnectProtocol.named(handover.protocol) if handover is not None else None
        """The group's protocol in the last round that ended here; None before the first round."""
        self.completed = handover.generation if handover is not None else Generation(-1)
        """The last generation that ended here with an assignment; a failed round changes no assignment."""
        self.deferred_until_ms = handover.deferred_until_ms if handover is not None else None
        """When the scheduled rebalance delay of the last round ends; None: no delay runs."""
        # `asking`
        self.pending_reasons: tuple[RoundReason, ...] = ()
        """Why this worker must request a round, and has not requested it; at most one reason of each kind."""
        if handover is not None and handover.must_ask_for_round:
            self.pending_reasons = (ForNews(reason="this worker's process was relaunched"),)
        self.is_asked = False
        """Whether this worker has requested a round that has not ended."""
        # `bursts`
        self.assigned_for: Jobs | None = None
        """The configured jobs for which the last round was computed; None while this worker does not have them."""
        self.window_ends_ms: int | None = None
        """Until when changes of the set of jobs are collected for one round; None when no window is open."""
        self.compared_at = UNREAD
        """The config offset at which the configured jobs were last compared with ``assigned_for``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Computing:
    """A round that waits for its assignment, because this leader's config log lags."""

    wanted: AssignmentWanted
    look: int | None = None
    """The number of the running lookup of the log's end offset, which starts when a member reports that it has read
    more than this leader; None: no lookup."""
    end: ConfigOffset | None = None
    """The end offset that the lookup found."""


class Lead:
    """The state of the leader; all its fields are assigned in `leading`."""

    def __init__(self) -> None:
        self.computing: Computing | None = None
        self.looks = 0
        """The number of lookups of the log's end offset."""
        self.memory = Memory()
        """The assignor's state from the rounds computed here."""
        self.moves_at_ms: int | None = None
        """When the leader requests the next round, because the last round could not make all moves; None when it
        could."""
        self.dealt: Dealt | None = None
        """The last round that was computed here, for the group API."""
