"""The rows of batches: how retention and compaction read and change them.

`RowReader` has a separate connection, so that its long reads delay no fetch. The functions that change rows run
inside a write of the `Store` and are limited to one chunk: an append waits for at most one chunk.
"""

import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from coterie.broker.storage.store import Store, connect
from coterie.broker.storage.transaction_store import Aborted, read_aborted
from coterie.broker.topics.policies import TopicPolicy
from coterie.wire.batches import read_head

STEP_ROWS = 500
STEP_BYTES = 1024 * 1024
"""Approximate limit of what one SQLite transaction of maintenance removes or rewrites."""
STEP_PAGES = 256
"""Pages that one SQLite transaction releases from the file: SQLite must move another page for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One batch with its SQLite row id."""

    id: int
    base_offset: int
    last_offset: int
    data: bytes
    horizon_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRow:
    """The change of a batch: ``data`` None keeps its bytes, empty ``data`` removes the row."""

    id: int
    data: bytes | None
    horizon_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dirt:
    """What a compaction would process in the part of a partition that may be compacted."""

    clean_bytes: int
    """Bytes that an earlier compaction has processed."""
    dirty_bytes: int
    dirty_since_ms: int | None
    """When the first of the dirty bytes were written; None without dirty bytes."""
    next_horizon_ms: int | None
    """When the first tombstone may be dropped; None if no tombstone has a horizon."""

    def is_worth_a_pass(self, policy: TopicPolicy, now_ms: int) -> bool:
        """Kafka's rule, except that Kafka keeps expired tombstones until new records are written."""
        if self.next_horizon_ms is not None and self.next_horizon_ms <= now_ms:
            return True
        if self.dirty_since_ms is None:
            return False
        is_overdue = now_ms - self.dirty_since_ms > policy.max_compaction_lag_ms
        return is_overdue or self.dirty_bytes > policy.min_cleanable_ratio * (self.clean_bytes + self.dirty_bytes)


class RowReader:
    """All calls block."""

    def __init__(self, path: Path) -> None:
        self._database = connect(path)
        self._database.execute("PRAGMA query_only = ON")

    def close(self) -> None:
        self._database.close()

    # -- retention ----------------------------------------------------------------------------------------------------

    def offset_kept_by_time(self, partition_id: int, start_offset: int, written_since_ms: int) -> int:
        """The start offset without the first batches that are older than ``written_since_ms``. A batch without a
        timestamp counts as old as the next batch."""
        (kept_from,) = self._database.execute(
            "SELECT last_offset FROM batches WHERE partition = ? AND last_offset >= ? AND max_timestamp_ms >= ?"
            " ORDER BY last_offset LIMIT 1",
            (partition_id, start_offset, written_since_ms),
        ).fetchone() or (2**63 - 1,)
        (last_expired,) = self._database.execute(
            "SELECT last_offset FROM batches WHERE partition = ? AND last_offset >= ? AND last_offset < ?"
            " AND max_timestamp_ms >= 0 ORDER BY last_offset DESC LIMIT 1",
            (partition_id, start_offset, kept_from),
        ).fetchone() or (start_offset - 1,)
        return int(last_expired) + 1

    def offset_kept_by_size(self, partition_id: int, start_offset: int, size_max: int) -> int:
        """The start offset without as many of the first batches as can be deleted while at least ``size_max`` bytes
        stay."""
        excess = self._size(partition_id, start_offset, 2**63 - 1) - size_max
        kept_from = start_offset
        if excess > 0:
            rows = self._database.execute(
                "SELECT last_offset, size_bytes FROM batches WHERE partition = ? AND last_offset >= ?"
                " ORDER BY last_offset",
                (partition_id, start_offset),
            )
            for last_offset, size_bytes in rows:
                excess -= size_bytes
                if excess < 0:
                    break
                kept_from = last_offset + 1
            rows.close()
        return kept_from

    def partitions_with_hidden_rows(self, failed: Callable[[int, sqlite3.Error], None]) -> list[tuple[int, int]]:
        """Row id and start offset of the partitions with hidden rows; ``failed`` is called for each partition whose
        rows cannot be read."""
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

    def removable(self, partition_id: int, end_offset: int) -> int | None:
        """Last offset up to which one chunk may remove the batches that end before ``end_offset``; None if there are
        none."""
        # The horizon is in the table but not in the index: so a corrupt page in either fails this read, and not the
        # write, which would also fail writes of others.
        found = self._database.execute(
            "SELECT last_offset, size_bytes, delete_horizon_ms FROM batches WHERE partition = ? AND last_offset < ?"
            " ORDER BY last_offset LIMIT ?",
            (partition_id, end_offset, STEP_ROWS),
        ).fetchall()
        size, until = 0, None
        for last_offset, size_bytes, _ in found:
            until = last_offset
            size += size_bytes
            if size >= STEP_BYTES:
                break
        return until

    def orphans(self) -> list[int]:
        """The row ids of partitions whose topic was deleted."""
        return [row[0] for row in self._database.execute("SELECT id FROM partitions WHERE topic IS NULL")]

    def free_space(self) -> tuple[int, float]:
        """The unused bytes of the file, and which part of the file they are."""
        (free,) = self._database.execute("PRAGMA freelist_count").fetchone()
        (pages,) = self._database.execute("PRAGMA page_count").fetchone()
        (size,) = self._database.execute("PRAGMA page_size").fetchone()
        return free * size, free / max(1, pages)

    def shorten_wal(self) -> None:
        """Checkpoint the write-ahead log and truncate it, as far as open reads allow."""
        self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    # -- compaction ---------------------------------------------------------------------------------------------------

    def cleaned_offset(self, partition_id: int) -> int:
        (offset,) = self._database.execute(
            "SELECT cleaned_offset FROM partitions WHERE id = ?", (partition_id,)
        ).fetchone() or (0,)
        return int(offset)

    def offset_settled(self, partition_id: int, cleaned_offset: int, stable_offset: int, written_until_ms: int) -> int:
        """The offset where compaction must stop: the newest batch, the first batch younger than ``written_until_ms``,
        or the last stable offset, whichever is first."""
        (newest,) = self._database.execute(
            "SELECT base_offset FROM batches WHERE partition = ? ORDER BY last_offset DESC LIMIT 1", (partition_id,)
        ).fetchone() or (0,)
        (too_young,) = self._database.execute(
            "SELECT base_offset FROM batches WHERE partition = ? AND last_offset >= ? AND max_timestamp_ms > ?"
            " ORDER BY last_offset LIMIT 1",
            (partition_id, cleaned_offset, written_until_ms),
        ).fetchone() or (newest,)
        return int(min(newest, too_young, stable_offset))

    def dirt(self, partition_id: int, start_offset: int, cleaned_offset: int, settled_offset: int) -> Dirt:
        row = self._database.execute(
            "SELECT max_timestamp_ms FROM batches WHERE partition = ? AND last_offset >= ? AND last_offset < ?"
            " ORDER BY last_offset LIMIT 1",
            (partition_id, cleaned_offset, settled_offset),
        ).fetchone()
        (horizon_ms,) = self._database.execute(
            "SELECT delete_horizon_ms FROM batches WHERE partition = ? AND delete_horizon_ms IS NOT NULL"
            " AND last_offset < ? ORDER BY delete_horizon_ms LIMIT 1",
            (partition_id, max(cleaned_offset, settled_offset)),
        ).fetchone() or (None,)
        return Dirt(
            clean_bytes=self._size(partition_id, start_offset, cleaned_offset),
            dirty_bytes=self._size(partition_id, cleaned_offset, settled_offset),
            dirty_since_ms=row[0] if row else None,
            next_horizon_ms=horizon_ms,
        )

    def rows(self, partition_id: int, offset: int, end_offset: int) -> list[Row]:
        """The next consecutive whole batches, about one chunk; all end before ``end_offset``."""
        found: list[Row] = []
        size = 0
        rows = self._database.execute(
            "SELECT id, base_offset, last_offset, data, delete_horizon_ms FROM batches WHERE partition = ?"
            " AND last_offset >= ? AND last_offset < ? ORDER BY last_offset LIMIT ?",
            (partition_id, offset, end_offset, STEP_ROWS),
        )
        for row_id, base_offset, last_offset, data, horizon_ms in rows:
            found.append(
                Row(id=row_id, base_offset=base_offset, last_offset=last_offset, data=data, horizon_ms=horizon_ms)
            )
            size += len(data)
            if size >= STEP_BYTES:
                break
        rows.close()
        return found

    def aborted(self, partition_id: int, end_offset: int) -> list[Aborted]:
        """Aborted transactions that begin before ``end_offset``."""
        return read_aborted(self._database, partition_id, 0, end_offset)

    def _size(self, partition_id: int, offset: int, end_offset: int) -> int:
        (size,) = self._database.execute(
            "SELECT COALESCE(SUM(size_bytes), 0) FROM batches WHERE partition = ? AND last_offset >= ?"
            " AND last_offset < ?",
            (partition_id, offset, end_offset),
        ).fetchone()
        return int(size)


