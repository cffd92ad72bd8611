"""Compaction of one partition, in chunks of rows after which it can be interrupted.

This module reads and decides; the log's writer thread writes the changes, in order (`compaction` explains why a kill
is harmless in between). A batch that is corrupt, or compressed with an unknown codec, stays unchanged.
"""

from collections.abc import Callable

from coterie.broker.topics.policies import TopicPolicy
from coterie.broker.upkeep.compaction import KEY_COST_BYTES, Compaction, SlicedBatch
from coterie.broker.upkeep.rows import NewRow, Row, RowReader
from coterie.nouns.errors import WireError
from coterie.wire.batches import BatchHead, check_crc, read_head
from coterie.wire.sifting import sifted, slices


class Pass:
    """One compaction of one partition. All calls block. Call `see` until it returns False, then `sift` until it returns
    None; then the partition is compacted up to ``end_offset``."""

    def __init__(
        self,
        reader: RowReader,
        partition_id: int,
        *,
        start_offset: int,
        cleaned_offset: int,
        settled_offset: int,
        policy: TopicPolicy,
        dedupe_buffer_size: int,
        now_ms: int,
        complain: Callable[[str], None],
    ) -> None:
        self.end_offset = settled_offset
        self._reader = reader
        self._partition_id = partition_id
        self._see_from = cleaned_offset
        self._sift_from = start_offset
        self._complain = complain
        self._compaction = Compaction(
            now_ms=now_ms,
            delete_retention_ms=policy.delete_retention_ms,
            keys_max=dedupe_buffer_size // KEY_COST_BYTES,
            aborted=reader.aborted(partition_id, settled_offset),
        )

    def see(self) -> bool:
        """Index the keys of the next batches; False after the last batches."""
        rows = self._reader.rows(self._partition_id, self._see_from, self.end_offset)
        for row in rows:
            if not self._compaction.see(self._batch(row)[0]):
                self.end_offset = row.base_offset
                return False
            self._see_from = row.last_offset + 1
        return bool(rows)

    def sift(self) -> list[NewRow] | None:
        """The changes of the next batches; None if there are no more batches."""
        rows = self._reader.rows(self._partition_id, self._sift_from, self.end_offset)
        if not rows:
            return None
        self._sift_from = rows[-1].last_offset + 1
        changes: list[NewRow] = []
        for row in rows:
            batch, head = self._batch(row)
            outcome = self._compaction.sift(batch)
            if outcome.is_removed:
                changes.append(NewRow(id=row.id, data=b""))
            elif outcome.records is not None:
                assert head is not None
                data = sifted(row.data, head, outcome.records)
                changes.append(NewRow(id=row.id, data=data, horizon_ms=outcome.horizon_ms))
            elif outcome.horizon_ms != row.horizon_ms:
                changes.append(NewRow(id=row.id, data=None, horizon_ms=outcome.horizon_ms))
        return changes

    def _batch(self, row: Row) -> tuple[SlicedBatch, BatchHead | None]:
        head: BatchHead | None = None
        records = None
        try:
            head = read_head(row.data)
            # A corrupt batch must not be rewritten with a valid CRC.
            check_crc(row.data, 0, head)
            records = () if head.is_control else slices(row.data, head)
        except WireError as error:
            self._complain(f"the batch at offset {row.base_offset} cannot be read and stays as it is: {error}")
        return SlicedBatch(
            base_offset=row.base_offset,
            last_offset=row.last_offset,
            producer_id=-1 if head is None else head.producer_id,
            is_transactional=head is not None and head.is_transactional,
            is_control=head is not None and head.is_control and records is not None,
            horizon_ms=row.horizon_ms,
            records=records,
        ), head
