"""The coordinator of one transactional id (KIP-98, KIP-360, KIP-890): its producer id and epoch, and the partitions of
its open transaction. `step` decides; `apply` is the only writer of the hard state; there is no soft state.

A producer that starts with the transactional id gets a greater epoch. This fences the previous producer: its requests
and batches are refused. A transaction that it left open is aborted. A transaction is also aborted when its timeout has
passed. The step that ends a transaction also writes the transaction's markers. So after a crash of the broker a
transaction has either ended completely or is still open; an open one is ended by its producer's repeated request or by
its timer.
"""

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
    TransactionState,
    TransactionWritten,
    VerifyPartitions,
)
from coterie.wire.errors import ErrorCode, KafkaRefusal


class TransactionalIdState:
    """The state of one transactional id. ``last_record`` is None until its first producer has requested a producer
    id."""

    def __init__(self, last_record: TransactionWritten | None = None) -> None:
        self.last_record = last_record


def apply(transaction: TransactionalIdState, record: Record) -> None:
    """Change the state according to ``record``. No other function changes the state, neither live nor at replay.
    Markers change nothing here: they belong to the partitions."""
    if isinstance(record, TransactionWritten):
        transaction.last_record = record


def check_invariants(transaction: TransactionalIdState) -> None:
    """Assert the invariants. Called after each step."""
    written = transaction.last_record
    if written is not None:
        is_ongoing = written.state is TransactionState.ONGOING
        assert bool(written.partitions) == is_ongoing, "only an open transaction has partitions"
        assert (written.started_at_ms >= 0) == is_ongoing, "only an open transaction has a start time"
        assert 0 <= written.producer.epoch <= EPOCH_MAX, "an epoch is left for the markers that fence the producer"


def step(transaction: TransactionalIdState, event: Event, *, now_ms: int) -> Output[Record, Effect]:
    """Process one event: change the state and return the records and effects. The caller writes the records atomically
    and performs the effects once they are durable.

    A refused request changes nothing; its effect is a `Reply` with the error code.
    """
    turn = _Turn(transaction, now_ms)
    try:
        match event:
            case VerifyPartitions():
                on_verify_partitions(turn, event)
            case AddPartitions():
                on_add_partitions(turn, event)
            case EndTransaction():
                on_end_transaction(turn, event)
            case InitProducerId():
                on_init_producer_id(turn, event)
            case TimeoutPassed():
                on_timeout(turn, event)
    except KafkaRefusal as refusal:
        assert not turn.records, "refuse before the first write"
        turn.reply(refusal.error)
    check_invariants(transaction)
    return Output(records=tuple(turn.records), effects=tuple(turn.effects))


class _Turn:
    """The working set of one step: the state, the time, and the records and effects of the step so far."""

    def __init__(self, transaction: TransactionalIdState, now_ms: int) -> None:
        self.transaction = transaction
        self.now_ms = now_ms
        self.records: list[Record] = []
        self.effects: list[Effect] = []

    def write(self, record: Record) -> None:
        """Add a record to the step's output and apply it to the state at once."""
        apply(self.transaction, record)
        self.records.append(record)

    def reply(self, error: ErrorCode = ErrorCode.none, producer: ProducerIdAndEpoch = NO_PRODUCER) -> None:
        """Add a response with these values, and without missing partitions."""
        self.effects.append(Reply(error=error, producer=producer))


# -- requests ---------------------------------------------------------------------------------------------------------


