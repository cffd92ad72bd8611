"""The broker's log as SQLite keeps it: topics, partitions, record batches, and a few numbers.

Only the statements, all blocking: `log` runs them on threads. A batch is one row, with its bytes as they go to readers.
The layout has a version (`user_version`); a file of another one is refused by name.
"""

import json
import os
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

from coterie.nouns.errors import CoterieError, WorldError
from coterie.wire.batches import BatchHead, with_base_offset

LAYOUT = 1

_SCHEMA = """
CREATE TABLE numbers (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE topics (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, topic_id BLOB NOT NULL UNIQUE,
                     partitions INTEGER NOT NULL, configs TEXT NOT NULL);
CREATE TABLE partitions (id INTEGER PRIMARY KEY, topic INTEGER NOT NULL REFERENCES topics (id), number INTEGER NOT NULL,
                         UNIQUE (topic, number));
CREATE TABLE batches (id INTEGER PRIMARY KEY, partition INTEGER NOT NULL REFERENCES partitions (id),
                      base_offset INTEGER NOT NULL, last_offset INTEGER NOT NULL, max_timestamp_ms INTEGER NOT NULL,
                      size_bytes INTEGER NOT NULL, data BLOB NOT NULL);
CREATE UNIQUE INDEX batches_by_offset ON batches (partition, last_offset);
"""


class TopicExistsError(CoterieError):
    """A topic of this name is there already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTopic:
    """One topic as it was created; ``partition_ids`` are the store's own numbers, by partition."""

    name: str
    topic_id: UUID
    configs: Mapping[str, str]
    partition_ids: tuple[int, ...]


class Store:
    """One connection that writes. Offsets of appends are given here, in the order in which they are written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._database = _connect(path)
        try:
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = FULL")
            self._lay_out()
            self._ends = self._read_ends()
        except BaseException:
            self._database.close()
            raise
        self._ends_before: dict[int, int | None] = {}
        """What `rollback` restores: the ends that the open transaction moved, as they were (None: new partitions)."""

    def close(self) -> None:
        self._database.close()

    # -- transactions -----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self._database.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """What was written since `begin` is durable when this returns."""
        self._database.execute("COMMIT")
        self._ends_before.clear()

    def rollback(self) -> None:
        """Forget what was written since `begin`, and the offsets that were given to it."""
        for partition_id, end_offset in self._ends_before.items():
            if end_offset is None:
                self._ends.pop(partition_id, None)
            else:
                self._ends[partition_id] = end_offset
        self._ends_before.clear()
        if self._database.in_transaction:
            self._database.execute("ROLLBACK")

    # -- inside a transaction ---------------------------------------------------------------------------------------

    def append(self, partition_id: int, data: bytes, head: BatchHead) -> int:
        """Write one batch at the partition's end; returns its base offset."""
        base_offset = self._ends[partition_id]
        end_offset = base_offset + head.last_offset_delta + 1
        self._database.execute(
            "INSERT INTO batches (partition, base_offset, last_offset, max_timestamp_ms, size_bytes, data)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            (
                partition_id,
                base_offset,
                end_offset - 1,
                head.max_timestamp_ms,
                head.size_bytes,
                with_base_offset(data, base_offset),
            ),
        )
        self._ends_before.setdefault(partition_id, base_offset)
        self._ends[partition_id] = end_offset
        return base_offset

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> StoredTopic:
        """:raises TopicExistsError: before anything is written."""
        if self._database.execute("SELECT 1 FROM topics WHERE name = ?", (name,)).fetchone():
            raise TopicExistsError(f"Topic '{name}' already exists.")
        topic_id = uuid4()
        topic = self._database.execute(
            "INSERT INTO topics (name, topic_id, partitions, configs) VALUES (?, ?, ?, ?)",
            (name, topic_id.bytes, partitions, json.dumps(dict(configs), sort_keys=True)),
        ).lastrowid
        partition_ids: list[int] = []
        for number in range(partitions):
            row = self._database.execute("INSERT INTO partitions (topic, number) VALUES (?, ?)", (topic, number))
            assert row.lastrowid is not None
            partition_ids.append(row.lastrowid)
            self._ends_before[row.lastrowid] = None
            self._ends[row.lastrowid] = 0
        return StoredTopic(name=name, topic_id=topic_id, configs=dict(configs), partition_ids=tuple(partition_ids))

    def next_number(self, name: str) -> int:
        """0, 1, 2, ...: each once, over all restarts."""
        row = self._database.execute("SELECT value FROM numbers WHERE name = ?", (name,)).fetchone()
        number = int(row[0]) if row else 0
        self._database.execute("INSERT OR REPLACE INTO numbers (name, value) VALUES (?, ?)", (name, number + 1))
        return number

    # -- at the start -----------------------------------------------------------------------------------------------

    @property
    def cluster_id(self) -> str:
        (value,) = self._database.execute("SELECT value FROM numbers WHERE name = 'cluster id'").fetchone()
        return str(value)

    def topics(self) -> list[StoredTopic]:
        return [
            StoredTopic(
                name=name,
                topic_id=UUID(bytes=topic_id),
                configs=json.loads(configs),
                partition_ids=tuple(
                    row[0]
                    for row in self._database.execute(
                        "SELECT id FROM partitions WHERE topic = ? ORDER BY number", (topic,)
                    )
                ),
            )
            for topic, name, topic_id, configs in self._database.execute(
                "SELECT id, name, topic_id, configs FROM topics ORDER BY name"
            ).fetchall()
        ]

    def ends(self) -> Mapping[int, int]:
        """The offset after the last one, by the store's number of the partition."""
        return self._ends

    def _lay_out(self) -> None:
        (layout,) = self._database.execute("PRAGMA user_version").fetchone()
        if layout == 0:
            cluster_id = uuid4().hex
            self._database.executescript(
                f"BEGIN; {_SCHEMA} INSERT INTO numbers VALUES ('cluster id', '{cluster_id}');"
                f" PRAGMA user_version = {LAYOUT}; COMMIT;"
            )
        elif layout != LAYOUT:
            raise WorldError(
                f"{self._path} was written by another version of coterie (layout {layout}, known is {LAYOUT});"
                " start the broker with another data directory"
            )

    def _read_ends(self) -> dict[int, int]:
        return dict(
            self._database.execute(
                "SELECT p.id, COALESCE((SELECT last_offset + 1 FROM batches WHERE partition = p.id"
                " ORDER BY last_offset DESC LIMIT 1), 0) FROM partitions p"
            )
        )


