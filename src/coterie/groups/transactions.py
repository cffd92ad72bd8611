"""The coordinator of one transactional id (KIP-98, KIP-360, KIP-890): who its producer is, and what is in its open
transaction. `step` decides, `apply` is the only writer of what is hard; there is nothing soft.

A producer that starts under the id gets a greater epoch, and whoever had it before is fenced: what it left open is
aborted. So is a transaction that outlives its timeout. Ending one writes its markers in the same step: a broker that
dies has ended it, or has not, and then its producer asks again or its timer fires.
"""

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
    TransactionState,
    TransactionWritten,
    VerifyPartitions,
)
from coterie.wire.errors import ErrorCode, KafkaRefusal


class Transaction:
    """What is known of one transactional id; None until its first producer has come."""

    def __init__(self, written: TransactionWritten | None = None) -> None:
        self.written = written


def apply(transaction: Transaction, record: Record) -> None:
    """The only writer, live and at replay."""
    if isinstance(record, TransactionWritten):
        transaction.written = record


def check(transaction: Transaction) -> None:
    """What is always true."""
    written = transaction.written
    if written is not None:
        is_ongoing = written.state is TransactionState.ONGOING
        assert bool(written.partitions) == is_ongoing, "an open transaction has partitions, and no other has"
        assert (written.started_at_ms >= 0) == is_ongoing, "an open transaction has begun"
        assert 0 <= written.producer.epoch <= EPOCH_MAX, "there is always an epoch left for the fence"


def step(transaction: Transaction, event: Event, *, now_ms: int) -> Output[Record, Effect]:
    """Take one event. Write the records, all at once; once they are durable, perform the effects."""
    turn = _Turn(transaction, now_ms)
    try:
        match event:
            case VerifyPartitions():
                on_verify(turn, event)
            case AddPartitions():
                on_add(turn, event)
            case EndTransaction():
                on_end(turn, event)
            case InitProducerId():
                on_init(turn, event)
            case TimeoutPassed():
                on_timeout(turn, event)
    except KafkaRefusal as refusal:
        assert not turn.records, "refuse before the first write"
        turn.reply(refusal.error)
    check(transaction)
    return Output(records=tuple(turn.records), effects=tuple(turn.effects))


class _Turn:
    """One step's working set."""

    def __init__(self, transaction: Transaction, now_ms: int) -> None:
        self.transaction = transaction
        self.now_ms = now_ms
        self.records: list[Record] = []
        self.effects: list[Effect] = []

    def write(self, record: Record) -> None:
        apply(self.transaction, record)
        self.records.append(record)

    def reply(self, error: ErrorCode = ErrorCode.none, producer: Identity = NOBODY) -> None:
        self.effects.append(Reply(error=error, producer=producer))


# -- requests ---------------------------------------------------------------------------------------------------------


def on_init(turn: _Turn, request: InitProducerId) -> None:
    if not 0 < request.timeout_ms <= request.timeout_max_ms:
        raise KafkaRefusal(ErrorCode.invalid_transaction_timeout)
    written = turn.transaction.written
    if written is None:
        producer, previous = Identity(request.fresh_producer_id, 0), NOBODY
    else:
        is_ongoing = written.state is TransactionState.ONGOING
        if request.expected == written.previous and not is_ongoing:
            # It asked before and has not heard the answer: whoever that answer was for is itself.
            turn.reply(producer=written.producer)
            return
        if request.expected not in (None, written.producer):
            raise KafkaRefusal(ErrorCode.producer_fenced)
        # Who has just started knows nobody before itself: one that was fenced must not pass for it.
        previous = NOBODY if request.expected is None else written.producer
        producer = _abort(turn, written, request.fresh_producer_id) if is_ongoing else written.producer
        # The markers of an abort take an epoch; the very producer whose transaction it was may go on with that one.
        if not is_ongoing or request.expected is None:
            producer = _bumped(producer, request.fresh_producer_id)
    turn.write(
        TransactionWritten(
            producer=producer,
            previous=previous,
            timeout_ms=request.timeout_ms,
            state=TransactionState.EMPTY,
            partitions=frozenset(),
            started_at_ms=-1,
            written_at_ms=turn.now_ms,
        )
    )
    turn.reply(producer=producer)


def on_add(turn: _Turn, request: AddPartitions) -> None:
    written = check_producer(turn.transaction, request.producer)
    if request.partitions <= written.partitions:
        turn.reply()
        return
    is_new = written.state is not TransactionState.ONGOING
    started_at_ms = turn.now_ms if is_new else written.started_at_ms
    turn.write(
        TransactionWritten(
            producer=written.producer,
            previous=written.previous,
            timeout_ms=written.timeout_ms,
            state=TransactionState.ONGOING,
            partitions=written.partitions | request.partitions,
            started_at_ms=started_at_ms,
            written_at_ms=turn.now_ms,
        )
    )
    if is_new:
        turn.effects.append(SetTimer(at_ms=started_at_ms + written.timeout_ms))
    turn.reply()


