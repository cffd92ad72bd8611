"""Group records, stored in a topic: appended by the machines, and read when groups are loaded."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from coterie.broker.storage.log import BrokerLog, Partition
from coterie.nouns.errors import WireError, WorldError
from coterie.nouns.ids import GroupId
from coterie.wire.batches import NewRecord, decode_records, encode_batch, iter_heads, read_head

BATCH_RECORDS_MAX = 10_000
BATCH_BYTES_MAX = 1024 * 1024
"""Approximate limits of one batch, so that it can be compacted; a step may write the tombstones of any number of
offsets. A larger record has a batch to itself."""
_READ_SIZE = 4 * 1024 * 1024

RecordT = TypeVar("RecordT")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTopic(Generic[RecordT]):
    """The topic of one kind of groups, and its record format. The topic has one partition."""

    name: str
    encode_line: Callable[[GroupId, RecordT], tuple[bytes, bytes | None]]
    """Returns key and value; the value None is a tombstone."""
    decode_line: Callable[[bytes, bytes | None], tuple[GroupId, RecordT] | None]
    """Returns None for a record of another kind; raises `WireError` for a malformed record."""


class GroupLog(Generic[RecordT]):
    """The records of all groups of one kind. Created by :meth:`open`."""

    def __init__(self, topic: GroupTopic[RecordT], log: BrokerLog, partition: Partition) -> None:
        self._topic = topic
        self._log = log
        self._partition = partition
        self._wanted: list[tuple[GroupId, asyncio.Future[Sequence[RecordT]]]] = []
        """The groups that the next read of the log shall load; one read runs at a time."""
        self._passing = asyncio.Lock()

    @classmethod
    async def open(cls, log: BrokerLog, topic: GroupTopic[RecordT]) -> "GroupLog[RecordT]":
        """:raises WorldError: the topic is missing and cannot be created."""
        stored = log.topics.get(topic.name) or await log.create_topic(topic.name, 1, {"cleanup.policy": "compact"})
        return cls(topic, log, stored.partitions[0])

    def append(self, group_id: GroupId, records: Sequence[RecordT], *, now_ms: int) -> "asyncio.Future[int]":
        """Append a group's records; the future is done once they are durable, or fails with a `WorldError`."""
        lines = (self._topic.encode_line(group_id, record) for record in records)
        batches = [encode_batch(some, timestamp_ms=now_ms) for some in _cut(lines)]
        return self._log.append(self._partition, [(batch, read_head(batch)) for batch in batches])

    async def load_all(self) -> Mapping[GroupId, Sequence[RecordT]]:
        """The records of every group: for each key only the last record.

        :raises WorldError: the log cannot be read.
        """
        return await self._pass(None)

    async def load(self, group_id: GroupId) -> Sequence[RecordT]:
        """The records of one group: for each key only the last record. Concurrent calls share one read of the log.

        :raises WorldError: the log cannot be read.
        """
        loaded: asyncio.Future[Sequence[RecordT]] = asyncio.get_running_loop().create_future()
        self._wanted.append((group_id, loaded))
        async with self._passing:
            if not loaded.done():
                await self._load_wanted()
        return loaded.result()

    async def _load_wanted(self) -> None:
        wanted, self._wanted = self._wanted, []
        try:
            found = await self._pass({group_id for group_id, _ in wanted})
        except asyncio.CancelledError:
            # The other callers still wait: the next of them reads for all.
            self._wanted = wanted + self._wanted
            raise
        except Exception as error:
            for _, loaded in wanted:
                loaded.set_exception(error)
                # A cancelled caller will not retrieve the exception; asyncio must not log that.
                loaded.exception()
            raise
        for group_id, loaded in wanted:
            loaded.set_result(found.get(group_id, ()))

    async def _pass(self, wanted: Collection[GroupId] | None) -> Mapping[GroupId, Sequence[RecordT]]:
        """Read the whole log once, for several seconds if it has many offsets. The event loop is not blocked."""
        last: dict[bytes, bytes] = {}
        offset = 0
        try:
            while data := await self._log.read(self._partition, offset, _READ_SIZE):
                offset = await asyncio.to_thread(_keep_last, last, data)
            return await asyncio.to_thread(self._records, last, wanted)
        except WireError as error:
            raise WorldError(
                f"cannot decode a record of topic {self._topic.name}: {error}; start the broker from a backup"
            ) from error

    def _records(
        self, last: Mapping[bytes, bytes], wanted: Collection[GroupId] | None
    ) -> Mapping[GroupId, Sequence[RecordT]]:
        found: dict[GroupId, list[RecordT]] = {}
        for key, value in last.items():
            decoded = self._topic.decode_line(key, value)
            if decoded is not None and (wanted is None or decoded[0] in wanted):
                group_id, record = decoded
                found.setdefault(group_id, []).append(record)
        return found


def _cut(lines: Iterable[tuple[bytes, bytes | None]]) -> Iterator[list[NewRecord]]:
    """The records in order, split into batches within the limits."""
    some: list[NewRecord] = []
    size = 0
    for key, value in lines:
        line_size = len(key) + len(value or b"")
        if some and (len(some) == BATCH_RECORDS_MAX or size + line_size > BATCH_BYTES_MAX):
            yield some
            some, size = [], 0
        some.append(NewRecord(key=key, value=value))
        size += line_size
    yield some


def _keep_last(last: dict[bytes, bytes], data: bytes) -> int:
    """Update ``last`` with the records of these batches; returns the offset after them."""
    for line in decode_records(data):
        if line.key is None:
            continue
        if line.value is None:
            last.pop(line.key, None)
        else:
            last[line.key] = line.value
    return max(head.last_offset for _, head in iter_heads(data)) + 1
