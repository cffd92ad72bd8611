"""The broker's log in SQLite: topics, partitions, record batches, the configs of groups, and counters.

This module has the statements that write, and those that read the log at the start. All block, and `writer` runs the
writes on its thread. A batch is one row, with its bytes exactly as they are sent to readers.
"""

import json
import os
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

from coterie.broker.storage.layout import create_or_upgrade_layout
from coterie.nouns.errors import WorldError
from coterie.wire.batches import BatchHeader, with_base_offset_and_leader_epoch
from coterie.wire.errors import ErrorCode, KafkaRefusal

DAMAGE_ADVICE = "; `coterie broker check` lists the corruption; restore lost data from a backup"
"""The advice at the end of messages about corruption."""


_GROUP_CONFIGS = "group configs"
"""The kind of the rows of the table `kept` that contain configs of groups."""


class TooManyPartitionsError(KafkaRefusal):
    """The requested partitions would exceed the broker's limit for the partitions of all topics together."""

    def __init__(self, partitions_max: int) -> None:
        super().__init__(
            ErrorCode.policy_violation,
            f"The topics of this broker would have more than {partitions_max} partitions together, the maximum: "
            "create fewer partitions, or delete topics that are not used.",
        )


class DiskFullError(WorldError):
    """A batch was not appended because the disk is nearly full: the remaining space is reserved for retention and
    compaction, which free space."""


class DamagedLogError(WorldError):
    """The write that failed with this error read a corrupt page of the file and was rolled back. Other parts of the
    file may be intact."""


