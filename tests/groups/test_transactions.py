"""The coordinator of one transactional id, event by event; error codes as Apache Kafka 4.3.1 returns them."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.engine.output import Output
from coterie.groups.transaction_messages import (
    EPOCH_MAX,
    NO_PRODUCER,
    AddPartitions,
    CancelTimer,
    Effect,
    EndTransaction,
    Event,
    InitProducerId,
    MarkersWritten,
    ProducerIdAndEpoch,
    Record,
    Reply,
    SetTimer,
    TimeoutPassed,
    TopicPartition,
    TransactionState,
    TransactionWritten,
    VerifyPartitions,
)
from coterie.groups.transactions import TransactionalIdState, apply, open_transaction_deadline_ms, step
from coterie.wire.errors import ErrorCode

NOW_MS = 1_000_000
TIMEOUT_MS = 60_000
FRESH_PRODUCER_ID = 77
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
FIRST = ProducerIdAndEpoch(FRESH_PRODUCER_ID, 0)
TIMEOUT = TimeoutPassed(fresh_producer_id=FRESH_PRODUCER_ID + 1)


def init(
    expected_producer: ProducerIdAndEpoch | None = None, timeout_ms: int = TIMEOUT_MS, fresh: int = FRESH_PRODUCER_ID
) -> InitProducerId:
    return InitProducerId(
        transaction_timeout_ms=timeout_ms,
        transaction_timeout_max_ms=900_000,
        expected_producer=expected_producer,
        fresh_producer_id=fresh,
    )


def add(producer: ProducerIdAndEpoch, *partitions: TopicPartition) -> AddPartitions:
    return AddPartitions(producer=producer, partitions=frozenset(partitions))


def end(
    producer: ProducerIdAndEpoch, *, commit: bool, bumps: bool = False, fresh: int = FRESH_PRODUCER_ID
) -> EndTransaction:
    return EndTransaction(producer=producer, is_commit=commit, bumps_epoch=bumps, fresh_producer_id=fresh)


def reply_to(transaction: TransactionalIdState, event: Event, now_ms: int = NOW_MS) -> Reply:
    return reply_in(step(transaction, event, now_ms=now_ms))


def reply_in(output: Output[Record, Effect]) -> Reply:
    (reply,) = (effect for effect in output.effects if isinstance(effect, Reply))
    return reply


def markers(output: Output[Record, Effect]) -> list[tuple[ProducerIdAndEpoch, bool]]:
    return [(record.producer, record.is_commit) for record in output.records if isinstance(record, MarkersWritten)]


def ongoing_transaction(*partitions: TopicPartition) -> TransactionalIdState:
    """An open transaction of `FIRST`."""
    transaction = TransactionalIdState()
    assert reply_to(transaction, init()).producer == FIRST
    assert reply_to(transaction, add(FIRST, *(partitions or (P0,)))).error is ErrorCode.none
    return transaction


# -- producer ids and epochs ------------------------------------------------------------------------------------------


def test_the_first_producer_gets_the_fresh_id_and_later_ones_its_next_epochs() -> None:
    transaction = TransactionalIdState()
    assert reply_to(transaction, init()).producer == FIRST
    assert reply_to(transaction, init(fresh=78)).producer == ProducerIdAndEpoch(FRESH_PRODUCER_ID, 1)
    assert reply_to(transaction, init(fresh=78)).producer == ProducerIdAndEpoch(FRESH_PRODUCER_ID, 2)


@pytest.mark.parametrize("timeout_ms", [-5, 0, 900_001])
def test_an_invalid_timeout_is_refused_and_nothing_is_stored(timeout_ms: int) -> None:
    transaction = TransactionalIdState()
    assert reply_to(transaction, init(timeout_ms=timeout_ms)).error is ErrorCode.invalid_transaction_timeout
    assert transaction.last_record is None


def test_every_request_of_a_fenced_producer_is_refused() -> None:
    transaction = ongoing_transaction()
    assert reply_to(transaction, init()).producer == ProducerIdAndEpoch(FRESH_PRODUCER_ID, 2)
    fenced = ErrorCode.producer_fenced
    assert reply_to(transaction, add(FIRST, P0)).error is fenced
    assert reply_to(transaction, VerifyPartitions(producer=FIRST, partitions=frozenset((P0,)))).error is fenced
    assert reply_to(transaction, end(FIRST, commit=True)).error is fenced
    assert reply_to(transaction, end(FIRST, commit=True, bumps=True)).error is fenced
    assert reply_to(transaction, init(FIRST)).error is fenced


def test_a_new_producer_aborts_the_open_transaction_of_the_previous_one() -> None:
    transaction = ongoing_transaction(P0, P1)
    output = step(transaction, init(), now_ms=NOW_MS)
    assert markers(output) == [(ProducerIdAndEpoch(FRESH_PRODUCER_ID, 1), False)]
    assert CancelTimer() in output.effects
    assert reply_in(output).producer == ProducerIdAndEpoch(FRESH_PRODUCER_ID, 2)
    assert transaction.last_record is not None
    assert transaction.last_record.state is TransactionState.EMPTY


def test_a_producer_that_sends_its_epoch_gets_the_next_one_and_may_repeat_the_request() -> None:
    transaction = TransactionalIdState()
    reply_to(transaction, init())
    assert reply_to(transaction, init(FIRST)).producer == ProducerIdAndEpoch(FRESH_PRODUCER_ID, 1)
    assert reply_to(transaction, init(FIRST)).producer == ProducerIdAndEpoch(FRESH_PRODUCER_ID, 1), (
        "it has not received the first response"
    )
    assert reply_to(transaction, init(ProducerIdAndEpoch(FRESH_PRODUCER_ID, 1))).producer == ProducerIdAndEpoch(
        FRESH_PRODUCER_ID, 2
    )
    for other_producer in (
        FIRST,
        ProducerIdAndEpoch(FRESH_PRODUCER_ID, 9),
        ProducerIdAndEpoch(FRESH_PRODUCER_ID + 1, 2),
    ):
        assert reply_to(transaction, init(other_producer)).error is ErrorCode.producer_fenced
    assert reply_to(TransactionalIdState(), init(ProducerIdAndEpoch(1234, 7))).producer == FIRST, (
        "no producer is registered under this id"
    )


def test_a_producer_that_initializes_in_its_own_transaction_aborts_it() -> None:
    transaction = ongoing_transaction()
    output = step(transaction, init(FIRST), now_ms=NOW_MS)
    assert markers(output) == [(ProducerIdAndEpoch(FRESH_PRODUCER_ID, 1), False)]
    assert reply_in(output).producer == ProducerIdAndEpoch(FRESH_PRODUCER_ID, 1)


def test_a_late_init_of_a_previous_epoch_does_not_abort_the_open_transaction() -> None:
    transaction = TransactionalIdState()
    reply_to(transaction, init())
    second = reply_to(transaction, init(FIRST)).producer
    reply_to(transaction, add(second, P0))
    output = step(transaction, init(FIRST), now_ms=NOW_MS)
    assert reply_in(output).error is ErrorCode.producer_fenced
    assert not output.records


def test_a_producer_without_remaining_epochs_gets_another_id() -> None:
    transaction = at_epoch(EPOCH_MAX)
    assert reply_to(transaction, init(fresh=99)).producer == ProducerIdAndEpoch(99, 0)
    assert (
        reply_to(transaction, init(ProducerIdAndEpoch(FRESH_PRODUCER_ID, EPOCH_MAX))).error is ErrorCode.producer_fenced
    )


@pytest.mark.parametrize(
    ("event", "producer"),
    [
        (init(fresh=99), ProducerIdAndEpoch(99, 1)),
        (init(ProducerIdAndEpoch(FRESH_PRODUCER_ID, EPOCH_MAX), fresh=99), ProducerIdAndEpoch(99, 0)),
        (
            end(ProducerIdAndEpoch(FRESH_PRODUCER_ID, EPOCH_MAX), commit=False, bumps=True, fresh=99),
            ProducerIdAndEpoch(99, 0),
        ),
        (TimeoutPassed(fresh_producer_id=99), ProducerIdAndEpoch(99, 0)),
    ],
)
def test_the_last_epoch_is_reserved_for_the_markers(event: Event, producer: ProducerIdAndEpoch) -> None:
    transaction = at_epoch(EPOCH_MAX)
    reply_to(transaction, add(ProducerIdAndEpoch(FRESH_PRODUCER_ID, EPOCH_MAX), P0))
    output = step(transaction, event, now_ms=NOW_MS + TIMEOUT_MS)
    assert markers(output) == [(ProducerIdAndEpoch(FRESH_PRODUCER_ID, EPOCH_MAX + 1), False)]
    assert transaction.last_record is not None
    assert transaction.last_record.producer == producer


def at_epoch(epoch: int) -> TransactionalIdState:
    transaction = TransactionalIdState()
    apply(
        transaction,
        TransactionWritten(
            producer=ProducerIdAndEpoch(FRESH_PRODUCER_ID, epoch),
            previous_producer=NO_PRODUCER,
            transaction_timeout_ms=TIMEOUT_MS,
            state=TransactionState.EMPTY,
            partitions=frozenset(),
            started_at_ms=-1,
            written_at_ms=NOW_MS,
        ),
    )
    return transaction


# -- partitions of the transaction ------------------------------------------------------------------------------------


def test_the_first_partition_begins_the_transaction_and_each_is_added_once() -> None:
    transaction = TransactionalIdState()
    reply_to(transaction, init())
    output = step(transaction, add(FIRST, P0), now_ms=NOW_MS)
    assert SetTimer(at_ms=NOW_MS + TIMEOUT_MS) in output.effects
    assert not step(transaction, add(FIRST, P0), now_ms=NOW_MS).records
    output = step(transaction, add(FIRST, P1), now_ms=NOW_MS + 5)
    assert not any(isinstance(effect, SetTimer) for effect in output.effects), "its timeout is measured from its begin"
    assert transaction.last_record is not None
    assert open_transaction_deadline_ms(transaction.last_record) == NOW_MS + TIMEOUT_MS
    assert transaction.last_record.partitions == {P0, P1}


def test_partitions_outside_the_transaction_are_reported_as_missing() -> None:
    transaction = ongoing_transaction(P0)
    verify = VerifyPartitions(producer=FIRST, partitions=frozenset((P0, P1)))
    assert reply_to(transaction, verify).missing_partitions == {P1}
    reply_to(transaction, end(FIRST, commit=True))
    assert reply_to(transaction, verify).missing_partitions == {P0, P1}


@pytest.mark.parametrize(
    ("producer", "error"),
    [
        (ProducerIdAndEpoch(FRESH_PRODUCER_ID, 1), ErrorCode.producer_fenced),
        (ProducerIdAndEpoch(FRESH_PRODUCER_ID + 1, 0), ErrorCode.invalid_producer_id_mapping),
    ],
)
def test_a_request_of_another_producer_is_refused(producer: ProducerIdAndEpoch, error: ErrorCode) -> None:
    transaction = ongoing_transaction()
    assert reply_to(transaction, add(producer, P1)).error is error
    assert reply_to(transaction, end(producer, commit=True)).error is error
    assert reply_to(transaction, end(producer, commit=True, bumps=True)).error is error
    assert reply_to(TransactionalIdState(), add(producer, P1)).error is ErrorCode.invalid_producer_id_mapping
    assert reply_to(TransactionalIdState(), end(producer, commit=True)).error is ErrorCode.invalid_producer_id_mapping


# -- commit and abort -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_writes_markers_and_may_be_repeated(commit: bool) -> None:
    transaction = ongoing_transaction()
    output = step(transaction, end(FIRST, commit=commit), now_ms=NOW_MS)
    assert markers(output) == [(FIRST, commit)]
    assert CancelTimer() in output.effects
    again = step(transaction, end(FIRST, commit=commit), now_ms=NOW_MS)
    assert (reply_in(again).error, again.records) == (ErrorCode.none, ())
    assert reply_to(transaction, end(FIRST, commit=not commit)).error is ErrorCode.invalid_txn_state
    # The epoch was not bumped, so this is not a repeated request.
    assert reply_to(transaction, init(FIRST)).producer == ProducerIdAndEpoch(FRESH_PRODUCER_ID, 1)


@pytest.mark.parametrize("commit", [True, False])
def test_since_v5_an_end_returns_the_next_epoch_and_may_be_repeated(commit: bool) -> None:
    transaction = ongoing_transaction()
    second = ProducerIdAndEpoch(FRESH_PRODUCER_ID, 1)
    output = step(transaction, end(FIRST, commit=commit, bumps=True), now_ms=NOW_MS)
    assert markers(output) == [(second, commit)]
    assert reply_in(output).producer == second
    again = step(transaction, end(FIRST, commit=commit, bumps=True), now_ms=NOW_MS)
    assert (reply_in(again).producer, again.records) == (second, ())
    assert reply_to(transaction, end(FIRST, commit=not commit, bumps=True)).error is ErrorCode.invalid_txn_state
    assert reply_to(transaction, end(second, commit=True, bumps=True)).error is ErrorCode.invalid_txn_state


def test_without_a_transaction_a_commit_is_refused_and_since_v5_an_abort_bumps_the_epoch() -> None:
    transaction = TransactionalIdState()
    reply_to(transaction, init())
    for commit in (True, False):
        assert reply_to(transaction, end(FIRST, commit=commit)).error is ErrorCode.invalid_txn_state
    assert reply_to(transaction, end(FIRST, commit=True, bumps=True)).error is ErrorCode.invalid_txn_state
    assert reply_to(transaction, end(FIRST, commit=False, bumps=True)).producer == ProducerIdAndEpoch(
        FRESH_PRODUCER_ID, 1
    )
    assert reply_to(transaction, end(FIRST, commit=False, bumps=True)).producer == ProducerIdAndEpoch(
        FRESH_PRODUCER_ID, 1
    )


def test_since_v5_an_end_in_the_last_epoch_returns_another_id() -> None:
    transaction = at_epoch(EPOCH_MAX)
    last = ProducerIdAndEpoch(FRESH_PRODUCER_ID, EPOCH_MAX)
    reply_to(transaction, add(last, P0))
    output = step(transaction, end(last, commit=True, bumps=True, fresh=99), now_ms=NOW_MS)
    assert markers(output) == [(ProducerIdAndEpoch(FRESH_PRODUCER_ID, EPOCH_MAX + 1), True)]
    assert reply_in(output).producer == ProducerIdAndEpoch(99, 0)
    assert reply_to(transaction, end(last, commit=True, bumps=True)).producer == ProducerIdAndEpoch(99, 0)


# -- timeout ----------------------------------------------------------------------------------------------------------


def test_a_transaction_beyond_its_timeout_is_aborted_and_its_producer_fenced() -> None:
    transaction = ongoing_transaction()
    assert not step(transaction, TIMEOUT, now_ms=NOW_MS + TIMEOUT_MS - 1).records, "a stray timer"
    output = step(transaction, TIMEOUT, now_ms=NOW_MS + TIMEOUT_MS)
    assert markers(output) == [(ProducerIdAndEpoch(FRESH_PRODUCER_ID, 1), False)]
    assert not step(transaction, TIMEOUT, now_ms=NOW_MS + TIMEOUT_MS).records
    assert reply_to(transaction, end(FIRST, commit=True)).error is ErrorCode.producer_fenced
    assert reply_to(transaction, add(FIRST, P0)).error is ErrorCode.producer_fenced
    assert reply_to(transaction, end(FIRST, commit=True, bumps=True)).error is ErrorCode.invalid_txn_state
    assert reply_to(transaction, end(FIRST, commit=False, bumps=True)).producer == ProducerIdAndEpoch(
        FRESH_PRODUCER_ID, 1
    )
    assert reply_to(transaction, init(FIRST)).producer == ProducerIdAndEpoch(FRESH_PRODUCER_ID, 1), (
        "it may continue with the producer id and epoch that it sends"
    )


# -- random events ----------------------------------------------------------------------------------------------------

epochs = st.integers(0, 5) | st.integers(EPOCH_MAX - 2, EPOCH_MAX + 1)
identities = st.builds(ProducerIdAndEpoch, st.sampled_from([FRESH_PRODUCER_ID, FRESH_PRODUCER_ID + 1]), epochs)
some_partitions = st.frozensets(st.sampled_from([P0, P1]), min_size=1)
events = st.one_of(
    st.builds(
        InitProducerId,
        transaction_timeout_ms=st.sampled_from([0, 1_000, TIMEOUT_MS]),
        transaction_timeout_max_ms=st.just(900_000),
        expected_producer=st.none() | identities,
        fresh_producer_id=st.just(FRESH_PRODUCER_ID + 1),
    ),
    st.builds(AddPartitions, producer=identities, partitions=some_partitions),
    st.builds(VerifyPartitions, producer=identities, partitions=some_partitions),
    st.builds(
        EndTransaction,
        producer=identities,
        is_commit=st.booleans(),
        bumps_epoch=st.booleans(),
        fresh_producer_id=st.just(FRESH_PRODUCER_ID + 1),
    ),
    st.just(TIMEOUT),
)


@given(st.sampled_from([None, 0, EPOCH_MAX - 1]), st.lists(st.tuples(events, st.integers(0, 30_000)), max_size=40))
def test_replayed_records_give_the_live_state_and_epochs_only_increase(
    epoch: int | None, steps: Iterable[tuple[Event, int]]
) -> None:
    live, replayed = (TransactionalIdState() if epoch is None else at_epoch(epoch) for _ in range(2))
    now_ms = NOW_MS
    for event, later_ms in steps:
        now_ms += later_ms
        before = live.last_record
        output = step(live, event, now_ms=now_ms)
        for record in output.records:
            apply(replayed, record)
        assert replayed.last_record == live.last_record
        if before is not None:
            assert live.last_record is not None
            assert live.last_record.producer >= before.producer
            was_open, is_open = (w.state is TransactionState.ONGOING for w in (before, live.last_record))
            ended = markers(output)
            assert len(ended) == (was_open and not is_open), "a transaction ends with markers, once"
            if ended and isinstance(event, InitProducerId | TimeoutPassed):
                assert ended[0][0] > before.producer, "a fenced producer has a smaller epoch than the marker"
        if not isinstance(event, TimeoutPassed):
            reply_in(output)
