"""Reads of the log file during writes: one read-only connection, which sees only committed data."""

from pathlib import Path
from typing import NamedTuple

from coterie.broker.storage.store import open_database_any_thread


class ReadableSize(NamedTuple):
    """The size of the whole batches that a read of one partition may return."""

    size: int
    """The size of these batches in bytes, plus the ``included_earlier_bytes`` of the call."""
    end_offset: int
    """The offset after the last of these batches; the offset at which the read begins if there are none."""
    is_size_limit_reached: bool
    """Whether no further batch fits: ``size_max`` is reached, or the next batch would exceed it."""


class StoreReader:
    """Runs the queries of `BrokerLog` on a read-only connection to the log file. All calls block. The offsets in calls
    must satisfy ``start_offset <= offset < end_offset`` of the partition."""

    def __init__(self, path: Path) -> None:
        self.database = open_database_any_thread(path)
        """For queries of other modules. They must be short: every fetch waits for them."""
        self.database.execute("PRAGMA query_only = ON")

    def close(self) -> None:
        """Close the connection."""
        self.database.close()

    def batches(self, partition_row_id: int, offset: int, end_offset: int, size_max: int) -> bytes:
        """Consecutive whole batches, beginning with the batch that contains ``offset``, or with the next batch if
        compaction removed that offset. All batches end before ``end_offset``. They have at most ``size_max`` bytes, but
        the first batch is returned even if it is longer (KIP-74). Empty if no batch ends in the range."""
        found: list[bytes] = []
        size = 0
        rows = self.database.execute(
            "SELECT size_bytes, data FROM batches WHERE partition = ? AND last_offset >= ? AND last_offset < ?"
            " ORDER BY last_offset",
            (partition_row_id, offset, end_offset),
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

    def readable_size(
        self, partition_row_id: int, offset: int, end_offset: int, size_max: int, included_earlier_bytes: int
    ) -> ReadableSize:
        """The size of the batches that `batches` would return from ``offset`` on, plus ``included_earlier_bytes``, the
        size of an earlier count that ended at ``offset``. ``included_earlier_bytes`` count against ``size_max``: if
        there are any, a first batch that exceeds ``size_max`` is not counted. No batch is read from the file, only the
        index."""
        size, counted_to, is_size_limit_reached = included_earlier_bytes, offset, False
        # The index contains all columns of this query: no batch is read.
        rows = self.database.execute(
            "SELECT size_bytes, last_offset FROM batches WHERE partition = ? AND last_offset >= ? AND last_offset < ?"
            " ORDER BY last_offset",
            (partition_row_id, offset, end_offset),
        )
        for size_bytes, last_offset in rows:
            is_size_limit_reached = bool(size) and size + size_bytes > size_max
            if is_size_limit_reached:
                break
            size += size_bytes
            counted_to = last_offset + 1
            is_size_limit_reached = size >= size_max
            if is_size_limit_reached:
                break
        rows.close()
        return ReadableSize(size=size, end_offset=counted_to, is_size_limit_reached=is_size_limit_reached)

    def partition_sizes_by_row_id(self) -> dict[int, int]:
        """The size in bytes of each partition that has batches, by the partition's row id. Included are batches before
        the start offset whose rows are not deleted yet, and partitions of deleted topics."""
        # The index contains all columns of this query: no batch is read.
        return dict(self.database.execute("SELECT partition, SUM(size_bytes) FROM batches GROUP BY partition"))

    def first_batch_since(self, partition_row_id: int, timestamp_ms: int, offset: int, end_offset: int) -> bytes | None:
        """The bytes of the first batch, by offset, that has a record of ``timestamp_ms`` or later and whose last offset
        is at least ``offset`` and below ``end_offset``; None if there is none. The batch may begin before
        ``offset``."""
        row = self.database.execute(
            "SELECT data FROM batches WHERE partition = ? AND last_offset >= ? AND last_offset < ?"
            " AND max_timestamp_ms >= ? ORDER BY last_offset LIMIT 1",
            (partition_row_id, offset, end_offset, timestamp_ms),
        ).fetchone()
        return row[0] if row else None

    def max_timestamp_batch(self, partition_row_id: int, offset: int, end_offset: int) -> bytes | None:
        """The bytes of the batch with the greatest timestamp, the first of several, among those whose last offset is at
        least ``offset`` and below ``end_offset``; None if there is none."""
        row = self.database.execute(
            "SELECT data FROM batches WHERE id = (SELECT id FROM batches WHERE partition = ? AND last_offset >= ?"
            " AND last_offset < ? ORDER BY max_timestamp_ms DESC, last_offset LIMIT 1)",
            (partition_row_id, offset, end_offset),
        ).fetchone()
        return row[0] if row else None
