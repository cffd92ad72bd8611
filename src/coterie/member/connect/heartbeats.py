"""Sends heartbeats, which also join the group, and processes their responses. After an accepted heartbeat the next one
is sent at once if the coordinator may hold responses, otherwise after the interval that the coordinator states."""

from dataclasses import replace

from coterie.member.connect.computation import on_chosen_to_compute, resend_prepare_or_install_if_due
from coterie.member.connect.presence import (
    clear_membership_state,
    end_membership_as_refused,
    lose_membership_if_lease_over,
    lose_membership_until_rejoin,
    renew_lease,
    schedule_full_heartbeat_retry,
    set_session_timeout_and_shorten_lease,
)
from coterie.member.connect.refusals import permanent_error_reason
from coterie.member.connect.requests import (
    configured_jobs_to_report,
    data_to_report,
    make_leave_request,
    make_next_heartbeat,
    must_report_at_once,
    must_send_leadership_check,
)
from coterie.member.connect.state import (
    HeartbeatDue,
    HeartbeatSent,
    InGroup,
    Member,
    NoHeartbeat,
    NotInGroup,
    PreviousMembershipEnd,
    ReportedData,
)
from coterie.member.connect.turn import Turn
from coterie.member.events import SetTimer
from coterie.nouns.connect_error_codes import ConnectErrorCode, error_text
from coterie.nouns.connect_groups import (
    JOIN_EPOCH,
    LEAVE_BRIEFLY_EPOCH,
    AssignmentToMember,
    HeartbeatResponse,
    LeaderOfGroup,
)
from coterie.nouns.ids import ConfigOffset, GroupEpoch, LeaderEpoch, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.membership import Assigned, ConnectAssignmentDetails, LeadershipConfirmed, MemberStateChanged

HEARTBEAT_INTERVAL_MIN_MS = 100
"""The minimum time between two heartbeats if the coordinator holds no response: between all of them if this worker
allows no hold, even if the coordinator states a shorter interval; else after a heartbeat to which the coordinator
responded at once, without an effect."""

_NO_LEADER = LeaderOfGroup(member_id=MemberId(""), leader_epoch=LeaderEpoch(0), url=WorkerUrl(""))
_NO_ASSIGNMENT = AssignmentToMember(
    jobs=NO_JOBS, jobs_by_assignment_epoch={}, assignment_epoch=GroupEpoch(0), config_offset=ConfigOffset(-1)
)

# -- sending ----------------------------------------------------------------------------------------------------------


def send_heartbeat_if_due(turn: Turn) -> None:
    """Send a heartbeat if one is due, or if something must be reported at once. Called at the end of each step. The
    heartbeat of a worker outside the group is a join, and is sent only when no job is owned; if the herder has ordered
    the worker to leave and rejoin, a request that leaves the group is sent before the join.

    While the coordinator may hold the response to a heartbeat, a second heartbeat may be sent on the same connection,
    which ends the hold. No third heartbeat is sent before the response to the first one has arrived: so jobs that stop
    within the time that a request takes are reported together.
    """
    member, now_ms = turn.member, turn.now_ms
    match member.place, member.heartbeat:
        case NotInGroup(previous_membership_end=end), NoHeartbeat() if (
            member.worker_state is not None and not member.owned
        ):
            if end is PreviousMembershipEnd.LEAVES:
                turn.send(make_leave_request(member, LEAVE_BRIEFLY_EPOCH))
                member.place = NotInGroup(previous_membership_end=PreviousMembershipEnd.LOST)
            send_heartbeat(turn)
        case NotInGroup(), HeartbeatDue(at_ms=at_ms) if now_ms >= at_ms and not member.owned:
            send_heartbeat(turn)
        case InGroup(), HeartbeatDue(at_ms=at_ms) if now_ms >= at_ms:
            send_heartbeat(turn)
        case InGroup() as place, HeartbeatDue(is_backoff=False) if must_report_at_once(
            member, place.accepted_data, None
        ) or must_send_leadership_check(member):
            send_heartbeat(turn)
        case _, HeartbeatSent(may_response_be_held=True) as sent if not member.older_heartbeats and (
            must_report_at_once(member, sent.reported_data, sent.configured_report)
            or must_send_leadership_check(member)
        ):
            send_heartbeat(turn)
        case _:
            pass


