"""The records of groups, stored in a topic: group hosts append them, and read them when groups are loaded."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from coterie.broker.storage.log import BrokerLog, Partition
from coterie.nouns.errors import WireError, WorldError
from coterie.nouns.ids import GroupId
from coterie.wire.batches import NewRecord, decode_records, encode_batch, iter_batch_headers, read_batch_header

BATCH_RECORDS_MAX = 10_000
BATCH_BYTES_MAX = 1024 * 1024
"""The limits of one batch: its records, and the bytes of their keys and values. A compaction must index all keys of a
batch at once, and one step may write tombstones for any number of offsets. A single larger record has a batch of its
own."""
_READ_SIZE = 4 * 1024 * 1024
"""The number of bytes of one read of the log."""

RecordT = TypeVar("RecordT")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTopic(Generic[RecordT]):
    """The name and the record format of the topic with the records of one kind of groups. The topic has one
    partition."""

    name: str
    encode_record: Callable[[GroupId, RecordT], tuple[bytes, bytes | None]]
    """Returns the key and the value of a record of the topic. The value is None for a tombstone."""
    decode_record: Callable[[bytes, bytes | None], tuple[GroupId, RecordT] | None]
    """Returns the group id and the record; None for a record of a kind that Coterie does not write. Raises `WireError`
    for a malformed record."""


class GroupLog(Generic[RecordT]):
    """The records of all groups of one kind. Created by :meth:`open`."""

    def __init__(self, topic: GroupTopic[RecordT], log: BrokerLog, partition: Partition) -> None:
        self._topic = topic
        self._log = log
        self._partition = partition
        self._load_requests: list[tuple[GroupId, asyncio.Future[Sequence[RecordT]]]] = []
        """The groups that the next read of the log must load, each with the future of its records. One read runs at a
        time."""
        self._read_lock = asyncio.Lock()

    @classmethod
    async def open(cls, log: BrokerLog, topic: GroupTopic[RecordT]) -> "GroupLog[RecordT]":
        """The log in this topic, which is created if it does not exist.

        :raises WorldError: when the topic cannot be created.
        """
        stored = log.topics.get(topic.name) or await log.create_topic(topic.name, 1, {"cleanup.policy": "compact"})
        return cls(topic, log, stored.partitions[0])

    def append(self, group_id: GroupId, records: Sequence[RecordT], *, now_ms: int) -> "asyncio.Future[int]":
        """Queue the group's ``records``, at least one, for the log. The future gets the offset of the first record when
        all are durable, or a `WorldError`. ``now_ms`` becomes the timestamp of the records."""
        lines = (self._topic.encode_record(group_id, record) for record in records)
        batches = [encode_batch(some, timestamp_ms=now_ms) for some in _split_into_batches(lines)]
        return self._log.append(self._partition, [(batch, read_batch_header(batch)) for batch in batches])

    async def load_all(self) -> Mapping[GroupId, Sequence[RecordT]]:
        """The records of every group that has records: for each key only the last record, and none after a tombstone.

        :raises WorldError: when the log cannot be read, or a record cannot be decoded.
        """
        return await self._read_records(None)

    async def load(self, group_id: GroupId) -> Sequence[RecordT]:
        """The records of one group: for each key only the last record, and none after a tombstone. Concurrent calls
        share one read of the log.

        :raises WorldError: when the log cannot be read, or a record cannot be decoded.
        """
        loaded: asyncio.Future[Sequence[RecordT]] = asyncio.get_running_loop().create_future()
        self._load_requests.append((group_id, loaded))
        async with self._read_lock:
            if not loaded.done():
                await self._serve_load_requests()
        return loaded.result()

    async def _serve_load_requests(self) -> None:
        """Read the log once, and complete all load requests that wait now with records or with the error.

        :raises WorldError: when the log cannot be read, or a record cannot be decoded.
        """
        wanted, self._load_requests = self._load_requests, []
        try:
            found = await self._read_records({group_id for group_id, _ in wanted})
        except asyncio.CancelledError:
            # The other callers still wait: the next of them reads for all.
            self._load_requests = wanted + self._load_requests
            raise
        except Exception as error:
            for _, loaded in wanted:
                loaded.set_exception(error)
                # A cancelled caller will not retrieve the exception; asyncio must not log that.
                loaded.exception()
            raise
        for group_id, loaded in wanted:
            loaded.set_result(found.get(group_id, ()))

    async def _read_records(self, group_ids: Collection[GroupId] | None) -> Mapping[GroupId, Sequence[RecordT]]:
        """The last record of each key, by group, for these groups or, if None, for all. Reads the whole log, on
        threads; this takes several seconds if the log contains many offsets.

        :raises WorldError: when the log cannot be read, or a record cannot be decoded.
        """
        last: dict[bytes, bytes] = {}
        offset = 0
        try:
            while data := await self._log.read(self._partition, offset, _READ_SIZE):
                offset = await asyncio.to_thread(_update_last_values, last, data)
            return await asyncio.to_thread(self._decode_groups, last, group_ids)
        except WireError as error:
            raise WorldError(
                f"cannot decode a record of topic {self._topic.name}: {error}; start the broker from a backup"
            ) from error

    def _decode_groups(
        self, last: Mapping[bytes, bytes], group_ids: Collection[GroupId] | None
    ) -> Mapping[GroupId, Sequence[RecordT]]:
        """Decode the values in ``last``, by their keys, for these groups or, if None, for all.

        :raises WireError: when a record is malformed.
        """
        found: dict[GroupId, list[RecordT]] = {}
        for key, value in last.items():
            decoded = self._topic.decode_record(key, value)
            if decoded is not None and (group_ids is None or decoded[0] in group_ids):
                group_id, record = decoded
                found.setdefault(group_id, []).append(record)
        return found


def _split_into_batches(records: Iterable[tuple[bytes, bytes | None]]) -> Iterator[list[NewRecord]]:
    """Yield the records in order, split into batches within the limits."""
    batch: list[NewRecord] = []
    size = 0
    for key, value in records:
        line_size = len(key) + len(value or b"")
        if batch and (len(batch) == BATCH_RECORDS_MAX or size + line_size > BATCH_BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(NewRecord(key=key, value=value))
        size += line_size
    yield batch


def _update_last_values(last: dict[bytes, bytes], data: bytes) -> int:
    """Update ``last``, the last value of each key, with the records of the batches in ``data``; a tombstone removes its
    key. Returns the offset after the last of these batches.

    :raises WireError: when a record is malformed.
    """
    for line in decode_records(data):
        if line.key is None:
            continue
        if line.value is None:
            last.pop(line.key, None)
        else:
            last[line.key] = line.value
    return max(head.last_offset for _, head in iter_batch_headers(data)) + 1
