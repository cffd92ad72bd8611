"""The records of groups, stored in a topic: group hosts append them, and read them when groups are loaded."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from coterie.broker.storage.log import BrokerLog, Partition
from coterie.groups.pending_writes import OpenTransactionWrites
from coterie.groups.transaction_messages import ProducerIdAndEpoch
from coterie.nouns.errors import WireError, WorldError
from coterie.nouns.ids import GroupId, TopicPartition
from coterie.wire.batches import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
    NewRecord,
    decode_uncompressed_batch,
    encode_batch,
    is_commit_marker,
    iter_whole_batch_headers,
    read_batch_header,
)

BATCH_RECORDS_MAX = 10_000
"""The maximum number of records in one batch: a compaction must index all keys of a batch at once, and one step may
write tombstones for any number of offsets."""
BATCH_BYTES_MAX = 1024 * 1024
"""The maximum size of all keys and values of one batch together, in bytes. A record that is larger is the only record
of its batch."""
_READ_SIZE = 4 * 1024 * 1024
"""The number of bytes of one read of the log."""

RecordT = TypeVar("RecordT")


def _raise_for_transactional_record(record: RecordT, producer: ProducerIdAndEpoch) -> RecordT:
    """The ``to_pending_record`` of a topic whose records are never in a transaction.

    :raises WireError: always.
    """
    raise WireError(
        f"a record is in a transaction of producer {producer.producer_id}, but this topic must have no transactions"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTopicFormat(Generic[RecordT]):
    """The name and the record format of the topic with the records of one kind of groups. The topic has one
    partition."""

    name: str
    encode_record: Callable[[GroupId, RecordT], tuple[bytes, bytes | None]]
    """Returns the key and the value of a record of the topic. The value is None for a tombstone."""
    decode_record: Callable[[bytes, bytes | None], tuple[GroupId, RecordT] | None]
    """Returns the group id and the record; None for a record of a kind that Coterie does not write. Raises `WireError`
    for a malformed record."""
    transaction_producer_of: Callable[[RecordT], ProducerIdAndEpoch | None] = lambda _: None
    """Returns the producer in whose open transaction the record was written; None for a record outside of
    transactions."""
    to_pending_record: Callable[[RecordT, ProducerIdAndEpoch], RecordT] = _raise_for_transactional_record
    """Converts a decoded record that was read from a batch of this producer's open transaction. Raises `WireError` if
    such a record must not be in a transaction."""


class GroupLog(Generic[RecordT]):
    """Appends the records of all groups of one kind (classic or connect) to their topic of the broker's log, and reads
    the records of a group when the group is loaded. Created by :meth:`open`, which reads no records. The future of
    `append` gets the offset of the first record. `end_transaction` returns the groups that may have pending records of
    the transaction, each with whether an append of such records is still queued; if so, the group must be reloaded."""

    def __init__(self, topic: GroupTopicFormat[RecordT], log: BrokerLog, partition: Partition) -> None:
        self._topic = topic
        self._log = log
        self._partition = partition
        self._load_requests: list[tuple[GroupId, asyncio.Future[Sequence[RecordT]]]] = []
        """The groups that the next read of the log must load, each with the future of its records. One read runs at a
        time."""
        self._read_lock = asyncio.Lock()
        self._appends_in_transactions: dict[int, dict[GroupId, asyncio.Future[int] | None]] = {}
        """By producer id, the groups that have pending records of its open transaction, each with its last append of
        such records; None for an append of an earlier run of the broker."""

    @classmethod
    async def open(cls, log: BrokerLog, topic: GroupTopicFormat[RecordT]) -> "GroupLog[RecordT]":
        """Open the log of the groups whose records are in ``topic`` of ``log``. The topic is created if it does not
        exist. Reads no records.

        :raises WorldError: when the topic cannot be created.
        """
        stored = log.topics.get(topic.name) or await log.create_topic(topic.name, 1, {"cleanup.policy": "compact"})
        return cls(topic, log, stored.partitions[0])

    @property
    def topic_partition(self) -> TopicPartition:
        """The only partition of this log's topic: it contains the records of all groups of this kind, classic or
        connect."""
        return TopicPartition(self._topic.name, self._partition.number)

    def append(self, group_id: GroupId, records: Sequence[RecordT], *, now_ms: int) -> "asyncio.Future[int]":
        """Queue the group's ``records``, at least one, for the log: all become durable, or none. All must be part of
        the same transaction, or of none. The future gets the offset of the first record when all are durable; or a
        `WorldError` if the log cannot be written, or a `KafkaRefusal` if the transaction is not open any more.
        ``now_ms`` becomes the timestamp of the records."""
        (producer,) = {self._topic.transaction_producer_of(record) for record in records}
        lines = (self._topic.encode_record(group_id, record) for record in records)
        batches = [_encode_batch(some, producer, now_ms=now_ms) for some in _split_into_batches(lines)]
        appended = self._log.append(
            self._partition,
            [(batch, read_batch_header(batch)) for batch in batches],
            requires_open_transaction=producer is not None,
        )
        if producer is not None:
            self._appends_in_transactions.setdefault(producer.producer_id, {})[group_id] = appended
        return appended

    def end_transaction(self, producer_id: int) -> Mapping[GroupId, bool]:
        """Must be called when the marker of the producer's transaction is durable. Returns the groups that may have
        pending records of the transaction, sorted; each with whether an append of such records is still queued. If so,
        the group must be reloaded: its state already has the records of this append, but the log will have them after
        the marker, or not at all."""
        appends = self._appends_in_transactions.pop(producer_id, {})
        is_queued = {group_id: one is not None and not one.done() for group_id, one in sorted(appends.items())}
        if any(is_queued.values()):
            queued = {group_id: appends[group_id] for group_id, one in is_queued.items() if one}
            self._appends_in_transactions[producer_id] = queued
        return is_queued

    async def load_all(self) -> Mapping[GroupId, Sequence[RecordT]]:
        """The records of every group that has records: for each key only the last record, and none after a tombstone;
        then the pending records of open transactions, in the order of the log. Call this before the first append.

        :raises WorldError: when the log cannot be read, or a record cannot be decoded.
        """
        found = await self._read_records(None)
        for group_id, records in found.items():
            for record in records:
                if (producer := self._topic.transaction_producer_of(record)) is not None:
                    self._appends_in_transactions.setdefault(producer.producer_id, {}).setdefault(group_id, None)
        return found

    async def load(self, group_id: GroupId) -> Sequence[RecordT]:
        """The records of one group, as from `load_all`. Concurrent calls share one read of the log.

        :raises WorldError: when the log cannot be read, or a record cannot be decoded.
        """
        loaded: asyncio.Future[Sequence[RecordT]] = asyncio.get_running_loop().create_future()
        self._load_requests.append((group_id, loaded))
        async with self._read_lock:
            if not loaded.done():
                await self._serve_load_requests()
        return loaded.result()

    async def _serve_load_requests(self) -> None:
        """Read the log once, and complete all load requests that wait now, each with its group's records or with the
        error.

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
        """The last record of each key and the pending records, by group, for these groups or, if None, for all. Reads
        the whole log, on threads; this takes several seconds if the log contains many offsets.

        :raises WorldError: when the log cannot be read, or a record cannot be decoded.
        """
        values = _ValuesByKey()
        offset = 0
        try:
            while data := await self._log.read(self._partition, offset, _READ_SIZE):
                offset = await asyncio.to_thread(values.read_batches_and_return_end_offset, data)
            return await asyncio.to_thread(self._decode_groups, values, group_ids)
        except WireError as error:
            raise WorldError(
                f"cannot decode a record of topic {self._topic.name}: {error}. If a newer version of Coterie has "
                "written it, start that version again; else restore a backup of the broker's log"
            ) from error

    def _decode_groups(
        self, values: "_ValuesByKey", group_ids: Collection[GroupId] | None
    ) -> Mapping[GroupId, Sequence[RecordT]]:
        """Decode the ``values`` for these groups or, if None, for all.

        :raises WireError: when a record is malformed.
        """
        found: dict[GroupId, list[RecordT]] = {}
        for key, value in values.last.items():
            decoded = self._topic.decode_record(key, value)
            if decoded is not None and (group_ids is None or decoded[0] in group_ids):
                group_id, record = decoded
                found.setdefault(group_id, []).append(record)
        for key, _, (producer, pending_value) in values.pending.items():
            decoded = self._topic.decode_record(key, pending_value)
            if decoded is not None and (group_ids is None or decoded[0] in group_ids):
                group_id, record = decoded
                found.setdefault(group_id, []).append(self._topic.to_pending_record(record, producer))
        return found