# -- inside an SQLite transaction of the store ------------------------------------------------------------------------


def remove_rows(store: Store, partition_id: int, last_offset: int) -> None:
    """Remove the batches up to ``last_offset``, which is from `RowReader.removable`."""
    store.database.execute("DELETE FROM batches WHERE partition = ? AND last_offset <= ?", (partition_id, last_offset))


def forget_partition(store: Store, partition_id: int) -> None:
    """Delete the row of a deleted topic's partition, after its batches."""
    store.database.execute("DELETE FROM partitions WHERE id = ? AND topic IS NULL", (partition_id,))


def change_rows(store: Store, rows: Iterable[NewRow]) -> None:
    for row in rows:
        if row.data is None:
            store.database.execute("UPDATE batches SET delete_horizon_ms = ? WHERE id = ?", (row.horizon_ms, row.id))
        elif row.data:
            store.database.execute(
                "UPDATE batches SET data = ?, size_bytes = ?, max_timestamp_ms = ?, delete_horizon_ms = ? WHERE id = ?",
                (row.data, len(row.data), read_head(row.data).max_timestamp_ms, row.horizon_ms, row.id),
            )
        else:
            # With the marker of an aborted transaction, delete its entry for readers: none of its records is left.
            store.database.execute(
                "DELETE FROM aborted WHERE (partition, last_offset) IN"
                " (SELECT partition, last_offset FROM batches WHERE id = ?)",
                (row.id,),
            )
            store.database.execute("DELETE FROM batches WHERE id = ?", (row.id,))


def set_sifted(store: Store, partition_id: int, sifted_offset: int) -> None:
    """Compaction may remove offsets before ``sifted_offset`` from now on."""
    store.database.execute(
        "UPDATE partitions SET sifted_offset = MAX(sifted_offset, ?) WHERE id = ?", (sifted_offset, partition_id)
    )


def set_cleaned(store: Store, partition_id: int, cleaned_offset: int) -> None:
    store.database.execute("UPDATE partitions SET cleaned_offset = ? WHERE id = ?", (cleaned_offset, partition_id))


def give_back_pages(store: Store) -> None:
    """Release some free pages at the end of the file; the file shrinks at the next checkpoint."""
    for _ in range(STEP_PAGES):
        # For more pages SQLite returns a row without columns after each page, and the module `sqlite3` stops there.
        store.database.execute("PRAGMA incremental_vacuum(1)")
