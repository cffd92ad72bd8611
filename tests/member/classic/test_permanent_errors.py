"""An error that a retry cannot resolve is reported once; after any other error the request is retried."""

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
from coterie.member.events import MemberEnded
from coterie.nouns.membership import (
    LeaseRenewed,
    Leave,
    MembershipLost,
    MembershipRefused,
    Rejoin,
)
from coterie.wire.errors import ErrorCode
from tests.member.classic.driving import SOME_WORK, MemberDriver, joined, synced


@pytest.mark.parametrize(
    ("error", "names"),
    [
        (ErrorCode.invalid_session_timeout, ["session.timeout.ms=9000", "group.min.session.timeout.ms"]),
        (
            ErrorCode.inconsistent_group_protocol,
            [
                "connect.protocol static, sessioned, compatible, default",
                "This worker has group.protocol=classic; set the same group.protocol (classic or connect) on all",
                "group.id",
            ],
        ),
        (ErrorCode.invalid_group_id, ["group.id=fleet"]),
        (ErrorCode.group_authorization_failed, ["authorized", "group.id"]),
    ],
)
def test_an_error_caused_by_a_wrong_setting_is_reported_once_and_ends_all_requests(
    worker: MemberDriver, error: ErrorCode, names: list[str]
) -> None:
    worker.set_worker_state()
    worker.answer(JoinRequest, JoinResponse(error=error))
    (refused,) = worker.take_events(MembershipRefused)
    assert all(name in refused.reason for name in names), refused.reason
    worker.set_worker_state(SOME_WORK)
    worker.feed(Rejoin(reason="test"))
    worker.advance_clock(60_000)
    assert not worker.sent_requests
    worker.feed(Leave(reason=refused.reason))
    assert worker.take_events(MemberEnded)


def test_a_member_refused_after_joining_keeps_its_membership_until_it_leaves(worker: MemberDriver) -> None:
    worker.settle()
    worker.feed(Rejoin(reason="test"))
    worker.answer(JoinRequest, JoinResponse(error=ErrorCode.group_authorization_failed))
    assert worker.take_events(MembershipRefused)
    worker.advance_clock(1_000)
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.rebalance_in_progress))
    assert worker.take_events(LeaseRenewed)
    assert worker.sent(JoinRequest) is None
    worker.feed(Leave(reason="refused"))
    assert worker.sent(LeaveRequest) is not None


def test_a_sync_response_may_refuse_the_member_too(worker: MemberDriver) -> None:
    worker.set_worker_state()
    worker.answer(JoinRequest, joined())
    worker.answer(SyncRequest, SyncResponse(error=ErrorCode.group_authorization_failed))
    assert worker.take_events(MembershipRefused)
    worker.advance_clock(5_000)
    assert worker.sent(JoinRequest) is None


@pytest.mark.parametrize("error", [ErrorCode.inconsistent_group_protocol, ErrorCode.group_max_size_reached])
def test_a_join_is_retried_if_the_group_may_accept_the_worker_later(worker: MemberDriver, error: ErrorCode) -> None:
    worker.settle()
    worker.feed(Rejoin(reason="test"))
    worker.answer(JoinRequest, JoinResponse(error=error))
    worker.advance_clock(1_000)
    assert worker.sent(JoinRequest) is not None
    assert not worker.take_events(MembershipRefused)


def test_a_join_to_a_full_group_is_retried(worker: MemberDriver) -> None:
    worker.set_worker_state()
    worker.answer(JoinRequest, JoinResponse(error=ErrorCode.group_max_size_reached))
    worker.advance_clock(1_000)
    assert worker.sent(JoinRequest) is not None


def test_an_unauthorized_heartbeat_ends_the_membership_with_a_refusal() -> None:
    worker = MemberDriver()
    worker.set_worker_state()
    worker.answer(JoinRequest, joined())
    worker.answer(SyncRequest, synced(SOME_WORK))
    worker.herder_events.clear()
    worker.advance_clock(1_000)
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.group_authorization_failed))
    lost, refused = worker.herder_events
    assert isinstance(lost, MembershipLost)
    assert isinstance(refused, MembershipRefused)
    assert "allow its principal" in refused.reason
