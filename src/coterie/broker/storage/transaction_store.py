"""SQL statements for transactions: the last state of each transactional id, the state of each producer in each
partition, and the aborted transactions. All functions block. Those that write do so inside the store's open SQLite
transaction; nothing is cached in memory, so a rollback needs no further work.

Transactions are in SQLite tables and not in a topic `__transaction_state`: a row replaces the previous row in the
SQLite transaction that writes the markers, and nothing needs compaction or replay. Kafka's tools query the broker
(`list_transactions`, `describe_transactions`, `describe_producers`) and do not read that topic.
"""

import json
import sqlite3
from collections.abc import Iterator
from typing import NamedTuple

from coterie.broker.storage.producers import ProducerBatch, ProducerState
from coterie.groups.transaction_messages import ProducerIdAndEpoch, TopicPartition, TransactionState, TransactionWritten
from coterie.wire.batches import BatchHeader
from coterie.wire.errors import ErrorCode, KafkaRefusal

_COLUMNS = (
    "producer_id, epoch, previous_producer_id, previous_epoch, timeout_ms, state, partitions, started_at_ms,"
    " written_at_ms"
)
"""The columns of the table `transactions` after its key, in the order of `_decode_transaction`."""

PRODUCER_IDS = "next producer id"
"""The name of the counter from which producer ids are assigned."""


class AbortedTransaction(NamedTuple):
    """An aborted transaction in one partition: the offset of its first record and, as ``marker_offset``, the offset of
    its marker."""

    producer_id: int
    first_offset: int
    marker_offset: int


class ProducerRow(NamedTuple):
    """The state of one producer in one partition, with what a DescribeProducers response needs."""

    producer_id: int
    producer_state: ProducerState
    written_at_ms: int
    """When this row was last written: with the producer's last batch or marker, or with the begin of its transaction in
    the partition."""


# -- transactional ids ------------------------------------------------------------------------------------------------


def read_transaction(database: sqlite3.Connection, transactional_id: str) -> TransactionWritten | None:
    """The last written state of the transactional id; None if there is none."""
    row = database.execute(
        f"SELECT {_COLUMNS} FROM transactions WHERE transactional_id = ?", (transactional_id,)
    ).fetchone()
    return None if row is None else _decode_transaction(row)


def read_transactions(
    database: sqlite3.Connection, *, after: str = "", rows_max: int = -1
) -> Iterator[tuple[str, TransactionWritten]]:
    """Each transactional id greater than ``after`` with its last written state, sorted by transactional id. At most
    ``rows_max`` of them; a negative ``rows_max`` means no limit."""
    rows = database.execute(
        f"SELECT transactional_id, {_COLUMNS} FROM transactions WHERE transactional_id > ?"
        " ORDER BY transactional_id LIMIT ?",
        (after, rows_max),
    )
    for transactional_id, *row in rows:
        yield transactional_id, _decode_transaction(tuple(row))


def write_transaction(database: sqlite3.Connection, transactional_id: str, written: TransactionWritten) -> None:
    """Replace the state of the transactional id with ``written``."""
    database.execute(
        f"INSERT OR REPLACE INTO transactions (transactional_id, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            transactional_id,
            *written.producer,
            *written.previous_producer,
            written.transaction_timeout_ms,
            written.state,
            json.dumps(sorted(written.partitions)),
            written.started_at_ms,
            written.written_at_ms,
        ),
    )


def delete_expired_transactional_ids(database: sqlite3.Connection, last_write_before_ms: int) -> None:
    """Delete the transactional ids that have no ongoing transaction and whose state was last written before
    ``last_write_before_ms``, in ms since 1970."""
    database.execute(
        "DELETE FROM transactions WHERE state <> ? AND written_at_ms < ?",
        (TransactionState.ONGOING, last_write_before_ms),
    )


def peek_next_producer_id(database: sqlite3.Connection) -> int:
    """The producer id that is assigned next: what `Store.get_and_increment_counter` would return for the counter
    `PRODUCER_IDS`. Changes nothing."""
    row = database.execute("SELECT value FROM numbers WHERE name = ?", (PRODUCER_IDS,)).fetchone()
    return int(row[0]) if row else 0


def read_partition_row_id(database: sqlite3.Connection, topic_partition: TopicPartition) -> int | None:
    """The row id of the partition that now has this topic name and number; None if there is none."""
    row = database.execute(
        "SELECT p.id FROM partitions p JOIN topics t ON t.id = p.topic WHERE t.name = ? AND p.number = ?",
        topic_partition,
    ).fetchone()
    return int(row[0]) if row else None


# -- producers --------------------------------------------------------------------------------------------------------


def read_partition_producer_state(
    database: sqlite3.Connection, partition_row_id: int, producer_id: int
) -> ProducerState | None:
    """The state of the producer ``producer_id`` in the partition; None if the partition has none of this producer."""
    row = database.execute(
        "SELECT epoch, batches, open_offset FROM producers WHERE partition = ? AND producer_id = ?",
        (partition_row_id, producer_id),
    ).fetchone()
    return None if row is None else _decode_producer_state(*row)


