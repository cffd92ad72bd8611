"""Which topics a consumer says it reads: the one place where the coordinator looks into a member's bytes.

OffsetDelete and expiry must spare what a group of type `consumer` is reading. All versions of its metadata begin as
version 0 does: a version, then the topics.
"""

from collections.abc import Iterable

from coterie.nouns.errors import WireError
from coterie.wire.primitives import Reader

CONSUMER = "consumer"
"""The protocol type of which this is known."""

_STRING_SIZE_MIN = 2


def subscribed_topics(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """All topics that members with this metadata read; None when that cannot be told of one of them."""
    topics: set[str] = set()
    for data in metadata:
        reader = Reader(data)
        try:
            if reader.int16() < 0:
                return None
            topics.update(reader.array(reader.string, element_size_min=_STRING_SIZE_MIN))
        except WireError:
            return None
    return frozenset(topics)
