"""The `Log` seam: an ordered, durable sequence of keyed lines (a Kafka topic; in tests, a list).

No line's ``repr`` shows its value: lines are traced, and may hold what is secret.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a log as it was read. ``value`` None is a tombstone."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewLine:
    """One line to append."""

    key: bytes
    value: bytes | None = field(repr=False)


class Log(Protocol):
    """Append and wait for durability; read from the beginning to the end; follow from there.

    Only a log of one partition has an order over all its lines (the config topic has one; the status topic may have
    several, each key always in the same).
    """

    async def append(self, lines: Sequence[NewLine]) -> int:
        """Return, once all ``lines`` are durable, the offset after the last of them.

        :raises WorldError: when they could not be written, or when nobody knows whether they were.
        """
        ...

    async def end_offset(self) -> int:
        """The offset after the last durable line, over all partitions the greatest.

        :raises WorldError: when the log cannot be reached.
        """
        ...

    def follow(self) -> AsyncIterator[Sequence[Line]]:
        """Every line from the beginning, then every line as it comes; never ends by itself.

        Yields an empty sequence once, when all that was there at the call has been yielded ("read to end").
        What passes by itself (a broker that is away) is retried inside, with a line in the process's log.

        :raises WorldError: when it cannot go on: lines that follow those already read are gone.
        """
        ...
