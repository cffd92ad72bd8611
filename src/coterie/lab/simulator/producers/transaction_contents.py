"""The contents of a transaction: the batches that its producer sends, and the batches that the logs contain."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from coterie.groups.transaction_messages import ProducerIdAndEpoch
from coterie.wire.batches import (
    decode_uncompressed_records_without_control,
    encode_transaction_marker,
    read_batch_header,
)

_BYTES_COVERED_BY_CRC = slice(21, None)
"""The bytes of a batch that its checksum covers: all that follow the checksum."""


class TransactionContents:
    """What a producer sends in one transaction."""

    def __init__(self, name: str, process: str, transactional_id: str) -> None:
        """``name`` is the name of the transaction, which no other transaction of the simulation has; ``process`` is the
        name of the producer's process."""
        self.name = name
        self.process = process
        self.transactional_id = transactional_id
        self.labels: dict[int, list[bytes]] = {}
        """By partition, the labels of the transaction's batches in the order of their sequence numbers. The label of a
        batch is the value of its records."""
        self.is_commit_requested = False
        """Whether the producer has requested the commit."""

    def add_batch_label(self, partition: int) -> bytes:
        """Make a unique label for one more batch in ``partition``, and add it to ``labels``."""
        labels = self.labels.setdefault(partition, [])
        labels.append(f"{self.name} batch {len(labels) + 1} of {partition}".encode())
        return labels[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogBatch:
    """One batch of a log: a batch of data, or a commit or abort marker. ``label`` is the value of the records of a
    batch of data; None for a marker."""

    base_offset: int
    last_offset: int
    producer: ProducerIdAndEpoch
    label: bytes | None
    is_commit_marker: bool = False
    """True for a commit marker; False for an abort marker and for a batch of data."""


@lru_cache(maxsize=4_096)  # a log is read from its start many times
def decode_log_batch(data: bytes) -> LogBatch:
    """Decode ``data``, one batch of data or one marker of a log."""
    header = read_batch_header(data)
    is_commit, label = False, None
    if header.is_control:
        commit_marker = encode_transaction_marker(
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            is_commit=True,
            timestamp_ms=header.base_timestamp_ms,
        )
        is_commit = data[_BYTES_COVERED_BY_CRC] == commit_marker[_BYTES_COVERED_BY_CRC]
    else:
        label = decode_uncompressed_records_without_control(data)[0].value
    return LogBatch(
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        producer=ProducerIdAndEpoch(header.producer_id, header.producer_epoch),
        label=label,
        is_commit_marker=is_commit,
    )


def labels_visible_to_read_committed(batches: Iterable[LogBatch], aborted: Iterable[tuple[int, int]]) -> list[bytes]:
    """The labels of those of the fetched ``batches`` that a read_committed consumer does not drop. As in Kafka's
    consumer, an aborted transaction hides the batches of its producer id from the transaction's first offset to the
    next abort marker of this producer id.

    ``aborted`` has the producer id and the first offset of each aborted transaction, sorted by the offsets.
    """
    labels: list[bytes] = []
    pending_aborts, hidden_producer_ids = list(aborted), set[int]()
    for batch in batches:
        while pending_aborts and pending_aborts[0][1] <= batch.last_offset:
            hidden_producer_ids.add(pending_aborts.pop(0)[0])
        if batch.label is None:
            if not batch.is_commit_marker:
                hidden_producer_ids.discard(batch.producer.producer_id)
        elif batch.producer.producer_id not in hidden_producer_ids:
            labels.append(batch.label)
    return labels
