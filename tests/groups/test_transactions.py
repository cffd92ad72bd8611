"""The coordinator of one transactional id, event by event; error codes as Apache Kafka 4.3.1 gave them."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.engine.output import Output
from coterie.groups.transaction_messages import (
    EPOCH_MAX,
    NOBODY,
    AddPartitions,
    CancelTimer,
    Effect,
    EndTransaction,
    Event,
    Identity,
    InitProducerId,
    MarkersWritten,
    Record,
    Reply,
    SetTimer,
    TimeoutPassed,
    TopicPartition,
    TransactionState,
    TransactionWritten,
    VerifyPartitions,
)
from coterie.groups.transactions import Transaction, apply, deadline_ms, step
from coterie.wire.errors import ErrorCode

NOW_MS = 1_000_000
TIMEOUT_MS = 60_000
FRESH = 77
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
FIRST = Identity(FRESH, 0)
TIMEOUT = TimeoutPassed(fresh_producer_id=FRESH + 1)


def init(expected: Identity | None = None, timeout_ms: int = TIMEOUT_MS, fresh: int = FRESH) -> InitProducerId:
    return InitProducerId(timeout_ms=timeout_ms, timeout_max_ms=900_000, expected=expected, fresh_producer_id=fresh)


def add(producer: Identity, *partitions: TopicPartition) -> AddPartitions:
    return AddPartitions(producer=producer, partitions=frozenset(partitions))


def end(producer: Identity, *, commit: bool, bumps: bool = False, fresh: int = FRESH) -> EndTransaction:
    return EndTransaction(producer=producer, is_commit=commit, bumps_epoch=bumps, fresh_producer_id=fresh)


def asked(transaction: Transaction, event: Event, now_ms: int = NOW_MS) -> Reply:
    return reply_in(step(transaction, event, now_ms=now_ms))


def reply_in(output: Output[Record, Effect]) -> Reply:
    (reply,) = (effect for effect in output.effects if isinstance(effect, Reply))
    return reply


def markers(output: Output[Record, Effect]) -> list[tuple[Identity, bool]]:
    return [(record.producer, record.is_commit) for record in output.records if isinstance(record, MarkersWritten)]


def begun(*partitions: TopicPartition) -> Transaction:
    """A transaction of `FIRST` that is open."""
    transaction = Transaction()
    assert asked(transaction, init()).producer == FIRST
    assert asked(transaction, add(FIRST, *(partitions or (P0,)))).error is ErrorCode.none
    return transaction


# -- who the producer is ----------------------------------------------------------------------------------------------


def test_the_first_producer_gets_the_fresh_id_and_later_ones_its_next_epochs() -> None:
    transaction = Transaction()
    assert asked(transaction, init()).producer == FIRST
    assert asked(transaction, init(fresh=78)).producer == Identity(FRESH, 1)
    assert asked(transaction, init(fresh=78)).producer == Identity(FRESH, 2)


@pytest.mark.parametrize("timeout_ms", [-5, 0, 900_001])
def test_a_timeout_that_cannot_be_is_refused_and_nothing_is_remembered(timeout_ms: int) -> None:
    transaction = Transaction()
    assert asked(transaction, init(timeout_ms=timeout_ms)).error is ErrorCode.invalid_transaction_timeout
    assert transaction.written is None


def test_a_fenced_producer_can_do_nothing_any_more() -> None:
    transaction = begun()
    assert asked(transaction, init()).producer == Identity(FRESH, 2)
    fenced = ErrorCode.producer_fenced
    assert asked(transaction, add(FIRST, P0)).error is fenced
    assert asked(transaction, VerifyPartitions(producer=FIRST, partitions=frozenset((P0,)))).error is fenced
    assert asked(transaction, end(FIRST, commit=True)).error is fenced
    assert asked(transaction, end(FIRST, commit=True, bumps=True)).error is fenced
    assert asked(transaction, init(FIRST)).error is fenced


def test_a_new_producer_aborts_what_the_one_before_left_open() -> None:
    transaction = begun(P0, P1)
    output = step(transaction, init(), now_ms=NOW_MS)
    assert markers(output) == [(Identity(FRESH, 1), False)]
    assert CancelTimer() in output.effects
    assert reply_in(output).producer == Identity(FRESH, 2)
    assert transaction.written is not None
    assert transaction.written.state is TransactionState.EMPTY


def test_a_producer_that_says_who_it_is_goes_on_with_the_next_epoch_and_may_ask_twice() -> None:
    transaction = Transaction()
    asked(transaction, init())
    assert asked(transaction, init(FIRST)).producer == Identity(FRESH, 1)
    assert asked(transaction, init(FIRST)).producer == Identity(FRESH, 1), "it has not heard the first answer"
    assert asked(transaction, init(Identity(FRESH, 1))).producer == Identity(FRESH, 2)
    for stranger in (FIRST, Identity(FRESH, 9), Identity(FRESH + 1, 2)):
        assert asked(transaction, init(stranger)).error is ErrorCode.producer_fenced
    assert asked(Transaction(), init(Identity(1234, 7))).producer == FIRST, "nobody is known under this id"


def test_a_producer_that_starts_over_in_its_own_transaction_aborts_it() -> None:
    transaction = begun()
    output = step(transaction, init(FIRST), now_ms=NOW_MS)
    assert markers(output) == [(Identity(FRESH, 1), False)]
    assert reply_in(output).producer == Identity(FRESH, 1)


def test_a_late_question_of_a_former_self_does_not_abort_what_is_open_now() -> None:
    transaction = Transaction()
    asked(transaction, init())
    second = asked(transaction, init(FIRST)).producer
    asked(transaction, add(second, P0))
    output = step(transaction, init(FIRST), now_ms=NOW_MS)
    assert reply_in(output).error is ErrorCode.producer_fenced
    assert not output.records


def test_when_the_epochs_are_used_up_the_producer_gets_another_id() -> None:
    transaction = at_epoch(EPOCH_MAX)
    assert asked(transaction, init(fresh=99)).producer == Identity(99, 0)
    assert asked(transaction, init(Identity(FRESH, EPOCH_MAX))).error is ErrorCode.producer_fenced


@pytest.mark.parametrize(
    ("event", "producer"),
    [
        (init(fresh=99), Identity(99, 1)),
        (init(Identity(FRESH, EPOCH_MAX), fresh=99), Identity(99, 0)),
        (end(Identity(FRESH, EPOCH_MAX), commit=False, bumps=True, fresh=99), Identity(99, 0)),
        (TimeoutPassed(fresh_producer_id=99), Identity(99, 0)),
    ],
)
def test_the_last_epoch_of_all_is_left_for_the_markers(event: Event, producer: Identity) -> None:
    transaction = at_epoch(EPOCH_MAX)
    asked(transaction, add(Identity(FRESH, EPOCH_MAX), P0))
    output = step(transaction, event, now_ms=NOW_MS + TIMEOUT_MS)
    assert markers(output) == [(Identity(FRESH, EPOCH_MAX + 1), False)]
    assert transaction.written is not None
    assert transaction.written.producer == producer


def at_epoch(epoch: int) -> Transaction:
    transaction = Transaction()
    apply(
        transaction,
        TransactionWritten(
            producer=Identity(FRESH, epoch),
            previous=NOBODY,
            timeout_ms=TIMEOUT_MS,
            state=TransactionState.EMPTY,
            partitions=frozenset(),
            started_at_ms=-1,
            written_at_ms=NOW_MS,
        ),
    )
    return transaction


# -- what is in the transaction ---------------------------------------------------------------------------------------


def test_partitions_are_added_once_and_begin_the_transaction() -> None:
    transaction = Transaction()
    asked(transaction, init())
    output = step(transaction, add(FIRST, P0), now_ms=NOW_MS)
    assert SetTimer(at_ms=NOW_MS + TIMEOUT_MS) in output.effects
    assert not step(transaction, add(FIRST, P0), now_ms=NOW_MS).records
    output = step(transaction, add(FIRST, P1), now_ms=NOW_MS + 5)
    assert not any(isinstance(effect, SetTimer) for effect in output.effects), "its time runs from its begin"
    assert transaction.written is not None
    assert deadline_ms(transaction.written) == NOW_MS + TIMEOUT_MS
    assert transaction.written.partitions == {P0, P1}


def test_what_is_not_in_the_transaction_is_named() -> None:
    transaction = begun(P0)
    verify = VerifyPartitions(producer=FIRST, partitions=frozenset((P0, P1)))
    assert asked(transaction, verify).missing == {P1}
    asked(transaction, end(FIRST, commit=True))
    assert asked(transaction, verify).missing == {P0, P1}


@pytest.mark.parametrize(
    ("producer", "error"),
    [
        (Identity(FRESH, 1), ErrorCode.producer_fenced),
        (Identity(FRESH + 1, 0), ErrorCode.invalid_producer_id_mapping),
    ],
)
def test_who_is_not_the_producer_is_told_so(producer: Identity, error: ErrorCode) -> None:
    transaction = begun()
    assert asked(transaction, add(producer, P1)).error is error
    assert asked(transaction, end(producer, commit=True)).error is error
    assert asked(transaction, end(producer, commit=True, bumps=True)).error is error
    assert asked(Transaction(), add(producer, P1)).error is ErrorCode.invalid_producer_id_mapping
    assert asked(Transaction(), end(producer, commit=True)).error is ErrorCode.invalid_producer_id_mapping


# -- how it ends ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_writes_markers_and_may_be_asked_for_again(commit: bool) -> None:
    transaction = begun()
    output = step(transaction, end(FIRST, commit=commit), now_ms=NOW_MS)
    assert markers(output) == [(FIRST, commit)]
    assert CancelTimer() in output.effects
    again = step(transaction, end(FIRST, commit=commit), now_ms=NOW_MS)
    assert (reply_in(again).error, again.records) == (ErrorCode.none, ())
    assert asked(transaction, end(FIRST, commit=not commit)).error is ErrorCode.invalid_txn_state
    # Nobody was bumped, so this is no question that is asked twice.
    assert asked(transaction, init(FIRST)).producer == Identity(FRESH, 1)


@pytest.mark.parametrize("commit", [True, False])
def test_since_v5_an_end_gives_the_next_epoch_and_may_be_asked_for_again(commit: bool) -> None:
    transaction = begun()
    second = Identity(FRESH, 1)
    output = step(transaction, end(FIRST, commit=commit, bumps=True), now_ms=NOW_MS)
    assert markers(output) == [(second, commit)]
    assert reply_in(output).producer == second
    again = step(transaction, end(FIRST, commit=commit, bumps=True), now_ms=NOW_MS)
    assert (reply_in(again).producer, again.records) == (second, ())
    assert asked(transaction, end(FIRST, commit=not commit, bumps=True)).error is ErrorCode.invalid_txn_state
    assert asked(transaction, end(second, commit=True, bumps=True)).error is ErrorCode.invalid_txn_state


def test_what_was_not_begun_cannot_be_committed_and_since_v5_an_abort_bumps_the_epoch() -> None:
    transaction = Transaction()
    asked(transaction, init())
    for commit in (True, False):
        assert asked(transaction, end(FIRST, commit=commit)).error is ErrorCode.invalid_txn_state
    assert asked(transaction, end(FIRST, commit=True, bumps=True)).error is ErrorCode.invalid_txn_state
    assert asked(transaction, end(FIRST, commit=False, bumps=True)).producer == Identity(FRESH, 1)
    assert asked(transaction, end(FIRST, commit=False, bumps=True)).producer == Identity(FRESH, 1)


def test_since_v5_an_end_in_the_last_epoch_gives_another_id() -> None:
    transaction = at_epoch(EPOCH_MAX)
    last = Identity(FRESH, EPOCH_MAX)
    asked(transaction, add(last, P0))
    output = step(transaction, end(last, commit=True, bumps=True, fresh=99), now_ms=NOW_MS)
    assert markers(output) == [(Identity(FRESH, EPOCH_MAX + 1), True)]
    assert reply_in(output).producer == Identity(99, 0)
    assert asked(transaction, end(last, commit=True, bumps=True)).producer == Identity(99, 0)


# -- when its time is over --------------------------------------------------------------------------------------------


def test_a_transaction_that_outlives_its_timeout_is_aborted_and_its_producer_fenced() -> None:
    transaction = begun()
    assert not step(transaction, TIMEOUT, now_ms=NOW_MS + TIMEOUT_MS - 1).records, "a stray timer"
    output = step(transaction, TIMEOUT, now_ms=NOW_MS + TIMEOUT_MS)
    assert markers(output) == [(Identity(FRESH, 1), False)]
    assert not step(transaction, TIMEOUT, now_ms=NOW_MS + TIMEOUT_MS).records
    assert asked(transaction, end(FIRST, commit=True)).error is ErrorCode.producer_fenced
    assert asked(transaction, add(FIRST, P0)).error is ErrorCode.producer_fenced
    assert asked(transaction, end(FIRST, commit=True, bumps=True)).error is ErrorCode.invalid_txn_state
    assert asked(transaction, end(FIRST, commit=False, bumps=True)).producer == Identity(FRESH, 1)
    assert asked(transaction, init(FIRST)).producer == Identity(FRESH, 1), "it may go on, with what it knows it to be"


# -- whatever comes ---------------------------------------------------------------------------------------------------

epochs = st.integers(0, 5) | st.integers(EPOCH_MAX - 2, EPOCH_MAX + 1)
identities = st.builds(Identity, st.sampled_from([FRESH, FRESH + 1]), epochs)
some_partitions = st.frozensets(st.sampled_from([P0, P1]), min_size=1)
events = st.one_of(
    st.builds(
        InitProducerId,
        timeout_ms=st.sampled_from([0, 1_000, TIMEOUT_MS]),
        timeout_max_ms=st.just(900_000),
        expected=st.none() | identities,
        fresh_producer_id=st.just(FRESH + 1),
    ),
    st.builds(AddPartitions, producer=identities, partitions=some_partitions),
    st.builds(VerifyPartitions, producer=identities, partitions=some_partitions),
    st.builds(
        EndTransaction,
        producer=identities,
        is_commit=st.booleans(),
        bumps_epoch=st.booleans(),
        fresh_producer_id=st.just(FRESH + 1),
    ),
    st.just(TIMEOUT),
)


@given(st.sampled_from([None, 0, EPOCH_MAX - 1]), st.lists(st.tuples(events, st.integers(0, 30_000)), max_size=40))
def test_replayed_records_are_the_live_state_and_epochs_only_rise(
    epoch: int | None, steps: Iterable[tuple[Event, int]]
) -> None:
    live, replayed = (Transaction() if epoch is None else at_epoch(epoch) for _ in range(2))
    now_ms = NOW_MS
    for event, later_ms in steps:
        now_ms += later_ms
        before = live.written
        output = step(live, event, now_ms=now_ms)
        for record in output.records:
            apply(replayed, record)
        assert replayed.written == live.written
        if before is not None:
            assert live.written is not None
            assert live.written.producer >= before.producer
            was_open, is_open = (w.state is TransactionState.ONGOING for w in (before, live.written))
            ended = markers(output)
            assert len(ended) == (was_open and not is_open), "a transaction ends by markers, and by them once"
            if ended and isinstance(event, InitProducerId | TimeoutPassed):
                assert ended[0][0] > before.producer, "whoever is fenced has a smaller epoch than the marker"
        if not isinstance(event, TimeoutPassed):
            reply_in(output)
