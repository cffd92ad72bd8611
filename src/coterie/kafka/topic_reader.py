"""Reads one topic from its beginning, with a librdkafka consumer that is in no group and has its own thread."""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

from coterie.engine.log import TopicRecord
from coterie.kafka.client_log import ClientFailureLogger, logger
from coterie.nouns.errors import WorldError

POLL_TIMEOUT_S = 0.2
"""How long one call of :meth:`TopicReader.poll_next_records` waits for a record; a reader that is being closed ends
within this time."""
RECORDS_PER_CALL_MAX = 500
"""The maximum number of records that one call returns: more would block the event loop for too long."""


class TopicReader:
    """Reads all partitions of one topic from their beginning. Each call of :meth:`poll_next_records` returns the next
    records.

    Records that no call has returned yet are only in librdkafka's queue, whose size is limited: when the caller is
    slower than the broker, the queue becomes full, and librdkafka fetches no more.
    """

    def __init__(self, client_config: Mapping[str, Any], topic: str, partition_count: int) -> None:
        """Create the consumer, and assign the partitions from 0 to ``partition_count`` - 1 to it, each from its
        beginning. ``client_config`` is the librdkafka config of the worker's handles."""
        self._topic = topic
        self._log = ClientFailureLogger(f"reading topic {topic}")
        self._consumer = Consumer(
            {
                **client_config,
                **self._log.callback_settings(),
                # A consumer must set a group id. This consumer joins no group: its partitions are assigned explicitly,
                # and it commits nothing.
                "group.id": f"{client_config['client.id']}-follower",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                # If the topic no longer contains the next offset of this reader, raise an error instead of reading the
                # topic from its beginning again.
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 100,
                "fetch.error.backoff.ms": 100,
                "queued.max.messages.kbytes": 16_384,
            }
        )
        self._consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partition_count)])
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"coterie-follow-{topic}")
        self._closed = False
        self.positions = dict.fromkeys(range(partition_count), 0)
        """By partition, the offset after the last record that was returned, or the partition's end for a reader of
        committed records (its last stable offset) if the reader has reached it."""

    @property
    def is_closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._closed

    async def poll_next_records(self) -> Sequence[TopicRecord]:
        """The next records, at most ``RECORDS_PER_CALL_MAX``, ordered by offset within each partition; empty when none
        arrived within ``POLL_TIMEOUT_S``. Records of open and of aborted transactions are not returned.

        :raises WorldError: when the records that follow those already read were deleted from the topic, or after
            :meth:`close`.
        """
        if self._closed:
            raise WorldError(f"the reader of topic {self._topic} is closed, because this worker is shutting down")
        messages = await asyncio.get_running_loop().run_in_executor(self._thread, self._poll_messages)
        return [record for message in messages if (record := self._advance_and_take_record(message)) is not None]

    async def close(self) -> None:
        """Close the consumer and end its thread; waits until a running poll has ended. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        # The last job of the thread, after a poll that may still run. It completes even if the caller is cancelled.
        consumer_closed = asyncio.get_running_loop().run_in_executor(self._thread, self._consumer.close)
        self._thread.shutdown(wait=False)
        await asyncio.shield(consumer_closed)
        self._thread.shutdown()

    def _poll_messages(self) -> list[Message]:
        """On the reader's thread: the messages that have arrived; waits for the first one for ``POLL_TIMEOUT_S``."""
        if self._closed:
            return []
        # A wait for many records would last until the last of them arrives. So wait for one, and take all others that
        # have arrived.
        first_message = self._consumer.poll(POLL_TIMEOUT_S)
        return [] if first_message is None else [first_message, *self._consumer.consume(RECORDS_PER_CALL_MAX - 1, 0)]

    def _advance_and_take_record(self, message: Message) -> TopicRecord | None:
        """The record in ``message``; None for a message that reports the end of a partition, or an error after which
        librdkafka retries and which is logged. A record and the end of a partition advance ``positions``.

        :raises WorldError: when the records that follow those already read were deleted.
        """
        partition, offset = message.partition(), message.offset()
        error = message.error()
        if error is None:
            assert partition is not None
            assert offset is not None
            self._log.on_response()
            assert offset >= self.positions[partition], "librdkafka returns each offset once, in order"
            self.positions[partition] = offset + 1
            value, key = message.value(), message.key()
            return TopicRecord(
                partition=partition, offset=offset, timestamp_ms=message.timestamp()[1], key=key, value=value
            )
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
