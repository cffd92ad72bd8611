"""SQL statements for transactions: the producer of each transactional id, each partition's state of its producers, and
the aborted transactions. All block, and write inside the store's open SQLite transaction; nothing is cached in memory,
so a rollback needs no further work.

Transactions are in SQLite tables and not in a topic `__transaction_state`: a row replaces the previous row in the
SQLite transaction that writes the markers, and nothing needs compaction or replay. Kafka's tools query the broker
(`list_transactions`, `describe_transactions`, `describe_producers`) and do not read that topic.
"""

import json
import sqlite3
from collections.abc import Iterator
from typing import NamedTuple

from coterie.broker.storage.producers import Numbered, Producer
from coterie.groups.transaction_messages import Identity, TopicPartition, TransactionState, TransactionWritten

_COLUMNS = (
    "producer_id, epoch, previous_producer_id, previous_epoch, timeout_ms, state, partitions, started_at_ms,"
    " written_at_ms"
)

PRODUCER_IDS = "next producer id"
"""The name of the counter from which producer ids are assigned."""


class Aborted(NamedTuple):
    """An aborted transaction in one partition: the offsets of its first record and of its marker."""

    producer_id: int
    first_offset: int
    last_offset: int


class ProducerRow(NamedTuple):
    """One producer of a partition, with the fields of a DescribeProducers response."""

    producer_id: int
    producer: Producer
    written_at_ms: int


# -- transactional ids ------------------------------------------------------------------------------------------------


def read_transaction(database: sqlite3.Connection, transactional_id: str) -> TransactionWritten | None:
    row = database.execute(
        f"SELECT {_COLUMNS} FROM transactions WHERE transactional_id = ?", (transactional_id,)
    ).fetchone()
    return None if row is None else _transaction(row)


def read_transactions(
    database: sqlite3.Connection, *, after: str = "", rows_max: int = -1
) -> Iterator[tuple[str, TransactionWritten]]:
    """The transactions sorted by transactional id: those after ``after``, at most ``rows_max`` unless negative."""
    rows = database.execute(
        f"SELECT transactional_id, {_COLUMNS} FROM transactions WHERE transactional_id > ?"
        " ORDER BY transactional_id LIMIT ?",
        (after, rows_max),
    )
    for transactional_id, *row in rows:
        yield transactional_id, _transaction(tuple(row))


def write_transaction(database: sqlite3.Connection, transactional_id: str, written: TransactionWritten) -> None:
    database.execute(
        f"INSERT OR REPLACE INTO transactions (transactional_id, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            transactional_id,
            *written.producer,
            *written.previous,
            written.timeout_ms,
            written.state,
            json.dumps(sorted(written.partitions)),
            written.started_at_ms,
            written.written_at_ms,
        ),
    )


def forget_transactions(database: sqlite3.Connection, before_ms: int) -> None:
    """Delete transactional ids without an ongoing transaction whose last write was before ``before_ms``."""
    database.execute(
        "DELETE FROM transactions WHERE state <> ? AND written_at_ms < ?", (TransactionState.ONGOING, before_ms)
    )


def next_producer_id(database: sqlite3.Connection) -> int:
    """The id that the next `Store.next_number` of `PRODUCER_IDS` returns."""
    row = database.execute("SELECT value FROM numbers WHERE name = ?", (PRODUCER_IDS,)).fetchone()
    return int(row[0]) if row else 0


def partition_id_of(database: sqlite3.Connection, of: TopicPartition) -> int | None:
    """The partition's row id; None if the partition was deleted."""
    row = database.execute(
        "SELECT p.id FROM partitions p JOIN topics t ON t.id = p.topic WHERE t.name = ? AND p.number = ?", of
    ).fetchone()
    return int(row[0]) if row else None


# -- producers --------------------------------------------------------------------------------------------------------


def read_producer(database: sqlite3.Connection, partition_id: int, producer_id: int) -> Producer | None:
    row = database.execute(
        "SELECT epoch, batches, open_offset FROM producers WHERE partition = ? AND producer_id = ?",
        (partition_id, producer_id),
    ).fetchone()
    return None if row is None else _producer(*row)


