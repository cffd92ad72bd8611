"""What a producer wants to be seen together, and what its log holds of it: plain values that play and watch share."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from coterie.groups.transaction_messages import Identity
from coterie.wire.batches import decode_records, encode_marker, read_head

_COVERED_BY_CRC = slice(21, None)


class Bundle:
    """One transaction, as its producer sees it."""

    def __init__(self, name: str, by: str, transactional_id: str) -> None:
        self.name = name
        self.by = by
        self.transactional_id = transactional_id
        self.labels: dict[int, list[bytes]] = {}
        """Of each partition, the values of its batches, as they are numbered."""
        self.is_commit_asked = False

    def label(self, partition: int) -> bytes:
        """The value of a further batch: no other batch has it."""
        labels = self.labels.setdefault(partition, [])
        labels.append(f"{self.name} batch {len(labels) + 1} of {partition}".encode())
        return labels[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One batch of a log: ``label`` is its value, of markers None."""

    base_offset: int
    last_offset: int
    producer: Identity
    label: bytes | None
    is_commit: bool = False
    """Of a marker."""


@lru_cache(maxsize=4_096)  # whoever looks at a log looks at all of it
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
    """What a consumer with read_committed makes of a fetch, as Kafka's own does it: from its first offset on each
    aborted transaction hides what its producer has written, until that producer's next marker.

    ``aborted`` is of producer ids and first offsets, in the order of the offsets.
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
