"""What the log's thread does for producers: take a batch in, or decide about a transaction and write the decision.

Each call is one write of `BrokerLog.write`: it reads what it needs, raises a `KafkaRefusal`, or writes everything that
belongs together. So a batch and the number that it had, or a transaction's end and the markers in all its partitions,
are durable together or not at all.
"""

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from coterie.broker.storage.producers import after_batch, after_marker, check_batch, duplicate_of
from coterie.broker.storage.store import Store
from coterie.broker.storage.transaction_store import (
    PRODUCER_IDS,
    Aborted,
    next_producer_id,
    open_offset,
    partition_id_of,
    read_producer,
    read_transaction,
    write_aborted,
    write_producer,
    write_transaction,
)
from coterie.groups.transaction_messages import (
    AddPartitions,
    Effect,
    Event,
    Identity,
    MarkersWritten,
    Record,
    Reply,
    TopicPartition,
    TransactionWritten,
    VerifyPartitions,
)
from coterie.groups.transactions import Transaction, step
from coterie.wire.batches import BatchHead, encode_marker, read_head
from coterie.wire.errors import ErrorCode, KafkaRefusal
from coterie.wire.sifting import slices


class BatchAdmission(Enum):
    """How a batch gets into a transaction, by the Produce version (KIP-890)."""

    ADDED_BEFORE = ErrorCode.invalid_txn_state
    """v10 and before: its partition was added; if not, this is the answer."""
    ADDED_OR_ABORTABLE = ErrorCode.transaction_abortable
    """v11: likewise, in a word that the client knows."""
    BY_ITSELF = ErrorCode.none
    """v12 and later: the batch adds its partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBatch:
    """A sound batch that a producer wants written."""

    to: TopicPartition
    partition_id: int
    data: bytes
    head: BatchHead
    transactional_id: str | None
    admission: BatchAdmission
    needs_keys: bool
    """Its topic is compacted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown:
    """A partition after a write."""

    of: TopicPartition
    partition_id: int
    end_offset: int
    open_offset: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What the loop has to hear once a write is durable."""

    base_offset: int = -1
    """Where the batch is, now or since it came before."""
    grown: Sequence[Grown] = ()
    effects: Sequence[Effect] = ()


class KeylessError(KafkaRefusal):
    """Records without keys, by their numbers, for a topic that keeps the last one of each key."""

    def __init__(self, records: Sequence[int]) -> None:
        sentence = f"{len(records)} records have no key, and the topic is compacted."
        super().__init__(ErrorCode.invalid_record, sentence)
        self.records = records


def fresh_producer_id(store: Store) -> int:
    """Never given before."""
    return store.next_number(PRODUCER_IDS)


def append(store: Store, batch: NewBatch, *, now_ms: int) -> Written:
    """:raises KafkaRefusal, TopicGoneError, WireError: before anything is written."""
    head, database = batch.head, store.database
    if batch.needs_keys:
        keyless = [number for number, record in enumerate(slices(batch.data, head)) if record.key is None]
        if keyless:
            raise KeylessError(keyless)
    if not head.is_numbered:
        # Whoever has no producer id has no transaction, whatever its batch says of itself.
        base_offset = store.append(batch.partition_id, batch.data, head)
        return Written(base_offset=base_offset, grown=(_grown(store, batch.to, batch.partition_id),))
    producer = read_producer(database, batch.partition_id, head.producer_id)
    records: Sequence[Record] = ()
    effects: Sequence[Effect] = ()
    is_open = producer is not None and producer.open_offset is not None and producer.epoch == head.producer_epoch
    if head.is_transactional and not is_open:
        records, effects = _admit(database, batch, now_ms=now_ms)
    duplicate = duplicate_of(producer, head)
    if duplicate is not None:
        return Written(base_offset=duplicate.base_offset)
    check_batch(producer, head, starts_at_zero=head.is_transactional and batch.admission is BatchAdmission.BY_ITSELF)
    base_offset = store.append(batch.partition_id, batch.data, head)
    producer = after_batch(producer, head, base_offset)
    write_producer(database, batch.partition_id, head.producer_id, producer, now_ms=now_ms)
    assert batch.transactional_id is not None or not records
    _write(store, batch.transactional_id or "", records, now_ms=now_ms)
    return Written(base_offset=base_offset, grown=(_grown(store, batch.to, batch.partition_id),), effects=effects)


def decide(store: Store, transactional_id: str, make: Callable[[int], Event], *, now_ms: int) -> Written:
    """Have the coordinator of ``transactional_id`` take the event that ``make`` makes with a fresh producer id."""
    fresh = next_producer_id(store.database)
    transaction = Transaction(read_transaction(store.database, transactional_id))
    output = step(transaction, make(fresh), now_ms=now_ms)
    if any(
        isinstance(record, TransactionWritten) and record.producer.producer_id == fresh for record in output.records
    ):
        store.next_number(PRODUCER_IDS)
    grown = _write(store, transactional_id, output.records, now_ms=now_ms)
    return Written(grown=grown, effects=output.effects)


# -- small hands ------------------------------------------------------------------------------------------------------


def _admit(database: sqlite3.Connection, batch: NewBatch, *, now_ms: int) -> tuple[Sequence[Record], Sequence[Effect]]:
    """What adds the batch to its producer's transaction; nothing is written yet.

    :raises KafkaRefusal: when it may not enter.
    """
    producer = Identity(batch.head.producer_id, batch.head.producer_epoch)
    partitions = frozenset((batch.to,))
    transactional_id = batch.transactional_id or ""
    transaction = Transaction(read_transaction(database, transactional_id))
    event = AddPartitions if batch.admission is BatchAdmission.BY_ITSELF else VerifyPartitions
    output = step(transaction, event(producer=producer, partitions=partitions), now_ms=now_ms)
    (reply,) = (effect for effect in output.effects if isinstance(effect, Reply))
    if reply.error is ErrorCode.producer_fenced:
        raise KafkaRefusal(ErrorCode.invalid_producer_epoch)
    if reply.error is not ErrorCode.none:
        raise KafkaRefusal(reply.error)
    if reply.missing:
        raise KafkaRefusal(batch.admission.value)
    return output.records, output.effects


def _write(store: Store, transactional_id: str, records: Sequence[Record], *, now_ms: int) -> Sequence[Grown]:
    grown: list[Grown] = []
    for record in records:
        match record:
            case TransactionWritten():
                write_transaction(store.database, transactional_id, record)
            case MarkersWritten():
                for of in sorted(record.partitions):
                    partition_id = partition_id_of(store.database, of)
                    # Its topic may have been deleted, and with it what was in the transaction.
                    if partition_id is not None:
                        _write_marker(store, partition_id, record, now_ms=now_ms)
                        grown.append(_grown(store, of, partition_id))
    return grown


def _write_marker(store: Store, partition_id: int, record: MarkersWritten, *, now_ms: int) -> None:
    producer_id, epoch = record.producer
    producer = read_producer(store.database, partition_id, producer_id)
    data = encode_marker(producer_id=producer_id, producer_epoch=epoch, is_commit=record.is_commit, timestamp_ms=now_ms)
    offset = store.append(partition_id, data, read_head(data))
    if producer is not None and producer.open_offset is not None and not record.is_commit:
        write_aborted(store.database, partition_id, Aborted(producer_id, producer.open_offset, offset))
    write_producer(store.database, partition_id, producer_id, after_marker(producer, epoch), now_ms=now_ms)


def _grown(store: Store, of: TopicPartition, partition_id: int) -> Grown:
    return Grown(
        of=of,
        partition_id=partition_id,
        end_offset=store.end_offset(partition_id),
        open_offset=open_offset(store.database, partition_id),
    )
