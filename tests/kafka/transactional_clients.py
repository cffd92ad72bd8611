"""Confluent-kafka's transactional producer and its consumers, for tests of several modules."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from uuid import uuid4

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

DEADLINE_S = 60
KILLS = 4
"""How often a test kills a process."""


def made_topic(bootstrap: str, partitions: int) -> str:
    name = f"transactions-{uuid4().hex[:8]}"
    # Its futures do not complete if the client is garbage collected.
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(DEADLINE_S)
    return name


def transactional(bootstrap: str, transactional_id: str) -> Producer:
    """A producer whose transactions are initialized."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": 60_000,
            "linger.ms": 0,
        }
    )
    producer.init_transactions(DEADLINE_S)
    return producer


@contextmanager
def reader(bootstrap: str, topic: str, isolation: str, partition: int = 0) -> Iterator[Consumer]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"readers-{uuid4().hex[:8]}",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    with closing(consumer):
        yield consumer


def read_to_end(bootstrap: str, topic: str, isolation: str = "read_committed", partition: int = 0) -> list[str]:
    """The values up to the end that the isolation level shows."""
    values: list[str] = []
    with reader(bootstrap, topic, isolation, partition) as consumer:
        while True:
            message = consumer.poll(DEADLINE_S)
            assert message is not None, values
            error = message.error()
            if error is None:
                values.append(value_of(message))
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return values


def value_of(message: Message) -> str:
    value = message.value()
    assert value is not None
    return value.decode()
