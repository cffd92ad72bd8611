"""Writes for producers, run by the log's writer thread: append a batch, run a step of a transaction's coordinator, or
begin a transaction in a partition of the broker itself.

Each call is one write of `BrokerLog.run_write`: it reads what it needs, raises a `KafkaRefusal`, or writes everything
together. So a batch and its sequence number, or the end of a transaction and the markers in all its partitions, become
durable together or not at all.
"""

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from coterie.broker.storage.producers import (
    ProducerState,
    check_batch_sequence_epoch_and_transaction,
    find_duplicate,
    state_after_batch,
    state_after_marker,
)
from coterie.broker.storage.store import Store
from coterie.broker.storage.transaction_store import (
    PRODUCER_IDS,
    AbortedTransaction,
    peek_next_producer_id,
    read_first_unstable_offset,
    read_partition_producer_state,
    read_partition_row_id,
    read_transaction,
    write_aborted_transaction,
    write_partition_producer_state,
    write_transaction,
)
from coterie.groups.transaction_messages import (
    AddPartitions,
    Effect,
    Event,
    MarkersWritten,
    ProducerIdAndEpoch,
    Record,
    Reply,
    TopicPartition,
    TransactionWritten,
    VerifyPartitions,
)
from coterie.groups.transactions import TransactionalIdState, step
from coterie.wire.batch_filter import split_records
from coterie.wire.batches import BatchHeader, encode_transaction_marker, read_batch_header
from coterie.wire.errors import ErrorCode, KafkaRefusal


class UnaddedPartitionRule(Enum):
    """What happens if the partition of a batch, or of offsets in TxnOffsetCommit, is not in the producer's transaction,
    by the version of the Produce or TxnOffsetCommit request (KIP-890). With ADD_PARTITION the partition is added; with
    the two others the request is refused, and the value is the error code of the response."""

    DEFAULT_ERROR = ErrorCode.invalid_txn_state
    """Produce v10 and before, TxnOffsetCommit v3 and before: the client must add the partition first."""
    GENERIC_ERROR_SUPPORTED = ErrorCode.transaction_abortable
    """Produce v11, TxnOffsetCommit v4: the client must add the partition first; the client supports
    TRANSACTION_ABORTABLE."""
    ADD_PARTITION = ErrorCode.none
    """Later versions: the request itself adds the partition to the transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBatch:
    """A valid batch that a producer sent, for one partition."""

    topic_partition: TopicPartition
    partition_row_id: int
    data: bytes
    head: BatchHeader
    transactional_id: str | None
    unadded_partition_rule: UnaddedPartitionRule
    needs_keys: bool
    """Whether each record must have a key, because the topic is compacted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOffsets:
    """The offsets of a partition after a write."""

    topic_partition: TopicPartition
    partition_row_id: int
    end_offset: int
    first_unstable_offset: int | None
    """The first offset of the partition's earliest open transaction; None if no transaction is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteResult:
    """The result of a write, to be applied on the event loop once it is durable."""

    base_offset: int = -1
    """Base offset of the batch, or of its earlier copy if it is a duplicate; -1 for a write without a batch."""
    partition_offsets: Sequence[PartitionOffsets] = ()
    """The new offsets of the partitions to which a batch or marker was written, or in which a transaction began; empty
    for a duplicate batch."""
    effects: Sequence[Effect] = ()
    """The effects of the step of the transaction's coordinator, if there was one."""
    markers: Sequence[MarkersWritten] = ()
    """For each transaction that the step has ended: its markers, in all partitions that the transaction contains."""


class KeylessRecordsError(KafkaRefusal):
    """Records of a batch for a compacted topic have no keys; ``records`` has their indexes in the batch."""

    def __init__(self, records: Sequence[int]) -> None:
        error_message = f"{len(records)} records have no key, and the topic is compacted."
        super().__init__(ErrorCode.invalid_record, error_message)
        self.records = records


def fresh_producer_id(store: Store) -> int:
    """Assign a producer id that was never assigned before."""
    return store.get_and_increment_counter(PRODUCER_IDS)


