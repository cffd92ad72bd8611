"""The rows of batches: how retention and compaction read and change them.

`RowReader` has a separate connection, so that its long reads delay no fetch. The functions that change rows run inside
a write of the `Store`, and each call changes about one chunk at most: an append waits for at most one chunk.
"""

import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from coterie.broker.storage.store import Store, open_database_any_thread
from coterie.broker.storage.transaction_store import AbortedTransaction, read_aborted_transactions
from coterie.broker.topics.cleanup_settings import CleanupSettings
from coterie.wire.batches import read_batch_header

CHUNK_ROWS = 500
"""The maximum number of rows in one chunk."""
CHUNK_BYTES = 1024 * 1024
"""Approximate limit of the batches in one chunk, in bytes: what one SQLite transaction of maintenance removes or
rewrites."""
CHUNK_PAGES = 256
"""The maximum number of pages that one SQLite transaction releases from the file: SQLite must move another page for
each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRow:
    """The row of one batch in the table `batches`, with its SQLite row id."""

    row_id: int
    base_offset: int
    last_offset: int
    data: bytes
    delete_horizon_ms: int | None
    """The time from which the batch's tombstones, or the batch if it is a marker, may be dropped (KIP-534); None if no
    compaction has stored one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChange:
    """The change of one batch's row by a compaction. ``data`` are the new bytes of the batch; None keeps its bytes, and
    empty deletes the row."""

    row_id: int
    data: bytes | None
    """The new bytes of the batch; None keeps its bytes; empty deletes the row."""
    delete_horizon_ms: int | None = None
    """The new delete horizon of a row that stays: the time from which the batch's tombstones, or the batch if it is a
    marker, may be dropped; None: it gets no horizon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionBacklog:
    """What a compaction would process in the part of a partition that may be compacted now."""

    clean_bytes: int
    """The size of the batches that an earlier compaction has processed, in bytes."""
    dirty_bytes: int
    """The size of the batches that no compaction has processed yet, in bytes."""
    first_dirty_batch_max_timestamp_ms: int | None
    """The greatest timestamp in the first batch that no compaction has processed yet; None if there is no such
    batch."""
    next_delete_horizon_ms: int | None
    """The time from which the first tombstone or marker may be dropped, in ms since 1970; None if no compaction has
    stored such a time."""

    def needs_compaction(self, policy: CleanupSettings, now_ms: int) -> bool:
        """Whether a compaction is due at ``now_ms``: a tombstone or marker may be dropped, the first batch that no
        compaction has processed is older than ``max.compaction.lag.ms``, or the share of such batches in all bytes is
        above ``min.cleanable.dirty.ratio``. This is Kafka's rule, except that Kafka keeps expired tombstones until new
        records are written."""
        if self.next_delete_horizon_ms is not None and self.next_delete_horizon_ms <= now_ms:
            return True
        if self.first_dirty_batch_max_timestamp_ms is None:
            return False
        is_overdue = now_ms - self.first_dirty_batch_max_timestamp_ms > policy.max_compaction_lag_ms
        return is_overdue or self.dirty_bytes > policy.min_cleanable_ratio * (self.clean_bytes + self.dirty_bytes)


class RowReader:
    """Reads rows for maintenance, on a separate connection. All calls block."""

    def __init__(self, path: Path) -> None:
        self._database = open_database_any_thread(path)
        self._database.execute("PRAGMA query_only = ON")

    def close(self) -> None:
        """Close the connection."""
        self._database.close()

    # -- retention ----------------------------------------------------------------------------------------------------

    def start_offset_after_time_retention(self, partition_row_id: int, start_offset: int, written_since_ms: int) -> int:
        """The start offset that the partition has when its first batches, as far as all their records have timestamps
        before ``written_since_ms``, are removed. Nothing is removed here. A batch without a timestamp is removed only
        together with a later batch that has one."""
        (kept_from,) = self._database.execute(
            "SELECT last_offset FROM batches WHERE partition = ? AND last_offset >= ? AND max_timestamp_ms >= ?"
            " ORDER BY last_offset LIMIT 1",
            (partition_row_id, start_offset, written_since_ms),
        ).fetchone() or (2**63 - 1,)
        (last_expired,) = self._database.execute(
            "SELECT last_offset FROM batches WHERE partition = ? AND last_offset >= ? AND last_offset < ?"
            " AND max_timestamp_ms >= 0 ORDER BY last_offset DESC LIMIT 1",
            (partition_row_id, start_offset, kept_from),
        ).fetchone() or (start_offset - 1,)
        return int(last_expired) + 1

    def start_offset_after_size_retention(self, partition_row_id: int, start_offset: int, kept_bytes_min: int) -> int:
        """The start offset that the partition has when as many of its first batches as possible are removed so that at
        least ``kept_bytes_min`` bytes stay. Nothing is removed here."""
        excess = self._batches_size_bytes(partition_row_id, start_offset, 2**63 - 1) - kept_bytes_min
        kept_from = start_offset
        if excess > 0:
            rows = self._database.execute(
                "SELECT last_offset, size_bytes FROM batches WHERE partition = ? AND last_offset >= ?"
                " ORDER BY last_offset",
                (partition_row_id, start_offset),
            )
            for last_offset, size_bytes in rows:
                excess -= size_bytes
                if excess < 0:
                    break
                kept_from = last_offset + 1
            rows.close()
        return kept_from

    def partitions_with_rows_before_start(self, failed: Callable[[int, sqlite3.Error], None]) -> list[tuple[int, int]]:
        """The row id and the start offset of each partition that has batches that end before its start offset. Deleted
        topics are left out. ``failed`` is called with the row id and the error for each partition whose rows cannot be
        read."""
        found: list[tuple[int, int]] = []
        # One query for each partition: a corrupt page in one of them must not hide the others.
        for partition_id, start_offset in self._database.execute(
            "SELECT id, start_offset FROM partitions WHERE topic IS NOT NULL AND start_offset > 0"
        ).fetchall():
            try:
                row = self._database.execute(
                    "SELECT 1 FROM batches WHERE partition = ? AND last_offset < ? LIMIT 1",
                    (partition_id, start_offset),
                ).fetchone()
            except sqlite3.Error as error:
                failed(partition_id, error)
            else:
                if row is not None:
                    found.append((partition_id, start_offset))
        return found

    def last_offset_of_removable_chunk(self, partition_row_id: int, end_offset: int) -> int | None:
        """The last offset of the next chunk, for a caller that removes the batches that end before ``end_offset`` chunk
        by chunk. None if no such batch is left."""
        # The horizon is in the table but not in the index: so a corrupt page in either fails this read, and not the
        # write, which would also fail writes of others.
        found = self._database.execute(
            "SELECT last_offset, size_bytes, delete_horizon_ms FROM batches WHERE partition = ? AND last_offset < ?"
            " ORDER BY last_offset LIMIT ?",
            (partition_row_id, end_offset, CHUNK_ROWS),
        ).fetchall()
        size, until = 0, None
        for last_offset, size_bytes, _ in found:
            until = last_offset
            size += size_bytes
            if size >= CHUNK_BYTES:
                break
        return until

    def orphan_partition_row_ids(self) -> list[int]:
        """The row ids of the partitions whose topic was deleted."""
        return [row[0] for row in self._database.execute("SELECT id FROM partitions WHERE topic IS NULL")]

    def free_bytes_and_share(self) -> tuple[int, float]:
        """The unused bytes of the file, and their share of the file, from 0 to 1."""
        (free,) = self._database.execute("PRAGMA freelist_count").fetchone()
        (pages,) = self._database.execute("PRAGMA page_count").fetchone()
        (size,) = self._database.execute("PRAGMA page_size").fetchone()
        return free * size, free / max(1, pages)

    def truncate_wal(self) -> None:
        """Move the content of the write-ahead log into the file and truncate it, as far as open reads allow."""
        self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    # -- compaction ---------------------------------------------------------------------------------------------------

    def cleaned_offset(self, partition_row_id: int) -> int:
        """The offset at which the next compaction begins to index keys; 0 if the partition was deleted."""
        (offset,) = self._database.execute(
            "SELECT cleaned_offset FROM partitions WHERE id = ?", (partition_row_id,)
        ).fetchone() or (0,)
        return int(offset)

    def first_uncleanable_offset(
        self, partition_row_id: int, cleaned_offset: int, last_stable_offset: int, written_until_ms: int
    ) -> int:
        """The offset where a compaction must stop: the lowest of the base offset of the newest batch, the base offset
        of the first batch from ``cleaned_offset`` on that has a record later than ``written_until_ms``, and the last
        stable offset."""
        (newest,) = self._database.execute(
            "SELECT base_offset FROM batches WHERE partition = ? ORDER BY last_offset DESC LIMIT 1", (partition_row_id,)
        ).fetchone() or (0,)
        (too_young,) = self._database.execute(
            "SELECT base_offset FROM batches WHERE partition = ? AND last_offset >= ? AND max_timestamp_ms > ?"
            " ORDER BY last_offset LIMIT 1",
            (partition_row_id, cleaned_offset, written_until_ms),
        ).fetchone() or (newest,)
        return int(min(newest, too_young, last_stable_offset))

    def compaction_backlog(
        self, partition_row_id: int, start_offset: int, cleaned_offset: int, first_uncleanable_offset: int
    ) -> CompactionBacklog:
        """The backlog of the partition. The batches from ``start_offset`` to ``cleaned_offset`` were processed by an
        earlier compaction; those from there to ``first_uncleanable_offset`` were not."""
        row = self._database.execute(
            "SELECT max_timestamp_ms FROM batches WHERE partition = ? AND last_offset >= ? AND last_offset < ?"
            " ORDER BY last_offset LIMIT 1",
            (partition_row_id, cleaned_offset, first_uncleanable_offset),
        ).fetchone()
        (horizon_ms,) = self._database.execute(
            "SELECT delete_horizon_ms FROM batches WHERE partition = ? AND delete_horizon_ms IS NOT NULL"
            " AND last_offset < ? ORDER BY delete_horizon_ms LIMIT 1",
            (partition_row_id, max(cleaned_offset, first_uncleanable_offset)),
        ).fetchone() or (None,)
        return CompactionBacklog(
            clean_bytes=self._batches_size_bytes(partition_row_id, start_offset, cleaned_offset),
            dirty_bytes=self._batches_size_bytes(partition_row_id, cleaned_offset, first_uncleanable_offset),
            first_dirty_batch_max_timestamp_ms=row[0] if row else None,
            next_delete_horizon_ms=horizon_ms,
        )

    def next_batch_rows(self, partition_row_id: int, offset: int, end_offset: int) -> list[BatchRow]:
        """The next consecutive whole batches from the batch that contains ``offset``, at most about one chunk. All end
        before ``end_offset``; empty if there are none."""
        found: list[BatchRow] = []
        size = 0
        rows = self._database.execute(
            "SELECT id, base_offset, last_offset, data, delete_horizon_ms FROM batches WHERE partition = ?"
            " AND last_offset >= ? AND last_offset < ? ORDER BY last_offset LIMIT ?",
            (partition_row_id, offset, end_offset, CHUNK_ROWS),
        )
        for row_id, base_offset, last_offset, data, horizon_ms in rows:
            found.append(
                BatchRow(
                    row_id=row_id,
                    base_offset=base_offset,
                    last_offset=last_offset,
                    data=data,
                    delete_horizon_ms=horizon_ms,
                )
            )
            size += len(data)
            if size >= CHUNK_BYTES:
                break
        rows.close()
        return found

    def aborted_transactions(self, partition_row_id: int, end_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions of the partition whose first record is before ``end_offset``."""
        return read_aborted_transactions(self._database, partition_row_id, 0, end_offset)

    def _batches_size_bytes(self, partition_row_id: int, offset: int, end_offset: int) -> int:
        """The size in bytes of the batches whose last offset is at least ``offset`` and less than ``end_offset``."""
        (size,) = self._database.execute(
            "SELECT COALESCE(SUM(size_bytes), 0) FROM batches WHERE partition = ? AND last_offset >= ?"
            " AND last_offset < ?",
            (partition_row_id, offset, end_offset),
        ).fetchone()
        return int(size)


