"""The coordinator of one connect group: the epoch-based rebalance protocol for connectors and tasks.

Theory of operation. Three kinds of epochs drive a rebalance (K848C, "Rebalance Process"). A change of the *metadata*
(a member joins or leaves, assignors, claims, drains, configured jobs) increases the **group epoch**. While it is
greater than the **assignment epoch**, a *target assignment* has to be computed: a chosen member (or an assignor of the
coordinator) receives a snapshot of the group and installs the target. Each member then takes its own way to its target:
its heartbeats tell it which jobs to give back, and, when it has given them back, which free jobs it gets; its **member
epoch** becomes the assignment epoch when it has nothing left to give back. There is no barrier: each job is assigned as
soon as its former owner has released it.

A job is released only by its owner's acknowledgement (a list of owned jobs without it, a join, or a leave), by the end
of its owner's session, or by the end of its connection after a grace. A member that is removed for another reason keeps
its jobs *held* until its session would have ended.

Where the draft is silent or contradicts itself, `docs/protocol/deviations.md` lists what this machine does and why.
"""

from coterie.groups.connect.answers import (
    answer_heartbeat_if_without_news,
    apply_confirmed_shorter_session_timeout,
    end_step,
    renew_session,
)
from coterie.groups.connect.computation import (
    on_computation_timeout,
    on_install_assignment,
    on_next_computation_timer,
    on_prepare_assignment,
    on_target_computed,
)
from coterie.groups.connect.connections import on_connection_closed, remove_member_unless_many_disconnected
from coterie.groups.connect.departures import release_held_jobs
from coterie.groups.connect.description import on_describe_group
from coterie.groups.connect.emptiness import delete_group, remove_empty_group, schedule_or_cancel_group_expiry
from coterie.groups.connect.loading import on_loaded
from coterie.groups.connect.membership import (
    check_request_number_exceeds,
    member_to_remove_or_raise,
    on_join,
    on_leave,
    remove_member,
    respond_to_held_heartbeat_if_any,
    session_timeout_removal_reason,
    store_configured_jobs_if_from_leader,
    store_new_target_reasons,
    update_member_metadata,
)
from coterie.groups.connect.messages import (
    CheckOffsetAccess,
    ComputationTimeoutTimer,
    ConfigsRemoved,
    ConfigsWritten,
    ConnectionClosed,
    ConnectionGraceTimer,
    ConnectOutput,
    DeleteGroup,
    DescribeGroup,
    DescribeGroupResponse,
    EmptyGroupExpiryTimer,
    ErrorOnlyResponse,
    Event,
    GroupLoaded,
    Heartbeat,
    HeldJobsTimer,
    InstallAssignment,
    NextComputationTimer,
    PrepareAssignment,
    RebalanceDelayTimer,
    ReleaseHeldResponse,
    RemoveMember,
    Request,
    Response,
    ResponseHoldTimer,
    RevocationTimer,
    SessionTimer,
    SetGroupConfigs,
    TargetComputed,
    TimerKey,
)
from coterie.groups.connect.refusal import ConnectRefusal
from coterie.groups.connect.request_checks import check_heartbeat, check_member, check_offset_request
from coterie.groups.connect.revocations import late_revocation_removal_reason
from coterie.groups.connect.soft_state import Connected
from coterie.groups.connect.state import Group, check_invariants
from coterie.groups.connect.turn import Turn
from coterie.groups.effects import TimerFired
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.connect_groups import (
    JOIN_EPOCH,
    HeartbeatResponse,
    InstallAssignmentResponse,
    PrepareAssignmentResponse,
)
from coterie.nouns.ids import MemberEpoch, MemberId


def step(group: Group, event: Event, *, now_ms: int) -> ConnectOutput:
    """Process one event: change the group's state and return the records and effects. The caller appends the records
    and, once they are durable, performs the effects in order.

    A request that a check refuses (`ConnectRefusal`) writes no record; its effect is a response with the error code.
    """
    turn = Turn(group, now_ms)
    match event:
        case Heartbeat() | PrepareAssignment() | InstallAssignment():
            respond_or_refuse(turn, event)
        case DescribeGroup() | CheckOffsetAccess() | RemoveMember() | SetGroupConfigs() | DeleteGroup():
            respond_or_refuse(turn, event)
        case TimerFired(key=key):
            end_step(turn, on_timer(turn, key), may_hold=False)
        case TargetComputed():
            on_target_computed(turn, event)
            end_step(turn, None)
        case ReleaseHeldResponse():
            end_step(turn, take_heartbeat_to_answer_now(turn, event), may_hold=False)
        case ConnectionClosed():
            on_connection_closed(turn, event)
        case GroupLoaded():
            on_loaded(turn)
            end_step(turn, None)
    if turn.records or isinstance(event, GroupLoaded):
        schedule_or_cancel_group_expiry(turn)
    check_invariants(group)
    return ConnectOutput(records=tuple(turn.records), effects=tuple(turn.effects), removals=tuple(turn.removals))