class TopicGoneError(WorldError):
    """The topic of a request was deleted, possibly while the request was queued. The request has written nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPartition:
    """A partition: its SQLite row id, its start offset, and the offset after its last record."""

    row_id: int
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTopic:
    """One topic. ``configs`` are those that were set, without defaults; ``partitions`` is indexed by partition
    number."""

    name: str
    topic_id: UUID
    configs: Mapping[str, str]
    partitions: tuple[StoredPartition, ...]


class Store:
    """The SQLite connection that writes the log file, and that reads the topics and configs at the broker's start. The
    store assigns the offsets of appended batches, in the order in which they are written."""

    def __init__(self, path: Path) -> None:
        """Open the log file ``path``, and create or upgrade its tables if necessary.

        :raises WorldError: the file has a newer layout.
        :raises sqlite3.Error: the file cannot be opened, upgraded or read.
        """
        self.database = open_database_any_thread(path)
        """For statements of other modules, inside the SQLite transaction in which they are called."""
        try:
            # The order matters: once a new file is in WAL mode, `auto_vacuum` cannot be changed.
            create_or_upgrade_layout(self.database, path)
            self.database.execute("PRAGMA journal_mode = WAL")
            self.database.execute("PRAGMA synchronous = FULL")
            self.database.execute("PRAGMA secure_delete = OFF")
            self.database.execute(f"PRAGMA journal_size_limit = {_WAL_SIZE_KEPT}")
            self._end_offsets = self._read_end_offsets()
        except BaseException:
            self.database.close()
            raise
        self._folder = path.parent
        self._free_bytes = 0
        self.free_bytes_min = FREE_BYTES_MIN
        """The free space in bytes below which only markers are appended (`FREE_BYTES_MIN`)."""
        self.has_disk_space = True
        """Whether batches may be appended, as of the last `begin`."""
        self._end_offsets_before: dict[int, int | None] = {}
        """The end offsets that `rollback` restores, by partition row id: the earlier end offsets of partitions that the
        open SQLite transaction changed. None: the SQLite transaction created the partition."""

    def close(self) -> None:
        """Close the connection."""
        self.database.close()

    @property
    def changed_row_count_so_far(self) -> int:
        """How many rows this connection has changed so far. The writer compares two values to find out whether a write
        changed any."""
        return self.database.total_changes

    # -- SQLite transactions ----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin an SQLite transaction, and measure the disk's free space (:attr:`has_disk_space`). After an error
        `rollback` must be called.

        :raises OSError: the data directory does not exist any more, or the disk cannot be accessed.
        :raises sqlite3.Error: the SQLite transaction cannot begin.
        """
        self.database.execute("BEGIN IMMEDIATE")
        try:
            disk = os.statvfs(self._folder)
        except FileNotFoundError:
            raise FileNotFoundError(
                f"the data directory {self._folder.absolute()} does not exist any more; move it back, or restart the"
                " broker with --data set to its new path"
            ) from None
        self._free_bytes = disk.f_bavail * disk.f_frsize
        self.has_disk_space = self._free_bytes >= self.free_bytes_min or (
            self._free_bytes >= _FREE_BYTES_OF_WAL
            and self._free_bytes + self._unused_page_bytes() >= self.free_bytes_min
        )

    def commit(self) -> None:
        """Commit the writes since `begin`: they are durable when this returns. After an error `rollback` must be
        called.

        :raises sqlite3.Error: the writes cannot be committed.
        """
        self.database.execute("COMMIT")
        self._end_offsets_before.clear()

    def rollback(self) -> None:
        """Undo the writes since `begin`; the end offsets of all partitions are again those before `begin`.

        :raises sqlite3.Error: the SQLite transaction cannot be rolled back; the end offsets are restored all the same.
        """
        for partition_id, end_offset in self._end_offsets_before.items():
            if end_offset is None:
                self._end_offsets.pop(partition_id, None)
            else:
                self._end_offsets[partition_id] = end_offset
        self._end_offsets_before.clear()
        if self.database.in_transaction:
            self.database.execute("ROLLBACK")

    def _unused_page_bytes(self) -> int:
        """The size of the file's unused pages, in bytes. SQLite reuses them before the file grows."""
        (pages,) = self.database.execute("PRAGMA freelist_count").fetchone()
        (size,) = self.database.execute("PRAGMA page_size").fetchone()
        return int(pages * size)

    # -- inside an SQLite transaction: batches ----------------------------------------------------------------------

    def append(self, partition_row_id: int, data: bytes, head: BatchHeader) -> int:
        """Write one batch at the partition's end, and return the batch's base offset. ``head`` is the batch's header. A
        marker is written even if the disk is nearly full: it is small, and the transaction that it ends blocks
        compaction.

        :raises TopicGoneError: before anything is written, if the topic was deleted.
        :raises DiskFullError: before anything is written, if the disk is nearly full.
        """
        if not self.has_disk_space and not head.is_control:
            raise DiskFullError(
                f"the disk is nearly full: {self._free_bytes // 1_000_000} MB are free, and the broker's log keeps"
                f" {self.free_bytes_min // 1_000_000} MB free to be able to delete expired records; free disk space"
            )
        base_offset = self.end_offset(partition_row_id)
        end_offset = base_offset + head.last_offset_delta + 1
        self.database.execute(
            "INSERT INTO batches (partition, base_offset, last_offset, max_timestamp_ms, size_bytes, data)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            (
                partition_row_id,
                base_offset,
                end_offset - 1,
                head.max_timestamp_ms,
                head.size_bytes,
                with_base_offset_and_leader_epoch(data, base_offset),
            ),
        )
        self._end_offsets_before.setdefault(partition_row_id, base_offset)
        self._end_offsets[partition_row_id] = end_offset
        return base_offset

    def end_offset(self, partition_row_id: int) -> int:
        """The offset that the partition's next record gets, after the appends of the open SQLite transaction.

        :raises TopicGoneError: the topic was deleted.
        """
        if partition_row_id not in self._end_offsets:
            raise TopicGoneError("This topic has been deleted.")
        return self._end_offsets[partition_row_id]

    def advance_start_offset_if_lower(self, partition_row_id: int, offset: int) -> int:
        """If the partition's start offset is lower than ``offset``, set it to ``offset``, or to the end offset if that
        is lower: the records before it cannot be read any more. Otherwise nothing changes. Returns the partition's
        start offset after that.

        :raises TopicGoneError: before anything is written, if the topic was deleted.
        """
        offset = min(offset, self.end_offset(partition_row_id))
        self.database.execute(
            "UPDATE partitions SET start_offset = ? WHERE id = ? AND start_offset < ?",
            (offset, partition_row_id, offset),
        )
        (start_offset,) = self.database.execute(
            "SELECT start_offset FROM partitions WHERE id = ?", (partition_row_id,)
        ).fetchone()
        return int(start_offset)

    # -- inside an SQLite transaction: topics -----------------------------------------------------------------------

    def check_partition_limit(self, added_partitions: int, partitions_max: int) -> None:
        """Check that the broker has at most ``partitions_max`` partitions after ``added_partitions`` more. Partitions
        that the open SQLite transaction created count too, those of deleted topics do not.

        :raises TooManyPartitionsError: the limit would be exceeded.
        """
        if len(self._end_offsets) + added_partitions > partitions_max:
            raise TooManyPartitionsError(partitions_max)

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> StoredTopic:
        """Create a topic with ``partitions`` empty partitions and a new random id, and return it.

        :raises KafkaRefusal: TOPIC_ALREADY_EXISTS, before anything is written.
        """
        if self.database.execute("SELECT 1 FROM topics WHERE name = ?", (name,)).fetchone():
            raise KafkaRefusal(ErrorCode.topic_already_exists, f"Topic '{name}' already exists.")
        topic_id = uuid4()
        topic = self.database.execute(
            "INSERT INTO topics (name, topic_id, partitions, configs) VALUES (?, ?, ?, ?)",
            (name, topic_id.bytes, partitions, _encode_json(configs)),
        ).lastrowid
        assert topic is not None
        return StoredTopic(
            name=name,
            topic_id=topic_id,
            configs=dict(configs),
            partitions=tuple(self._create_partition(topic, number) for number in range(partitions)),
        )

    def increase_partitions_to(self, topic_id: UUID, count: int) -> tuple[StoredPartition, ...]:
        """Add partitions to the topic until it has ``count``; returns the added ones, none if the topic has as many
        already.

        :raises TopicGoneError: before anything is written, if the topic was deleted.
        """
        topic = self._topic_row_id(topic_id)
        (there,) = self.database.execute("SELECT COUNT(*) FROM partitions WHERE topic = ?", (topic,)).fetchone()
        self.database.execute("UPDATE topics SET partitions = MAX(partitions, ?) WHERE id = ?", (count, topic))
        return tuple(self._create_partition(topic, number) for number in range(there, count))

    def replace_topic_configs(self, topic_id: UUID, configs: Mapping[str, str]) -> None:
        """Replace all configs that are set on the topic with ``configs``.

        :raises TopicGoneError: before anything is written, if the topic was deleted.
        """
        self.database.execute(
            "UPDATE topics SET configs = ? WHERE id = ?", (_encode_json(configs), self._topic_row_id(topic_id))
        )

    def delete_topic(self, topic_id: UUID) -> None:
        """Delete a topic: its name is free at once. `maintenance.loop` later deletes the rows of its partitions and
        batches.

        :raises TopicGoneError: before anything is written, if the topic was already deleted.
        """
        topic = self._topic_row_id(topic_id)
        for (partition_id,) in self.database.execute("SELECT id FROM partitions WHERE topic = ?", (topic,)).fetchall():
            self._end_offsets_before.setdefault(partition_id, self._end_offsets.pop(partition_id))
        self.database.execute("UPDATE partitions SET topic = NULL WHERE topic = ?", (topic,))
        self.database.execute("DELETE FROM topics WHERE id = ?", (topic,))

    def _topic_row_id(self, topic_id: UUID) -> int:
        """The SQLite row id of the topic.

        :raises TopicGoneError: the topic was deleted.
        """
        row = self.database.execute("SELECT id FROM topics WHERE topic_id = ?", (topic_id.bytes,)).fetchone()
        if row is None:
            raise TopicGoneError("This topic has been deleted.")
        return int(row[0])

    def _create_partition(self, topic: int, number: int) -> StoredPartition:
        """Create an empty partition of the topic with the row id ``topic``."""
        row = self.database.execute("INSERT INTO partitions (topic, number) VALUES (?, ?)", (topic, number))
        assert row.lastrowid is not None
        self._end_offsets_before[row.lastrowid] = None
        self._end_offsets[row.lastrowid] = 0
        return StoredPartition(row_id=row.lastrowid, start_offset=0, end_offset=0)

    # -- inside an SQLite transaction: counters and group configs ---------------------------------------------------

    def get_and_increment_counter(self, name: str) -> int:
        """Increment the counter ``name`` and return its former value: 0, 1, 2, …, each number once, also across
        restarts."""
        row = self.database.execute("SELECT value FROM numbers WHERE name = ?", (name,)).fetchone()
        number = int(row[0]) if row else 0
        self.database.execute("INSERT OR REPLACE INTO numbers (name, value) VALUES (?, ?)", (name, number + 1))
        return number

    def replace_group_configs(self, group_id: str, configs: Mapping[str, str]) -> None:
        """Replace all configs that are set on the group with ``configs``."""
        if configs:
            row = (_GROUP_CONFIGS, group_id, _encode_json(configs))
            self.database.execute("INSERT OR REPLACE INTO kept VALUES (?, ?, ?)", row)
        else:
            self.database.execute("DELETE FROM kept WHERE kind = ? AND name = ?", (_GROUP_CONFIGS, group_id))

    # -- at the start -----------------------------------------------------------------------------------------------

    @property
    def cluster_id(self) -> str:
        """The random id of this broker's cluster, made when the log was created."""
        (value,) = self.database.execute("SELECT value FROM numbers WHERE name = 'cluster id'").fetchone()
        return str(value)

    def topics(self) -> list[StoredTopic]:
        """All topics, sorted by name."""
        return [
            StoredTopic(
                name=name,
                topic_id=UUID(bytes=topic_id),
                configs=json.loads(configs),
                partitions=tuple(
                    StoredPartition(
                        row_id=partition_id, start_offset=start_offset, end_offset=self._end_offsets[partition_id]
                    )
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
        """The configs that are set on groups, by group id; groups without configs are missing."""
        rows = self.database.execute("SELECT name, entries FROM kept WHERE kind = ?", (_GROUP_CONFIGS,))
        return {group_id: json.loads(configs) for group_id, configs in rows}

    def _read_end_offsets(self) -> dict[int, int]:
        """The end offset of each partition that has a topic, by row id."""
        # A partition without batches ends at its start offset.
        return dict(
            self.database.execute(
                "SELECT p.id, MAX(p.start_offset, COALESCE((SELECT last_offset + 1 FROM batches WHERE partition = p.id"
                " ORDER BY last_offset DESC LIMIT 1), 0)) FROM partitions p WHERE p.topic IS NOT NULL"
            )
        )


FREE_BYTES_MIN = 32 * 1024 * 1024
"""The free space in bytes, on the disk and in unused pages of the file, below which no batch is appended, except for
markers. If the disk were completely full, deletion would be impossible too: SQLite writes pages before it frees
others."""
_FREE_BYTES_OF_WAL = 8 * 1024 * 1024
"""The part of `FREE_BYTES_MIN`, in bytes, that must be free on the disk, outside the file, for the write-ahead log."""
_WAL_SIZE_KEPT = 16 * 1024 * 1024
"""The size, in bytes, to which a write-ahead log that became larger during a long read is truncated after a
checkpoint."""


def open_database_any_thread(path: Path) -> sqlite3.Connection:
    """Open a connection to the file ``path``. At any time only one thread may use it, not necessarily the thread that
    opened it."""
    return sqlite3.connect(os.fspath(path), isolation_level=None, check_same_thread=False)


def open_database_read_only(path: Path) -> sqlite3.Connection:
    """Open a connection that does not change the file. The file may be in use by a broker.

    :raises sqlite3.Error: the file does not exist or cannot be opened.
    """
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)


def _encode_json(entries: Mapping[str, str]) -> str:
    """``entries`` as JSON with sorted keys."""
    return json.dumps(dict(entries), sort_keys=True)
