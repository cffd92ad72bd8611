"""Which records a compaction keeps (cleanup.policy=compact, KIP-58, KIP-534): pure decisions over one partition.

A compaction has two phases. The first phase, `index_keys`, reads the batches that no compaction has read yet, and
stores the newest offset of each key. The second phase, `clean_batch`, goes through all batches in order, from the
partition's start to where the first phase ended. It drops records that are replaced by a newer record with the same
key, records without a key, and records of aborted transactions. A tombstone that is its key's newest record stays for
``delete.retention.ms`` after the compaction that first found it to be the newest: that compaction stores a *horizon*
for its batch, and the first compaction after the horizon drops the tombstone. So a reader that starts at the beginning
and reaches the end within that time receives every deletion.

Because of this order a kill is harmless at any point: an older value is always deleted durably before the tombstone
that hides it. An unreadable batch may contain an older value, so tombstones after it are never dropped.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from coterie.broker.storage.transaction_store import AbortedTransaction
from coterie.wire.batch_filter import RawRecord

KEY_COST_BYTES = 180
"""The memory that one indexed key takes, in bytes, measured with keys of 20 bytes; Kafka assumes 24."""
_RAW_KEY_SIZE_MAX = 31
"""The size, in bytes, of the largest key that is indexed unchanged. A longer key is stored as its digest, which has one
byte more than this: so no digest equals a key that is stored itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchWithRecords:
    """A batch and its records. If ``has_valid_crc`` is False, the other values from the batch's header may be wrong."""

    base_offset: int
    last_offset: int
    producer_id: int
    is_transactional: bool
    is_control: bool
    has_valid_crc: bool
    """Whether the batch has the CRC that its header states."""
    delete_horizon_ms: int | None
    """The time from which the batch's tombstones may be dropped, or the batch if it is a marker; None if no compaction
    has stored one."""
    records: Sequence[RawRecord] | None
    """None if the records cannot be read; empty for a control batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedBatch:
    """What a compaction keeps of a batch."""

    records: Sequence[RawRecord] | None
    """The records that stay; None: all, so the bytes of the batch do not change; empty: the batch is removed."""
    delete_horizon_ms: int | None = None
    """The time to store for the batch, from which its tombstones, or the batch if it is a marker, may be dropped; None:
    the batch has no such time."""

    @property
    def is_removed(self) -> bool:
        """Whether the batch is removed."""
        return self.records is not None and not self.records


class Compaction:
    """One compaction of one partition: every call of `index_keys` comes before the first call of `clean_batch`. All
    batches are before the last stable offset, so every transaction in them is completed."""

    def __init__(
        self,
        *,
        now_ms: int,
        delete_retention_ms: int,
        keys_max: int,
        aborted_transactions: Iterable[AbortedTransaction] = (),
    ) -> None:
        """``keys_max`` is the number of keys that fit into memory. ``aborted_transactions`` are the aborted
        transactions that have records in the part of the partition that is compacted."""
        self._now_ms = now_ms
        self._new_delete_horizon_ms = now_ms + delete_retention_ms
        """The delete horizon of batches that have none yet."""
        self._keys_max = keys_max
        self._newest_offset_by_key: dict[bytes, int] = {}
        self._aborted_transactions: dict[int, list[AbortedTransaction]] = {}
        """By producer id, in the order of their markers."""
        for transaction in sorted(aborted_transactions, key=_marker_offset):
            self._aborted_transactions.setdefault(transaction.producer_id, []).append(transaction)
        self._has_unreadable_batch = False
        self._producers_with_records: set[int] = set()
        """Ids of the producers whose transaction has records left, and whose marker was not passed to `clean_batch`
        yet."""

    def index_keys(self, batch: BatchWithRecords) -> bool:
        """Store the newest offset of each key in the batch, and return True. Return False if its records could make
        more than ``keys_max`` keys: then nothing is stored, and the compaction must end before this batch. The first
        batch with keys always fits."""
        records = batch.records or ()
        if self._newest_offset_by_key and len(self._newest_offset_by_key) + len(records) > self._keys_max:
            return False
        if not batch.is_control and not self._is_in_aborted_transaction(batch):
            for record in records:
                if record.key is not None:
                    self._newest_offset_by_key[_key_or_digest(record.key)] = record.offset
        return True

    def clean_batch(self, batch: BatchWithRecords) -> CleanedBatch:
        """What the compaction keeps of the batch. Call it for all batches in order, from the partition's start."""
        if batch.is_control:
            return self._clean_marker(batch)
        if batch.has_valid_crc and self._is_in_aborted_transaction(batch):
            return CleanedBatch(records=())
        if batch.records is None:
            self._has_unreadable_batch = True
            self._note_transaction_has_records(batch)
            # Its records are never dropped, so it needs no compaction: remove its horizon.
            return CleanedBatch(records=None)
        kept = [record for record in batch.records if self._is_kept(record, batch.delete_horizon_ms)]
        if kept:
            self._note_transaction_has_records(batch)
        has_tombstones = any(record.is_tombstone for record in kept)
        return CleanedBatch(
            records=kept if len(kept) < len(batch.records) else None,
            delete_horizon_ms=self._present_or_new_horizon_ms(batch)
            if has_tombstones and not self._has_unreadable_batch
            else None,
        )

    def _is_kept(self, record: RawRecord, delete_horizon_ms: int | None) -> bool:
        """Whether the compaction keeps the record. False for a record without a key, a record that is not the newest of
        its key, and a tombstone if ``delete_horizon_ms``, the time from which tombstones of its batch may be dropped,
        has passed and all earlier batches could be read."""
        if record.key is None or self._newest_offset_by_key.get(_key_or_digest(record.key), -1) > record.offset:
            return False
        return not record.is_tombstone or self._has_unreadable_batch or not self._has_horizon_passed(delete_horizon_ms)

    def _clean_marker(self, batch: BatchWithRecords) -> CleanedBatch:
        """What the compaction keeps of a control batch: the marker stays while its transaction has records, and after
        that for ``delete.retention.ms``, like a tombstone."""
        if batch.producer_id in self._producers_with_records:
            self._producers_with_records.discard(batch.producer_id)
            return CleanedBatch(records=None)
        if self._has_horizon_passed(batch.delete_horizon_ms):
            return CleanedBatch(records=())
        return CleanedBatch(records=None, delete_horizon_ms=self._present_or_new_horizon_ms(batch))

    def _note_transaction_has_records(self, batch: BatchWithRecords) -> None:
        """Remember that the transaction of the batch, if it has one, has records left: its marker must stay."""
        if batch.is_transactional:
            self._producers_with_records.add(batch.producer_id)

    def _is_in_aborted_transaction(self, batch: BatchWithRecords) -> bool:
        """Whether the batch belongs to an aborted transaction."""
        if not batch.is_transactional or batch.producer_id not in self._aborted_transactions:
            return False
        # Transactions of one producer in one partition do not overlap.
        transactions = self._aborted_transactions[batch.producer_id]
        at = bisect_left(transactions, batch.base_offset, key=_marker_offset)
        return at < len(transactions) and transactions[at].first_offset <= batch.base_offset

    def _has_horizon_passed(self, delete_horizon_ms: int | None) -> bool:
        """Whether the delete horizon ``delete_horizon_ms`` (KIP-534) has passed; False for None, a batch without a
        horizon."""
        return delete_horizon_ms is not None and delete_horizon_ms <= self._now_ms

    def _present_or_new_horizon_ms(self, batch: BatchWithRecords) -> int:
        """The delete horizon of the batch (KIP-534: the time from which its tombstones may be dropped); if it has none,
        the end of ``delete.retention.ms`` from now."""
        return self._new_delete_horizon_ms if batch.delete_horizon_ms is None else batch.delete_horizon_ms


def _marker_offset(transaction: AbortedTransaction) -> int:
    """The offset of the transaction's marker."""
    return transaction.marker_offset


def _key_or_digest(key: bytes) -> bytes:
    """The key, or the digest of a long key, under which its newest offset is stored."""
    return key if len(key) <= _RAW_KEY_SIZE_MAX else blake2b(key, digest_size=_RAW_KEY_SIZE_MAX + 1).digest()
