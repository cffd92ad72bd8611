"""The `Log` seam: an ordered, durable sequence of keyed records (a Kafka topic; in tests, a list).

The ``repr`` of a record omits its value: records are written to traces, and values may contain secrets.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from coterie.nouns.ids import LogPosition


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord:
    """One record that was read from a log. ``value`` None is a tombstone."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopicRecord:
    """One record to append to a log. ``value`` None is a tombstone."""

    key: bytes
    value: bytes | None = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogProgress:
    """What a reader of a log has read since its previous progress, and its ``position``: the offset that it reads next;
    with several partitions, the greatest of these offsets."""

    records: Sequence[TopicRecord]
    """Empty if only ``position`` has advanced, for example past the marker of a transaction."""
    position: LogPosition
    """The offset that the reader reads next; with several partitions, the greatest of these offsets."""
    completes_first_read: bool = False
    """Whether the reader has now, for the first time, read all records that existed when it began."""


class Log(Protocol):
    """A log to which records are appended, and from which all records are read: first the existing records, then the
    new ones. `append` returns the offset after the last record that it has appended.

    Records are ordered within one partition only. The config topic has one partition. The status topic may have
    several; all records of one key are in the same partition.
    """

    async def append(self, records: Sequence[NewTopicRecord]) -> int:
        """Append ``records`` and wait until all of them are durable; return the offset after the last one (with several
        partitions: the greatest of these offsets). A record may be appended twice, if the first response was lost.
        After an error, other records of the call may have been appended.

        :raises WorldError: when a record could not be written, or when it is unknown whether it was written.
        """
        ...

    async def end_position(self) -> int:
        """The position of a reader that has read all durable records; with several partitions, the greatest of these
        positions. An open transaction hides its own records and all records after them: the end is before it.

        :raises WorldError: when the log cannot be reached.
        """
        ...

    def follow(self) -> AsyncIterator[LogProgress]:
        """Yield every record from the beginning, in batches, then every new record when it is written, and each advance
        of the position without a record. Does not end. Records of aborted transactions are never yielded.

        Once, ``completes_first_read`` is set: all records that existed when the iteration began have been yielded.
        Temporary failures (an unreachable broker) are logged and retried.

        :raises WorldError: when records were deleted before they were read, or when the log was closed.
        """
        ...


class LeaderLog(Protocol):
    """Appends the records that only the group's leader may write to the config log. At any time only one worker of the
    group can append: the worker that has called :meth:`open` last."""

    async def open(self, *, transaction_timeout_ms: int) -> None:
        """Take the right to append: the appends of all workers that opened the log before fail from now on, and records
        that they have appended in part are never read. While an append of this worker is unfinished, readers do not
        receive later records of the log; after ``transaction_timeout_ms`` the broker aborts the append.

        :raises WorldError: when the log cannot be reached, or this worker may not write it.
        """
        ...

    async def append(self, records: Sequence[NewTopicRecord]) -> int:
        """Append all of ``records`` or none, and wait until they are durable; return the offset after the last one.

        :raises WriterFencedError: when another worker has opened the log since; none of the records is ever read.
        :raises RecordsDiscardedError: when the records could not be appended; none of them is ever read. The log must
            be opened again.
        :raises WorldError: when it is unknown whether the records were appended. The log must be opened again.
        """
        ...
