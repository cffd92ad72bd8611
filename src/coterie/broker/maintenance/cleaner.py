"""Compaction of one partition, in chunks of rows after which it can be interrupted.

This module reads and decides; the log's writer thread writes the changes, in order (`compaction` explains why a kill
between two chunks is harmless). A batch that is corrupt keeps its bytes, since its header, too, may be wrong. So does a
batch that is compressed with an unknown codec, unless it belongs to an aborted transaction.
"""

from collections.abc import Callable

from coterie.broker.maintenance.compaction import KEY_COST_BYTES, BatchWithRecords, Compaction
from coterie.broker.maintenance.rows import BatchRow, RowChange, RowReader
from coterie.broker.topics.cleanup_settings import CleanupSettings
from coterie.nouns.errors import WireError
from coterie.wire.batch_filter import rebuild_with_records, split_records
from coterie.wire.batches import BatchHeader, check_crc, read_batch_header


class PartitionCleaner:
    """One compaction of one partition. All calls block. Call `index_keys`, which returns whether it must be called
    again, until it returns False; then `next_row_changes` until it returns None, and write the changes in this order.
    Then the partition is compacted up to ``end_offset``, which `index_keys` lowers if the keys do not fit into
    memory."""

    def __init__(
        self,
        reader: RowReader,
        partition_row_id: int,
        *,
        start_offset: int,
        cleaned_offset: int,
        first_uncleanable_offset: int,
        policy: CleanupSettings,
        dedupe_buffer_bytes: int,
        now_ms: int,
        log_warning_once: Callable[[str], None],
    ) -> None:
        """The compaction goes from ``start_offset`` up to ``first_uncleanable_offset``. Keys are indexed from
        ``cleaned_offset``, up to which an earlier compaction has processed the partition. ``dedupe_buffer_bytes`` is
        the memory for keys, in bytes. ``log_warning_once`` gets a message about each unreadable batch."""
        self.end_offset = first_uncleanable_offset
        """Where the compaction ends. `index_keys` lowers it if the keys of all batches do not fit into memory."""
        self._reader = reader
        self._partition_row_id = partition_row_id
        self._index_from_offset = cleaned_offset
        self._clean_from_offset = start_offset
        self._log_warning_once = log_warning_once
        self._compaction = Compaction(
            now_ms=now_ms,
            delete_retention_ms=policy.delete_retention_ms,
            keys_max=dedupe_buffer_bytes // KEY_COST_BYTES,
            aborted_transactions=reader.aborted_transactions(partition_row_id, first_uncleanable_offset),
        )

    def index_keys(self) -> bool:
        """Index the keys of the next chunk of batches. True: this must be called again. False: all batches are indexed,
        or the keys of the next batch do not fit into memory, and ``end_offset`` is now the base
        offset of that batch."""
        rows = self._reader.next_batch_rows(self._partition_row_id, self._index_from_offset, self.end_offset)
        for row in rows:
            if not self._compaction.index_keys(self._read_batch_and_warn_if_unreadable(row)[0]):
                self.end_offset = row.base_offset
                return False
            self._index_from_offset = row.last_offset + 1
        return bool(rows)

    def next_row_changes(self) -> list[RowChange] | None:
        """The changes of the next chunk of batches; empty if all these batches stay as they are; None if there are no
        more batches."""
        rows = self._reader.next_batch_rows(self._partition_row_id, self._clean_from_offset, self.end_offset)
        if not rows:
            return None
        self._clean_from_offset = rows[-1].last_offset + 1
        changes: list[RowChange] = []
        for row in rows:
            batch, head = self._read_batch_and_warn_if_unreadable(row)
            outcome = self._compaction.clean_batch(batch)
            if outcome.is_removed:
                changes.append(RowChange(row_id=row.row_id, data=b""))
            elif outcome.records is not None:
                assert head is not None
                data = rebuild_with_records(row.data, head, outcome.records)
                changes.append(RowChange(row_id=row.row_id, data=data, delete_horizon_ms=outcome.delete_horizon_ms))
            elif outcome.delete_horizon_ms != row.delete_horizon_ms:
                changes.append(RowChange(row_id=row.row_id, data=None, delete_horizon_ms=outcome.delete_horizon_ms))
        return changes

    def _read_batch_and_warn_if_unreadable(self, row: BatchRow) -> tuple[BatchWithRecords, BatchHeader | None]:
        """The batch in ``row`` with its records, and its header. If the header cannot be read, it is None, and the
        producer id is -1. If the header or the records cannot be read, the records are None, and ``log_warning_once``
        gets a message."""
        head: BatchHeader | None = None
        records = None
        has_valid_crc = False
        try:
            head = read_batch_header(row.data)
            # A corrupt batch must not be rewritten with a valid CRC.
            check_crc(row.data, 0, head)
            has_valid_crc = True
            records = () if head.is_control else split_records(row.data, head)
        except WireError as error:
            self._log_warning_once(
                f"the batch at offset {row.base_offset} cannot be read; compaction keeps it as it is, unless it belongs"
                f" to an aborted transaction: {error}"
            )
        return BatchWithRecords(
            base_offset=row.base_offset,
            last_offset=row.last_offset,
            producer_id=-1 if head is None else head.producer_id,
            is_transactional=head is not None and head.is_transactional,
            is_control=head is not None and head.is_control and records is not None,
            has_valid_crc=has_valid_crc,
            delete_horizon_ms=row.delete_horizon_ms,
            records=records,
        ), head
