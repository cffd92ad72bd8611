"""A worker's membership in a classic group: JoinGroup, SyncGroup, heartbeats, and the handling of missing responses.

Theory of operation; docs/states.md lists the states and their transitions. A *round* is one JoinGroup and one SyncGroup
of this member. The response to JoinGroup arrives when all members have joined, the response to SyncGroup when the
leader has sent the assignments; between the two responses the leader's herder computes the assignments. Jobs keep
running during a round (KIP-415): only an assignment revokes jobs. But when the group's selected protocol is eager, the
leader receives no report of the jobs that a member runs. Then all jobs stop before the member joins. The response to a
heartbeat, or the herder, can request a round. If a round is running, the requested round follows it. The herder's
request is dropped if a JoinGroup without a response yet already contains the current worker state.

Three causes end the membership:

- the coordinator has removed the member (UNKNOWN_MEMBER_ID): the member clears its id;
- the *lease* ends: two thirds of the session timeout have passed since the last answered request was sent. The
  coordinator may still count this worker as a member, so the id is kept. The time counts from the sending of the
  request, not from the arrival of the response, which may have waited in the socket while this process was paused;
- the worker leaves the group, for instance because its herder is stuck.

In all these cases except an ordered `Leave` the membership is *lost*: the herder stops all jobs, and the member joins
again when no job is owned any more. The membership is also lost when the leader has assigned nothing to this worker,
because it could not decode this worker's metadata. After any other failure (coordinator unreachable, moved or loading;
ILLEGAL_GENERATION; REBALANCE_IN_PROGRESS) the member retries with the same id while jobs keep running. So no job stops
if the broker is reachable again within the lease. But errors that a wrong setting causes (see
`member.classic.permanent_errors`) are permanent: the member reports such an error once and sends no further join.

Heartbeats continue while a join or a sync waits for its response, which may take longer than the session timeout.
Kafka's clients pause heartbeats at that time, because the coordinator keeps a member whose join waits; but a worker
without heartbeats would not detect that its connection is lost. The response to a heartbeat while the group waits for
joins is REBALANCE_IN_PROGRESS; it renews the lease like a response without an error.
"""

from dataclasses import replace

from coterie.engine.output import Output
from coterie.member.classic.messages import (
    Effect,
    Event,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinResponse,
    Response,
    SyncResponse,
    Timer,
)
from coterie.member.classic.presence import (
    lose_membership_if_lease_over,
    on_event_while_leaving,
    on_heartbeat_response,
    on_leave,
    on_leave_and_rejoin,
    send_heartbeat_unless_last_unanswered,
    start_leadership_check,
)
from coterie.member.classic.rounds import (
    is_worker_state_in_join,
    join_or_prepare_join_if_due,
    on_join_response,
    on_prior_member_checked,
    on_send_assignments,
    on_set_worker_state,
    on_sync_response,
    schedule_rejoin_after_failed_request,
)
from coterie.member.classic.state import (
    AwaitingResponse,
    CheckingPriorMember,
    HasLeft,
    InGroup,
    JoinSent,
    Leaving,
    Member,
    Refused,
    StoppingAllJobs,
    SyncSent,
    WaitingToJoin,
    check_invariants,
)
from coterie.member.classic.turn import Turn
from coterie.member.events import (
    CancelTimer,
    MemberStarted,
    RequestFailed,
    RequestId,
    ResponseReceived,
    SetTimer,
    TimerFired,
    WriteLogMessage,
)
from coterie.member.in_flight import InFlight
from coterie.nouns.membership import (
    ConfirmLeadership,
    InstallTarget,
    Leave,
    LeaveAndRejoin,
    Rejoin,
    RequestGroupDescription,
    SendAssignments,
    SetConfiguredJobs,
    SetWorkerState,
    SuspendMembership,
    UpdateAssignor,
)


def step(member: Member, event: Event, *, now_ms: int) -> Output[None, Effect]:
    """Process one event: change the member, and return the effects. A member writes no records.

    :raises AssertionError: when an invariant of the member does not hold, which is a bug in Coterie.
    """
    turn = Turn(member, now_ms)
    match member.ending:
        case HasLeft():
            pass
        case Leaving() as leaving:
            on_event_while_leaving(turn, leaving, event)
        case None | Refused():
            on_event_unless_leaving(turn, event)
            join_or_prepare_join_if_due(turn)
    check_invariants(member)
    return Output(effects=tuple(turn.effects))


def on_event_unless_leaving(turn: Turn, event: Event) -> None:
    """Process one event of a member that is not leaving."""
    member = turn.member
    match event:
        case ResponseReceived():
            on_response(turn, event)
        case TimerFired(timer=timer):
            on_timer(turn, timer)
        case MemberStarted():
            send_heartbeat_if_membership_handed_over(turn)
        case SetWorkerState():
            on_set_worker_state(member, event)
        case Rejoin(reason=reason):
            if not is_worker_state_in_join(member):
                member.rejoin_reason = member.rejoin_reason or reason
        case SendAssignments() | ConfirmLeadership():
            on_order_to_leader(turn, event)
        case RequestFailed():
            on_failed_request(turn, event)
        case LeaveAndRejoin(reason=reason):
            on_leave_and_rejoin(turn, reason)
        case Leave(reason=reason, is_permanent=is_permanent):
            on_leave(turn, reason, is_permanent=is_permanent)
        case SetConfiguredJobs() | UpdateAssignor() | InstallTarget() | RequestGroupDescription() | SuspendMembership():
            raise AssertionError(
                f"{type(event).__name__} is an order to the member of a connect group, but this worker is in a classic "
                "group: this is a bug in Coterie"
            )


