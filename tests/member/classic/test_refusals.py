"""An error that no retry mends is reported once; all others are asked again."""

import pytest

from coterie.member.classic.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    SyncRequest,
    SyncResponse,
)
from coterie.member.events import Left
from coterie.nouns.membership import (
    Leave,
    Lost,
    MembershipRefused,
    ProvedUntil,
    Rejoin,
)
from coterie.wire.errors import ErrorCode
from tests.member.classic.driving import SOME_WORK, Worker, joined, synced


@pytest.mark.parametrize(
    ("error", "names"),
    [
        (ErrorCode.invalid_session_timeout, ["session.timeout.ms=9000", "group.min.session.timeout.ms"]),
        (
            ErrorCode.inconsistent_group_protocol,
            ["connect.protocol static, sessioned, compatible, default", "group.id"],
        ),
        (ErrorCode.invalid_group_id, ["group.id=fleet"]),
        (ErrorCode.group_authorization_failed, ["authorized", "group.id"]),
    ],
)
def test_an_answer_that_a_wrong_setting_brought_about_is_told_once_and_nothing_more_is_asked(
    worker: Worker, error: ErrorCode, names: list[str]
) -> None:
    worker.subscribe()
    worker.answer(JoinRequest, JoinResponse(error=error))
    (refused,) = worker.heard(MembershipRefused)
    assert all(name in refused.reason for name in names), refused.reason
    worker.subscribe(SOME_WORK)
    worker.feed(Rejoin(reason="a wish"))
    worker.pass_time(60_000)
    assert not worker.out
    worker.feed(Leave(reason=refused.reason))
    assert worker.heard(Left)


def test_a_member_that_is_refused_later_keeps_its_place_until_it_leaves(worker: Worker) -> None:
    worker.settle()
    worker.feed(Rejoin(reason="a wish"))
    worker.answer(JoinRequest, JoinResponse(error=ErrorCode.group_authorization_failed))
    assert worker.heard(MembershipRefused)
    worker.pass_time(1_000)
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.rebalance_in_progress))
    assert worker.heard(ProvedUntil)
    assert worker.sent(JoinRequest) is None
    worker.feed(Leave(reason="refused"))
    assert worker.sent(LeaveRequest) is not None


def test_a_sync_can_be_refused_too(worker: Worker) -> None:
    worker.subscribe()
    worker.answer(JoinRequest, joined())
    worker.answer(SyncRequest, SyncResponse(error=ErrorCode.group_authorization_failed))
    assert worker.heard(MembershipRefused)
    worker.pass_time(5_000)
    assert worker.sent(JoinRequest) is None


@pytest.mark.parametrize("error", [ErrorCode.inconsistent_group_protocol, ErrorCode.group_max_size_reached])
def test_a_group_that_may_take_a_worker_back_later_is_asked_again(worker: Worker, error: ErrorCode) -> None:
    worker.settle()
    worker.feed(Rejoin(reason="a wish"))
    worker.answer(JoinRequest, JoinResponse(error=error))
    worker.pass_time(1_000)
    assert worker.sent(JoinRequest) is not None
    assert not worker.heard(MembershipRefused)


def test_a_full_group_is_asked_again(worker: Worker) -> None:
    worker.subscribe()
    worker.answer(JoinRequest, JoinResponse(error=ErrorCode.group_max_size_reached))
    worker.pass_time(1_000)
    assert worker.sent(JoinRequest) is not None


def test_a_heartbeat_that_is_not_authorized_ends_as_a_refusal() -> None:
    worker = Worker()
    worker.subscribe()
    worker.answer(JoinRequest, joined())
    worker.answer(SyncRequest, synced(SOME_WORK))
    worker.told.clear()
    worker.pass_time(1_000)
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.group_authorization_failed))
    lost, refused = worker.told
    assert isinstance(lost, Lost)
    assert isinstance(refused, MembershipRefused)
    assert "allow its principal" in refused.reason
