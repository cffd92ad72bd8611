"""Reads a consumer's topics from its metadata: only here does the coordinator decode a member's metadata.

OffsetDelete and expiry must keep the offsets of topics that a group of type `consumer` reads. All versions of the
metadata begin as version 0 does: a version, then the topics.
"""

from collections.abc import Iterable

from coterie.nouns.errors import WireError
from coterie.wire.primitives import Reader

CONSUMER = "consumer"
"""The protocol type whose metadata contains topics."""

_STRING_SIZE_MIN = 2


def subscribed_topics(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """All topics that members with this metadata read; None when the metadata of one of them cannot be decoded."""
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
