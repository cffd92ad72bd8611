"""How a member keeps its membership, and how the membership ends: heartbeats, the lease, loss, leaving, the
back-off."""

from dataclasses import replace

from coterie.engine.backoff import doubled_delay_ms
from coterie.member.classic.messages import Event, HeartbeatRequest, HeartbeatResponse, LeaveRequest, Request, Timer
from coterie.member.classic.permanent_errors import permanent_error_reason
from coterie.member.classic.state import (
    NO_MEMBER,
    AssignmentReceived,
    AwaitingWorkerState,
    ComputingAssignments,
    HasLeft,
    InGroup,
    Leaving,
    Member,
    PriorMemberStatus,
    Refused,
    StoppingAllJobs,
    WaitingToJoin,
    WasInGroup,
)
from coterie.member.classic.turn import Turn
from coterie.member.events import (
    CancelTimer,
    MemberEnded,
    RequestFailed,
    ResponseReceived,
    SetTimer,
    TimerFired,
    WriteLogMessage,
)
from coterie.member.in_flight import InFlight
from coterie.member.leadership import LeadershipCheck
from coterie.nouns.membership import LeadershipConfirmed, LeaseRenewed, MembershipLost, MembershipRefused
from coterie.wire.errors import ErrorCode

LEAVE_TIMEOUT_MS = 1_000
"""How long the member waits for the response to LeaveGroup. If the request is lost, the group removes the member at the
end of its session."""

_ALL_TIMERS: tuple[Timer, ...] = ("heartbeat", "lease", "answer", "retry", "held", "leave")


# -- heartbeats and the lease -----------------------------------------------------------------------------------------


def shorten_heartbeat_interval_for_next_round(turn: Turn) -> None:
    """Send heartbeats at the shorter interval from now on, for ``next_round_window_ms``. Called after every assignment.

    When a member has released a revoked job, it starts another rebalance, and the job runs nowhere until all members
    have joined this rebalance. A member learns only from the response to its next heartbeat that the rebalance has
    begun. It is not told which jobs other members must release, so every member shortens its heartbeat interval after
    every rebalance.
    """
    member = turn.member
    assert isinstance(member.place, InGroup)
    member.place = replace(
        member.place, next_round_expected_until_ms=turn.now_ms + member.settings.next_round_window_ms
    )
    schedule_heartbeat_after_current_interval(turn)


def schedule_heartbeat_after_current_interval(turn: Turn) -> None:
    """Set the timer of the next heartbeat, one interval from now: the shorter interval while a further rebalance is
    expected."""
    member, settings = turn.member, turn.member.settings
    interval_ms = settings.heartbeat_interval_ms
    if isinstance(member.place, InGroup) and turn.now_ms < member.place.next_round_expected_until_ms:
        interval_ms = min(interval_ms, settings.rebalance_heartbeat_interval_ms)
    turn.emit(SetTimer(timer="heartbeat", at_ms=turn.now_ms + interval_ms))


def send_heartbeat_unless_last_unanswered(turn: Turn) -> None:
    """Send a heartbeat, and set the timer of the next one. Outside the group, do nothing. While the last heartbeat has
    waited for its response for less than ``LeaseDurations.heartbeat_timeout_ms``, only set the timer."""
    member = turn.member
    place = member.place
    if not isinstance(place, InGroup):
        return
    schedule_heartbeat_after_current_interval(turn)
    timeout_ms = member.settings.lease_durations.heartbeat_timeout_ms
    if place.unanswered_heartbeat is not None and turn.now_ms - place.unanswered_heartbeat.sent_at_ms < timeout_ms:
        return  # The response may still arrive; after this time one more heartbeat fits in before the lease ends.
    heartbeat = HeartbeatRequest(
        group_id=member.settings.group_id,
        member_id=place.member_id,
        instance_id=member.settings.instance_id,
        generation=place.generation,
    )
    member.place = replace(place, unanswered_heartbeat=turn.send(heartbeat))


