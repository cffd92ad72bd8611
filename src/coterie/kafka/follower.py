"""One reader of one topic, from its beginning: a consumer without a group, on a thread of its own."""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

from coterie.engine.log import Line
from coterie.kafka.client_log import ClientLog, logger
from coterie.nouns.errors import WorldError

POLL_S = 0.2
"""How long the thread waits for a line; a follower that is closed ends within it."""
LINES_MAX = 500
"""Lines handed over at once: what one turn of the event loop can bear."""


class Follower:
    """Pulls lines; keeps none that were not asked for but for librdkafka's own bounded queue.

    Whoever follows is slower than the broker at times: then nobody calls :meth:`next_lines`, the queue inside
    librdkafka fills up to its limit, and it stops fetching.
    """

    def __init__(self, client: Mapping[str, Any], topic: str, partitions: int) -> None:
        self._topic = topic
        self._log = ClientLog(f"reading topic {topic}")
        self._consumer = Consumer(
            {
                **client,
                **self._log.settings(),
                # A consumer must name a group; this one joins none: it is told what to read and commits nothing.
                "group.id": f"{client['client.id']}-follower",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                # A topic that lost lines it had shown us must not be read again from its beginning in silence.
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
        """By partition, the offset up to which everything has been handed over."""

    async def next_lines(self) -> Sequence[Line]:
        """What came next, in order of offsets within a partition; empty when nothing came for a while.

        :raises WorldError: when lines that were read are gone from the topic, or after :meth:`close`.
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
        # The thread's last duty, behind a poll that may still be under way; it ends also when nobody waits for it.
        closing = asyncio.get_running_loop().run_in_executor(self._thread, self._consumer.close)
        self._thread.shutdown(wait=False)
        await asyncio.shield(closing)
        self._thread.shutdown()

    def _poll(self) -> list[Message]:
        if self._closed:
            return []
        # To wait for many at once would wait for the last of them: so wait for one, and take what else is there.
        first = self._consumer.poll(POLL_S)
        return [] if first is None else [first, *self._consumer.consume(LINES_MAX - 1, 0)]

    def _line(self, message: Message) -> Line | None:
        partition, offset = message.partition(), message.offset()
        error = message.error()
        if error is None:
            assert partition is not None
            assert offset is not None
            self._log.answered()
            assert offset >= self.positions[partition], "librdkafka hands each offset over once, in order"
            self.positions[partition] = offset + 1
            value, key = message.value(), message.key()
            return Line(partition=partition, offset=offset, timestamp_ms=message.timestamp()[1], key=key, value=value)
        if error.code() == KafkaError._PARTITION_EOF:
            assert partition is not None
            assert offset is not None
            self.positions[partition] = max(offset, self.positions[partition])
        elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            raise WorldError(
                f"topic {self._topic} no longer has the lines from offset {self.positions[partition or 0]} on that "
                "follow those already read (was it truncated, or made anew?); start this worker again to read it anew"
            )
        else:
            logger.warning("reading topic %s: %s; trying on", self._topic, error.str())
        return None
