"""Topics of a broker with numbered rows, and configs of connectors that read them."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.spark.conftest import rows_of


class Kafka:
    """A broker, a folder for output, and configs of connectors from the broker to the folder."""

    def __init__(self, servers: str, out: Path, security: Mapping[str, Any] | None = None) -> None:
        self.servers = servers
        self.out = out
        self._client: dict[str, Any] = {"bootstrap.servers": servers, **(security or {})}
        self.admin = AdminClient(self._client)
        self.next_row = 0

    def create(self, topic: str, partitions: int) -> None:
        # The records of some tests have timestamps of long ago: with a retention time the broker may delete them.
        new_topic = NewTopic(topic, partitions, 1, config={"retention.ms": "-1"})
        for future in self.admin.create_topics([new_topic]).values():
            future.result(30)

    def delete(self, topic: str) -> None:
        for future in self.admin.delete_topics([topic]).values():
            future.result(30)

    def produce(
        self, topic: str, partition: int, values: Sequence[bytes | None], timestamp_ms: int = 0, key: bytes = b"k"
    ) -> None:
        producer = Producer(self._client)
        for value in values:
            producer.produce(topic, value, key=key, partition=partition, headers=[("h", b"1")], timestamp=timestamp_ms)
        assert producer.flush(30) == 0

    def produce_rows(self, topic: str, partitions: int, each: int = 20) -> None:
        """Produce JSON rows, numbered over all calls, to each partition."""
        for partition in range(partitions):
            rows = range(self.next_row, self.next_row + each)
            self.produce(topic, partition, [b'{"row": %d}' % row for row in rows])
            self.next_row += each

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """Delete records as retention does."""
        for future in self.admin.delete_records([TopicPartition(topic, partition, offset)]).values():
            future.result(30)

    def group_offsets(self, group: str) -> dict[tuple[str, int], int]:
        """The offsets that tools read to show lag."""
        (futures,) = self.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
        found = futures.result(30).topic_partitions
        return {(one.topic, one.partition): one.offset for one in found}

    def set_group_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Set the offsets of ``group``. A broker of Kafka may not know a new topic yet when the controller has created
        it, and then refuses this topic's offsets: they are sent until the broker accepts them."""
        partitions = [TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items()]
        deadline_s = time.monotonic() + 30
        while refused := self._refused_group_offsets(group, partitions):
            assert time.monotonic() < deadline_s, refused

    def _refused_group_offsets(self, group: str, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Set the offsets of ``group`` to those of ``partitions``; returns the partitions that the broker refused."""
        (future,) = self.admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, partitions)]).values()
        return [answered for answered in future.result(30).topic_partitions if answered.error is not None]

    def config(self, topic: str, **keys: str) -> dict[str, str]:
        """The config of a sink connector whose source keys have no prefix, as in Connect."""
        return {
            "connector.class": "FileSink",
            "tasks.max": "1",
            "trigger.interval.ms": "0",
            "topics": topic,
            "consumer.override.bootstrap.servers": self.servers,
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter.schemas.enable": "false",
            "value.schema": "row BIGINT",
            "format": "json",
            "path": str(self.out / topic),
            "rotate.interval.ms": "0",
        } | {key.replace("__", "."): value for key, value in keys.items()}

    def rows(self, topic: str) -> list[int]:
        return rows_of(self.out / topic)
