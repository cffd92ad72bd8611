"""Reads one topic from its beginning: a consumer without a group, with its own thread."""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

from coterie.engine.log import Line
from coterie.kafka.client_log import ClientLog, logger
from coterie.nouns.errors import WorldError

POLL_S = 0.2
"""How long the thread waits for a record; a closed follower ends within this time."""
LINES_MAX = 500
"""The maximum number of records returned by one call: more would block the event loop for too long."""


class Follower:
    """Pulls records. Only librdkafka's bounded queue contains records that were not requested yet.

    When the caller is slower than the broker, it does not call :meth:`next_lines`. Then the queue inside librdkafka
    fills up to its limit, and librdkafka stops fetching.
    """

    def __init__(self, client: Mapping[str, Any], topic: str, partitions: int) -> None:
        self._topic = topic
        self._log = ClientLog(f"reading topic {topic}")
        self._consumer = Consumer(
            {
                **client,
                **self._log.settings(),
                # A consumer must set a group id. This consumer joins no group: its partitions are assigned explicitly,
                # and it commits nothing.
                "group.id": f"{client['client.id']}-follower",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                # If the topic no longer contains the next offset of this reader, raise an error instead of reading the
                # topic from its beginning again.
                "auto.offset.reset": "error",
                "isolation.level": "read_uncommitted",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 100,
                "fetch.error.backoff.ms": 100,
                "queued.max.messages.kbytes": 16_384,
            }
        )
        self._consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)])
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"coterie-follow-{topic}")
        self._closed = False
        self.positions = dict.fromkeys(range(partitions), 0)
        """By partition, the offset up to which all records have been returned."""

    async def next_lines(self) -> Sequence[Line]:
        """The next records, ordered by offset within each partition; empty when none arrived within ``POLL_S``.

        :raises WorldError: when the records after those already read were deleted from the topic, or after
            :meth:`close`.
        """
        if self._closed:
            raise WorldError(f"topic {self._topic} is closed")
        messages = await asyncio.get_running_loop().run_in_executor(self._thread, self._poll)
        return [line for message in messages if (line := self._line(message)) is not None]

    async def close(self) -> None:
        """End the thread and the connections. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        # The last job of the thread, after a poll that may still run. It completes even if the caller is cancelled.
        closing = asyncio.get_running_loop().run_in_executor(self._thread, self._consumer.close)
        self._thread.shutdown(wait=False)
        await asyncio.shield(closing)
        self._thread.shutdown()

    def _poll(self) -> list[Message]:
        if self._closed:
            return []
        # A wait for many records would last until the last of them arrives. So wait for one, and take all others that
        # have arrived.
        first = self._consumer.poll(POLL_S)
        return [] if first is None else [first, *self._consumer.consume(LINES_MAX - 1, 0)]

    def _line(self, message: Message) -> Line | None:
        partition, offset = message.partition(), message.offset()
        error = message.error()
        if error is None:
            assert partition is not None
            assert offset is not None
            self._log.answered()
            assert offset >= self.positions[partition], "librdkafka returns each offset once, in order"
            self.positions[partition] = offset + 1
            value, key = message.value(), message.key()
            return Line(partition=partition, offset=offset, timestamp_ms=message.timestamp()[1], key=key, value=value)
        if error.code() == KafkaError._PARTITION_EOF:
            assert partition is not None
            assert offset is not None
            self.positions[partition] = max(offset, self.positions[partition])
        elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            raise WorldError(
                f"topic {self._topic} no longer contains the records from offset {self.positions[partition or 0]} on, "
                "which follow those already read: the topic was truncated, or deleted and created again; restart this "
                "worker to read the topic from its beginning"
            )
        else:
            logger.warning("reading topic %s: %s; retrying", self._topic, error.str())
        return None