def send_heartbeat(turn: Turn) -> None:
    """Send a heartbeat. If the newest heartbeat has no response yet, it becomes one of ``Member.older_heartbeats``."""
    member = turn.member
    reported, configured_report = data_to_report(member), configured_jobs_to_report(member)
    request = make_next_heartbeat(member)
    if isinstance(member.heartbeat, HeartbeatSent):
        older = member.heartbeat.in_flight
        member.older_heartbeats[older.id] = older.sent_at_ms
    member.heartbeat = HeartbeatSent(
        in_flight=turn.send(request), reported_data=reported, configured_report=configured_report
    )


def schedule_next_heartbeat(turn: Turn, sent: HeartbeatSent, *, had_effect: bool) -> None:
    """Set the time of the next heartbeat after the accepted heartbeat ``sent``: at once if responses are held, else
    after the interval that the coordinator states. If the coordinator was to hold the response, and the response had no
    effect although no other request has ended the hold, the coordinator may hold nothing: the next heartbeat is then
    sent no earlier than `HEARTBEAT_INTERVAL_MIN_MS` after ``sent``."""
    member, now_ms = turn.member, turn.now_ms
    place = member.place
    assert isinstance(place, InGroup)
    at_ms = now_ms
    if member.settings.coordinator_hold_max_ms == 0:
        longest_ms = max(HEARTBEAT_INTERVAL_MIN_MS, place.lease_durations.heartbeat_timeout_ms)
        at_ms = now_ms + min(max(HEARTBEAT_INTERVAL_MIN_MS, place.heartbeat_interval_ms), longest_ms)
    elif sent.is_hold_certain and not had_effect and member.last_request_id == sent.in_flight.id:
        at_ms = max(now_ms, sent.in_flight.sent_at_ms + HEARTBEAT_INTERVAL_MIN_MS)
    member.heartbeat = HeartbeatDue(at_ms=at_ms)
    if at_ms > now_ms:
        turn.emit(SetTimer(timer="heartbeat", at_ms=at_ms))


# -- responses --------------------------------------------------------------------------------------------------------


def on_heartbeat_response(turn: Turn, sent: HeartbeatSent, response: HeartbeatResponse) -> None:
    """Process the response to the newest heartbeat: apply it if the heartbeat was accepted; otherwise, depending on the
    error, the membership is lost, this worker is refused, or the next heartbeat follows after a back-off."""
    member = turn.member
    error = response.error
    match error:
        case ConnectErrorCode.NONE | ConnectErrorCode.COMPUTE_ASSIGNMENT:
            on_heartbeat_accepted(turn, sent, response)
        case ConnectErrorCode.UNKNOWN_MEMBER_ID | ConnectErrorCode.FENCED_MEMBER_EPOCH if isinstance(
            member.place, InGroup
        ):
            lose_membership_until_rejoin(
                turn, f"the coordinator responded {error_text(response.error, response.message)}"
            )
        case _ if (reason := permanent_error_reason(member.settings, error, response.message)) is not None:
            end_membership_as_refused(turn, reason)
        case _:
            # STALE_REQUEST among others: nothing is stopped, and the next heartbeat contains all fields.
            turn.log_failure_at_info_unless_recent(
                "The group's coordinator responded to a heartbeat with "
                f"{error_text(response.error, response.message)}; this worker sends another one"
            )
            schedule_full_heartbeat_retry(turn, first_at_once=error is ConnectErrorCode.STALE_REQUEST)


def on_older_heartbeat_response(turn: Turn, sent_at_ms: int, response: HeartbeatResponse) -> None:
    """Process the response to a heartbeat that is not the newest one: it renews the lease if the heartbeat was
    accepted, and has no other effect."""
    if response.error in (ConnectErrorCode.NONE, ConnectErrorCode.COMPUTE_ASSIGNMENT):
        renew_lease(turn, sent_at_ms)


