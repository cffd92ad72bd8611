"""A program that a test kills: it consumes, transforms and produces in transactions, with confluent-kafka."""

import sys
from collections.abc import Sequence

from confluent_kafka import Consumer, Producer, TopicPartition

BATCH = 10
TIMEOUT_S = 60


def main(bootstrap: str, source: str, target: str) -> None:
    """Copy each value of ``source`` with a prefix to ``target``, for ever. The offsets of the group ``source`` are
    committed in the transaction of the copies."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": source, "transaction.timeout.ms": 60_000, "linger.ms": 0}
    )
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": source,
            # A process that follows a killed one takes over its place in the group at once.
            "group.instance.id": "copier",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6_000,
        }
    )
    producer.init_transactions(TIMEOUT_S)
    consumer.subscribe([source])
    while True:
        messages = consumer.consume(BATCH, 0.2)
        if messages:
            producer.begin_transaction()
            for message in messages:
                assert message.error() is None, message.error()
                value = message.value()
                assert value is not None
                producer.produce(target, b"copy of " + value, partition=0)
            positions: Sequence[TopicPartition] = consumer.position(consumer.assignment())
            producer.send_offsets_to_transaction(list(positions), consumer.consumer_group_metadata(), TIMEOUT_S)
            producer.commit_transaction(TIMEOUT_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
