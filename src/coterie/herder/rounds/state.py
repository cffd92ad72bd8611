"""What a herder remembers of its group's rounds. Each field is assigned in one module, which its comment names."""

from dataclasses import dataclass
from typing import TypeAlias

from coterie.assignors.memory import Memory
from coterie.herder.config_state import UNREAD
from coterie.herder.group_view import Dealt
from coterie.nouns.ids import ConfigOffset, Generation
from coterie.nouns.jobs import Jobs
from coterie.nouns.membership import AssignmentWanted, PlaceHandover
from coterie.wire.connect import ConnectProtocol

# -- why this worker has to ask for a round ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterRelease:
    """Jobs were revoked that others can have once they are released here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterReading:
    """The last round failed because this worker's config log lagged."""

    end: ConfigOffset
    """How far the log has to be read before the round is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForNews:
    """What this worker reports of itself has changed."""

    reason: str


RoundReason: TypeAlias = AfterRelease | AfterReading | ForNews


class Rounds:
    """As a member of its group, leader or not."""

    def __init__(self, handover: PlaceHandover | None) -> None:
        # `following`
        self.protocol = ConnectProtocol.named(handover.protocol) if handover is not None else None
        """What the group had voted for in the last round that ended here; None before the first."""
        self.completed = handover.generation if handover is not None else Generation(-1)
        """The last generation that ended here with an assignment; a failed round changes nothing of who has what."""
        self.deferred_until_ms = handover.deferred_until_ms if handover is not None else None
        """When the scheduled rebalance delay of the last round ends; None: no delay runs."""
        # `asking`
        self.pending_reasons: tuple[RoundReason, ...] = ()
        """Why this worker has yet to ask for a round; at most one reason of each kind."""
        if handover is not None and handover.must_ask_for_round:
            self.pending_reasons = (ForNews(reason="this worker's process was relaunched"),)
        self.is_asked = False
        """A round was asked for here, and has not ended yet."""
        # `bursts`
        self.assigned_for: Jobs | None = None
        """The configured jobs for which the last round was computed; None while they are not known."""
        self.window_ends_ms: int | None = None
        """Until when changes of the set of jobs are gathered for one round; None when there is none to ask for."""
        self.compared_at = UNREAD
        """How far the config log was read when the configured jobs were last compared with ``assigned_for``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Computing:
    """A round that waits for this leader, which waits for its config log."""

    wanted: AssignmentWanted
    look: int | None = None
    """Which of the leader's looks for the log's end is under way, because a member reported that it has read more."""
    end: ConfigOffset | None = None
    """What the look found."""


class Lead:
    """As the leader; all of it is assigned in `leading`."""

    def __init__(self) -> None:
        self.computing: Computing | None = None
        self.looks = 0
        """How often the log's end was asked for."""
        self.memory = Memory()
        """What the assignor remembers of the rounds computed here."""
        self.moves_at_ms: int | None = None
        """When the leader asks for the next round, because the last one could not make all moves; None when it did."""
        self.dealt: Dealt | None = None
        """The last round that was computed here, as it is shown."""
