"""The bookkeeping of calls into plug-ins, without threads: how many run at once, and which are lost."""

import pytest

from coterie.spark.call_ledger import COUNTED_AGE_S, CallId, CallLedger, CallQueue, Stage

STARTS = CallQueue(name="start", concurrent_max=2)
STOPS = CallQueue(name="stop", concurrent_max=1)


def begin(ledger: CallLedger, call_id: CallId, *, now_s: float, timeout_s: float, name: str = "start") -> None:
    assert ledger.begin_stage(call_id, Stage(name=name, began_at_s=now_s, ends_at_s=now_s + timeout_s))


def test_calls_of_a_queue_start_in_order_and_another_queue_has_its_own_limit() -> None:
    ledger = CallLedger()
    first, second, third = (ledger.add(STARTS) for _ in range(3))
    stop = ledger.add(STOPS)
    assert ledger.start_calls(0) == [first, second, stop]
    assert ledger.start_calls(1) == []
    assert ledger.end(second)
    assert ledger.start_calls(1) == [third]


def test_calls_older_than_the_counted_age_make_room_for_as_many_others() -> None:
    ledger = CallLedger()
    calls = [ledger.add(STARTS) for _ in range(5)]
    assert ledger.start_calls(0) == calls[:2]
    assert ledger.next_due_s(0) == COUNTED_AGE_S
    assert ledger.start_calls(COUNTED_AGE_S - 0.01) == []
    assert ledger.start_calls(COUNTED_AGE_S) == calls[2:4]
    assert ledger.next_due_s(COUNTED_AGE_S) == 2 * COUNTED_AGE_S
    assert ledger.lost_count == 0, "an old call is not lost before its time limit is over"


def test_a_call_is_lost_at_the_end_of_its_stage_and_no_longer_when_it_has_returned() -> None:
    ledger = CallLedger()
    call = ledger.add(STARTS)
    ledger.start_calls(0)
    begin(ledger, call, now_s=0, timeout_s=60)
    assert ledger.next_due_s(0) == 60
    assert ledger.expire_calls(59.9) == []
    (expired,) = ledger.expire_calls(60)
    assert expired.call_id == call
    assert expired.stage is not None
    assert (expired.stage.name, expired.has_stage_expired) == ("start", True)
    assert ledger.expire_calls(61) == [], "a call expires once"
    assert (ledger.lost_count, ledger.running(), ledger.next_due_s(61)) == (1, [], None)
    assert not ledger.begin_stage(call, Stage(name="next", began_at_s=61, ends_at_s=99))
    ledger.end_stage(call, now_s=61, outer_ends_at_s=99)
    assert not ledger.end(call), "the result of a lost call does not count"
    assert ledger.lost_count == 0


def test_only_the_innermost_stage_has_a_time_limit_and_the_outer_one_begins_again() -> None:
    ledger = CallLedger()
    call = ledger.add(STARTS)
    ledger.start_calls(0)
    begin(ledger, call, now_s=0, timeout_s=10)
    begin(ledger, call, now_s=9, timeout_s=10, name="take over")
    assert ledger.expire_calls(18) == []
    ledger.end_stage(call, now_s=18, outer_ends_at_s=28)
    assert ledger.next_due_s(18) == 28
    (expired,) = ledger.expire_calls(28)
    assert expired.stage == Stage(name="start", began_at_s=18, ends_at_s=28)


def test_a_call_in_no_stage_has_no_time_limit() -> None:
    ledger = CallLedger()
    call = ledger.add(STARTS)
    ledger.start_calls(0)
    begin(ledger, call, now_s=0, timeout_s=10)
    ledger.end_stage(call, now_s=1, outer_ends_at_s=11)
    assert ledger.next_due_s(1) is None
    assert ledger.expire_calls(1e9) == []


@pytest.mark.parametrize("is_running", [True, False])
def test_a_call_that_is_not_needed_gets_a_shorter_time_limit_and_never_a_longer_one(is_running: bool) -> None:
    ledger = CallLedger()
    call = ledger.add(STARTS, ends_at_s=100)
    if is_running:
        ledger.start_calls(0)
        begin(ledger, call, now_s=0, timeout_s=60)
    ledger.limit(call, 5)
    ledger.limit(call, 50)
    assert ledger.expire_calls(4.9) == []
    (expired,) = ledger.expire_calls(5)
    assert not expired.has_stage_expired
    assert ledger.lost_count == (1 if is_running else 0), "only a call that runs has a thread to lose"
    assert ledger.start_calls(6) == []


def test_closing_removes_the_calls_that_wait() -> None:
    ledger = CallLedger()
    running, waiting = ledger.add(STOPS), ledger.add(STOPS)
    ledger.start_calls(0)
    assert ledger.remove_waiting() == [waiting]
    assert ledger.running() == [running]
    assert ledger.end(running)
    assert ledger.start_calls(0) == []