def respond_or_refuse(turn: Turn, request: Request) -> None:
    """Process ``request``. If a check refuses the request, reply with the error code; nothing was written then."""
    try:
        on_request(turn, request)
    except ConnectRefusal as refusal:
        assert not turn.records, "refuse before the first write"
        turn.reply(request.reply_to, refusal_response(request, refusal.error, refusal.message))


def on_request(turn: Turn, request: Request) -> None:
    """Pass ``request`` to the function for its kind, then finish the step if the request may have changed the group.

    :raises ConnectRefusal: when the request is refused; no record has been written in this case.
    """
    match request:
        case Heartbeat():
            on_heartbeat(turn, request)
            return
        case DescribeGroup():
            on_describe_group(turn, request)
            return
        case CheckOffsetAccess():
            check_offset_request(turn.group, request)
            turn.reply(request.reply_to, ErrorOnlyResponse())
            return
        case PrepareAssignment():
            on_prepare_assignment(turn, request)
        case InstallAssignment():
            on_install_assignment(turn, request)
        case RemoveMember():
            removed = member_to_remove_or_raise(turn.group, request)
            remove_member(turn, removed, jobs_may_still_run=True, defers_jobs=True, reason="an operator has removed it")
            turn.reply(request.reply_to, ErrorOnlyResponse())
        case SetGroupConfigs():
            turn.write(ConfigsWritten(configs=request.configs) if request.configs else ConfigsRemoved())
            turn.reply(request.reply_to, ErrorOnlyResponse())
        case DeleteGroup():
            delete_group(turn, request)
            return
    end_step(turn, None)


# -- heartbeats --------------------------------------------------------------------------------------------------------


def on_heartbeat(turn: Turn, request: Heartbeat) -> None:
    """Process a heartbeat: a join, a leave, or a heartbeat of a member (K848C, "Request Handling").

    :raises ConnectRefusal: when the heartbeat is refused; it does not renew the session then.
    """
    if answer_heartbeat_if_without_news(turn, request):
        return
    group = turn.group
    check_heartbeat(group, request)
    if request.member_epoch < JOIN_EPOCH:
        on_leave(turn, request)
        end_step(turn, None)
        return
    if request.member_epoch == JOIN_EPOCH:
        on_join(turn, request)
    else:
        check_number_epoch_and_owned_jobs(group, request)
        update_member_metadata(turn, request)
    update_session_and_respond_to_held(turn, request)
    store_new_target_reasons(turn, request)
    store_configured_jobs_if_from_leader(turn, request)
    end_step(turn, request)


def check_number_epoch_and_owned_jobs(group: Group, request: Heartbeat) -> None:
    """Check that the sender is a member, that the request is newer than the last one, that its member epoch is the
    member's, and that each owned job in it is assigned to the member, or revoked and not given back yet. The previous
    epoch is accepted with a list of owned jobs: the response with the new epoch may have been lost, or may have crossed
    the request.

    :raises ConnectRefusal: UNKNOWN_MEMBER_ID, STALE_REQUEST or FENCED_MEMBER_EPOCH. The member stays in the group.
    """
    check_member(group, request.member_id)
    check_request_number_exceeds(request, group.sessions[request.member_id].request_number)
    current = group.currents[request.member_id]
    is_previous = request.member_epoch == current.previous_epoch and request.owned is not None
    if request.member_epoch != current.member_epoch and not is_previous:
        raise ConnectRefusal(
            ConnectErrorCode.FENCED_MEMBER_EPOCH,
            f"the request has the member epoch {request.member_epoch}, and member {request.member_id} has "
            f"{current.member_epoch}; the worker must stop its jobs and join with the epoch 0",
        )
    if request.owned is not None and not request.owned <= current.held_jobs:
        surplus = request.owned - current.held_jobs
        raise ConnectRefusal(
            ConnectErrorCode.FENCED_MEMBER_EPOCH,
            f"member {request.member_id} owns {len(surplus)} jobs that are not assigned to it, for example "
            f"{surplus.first}; the worker must stop its jobs and join with the epoch 0",
        )


