"""A worker's membership in a connect group: heartbeats, and what follows from their responses (K848C, "Rebalance
Process", the worker's side).

Theory of operation; docs/states.md lists the states and their transitions. A member joins with a heartbeat of the
member epoch 0, when no job runs. From then on one heartbeat always waits for its response: the coordinator *holds* the
response while it has nothing to report, and the member sends the next heartbeat when the response arrives. (With
``max_wait_ms`` 0 nothing is held, and heartbeats are sent at an interval.) A response contains all jobs that the worker
may run. The herder stops the others and starts the new ones, and jobs that stay keep running. When a job has stopped,
the member sends a heartbeat without it at once, on the same connection, which ends a hold: that heartbeat is the
acknowledgement, and each job becomes free for another worker as soon as its former owner has acknowledged.

Only the response to the newest heartbeat has an effect. The response to an older one renews the lease. Each heartbeat
has a number above that of the one before, so the coordinator does not process a late duplicate either. In most
heartbeats the member sends only what has changed. All fields are sent in a join, in the first heartbeat on a
connection, after an error, and while another heartbeat is unanswered: so a lost response has no lasting effect.

Three causes end the membership:

- the coordinator has no such member, or the member has another epoch (UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH);
- the *lease* ends: two thirds of the session timeout have passed since the newest accepted heartbeat was sent;
- the herder orders it.

Except after an ordered `Leave` the membership is then *lost*: the herder stops all jobs, and when none is owned any
more the member joins again with the same member id. The join acknowledges that all jobs have stopped, so the member
sends neither a join nor a request that leaves the group before all jobs have stopped. After any other error the member
retries while jobs keep running, except for errors that a wrong setting causes (`member.connect.refusals`).
"""

from dataclasses import replace

