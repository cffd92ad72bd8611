"""The state of a herder that remains from one round to the next. A comment names the module that assigns each field."""

from dataclasses import dataclass
from typing import TypeAlias

from coterie.assignors.assignor_state import AssignorState
from coterie.herder.config_state import CONFIG_OFFSET_BEFORE_FIRST_LINE
from coterie.herder.group_view import RoundSnapshot
from coterie.nouns.ids import ConfigOffset, GenerationId, LogPosition
from coterie.nouns.jobs import NO_JOBS, Jobs
from coterie.nouns.membership import AssignmentsRequested, ClassicMembershipHandover
from coterie.wire.connect import ConnectProtocol

# -- reasons for which this worker must request a round ---------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RejoinAfterJobsReleased:
    """Revoked jobs, or the jobs that an eager round did not assign, need another round, which assigns them. It is
    requested when this worker has released its revoked jobs. In a group with protocol static
    (:func:`.protocol_features.may_rejoin_after_partial_release`) a round is also requested for those that it has
    released while others still stop."""

    unreported_releases: Jobs = NO_JOBS
    """The revoked jobs that this worker's last join reported as owned, and for whose release no round was
    requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RejoinAfterConfigLogRead:
    """The last round failed because the leader's config log lagged: the leader, and each member whose config log also
    lagged, requests another round."""

    end_offset: ConfigOffset
    """The round is requested when this worker has read the config log to this offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RejoinForStateChange:
    """A state that this worker reports when it joins has changed, for example that it drains."""

    reason: str
    """The reason that the request of the round contains."""


RejoinReason: TypeAlias = RejoinAfterJobsReleased | RejoinAfterConfigLogRead | RejoinForStateChange


class HerderClassicGroupState:
    """What a worker in a classic group keeps from one round to the next, as leader or as follower. What only the leader
    keeps is in `LeaderState`."""

    def __init__(self, handover: ClassicMembershipHandover | None) -> None:
        # `following`
        self.protocol = ConnectProtocol.from_setting(handover.protocol) if handover is not None else None
        """The group's protocol in the last round that ended here; None before the first round."""
        self.last_completed_generation = handover.generation if handover is not None else GenerationId(-1)
        """The last generation that ended here with an assignment, -1 for none. A failed round changes no assignment and
        is not counted."""
        self.completed_rounds = 0
        """The number of rounds that have ended here with an assignment since this process started."""
        self.rebalance_delay_ends_ms = handover.rebalance_delay_ends_ms if handover is not None else None
        """When the scheduled rebalance delay of the last assignment ends, in ms on the monotonic clock; None when no
        delay runs."""
        # `rejoin`
        self.rejoin_reasons: tuple[RejoinReason, ...] = ()
        """Why this worker must request a round that it has not requested yet; at most one reason of each kind."""
        if handover is not None and handover.must_start_rebalance:
            self.rejoin_reasons = (RejoinForStateChange(reason="this worker's process was relaunched"),)
        self.is_rejoin_requested = False
        """Whether this worker has requested a round that has not ended."""
        # `rebalance_window`
        self.computed_round_jobs: Jobs | None = None
        """The configured jobs for which the last round was computed; None while this worker does not have this set,
        because another leader computed the round."""
        self.window_ends_ms: int | None = None
        """When the window in which changes of the set of jobs are collected for one round ends, in ms on the monotonic
        clock; None when no window is open."""
        self.compared_config_offset = CONFIG_OFFSET_BEFORE_FIRST_LINE
        """The config offset at which the configured jobs were last compared with ``computed_round_jobs``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingAssignment:
    """A round whose assignment this leader has to compute. It waits while this leader has read less of the config log
    than a member."""

    request: AssignmentsRequested
    """The member's order to compute the assignment, with the reports of all members."""
    log_end_lookup_id: int | None = None
    """The number of the lookup of the log's end offset for this round, which starts when a member reports a higher
    config offset than this leader's; None: no lookup."""
    end_offset: LogPosition | None = None
    """The end offset that the lookup found; None before that."""


class LeaderState:
    """What the leader keeps from one round to the next; all its fields are assigned in `leading`."""

    def __init__(self) -> None:
        self.pending_assignment: PendingAssignment | None = None
        """The round whose assignment this leader has to compute; None if there is none."""
        self.last_lookup_id = 0
        """The number of lookups of the log's end offset that this worker has started."""
        self.assignor_state = AssignorState()
        """The assignor's state after the last round that was computed here."""
        self.moves_at_ms: int | None = None
        """When this leader requests the next round, in ms on the monotonic clock, because the last round had to
        postpone moves of jobs; None when it postponed none."""
        self.last_round: RoundSnapshot | None = None
        """The last round that was computed here, for the group API and for the reasons of unassigned jobs."""
