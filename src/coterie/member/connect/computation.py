"""The computation of a target assignment by this member, when the coordinator has chosen it (K848C, "Assignment
Process").

    NotComputing ── COMPUTE_ASSIGNMENT ──> PrepareSent ── response ──> Computing ── InstallTarget ──> InstallSent
         ^                                   │      ^                                                │       ^
         │                              lost, fenced│                                           lost, fenced │
         │                                   v      │ heartbeat accepted                             v       │
         │                                 PrepareDue                                             InstallDue
         └────────────────────────── installed, or any other error ──────────────────────────────────┘

COMPUTE_ASSIGNMENT begins a new computation in each state but PrepareSent: the coordinator waits for no older one.
"""

from coterie.member.connect.messages import InstallAssignmentRequest, PrepareAssignmentRequest
from coterie.member.connect.requests import response_timeout_ms
from coterie.member.connect.state import (
    ComputationToken,
    Computing,
    HeartbeatDue,
    InGroup,
    InstallDue,
    InstallSent,
    NotComputing,
    PrepareDue,
    PrepareSent,
)
from coterie.member.connect.turn import Turn
from coterie.nouns.connect_error_codes import ConnectErrorCode, error_text
from coterie.nouns.connect_groups import InstallAssignmentResponse, PrepareAssignmentResponse
from coterie.nouns.ids import GroupEpoch
from coterie.nouns.membership import InstallTarget, TargetRequested
from coterie.nouns.target_assignments import ComputedTarget

ASSIGNOR_FAILED = 1
"""The error of an installation whose assignor has failed. The protocol defines 0 only; each other number is an
error."""
_PREPARE_AND_INSTALL_TIMEOUT_FACTOR = 2
"""How many times as long the member waits for the responses to Prepare and Install as for those to heartbeats: the
response to Prepare and the request of Install contain the whole group."""


def on_chosen_to_compute(turn: Turn) -> None:
    """Called when the coordinator has chosen this member to compute the target: request the state of the group, unless
    such a request has no response yet. An earlier computation, also one that waits to be installed, is abandoned."""
    if not isinstance(turn.member.computation, PrepareSent):
        send_prepare(turn)


def resend_prepare_or_install_if_due(turn: Turn) -> None:
    """Called when a heartbeat was accepted: send Prepare or Install again if its response was lost, or if the
    coordinator refused it because of its old member epoch."""
    match turn.member.computation:
        case PrepareDue():
            send_prepare(turn)
        case InstallDue(group_epoch=group_epoch, error=error, target=target):
            send_install(turn, group_epoch, error, target)
        case _:
            pass


def send_prepare(turn: Turn) -> None:
    """Send ConnectGroupPrepareAssignment."""
    member = turn.member
    assert isinstance(member.place, InGroup)
    request = PrepareAssignmentRequest(
        group_id=member.settings.group_id,
        member_id=member.settings.member_id,
        member_epoch=member.place.member_epoch,
        response_timeout_ms=response_timeout_ms(member) * _PREPARE_AND_INSTALL_TIMEOUT_FACTOR,
    )
    member.computation = PrepareSent(in_flight=turn.send(request))


def send_install(turn: Turn, group_epoch: GroupEpoch, error: int, target: ComputedTarget) -> None:
    """Send ConnectGroupInstallAssignment."""
    member = turn.member
    assert isinstance(member.place, InGroup)
    request = InstallAssignmentRequest(
        group_id=member.settings.group_id,
        member_id=member.settings.member_id,
        member_epoch=member.place.member_epoch,
        group_epoch=group_epoch,
        assignor_error=error,
        target=target,
        response_timeout_ms=response_timeout_ms(member) * _PREPARE_AND_INSTALL_TIMEOUT_FACTOR,
    )
    member.computation = InstallSent(in_flight=turn.send(request))


def on_prepare_response(turn: Turn, response: PrepareAssignmentResponse) -> None:
    """Process the response to ConnectGroupPrepareAssignment: order the herder to compute; after FENCED_MEMBER_EPOCH,
    send the request again after the next accepted heartbeat; after another error, end the computation."""
    member = turn.member
    match response:
        case PrepareAssignmentResponse(error=ConnectErrorCode.NONE, snapshot=snapshot) if snapshot is not None:
            member.computation_count += 1
            token = ComputationToken(number=member.computation_count, group_epoch=snapshot.group_epoch)
            member.computation = Computing(token=token)
            turn.emit(TargetRequested(token=token, snapshot=snapshot))
        case PrepareAssignmentResponse(error=ConnectErrorCode.FENCED_MEMBER_EPOCH):
            member.computation = PrepareDue()
        case _:
            member.computation = NotComputing()
            turn.log(
                f"This worker does not compute the target assignment: {error_text(response.error, response.message)}"
            )


def on_install_target(turn: Turn, order: InstallTarget) -> None:
    """Send the target that the herder has computed, or the failure of its assignor, to the coordinator. If that
    computation has ended, this is only logged."""
    match turn.member.computation:
        case Computing(token=token) if token == order.token:
            error = ASSIGNOR_FAILED if order.target is None else 0
            if error:
                turn.log(f"The assignor of this worker has computed no target assignment: {order.error}")
            send_install(turn, token.group_epoch, error, order.target or ComputedTarget(members={}))
        case _:
            turn.log(
                "The target assignment that this worker has computed is not used, because the coordinator has ordered "
                "another computation since, or this worker has lost its membership"
            )


def on_install_response(turn: Turn, sent_install: InstallSent, response: InstallAssignmentResponse) -> None:
    """Process the response to ConnectGroupInstallAssignment. If the target was installed, the next heartbeat is due at
    once, because this worker's assignment may have changed; a back-off is not shortened. After FENCED_MEMBER_EPOCH the
    target is sent again after the next accepted heartbeat; after any other error it is dropped, which is logged."""
    member = turn.member
    member.computation = NotComputing()
    match response.error:
        case ConnectErrorCode.NONE:
            if isinstance(member.heartbeat, HeartbeatDue) and not member.heartbeat.is_backoff:
                member.heartbeat = HeartbeatDue(at_ms=turn.now_ms)
        case ConnectErrorCode.FENCED_MEMBER_EPOCH:
            member.computation = to_install_due(sent_install)
        case _:
            turn.log(
                "The target assignment that this worker has computed was not installed, and is not sent again: "
                f"{error_text(response.error, response.message)}"
            )


def to_install_due(sent: InstallSent) -> InstallDue:
    """The state in which the installation ``sent`` waits to be sent again."""
    request = sent.in_flight.request
    return InstallDue(group_epoch=request.group_epoch, error=request.assignor_error, target=request.target)