from coterie.engine.output import Output
from coterie.member.connect.computation import (
    on_install_response,
    on_install_target,
    on_prepare_response,
    to_install_due,
)
from coterie.member.connect.heartbeats import (
    emit_member_state_if_changed,
    log_and_retry_failed_heartbeat,
    on_heartbeat_response,
    on_older_heartbeat_response,
    send_heartbeat_if_due,
    update_membership_after_relaunch_announcement,
)
from coterie.member.connect.messages import (
    Effect,
    Event,
    GroupDescriptionRequest,
    GroupDescriptionResponse,
    Response,
)
from coterie.member.connect.presence import (
    ENDING_TIMEOUT_MS,
    begin_unconfirmed_lease_if_handed_over,
    complete_leave,
    complete_suspension,
    lose_membership_if_lease_over,
    on_event_while_leaving,
    on_leave,
    on_leave_and_rejoin,
    on_suspend,
)
from coterie.member.connect.requests import response_timeout_ms
from coterie.member.connect.state import (
    HasLeft,
    HeartbeatSent,
    InstallSent,
    Leaving,
    Member,
    PrepareDue,
    PrepareSent,
    Refused,
    Suspended,
    Suspending,
    check_invariants,
)
from coterie.member.connect.turn import Turn
from coterie.member.events import MemberStarted, RequestFailed, ResponseReceived, TimerFired
from coterie.member.leadership import LeadershipCheck
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.connect_groups import HeartbeatResponse, InstallAssignmentResponse, PrepareAssignmentResponse
from coterie.nouns.membership import (
    ConfirmLeadership,
    GroupDescribed,
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
        case Suspending() as suspending:
            on_event_while_suspending(turn, suspending, event)
        case Suspended():
            if isinstance(event, Leave):
                complete_leave(turn)
        case None | Refused():
            on_event_unless_leaving_or_suspending(turn, event)
            lose_membership_if_lease_over(turn)
            if member.ending is None:
                send_heartbeat_if_due(turn)
                emit_member_state_if_changed(turn)
    check_invariants(member)
    return Output(effects=tuple(turn.effects))


def on_event_unless_leaving_or_suspending(turn: Turn, event: Event) -> None:
    """Process one event of a member that neither leaves the group nor suspends its membership."""
    member = turn.member
    match event:
        case ResponseReceived():
            on_response(turn, event)
        case SetWorkerState():
            member.worker_state = event
            member.assigned_unconfirmed -= event.owned
        case TimerFired():
            pass  # `lose_membership_if_lease_over` and `send_heartbeat_if_due` run after every event.
        case SetConfiguredJobs() | ConfirmLeadership():
            on_order_to_leader(member, event)
        case UpdateAssignor():
            on_update_assignor(member, event)
        case InstallTarget():
            on_install_target(turn, event)
        case RequestGroupDescription():
            on_request_group_description(turn)
        case RequestFailed():
            on_failed_request(turn, event)
        case LeaveAndRejoin() | Leave() | SuspendMembership():
            on_order_to_end_membership(turn, event)
        case MemberStarted():
            begin_unconfirmed_lease_if_handed_over(turn)
        case Rejoin() | SendAssignments():
            raise AssertionError(
                f"{type(event).__name__} is an order to the member of a classic group, but this worker is in a connect "
                "group: this is a bug in Coterie"
            )


def on_order_to_leader(member: Member, order: SetConfiguredJobs | ConfirmLeadership) -> None:
    """Store an order that only the leader's herder gives, for the next heartbeat, which `send_heartbeat_if_due` sends
    at once if it can."""
    match order:
        case SetConfiguredJobs():
            member.configured = order
        case ConfirmLeadership(token=token):
            member.leadership_check = LeadershipCheck(
                order_token=token, ordered_after_request_id=next(member.request_ids)
            )


def on_update_assignor(member: Member, order: UpdateAssignor) -> None:
    """Keep the newest metadata of an assignor, and its reason to ask for a new target assignment, for the next
    heartbeat, which `send_heartbeat_if_due` sends at once if it can."""
    assert any(one.name == order.name for one in member.assignors), f"this worker does not offer {order.name}"
    member.assignors = tuple(
        replace(
            one,
            metadata_version=order.metadata_version,
            metadata=order.metadata,
            reason=order.reason or one.reason,
            update_count=one.update_count + 1,
        )
        if one.name == order.name
        else one
        for one in member.assignors
    )


def on_order_to_end_membership(turn: Turn, order: LeaveAndRejoin | Leave | SuspendMembership) -> None:
    """Process an order that ends the membership of this process, permanently or until it rejoins."""
    match order:
        case LeaveAndRejoin(reason=reason):
            on_leave_and_rejoin(turn, reason)
        case Leave():
            on_leave(turn, order)
        case SuspendMembership():
            on_suspend(turn)


# -- responses and failures: each may be out of date ------------------------------------------------------------------


def on_response(turn: Turn, event: ResponseReceived[Response]) -> None:
    """Process a response. It is ignored if the member no longer waits for it."""
    member = turn.member
    match event.response, member.heartbeat, member.computation:
        case HeartbeatResponse() as response, HeartbeatSent() as sent, _ if sent.in_flight.id == event.id:
            on_heartbeat_response(turn, sent, response)
        case HeartbeatResponse() as response, _, _ if event.id in member.older_heartbeats:
            on_older_heartbeat_response(turn, member.older_heartbeats.pop(event.id), response)
        case PrepareAssignmentResponse() as response, _, PrepareSent(in_flight=asked) if asked.id == event.id:
            on_prepare_response(turn, response)
        case InstallAssignmentResponse() as response, _, InstallSent(in_flight=asked) as sent if asked.id == event.id:
            on_install_response(turn, sent, response)
        case GroupDescriptionResponse() as response, _, _ if event.id == member.description_request_id:
            member.description_request_id = None
            error = "" if response.error is ConnectErrorCode.NONE else response.message or response.error.name
            turn.emit(GroupDescribed(description=response.description, error=error))
        case _:
            pass  # The member no longer waits for this response.


def on_failed_request(turn: Turn, event: RequestFailed) -> None:
    """Process the failure of a request. The newest heartbeat is followed by another one; Prepare and Install are sent
    again after the next accepted heartbeat; for a description, the herder receives the reason. The failure is ignored
    if the request was an older heartbeat, or the member no longer waits for the response."""
    member = turn.member
    match member.heartbeat, member.computation:
        case _ if member.older_heartbeats.pop(event.id, None) is not None:
            pass  # A newer heartbeat is out.
        case HeartbeatSent(in_flight=asked), _ if asked.id == event.id:
            log_and_retry_failed_heartbeat(turn, event.reason)
        case _, PrepareSent(in_flight=asked) if asked.id == event.id:
            member.computation = PrepareDue()
        case _, InstallSent(in_flight=asked) as sent if asked.id == event.id:
            member.computation = to_install_due(sent)
        case _ if event.id == member.description_request_id:
            member.description_request_id = None
            turn.emit(GroupDescribed(description=None, error=event.reason))
        case _:
            pass


def on_request_group_description(turn: Turn) -> None:
    """Request the group's description. If an earlier request for the description has no response yet, none is sent: its
    response answers both orders."""
    member = turn.member
    if member.description_request_id is None:
        request = GroupDescriptionRequest(
            group_id=member.settings.group_id, response_timeout_ms=response_timeout_ms(member)
        )
        member.description_request_id = turn.send(request).id


# -- before a relaunch ------------------------------------------------------------------------------------------------


def on_event_while_suspending(turn: Turn, suspending: Suspending, event: Event) -> None:
    """Suspend the membership when the heartbeat that announces the next process is answered or has failed, or its time
    is over. An order to leave ends the suspension; all other events are ignored."""
    member, in_flight = turn.member, suspending.in_flight
    match event:
        case ResponseReceived(id=id_, response=HeartbeatResponse() as response) if id_ == in_flight.id:
            update_membership_after_relaunch_announcement(turn, response)
            complete_suspension(turn)
        case RequestFailed(id=id_) if id_ == in_flight.id:
            complete_suspension(turn)
        case TimerFired(timer="ending") if turn.now_ms >= in_flight.sent_at_ms + ENDING_TIMEOUT_MS:
            complete_suspension(turn)
        case Leave():
            member.ending = None
            on_leave(turn, event)
        case _:
            pass
