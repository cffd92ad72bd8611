"""Troubles are logged at once when they are new, and again while they last."""

from coterie.member.classic.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinRequest,
    JoinResponse,
)
from coterie.member.classic.turn import TROUBLES_MAX
from coterie.member.events import Unanswered
from coterie.nouns.membership import Rejoin
from coterie.wire.errors import ErrorCode
from tests.member.classic.driving import Worker


def test_a_coordinator_that_stays_away_is_told_of_at_once_and_then_every_so_often(worker: Worker) -> None:
    worker.subscribe()
    said_at_s: list[int] = []
    for _ in range(700):
        if worker.sent(JoinRequest) is not None:
            worker.fail(JoinRequest)
        if worker.said:
            said_at_s.append(worker.now_ms // 1000)
            text = worker.said.pop()
        worker.pass_time(100)
    assert said_at_s == [0, 30, 60]
    assert "(for 60 s now; retrying)" in text


def test_another_trouble_is_told_of_at_once(worker: Worker) -> None:
    worker.subscribe()
    worker.fail(JoinRequest)
    worker.pass_time(1_000)
    worker.answer(JoinRequest, JoinResponse(error=ErrorCode.coordinator_load_in_progress))
    assert [text.partition(":")[0] for text in worker.said] == [
        "The request to the group's coordinator failed",
        "The group's coordinator responded coordinator_load_in_progress; joining again",
    ]


def test_two_troubles_in_turn_are_each_told_of_once(worker: Worker) -> None:
    worker.settle()
    worker.said.clear()
    worker.feed(Rejoin(reason="a wish"))
    while worker.now_ms < 4_000:
        worker.pass_time(100)
        for kind in (HeartbeatRequest, JoinRequest):
            if worker.sent(kind) is not None:
                worker.fail(kind)
    assert sorted(text.partition(":")[0] for text in worker.said) == [
        "A heartbeat failed",
        "The request to the group's coordinator failed",
    ]
    # When something comes of asking they are over, and news again.
    worker.said.clear()
    worker.pass_time(1_000)
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.rebalance_in_progress))
    worker.fail(JoinRequest)
    assert [text.partition(":")[0] for text in worker.said] == ["The request to the group's coordinator failed"]


def test_of_troubles_without_end_only_the_last_are_kept(worker: Worker) -> None:
    worker.subscribe()
    for number in range(100):
        worker.pass_time(1_000)
        worker.feed(Unanswered(id=worker.take(JoinRequest).id, reason=f"trouble {number}"))
    assert len(worker.said) == 100
    assert len(worker.member.troubles) == TROUBLES_MAX
