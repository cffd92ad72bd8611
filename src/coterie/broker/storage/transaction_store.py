"""The statements behind transactions: who a transactional id's producer is, what each partition knows of a producer,
and where aborted transactions lie. All block, and write inside the store's open transaction; nothing is kept in memory,
so a rollback needs no second thought.

SQLite and no topic `__transaction_state`: one row takes the place of the row before, in the transaction that writes the
markers, and there is nothing to compact or to replay. Kafka's tools ask the broker (`list_transactions`,
`describe_transactions`, `describe_producers`) and do not read that topic.
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
"""The number from which producer ids are given."""


class Aborted(NamedTuple):
    """An aborted transaction in one partition: from its first record to its marker."""

    producer_id: int
    first_offset: int
    last_offset: int


class ProducerRow(NamedTuple):
    """One producer of a partition, as DescribeProducers tells it."""

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
    """By transactional id, in order; those behind ``after``, and no more than ``rows_max`` unless that is negative."""
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
    """Drop transactional ids that have been at rest since before ``before_ms``."""
    database.execute(
        "DELETE FROM transactions WHERE state <> ? AND written_at_ms < ?", (TransactionState.ONGOING, before_ms)
    )


def next_producer_id(database: sqlite3.Connection) -> int:
    """The id that the next `Store.next_number` of `PRODUCER_IDS` gives."""
    row = database.execute("SELECT value FROM numbers WHERE name = ?", (PRODUCER_IDS,)).fetchone()
    return int(row[0]) if row else 0


def partition_id_of(database: sqlite3.Connection, of: TopicPartition) -> int | None:
    """The store's own number; None when there is no such partition any more."""
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
    """By producer id, likewise."""
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
    """Drop what is known of producers that have written nothing since ``before_ms`` and have nothing open."""
    database.execute("DELETE FROM producers WHERE open_offset IS NULL AND written_at_ms < ?", (before_ms,))


def open_offsets(database: sqlite3.Connection) -> dict[int, int]:
    """Where the first open transaction begins, by partition; partitions without one are left out."""
    return dict(
        database.execute(
            "SELECT partition, MIN(open_offset) FROM producers WHERE open_offset IS NOT NULL GROUP BY partition"
        )
    )


def open_offset(database: sqlite3.Connection, partition_id: int) -> int | None:
    """Where the partition's first open transaction begins."""
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
    """Those with anything at ``offset`` or after it, and before ``end_offset``; in the order of their first records."""
    return [
        Aborted(*row)
        for row in database.execute(
            "SELECT producer_id, first_offset, last_offset FROM aborted WHERE partition = ? AND last_offset >= ?"
            " AND first_offset < ? ORDER BY first_offset",
            (partition_id, offset, end_offset),
        )
    ]


def forget_aborted(database: sqlite3.Connection) -> None:
    """Drop those that lie before the start of their partition."""
    database.execute(
        "DELETE FROM aborted WHERE last_offset < (SELECT start_offset FROM partitions WHERE id = aborted.partition)"
    )


# -- small hands ------------------------------------------------------------------------------------------------------


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
