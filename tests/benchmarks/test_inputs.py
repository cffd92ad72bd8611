"""The inputs of the benchmarks of pipelines: rows that are lost on their way are reported."""

import pytest
from confluent_kafka import Consumer

from benchmarks.inputs import RowProducer, Topic, make_topic, row_json
from tests.kafka.embedded_broker import EmbeddedBroker

pytestmark = pytest.mark.processes


def test_all_rows_are_delivered(mortal_broker: EmbeddedBroker) -> None:
    topic = make_topic(mortal_broker.bootstrap_servers, "rows", 2)
    feed = RowProducer(mortal_broker.bootstrap_servers)
    feed.write(topic, range(10))
    feed.flush()
    consumer = Consumer(
        {
            "bootstrap.servers": mortal_broker.bootstrap_servers,
            "group.id": "g",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic.name])
    found = [message.value() for message in consumer.consume(10, timeout=60)]
    consumer.close()
    assert sorted(map(str, found)) == sorted(str(row_json(number)) for number in range(10))


def test_rows_that_were_not_delivered_are_reported(mortal_broker: EmbeddedBroker) -> None:
    made = make_topic(mortal_broker.bootstrap_servers, "rows", 1)
    feed = RowProducer(mortal_broker.bootstrap_servers)
    feed.write(Topic(name=made.name, partitions=2), range(10))
    with pytest.raises(AssertionError, match=r"^5 records were not delivered; the first: partition 1 of rows: "):
        feed.flush()