def on_order_to_leader(turn: Turn, order: SendAssignments | ConfirmLeadership) -> None:
    """Process an order that the herder gives only while this member is the group's leader: send the assignments, or
    check the leadership."""
    match order:
        case SendAssignments():
            on_send_assignments(turn, order)
        case ConfirmLeadership(token=token):
            start_leadership_check(turn, token)


def send_heartbeat_if_membership_handed_over(turn: Turn) -> None:
    """Send a heartbeat at once if the previous process passed its membership on, because its next heartbeat may be
    overdue."""
    if isinstance(turn.member.place, InGroup):
        turn.emit(SetTimer(timer="heartbeat", at_ms=turn.now_ms))


# -- responses, failures, timers: each may be out of date -------------------------------------------------------------


def on_response(turn: Turn, event: ResponseReceived[Response]) -> None:
    """Process a response. It is ignored if the member no longer waits for it."""
    match end_wait_for_response(turn, event.id), event.response:
        case None, _:
            pass  # The member no longer waits for this response.
        case InFlight() as heartbeat, HeartbeatResponse() as response:
            on_heartbeat_response(turn, heartbeat, response)
        case CheckingPriorMember(), HeartbeatResponse() as response:
            on_prior_member_checked(turn, response)
        case JoinSent() as joins, JoinResponse() as response:
            on_join_response(turn, joins, response)
        case SyncSent() as syncs, SyncResponse() as response:
            on_sync_response(turn, syncs, response)
        case asked, response:
            raise AssertionError(
                f"the response to {asked} has the wrong type {type(response).__name__}: this is a bug in Coterie"
            )


def on_failed_request(turn: Turn, event: RequestFailed) -> None:
    """Process the failure of a request. A failed heartbeat is followed by another one after a back-off. After a failed
    join, sync or check for a prior member, the member joins again (`schedule_rejoin_after_failed_request`). The failure
    is ignored if the member no longer waits for the response."""
    match end_wait_for_response(turn, event.id):
        case None:
            pass
        case InFlight():
            turn.log_failure_at_info_unless_recent(
                f"A heartbeat to the group's coordinator failed; this worker sends another one: {event.reason}"
            )
            # Sooner than the heartbeat interval: the coordinator may be reachable long before the lease ends.
            backoff_ms = min(turn.member.settings.retry_backoff_max_ms, turn.member.settings.heartbeat_interval_ms)
            turn.emit(SetTimer(timer="heartbeat", at_ms=turn.now_ms + backoff_ms))
        case asking:
            turn.log_failure_at_info_unless_recent(
                f"A request to the group's coordinator failed; this worker joins again: {event.reason}"
            )
            schedule_rejoin_after_failed_request(turn, asking)


def end_wait_for_response(turn: Turn, id_: RequestId) -> AwaitingResponse | InFlight[HeartbeatRequest] | None:
    """End the wait for the response to the request ``id_``, and return what has waited: the member's ``round``, if the
    request is its join, sync or check for a prior member, or the unanswered heartbeat. None when the member no longer
    waits for the response. If the round has waited, it becomes ``WaitingToJoin``; the caller may set another one. If
    the heartbeat has waited, the next heartbeat may be sent."""
    member = turn.member
    match member.round, member.place:
        case (CheckingPriorMember() | JoinSent() | SyncSent()) as asking, _ if asking.in_flight.id == id_:
            member.round = WaitingToJoin()
            turn.emit(CancelTimer(timer="answer"))
            return asking
        case _, InGroup(unanswered_heartbeat=InFlight() as heartbeat) as place if heartbeat.id == id_:
            member.place = replace(place, unanswered_heartbeat=None)
            return heartbeat
        case _:
            return None


def on_timer(turn: Turn, timer: Timer) -> None:
    """Process a timer. It has no effect if its deadline is not over, because it was moved or cancelled meanwhile. Only
    ``heartbeat`` has no such check: an early heartbeat does no harm."""
    member, now_ms = turn.member, turn.now_ms
    match timer, member.round:
        case "heartbeat", _:
            send_heartbeat_unless_last_unanswered(turn)
        case "lease", _:
            lose_membership_if_lease_over(turn)
        case "answer", (CheckingPriorMember() | JoinSent() | SyncSent()) as asking:
            if now_ms >= asking.in_flight.sent_at_ms + member.settings.round_response_timeout_ms:
                turn.emit(
                    WriteLogMessage(
                        text="The group's coordinator did not respond within "
                        f"{member.settings.round_response_timeout_ms} ms; this worker joins again"
                    )
                )
                schedule_rejoin_after_failed_request(turn, asking)
        case "retry", (
            WaitingToJoin(backoff_ends_ms=int(until_ms)) | StoppingAllJobs(backoff_ends_ms=int(until_ms))
        ) as waiting:
            if now_ms >= until_ms:
                member.round = replace(waiting, backoff_ends_ms=None)
        case _:
            pass  # ``held``: `join_or_prepare_join_if_due` runs after every event. Other timers are out of date.
