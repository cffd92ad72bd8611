"""What a compaction keeps (cleanup.policy=compact, KIP-58, KIP-534): a pure decision over the records of one partition.

A pass has two walks. The first one *sees* the batches that no pass has seen yet, and notes for each key where its
newest record stands. The second one *sifts* every batch from the partition's start up to where the first one came, in
order. Out go records that a newer one of their key has replaced, records without a key, and those of aborted
transactions. A tombstone that is its key's newest record stays for ``delete.retention.ms`` after the pass that first
found it so: that pass writes a *horizon* on its batch, and the first pass after the horizon drops it. So whoever reads
from the start, and arrives at the end within that time, hears of every deletion.

The order is what makes a kill harmless at any point: an older value is always gone, for good, before the tombstone
that hides it goes. Where a batch cannot be read, an older value may stand in it, so no tombstone behind it ever goes.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from coterie.broker.storage.transaction_store import Aborted
from coterie.wire.sifting import Slice

KEY_COST_BYTES = 180
"""What a noted key takes of our memory, measured with keys of 20 bytes; Kafka counts 24."""
_RAW_KEY_SIZE_MAX = 31
"""A longer key is noted as its digest of one byte more than this, so that no key is taken for another's digest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicedBatch:
    """A batch as compaction sees it; ``records`` is None where they cannot be read. A control batch has none."""

    base_offset: int
    last_offset: int
    producer_id: int
    is_transactional: bool
    is_control: bool
    horizon_ms: int | None
    records: Sequence[Slice] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SiftedBatch:
    """What becomes of a batch: ``records`` None leaves them as they are, none left removes it."""

    records: Sequence[Slice] | None
    horizon_ms: int | None = None

    @property
    def is_removed(self) -> bool:
        return self.records is not None and not self.records


class Compaction:
    """One pass over one partition: every `see` comes before the first `sift`. All batches stand before the last stable
    offset, so every transaction in them is decided."""

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
        """Producers with records left of the transaction whose marker the second walk has not met."""

    def see(self, batch: SlicedBatch) -> bool:
        """Note the batch's keys; False when there is no room for them, and the pass ends before this batch."""
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
            # Nothing in it ever goes, so no pass is due for it: a horizon that it had is dropped.
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
        """A marker stays as long as its transaction has records, and then as long as a tombstone would."""
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
        # One producer's transactions on one partition follow each other.
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