def check_producer_transaction_is_open(database: sqlite3.Connection, partition_row_id: int, head: BatchHeader) -> None:
    """Check that the producer of a batch with the header ``head`` has an open transaction in the partition.

    :raises KafkaRefusal: INVALID_TXN_STATE, when it has none, or one of another epoch than the batch's.
    """
    producer = read_partition_producer_state(database, partition_row_id, head.producer_id)
    if producer is None or producer.current_transaction_first_offset is None or producer.epoch != head.producer_epoch:
        raise KafkaRefusal(ErrorCode.invalid_txn_state)


def read_partition_producer_rows(
    database: sqlite3.Connection, partition_row_id: int, *, after: int = -1, rows_max: int = -1
) -> list[ProducerRow]:
    """The rows of the partition's producers with an id greater than ``after``, sorted by id. At most ``rows_max`` of
    them; a negative ``rows_max`` means no limit."""
    return [
        ProducerRow(producer_id, _decode_producer_state(epoch, batches, open_offset), written_at_ms)
        for producer_id, epoch, batches, open_offset, written_at_ms in database.execute(
            "SELECT producer_id, epoch, batches, open_offset, written_at_ms FROM producers WHERE partition = ?"
            " AND producer_id > ? ORDER BY producer_id LIMIT ?",
            (partition_row_id, after, rows_max),
        )
    ]


def write_partition_producer_state(
    database: sqlite3.Connection, partition_row_id: int, producer_id: int, producer: ProducerState, *, now_ms: int
) -> None:
    """Replace the producer's state in the partition, with ``now_ms`` as the time of its last write."""
    database.execute(
        "INSERT OR REPLACE INTO producers (partition, producer_id, epoch, batches, open_offset, written_at_ms)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (
            partition_row_id,
            producer_id,
            producer.epoch,
            json.dumps(producer.batches),
            producer.current_transaction_first_offset,
            now_ms,
        ),
    )


def delete_expired_producers(database: sqlite3.Connection, last_write_before_ms: int) -> None:
    """Delete from each partition the states of those producers that have no open transaction in this partition and last
    wrote to it before ``last_write_before_ms``."""
    database.execute("DELETE FROM producers WHERE open_offset IS NULL AND written_at_ms < ?", (last_write_before_ms,))


def read_first_unstable_offsets(database: sqlite3.Connection) -> dict[int, int]:
    """By partition row id, the first offset of the partition's earliest open transaction; partitions without one are
    missing."""
    return dict(
        database.execute(
            "SELECT partition, MIN(open_offset) FROM producers WHERE open_offset IS NOT NULL GROUP BY partition"
        )
    )


def read_first_unstable_offset(database: sqlite3.Connection, partition_row_id: int) -> int | None:
    """First offset of the partition's earliest open transaction; None if no transaction is open."""
    (offset,) = database.execute(
        "SELECT MIN(open_offset) FROM producers WHERE partition = ? AND open_offset IS NOT NULL", (partition_row_id,)
    ).fetchone()
    return None if offset is None else int(offset)


# -- aborted transactions ---------------------------------------------------------------------------------------------


def write_aborted_transaction(database: sqlite3.Connection, partition_row_id: int, aborted: AbortedTransaction) -> None:
    """Store an aborted transaction of the partition, so that Fetch responses can contain it."""
    database.execute(
        "INSERT INTO aborted (partition, last_offset, first_offset, producer_id) VALUES (?, ?, ?, ?)",
        (partition_row_id, aborted.marker_offset, aborted.first_offset, aborted.producer_id),
    )


def read_aborted_transactions(
    database: sqlite3.Connection, partition_row_id: int, offset: int, end_offset: int
) -> list[AbortedTransaction]:
    """The aborted transactions whose marker is at or after ``offset`` and whose first record is before ``end_offset``,
    in the order of their first records."""
    return [
        AbortedTransaction(*row)
        for row in database.execute(
            "SELECT producer_id, first_offset, last_offset FROM aborted WHERE partition = ? AND last_offset >= ?"
            " AND first_offset < ? ORDER BY first_offset",
            (partition_row_id, offset, end_offset),
        )
    ]


def delete_aborted_transactions_before_start(database: sqlite3.Connection) -> None:
    """Delete, in all partitions, the entries of aborted transactions whose marker is before the partition's start
    offset."""
    database.execute(
        "DELETE FROM aborted WHERE last_offset < (SELECT start_offset FROM partitions WHERE id = aborted.partition)"
    )


# -- helpers ----------------------------------------------------------------------------------------------------------


def _decode_transaction(row: tuple[int, int, int, int, int, str, str, int, int]) -> TransactionWritten:
    """The state in a row of the columns `_COLUMNS`."""
    producer_id, epoch, previous_id, previous_epoch, timeout_ms, state, partitions, started_at_ms, written_at_ms = row
    return TransactionWritten(
        producer=ProducerIdAndEpoch(producer_id, epoch),
        previous_producer=ProducerIdAndEpoch(previous_id, previous_epoch),
        transaction_timeout_ms=timeout_ms,
        state=TransactionState(state),
        partitions=frozenset(TopicPartition(topic, partition) for topic, partition in json.loads(partitions)),
        started_at_ms=started_at_ms,
        written_at_ms=written_at_ms,
    )


def _decode_producer_state(epoch: int, batches: str, open_offset: int | None) -> ProducerState:
    """The state in a row of the table `producers`; ``batches`` is JSON."""
    return ProducerState(
        epoch=epoch,
        batches=tuple(ProducerBatch(*batch) for batch in json.loads(batches)),
        current_transaction_first_offset=open_offset,
    )
