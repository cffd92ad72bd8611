"""Reads the topics to which a consumer subscribes from its metadata. The coordinator decodes a member's metadata only
here.

OffsetDelete and the removal of expired offsets must keep the offsets of topics that a group of type `consumer` reads.
The metadata of every version begins as that of version 0 does: a version, then the topics.
"""

from collections.abc import Iterable

from coterie.nouns.errors import WireError
from coterie.wire.primitives import Reader

CONSUMER_PROTOCOL_TYPE = "consumer"
"""The protocol type of groups whose members' metadata contains topics."""

_STRING_SIZE_MIN = 2
"""The size in bytes of an empty topic name."""


def subscribed_topics(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """The topics in all of ``metadata``, which has the metadata of each member. None when one member's metadata cannot
    be decoded."""
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
