"""How a member proves its place by heartbeats, and how the place ends: lease, loss, abandoning, leaving."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.member.classic.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    SyncRequest,
)
from coterie.member.classic.state import WasIn
from coterie.member.events import Answered, Left, RequestId
from coterie.nouns.ids import InstanceId
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.membership import (
    Abandon,
    Leave,
    Lost,
    MemberStateChanged,
    ProvedUntil,
    Rejoin,
)
from coterie.wire.connect import WorkerMetadata
from coterie.wire.connect_bytes import decode_metadata
from coterie.wire.errors import ErrorCode
from tests.member.classic.driving import INTERVAL_MS, OFTEN_MS, QUIET_MS, SOME_WORK, Worker, hurrying, joined, synced

# -- heartbeats and the lease -----------------------------------------------------------------------------------------


def test_heartbeats_name_the_generation_and_tell_the_herder_when_they_were_sent(worker: Worker) -> None:
    worker.settle()
    worker.pass_time(1_000)
    request = worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.none))
    assert request.generation == 1
    assert worker.heard(ProvedUntil) == [ProvedUntil(until_ms=1_000 + 6_000, session_timeout_ms=9_000)]


@pytest.mark.parametrize("error", [ErrorCode.rebalance_in_progress, ErrorCode.illegal_generation])
def test_a_heartbeat_that_tells_of_a_rebalance_begins_a_round_and_stops_nothing(
    worker: Worker, error: ErrorCode
) -> None:
    worker.settle()
    worker.pass_time(1_000)
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=error))
    assert worker.sent(JoinRequest) is not None
    assert worker.heard(MemberStateChanged)
    assert not worker.heard(Lost)


def test_heartbeats_go_on_while_a_join_is_parked_and_keep_the_lease(worker: Worker) -> None:
    worker.settle()
    worker.feed(Rejoin(reason="a wish"))
    for _ in range(30):
        worker.pass_time(1_000)
        worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.rebalance_in_progress))
    assert not worker.heard(Lost)
    assert sum(isinstance(send.request, JoinRequest) for send in worker.out) == 1
    worker.answer(JoinRequest, joined(2))
    assert worker.sent(SyncRequest) is not None


def test_a_heartbeat_of_the_generation_before_changes_nothing(worker: Worker) -> None:
    worker.settle()
    worker.pass_time(1_000)
    worker.feed(Rejoin(reason="a wish"))
    worker.answer(JoinRequest, joined(2))
    worker.answer(SyncRequest, synced())
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.illegal_generation))
    assert worker.sent(JoinRequest) is None


def test_the_lease_ends_at_two_thirds_of_the_session_from_the_sending_of_the_last_answered(worker: Worker) -> None:
    worker.settle()
    worker.pass_time(1_000)
    worker.now_ms += 2_000  # the answer lay in the socket meanwhile
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.none))
    worker.pass_time(6_999 - worker.now_ms)
    assert not worker.heard(Lost)
    worker.pass_time(1)
    assert worker.heard(Lost)


def test_an_answer_that_comes_out_of_the_socket_after_a_pause_does_not_save_the_lease(worker: Worker) -> None:
    worker.settle()
    worker.pass_time(1_000)
    worker.now_ms += 60_000
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.none))
    worker.pass_time(0)
    assert worker.heard(Lost)


def test_a_broker_that_is_back_within_the_lease_stops_nothing(worker: Worker) -> None:
    worker.settle()
    for _ in range(4):
        worker.pass_time(1_000)
        worker.fail(HeartbeatRequest)
    worker.pass_time(1_000)
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.none))
    worker.pass_time(3_000)
    assert not worker.heard(Lost)


def test_an_unanswered_heartbeat_is_tried_again_before_the_lease_is_over(worker: Worker) -> None:
    worker.settle()
    worker.pass_time(5_500)
    assert worker.beats() == 2


# -- the shorter interval while the next round is expected ------------------------------------------------------------


FINE = HeartbeatResponse(error=ErrorCode.none)


def beats_at_ms(worker: Worker, ms: int) -> list[int]:
    """When heartbeats are sent in the next ``ms``, from now on; each is answered at once."""
    begin_ms, found = worker.now_ms, []
    for _ in range(ms // 10):
        worker.pass_time(10)
        if worker.sent(HeartbeatRequest) is not None:
            found.append(worker.now_ms - begin_ms)
            worker.answer(HeartbeatRequest, FINE)
    return found


def test_after_an_assignment_it_asks_often_and_after_the_quiet_time_as_before(hurried: Worker) -> None:
    hurried.settle()
    beats = beats_at_ms(hurried, QUIET_MS + 3 * INTERVAL_MS)
    often = [*range(OFTEN_MS, QUIET_MS + 1, OFTEN_MS)]
    assert beats == [*often, QUIET_MS + INTERVAL_MS, QUIET_MS + 2 * INTERVAL_MS, QUIET_MS + 3 * INTERVAL_MS]


def test_it_learns_of_the_round_of_whoever_gave_something_back_at_once(hurried: Worker) -> None:
    hurried.settle()
    hurried.pass_time(OFTEN_MS)
    hurried.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.rebalance_in_progress))
    assert hurried.sent(JoinRequest) is not None


def test_another_round_begins_the_quiet_time_anew(hurried: Worker) -> None:
    hurried.settle()
    beats_at_ms(hurried, QUIET_MS + INTERVAL_MS)
    hurried.feed(Rejoin(reason="a wish"))
    hurried.answer(JoinRequest, joined(2))
    hurried.answer(SyncRequest, synced())
    assert beats_at_ms(hurried, 4 * OFTEN_MS) == [OFTEN_MS * n for n in (1, 2, 3, 4)]


def test_it_never_asks_less_often_than_it_would_anyway() -> None:
    worker = hurrying(interval_ms=150)
    worker.settle()
    assert beats_at_ms(worker, 300) == [150, 300]


def test_while_an_answer_is_out_no_second_one_is_asked_for(hurried: Worker) -> None:
    hurried.settle()
    hurried.pass_time(10 * OFTEN_MS)
    assert hurried.beats() == 1


def test_a_place_that_is_lost_is_hurried_for_no_more(hurried: Worker) -> None:
    hurried.settle()
    hurried.pass_time(OFTEN_MS)
    hurried.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.unknown_member_id))
    assert hurried.heard(Lost)
    assert isinstance(hurried.member.place, WasIn)
    hurried.subscribe(NO_JOBS)
    hurried.answer(JoinRequest, joined(2))
    hurried.out.clear()
    assert beats_at_ms(hurried, INTERVAL_MS) == [INTERVAL_MS], "nothing has been dealt out yet"
    assert hurried.sent(LeaveRequest) is None


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
    worker.settle()
    for number, (ms, error, wish) in enumerate(course):
        worker.pass_time(ms)
        if worker.sent(HeartbeatRequest) is not None:
            worker.answer(HeartbeatRequest, HeartbeatResponse(error=error))
        if wish:
            worker.feed(Rejoin(reason="a wish"))
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


# -- endings ----------------------------------------------------------------------------------------------------------


def said(request: JoinRequest) -> WorkerMetadata:
    return decode_metadata(request.protocols[0][1])[1]


def test_an_unknown_member_stops_everything_then_joins_as_a_new_one(worker: Worker) -> None:
    worker.settle()
    worker.pass_time(1_000)
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.unknown_member_id))
    assert worker.heard(Lost)
    worker.pass_time(30_000)
    assert worker.sent(JoinRequest) is None, "what it ran has not stopped"
    worker.subscribe(NO_JOBS)
    request = worker.sent(JoinRequest)
    assert request is not None
    assert request.member_id == ""
    assert said(request).allocation is None


def test_a_member_whose_lease_ran_out_joins_with_its_old_id(worker: Worker) -> None:
    worker.settle()
    worker.pass_time(6_000)
    assert worker.heard(Lost)
    worker.subscribe(NO_JOBS)
    request = worker.sent(JoinRequest)
    assert request is not None
    assert request.member_id == "me"
    worker.answer(JoinRequest, JoinResponse(error=ErrorCode.unknown_member_id))
    assert not worker.heard(Lost), "once is enough"
    worker.pass_time(1_000)
    request = worker.sent(JoinRequest)
    assert request is not None
    assert request.member_id == ""


def test_work_that_was_just_handed_over_has_to_stop_too_before_a_lost_member_joins(worker: Worker) -> None:
    worker.subscribe()
    worker.answer(JoinRequest, joined())
    worker.answer(SyncRequest, synced(SOME_WORK))
    worker.pass_time(1_000)
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.unknown_member_id))
    assert worker.sent(JoinRequest) is None, "the herder may have begun to start it"


@pytest.mark.parametrize("answered", [True, False])
def test_leaving_says_farewell_and_ends_even_if_nobody_answers(worker: Worker, answered: bool) -> None:
    worker.settle()
    worker.feed(Leave(reason="shutdown"))
    request = worker.sent(LeaveRequest)
    assert request is not None
    assert request.member_id == "me"
    if answered:
        worker.fail(LeaveRequest)
    else:
        worker.pass_time(1_000)
    assert worker.heard(Left)
    worker.feed(Rejoin(reason="a wish"))
    worker.feed(Leave(reason="again"))
    worker.feed(Answered(id=RequestId(1), response=joined()))
    worker.pass_time(60_000)
    assert not worker.told


def test_whoever_never_was_a_member_leaves_without_a_word(worker: Worker) -> None:
    worker.subscribe()
    worker.feed(Leave(reason="shutdown"))
    assert worker.sent(LeaveRequest) is None
    assert worker.heard(Left)


# -- a place that is given up because the herder is stuck -------------------------------------------------------------


STUCK = Abandon(reason="the herder is stuck")


def test_a_place_that_is_given_up_is_left_at_once_and_taken_anew_when_all_has_stopped(worker: Worker) -> None:
    worker.settle()
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
    worker.settle()
    worker.out.clear()
    worker.feed(STUCK)
    assert not worker.out
    worker.subscribe(NO_JOBS)
    again = worker.sent(JoinRequest)
    assert again is not None
    assert again.member_id == "me"


def test_whoever_has_lost_its_place_or_is_leaving_has_none_to_give_up(worker: Worker) -> None:
    worker.settle()
    worker.feed(STUCK)
    worker.told.clear()
    worker.feed(STUCK)
    assert not worker.told
    worker.feed(Leave(reason="shutdown"))
    worker.feed(STUCK)
    assert worker.heard(Left)