def update_session_and_respond_to_held(turn: Turn, request: Heartbeat) -> None:
    """Store what an accepted heartbeat reports, renew the session, and respond to an older heartbeat that is held."""
    group = turn.group
    member_id = request.member_id
    session = group.sessions[member_id]
    apply_confirmed_shorter_session_timeout(turn, request)
    if session.held_heartbeat is not None:
        # The member acts only on the response to its newest request, so this one contains nothing new.
        respond_to_held_heartbeat_if_any(
            turn, member_id, HeartbeatResponse(member_epoch=group.currents[member_id].member_epoch)
        )
    session.request_number = max(session.request_number, request.request_number)
    former = session.connection if isinstance(session.connection, Connected) else None
    is_same_connection = former is not None and former.connection_number == request.connection_number
    session.has_confirmed_all_responses = is_same_connection and (
        session.has_confirmed_all_responses or not request.has_all_fields
    )
    if former is None or (former.connection_number, former.resumes) != (request.connection_number, request.resumes):
        session.connection = Connected(connection_number=request.connection_number, resumes=request.resumes)
        turn.cancel_timer(ConnectionGraceTimer(member_id=member_id))
    if request.config_offset is not None:
        session.config_offset = request.config_offset
    if request.config_topic_id is not None:
        session.config_topic_id = request.config_topic_id
    renew_session(turn, member_id)


def take_heartbeat_to_answer_now(turn: Turn, event: ReleaseHeldResponse) -> Heartbeat | None:
    """Remove the held heartbeat to which ``event`` orders a response, and return it; None if it was answered
    meanwhile."""
    session = turn.group.sessions.get(event.member_id)
    if session is None or session.held_heartbeat is None or session.held_heartbeat.reply_to != event.reply_to:
        return None
    return take_held_heartbeat(turn, event.member_id)


def take_held_heartbeat(turn: Turn, member_id: MemberId) -> Heartbeat | None:
    """Remove the member's held heartbeat from its session, and return it for the response; None if none is held."""
    session = turn.group.sessions[member_id]
    request, session.held_heartbeat = session.held_heartbeat, None
    turn.cancel_timer(ResponseHoldTimer(member_id=member_id))
    return request


# -- timers ------------------------------------------------------------------------------------------------------------


def on_timer(turn: Turn, key: TimerKey) -> Heartbeat | None:
    """Process the timer ``key``, which has fired. If its deadline was moved to a later time or removed meanwhile, do
    nothing. Returns the heartbeat whose hold has ended; None if there is none."""
    group = turn.group
    deadline_ms = group.deadlines.get(key)
    if deadline_ms is None or turn.now_ms < deadline_ms:
        return None  # the timer was moved or cancelled after it fired
    del group.deadlines[key]
    match key:
        case ResponseHoldTimer(member_id=member_id):
            return take_held_heartbeat(turn, member_id)
        case SessionTimer(member_id=member_id) if turn.now_ms < group.sessions[member_id].ends_at_ms:
            turn.set_timer(key, group.sessions[member_id].ends_at_ms)  # heartbeats have renewed the session
        case SessionTimer(member_id=member_id):
            reason = session_timeout_removal_reason(group, member_id)
            remove_member(turn, member_id, jobs_may_still_run=False, defers_jobs=True, reason=reason)
        case RevocationTimer(member_id=member_id):
            remove_member(
                turn,
                member_id,
                jobs_may_still_run=True,
                defers_jobs=True,
                reason=late_revocation_removal_reason(turn, member_id),
            )
        case ConnectionGraceTimer(member_id=member_id):
            remove_member_unless_many_disconnected(turn, member_id)
        case HeldJobsTimer(member_id=member_id):
            release_held_jobs(turn, member_id)
        case RebalanceDelayTimer():
            turn.bump_group_epoch()
        case NextComputationTimer():
            on_next_computation_timer(turn)
        case ComputationTimeoutTimer():
            on_computation_timeout(turn)
        case EmptyGroupExpiryTimer():
            remove_empty_group(turn, with_configs=False)
    return None


# -- refusals ----------------------------------------------------------------------------------------------------------


def refusal_response(request: Request, error: ConnectErrorCode, message: str | None = None) -> Response:
    """The response of the request's kind that refuses ``request`` with ``error`` and ``message``. For a heartbeat it
    repeats the member epoch of the request."""
    match request:
        case Heartbeat():
            return HeartbeatResponse(error=error, message=message, member_epoch=MemberEpoch(request.member_epoch))
        case PrepareAssignment():
            return PrepareAssignmentResponse(error=error, message=message)
        case InstallAssignment():
            return InstallAssignmentResponse(error=error, message=message)
        case DescribeGroup():
            return DescribeGroupResponse(error=error, message=message)
        case CheckOffsetAccess() | RemoveMember() | SetGroupConfigs() | DeleteGroup():
            return ErrorOnlyResponse(error=error, message=message)