def on_heartbeat_accepted(turn: Turn, sent: HeartbeatSent, response: HeartbeatResponse) -> None:
    """Process the response to a heartbeat that the coordinator has accepted: renew the lease, report a changed
    assignment to the herder, confirm an ordered leadership check, begin a computation if this member was chosen, and
    set the time of the next heartbeat. If the response contradicts itself (`invalid_response_error`), the membership is
    lost, or a worker outside the group tries to join again. If the lease has already ended, the membership is lost."""
    member = turn.member
    before = member.place
    reason = invalid_response_error(before, response)
    if reason is not None and isinstance(before, InGroup):
        lose_membership_until_rejoin(turn, f"the coordinator sent an invalid response: {reason}")
        return
    if reason is not None:
        turn.log_failure_at_info_unless_recent(
            f"The group's coordinator sent an invalid response to a join; this worker joins again: {reason}"
        )
        schedule_full_heartbeat_retry(turn, first_at_once=False)
        return
    if isinstance(before, NotInGroup):
        assert response.session_timeout_ms is not None
        place = InGroup(
            member_epoch=response.member_epoch,
            session_timeout_ms=response.session_timeout_ms,
            lease_ends_ms=0,
            heartbeat_interval_ms=response.heartbeat_interval_ms,
            leader=response.leader or _NO_LEADER,
            assignment=response.assignment or _NO_ASSIGNMENT,
        )
    else:
        place = membership_after_response(before, response)
    member.place = replace(
        place,
        accepted_data=clear_accepted_assignor_reasons(member, sent.reported_data),
        last_accepted_owned=sent.reported_data.owned,
        configured_report=sent.configured_report or place.configured_report,
    )
    if isinstance(before, InGroup) and response.session_timeout_ms not in (None, before.session_timeout_ms):
        set_session_timeout_and_shorten_lease(turn, max(1, response.session_timeout_ms or 0))
    renew_lease(turn, sent.in_flight.sent_at_ms)
    if lose_membership_if_lease_over(turn):
        return  # The response arrived too late: the coordinator may have assigned the jobs to other members since.
    member.failures.clear()
    member.retries = 0
    has_changed = emit_assignment_if_changed(turn, before)
    confirm_leadership_if_ordered(turn, sent)
    is_chosen = response.error is ConnectErrorCode.COMPUTE_ASSIGNMENT
    if is_chosen:
        on_chosen_to_compute(turn)
    else:
        resend_prepare_or_install_if_due(turn)
    schedule_next_heartbeat(turn, sent, had_effect=has_changed or is_chosen)


def confirm_leadership_if_ordered(turn: Turn, sent: HeartbeatSent) -> None:
    """Report to the herder that this worker is the leader, if the herder has ordered a leadership check, the accepted
    heartbeat ``sent`` was sent after this order, and its response has not named another leader."""
    member, check = turn.member, turn.member.leadership_check
    if check is not None and member.is_leader and check.precedes_request(sent.in_flight.id):
        member.leadership_check = None
        turn.emit(LeadershipConfirmed(token=check.order_token))


def clear_accepted_assignor_reasons(member: Member, accepted: ReportedData) -> ReportedData:
    """Set the reasons to 0 with which assignors asked for a new target assignment and which the accepted heartbeat has
    reported: in ``member.assignors``, and in the returned copy of ``accepted``, the data of that heartbeat. Each reason
    is sent until one heartbeat with it is accepted. If an `UpdateAssignor` for an assignor has arrived since this
    heartbeat was sent, the assignor's reason stays for the next heartbeat.

    A heartbeat whose response was lost, or that was answered after a newer one was sent, may have been accepted too:
    its reason is sent again, and the group computes twice, which does no harm."""
    if not any(one.reason for one in accepted.assignors):
        return accepted
    member.assignors = tuple(replace(one, reason=0) if one in accepted.assignors else one for one in member.assignors)
    return replace(accepted, assignors=tuple(replace(one, reason=0) for one in accepted.assignors))


