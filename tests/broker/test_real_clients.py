"""Unmodified Kafka clients against the broker."""

import uuid
from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from coterie.wire.batches import iter_whole_batch_headers
from tests.broker.conftest import ThreadedBroker

pytestmark = pytest.mark.interop


def create(broker: ThreadedBroker, name: str, partitions: int = 1, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(30)


def consumer(broker: ThreadedBroker, **more: Any) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": f"unused-{uuid.uuid4()}",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            **more,
        }
    )


def read(broker: ThreadedBroker, topic: str, partition: int, offset: int, count: int) -> list[Any]:
    reader = consumer(broker)
    messages: list[Any] = []
    try:
        reader.assign([TopicPartition(topic, partition, offset)])
        while len(messages) < count:
            message = reader.poll(30)
            assert message is not None, f"{len(messages)} of {count} messages came"
            assert message.error() is None, message.error()
            messages.append(message)
    finally:
        reader.close()
    return messages


@pytest.mark.parametrize(
    ("compression", "acks"),
    [("none", "1"), ("none", "all"), *((one, "all") for one in ("gzip", "snappy", "lz4", "zstd"))],
)
def test_a_consumer_reads_what_a_producer_wrote(broker: ThreadedBroker, compression: str, acks: str) -> None:
    create(broker, "t", 2)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "compression.type": compression, "acks": acks})
    offsets: list[int] = []

    def delivered(error: KafkaError | None, message: Any) -> None:
        assert error is None, error
        offsets.append(message.offset())

    for number in range(500):
        producer.produce("t", f"value {number}", f"key {number}", partition=1, on_delivery=delivered)
    assert producer.flush(30) == 0
    assert sorted(offsets) == list(range(500))
    messages = read(broker, "t", 1, 0, 500)
    assert [message.value() for message in messages] == [f"value {number}".encode() for number in range(500)]
    assert [message.offset() for message in messages] == list(range(500))
    assert read(broker, "t", 1, 321, 1)[0].key() == b"key 321"


def test_an_idempotent_producer_is_served(broker: ThreadedBroker) -> None:
    create(broker, "t")
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    for number in range(300):
        producer.produce("t", str(number))
    assert producer.flush(30) == 0
    assert [int(message.value()) for message in read(broker, "t", 0, 0, 300)] == list(range(300))