def append(store: Store, batch: NewBatch, *, now_ms: int) -> WriteResult:
    """Write ``batch`` at its partition's end, with the new state of its producer. A transactional batch is also added
    to its producer's transaction if necessary. A duplicate is not written again: the result then has the base offset of
    the batch that was written.

    :raises KafkaRefusal: before anything is written, if a record without a key must have one
        (:class:`KeylessRecordsError`), if the batch may not follow its producer's earlier batches, or if the batch is
        transactional, its partition is not part of its producer's transaction, and cannot be added.
    :raises TopicGoneError: before anything is written, if the topic was deleted.
    :raises DiskFullError: before anything is written, if the disk is nearly full.
    :raises WireError: before anything is written, if records that need keys cannot be read.
    """
    head, database = batch.head, store.database
    if batch.needs_keys:
        keyless = [number for number, record in enumerate(split_records(batch.data, head)) if record.key is None]
        if keyless:
            raise KeylessRecordsError(keyless)
    if not head.has_producer_id:
        # A batch without a producer id belongs to no transaction, whatever its attributes are.
        base_offset = store.append(batch.partition_row_id, batch.data, head)
        return WriteResult(
            base_offset=base_offset,
            partition_offsets=(_read_offsets(store, batch.topic_partition, batch.partition_row_id),),
        )
    producer = read_partition_producer_state(database, batch.partition_row_id, head.producer_id)
    records: Sequence[Record] = ()
    effects: Sequence[Effect] = ()
    is_open = (
        producer is not None
        and producer.current_transaction_first_offset is not None
        and producer.epoch == head.producer_epoch
    )
    if head.is_transactional and not is_open:
        records, effects = _step_for_unadded_partition(
            database,
            batch.transactional_id or "",
            ProducerIdAndEpoch(head.producer_id, head.producer_epoch),
            batch.topic_partition,
            batch.unadded_partition_rule,
            now_ms=now_ms,
        )
    duplicate = find_duplicate(producer, head)
    if duplicate is not None:
        return WriteResult(base_offset=duplicate.base_offset)
    check_batch_sequence_epoch_and_transaction(
        producer,
        head,
        unknown_producer_starts_at_zero=head.is_transactional
        and batch.unadded_partition_rule is UnaddedPartitionRule.ADD_PARTITION,
    )
    base_offset = store.append(batch.partition_row_id, batch.data, head)
    producer = state_after_batch(producer, head, base_offset)
    write_partition_producer_state(database, batch.partition_row_id, head.producer_id, producer, now_ms=now_ms)
    assert batch.transactional_id is not None or not records
    _write_coordinator_records(store, batch.transactional_id or "", records, now_ms=now_ms)
    return WriteResult(
        base_offset=base_offset,
        partition_offsets=(_read_offsets(store, batch.topic_partition, batch.partition_row_id),),
        effects=effects,
    )


def step_coordinator(
    store: Store, transactional_id: str, make_event_for_next_producer_id: Callable[[int], Event], *, now_ms: int
) -> WriteResult:
    """Run one step of the coordinator of ``transactional_id``, and write its records, with the markers in partitions.
    ``make_event_for_next_producer_id`` builds the step's event from the producer id that would be assigned next. This
    id counts as assigned only if the step has used it."""
    fresh = peek_next_producer_id(store.database)
    transaction = TransactionalIdState(read_transaction(store.database, transactional_id))
    output = step(transaction, make_event_for_next_producer_id(fresh), now_ms=now_ms)
    if any(
        isinstance(record, TransactionWritten) and record.producer.producer_id == fresh for record in output.records
    ):
        store.get_and_increment_counter(PRODUCER_IDS)
    partitions = _write_coordinator_records(store, transactional_id, output.records, now_ms=now_ms)
    markers = [record for record in output.records if isinstance(record, MarkersWritten)]
    return WriteResult(partition_offsets=partitions, effects=output.effects, markers=markers)


def begin_transaction_in_offsets_partition(
    store: Store,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    topic_partition: TopicPartition,
    unadded_rule: UnaddedPartitionRule,
    *,
    now_ms: int,
) -> WriteResult:
    """Begin the producer's transaction in a partition to which the broker itself will append the batches of the
    transaction (`BrokerLog.append`): the group coordinator's partition, for TxnOffsetCommit. With the rule
    ADD_PARTITION the partition is first added to the transaction if necessary; with the other rules it must have been
    added before. Until the transaction ends, the partition's last stable offset does not pass the present end offset.
    If the transaction ends before its batches are appended, that append is refused.

    :raises KafkaRefusal: before anything is written, if the partition had to be added before and was not, or the
        transactional id's state does not allow the transaction (for example another producer id or epoch).
    """
    database = store.database
    records, effects = _step_for_unadded_partition(
        database, transactional_id, producer, topic_partition, unadded_rule, now_ms=now_ms
    )
    partition_row_id = read_partition_row_id(database, topic_partition)
    assert partition_row_id is not None, "the topics of the broker's own records are never deleted"
    state = read_partition_producer_state(database, partition_row_id, producer.producer_id)
    if state is None or state.current_transaction_first_offset is None:
        opened = ProducerState(
            epoch=producer.epoch, current_transaction_first_offset=store.end_offset(partition_row_id)
        )
        write_partition_producer_state(database, partition_row_id, producer.producer_id, opened, now_ms=now_ms)
    _write_coordinator_records(store, transactional_id, records, now_ms=now_ms)
    return WriteResult(partition_offsets=(_read_offsets(store, topic_partition, partition_row_id),), effects=effects)


