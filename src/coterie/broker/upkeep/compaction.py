"""Which records a compaction keeps (cleanup.policy=compact, KIP-58, KIP-534): pure decisions over one partition.

A compaction has two phases. The first phase, `see`, reads the batches that no compaction has read yet, and stores the
newest offset of each key. The second phase, `sift`, goes through all batches in order, from the partition's start to
where the first phase ended. It drops records that are replaced by a newer record with the same key, records without a
key, and records of aborted transactions. A tombstone that is its key's newest record stays for ``delete.retention.ms``
after the compaction that first found it to be the newest: that compaction stores a *horizon* for its batch, and the
first compaction after the horizon drops the tombstone. So a reader that starts at the beginning and reaches the end
within that time receives every deletion.

Because of this order a kill is harmless at any point: an older value is always deleted durably before the tombstone
that hides it. An unreadable batch may contain an older value, so tombstones after it are never dropped.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from coterie.broker.storage.transaction_store import Aborted
from coterie.wire.sifting import Slice

KEY_COST_BYTES = 180
"""Memory for an indexed key in bytes, measured with keys of 20 bytes; Kafka assumes 24."""
_RAW_KEY_SIZE_MAX = 31
"""A longer key is stored as a digest of one byte more than this, so that no key equals another key's digest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicedBatch:
    """A batch and its records; ``records`` is None if they cannot be read. A control batch has no records."""

    base_offset: int
    last_offset: int
    producer_id: int
    is_transactional: bool
    is_control: bool
    horizon_ms: int | None
    records: Sequence[Slice] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SiftedBatch:
    """The result for a batch: ``records`` None keeps all records, no records remove the batch."""

    records: Sequence[Slice] | None
    horizon_ms: int | None = None

    @property
    def is_removed(self) -> bool:
        return self.records is not None and not self.records


class Compaction:
    """One compaction of one partition: every `see` comes before the first `sift`. All batches are before the last
    stable offset, so every transaction in them is completed."""

    def __init__(
        self, *, now_ms: int, delete_retention_ms: int, keys_max: int, aborted: Iterable[Aborted] = ()
    ) -> None:
        self._now_ms = now_ms
        self._horizon_ms = now_ms + delete_retention_ms
        self._keys_max = keys_max
        self._newest: dict[bytes, int] = {}
        self._aborted: dict[int, list[Aborted]] = {}
        for transaction in sorted(aborted, key=_last_offset):
            self._aborted.setdefault(transaction.producer_id, []).append(transaction)
        self._has_met_unreadable = False
        self._with_records: set[int] = set()
        """Producers whose transaction has records left, and whose marker the second phase has not reached yet."""

    def see(self, batch: SlicedBatch) -> bool:
        """Index the batch's keys; False if they do not fit into memory, and the compaction ends before this batch."""
        records = batch.records or ()
        if self._newest and len(self._newest) + len(records) > self._keys_max:
            return False
        if not batch.is_control and not self._is_aborted(batch):
            for record in records:
                if record.key is not None:
                    self._newest[_noted(record.key)] = record.offset
        return True

    def sift(self, batch: SlicedBatch) -> SiftedBatch:
        if batch.is_control:
            return self._sift_marker(batch)
        if self._is_aborted(batch):
            return SiftedBatch(records=())
        if batch.records is None:
            self._has_met_unreadable = True
            self._note_transaction(batch)
            # Its records are never dropped, so it needs no compaction: remove its horizon.
            return SiftedBatch(records=None)
        kept = [record for record in batch.records if self._is_kept(record, batch.horizon_ms)]
        if kept:
            self._note_transaction(batch)
        has_tombstones = any(record.is_tombstone for record in kept)
        return SiftedBatch(
            records=kept if len(kept) < len(batch.records) else None,
            horizon_ms=self._horizon(batch) if has_tombstones and not self._has_met_unreadable else None,
        )

    def _is_kept(self, record: Slice, horizon_ms: int | None) -> bool:
        if record.key is None or self._newest.get(_noted(record.key), -1) > record.offset:
            return False
        return not record.is_tombstone or self._has_met_unreadable or not self._is_over(horizon_ms)

    def _sift_marker(self, batch: SlicedBatch) -> SiftedBatch:
        """Keep a marker while its transaction has records, and then as long as a tombstone."""
        if batch.producer_id in self._with_records:
            self._with_records.discard(batch.producer_id)
            return SiftedBatch(records=None)
        if self._is_over(batch.horizon_ms):
            return SiftedBatch(records=())
        return SiftedBatch(records=None, horizon_ms=self._horizon(batch))

    def _note_transaction(self, batch: SlicedBatch) -> None:
        if batch.is_transactional:
            self._with_records.add(batch.producer_id)

    def _is_aborted(self, batch: SlicedBatch) -> bool:
        if not batch.is_transactional or batch.producer_id not in self._aborted:
            return False
        # Transactions of one producer in one partition do not overlap.
        transactions = self._aborted[batch.producer_id]
        at = bisect_left(transactions, batch.base_offset, key=_last_offset)
        return at < len(transactions) and transactions[at].first_offset <= batch.base_offset

    def _is_over(self, horizon_ms: int | None) -> bool:
        return horizon_ms is not None and horizon_ms <= self._now_ms

    def _horizon(self, batch: SlicedBatch) -> int:
        return self._horizon_ms if batch.horizon_ms is None else batch.horizon_ms


def _last_offset(transaction: Aborted) -> int:
    return transaction.last_offset


def _noted(key: bytes) -> bytes:
    return key if len(key) <= _RAW_KEY_SIZE_MAX else blake2b(key, digest_size=_RAW_KEY_SIZE_MAX + 1).digest()