class StoreReader:
    """One connection that reads what is committed, while the other writes."""

    def __init__(self, path: Path) -> None:
        self._database = _connect(path)
        self._database.execute("PRAGMA query_only = ON")

    def close(self) -> None:
        self._database.close()

    def batches(self, partition_id: int, offset: int, end_offset: int, size_max: int) -> bytes:
        """Whole batches in a row: from the one that holds ``offset``, none that begins at ``end_offset`` or later, and
        together no more than ``size_max`` bytes, but at least one batch (KIP-74)."""
        found: list[bytes] = []
        size = 0
        rows = self._database.execute(
            "SELECT size_bytes, data FROM batches WHERE partition = ? AND last_offset >= ? AND last_offset < ?"
            " ORDER BY last_offset",
            (partition_id, offset, end_offset),
        )
        for size_bytes, data in rows:
            if found and size + size_bytes > size_max:
                break
            found.append(data)
            size += size_bytes
            if size >= size_max:
                break
        rows.close()
        return b"".join(found)

    def batch_since(self, partition_id: int, timestamp_ms: int, end_offset: int) -> bytes | None:
        """The first batch with a record of ``timestamp_ms`` or later."""
        row = self._database.execute(
            "SELECT data FROM batches WHERE partition = ? AND last_offset < ? AND max_timestamp_ms >= ?"
            " ORDER BY last_offset LIMIT 1",
            (partition_id, end_offset, timestamp_ms),
        ).fetchone()
        return row[0] if row else None

    def latest_batch(self, partition_id: int, end_offset: int) -> bytes | None:
        """The batch with the greatest timestamp; the first of several."""
        row = self._database.execute(
            "SELECT data FROM batches WHERE partition = ? AND last_offset < ?"
            " ORDER BY max_timestamp_ms DESC, last_offset LIMIT 1",
            (partition_id, end_offset),
        ).fetchone()
        return row[0] if row else None


def _connect(path: Path) -> sqlite3.Connection:
    # Each connection is used by one thread at a time, though not by the one that opened it.
    return sqlite3.connect(os.fspath(path), isolation_level=None, check_same_thread=False)