def on_heartbeat_response(turn: Turn, in_flight: InFlight[HeartbeatRequest], response: HeartbeatResponse) -> None:
    """Process the response to a heartbeat: renew the lease and confirm an ordered leadership check, request a round, or
    end the membership. After an error that a retry may mend, only log the error."""
    member = turn.member
    assert isinstance(member.place, InGroup)
    match response.error:
        case ErrorCode.none:
            renew_lease_and_clear_failures(turn, in_flight)
            _confirm_or_recheck_leadership_if_ordered(turn, in_flight)
        case ErrorCode.rebalance_in_progress | ErrorCode.illegal_generation as error:
            # ILLEGAL_GENERATION is also sent to members only, but renews no session.
            if error is ErrorCode.rebalance_in_progress:
                renew_lease_and_clear_failures(turn, in_flight)
            # An outstanding join or sync will get the same error in its response, as will a heartbeat of a newer
            # generation.
            if in_flight.request.generation == member.place.generation and isinstance(
                member.round, AssignmentReceived | ComputingAssignments
            ):
                if isinstance(member.round, ComputingAssignments):
                    member.round = WaitingToJoin()
                member.rejoin_reason = member.rejoin_reason or f"the coordinator responded {error.name}"
        case ErrorCode.unknown_member_id:
            on_unknown_member_id(turn)
        case error if (reason := permanent_error_reason(member, error)) is not None:
            lose_membership_permanently(turn, reason)
        case error:
            turn.emit(
                WriteLogMessage(
                    text=f"The group's coordinator responded to a heartbeat with {error.name}; this worker sends the "
                    "next heartbeat as usual"
                )
            )


def start_leadership_check(turn: Turn, token: int) -> None:
    """Store the leadership check ``token`` that the herder has ordered, and send a heartbeat at once; if the last
    heartbeat has no response yet, send one when its response arrives. The response to the heartbeat that was sent after
    this order confirms that this worker is the leader."""
    member = turn.member
    member.leadership_check = LeadershipCheck(order_token=token, ordered_after_request_id=next(member.request_ids))
    send_heartbeat_unless_last_unanswered(turn)


def _confirm_or_recheck_leadership_if_ordered(turn: Turn, in_flight: InFlight[HeartbeatRequest]) -> None:
    """Called when the heartbeat ``in_flight`` was accepted. If the herder has ordered a leadership check, and the
    heartbeat was sent after the order, report to the herder that this worker is the leader; if the heartbeat was sent
    before the order, send the next one at once. Does nothing without an order, on a follower, or if the heartbeat has
    another generation than the one that this worker leads."""
    member, check = turn.member, turn.member.leadership_check
    assert isinstance(member.place, InGroup)
    if check is None or not member.is_leader_between_rounds or in_flight.request.generation != member.place.generation:
        return
    if check.precedes_request(in_flight.id):
        member.leadership_check = None
        turn.emit(LeadershipConfirmed(token=check.order_token))
    else:
        send_heartbeat_unless_last_unanswered(turn)


def renew_lease_and_clear_failures(turn: Turn, in_flight: InFlight[Request]) -> None:
    """Extend the lease, the time in which this worker may run its jobs: it ends ``LeaseDurations.duration_ms`` after
    the answered request was sent. The stored failures are cleared."""
    member = turn.member
    member.failures.clear()
    place = member.place
    assert isinstance(place, InGroup)
    lease_ends_ms = in_flight.sent_at_ms + member.settings.lease_duration_ms
    if place.lease_ends_ms is None or lease_ends_ms > place.lease_ends_ms:
        member.place = replace(place, lease_ends_ms=lease_ends_ms)
        turn.emit(SetTimer(timer="lease", at_ms=lease_ends_ms))
        turn.emit(LeaseRenewed(lease_ends_ms=lease_ends_ms, session_timeout_ms=member.settings.session_timeout_ms))


def lose_membership_if_lease_over(turn: Turn) -> bool:
    """End the membership until the next join if the lease has ended. Returns whether it has; False
    outside of the group."""
    place = turn.member.place
    lease_ends_ms = place.lease_ends_ms if isinstance(place, InGroup) else None
    if lease_ends_ms is None or turn.now_ms < lease_ends_ms:
        return False
    waited_ms = turn.now_ms - lease_ends_ms + turn.member.settings.lease_duration_ms
    reason = f"the coordinator has not responded to any request sent in the last {waited_ms} ms"
    lose_membership_until_rejoin(turn, reason, has_lease_ended=True)
    return True


def schedule_rejoin_after_backoff(turn: Turn) -> None:
    """Join again after a back-off, which doubles with each retry since the last assignment."""
    member = turn.member
    settings = member.settings
    backoff_ms = doubled_delay_ms(settings.retry_backoff_ms, member.retries, settings.retry_backoff_max_ms)
    member.retries += 1
    until_ms = turn.now_ms + backoff_ms
    if isinstance(member.round, StoppingAllJobs):
        member.round = StoppingAllJobs(backoff_ends_ms=until_ms)
    else:
        member.round = WaitingToJoin(backoff_ends_ms=until_ms)
    turn.emit(SetTimer(timer="retry", at_ms=until_ms))


