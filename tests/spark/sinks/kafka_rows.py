"""Input and output of the Kafka sink's tests: batches of numbered records, without Spark, and their readers."""

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from confluent_kafka import Consumer, IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.spark.prefixed_config import SINK_PREFIX, PrefixedConfig
from coterie.spark.seams import TaskCheckpointLineage
from coterie.spark.sinks.kafka_target import KafkaTarget
from coterie.spark.sinks.kafka_writer import KafkaWriter, SendFunction

TASK = ConnectorTaskId(ConnectorName("my/é"), 2)
LINEAGE = TaskCheckpointLineage(task=TASK, lineage_id="l")
ROWS = 20
"""Records of a batch."""


def target_of(keys: Mapping[str, str]) -> KafkaTarget:
    return KafkaTarget.of(PrefixedConfig(config=keys, prefix=SINK_PREFIX, is_prefix_optional=True))


def numbered(
    java: Any, topic: str, first: int, halfway: Callable[[], None] = lambda: None
) -> Callable[[], SendFunction]:
    """Send the numbers from ``first`` on, and call ``halfway`` when half of them are on the broker."""
    record_of = java.org.apache.kafka.clients.producer.ProducerRecord

    def send(producer: Any, properties: Any) -> None:
        assert properties.get("transactional.id")
        for number in range(first, first + ROWS):
            if number == first + ROWS // 2:
                producer.flush()
                halfway()
            sent = producer.send(record_of(topic, b"key", b"%d" % number))
        producer.flush()
        sent.get()

    return lambda: send


def write(writer: KafkaWriter, java: Any, topic: str, batch_id: int) -> None:
    staged = writer.stage(batch_id, numbered(java, topic, batch_id * ROWS))
    try:
        staged.commit()
    finally:
        staged.clean_up()


def values(servers: str, topic: str, isolation: str = "read_committed") -> list[bytes | None]:
    """The values of all records up to the last stable offset, or with ``read_uncommitted`` up to the end."""
    return [value for _, value, _ in records(servers, topic, isolation)]


def await_transactions(servers: str, topic: str) -> None:
    """Wait until no transaction is open in a topic: Kafka responds to a commit before it writes the markers."""
    admin = AdminClient({"bootstrap.servers": servers})
    partitions = [TopicPartition(topic, number) for number in admin.list_topics(topic, 30).topics[topic].partitions]

    def ends(isolation: IsolationLevel) -> list[int]:
        futures = admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.latest()), isolation_level=isolation)
        return [future.result(30).offset for _, future in sorted(futures.items(), key=lambda one: one[0].partition)]

    deadline = time.monotonic() + 30
    while ends(IsolationLevel.READ_COMMITTED) != ends(IsolationLevel.READ_UNCOMMITTED):
        assert time.monotonic() < deadline, f"a transaction stays open in {topic}"
        time.sleep(0.02)


def await_expiration(java: Any, servers: str) -> None:
    """Wait until the broker has removed all transactional ids."""
    properties = java.java.util.Properties()
    properties.setProperty("bootstrap.servers", servers)
    admin = java.org.apache.kafka.clients.admin.AdminClient.create(properties)
    deadline = time.monotonic() + 60
    try:
        while not admin.listTransactions().all().get().isEmpty():
            assert time.monotonic() < deadline, "a transactional id has not expired"
            time.sleep(0.1)
    finally:
        admin.close()


Found: TypeAlias = tuple[bytes | None, bytes | None, list[tuple[str, str | bytes | None]]]
"""Key, value and headers."""


def records(servers: str, topic: str, isolation: str = "read_committed") -> list[Found]:
    """The records of a topic, partition by partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "counts",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
        }
    )
    found: list[Found] = []
    try:
        partitions = consumer.list_topics(topic, 30).topics[topic].partitions
        for partition in partitions:
            consumer.assign([TopicPartition(topic, partition, 0)])
            while True:
                message = consumer.poll(30)
                assert message is not None, "the broker does not respond"
                if message.error() is not None:
                    break  # The end.
                headers = message.headers() or []
                assert isinstance(headers, list)
                found.append((message.key(), message.value(), headers))
    finally:
        consumer.close()
    return found


def numbers(servers: str, topic: str, isolation: str = "read_committed") -> list[int]:
    return sorted(int(value) for value in values(servers, topic, isolation) if value is not None)
