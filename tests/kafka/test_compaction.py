"""Compaction compared with a real Kafka's: it keeps the same records at the same offsets, with every codec and after
transactions."""

import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from coterie.broker.settings import BrokerSettings, MaintenanceSettings
from tests.broker.conftest import QUICK, ThreadedBroker
from tests.kafka.real_kafka import RealKafka

pytestmark = [pytest.mark.kafka, pytest.mark.interop]

DEADLINE_S = 90
COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "500"}
TOPICS = {"kept": COMPACT | {"delete.retention.ms": "600000"}, "short": COMPACT | {"delete.retention.ms": "0"}}
CLEANS_OFTEN = "log.cleaner.backoff.ms=200\nlog.initial.task.delay.ms=100\n"

Line = tuple[int, bytes, bytes | None]
"""Offset, key and value."""


@pytest.fixture(params=["embedded", "kafka"])
def bootstrap(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A broker that compacts continuously."""
    if request.param == "embedded":
        upkeep = MaintenanceSettings(initial_delay_ms=0, cleaner_backoff_ms=50)
        broker = ThreadedBroker(BrokerSettings(data_path=tmp_path / "ours", group_limits=QUICK, maintenance=upkeep))
        broker.start()
        yield broker.bootstrap
        broker.stop()
    else:
        kafka = RealKafka(request.getfixturevalue("kafka_jars"), tmp_path, properties=CLEANS_OFTEN)
        kafka.start()
        yield kafka.bootstrap_servers
        kafka.stop()


@pytest.mark.timeout(240)
def test_a_compaction_keeps_the_records_that_kafka_keeps(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    created = admin.create_topics([NewTopic(name, 1, 1, config=configs) for name, configs in TOPICS.items()])
    for future in created.values():
        future.result()
    for topic in TOPICS:
        newest = {key: (offset, key, value) for offset, key, value in write_records(bootstrap, topic)}
        expected = sorted(line for line in newest.values() if topic == "kept" or line[2] is not None)
        assert any(value is None for _, _, value in newest.values())
        deadline_s = time.monotonic() + DEADLINE_S
        while (found := read(bootstrap, topic, "read_uncommitted")) != expected:
            assert time.monotonic() < deadline_s, (found, expected)
            # Kafka closes a segment at the first write after its time, and compacts only closed segments.
            put(Producer({"bootstrap.servers": bootstrap}), topic, [(b"end", b"")])
            time.sleep(0.3)
        assert read(bootstrap, topic, "read_committed") == expected


def write_records(bootstrap: str, topic: str) -> list[Line]:
    """Write records with each codec and in transactions, one of them aborted; returns those not aborted."""
    random = Random(5)
    lines: list[Line] = []
    for codec in ("none", "gzip", "snappy", "lz4", "zstd") * 2:
        producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 50})
        lines += put(producer, topic, [random_record(random, 30) for _ in range(20)])
    for is_committed in (True, False, True):
        producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"of {topic}"})
        producer.init_transactions()
        producer.begin_transaction()
        in_transaction = put(producer, topic, [random_record(random, 12) for _ in range(4)])
        if is_committed:
            producer.commit_transaction()
            lines += in_transaction
        else:
            producer.abort_transaction()
    return lines


def random_record(random: Random, keys: int) -> tuple[bytes, bytes | None]:
    value = None if random.random() < 0.2 else b"%d" % random.randrange(10**6) + b"x" * 50
    return b"k%d" % random.randrange(keys), value


def put(producer: Producer, topic: str, records: list[tuple[bytes, bytes | None]]) -> list[Line]:
    lines: list[Line] = []

    def delivered(error: KafkaError | None, message: Any) -> None:
        assert error is None, error
        lines.append((message.offset(), message.key(), message.value()))

    for key, value in records:
        producer.produce(topic, key=key, value=value, on_delivery=delivered)
    assert producer.flush(60) == 0
    return lines


def read(bootstrap: str, topic: str, isolation_level: str) -> list[Line]:
    """All records of the topic, except those that only close its segments."""
    consumer = Consumer({
        "bootstrap.servers": bootstrap,
        "group.id": "reader",
        "isolation.level": isolation_level,
        "enable.partition.eof": True,
    })  # fmt: skip
    lines: list[Line] = []
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        deadline_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline_s:
            message: Any = consumer.poll(1)
            if message is None:
                continue
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return lines
            if message.key() != b"end":
                lines.append((message.offset(), message.key(), message.value()))
        raise AssertionError("the topic has no end")
    finally:
        consumer.close()
