"""The pause before a group is reloaded after several failures, and the failures that are logged."""

from coterie.broker.groups.recent_failures import RecentFailures
from coterie.nouns.errors import WorldError
from coterie.wire.errors import ErrorCode, KafkaRefusal


def pause_after(failures: RecentFailures, error: Exception, now_s: float) -> float:
    failures.add(error, "not written", now_s=now_s)
    return failures.take_pause_s()


def test_the_pause_grows_up_to_a_maximum_and_is_taken_once() -> None:
    failures = RecentFailures()
    assert failures.take_pause_s() == 0
    assert [pause_after(failures, ValueError(), now_s) for now_s in range(5)] == [0, 0.5, 1, 2, 2]
    assert failures.take_pause_s() == 0


def test_a_failure_long_after_the_last_one_is_the_first_again() -> None:
    failures = RecentFailures()
    assert [pause_after(failures, ValueError(), now_s) for now_s in (0, 59, 119, 120)] == [0, 0.5, 0, 0.5]


def test_records_of_transactions_that_clients_have_ended_cause_no_pause() -> None:
    failures = RecentFailures()
    refusal = KafkaRefusal(ErrorCode.invalid_txn_state)
    assert [pause_after(failures, refusal, now_s) for now_s in range(3)] == [0, 0, 0]
    assert pause_after(failures, ValueError(), 3) == 0


def test_failures_of_one_kind_are_logged_once_a_minute_with_their_number() -> None:
    failures = RecentFailures()
    assert failures.add(WorldError("disk full"), "not written", now_s=0) == 0
    assert failures.add(WorldError("disk full: 3 pages"), "not written", now_s=1) is None
    assert failures.add(ValueError(), "not written", now_s=2) == 0
    assert failures.add(WorldError("disk full"), "not written", now_s=61) == 1
    assert failures.add(WorldError("disk full"), "not reloaded", now_s=62) == 0, "another message"
