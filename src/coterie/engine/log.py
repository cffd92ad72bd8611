"""The `Log` seam: an ordered, durable sequence of keyed records (a Kafka topic; in tests, a list).

The ``repr`` of a record omits its value: records are written to traces, and values may contain secrets.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One record as read from a log. ``value`` None is a tombstone."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewLine:
    """One record to append to a log."""

    key: bytes
    value: bytes | None = field(repr=False)


class Log(Protocol):
    """Append records and wait until they are durable; read all records from the beginning, then new ones as they come.

    Only in a log of one partition are all records ordered. The config topic has one partition. The status topic may
    have several, and all records of one key are in one partition.
    """

    async def append(self, lines: Sequence[NewLine]) -> int:
        """Append ``lines`` and wait until all of them are durable; return the offset after the last one.

        :raises WorldError: when the records could not be written, or when it is unknown whether they were.
        """
        ...

    async def end_offset(self) -> int:
        """The offset after the last durable record; with several partitions, the greatest of their end offsets.

        :raises WorldError: when the log cannot be reached.
        """
        ...

    def follow(self) -> AsyncIterator[Sequence[Line]]:
        """Yield every record from the beginning, then every new record as it comes, without end.

        Yields an empty sequence once, when all records that existed at the call have been yielded ("read to end").
        Temporary failures (an unreachable broker) are logged and retried.

        :raises WorldError: when it cannot continue, because the records after those already read were deleted.
        """
        ...