def test_producing_to_a_missing_topic_creates_it(broker: ThreadedBroker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("new", b"first")
    assert producer.flush(30) == 0
    assert read(broker, "new", 0, 0, 1)[0].value() == b"first"


def test_tombstones_headers_and_timestamps_are_kept(broker: ThreadedBroker) -> None:
    create(broker, "t")
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("t", None, b"k", headers=[("h", b"1"), ("h", None)], timestamp=1_600_000_000_123)
    assert producer.flush(30) == 0
    (message,) = read(broker, "t", 0, 0, 1)
    assert (message.key(), message.value()) == (b"k", None)
    assert message.headers() == [("h", b"1"), ("h", None)]
    assert message.timestamp()[1] == 1_600_000_000_123


def test_a_waiting_consumer_receives_records_that_are_written_later(broker: ThreadedBroker) -> None:
    create(broker, "t")
    reader = consumer(broker, **{"fetch.wait.max.ms": 30_000})
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
    try:
        reader.assign([TopicPartition("t", 0, 0)])
        assert reader.poll(0.5) is None
        producer.produce("t", b"late")
        producer.flush(30)
        message = reader.poll(20)
        assert message is not None
        assert message.value() == b"late"
    finally:
        reader.close()


def test_offsets_are_found_by_time(broker: ThreadedBroker) -> None:
    create(broker, "t")
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(10):
        producer.produce("t", str(number), timestamp=1_600_000_000_000 + 1000 * number)
    producer.flush(30)
    reader = consumer(broker)
    try:
        assert reader.get_watermark_offsets(TopicPartition("t", 0), timeout=30) == (0, 10)
        (found,) = reader.offsets_for_times([TopicPartition("t", 0, 1_600_000_003_500)], timeout=30)
        assert found.offset == 4
        (beyond,) = reader.offsets_for_times([TopicPartition("t", 0, 1_700_000_000_000)], timeout=30)
        assert beyond.offset == -1
    finally:
        reader.close()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    partition = TopicPartition("t", 0)
    results = admin.list_offsets({partition: OffsetSpec.max_timestamp()})
    assert results[partition].result(30).offset == 9


def test_no_offset_before_the_start_offset_is_found_by_time(broker: ThreadedBroker) -> None:
    create(broker, "t")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    partition = TopicPartition("t", 0)

    def produce_batch(timestamps_s: Sequence[int]) -> None:
        """Produce records with these timestamps in one batch."""
        producer = Producer(
            {"bootstrap.servers": broker.bootstrap, "linger.ms": 60_000, "batch.num.messages": len(timestamps_s)}
        )
        for timestamp_s in timestamps_s:
            producer.produce("t", b"x", timestamp=1000 * timestamp_s)
        producer.flush(30)

    def max_timestamp_offset() -> int:
        return int(admin.list_offsets({partition: OffsetSpec.max_timestamp()})[partition].result(30).offset)

    reader = consumer(broker)

    def offset_since(timestamp_s: int) -> int:
        (found,) = reader.offsets_for_times([TopicPartition("t", 0, 1000 * timestamp_s)], timeout=30)
        return int(found.offset)

    try:
        produce_batch(range(100, 90, -1))
        data = broker.run(lambda context: context.log.read(context.log.topics["t"].partitions[0], 0, 10**6))
        assert len(list(iter_whole_batch_headers(data))) == 1
        admin.delete_records([TopicPartition("t", 0, 5)])[partition].result(30)
        assert [offset_since(timestamp_s) for timestamp_s in (91, 93, 95, 96, 100)] == [5, 5, 5, -1, -1]
        assert max_timestamp_offset() == 5
        produce_batch([90, 90])
        assert max_timestamp_offset() == 5
        produce_batch([90, 99])
        assert [offset_since(timestamp_s) for timestamp_s in (93, 96, 100)] == [5, 13, -1]
        assert max_timestamp_offset() == 13
    finally:
        reader.close()


def test_a_consumer_out_of_range_gets_an_error(broker: ThreadedBroker) -> None:
    create(broker, "t")
    reader = consumer(broker)
    try:
        reader.assign([TopicPartition("t", 0, 99)])
        message = reader.poll(30)
        assert message is not None
        error = message.error()
        assert error is not None
        assert error.code() == KafkaError._AUTO_OFFSET_RESET
    finally:
        reader.close()


def test_topics_are_listed_and_refused_as_kafka_does(broker: ThreadedBroker) -> None:
    create(broker, "config-topic", 1, **{"cleanup.policy": "compact"})
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    assert set(admin.list_topics(timeout=30).topics) == {"config-topic", "__consumer_offsets", "__worker_offsets"}
    for topic, code in (
        (NewTopic("config-topic", 1, 1), KafkaError.TOPIC_ALREADY_EXISTS),
        (NewTopic("a b", 1, 1), KafkaError.TOPIC_EXCEPTION),
        (NewTopic("r", 1, 3), KafkaError.INVALID_REPLICATION_FACTOR),
        (NewTopic("c", 1, 1, config={"no.such.config": "1"}), KafkaError.INVALID_CONFIG),
        (NewTopic("c", 1, 1, config={"cleanup.policy": "burn"}), KafkaError.INVALID_CONFIG),
        (NewTopic("c", 1, 1, config={"max.message.bytes": "abc"}), KafkaError.INVALID_CONFIG),
        (NewTopic("many", 1001, 1), KafkaError.INVALID_PARTITIONS),
    ):
        with pytest.raises(KafkaException) as raised:
            admin.create_topics([topic])[topic.topic].result(30)
        assert raised.value.args[0].code() == code
    admin.create_topics([NewTopic("checked", 1, 1)], validate_only=True)["checked"].result(30)
    assert "checked" not in admin.list_topics(timeout=30).topics


def test_a_batch_larger_than_allowed_is_refused(broker: ThreadedBroker) -> None:
    create(broker, "t", 1, **{"max.message.bytes": "2000"})
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    errors: list[Any] = []
    producer.produce("t", b"x" * 4000, on_delivery=lambda error, _: errors.append(error))
    producer.flush(30)
    assert [error.code() for error in errors] == [KafkaError.MSG_SIZE_TOO_LARGE]


def test_the_groups_topic_is_read_only(broker: ThreadedBroker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    errors: list[Any] = []
    producer.produce("__consumer_offsets", b"x", on_delivery=lambda error, _: errors.append(error))
    producer.flush(30)
    assert [error.code() for error in errors] == [KafkaError.TOPIC_EXCEPTION]


def test_topics_and_messages_survive_a_restart(broker: ThreadedBroker) -> None:
    create(broker, "t", 3)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(30):
        producer.produce("t", str(number), partition=number % 3)
    assert producer.flush(30) == 0
    broker.stop()
    broker.start()
    for partition in range(3):
        values = [int(message.value()) for message in read(broker, "t", partition, 0, 10)]
        assert values == list(range(partition, 30, 3))