# -- inside an SQLite transaction of the store ------------------------------------------------------------------------


def remove_batch_rows(store: Store, partition_row_id: int, last_offset: int) -> None:
    """Delete the batches up to and including ``last_offset``, which must be from
    `RowReader.last_offset_of_removable_chunk`."""
    store.database.execute(
        "DELETE FROM batches WHERE partition = ? AND last_offset <= ?", (partition_row_id, last_offset)
    )


def delete_orphan_partition_row(store: Store, partition_row_id: int) -> None:
    """Delete the partition's own row, after its batches. Nothing is deleted unless the partition's topic was
    deleted."""
    store.database.execute("DELETE FROM partitions WHERE id = ? AND topic IS NULL", (partition_row_id,))


def apply_row_changes_and_drop_aborted(store: Store, changes: Iterable[RowChange]) -> None:
    """Rewrite or delete the rows, or set their delete horizon. If a deleted row is the marker of an aborted
    transaction, the entry of this transaction in the table `aborted` is deleted, too."""
    for row in changes:
        if row.data is None:
            store.database.execute(
                "UPDATE batches SET delete_horizon_ms = ? WHERE id = ?", (row.delete_horizon_ms, row.row_id)
            )
        elif row.data:
            store.database.execute(
                "UPDATE batches SET data = ?, size_bytes = ?, max_timestamp_ms = ?, delete_horizon_ms = ? WHERE id = ?",
                (
                    row.data,
                    len(row.data),
                    read_batch_header(row.data).max_timestamp_ms,
                    row.delete_horizon_ms,
                    row.row_id,
                ),
            )
        else:
            # With the marker of an aborted transaction, delete its entry for readers: none of its records is left.
            store.database.execute(
                "DELETE FROM aborted WHERE (partition, last_offset) IN"
                " (SELECT partition, last_offset FROM batches WHERE id = ?)",
                (row.row_id,),
            )
            store.database.execute("DELETE FROM batches WHERE id = ?", (row.row_id,))


def advance_end_of_possible_gaps(store: Store, partition_row_id: int, sifted_offset: int) -> None:
    """Store that offsets before ``sifted_offset`` may be missing in the partition from now on, because a compaction may
    remove their records. A lower offset than the stored one changes nothing."""
    store.database.execute(
        "UPDATE partitions SET sifted_offset = MAX(sifted_offset, ?) WHERE id = ?", (sifted_offset, partition_row_id)
    )


def store_cleaned_offset(store: Store, partition_row_id: int, cleaned_offset: int) -> None:
    """Store that the partition is compacted up to ``cleaned_offset``: at this offset the next compaction begins to
    index keys."""
    store.database.execute("UPDATE partitions SET cleaned_offset = ? WHERE id = ?", (cleaned_offset, partition_row_id))


def vacuum_chunk_of_pages(store: Store) -> None:
    """Release up to `CHUNK_PAGES` free pages, so that the file becomes shorter at the next checkpoint."""
    for _ in range(CHUNK_PAGES):
        # For more pages SQLite returns a row without columns after each page, and the module `sqlite3` stops there.
        store.database.execute("PRAGMA incremental_vacuum(1)")
