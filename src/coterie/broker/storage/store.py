"""The broker's log as SQLite keeps it: topics, partitions, record batches, and a few small things beside them.

Only the statements that write, all blocking: `writer` runs them on its thread. A batch is one row, with its bytes as
they go to readers.
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

WHAT_TO_DO = "; `coterie broker check` names the places, and a backup has what was there"
"""About damage."""


_GROUP_CONFIGS = "group configs"
"""The kind of the rows of `kept` that hold the configs of groups."""


class NoRoomError(KafkaRefusal):
    """There would be more partitions than there may be."""

    def __init__(self, partitions_max: int) -> None:
        super().__init__(ErrorCode.policy_violation, f"This broker has room for {partitions_max} partitions.")


class DiskFullError(WorldError):
    """There is so little room left that it is kept for retention and compaction, which make more."""


class DamagedLogError(WorldError):
    """The file cannot be right where this write looked; elsewhere it may be sound."""


class TopicGoneError(WorldError):
    """The topic was deleted, perhaps while the request waited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPartition:
    """A partition: the store's own number for it, where it begins, and the offset after its last record."""

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
    """One connection that writes. Offsets of appends are given here, in the order in which they are written."""

    def __init__(self, path: Path) -> None:
        self.database = connect(path)
        """For statements of other modules, inside the transaction in which they are called."""
        try:
            # The order counts: in WAL mode a new file would not take `auto_vacuum` any more.
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
        """Whether batches may be appended; as it was at the last `begin`."""
        self._ends_before: dict[int, int | None] = {}
        """What `rollback` restores: the ends that the open transaction moved, as they were (None: new partitions)."""

    def close(self) -> None:
        self.database.close()

    @property
    def changes(self) -> int:
        """How many rows have been changed so far; for finding out whether any was."""
        return self.database.total_changes

    # -- transactions -----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """:raises OSError, sqlite3.Error: when the disk cannot be asked or written to, or the folder is gone."""
        self.database.execute("BEGIN IMMEDIATE")
        try:
            disk = os.statvfs(self._folder)
        except FileNotFoundError:
            raise FileNotFoundError(
                f"the folder {self._folder.absolute()} is gone; put it back, or stop the broker and name with --data"
                " where it is now"
            ) from None
        self._free_bytes = disk.f_bavail * disk.f_frsize
        self.has_room = self._free_bytes >= self.free_bytes_min or (
            self._free_bytes >= _FREE_BYTES_OF_WAL and self._free_bytes + self._unused_bytes() >= self.free_bytes_min
        )

    def commit(self) -> None:
        """What was written since `begin` is durable when this returns."""
        self.database.execute("COMMIT")
        self._ends_before.clear()

    def rollback(self) -> None:
        """Forget what was written since `begin`, and the offsets that were given to it."""
        for partition_id, end_offset in self._ends_before.items():
            if end_offset is None:
                self._ends.pop(partition_id, None)
            else:
                self._ends[partition_id] = end_offset
        self._ends_before.clear()
        if self.database.in_transaction:
            self.database.execute("ROLLBACK")

    def _unused_bytes(self) -> int:
        """Pages of the file that hold nothing any more."""
        (pages,) = self.database.execute("PRAGMA freelist_count").fetchone()
        (size,) = self.database.execute("PRAGMA page_size").fetchone()
        return int(pages * size)

    # -- inside a transaction: batches ------------------------------------------------------------------------------

    def append(self, partition_id: int, data: bytes, head: BatchHead) -> int:
        """Write one batch at the partition's end; returns its base offset. A marker has always room: it is small, and
        what it ends holds up compaction.

        :raises TopicGoneError, DiskFullError: before anything is written.
        """
        if not self.has_room and not head.is_control:
            raise DiskFullError(
                f"the disk is full: {self._free_bytes // 1_000_000} MB are free, and the broker's log keeps"
                f" {self.free_bytes_min // 1_000_000} MB of it to be able to remove what has expired"
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
        """The offset that the next record gets, with what this transaction has appended.

        :raises TopicGoneError: when there is no such partition any more.
        """
        if partition_id not in self._ends:
            raise TopicGoneError("This topic has been deleted.")
        return self._ends[partition_id]

    def raise_start(self, partition_id: int, offset: int) -> int:
        """Hide what stands before ``offset``, at most everything; returns the partition's start offset.

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

    # -- inside a transaction: topics -------------------------------------------------------------------------------

    def check_room(self, more: int, partitions_max: int) -> None:
        """Whether ``more`` partitions may come to all that there are, with those of this transaction.

        :raises NoRoomError: when they may not.
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
        """The partitions that the topic lacks to ``count``, created.

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
        """The name and the id are free at once; what the partitions hold is left to `remove_orphans`.

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

    # -- inside a transaction: small things -------------------------------------------------------------------------

    def next_number(self, name: str) -> int:
        """0, 1, 2, ...: each once, over all restarts."""
        row = self.database.execute("SELECT value FROM numbers WHERE name = ?", (name,)).fetchone()
        number = int(row[0]) if row else 0
        self.database.execute("INSERT OR REPLACE INTO numbers (name, value) VALUES (?, ?)", (name, number + 1))
        return number

    def set_group_configs(self, group_id: str, configs: Mapping[str, str]) -> None:
        """``configs`` replace what was set of the group."""
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
        """By group id, what was set of each group."""
        rows = self.database.execute("SELECT name, entries FROM kept WHERE kind = ?", (_GROUP_CONFIGS,))
        return {group_id: json.loads(configs) for group_id, configs in rows}

    def _read_ends(self) -> dict[int, int]:
        # Where no batch is left the log ends where it begins.
        return dict(
            self.database.execute(
                "SELECT p.id, MAX(p.start_offset, COALESCE((SELECT last_offset + 1 FROM batches WHERE partition = p.id"
                " ORDER BY last_offset DESC LIMIT 1), 0)) FROM partitions p WHERE p.topic IS NOT NULL"
            )
        )


FREE_BYTES_MIN = 32 * 1024 * 1024
"""On a disk that is full to the last byte nothing can be deleted either: SQLite writes pages before it frees others."""
_FREE_BYTES_OF_WAL = 8 * 1024 * 1024
"""Of that, what must be free outside the file, where the write-ahead log is."""
_WAL_SIZE_KEPT = 16 * 1024 * 1024
"""A write-ahead log that grew beyond this, under a long read, is cut when it has been written back."""


def connect(path: Path) -> sqlite3.Connection:
    """Each connection is used by one thread at a time, though not by the one that opened it."""
    return sqlite3.connect(os.fspath(path), isolation_level=None, check_same_thread=False)


def connect_read_only(path: Path) -> sqlite3.Connection:
    """Changes nothing of a file, be it in use, closed or left behind by a kill.

    :raises sqlite3.Error: when there is no such file.
    """
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)


def _encoded(entries: Mapping[str, str]) -> str:
    return json.dumps(dict(entries), sort_keys=True)
