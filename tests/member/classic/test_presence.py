"""A place that is given up because the herder is stuck; loss, lease and farewell are told in `test_machine`."""

from coterie.member.classic.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    SyncRequest,
)
from coterie.member.classic.turn import TROUBLES_MAX
from coterie.member.events import AbandonWanted, Failed, LeaveWanted, Left, RejoinWanted
from coterie.nouns.ids import InstanceId
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.membership import Lost
from coterie.wire.errors import ErrorCode
from tests.member.classic.driving import SOME_WORK, Worker, joined, synced

STUCK = AbandonWanted(reason="the herder is stuck")


def settle(worker: Worker) -> None:
    worker.subscribe()
    if worker.sent(HeartbeatRequest) is not None:
        worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.unknown_member_id))
    worker.answer(JoinRequest, joined())
    worker.answer(SyncRequest, synced(SOME_WORK))
    worker.subscribe(SOME_WORK)
    worker.told.clear()


def test_a_place_that_is_given_up_is_left_at_once_and_taken_anew_when_all_has_stopped(worker: Worker) -> None:
    settle(worker)
    worker.feed(STUCK)
    farewell = worker.sent(LeaveRequest)
    assert farewell is not None
    assert farewell.member_id == "me"
    (lost,) = worker.heard(Lost)
    assert lost.reason == STUCK.reason
    worker.fail(LeaveRequest)
    worker.pass_time(60_000)
    assert not worker.out, "not before all has stopped"
    worker.subscribe(NO_JOBS)
    again = worker.sent(JoinRequest)
    assert again is not None
    assert again.member_id == "", "it left, so it is another member"


def test_a_join_that_is_parked_is_given_up_with_the_place(worker: Worker) -> None:
    worker.subscribe()
    worker.feed(STUCK)
    assert len(worker.heard(Lost)) == 1
    assert worker.sent(LeaveRequest) is None, "it had no id yet"


def test_a_static_member_gives_its_place_up_without_a_word_and_keeps_its_id() -> None:
    worker = Worker(InstanceId("one"))
    settle(worker)
    worker.out.clear()
    worker.feed(STUCK)
    assert not worker.out
    worker.subscribe(NO_JOBS)
    again = worker.sent(JoinRequest)
    assert again is not None
    assert again.member_id == "me"


def test_whoever_has_lost_its_place_or_is_leaving_has_none_to_give_up(worker: Worker) -> None:
    settle(worker)
    worker.feed(STUCK)
    worker.told.clear()
    worker.feed(STUCK)
    assert not worker.told
    worker.feed(LeaveWanted(reason="shutdown"))
    worker.feed(STUCK)
    assert worker.heard(Left)


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
    assert "(for 60 s now; asking on)" in text


def test_another_trouble_is_told_of_at_once(worker: Worker) -> None:
    worker.subscribe()
    worker.fail(JoinRequest)
    worker.pass_time(1_000)
    worker.answer(JoinRequest, JoinResponse(error=ErrorCode.coordinator_load_in_progress))
    assert [text.partition(":")[0] for text in worker.said] == [
        "The group's coordinator cannot be asked",
        "The group's coordinator answers coordinator_load_in_progress; joining again",
    ]


def test_two_troubles_in_turn_are_each_told_of_once(worker: Worker) -> None:
    settle(worker)
    worker.said.clear()
    worker.feed(RejoinWanted(reason="a wish"))
    while worker.now_ms < 4_000:
        worker.pass_time(100)
        for kind in (HeartbeatRequest, JoinRequest):
            if worker.sent(kind) is not None:
                worker.fail(kind)
    assert sorted(text.partition(":")[0] for text in worker.said) == [
        "A heartbeat failed",
        "The group's coordinator cannot be asked",
    ]
    # When something comes of asking they are over, and news again.
    worker.said.clear()
    worker.pass_time(1_000)
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.rebalance_in_progress))
    worker.fail(JoinRequest)
    assert [text.partition(":")[0] for text in worker.said] == ["The group's coordinator cannot be asked"]


def test_of_troubles_without_end_only_the_last_are_kept(worker: Worker) -> None:
    worker.subscribe()
    for number in range(100):
        worker.pass_time(1_000)
        worker.feed(Failed(id=worker.take(JoinRequest).id, reason=f"trouble {number}"))
    assert len(worker.said) == 100
    assert len(worker.member.troubles) == TROUBLES_MAX
