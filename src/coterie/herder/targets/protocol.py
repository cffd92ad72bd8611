"""The protocol of connect groups, for the rest of the herder: implements `herder.group_protocol.GroupProtocol`.

The functions that compute assignments if they are due, that report released jobs, and that store or report changes of
the worker's state do nothing: the coordinator and the member do this. A drain can always be reported. This worker has
neither an end of the rebalance delay nor a number of rebalances. The view of the group is never ready: it is requested
each time. The member does not join when the runtime opens: it joins after the first `SetWorkerState` order.
"""

from coterie.herder import place
from coterie.herder.requests.refusals import Problem, RequestRefused
from coterie.herder.requests.views import GroupView
from coterie.herder.state import Herder, Turn
from coterie.herder.targets import computing, configured_jobs, description, following, listening
from coterie.herder.targets import group_view as targets_view
from coterie.herder.timers import GroupTimer
from coterie.nouns.ids import LogPosition
from coterie.nouns.membership import (
    Assigned,
    GroupDescribed,
    GroupProtocolName,
    MembershipEvent,
    MembershipLost,
    MemberStateChanged,
    SuspendMembership,
    TargetRequested,
)


def resume_inherited_membership(turn: Turn) -> None:
    details = turn.herder.targets.details
    if details is not None and turn.herder.place.is_leader_with_current_assignment:
        configured_jobs.start_reporting_if_new_leader(turn, details.leader_epoch)


def on_membership_event(turn: Turn, event: MembershipEvent) -> None:
    match event:
        case MemberStateChanged(state=state):
            place.set_rebalance_state_if_assigned(turn, state)
        case TargetRequested():
            computing.on_target_requested(turn, event)
        case GroupDescribed():
            description.on_group_described(turn, event)
        case Assigned():
            following.on_assigned(turn, event)
        case MembershipLost():
            following.on_membership_lost(turn, event)
        case _:
            raise AssertionError(f"{type(event).__name__} is no event of a connect group: this is a bug in Coterie")


def on_config_log_end_lookup_ended(turn: Turn, log_end_lookup_id: int, end_offset: LogPosition | None) -> None:
    configured_jobs.on_config_log_end_lookup_ended(turn, log_end_lookup_id, end_offset)


def on_timer(turn: Turn, timer: GroupTimer) -> None:
    assert timer == "configured end", (
        f"the timer `{timer}` of classic groups has fired in a connect group: this is a bug in Coterie"
    )
    configured_jobs.repeat_lookup_if_needed(turn)


def compute_assignment_if_due(turn: Turn) -> None:
    """Does nothing: :func:`computing.on_target_requested` orders the computation as soon as the coordinator requests
    it."""


def notify_rebalance_listeners(turn: Turn) -> None:
    listening.announce_job_changes(turn)


def report_released_jobs(turn: Turn) -> None:
    """Does nothing: the member reports the jobs that have stopped after each `SetWorkerState` order."""


def report_configured_jobs_if_changed(turn: Turn) -> None:
    configured_jobs.report_if_changed(turn)


def store_worker_state_change(turn: Turn, reason: str) -> None:
    """Does nothing: the next `SetWorkerState` order contains the change."""


def report_worker_state_changes(turn: Turn) -> None:
    """Does nothing: the next `SetWorkerState` order contains the changes."""


def must_stay_after_drain(herder: Herder) -> bool:
    """False: the last heartbeat of a leaving member releases all its jobs."""
    return False


def protocol_name(herder: Herder) -> str | None:
    return GroupProtocolName.CONNECT.value


def are_requests_signed(herder: Herder) -> bool:
    return True


def are_repeated_writes_deduplicated(herder: Herder) -> bool:
    return True


def drain_unreportable_reason(herder: Herder) -> str | None:
    return None


def rebalance_delay_ends_ms(herder: Herder) -> int | None:
    """None: the coordinator, not the worker, ends the delay in a connect group."""
    return None


def completed_rebalances(herder: Herder) -> int | None:
    return None


def request_view_unless_ready(turn: Turn) -> bool:
    description.request_description(turn)
    return False


def group_view(turn: Turn) -> GroupView | RequestRefused:
    herder = turn.herder
    if herder.targets.description is None:
        why = herder.targets.description_error or "it was not requested yet"
        message = f"The coordinator has sent no description of the group: {why}; retry the request"
        return RequestRefused(problem=Problem.NO_LEADER, message=message)
    return targets_view.build_group_view(
        herder.targets.description, configured=herder.config.jobs(), policy=herder.settings.rebalance_policy
    )


def exit_and_hand_over_membership(turn: Turn) -> None:
    turn.emit(SuspendMembership())
