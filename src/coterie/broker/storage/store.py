"""The broker's log in SQLite: topics, partitions, record batches, the configs of groups, and counters.

This module has only the statements that write; all block, and `writer` runs them on its thread. A batch is one row,
with its bytes exactly as they are sent to readers.
"""

import json
import os
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

from coterie.broker.storage.layout import lay_out
from coterie.nouns.errors import WorldError
from coterie.wire.batches import BatchHead, with_base_offset
from coterie.wire.errors import ErrorCode, KafkaRefusal

WHAT_TO_DO = "; `coterie broker check` lists the corruption; restore lost data from a backup"
"""Advice in messages about corruption."""


_GROUP_CONFIGS = "group configs"
"""The kind of the rows of the table `kept` that contain configs of groups."""


class NoRoomError(KafkaRefusal):
    """The partitions would exceed the limit of the broker."""

    def __init__(self, partitions_max: int) -> None:
        super().__init__(ErrorCode.policy_violation, f"This broker may have at most {partitions_max} partitions.")


class DiskFullError(WorldError):
    """The disk is nearly full: the remaining space is reserved for retention and compaction, which free space."""


class DamagedLogError(WorldError):
    """This write read a corrupt page of the file; other parts of the file may be intact."""


class TopicGoneError(WorldError):
    """The topic was deleted, possibly while the request was queued."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPartition:
    """A partition: its SQLite row id, its start offset, and the offset after its last record."""

    id: int
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTopic:
    """One topic; ``partitions`` by number."""

    name: str
    topic_id: UUID
    configs: Mapping[str, str]
    partitions: tuple[StoredPartition, ...]


class Store:
    """The connection that writes. It assigns the offsets of appends, in the order in which they are written."""

    def __init__(self, path: Path) -> None:
        self.database = connect(path)
        """For statements of other modules, inside the SQLite transaction in which they are called."""
        try:
            # The order matters: once a new file is in WAL mode, `auto_vacuum` cannot be changed.
            lay_out(self.database, path)
            self.database.execute("PRAGMA journal_mode = WAL")
            self.database.execute("PRAGMA synchronous = FULL")
            self.database.execute("PRAGMA secure_delete = OFF")
            self.database.execute(f"PRAGMA journal_size_limit = {_WAL_SIZE_KEPT}")
            self._ends = self._read_ends()
        except BaseException:
            self.database.close()
            raise
        self._folder = path.parent
        self._free_bytes = 0
        self.free_bytes_min = FREE_BYTES_MIN
        self.has_room = True
        """Whether batches may be appended, as of the last `begin`."""
        self._ends_before: dict[int, int | None] = {}
        """What `rollback` restores: the earlier end offsets of partitions that the open SQLite transaction changed
        (None: partitions that it created)."""

    def close(self) -> None:
        self.database.close()

    @property
    def changes(self) -> int:
        """How many rows have been changed so far; used to find out whether a write changed any."""
        return self.database.total_changes

    # -- SQLite transactions ----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """:raises OSError, sqlite3.Error: the disk cannot be accessed or written, or the directory does not exist."""
        self.database.execute("BEGIN IMMEDIATE")
        try:
            disk = os.statvfs(self._folder)
        except FileNotFoundError:
            raise FileNotFoundError(
                f"the data directory {self._folder.absolute()} does not exist any more; move it back, or restart the"
                " broker with --data set to its new path"
            ) from None
        self._free_bytes = disk.f_bavail * disk.f_frsize
        self.has_room = self._free_bytes >= self.free_bytes_min or (
            self._free_bytes >= _FREE_BYTES_OF_WAL and self._free_bytes + self._unused_bytes() >= self.free_bytes_min
        )

    def commit(self) -> None:
        """The writes since `begin` are durable when this returns."""
        self.database.execute("COMMIT")
        self._ends_before.clear()

    def rollback(self) -> None:
        """Discard the writes since `begin` and the offsets that they were assigned."""
        for partition_id, end_offset in self._ends_before.items():
            if end_offset is None:
                self._ends.pop(partition_id, None)
            else:
                self._ends[partition_id] = end_offset
        self._ends_before.clear()
        if self.database.in_transaction:
            self.database.execute("ROLLBACK")

    def _unused_bytes(self) -> int:
        """The size of the file's unused pages, in bytes."""
        (pages,) = self.database.execute("PRAGMA freelist_count").fetchone()
        (size,) = self.database.execute("PRAGMA page_size").fetchone()
        return int(pages * size)

    # -- inside an SQLite transaction: batches ----------------------------------------------------------------------

    def append(self, partition_id: int, data: bytes, head: BatchHead) -> int:
        """Write one batch at the partition's end; returns its base offset. A marker is written even if the disk is
        nearly full: it is small, and the transaction that it ends blocks compaction.

        :raises TopicGoneError, DiskFullError: before anything is written.
        """
        if not self.has_room and not head.is_control:
            raise DiskFullError(
                f"the disk is full: {self._free_bytes // 1_000_000} MB are free, and the broker's log reserves"
                f" {self.free_bytes_min // 1_000_000} MB to be able to delete expired records"
            )
        base_offset = self.end_offset(partition_id)
        end_offset = base_offset + head.last_offset_delta + 1
        self.database.execute(
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

    def end_offset(self, partition_id: int) -> int:
        """The offset of the next record, after the appends of the open SQLite transaction.

        :raises TopicGoneError: the partition was deleted.
        """
        if partition_id not in self._ends:
            raise TopicGoneError("This topic has been deleted.")
        return self._ends[partition_id]

    def raise_start(self, partition_id: int, offset: int) -> int:
        """Hide the records before ``offset``, at most all records; returns the partition's start offset.

        :raises TopicGoneError: before anything is written.
        """
        offset = min(offset, self.end_offset(partition_id))
        self.database.execute(
            "UPDATE partitions SET start_offset = ? WHERE id = ? AND start_offset < ?", (offset, partition_id, offset)
        )
        (start_offset,) = self.database.execute(
            "SELECT start_offset FROM partitions WHERE id = ?", (partition_id,)
        ).fetchone()
        return int(start_offset)

    # -- inside an SQLite transaction: topics -----------------------------------------------------------------------

    def check_room(self, more: int, partitions_max: int) -> None:
        """Check that ``more`` partitions fit below the limit, counting those of the open SQLite transaction.

        :raises NoRoomError: they do not.
        """
        if len(self._ends) + more > partitions_max:
            raise NoRoomError(partitions_max)

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> StoredTopic:
        """:raises KafkaRefusal: TOPIC_ALREADY_EXISTS, before anything is written."""
        if self.database.execute("SELECT 1 FROM topics WHERE name = ?", (name,)).fetchone():
            raise KafkaRefusal(ErrorCode.topic_already_exists, f"Topic '{name}' already exists.")
        topic_id = uuid4()
        topic = self.database.execute(
            "INSERT INTO topics (name, topic_id, partitions, configs) VALUES (?, ?, ?, ?)",
            (name, topic_id.bytes, partitions, _encoded(configs)),
        ).lastrowid
        assert topic is not None
        return StoredTopic(
            name=name,
            topic_id=topic_id,
            configs=dict(configs),
            partitions=tuple(self._create_partition(topic, number) for number in range(partitions)),
        )

    def create_partitions(self, topic_id: UUID, count: int) -> tuple[StoredPartition, ...]:
        """Create the partitions that the topic lacks to ``count``, and return them.

        :raises TopicGoneError: before anything is written.
        """
        topic = self._topic(topic_id)
        (there,) = self.database.execute("SELECT COUNT(*) FROM partitions WHERE topic = ?", (topic,)).fetchone()
        self.database.execute("UPDATE topics SET partitions = MAX(partitions, ?) WHERE id = ?", (count, topic))
        return tuple(self._create_partition(topic, number) for number in range(there, count))

    def set_topic_configs(self, topic_id: UUID, configs: Mapping[str, str]) -> None:
        """:raises TopicGoneError: before anything is written."""
        self.database.execute("UPDATE topics SET configs = ? WHERE id = ?", (_encoded(configs), self._topic(topic_id)))

    def delete_topic(self, topic_id: UUID) -> None:
        """Delete a topic: its name and id are free at once; the loop of `upkeep` deletes the rows of its partitions.

        :raises TopicGoneError: before anything is written.
        """
        topic = self._topic(topic_id)
        for (partition_id,) in self.database.execute("SELECT id FROM partitions WHERE topic = ?", (topic,)).fetchall():
            self._ends_before.setdefault(partition_id, self._ends.pop(partition_id))
        self.database.execute("UPDATE partitions SET topic = NULL WHERE topic = ?", (topic,))
        self.database.execute("DELETE FROM topics WHERE id = ?", (topic,))

    def _topic(self, topic_id: UUID) -> int:
        row = self.database.execute("SELECT id FROM topics WHERE topic_id = ?", (topic_id.bytes,)).fetchone()
        if row is None:
            raise TopicGoneError("This topic has been deleted.")
        return int(row[0])

    def _create_partition(self, topic: int, number: int) -> StoredPartition:
        row = self.database.execute("INSERT INTO partitions (topic, number) VALUES (?, ?)", (topic, number))
        assert row.lastrowid is not None
        self._ends_before[row.lastrowid] = None
        self._ends[row.lastrowid] = 0
        return StoredPartition(id=row.lastrowid, start_offset=0, end_offset=0)

    # -- inside an SQLite transaction: counters and group configs ---------------------------------------------------

    def next_number(self, name: str) -> int:
        """0, 1, 2, ...: each number once, also across restarts."""
        row = self.database.execute("SELECT value FROM numbers WHERE name = ?", (name,)).fetchone()
        number = int(row[0]) if row else 0
        self.database.execute("INSERT OR REPLACE INTO numbers (name, value) VALUES (?, ?)", (name, number + 1))
        return number

    def set_group_configs(self, group_id: str, configs: Mapping[str, str]) -> None:
        """Replace the configs set on the group."""
        if configs:
            row = (_GROUP_CONFIGS, group_id, _encoded(configs))
            self.database.execute("INSERT OR REPLACE INTO kept VALUES (?, ?, ?)", row)
        else:
            self.database.execute("DELETE FROM kept WHERE kind = ? AND name = ?", (_GROUP_CONFIGS, group_id))

    # -- at the start -----------------------------------------------------------------------------------------------

    @property
    def cluster_id(self) -> str:
        (value,) = self.database.execute("SELECT value FROM numbers WHERE name = 'cluster id'").fetchone()
        return str(value)

    def topics(self) -> list[StoredTopic]:
        return [
            StoredTopic(
                name=name,
                topic_id=UUID(bytes=topic_id),
                configs=json.loads(configs),
                partitions=tuple(
                    StoredPartition(id=partition_id, start_offset=start_offset, end_offset=self._ends[partition_id])
                    for partition_id, start_offset in self.database.execute(
                        "SELECT id, start_offset FROM partitions WHERE topic = ? ORDER BY number", (topic,)
                    )
                ),
            )
            for topic, name, topic_id, configs in self.database.execute(
                "SELECT id, name, topic_id, configs FROM topics ORDER BY name"
            ).fetchall()
        ]

    def group_configs(self) -> dict[str, Mapping[str, str]]:
        """The configs set on groups, by group id."""
        rows = self.database.execute("SELECT name, entries FROM kept WHERE kind = ?", (_GROUP_CONFIGS,))
        return {group_id: json.loads(configs) for group_id, configs in rows}

    def _read_ends(self) -> dict[int, int]:
        # A partition without batches ends at its start offset.
        return dict(
            self.database.execute(
                "SELECT p.id, MAX(p.start_offset, COALESCE((SELECT last_offset + 1 FROM batches WHERE partition = p.id"
                " ORDER BY last_offset DESC LIMIT 1), 0)) FROM partitions p WHERE p.topic IS NOT NULL"
            )
        )


FREE_BYTES_MIN = 32 * 1024 * 1024
"""If the disk is completely full, deletion is impossible too: SQLite writes pages before it frees others."""
_FREE_BYTES_OF_WAL = 8 * 1024 * 1024
"""The part of `FREE_BYTES_MIN` that must be free outside the file, for the write-ahead log."""
_WAL_SIZE_KEPT = 16 * 1024 * 1024
"""A write-ahead log that grew beyond this, during a long read, is truncated after a checkpoint."""


def connect(path: Path) -> sqlite3.Connection:
    """Open a connection. One thread at a time may use it, not necessarily the thread that opened it."""
    return sqlite3.connect(os.fspath(path), isolation_level=None, check_same_thread=False)


def connect_read_only(path: Path) -> sqlite3.Connection:
    """Open a connection that does not change the file, whether a broker uses it, was stopped, or was killed.

    :raises sqlite3.Error: there is no such file.
    """
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)


def _encoded(entries: Mapping[str, str]) -> str:
    return json.dumps(dict(entries), sort_keys=True)