def read_producers(
    database: sqlite3.Connection, partition_id: int, *, after: int = -1, rows_max: int = -1
) -> list[ProducerRow]:
    """The producers sorted by producer id: those after ``after``, at most ``rows_max`` unless negative."""
    return [
        ProducerRow(producer_id, _producer(epoch, batches, open_offset), written_at_ms)
        for producer_id, epoch, batches, open_offset, written_at_ms in database.execute(
            "SELECT producer_id, epoch, batches, open_offset, written_at_ms FROM producers WHERE partition = ?"
            " AND producer_id > ? ORDER BY producer_id LIMIT ?",
            (partition_id, after, rows_max),
        )
    ]


def write_producer(
    database: sqlite3.Connection, partition_id: int, producer_id: int, producer: Producer, *, now_ms: int
) -> None:
    database.execute(
        "INSERT OR REPLACE INTO producers (partition, producer_id, epoch, batches, open_offset, written_at_ms)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (partition_id, producer_id, producer.epoch, json.dumps(producer.batches), producer.open_offset, now_ms),
    )


def forget_producers(database: sqlite3.Connection, before_ms: int) -> None:
    """Delete the state of producers without an open transaction whose last write was before ``before_ms``."""
    database.execute("DELETE FROM producers WHERE open_offset IS NULL AND written_at_ms < ?", (before_ms,))


def open_offsets(database: sqlite3.Connection) -> dict[int, int]:
    """First offset of the earliest open transaction, by partition; only partitions with one."""
    return dict(
        database.execute(
            "SELECT partition, MIN(open_offset) FROM producers WHERE open_offset IS NOT NULL GROUP BY partition"
        )
    )


def open_offset(database: sqlite3.Connection, partition_id: int) -> int | None:
    """First offset of the partition's earliest open transaction; None if no transaction is open."""
    (offset,) = database.execute(
        "SELECT MIN(open_offset) FROM producers WHERE partition = ? AND open_offset IS NOT NULL", (partition_id,)
    ).fetchone()
    return None if offset is None else int(offset)


# -- aborted transactions ---------------------------------------------------------------------------------------------


def write_aborted(database: sqlite3.Connection, partition_id: int, aborted: Aborted) -> None:
    database.execute(
        "INSERT INTO aborted (partition, last_offset, first_offset, producer_id) VALUES (?, ?, ?, ?)",
        (partition_id, aborted.last_offset, aborted.first_offset, aborted.producer_id),
    )


def read_aborted(database: sqlite3.Connection, partition_id: int, offset: int, end_offset: int) -> list[Aborted]:
    """Aborted transactions that end at or after ``offset`` and begin before ``end_offset``, by first offset."""
    return [
        Aborted(*row)
        for row in database.execute(
            "SELECT producer_id, first_offset, last_offset FROM aborted WHERE partition = ? AND last_offset >= ?"
            " AND first_offset < ? ORDER BY first_offset",
            (partition_id, offset, end_offset),
        )
    ]


def forget_aborted(database: sqlite3.Connection) -> None:
    """Delete the aborted transactions that end before their partition's start offset."""
    database.execute(
        "DELETE FROM aborted WHERE last_offset < (SELECT start_offset FROM partitions WHERE id = aborted.partition)"
    )


# -- helpers ----------------------------------------------------------------------------------------------------------


def _transaction(row: tuple[int, int, int, int, int, str, str, int, int]) -> TransactionWritten:
    producer_id, epoch, previous_id, previous_epoch, timeout_ms, state, partitions, started_at_ms, written_at_ms = row
    return TransactionWritten(
        producer=Identity(producer_id, epoch),
        previous=Identity(previous_id, previous_epoch),
        timeout_ms=timeout_ms,
        state=TransactionState(state),
        partitions=frozenset(TopicPartition(topic, partition) for topic, partition in json.loads(partitions)),
        started_at_ms=started_at_ms,
        written_at_ms=written_at_ms,
    )


def _producer(epoch: int, batches: str, open_offset: int | None) -> Producer:
    return Producer(
        epoch=epoch, batches=tuple(Numbered(*batch) for batch in json.loads(batches)), open_offset=open_offset
    )