def on_init_producer_id(turn: _Turn, request: InitProducerId) -> None:
    """Give a producer its producer id and epoch, and abort an open transaction. A new transactional id gets
    ``fresh_producer_id`` with epoch 0. A producer that has just started (``expected_producer`` is None) gets a greater
    epoch than its predecessor; one that names its present epoch gets the next one (KIP-360); if no epoch is left, it
    gets ``fresh_producer_id`` with epoch 0. A producer that names its previous producer id and epoch has repeated its
    request. Without an open transaction it gets the present ones again; with one it is refused.

    :raises KafkaRefusal: INVALID_TRANSACTION_TIMEOUT, when the requested timeout is not positive or too long;
        PRODUCER_FENCED, when the producer names neither the present producer id and epoch nor the previous ones, or
        names the previous ones while a transaction is open.
    """
    if not 0 < request.transaction_timeout_ms <= request.transaction_timeout_max_ms:
        raise KafkaRefusal(ErrorCode.invalid_transaction_timeout)
    written = turn.transaction.last_record
    if written is None:
        producer, previous = ProducerIdAndEpoch(request.fresh_producer_id, 0), NO_PRODUCER
    else:
        is_ongoing = written.state is TransactionState.ONGOING
        if request.expected_producer == written.previous_producer and not is_ongoing:
            # A retry of the same producer, which did not receive the response to its previous request.
            turn.reply(producer=written.producer)
            return
        if request.expected_producer not in (None, written.producer):
            raise KafkaRefusal(ErrorCode.producer_fenced)
        # A producer that has just started has no previous epoch. Keeping one would let a fenced producer pass for a
        # retry.
        previous = NO_PRODUCER if request.expected_producer is None else written.producer
        producer = _abort_transaction(turn, written, request.fresh_producer_id) if is_ongoing else written.producer
        # The markers of an abort use the next epoch. The producer whose transaction was aborted may continue with it.
        if not is_ongoing or request.expected_producer is None:
            producer = _with_next_epoch_or_fresh_id(producer, request.fresh_producer_id)
    turn.write(
        TransactionWritten(
            producer=producer,
            previous_producer=previous,
            transaction_timeout_ms=request.transaction_timeout_ms,
            state=TransactionState.EMPTY,
            partitions=frozenset(),
            started_at_ms=-1,
            written_at_ms=turn.now_ms,
        )
    )
    turn.reply(producer=producer)


def on_add_partitions(turn: _Turn, request: AddPartitions) -> None:
    """Add partitions to the transaction, and reply. If no transaction is open, one begins, and its timer is set.

    :raises KafkaRefusal: see `check_producer`.
    """
    written = check_producer(turn.transaction, request.producer)
    if request.partitions <= written.partitions:
        turn.reply()
        return
    is_new = written.state is not TransactionState.ONGOING
    started_at_ms = turn.now_ms if is_new else written.started_at_ms
    turn.write(
        TransactionWritten(
            producer=written.producer,
            previous_producer=written.previous_producer,
            transaction_timeout_ms=written.transaction_timeout_ms,
            state=TransactionState.ONGOING,
            partitions=written.partitions | request.partitions,
            started_at_ms=started_at_ms,
            written_at_ms=turn.now_ms,
        )
    )
    if is_new:
        turn.effects.append(SetTimer(at_ms=started_at_ms + written.transaction_timeout_ms))
    turn.reply()


def on_verify_partitions(turn: _Turn, request: VerifyPartitions) -> None:
    """Reply with those of the request's partitions that are not in the open transaction: all, if none is open.

    :raises KafkaRefusal: see `check_producer`.
    """
    written = check_producer(turn.transaction, request.producer)
    turn.effects.append(Reply(missing_partitions=request.partitions - written.partitions))


def on_end_transaction(turn: _Turn, request: EndTransaction) -> None:
    """Commit or abort the transaction. A repeated request gets the same response again. An abort with ``bumps_epoch``
    is accepted also if no transaction is open: the producer gets its next epoch.

    :raises KafkaRefusal: INVALID_TXN_STATE, when no transaction is open and the request is neither such an abort nor a
        repetition of the request that ended the last transaction; otherwise see `check_producer`.
    """
    written = turn.transaction.last_record
    complete = TransactionState.COMPLETE_COMMIT if request.is_commit else TransactionState.COMPLETE_ABORT
    if (
        request.bumps_epoch
        and written is not None
        and request.producer == written.previous_producer
        and written.state in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
    ):
        # The producer's transaction has already ended, by an earlier request or by its timer. If it ended as requested
        # now, the response contains the producer's new epoch.
        if written.state is not complete:
            raise KafkaRefusal(ErrorCode.invalid_txn_state)
        turn.reply(producer=written.producer)
        return
    written = check_producer(turn.transaction, request.producer)
    if written.state is TransactionState.ONGOING:
        producer = written.producer
        if request.bumps_epoch:
            marker, producer = (
                _with_next_epoch(producer),
                _with_next_epoch_or_fresh_id(producer, request.fresh_producer_id),
            )
        else:
            marker = producer
        _write_markers_and_state(turn, written, complete, marker=marker, producer=producer)
        turn.reply(producer=producer)
    elif request.bumps_epoch and not request.is_commit:
        # The producer may have sent batches that have not arrived yet. In a new epoch they are rejected.
        producer = _with_next_epoch_or_fresh_id(written.producer, request.fresh_producer_id)
        _write_ended_transaction_state(turn, written, complete, producer=producer)
        turn.reply(producer=producer)
    elif request.bumps_epoch or written.state is not complete:
        raise KafkaRefusal(ErrorCode.invalid_txn_state)
    else:
        turn.reply(producer=written.producer)


