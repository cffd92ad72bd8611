"""Offsets of a connector in the form of Kafka Connect's REST API (KIP-875)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from coterie.nouns.errors import CoterieError

JsonMap: TypeAlias = Mapping[str, object]
"""A JSON object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorOffset:
    """How far one part of a connector's input was read. The source defines the fields of both objects."""

    partition: JsonMap | None
    """The part of the input; None only in a client's request."""
    offset: JsonMap | None
    """How far it was read. None in a request: the offset is removed, so that the part is read from its beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetChange:
    """A change of a connector's offsets: ``offsets`` are set; the others are kept or removed (``removes_others``)."""

    offsets: Sequence[ConnectorOffset]
    """The changed offsets. Of several offsets of one partition, the last one applies."""
    removes_others: bool = False
    """Whether the connector's offsets of all partitions that are not in ``offsets`` are removed."""


RESET_OFFSETS = OffsetChange(offsets=(), removes_others=True)
"""Removes all offsets."""


class OffsetsRefusedError(CoterieError):
    """A source cannot use the offsets of a request; the message is for the client that sent them."""
