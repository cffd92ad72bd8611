"""What a worker does with a refusal of the coordinator: the member machine receives the error code and the message."""

from enum import Enum

from coterie.member.connect.messages import (
    GroupDescriptionRequest,
    GroupDescriptionResponse,
    HeartbeatRequest,
    InstallAssignmentRequest,
    PrepareAssignmentRequest,
)
from coterie.member.connect.state import NotComputing
from coterie.member.events import MemberEnded
from coterie.nouns.connect_error_codes import ConnectErrorCode as E
from coterie.nouns.connect_groups import (
    JOIN_EPOCH,
    InstallAssignmentResponse,
    PrepareAssignmentResponse,
)
from coterie.nouns.ids import ConfigOffset, GroupEpoch
from coterie.nouns.membership import (
    GroupDescribed,
    InstallTarget,
    Leave,
    MembershipLost,
    MembershipRefused,
    RequestGroupDescription,
    TargetRequested,
)
from coterie.nouns.target_assignments import ComputedTarget, GroupSnapshot
from tests.member.connect.driving import SOME, MemberDriver, accepted

LONG_MS = 60_000


class Reaction(Enum):
    STOPS_AND_JOINS = "stops all jobs, then joins with the epoch 0 and the same member id"
    ENDS = "stops all jobs, tells its operator why, and sends no further request"
    SENDS_ALL = "stops nothing, and sends all fields at once"
    ASKS_AGAIN = "stops nothing, and sends all fields after a pause"
    HAS_LEFT = "has left, whatever the response is"
    SENDS_AFTER_HEARTBEAT = "sends the request again after the next accepted heartbeat"
    COMPUTES_NO_MORE = "logs why, and computes nothing until it is chosen again"
    HAS_INSTALLED = "has done its part"
    REPORTS = "reports the error to the client of its REST listener"


def reaction(request: str, error: E, message: str | None) -> Reaction:
    """What a worker does that has sent ``request`` and receives ``error`` with ``message``.

    ``request`` is ``heartbeat`` (of a member with jobs), ``join``, ``leave``, ``prepare``, ``install`` or
    ``describe``."""
    match request:
        case "heartbeat":
            return _after_heartbeat(error, message)
        case "join":
            return _after_join(error, message)
        case "leave":
            return _after_leave(error, message)
        case "prepare" | "install":
            return _after_computation(request, error, message)
        case _:
            return _after_describe(error, message)


def _after_heartbeat(error: E, message: str | None) -> Reaction:
    worker = MemberDriver()
    worker.join()
    number = worker.refuse(error, message).request_number
    lost = [one for one in worker.events if isinstance(one, MembershipLost)]
    if any(isinstance(one, MembershipRefused) for one in worker.events):
        assert lost, "its jobs stop"
        return _after_refusal(worker, message)
    if not lost:
        return _after_failure(worker, message)
    assert (message or "") in lost[0].reason
    assert worker.sent == [], "it waits until its jobs have stopped"
    worker.own()
    again = worker.heartbeat
    assert (again.member_id, again.member_epoch) == (worker.member.settings.member_id, JOIN_EPOCH)
    assert again.request_number > number
    return Reaction.STOPS_AND_JOINS


def _after_join(error: E, message: str | None) -> Reaction:
    worker = MemberDriver()
    worker.own()
    worker.refuse(error, message)
    if any(isinstance(one, MembershipRefused) for one in worker.events):
        return _after_refusal(worker, message)
    return _after_failure(worker, message)


def _after_refusal(worker: MemberDriver, message: str | None) -> Reaction:
    (refused,) = (one for one in worker.events if isinstance(one, MembershipRefused))
    assert (message or "") in refused.reason
    worker.own()
    worker.advance_clock(LONG_MS)
    assert worker.sent == []
    return Reaction.ENDS


def _after_failure(worker: MemberDriver, message: str | None) -> Reaction:
    """The reaction of a worker whose membership is not lost."""
    assert (message or "") in worker.logged[-1]
    reaction = Reaction.SENDS_ALL
    if not worker.count(HeartbeatRequest):
        reaction = Reaction.ASKS_AGAIN
        worker.advance_clock(worker.member.settings.retry_backoff_ms)
    again = worker.heartbeat
    assert again.owned is not None
    assert again.client_assignors is not None
    assert again.rebalance_timeout_ms is not None
    return reaction


def _after_leave(error: E, message: str | None) -> Reaction:
    worker = MemberDriver()
    worker.join()
    worker.own()
    worker.feed(Leave(reason="stop"))
    worker.refuse(error, message)
    assert worker.take_events(MemberEnded) == [MemberEnded()]
    return Reaction.HAS_LEFT


def _after_computation(request: str, error: E, message: str | None) -> Reaction:
    worker = MemberDriver()
    worker.join()
    worker.end_hold()
    worker.answer(accepted(1, error=E.COMPUTE_ASSIGNMENT))
    kind: type[PrepareAssignmentRequest | InstallAssignmentRequest] = PrepareAssignmentRequest
    if request == "prepare":
        worker.reply(worker.pending(kind), PrepareAssignmentResponse(error=error, message=message))
    else:
        snapshot = GroupSnapshot(
            group_epoch=GroupEpoch(7), assignor="cooperative", members=(), config_offset=ConfigOffset(4),
            configured=SOME,
        )  # fmt: skip
        worker.reply(worker.pending(kind), PrepareAssignmentResponse(snapshot=snapshot))
        (ordered,) = worker.take_events(TargetRequested)
        worker.feed(InstallTarget(token=ordered.token, target=ComputedTarget(members={})))
        kind = InstallAssignmentRequest
        worker.reply(worker.pending(kind), InstallAssignmentResponse(error=error, message=message))
    assert worker.take_events(MembershipLost) == [], "it stops nothing"
    worker.answer(accepted(1))
    if worker.count(kind):
        return Reaction.SENDS_AFTER_HEARTBEAT
    assert isinstance(worker.member.computation, NotComputing)
    if not worker.logged:
        return Reaction.HAS_INSTALLED
    assert (message or "") in worker.logged[-1]
    return Reaction.COMPUTES_NO_MORE


def _after_describe(error: E, message: str | None) -> Reaction:
    worker = MemberDriver()
    worker.feed(RequestGroupDescription())
    worker.reply(worker.pending(GroupDescriptionRequest), GroupDescriptionResponse(error=error, message=message))
    (described,) = worker.take_events(GroupDescribed)
    assert described == GroupDescribed(description=None, error=message or error.name)
    return Reaction.REPORTS
