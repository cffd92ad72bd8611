"""Reads of the log file during writes: one read-only connection, which sees only committed data."""

from pathlib import Path
from typing import NamedTuple

from coterie.broker.storage.store import connect


class Counted(NamedTuple):
    """The size of a read of one partition."""

    size: int
    """Size of whole batches, in bytes."""
    end_offset: int
    """The offset after the last of these batches."""
    is_full: bool
    """Whether the next batch, if there is one, would exceed the limit."""


class StoreReader:
    """All calls block. Offsets must satisfy ``start_offset <= offset < end_offset`` of the partition."""

    def __init__(self, path: Path) -> None:
        self.database = connect(path)
        """For queries of other modules. They must be short: every fetch waits for them."""
        self.database.execute("PRAGMA query_only = ON")

    def close(self) -> None:
        self.database.close()

    def batches(self, partition_id: int, offset: int, end_offset: int, size_max: int) -> bytes:
        """Consecutive whole batches from the batch that contains ``offset``, or the next batch if compaction removed
        that offset. All batches end before ``end_offset``; their size is at most ``size_max`` bytes, except that at
        least one batch is returned (KIP-74)."""
        found: list[bytes] = []
        size = 0
        rows = self.database.execute(
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

    def counted(self, partition_id: int, offset: int, end_offset: int, size_max: int, before: int) -> Counted:
        """The size of what `batches` would return after ``before`` bytes that are already counted; reads no batch."""
        size, counted_to, is_full = before, offset, False
        # The index contains all columns of this query: no batch is read.
        rows = self.database.execute(
            "SELECT size_bytes, last_offset FROM batches WHERE partition = ? AND last_offset >= ? AND last_offset < ?"
            " ORDER BY last_offset",
            (partition_id, offset, end_offset),
        )
        for size_bytes, last_offset in rows:
            is_full = bool(size) and size + size_bytes > size_max
            if is_full:
                break
            size += size_bytes
            counted_to = last_offset + 1
            is_full = size >= size_max
            if is_full:
                break
        rows.close()
        return Counted(size=size, end_offset=counted_to, is_full=is_full)

    def sizes(self) -> dict[int, int]:
        """The size of each non-empty partition in bytes, including hidden rows that are not deleted yet."""
        # The index contains all columns of this query: no batch is read.
        return dict(self.database.execute("SELECT partition, SUM(size_bytes) FROM batches GROUP BY partition"))

    def batch_since(self, partition_id: int, timestamp_ms: int, start_offset: int, end_offset: int) -> bytes | None:
        """The first batch with a record of ``timestamp_ms`` or later; None if there is none."""
        row = self.database.execute(
            "SELECT data FROM batches WHERE partition = ? AND last_offset >= ? AND last_offset < ?"
            " AND max_timestamp_ms >= ? ORDER BY last_offset LIMIT 1",
            (partition_id, start_offset, end_offset, timestamp_ms),
        ).fetchone()
        return row[0] if row else None

    def latest_batch(self, partition_id: int, start_offset: int, end_offset: int) -> bytes | None:
        """The batch with the greatest timestamp, the first of several; None if there is none."""
        row = self.database.execute(
            "SELECT data FROM batches WHERE id = (SELECT id FROM batches WHERE partition = ? AND last_offset >= ?"
            " AND last_offset < ? ORDER BY max_timestamp_ms DESC, last_offset LIMIT 1)",
            (partition_id, start_offset, end_offset),
        ).fetchone()
        return row[0] if row else None