def on_timeout(turn: _Turn, event: TimeoutPassed) -> None:
    """Abort the open transaction if its timeout has passed; if not, set the timer to its deadline again. Nothing
    happens without an open transaction."""
    written = turn.transaction.last_record
    due_ms = None if written is None else open_transaction_deadline_ms(written)
    if written is None or due_ms is None:
        return
    if turn.now_ms >= due_ms:
        _abort_transaction(turn, written, event.fresh_producer_id)
    else:
        # A shell has only one timer, and uses it for retries too. A retry may have replaced the deadline of this
        # transaction, so the deadline is set again.
        turn.effects.append(SetTimer(at_ms=due_ms))


def open_transaction_deadline_ms(written: TransactionWritten) -> int | None:
    """The time, in ms, at which the open transaction of ``written`` is aborted; None if none is open. A shell that has
    restarted uses this to set its timer."""
    if written.state is not TransactionState.ONGOING:
        return None
    return written.started_at_ms + written.transaction_timeout_ms


# -- guards -----------------------------------------------------------------------------------------------------------


def check_producer(transaction: TransactionalIdState, producer: ProducerIdAndEpoch) -> TransactionWritten:
    """The last written state of the transactional id, if ``producer`` is its present producer.

    :raises KafkaRefusal: INVALID_PRODUCER_ID_MAPPING, when the transactional id has another producer id or none yet;
        PRODUCER_FENCED, when it has this producer id, but another epoch.
    """
    written = transaction.last_record
    if written is None or written.producer.producer_id != producer.producer_id:
        raise KafkaRefusal(ErrorCode.invalid_producer_id_mapping)
    if written.producer.epoch != producer.epoch:
        raise KafkaRefusal(ErrorCode.producer_fenced)
    return written


# -- helpers ----------------------------------------------------------------------------------------------------------


def _abort_transaction(turn: _Turn, written: TransactionWritten, fresh_producer_id: int) -> ProducerIdAndEpoch:
    """Abort the open transaction after its timeout, or because its producer or a newly started one requests a producer
    id. The markers have the producer's next epoch. Returns the producer id and epoch that the transactional id has
    then."""
    marker, producer = (
        _with_next_epoch(written.producer),
        _with_next_epoch_or_fresh_id(written.producer, fresh_producer_id),
    )
    _write_markers_and_state(turn, written, TransactionState.COMPLETE_ABORT, marker=marker, producer=producer)
    return producer


def _write_markers_and_state(
    turn: _Turn,
    written: TransactionWritten,
    state: TransactionState,
    *,
    marker: ProducerIdAndEpoch,
    producer: ProducerIdAndEpoch,
) -> None:
    """Write the markers of the open transaction, with the producer id and epoch ``marker``, then the state in which
    ``producer`` is the present producer; cancel the timer."""
    turn.write(
        MarkersWritten(
            producer=marker,
            is_commit=state is TransactionState.COMPLETE_COMMIT,
            partitions=written.partitions,
        )
    )
    _write_ended_transaction_state(turn, written, state, producer=producer)
    turn.effects.append(CancelTimer())


def _write_ended_transaction_state(
    turn: _Turn, written: TransactionWritten, state: TransactionState, *, producer: ProducerIdAndEpoch
) -> None:
    """Write ``state`` without an open transaction; ``producer`` is the present producer from now on."""
    turn.write(
        TransactionWritten(
            producer=producer,
            previous_producer=written.previous_producer if producer == written.producer else written.producer,
            transaction_timeout_ms=written.transaction_timeout_ms,
            state=state,
            partitions=frozenset(),
            started_at_ms=-1,
            written_at_ms=turn.now_ms,
        )
    )


def _with_next_epoch(producer: ProducerIdAndEpoch) -> ProducerIdAndEpoch:
    """The same producer id with the next epoch. After `EPOCH_MAX` this is the epoch that is reserved for markers, and
    that no producer gets."""
    return ProducerIdAndEpoch(producer.producer_id, producer.epoch + 1)


def _with_next_epoch_or_fresh_id(producer: ProducerIdAndEpoch, fresh_producer_id: int) -> ProducerIdAndEpoch:
    """The same producer id with the next epoch; ``fresh_producer_id`` with epoch 0 if no epoch is left."""
    return _with_next_epoch(producer) if producer.epoch < EPOCH_MAX else ProducerIdAndEpoch(fresh_producer_id, 0)
