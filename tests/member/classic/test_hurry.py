"""After a round a member asks often for the next one, until a quiet time has passed; then as seldom as before."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.member.classic.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinRequest,
    LeaveRequest,
    SyncRequest,
)
from coterie.member.classic.state import WasIn
from coterie.member.events import RejoinWanted
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.membership import Lost
from coterie.wire.connect_bytes import decode_metadata
from coterie.wire.errors import ErrorCode
from tests.member.classic.driving import SOME_WORK, Worker, joined, synced

INTERVAL_MS, OFTEN_MS, QUIET_MS = 3_000, 200, 6_000
FINE = HeartbeatResponse(error=ErrorCode.none)


@pytest.fixture
def worker() -> Worker:
    return hurrying()


def hurrying(interval_ms: int = INTERVAL_MS, often_ms: int = OFTEN_MS) -> Worker:
    worker = Worker()
    worker.member.settings = replace(
        worker.member.settings,
        heartbeat_interval_ms=interval_ms,
        rebalance_heartbeat_interval_ms=often_ms,
        quiet_ms=QUIET_MS,
    )
    return worker


def settle(worker: Worker) -> None:
    worker.subscribe()
    worker.answer(JoinRequest, joined())
    worker.answer(SyncRequest, synced(SOME_WORK))
    worker.subscribe(SOME_WORK)


def beats_at_ms(worker: Worker, ms: int) -> list[int]:
    """When heartbeats are sent in the next ``ms``, from now on; each is answered at once."""
    begin_ms, found = worker.now_ms, []
    for _ in range(ms // 10):
        worker.pass_time(10)
        if worker.sent(HeartbeatRequest) is not None:
            found.append(worker.now_ms - begin_ms)
            worker.answer(HeartbeatRequest, FINE)
    return found


def test_after_an_assignment_it_asks_often_and_after_the_quiet_time_as_before(worker: Worker) -> None:
    settle(worker)
    beats = beats_at_ms(worker, QUIET_MS + 3 * INTERVAL_MS)
    often = [*range(OFTEN_MS, QUIET_MS + 1, OFTEN_MS)]
    assert beats == [*often, QUIET_MS + INTERVAL_MS, QUIET_MS + 2 * INTERVAL_MS, QUIET_MS + 3 * INTERVAL_MS]


def test_it_learns_of_the_round_of_whoever_gave_something_back_at_once(worker: Worker) -> None:
    settle(worker)
    worker.pass_time(OFTEN_MS)
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.rebalance_in_progress))
    assert worker.sent(JoinRequest) is not None


def test_another_round_begins_the_quiet_time_anew(worker: Worker) -> None:
    settle(worker)
    beats_at_ms(worker, QUIET_MS + INTERVAL_MS)
    worker.feed(RejoinWanted(reason="a wish"))
    worker.answer(JoinRequest, joined(2))
    worker.answer(SyncRequest, synced())
    assert beats_at_ms(worker, 4 * OFTEN_MS) == [OFTEN_MS * n for n in (1, 2, 3, 4)]


def test_it_never_asks_less_often_than_it_would_anyway() -> None:
    worker = hurrying(interval_ms=150)
    settle(worker)
    assert beats_at_ms(worker, 300) == [150, 300]


def test_while_an_answer_is_out_no_second_one_is_asked_for(worker: Worker) -> None:
    settle(worker)
    worker.pass_time(10 * OFTEN_MS)
    assert worker.beats() == 1


def test_a_place_that_is_lost_is_hurried_for_no_more(worker: Worker) -> None:
    settle(worker)
    worker.pass_time(OFTEN_MS)
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.unknown_member_id))
    assert worker.heard(Lost)
    assert isinstance(worker.member.place, WasIn)
    worker.subscribe(NO_JOBS)
    worker.answer(JoinRequest, joined(2))
    worker.out.clear()
    assert beats_at_ms(worker, INTERVAL_MS) == [INTERVAL_MS], "nothing has been dealt out yet"
    assert worker.sent(LeaveRequest) is None


def told_to_give_back(worker: Worker) -> None:
    """It is told to give SOME_WORK back, and then another member, which has given back its own, begins a round."""
    settle(worker)
    worker.feed(RejoinWanted(reason="a wish"))
    worker.answer(JoinRequest, joined(2))
    worker.answer(SyncRequest, synced(revoked=SOME_WORK))
    worker.pass_time(OFTEN_MS)
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.rebalance_in_progress))


def test_it_joins_the_next_round_when_what_it_gives_back_has_stopped(worker: Worker) -> None:
    told_to_give_back(worker)
    assert worker.sent(JoinRequest) is None
    worker.pass_time(OFTEN_MS)
    assert worker.beats() == 1, "it asks on, and so keeps its place"
    worker.subscribe(NO_JOBS)
    join = worker.sent(JoinRequest)
    assert join is not None
    allocation = decode_metadata(join.protocols[0][1])[1].allocation
    assert allocation is not None
    assert allocation.assigned == NO_JOBS


@pytest.mark.parametrize(("rebalance_timeout_ms", "held_ms"), [(60_000, 2_000), (10_000, 2_000), (3_000, 1_500)])
def test_nobody_waits_long_for_a_slow_stop_and_the_group_never_so_long_that_it_goes_on_without(
    worker: Worker, rebalance_timeout_ms: int, held_ms: int
) -> None:
    worker.member.settings = replace(worker.member.settings, rebalance_timeout_ms=rebalance_timeout_ms, quiet_ms=31_000)
    told_to_give_back(worker)
    worker.pass_time(held_ms - OFTEN_MS - 1)
    assert worker.sent(JoinRequest) is None
    worker.pass_time(1)
    join = worker.sent(JoinRequest)
    assert join is not None
    allocation = decode_metadata(join.protocols[0][1])[1].allocation
    assert allocation is not None
    assert allocation.assigned == SOME_WORK, "it still runs, so nobody else may be given it"


ANSWERS = st.sampled_from(
    (
        ErrorCode.none,
        ErrorCode.rebalance_in_progress,
        ErrorCode.illegal_generation,
        ErrorCode.unknown_member_id,
        ErrorCode.coordinator_load_in_progress,
    )
)


@given(st.lists(st.tuples(st.integers(0, 2_000), ANSWERS, st.booleans()), max_size=30))
def test_whatever_happens_the_interval_is_the_usual_one_again_when_all_is_quiet(
    course: list[tuple[int, ErrorCode, bool]],
) -> None:
    worker = hurrying()
    settle(worker)
    for number, (ms, error, wish) in enumerate(course):
        worker.pass_time(ms)
        if worker.sent(HeartbeatRequest) is not None:
            worker.answer(HeartbeatRequest, HeartbeatResponse(error=error))
        if wish:
            worker.feed(RejoinWanted(reason="a wish"))
        go_on(worker, number + 2)
    for _ in range(2 * QUIET_MS // OFTEN_MS):
        worker.pass_time(OFTEN_MS)
        go_on(worker, len(course) + 2)
        if worker.sent(HeartbeatRequest) is not None:
            worker.answer(HeartbeatRequest, FINE)
    beats = beats_at_ms(worker, 4 * INTERVAL_MS)
    assert len(beats) >= 3
    assert all(later - former == INTERVAL_MS for former, later in pairwise(beats)), beats


def go_on(worker: Worker, generation: int) -> None:
    """Its group takes part, and it has stopped whatever it has lost."""
    if worker.heard(Lost):
        worker.subscribe(NO_JOBS)
    while worker.sent(JoinRequest) is not None or worker.sent(SyncRequest) is not None:
        if worker.sent(SyncRequest) is not None:
            worker.answer(SyncRequest, synced())
        else:
            worker.answer(JoinRequest, joined(generation))