# -- helpers ----------------------------------------------------------------------------------------------------------


def _step_for_unadded_partition(
    database: sqlite3.Connection,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    topic_partition: TopicPartition,
    unadded_rule: UnaddedPartitionRule,
    *,
    now_ms: int,
) -> tuple[Sequence[Record], Sequence[Effect]]:
    """The records and effects of the coordinator's step that adds the partition to the producer's transaction (with the
    rule ADD_PARTITION), or that checks that the partition was added before. Nothing is written yet.

    :raises KafkaRefusal: the partition had to be added before and was not, or the transactional id's state does not
        allow the transaction (for example another producer id or epoch).
    """
    transaction = TransactionalIdState(read_transaction(database, transactional_id))
    event = AddPartitions if unadded_rule is UnaddedPartitionRule.ADD_PARTITION else VerifyPartitions
    output = step(transaction, event(producer=producer, partitions=frozenset((topic_partition,))), now_ms=now_ms)
    (reply,) = (effect for effect in output.effects if isinstance(effect, Reply))
    if reply.error is ErrorCode.producer_fenced:
        raise KafkaRefusal(ErrorCode.invalid_producer_epoch)
    if reply.error is not ErrorCode.none:
        raise KafkaRefusal(reply.error)
    if reply.missing_partitions:
        raise KafkaRefusal(unadded_rule.value)
    return output.records, output.effects


def _write_coordinator_records(
    store: Store, transactional_id: str, records: Sequence[Record], *, now_ms: int
) -> Sequence[PartitionOffsets]:
    """Write the records of a coordinator's step: the state of the transactional id, and a marker into each partition of
    `MarkersWritten`. Returns the offsets of the partitions that got a marker; deleted partitions are left out."""
    partitions: list[PartitionOffsets] = []
    for record in records:
        match record:
            case TransactionWritten():
                write_transaction(store.database, transactional_id, record)
            case MarkersWritten():
                for of in sorted(record.partitions):
                    partition_id = read_partition_row_id(store.database, of)
                    # The topic, with its records of the transaction, may have been deleted.
                    if partition_id is not None:
                        _write_marker(store, partition_id, record, now_ms=now_ms)
                        partitions.append(_read_offsets(store, of, partition_id))
    return partitions


def _write_marker(store: Store, partition_row_id: int, record: MarkersWritten, *, now_ms: int) -> None:
    """Write a marker, and end the producer's transaction in the partition. A transaction that is aborted and was open
    in the partition is also added to the aborted transactions of the partition, which Fetch responses contain."""
    producer_id, epoch = record.producer
    producer = read_partition_producer_state(store.database, partition_row_id, producer_id)
    data = encode_transaction_marker(
        producer_id=producer_id, producer_epoch=epoch, is_commit=record.is_commit, timestamp_ms=now_ms
    )
    offset = store.append(partition_row_id, data, read_batch_header(data))
    if producer is not None and producer.current_transaction_first_offset is not None and not record.is_commit:
        write_aborted_transaction(
            store.database,
            partition_row_id,
            AbortedTransaction(producer_id, producer.current_transaction_first_offset, offset),
        )
    write_partition_producer_state(
        store.database, partition_row_id, producer_id, state_after_marker(producer, epoch), now_ms=now_ms
    )


def _read_offsets(store: Store, topic_partition: TopicPartition, partition_row_id: int) -> PartitionOffsets:
    """The offsets of the partition, with the changes of the open SQLite transaction."""
    return PartitionOffsets(
        topic_partition=topic_partition,
        partition_row_id=partition_row_id,
        end_offset=store.end_offset(partition_row_id),
        first_unstable_offset=read_first_unstable_offset(store.database, partition_row_id),
    )
