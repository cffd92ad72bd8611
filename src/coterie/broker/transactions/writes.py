"""Writes for producers, run by the log's writer thread: append a batch, or run a step of a transaction's coordinator.

Each call is one write of `BrokerLog.write`: it reads what it needs, raises a `KafkaRefusal`, or writes everything
together. So a batch and its sequence number, or the end of a transaction and the markers in all its partitions, become
durable together or not at all.
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
    """How the partition of a batch is added to a transaction, by the Produce version (KIP-890)."""

    ADDED_BEFORE = ErrorCode.invalid_txn_state
    """v10 and before: the client must add the partition first; the error code if it has not."""
    ADDED_OR_ABORTABLE = ErrorCode.transaction_abortable
    """v11: the client must add the partition first; the error code, which v11 clients support, if it has not."""
    BY_ITSELF = ErrorCode.none
    """v12 and later: the batch adds its partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBatch:
    """A valid batch that a producer sent."""

    to: TopicPartition
    partition_id: int
    data: bytes
    head: BatchHead
    transactional_id: str | None
    admission: BatchAdmission
    needs_keys: bool
    """Whether the topic is compacted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown:
    """The offsets of a partition after a write."""

    of: TopicPartition
    partition_id: int
    end_offset: int
    open_offset: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The results of a write, to be applied on the event loop once it is durable."""

    base_offset: int = -1
    """Base offset of the batch, or of its earlier copy if it is a duplicate."""
    grown: Sequence[Grown] = ()
    effects: Sequence[Effect] = ()


class KeylessError(KafkaRefusal):
    """Records without keys, by their index in the batch, for a compacted topic."""

    def __init__(self, records: Sequence[int]) -> None:
        sentence = f"{len(records)} records have no key, and the topic is compacted."
        super().__init__(ErrorCode.invalid_record, sentence)
        self.records = records


def fresh_producer_id(store: Store) -> int:
    """A producer id that was never assigned before."""
    return store.next_number(PRODUCER_IDS)


def append(store: Store, batch: NewBatch, *, now_ms: int) -> Written:
    """:raises KafkaRefusal, TopicGoneError, WireError: before anything is written."""
    head, database = batch.head, store.database
    if batch.needs_keys:
        keyless = [number for number, record in enumerate(slices(batch.data, head)) if record.key is None]
        if keyless:
            raise KeylessError(keyless)
    if not head.is_numbered:
        # A batch without a producer id belongs to no transaction, whatever its attributes are.
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
    """Run one step of the coordinator of ``transactional_id`` for the event that ``make`` builds with a new producer
    id, and write its records."""
    fresh = next_producer_id(store.database)
    transaction = Transaction(read_transaction(store.database, transactional_id))
    output = step(transaction, make(fresh), now_ms=now_ms)
    if any(
        isinstance(record, TransactionWritten) and record.producer.producer_id == fresh for record in output.records
    ):
        store.next_number(PRODUCER_IDS)
    grown = _write(store, transactional_id, output.records, now_ms=now_ms)
    return Written(grown=grown, effects=output.effects)


# -- helpers ----------------------------------------------------------------------------------------------------------


def _admit(database: sqlite3.Connection, batch: NewBatch, *, now_ms: int) -> tuple[Sequence[Record], Sequence[Effect]]:
    """The records and effects that add the batch to its producer's transaction; nothing is written yet.

    :raises KafkaRefusal: the batch may not be added.
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
                    # The topic, with its records of the transaction, may have been deleted.
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
