"""The bookkeeping of calls into plug-ins, without threads: how many run at once, and which are lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.spark.call_ledger import (
    COUNTED_AS_RUNNING_MAX_S,
    COUNTED_AS_RUNNING_MIN_S,
    CallId,
    CallLedger,
    CallQueueSpec,
    CallStage,
    time_counted_as_running_s,
)

STARTS = CallQueueSpec(name="start", concurrent_calls_max=2)
STOPS = CallQueueSpec(name="stop", concurrent_calls_max=1)


def begin(ledger: CallLedger, call_id: CallId, *, now_s: float, timeout_s: float, name: str = "start") -> None:
    assert ledger.begin_stage_unless_timed_out(
        call_id, CallStage(name=name, began_at_s=now_s, deadline_s=now_s + timeout_s)
    )


def test_calls_of_a_queue_start_in_order_and_another_queue_has_its_own_limit() -> None:
    ledger = CallLedger()
    first, second, third = (ledger.add(STARTS) for _ in range(3))
    stop = ledger.add(STOPS)
    assert ledger.mark_next_calls_running(0) == [first, second, stop]
    assert ledger.mark_next_calls_running(0.5) == []
    assert ledger.remove_and_return_whether_in_time(second)
    assert ledger.mark_next_calls_running(0.5) == [third]


def test_calls_that_have_run_for_long_make_room_for_as_many_others_which_count_for_half_the_time() -> None:
    ledger = CallLedger()
    calls = [ledger.add(STARTS) for _ in range(5)]
    assert ledger.mark_next_calls_running(0) == calls[:2]
    assert ledger.next_change_at_s(0) == COUNTED_AS_RUNNING_MAX_S
    assert ledger.mark_next_calls_running(COUNTED_AS_RUNNING_MAX_S - 0.01) == []
    assert ledger.mark_next_calls_running(COUNTED_AS_RUNNING_MAX_S) == calls[2:4]
    assert ledger.next_change_at_s(COUNTED_AS_RUNNING_MAX_S) == 1.5 * COUNTED_AS_RUNNING_MAX_S
    assert ledger.lost_thread_count == 0, "an old call is not lost before its time limit is over"
    for call in calls[:4]:
        assert ledger.remove_and_return_whether_in_time(call)
    assert ledger.mark_next_calls_running(9) == calls[4:]
    assert time_counted_as_running_s(STARTS, hanging_count=1) == COUNTED_AS_RUNNING_MAX_S
    assert time_counted_as_running_s(STARTS, hanging_count=10_000) == COUNTED_AS_RUNNING_MIN_S
    waiting = [ledger.add(STARTS) for _ in range(2)]
    assert ledger.mark_next_calls_running(9) == waiting[:1]
    assert ledger.next_change_at_s(9) == 9 + COUNTED_AS_RUNNING_MAX_S, "the calls that returned do not count as hanging"


@given(hanging=st.integers(0, 200), concurrent_calls_max=st.integers(1, 16), lost_before=st.integers(0, 100))
def test_calls_that_hang_delay_the_call_behind_them_by_a_bounded_time(
    hanging: int, concurrent_calls_max: int, lost_before: int
) -> None:
    queue, ledger, now_s = CallQueueSpec(name="start", concurrent_calls_max=concurrent_calls_max), CallLedger(), 0.0
    for _ in range(lost_before):
        call = ledger.add(queue)
        while call not in ledger.mark_next_calls_running(now_s):
            now_s = next_second(ledger, now_s)
        ledger.shorten_time_limit(call, now_s)
        ledger.expire_calls(now_s)
    assert ledger.lost_thread_count == lost_before
    began_s, ahead, good = now_s, [ledger.add(queue) for _ in range(hanging)], ledger.add(queue)
    while good not in (started := ledger.mark_next_calls_running(now_s)):
        assert len(started) <= concurrent_calls_max
        now_s = next_second(ledger, now_s)
    assert set(ahead) <= set(ledger.running_call_ids()), "the calls start in order"
    assert now_s - began_s <= 2 * COUNTED_AS_RUNNING_MAX_S + COUNTED_AS_RUNNING_MIN_S * (hanging / concurrent_calls_max)


def next_second(ledger: CallLedger, now_s: float) -> float:
    due_at_s = ledger.next_change_at_s(now_s)
    assert due_at_s is not None
    assert due_at_s > now_s
    return due_at_s


def test_a_call_is_lost_at_the_end_of_its_stage_and_no_longer_when_it_has_returned() -> None:
    ledger = CallLedger()
    call = ledger.add(STARTS)
    ledger.mark_next_calls_running(0)
    begin(ledger, call, now_s=0, timeout_s=60)
    assert ledger.next_change_at_s(0) == 60
    assert ledger.expire_calls(59.9) == []
    (expired,) = ledger.expire_calls(60)
    assert expired.call_id == call
    assert expired.stage is not None
    assert (expired.stage.name, expired.has_stage_expired) == ("start", True)
    assert ledger.expire_calls(61) == [], "a call expires once"
    assert (ledger.lost_thread_count, ledger.running_call_ids(), ledger.next_change_at_s(61)) == (1, [], None)
    assert not ledger.begin_stage_unless_timed_out(call, CallStage(name="next", began_at_s=61, deadline_s=99))
    ledger.end_stage_unless_timed_out(call, now_s=61, outer_deadline_s=99)
    assert not ledger.remove_and_return_whether_in_time(call), "the result of a lost call does not count"
    assert ledger.lost_thread_count == 0


def test_only_the_innermost_stage_has_a_time_limit_and_the_outer_one_begins_again() -> None:
    ledger = CallLedger()
    call = ledger.add(STARTS)
    ledger.mark_next_calls_running(0)
    begin(ledger, call, now_s=0, timeout_s=10)
    begin(ledger, call, now_s=9, timeout_s=10, name="take over")
    assert ledger.expire_calls(18) == []
    ledger.end_stage_unless_timed_out(call, now_s=18, outer_deadline_s=28)
    assert ledger.next_change_at_s(18) == 28
    (expired,) = ledger.expire_calls(28)
    assert expired.stage == CallStage(name="start", began_at_s=18, deadline_s=28)


def test_a_call_in_no_stage_has_no_time_limit() -> None:
    ledger = CallLedger()
    call = ledger.add(STARTS)
    ledger.mark_next_calls_running(0)
    begin(ledger, call, now_s=0, timeout_s=10)
    ledger.end_stage_unless_timed_out(call, now_s=1, outer_deadline_s=11)
    assert ledger.next_change_at_s(1) is None
    assert ledger.expire_calls(1e9) == []


def test_a_stage_in_a_stage_without_time_limit_has_only_the_limit_of_the_whole_call() -> None:
    ledger = CallLedger()
    call = ledger.add(STOPS, ends_at_s=100)
    ledger.mark_next_calls_running(0)
    ledger.begin_stage_unless_timed_out(call, CallStage(name="stop", began_at_s=0, deadline_s=None))
    ledger.begin_stage_unless_timed_out(call, CallStage(name="close", began_at_s=1, deadline_s=11))
    assert ledger.expire_calls(99) == []
    (expired,) = ledger.expire_calls(100)
    assert expired.stage is not None
    assert (expired.stage.name, expired.has_stage_expired) == ("close", False)


@pytest.mark.parametrize("is_running", [True, False])
def test_a_call_that_is_not_needed_gets_a_shorter_time_limit_and_never_a_longer_one(is_running: bool) -> None:
    ledger = CallLedger()
    call = ledger.add(STARTS, ends_at_s=100)
    if is_running:
        ledger.mark_next_calls_running(0)
        begin(ledger, call, now_s=0, timeout_s=60)
    ledger.shorten_time_limit(call, 5)
    ledger.shorten_time_limit(call, 50)
    assert ledger.expire_calls(4.9) == []
    (expired,) = ledger.expire_calls(5)
    assert not expired.has_stage_expired
    assert ledger.lost_thread_count == (1 if is_running else 0), "only a call that runs has a thread to lose"
    assert ledger.mark_next_calls_running(6) == []


def test_closing_removes_the_calls_that_wait() -> None:
    ledger = CallLedger()
    running, waiting = ledger.add(STOPS), ledger.add(STOPS)
    ledger.mark_next_calls_running(0)
    assert ledger.remove_waiting_calls() == [waiting]
    assert ledger.running_call_ids() == [running]
    assert ledger.remove_and_return_whether_in_time(running)
    assert ledger.mark_next_calls_running(0) == []