class _ValuesByKey:
    """The last value of each key in a log of groups, and the values in open transactions, up to the position that has
    been read."""

    def __init__(self) -> None:
        self.last: dict[bytes, bytes] = {}
        """The last value of each key; a tombstone removes its key."""
        self.pending: OpenTransactionWrites[bytes, tuple[ProducerIdAndEpoch, bytes | None]] = OpenTransactionWrites()
        """The values in open transactions, with their producers."""

    def read_batches_and_return_end_offset(self, data: bytes) -> int:
        """Read the batches in ``data``, which follow those that were read before. Returns the offset after the last of
        them.

        :raises WireError: when a record is malformed.
        """
        end_offset = 0
        for position, head in iter_whole_batch_headers(data):
            end_offset = head.last_offset + 1
            records = decode_uncompressed_batch(data, position, head)
            producer = ProducerIdAndEpoch(head.producer_id, head.producer_epoch)
            if head.is_control:
                for marker in records:
                    ended = self.pending.end_transaction(producer.producer_id, is_commit=is_commit_marker(marker))
                    for key, (_, value) in ended.items():
                        self._set_last_value(key, value)
                continue
            for line in records:
                if line.key is None:
                    continue
                if head.is_transactional:
                    self.pending.write(producer.producer_id, line.key, (producer, line.value))
                else:
                    self.pending.drop_values_of_key(line.key)
                    self._set_last_value(line.key, line.value)
        return end_offset

    def _set_last_value(self, key: bytes, value: bytes | None) -> None:
        """Set the last value of a key; None removes the key."""
        if value is None:
            self.last.pop(key, None)
        else:
            self.last[key] = value


def _encode_batch(records: Iterable[NewRecord], producer: ProducerIdAndEpoch | None, *, now_ms: int) -> bytes:
    """One batch of ``records``, in the transaction of ``producer`` unless that is None. The batch has no sequence
    number: the broker itself is the only writer, and repeats no append."""
    return encode_batch(
        records,
        timestamp_ms=now_ms,
        producer_id=NO_PRODUCER_ID if producer is None else producer.producer_id,
        producer_epoch=NO_PRODUCER_EPOCH if producer is None else producer.epoch,
        base_sequence=NO_SEQUENCE,
        attributes=0 if producer is None else TRANSACTIONAL_BIT,
    )


def _split_into_batches(records: Iterable[tuple[bytes, bytes | None]]) -> Iterator[list[NewRecord]]:
    """Yield ``records``, at least one, in order, in batches of at most `BATCH_RECORDS_MAX` records and
    `BATCH_BYTES_MAX` bytes of keys and values. A record that is larger is the only record of its batch."""
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