def invalid_response_error(before: NotInGroup | InGroup, response: HeartbeatResponse) -> str | None:
    """The contradiction in the response to an accepted heartbeat, as a text; None if there is none. For example, jobs
    with the member epoch 0 are a contradiction: the next heartbeat of this epoch is a join, before which no job may
    run."""
    epoch = response.member_epoch
    if epoch < JOIN_EPOCH or (epoch == JOIN_EPOCH and isinstance(before, InGroup) and before.member_epoch > JOIN_EPOCH):
        return f"the member epoch is {epoch}"
    if epoch == JOIN_EPOCH and response.assignment is not None and response.assignment.jobs:
        return f"{len(response.assignment.jobs)} jobs are assigned with the member epoch 0"
    if isinstance(before, NotInGroup) and (response.session_timeout_ms or 0) <= 0:
        return f"the session timeout is {response.session_timeout_ms}"
    return None


def membership_after_response(before: InGroup, response: HeartbeatResponse) -> InGroup:
    """The membership after the response to an accepted heartbeat. Fields that the response leaves out have not
    changed."""
    return replace(
        before,
        member_epoch=response.member_epoch,
        heartbeat_interval_ms=response.heartbeat_interval_ms,
        leader=response.leader or before.leader,
        assignment=response.assignment or before.assignment,
    )


def update_membership_after_relaunch_announcement(turn: Turn, response: HeartbeatResponse) -> None:
    """Process the response to the heartbeat that announces the next process. If the heartbeat was accepted, the member
    stores the data of the response, which the next process then receives. After UNKNOWN_MEMBER_ID or
    FENCED_MEMBER_EPOCH there is no membership any more, and the next process receives none. After any other error it
    receives the membership as it was before."""
    member = turn.member
    match response.error, member.place:
        case ((ConnectErrorCode.NONE | ConnectErrorCode.COMPUTE_ASSIGNMENT), InGroup() as place):
            member.place = membership_after_response(place, response)
        case ((ConnectErrorCode.UNKNOWN_MEMBER_ID | ConnectErrorCode.FENCED_MEMBER_EPOCH), _):
            clear_membership_state(member)
        case _:
            pass


def log_and_retry_failed_heartbeat(turn: Turn, reason: str) -> None:
    """Called when no response to the newest heartbeat will arrive: log this, and send the next heartbeat, with all
    fields; at once if this is the first retry, otherwise after a back-off."""
    turn.log_failure_at_info_unless_recent(
        f"A heartbeat to the group's coordinator failed; this worker sends another one: {reason}"
    )
    schedule_full_heartbeat_retry(turn, first_at_once=True)


# -- events for the herder --------------------------------------------------------------------------------------------


def emit_assignment_if_changed(turn: Turn, before: NotInGroup | InGroup) -> bool:
    """Emit `Assigned` if a response has changed the assignment, the leader or the member epoch since ``before``.
    Returns whether `Assigned` was emitted."""
    member = turn.member
    place = member.place
    assert isinstance(place, InGroup)
    if isinstance(before, InGroup) and (before.assignment, before.leader, before.member_epoch) == (
        place.assignment,
        place.leader,
        place.member_epoch,
    ):
        return False
    jobs = place.assignment.jobs
    assigned = Assigned(
        member_id=member.settings.member_id,
        epoch=place.member_epoch,
        jobs=jobs,
        revoked=member.owned - jobs,
        replaces_all=True,
        leader=place.leader.member_id,
        leader_url=place.leader.url,
        config_offset=place.assignment.config_offset,
        protocol_details=ConnectAssignmentDetails(
            leader_epoch=place.leader.leader_epoch,
            # A response with a new member epoch contains no assignment if the jobs have not changed.
            assignment_epoch=GroupEpoch(max(place.assignment.assignment_epoch, place.member_epoch)),
            jobs_by_assignment_epoch=place.assignment.jobs_by_assignment_epoch,
            metadata_version=place.assignment.version,
            metadata=place.assignment.metadata,
        ),
    )
    # The jobs count as owned before the herder has handled the assignment: a `SetWorkerState` that is older than the
    # assignment must not report that they have stopped.
    member.assigned_unconfirmed |= jobs - member.owned
    turn.emit(assigned)
    return True


def emit_member_state_if_changed(turn: Turn) -> None:
    """Emit the member state if it differs from the last one that the herder received. `MembershipLost` is the event for
    a member that is not in the group any more."""
    member = turn.member
    if member.rebalance_state is not member.reported_state:
        member.reported_state = member.rebalance_state
        turn.emit(MemberStateChanged(state=member.rebalance_state))
