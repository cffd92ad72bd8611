"""The protocol of classic groups, for the rest of the herder: implements `herder.group_protocol.GroupProtocol`.

Listeners of rebalances receive nothing. The view of the group is always ready, and only the leader has it. The member
does not join when the runtime opens: it joins after the first `SetWorkerState` order.
"""

from coterie.herder import place
from coterie.herder.messages import Exit
from coterie.herder.requests.refusals import RequestRefused
from coterie.herder.requests.views import GroupView
from coterie.herder.rounds import following, leading, protocol_features, rebalance_window, rejoin
from coterie.herder.state import Herder, Turn
from coterie.herder.timers import GroupTimer
from coterie.nouns.ids import LogPosition
from coterie.nouns.member_state import MemberState
from coterie.nouns.membership import (
    Assigned,
    AssignmentsRequested,
    MembershipEvent,
    MembershipLost,
    MemberStateChanged,
    StopAllBeforeJoin,
)


def resume_inherited_membership(turn: Turn) -> None:
    following.resume_inherited_membership(turn)


def on_membership_event(turn: Turn, event: MembershipEvent) -> None:
    match event:
        case MemberStateChanged(state=MemberState.COMPLETING_REBALANCE as state):
            place.mark_round_running(turn, state)
        case MemberStateChanged(state=state):
            following.on_round_begun(turn, state)
        case StopAllBeforeJoin():
            following.on_stop_all_before_join(turn)
        case AssignmentsRequested():
            leading.on_assignments_requested(turn, event)
        case Assigned():
            following.on_assigned(turn, event)
        case MembershipLost():
            following.on_membership_lost(turn, event)
        case _:
            raise AssertionError(f"{type(event).__name__} is no event of a classic group: this is a bug in Coterie")


def on_config_log_end_lookup_ended(turn: Turn, log_end_lookup_id: int, end_offset: LogPosition | None) -> None:
    leading.on_config_log_end_lookup_ended(turn, log_end_lookup_id, end_offset)


def on_timer(turn: Turn, timer: GroupTimer) -> None:
    match timer:
        case "assign":
            leading.end_round_without_changes(turn)
        case "delay over" | "moves":
            following.request_rejoin_if_timers_due(turn)
        case "changed jobs":
            pass  # `report_configured_jobs_if_changed`, which follows, checks the deadline.
        case "configured end":
            raise AssertionError(
                "the timer `configured end` of connect groups has fired in a classic group: this is a bug in Coterie"
            )


def compute_assignment_if_due(turn: Turn) -> None:
    leading.compute_assignment_if_ready(turn)


def notify_rebalance_listeners(turn: Turn) -> None:
    """Does nothing: classic groups have no listeners."""


def report_released_jobs(turn: Turn) -> None:
    rejoin.request_rejoin_after_release_or_read(turn)


def report_configured_jobs_if_changed(turn: Turn) -> None:
    rebalance_window.update_window_and_rejoin_when_ended(turn)


def store_worker_state_change(turn: Turn, reason: str) -> None:
    rejoin.store_state_change(turn, reason)


def report_worker_state_changes(turn: Turn) -> None:
    rejoin.request_rejoin_to_report_worker_state(turn)


def must_stay_after_drain(herder: Herder) -> bool:
    return rejoin.must_await_round_before_leaving(herder)


def protocol_name(herder: Herder) -> str | None:
    return protocol_features.protocol_name(herder)


def are_requests_signed(herder: Herder) -> bool:
    return protocol_features.are_requests_signed(herder)


def are_repeated_writes_deduplicated(herder: Herder) -> bool:
    return protocol_features.are_repeated_writes_deduplicated(herder)


def drain_unreportable_reason(herder: Herder) -> str | None:
    return protocol_features.drain_unreportable_reason(herder)


def rebalance_delay_ends_ms(herder: Herder) -> int | None:
    return herder.rounds.rebalance_delay_ends_ms


def completed_rebalances(herder: Herder) -> int | None:
    return herder.rounds.completed_rounds


def request_view_unless_ready(turn: Turn) -> bool:
    return True


def group_view(turn: Turn) -> GroupView | RequestRefused:
    return leading.group_view_of(turn) or place.not_leader_refusal(turn.herder)


def exit_and_hand_over_membership(turn: Turn) -> None:
    handover = following.membership_handover(turn.herder)
    turn.emit(Exit(exit_code=0, reason="it relaunches itself, as ordered", relaunches=True, handover=handover))