def on_verify(turn: _Turn, request: VerifyPartitions) -> None:
    written = check_producer(turn.transaction, request.producer)
    turn.effects.append(Reply(missing=request.partitions - written.partitions))


def on_end(turn: _Turn, request: EndTransaction) -> None:
    written = turn.transaction.written
    complete = TransactionState.COMPLETE_COMMIT if request.is_commit else TransactionState.COMPLETE_ABORT
    if (
        request.bumps_epoch
        and written is not None
        and request.producer == written.previous
        and written.state in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
    ):
        # Its transaction has ended, by itself or by its timer; if that is what it wants, it learns who it is now.
        if written.state is not complete:
            raise KafkaRefusal(ErrorCode.invalid_txn_state)
        turn.reply(producer=written.producer)
        return
    written = check_producer(turn.transaction, request.producer)
    if written.state is TransactionState.ONGOING:
        producer = written.producer
        if request.bumps_epoch:
            marker, producer = _next_epoch(producer), _bumped(producer, request.fresh_producer_id)
        else:
            marker = producer
        _end(turn, written, complete, marker=marker, producer=producer)
        turn.reply(producer=producer)
    elif request.bumps_epoch and not request.is_commit:
        # It may have sent what never arrived: in another epoch that can do no harm any more.
        producer = _bumped(written.producer, request.fresh_producer_id)
        _complete(turn, written, complete, producer=producer)
        turn.reply(producer=producer)
    elif request.bumps_epoch or written.state is not complete:
        raise KafkaRefusal(ErrorCode.invalid_txn_state)
    else:
        turn.reply(producer=written.producer)


def on_timeout(turn: _Turn, event: TimeoutPassed) -> None:
    written = turn.transaction.written
    due_ms = None if written is None else deadline_ms(written)
    if written is None or due_ms is None:
        return
    if turn.now_ms >= due_ms:
        _abort(turn, written, event.fresh_producer_id)
    else:
        # A shell that tries again has one timer only: what it tried may be over, and this one's deadline forgotten.
        turn.effects.append(SetTimer(at_ms=due_ms))


def deadline_ms(written: TransactionWritten) -> int | None:
    """When the open transaction is aborted; None: there is none. For a shell that has started again."""
    if written.state is not TransactionState.ONGOING:
        return None
    return written.started_at_ms + written.timeout_ms


# -- guards -----------------------------------------------------------------------------------------------------------


def check_producer(transaction: Transaction, producer: Identity) -> TransactionWritten:
    written = transaction.written
    if written is None or written.producer.producer_id != producer.producer_id:
        raise KafkaRefusal(ErrorCode.invalid_producer_id_mapping)
    if written.producer.epoch != producer.epoch:
        raise KafkaRefusal(ErrorCode.producer_fenced)
    return written


# -- small hands ------------------------------------------------------------------------------------------------------


def _abort(turn: _Turn, written: TransactionWritten, fresh_producer_id: int) -> Identity:
    """End an open transaction against its producer's will; returns who may have the next one."""
    marker, producer = _next_epoch(written.producer), _bumped(written.producer, fresh_producer_id)
    _end(turn, written, TransactionState.COMPLETE_ABORT, marker=marker, producer=producer)
    return producer


def _end(
    turn: _Turn, written: TransactionWritten, state: TransactionState, *, marker: Identity, producer: Identity
) -> None:
    turn.write(
        MarkersWritten(
            producer=marker,
            is_commit=state is TransactionState.COMPLETE_COMMIT,
            partitions=written.partitions,
        )
    )
    _complete(turn, written, state, producer=producer)
    turn.effects.append(CancelTimer())


def _complete(turn: _Turn, written: TransactionWritten, state: TransactionState, *, producer: Identity) -> None:
    turn.write(
        TransactionWritten(
            producer=producer,
            previous=written.previous if producer == written.producer else written.producer,
            timeout_ms=written.timeout_ms,
            state=state,
            partitions=frozenset(),
            started_at_ms=-1,
            written_at_ms=turn.now_ms,
        )
    )


def _next_epoch(producer: Identity) -> Identity:
    return Identity(producer.producer_id, producer.epoch + 1)


def _bumped(producer: Identity, fresh_producer_id: int) -> Identity:
    return _next_epoch(producer) if producer.epoch < EPOCH_MAX else Identity(fresh_producer_id, 0)
