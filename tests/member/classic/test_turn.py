"""A new failure is logged at once, and again at intervals while it lasts."""

from coterie.member.classic.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinRequest,
    JoinResponse,
)
from coterie.member.events import RequestFailed
from coterie.member.failure_log import FAILURES_MAX
from coterie.nouns.membership import Rejoin
from coterie.wire.errors import ErrorCode
from tests.member.classic.driving import MemberDriver


def test_an_unreachable_coordinator_is_logged_at_once_and_then_periodically(worker: MemberDriver) -> None:
    worker.set_worker_state()
    logged_at_s: list[int] = []
    for _ in range(700):
        if worker.sent(JoinRequest) is not None:
            worker.fail(JoinRequest)
        if worker.log_infos:
            logged_at_s.append(worker.now_ms // 1000)
            text = worker.log_infos.pop()
        worker.advance_clock(100)
    assert logged_at_s == [0, 30, 60]
    assert "(for 60 s now; retrying)" in text


def test_a_different_failure_is_logged_at_once(worker: MemberDriver) -> None:
    worker.set_worker_state()
    worker.fail(JoinRequest)
    worker.advance_clock(1_000)
    worker.answer(JoinRequest, JoinResponse(error=ErrorCode.coordinator_load_in_progress))
    assert [text.partition(":")[0] for text in worker.log_infos] == [
        "A request to the group's coordinator failed; this worker joins again",
        "The group's coordinator responded with coordinator_load_in_progress; this worker joins again",
    ]


def test_two_alternating_failures_are_logged_once_each(worker: MemberDriver) -> None:
    worker.settle()
    worker.log_infos.clear()
    worker.feed(Rejoin(reason="test"))
    while worker.now_ms < 4_000:
        worker.advance_clock(100)
        for kind in (HeartbeatRequest, JoinRequest):
            if worker.sent(kind) is not None:
                worker.fail(kind)
    assert sorted(text.partition(":")[0] for text in worker.log_infos) == [
        "A heartbeat to the group's coordinator failed; this worker sends another one",
        "A request to the group's coordinator failed; this worker joins again",
    ]
    # A successful response ends both failures; the next failure is logged as a new one.
    worker.log_infos.clear()
    worker.advance_clock(1_000)
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.rebalance_in_progress))
    worker.fail(JoinRequest)
    assert [text.partition(":")[0] for text in worker.log_infos] == [
        "A request to the group's coordinator failed; this worker joins again"
    ]


def test_only_the_most_recent_failures_are_kept(worker: MemberDriver) -> None:
    worker.set_worker_state()
    for number in range(100):
        worker.advance_clock(1_000)
        worker.feed(RequestFailed(id=worker.take_request(JoinRequest).id, reason=f"failure {number}"))
    assert len(worker.log_infos) == 100
    assert len(worker.member.failures) == FAILURES_MAX
