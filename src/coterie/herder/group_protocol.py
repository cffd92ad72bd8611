"""What differs between the group protocols, for the rest of the herder.

In a classic group (`rounds`), workers join rounds, and the leader computes the assignments. In a connect group
(`targets`), the coordinator reconciles the workers with a target assignment that one of them computes. The setting
``group.protocol`` selects one of the two modules; all other modules of the herder call it by :func:`protocol_of`.
"""

from typing import Protocol

from coterie.herder.requests.refusals import RequestRefused
from coterie.herder.requests.views import GroupView
from coterie.herder.rounds import protocol as rounds_protocol
from coterie.herder.state import Herder, Turn
from coterie.herder.targets import protocol as targets_protocol
from coterie.herder.timers import GroupTimer
from coterie.nouns.ids import LogPosition
from coterie.nouns.membership import GroupProtocolName, MembershipEvent


class GroupProtocol(Protocol):
    """The herder's part of a group protocol; a module implements it.

    In a connect group, `compute_assignment_if_due`, `report_released_jobs`, `store_worker_state_change` and
    `report_worker_state_changes` do nothing; `request_view_unless_ready` and `must_stay_after_drain` return False;
    `drain_unreportable_reason`, `rebalance_delay_ends_ms` and `completed_rebalances` return None. In a classic group,
    `notify_rebalance_listeners` does nothing, and `request_view_unless_ready` returns True.
    `drain_unreportable_reason` is not the reason why a reported drain makes no progress.
    """

    def resume_inherited_membership(self, turn: Turn) -> None:
        """The runtime is open and both logs are read. If this worker continues the membership of its previous
        process: in a classic group, set the timer of the scheduled rebalance delay that the previous process has
        received; in a connect group, begin to report the configured jobs if this worker is the leader. Does nothing if
        there is nothing to continue."""
        ...

    def on_membership_event(self, turn: Turn, event: MembershipEvent) -> None:
        """Process an event of the member machine, other than `LeaseRenewed` and `MembershipRefused`."""
        ...

    def on_config_log_end_lookup_ended(
        self, turn: Turn, log_end_lookup_id: int, end_offset: LogPosition | None
    ) -> None:
        """The lookup of the config log's end offset for this protocol (`LogEndLookupForAssignment`) has ended;
        ``end_offset`` is None if the log could not be reached."""
        ...

    def on_timer(self, turn: Turn, timer: GroupTimer) -> None:
        """A timer of this protocol has fired."""
        ...

    def compute_assignment_if_due(self, turn: Turn) -> None:
        """Compute the assignment that this leader of a classic group has to compute, if there is one and all its input
        is available. Does nothing in a connect group, where a computation begins when it is requested."""
        ...

    def notify_rebalance_listeners(self, turn: Turn) -> None:
        """Let the plug-ins that listen to this worker's rebalances receive the jobs that were started and those that
        have stopped. Does nothing in a classic group."""
        ...

    def report_released_jobs(self, turn: Turn) -> None:
        """Request a round when revoked jobs have stopped, so that other workers receive them. Does nothing in a connect
        group, whose member reports stopped jobs after each `SetWorkerState` order."""
        ...

    def report_configured_jobs_if_changed(self, turn: Turn) -> None:
        """If the set of configured jobs has changed: in a classic group, request a round when the window that collects
        such changes has ended; in a connect group, the leader reports the jobs to the coordinator."""
        ...

    def store_worker_state_change(self, turn: Turn, reason: str) -> None:
        """A state has changed that this worker reports when it joins a classic group: it drains, drains no longer, or
        starts no new jobs. Store ``reason``, a text that names the change, until :func:`report_worker_state_changes`
        requests the round. Does nothing in a connect group, where the next `SetWorkerState` order contains the
        change."""
        ...

    def report_worker_state_changes(self, turn: Turn) -> None:
        """In a classic group, request a round for the changes that :func:`store_worker_state_change` has stored. Does
        nothing in a connect group."""
        ...

    def must_stay_after_drain(self, herder: Herder) -> bool:
        """Whether a draining worker that owns no job must stay in the group a little longer, so that its former jobs
        are assigned to other workers."""
        ...

    def protocol_name(self, herder: Herder) -> str | None:
        """The protocol of the group, as text for operators; None before this worker has received it."""
        ...

    def are_requests_signed(self, herder: Herder) -> bool:
        """Whether workers sign their requests to the leader (KIP-507). False before this worker has received the
        protocol."""
        ...

    def are_repeated_writes_deduplicated(self, herder: Herder) -> bool:
        """Whether a leader of this group performs a repeated write only if the config log does not contain the id of
        its request. True if no worker of Kafka Connect can be a member. False before this worker has received the
        protocol."""
        ...

    def drain_unreportable_reason(self, herder: Herder) -> str | None:
        """The reason why this worker's drain cannot be reported to the group, as text for an operator. None when it can
        be reported, and while this worker does not know the group's protocol yet."""
        ...

    def rebalance_delay_ends_ms(self, herder: Herder) -> int | None:
        """The end of the scheduled rebalance delay that this worker received, in ms on the monotonic clock. None when
        no delay runs, and in a connect group, whose coordinator ends the delay."""
        ...

    def completed_rebalances(self, herder: Herder) -> int | None:
        """The number of rebalances that have ended here with an assignment since this process started; None for a
        protocol that has no rounds."""
        ...

    def request_view_unless_ready(self, turn: Turn) -> bool:
        """Returns whether :func:`group_view` can be called at once: always True in a classic group, also if this worker
        has no view. False in a connect group: the group's description is requested from the coordinator, and the view
        is up to date when the event `GroupDescribed` follows."""
        ...

    def group_view(self, turn: Turn) -> GroupView | RequestRefused:
        """The view of the group from the data that this worker has; a refusal if it has none. In a classic group only
        the leader has it."""
        ...

    def exit_and_hand_over_membership(self, turn: Turn) -> None:
        """The runtime is closed and the process will execute itself again. Emit `Exit` with the membership that the
        next process continues, either at once or when the member has sent its last request."""
        ...


def protocol_of(herder: Herder) -> GroupProtocol:
    """The protocol that the worker's settings select."""
    match herder.settings.group_protocol:
        case GroupProtocolName.CLASSIC:
            return rounds_protocol
        case GroupProtocolName.CONNECT:
            return targets_protocol
