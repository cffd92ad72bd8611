"""Groups' records as lines of the topic `__consumer_offsets`: written, and read again at a load."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

from coterie.broker.log import BrokerLog, Partition
from coterie.groups.messages import Record
from coterie.groups.records import decode_key, decode_value, encode_key, encode_value
from coterie.nouns.ids import GroupId
from coterie.wire.batches import NewRecord, decode_records, encode_batch, iter_heads, read_head

GROUPS_TOPIC = "__consumer_offsets"
"""Kafka's name and Kafka's bytes, so that tools which know the topic can read it; one partition is enough here."""

_READ_SIZE = 4 * 1024 * 1024


class GroupLog:
    """The lines of all groups. Made by :meth:`open`."""

    def __init__(self, log: BrokerLog, partition: Partition) -> None:
        self._log = log
        self._partition = partition

    @classmethod
    async def open(cls, log: BrokerLog) -> "GroupLog":
        """:raises WorldError: when the topic is missing and cannot be created."""
        topic = log.topics.get(GROUPS_TOPIC) or await log.create_topic(GROUPS_TOPIC, 1, {"cleanup.policy": "compact"})
        return cls(log, topic.partitions[0])

    def append(self, group_id: GroupId, records: Sequence[Record], *, now_ms: int) -> "asyncio.Future[int]":
        """The future is done once the records are durable, or fails with a `WorldError`."""
        key = encode_key(group_id)
        lines = [NewRecord(key=key, value=encode_value(record)) for record in records]
        batch = encode_batch(lines, timestamp_ms=now_ms)
        return self._log.append(self._partition, batch, read_head(batch))

    async def load_all(self) -> Mapping[GroupId, Sequence[Record]]:
        """Every group's records. Each is the whole of its group's hard state, so only the last one is kept.

        :raises WorldError: when the log cannot be read.
        """
        last: dict[GroupId, Sequence[Record]] = {}
        async for group_id, record in self._records():
            last[group_id] = (record,)
        return last

    async def load(self, group_id: GroupId) -> Sequence[Record]:
        """One group's records, likewise.

        :raises WorldError: when the log cannot be read.
        """
        return (await self.load_all()).get(group_id, ())

    async def _records(self) -> AsyncIterator[tuple[GroupId, Record]]:
        offset = 0
        while data := await self._log.read(self._partition, offset, _READ_SIZE):
            for line in decode_records(data):
                group_id = decode_key(line.key) if line.key is not None else None
                if group_id is not None and line.value is not None:
                    yield group_id, decode_value(line.value)
            offset = max(head.last_offset for _, head in iter_heads(data)) + 1