# -- endings ----------------------------------------------------------------------------------------------------------


def on_unknown_member_id(turn: Turn) -> None:
    """Handle UNKNOWN_MEMBER_ID: a worker in the group loses its membership; a worker outside the group joins again
    after a back-off. The member id is cleared, and a static member checks again for a prior member."""
    member = turn.member
    if isinstance(member.place, InGroup):
        lose_membership_until_rejoin(turn, "the coordinator has removed this member (UNKNOWN_MEMBER_ID)")
    else:
        schedule_rejoin_after_backoff(turn)
    clear_member_id(member)
    member.prior_member = PriorMemberStatus.UNCHECKED


def clear_member_id(member: Member) -> None:
    """Forget the member id of a member outside the group: the next join requests a new one."""
    assert not isinstance(member.place, InGroup)
    member.place = replace(member.place, member_id=NO_MEMBER)


def lose_membership_until_rejoin(turn: Turn, reason: str, *, has_lease_ended: bool = False) -> None:
    """End the membership: the herder stops all jobs, and the member joins again when no job is owned. The member id is
    kept. A later response to a request that was sent before has no effect."""
    member = turn.member
    if isinstance(member.place, InGroup):
        member.place = WasInGroup(member_id=member.place.member_id)
    if not isinstance(member.round, AwaitingWorkerState):
        member.round = StoppingAllJobs()
    member.rejoin_reason = None
    for timer in _ALL_TIMERS:
        turn.emit(CancelTimer(timer=timer))
    turn.emit(MembershipLost(reason=reason, has_lease_ended=has_lease_ended))


def lose_membership_permanently(turn: Turn, reason: str) -> None:
    """End the membership, and send no further join, because no retry can succeed. The herder shuts the worker down."""
    lose_membership_until_rejoin(turn, reason)
    if turn.member.ending is None:
        turn.member.ending = Refused(reason=reason)
        turn.emit(MembershipRefused(reason=reason))


def on_leave_and_rejoin(turn: Turn, reason: str) -> None:
    """Leave the group, as Kafka's clients do when they are not polled, and join again when all jobs have stopped. Does
    nothing if the membership is lost already, or the group has refused this worker.

    A static member sends no LeaveGroup: the group keeps its membership until it rejoins or its session ends.
    """
    member = turn.member
    is_lost = isinstance(member.round, StoppingAllJobs) and not isinstance(member.place, InGroup)
    if member.ending is not None or is_lost:
        return
    is_static = member.settings.instance_id is not None
    if member.member_id and not is_static:
        turn.send(LeaveRequest(group_id=member.settings.group_id, member_id=member.member_id, reason=reason))
    lose_membership_until_rejoin(turn, reason)
    if not is_static:
        clear_member_id(member)


def on_leave(turn: Turn, reason: str, *, is_permanent: bool = False) -> None:
    """Leave the group and end. A LeaveGroup request is sent by a dynamic member, and by a static member with
    ``is_permanent``; without a member id, none is sent."""
    member = turn.member
    for timer in _ALL_TIMERS:
        turn.emit(CancelTimer(timer=timer))
    instance_id = member.settings.instance_id
    if not member.member_id or (instance_id is not None and not is_permanent):
        # A static member is expected to return: the coordinator keeps its membership and jobs until its session ends.
        complete_leave(turn)
        return
    request = LeaveRequest(
        group_id=member.settings.group_id, member_id=member.member_id, instance_id=instance_id, reason=reason
    )
    member.ending = Leaving(in_flight=turn.send(request))
    turn.emit(SetTimer(timer="leave", at_ms=turn.now_ms + LEAVE_TIMEOUT_MS))


def on_event_while_leaving(turn: Turn, leaving: Leaving, event: Event) -> None:
    """End when the response to LeaveGroup arrives, its request fails, or `LEAVE_TIMEOUT_MS` is over. All other events
    are ignored."""
    in_flight = leaving.in_flight
    match event:
        case ResponseReceived(id=id_) | RequestFailed(id=id_) if id_ == in_flight.id:
            complete_leave(turn)
        case TimerFired(timer="leave") if turn.now_ms >= in_flight.sent_at_ms + LEAVE_TIMEOUT_MS:
            complete_leave(turn)
        case _:
            pass


def complete_leave(turn: Turn) -> None:
    """End the member now, and emit `MemberEnded`: no response is awaited any more."""
    turn.member.ending = HasLeft()
    turn.emit(CancelTimer(timer="leave"))
    turn.emit(MemberEnded())
