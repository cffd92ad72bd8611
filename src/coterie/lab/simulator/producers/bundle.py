"""The contents of a transaction, as its producer sends it and as logs contain it: values for producers and checks."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from coterie.groups.transaction_messages import Identity
from coterie.wire.batches import decode_records, encode_marker, read_head

_COVERED_BY_CRC = slice(21, None)


class Bundle:
    """One transaction, as its producer sends it."""

    def __init__(self, name: str, by: str, transactional_id: str) -> None:
        self.name = name
        self.by = by
        self.transactional_id = transactional_id
        self.labels: dict[int, list[bytes]] = {}
        """By partition, the values of the transaction's batches, in the order of their sequence numbers."""
        self.is_commit_asked = False

    def label(self, partition: int) -> bytes:
        """Return a unique value for one more batch, and add it to ``labels``."""
        labels = self.labels.setdefault(partition, [])
        labels.append(f"{self.name} batch {len(labels) + 1} of {partition}".encode())
        return labels[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One batch of a log: ``label`` is its value; None for a marker."""

    base_offset: int
    last_offset: int
    producer: Identity
    label: bytes | None
    is_commit: bool = False
    """For a marker, whether it commits."""


@lru_cache(maxsize=4_096)  # a log is read from its start many times
def read_entry(data: bytes) -> Entry:
    head = read_head(data)
    is_commit, label = False, None
    if head.is_control:
        commit = encode_marker(
            producer_id=head.producer_id,
            producer_epoch=head.producer_epoch,
            is_commit=True,
            timestamp_ms=head.base_timestamp_ms,
        )
        is_commit = data[_COVERED_BY_CRC] == commit[_COVERED_BY_CRC]
    else:
        label = decode_records(data)[0].value
    return Entry(
        base_offset=head.base_offset,
        last_offset=head.last_offset,
        producer=Identity(head.producer_id, head.producer_epoch),
        label=label,
        is_commit=is_commit,
    )


def sieve(entries: Iterable[Entry], aborted: Iterable[tuple[int, int]]) -> list[bytes]:
    """The labels of a fetch that a consumer with read_committed receives. As in Kafka's consumer, each aborted
    transaction hides its producer's batches from its first offset until that producer's next abort marker.

    ``aborted`` lists producer ids and first offsets, in the order of the offsets.
    """
    seen: list[bytes] = []
    pending, hidden = list(aborted), set[int]()
    for entry in entries:
        while pending and pending[0][1] <= entry.last_offset:
            hidden.add(pending.pop(0)[0])
        if entry.label is None:
            if not entry.is_commit:
                hidden.discard(entry.producer.producer_id)
        elif entry.producer.producer_id not in hidden:
            seen.append(entry.label)
    return seen
