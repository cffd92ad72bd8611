"""What is read from the log's file while it is written: one connection that sees what is committed, and only reads."""

from pathlib import Path
from typing import NamedTuple

from coterie.broker.storage.store import connect


class Counted(NamedTuple):
    """What there is to read of one partition."""

    size: int
    """Bytes, of whole batches."""
    end_offset: int
    """The offset behind the last of them."""
    is_full: bool
    """Whether the next batch, if there is one, would be too much."""


class StoreReader:
    """All calls block. Every offset is given as ``start_offset <= offset < end_offset`` of the partition."""

    def __init__(self, path: Path) -> None:
        self.database = connect(path)
        """For queries of other modules, short ones: every fetch waits for them."""
        self.database.execute("PRAGMA query_only = ON")

    def close(self) -> None:
        self.database.close()

    def batches(self, partition_id: int, offset: int, end_offset: int, size_max: int) -> bytes:
        """Whole batches in a row: from the one that holds ``offset``, or the next where compaction has left a hole.
        None begins at ``end_offset`` or later; together no more than ``size_max`` bytes, but at least one (KIP-74)."""
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
        """What `batches` would give after ``before`` bytes that were counted already, without reading any of it."""
        size, counted_to, is_full = before, offset, False
        # The index has all of it: no batch is touched.
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
        """The bytes of each partition that has any; those that nobody can read any more count until they are swept."""
        # The index has all of it: no batch is touched.
        return dict(self.database.execute("SELECT partition, SUM(size_bytes) FROM batches GROUP BY partition"))

    def batch_since(self, partition_id: int, timestamp_ms: int, start_offset: int, end_offset: int) -> bytes | None:
        """The first batch with a record of ``timestamp_ms`` or later."""
        row = self.database.execute(
            "SELECT data FROM batches WHERE partition = ? AND last_offset >= ? AND last_offset < ?"
            " AND max_timestamp_ms >= ? ORDER BY last_offset LIMIT 1",
            (partition_id, start_offset, end_offset, timestamp_ms),
        ).fetchone()
        return row[0] if row else None

    def latest_batch(self, partition_id: int, start_offset: int, end_offset: int) -> bytes | None:
        """The batch with the greatest timestamp; the first of several."""
        row = self.database.execute(
            "SELECT data FROM batches WHERE id = (SELECT id FROM batches WHERE partition = ? AND last_offset >= ?"
            " AND last_offset < ? ORDER BY max_timestamp_ms DESC, last_offset LIMIT 1)",
            (partition_id, start_offset, end_offset),
        ).fetchone()
        return row[0] if row else None
