"""Offsets committed in transactions, by confluent-kafka's clients, on Coterie's broker and on a real one."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from coterie.wire.errors import ErrorCode
from tests.broker.conftest import raw_client
from tests.kafka import copy_loop
from tests.kafka.faults.row import Scene
from tests.kafka.transactional_clients import (
    DEADLINE_S,
    KILLS,
    made_topic,
    read_to_end,
    reader,
    transactional,
    value_of,
)


@pytest.fixture
def topic(bootstrap: str) -> str:
    return made_topic(bootstrap, partitions=1)


@contextmanager
def group_consumer(bootstrap: str, group: str) -> Iterator[Consumer]:
    """A consumer that assigns its partitions itself, and so is no member of ``group``."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    with closing(consumer):
        yield consumer


def committed(bootstrap: str, group: str, topic: str, *, stable: bool) -> int | ErrorCode:
    """The committed offset of the topic's partition 0, -1 if there is none, or the partition's error code."""
    asked = {"group_id": group, "member_id": None, "member_epoch": -1}
    topics = [{"name": topic, "partition_indexes": (0,)}]
    with raw_client(int(bootstrap.rpartition(":")[2])) as client:
        fields = {"groups": [asked | {"topics": topics}], "require_stable": stable}
        answer = Scene(client).ask_until_ready("OffsetFetch", 9, fields)
    (partition,) = answer.groups[0].topics[0].partitions
    error: ErrorCode = partition.error_code
    return int(partition.committed_offset) if error is ErrorCode.none else error


def stable_offset(bootstrap: str, group: str, topic: str) -> int:
    """The committed offset as soon as no transaction has a pending one: Kafka writes markers after its response."""
    deadline_s = time.monotonic() + DEADLINE_S
    while isinstance(offset := committed(bootstrap, group, topic, stable=True), ErrorCode):
        assert offset is ErrorCode.unstable_offset_commit
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    return offset


def send_offset(producer: Producer, consumer: Consumer, topic: str, offset: int) -> None:
    producer.send_offsets_to_transaction(
        [TopicPartition(topic, 0, offset)], consumer.consumer_group_metadata(), DEADLINE_S
    )


def test_offsets_count_from_the_commit_of_their_transaction_on(bootstrap: str, topic: str) -> None:
    group = f"group-{uuid4().hex[:8]}"
    producer = transactional(bootstrap, f"id-{topic}")
    with group_consumer(bootstrap, group) as consumer:
        for offset, is_commit, expected in ((3, True, 3), (5, False, 3), (7, True, 7)):
            producer.begin_transaction()
            producer.produce(topic, str(offset), partition=0)
            before = committed(bootstrap, group, topic, stable=False)
            send_offset(producer, consumer, topic, offset)
            assert committed(bootstrap, group, topic, stable=False) == before
            assert committed(bootstrap, group, topic, stable=True) is ErrorCode.unstable_offset_commit
            if is_commit:
                producer.commit_transaction(DEADLINE_S)
            else:
                producer.abort_transaction(DEADLINE_S)
            assert stable_offset(bootstrap, group, topic) == expected
    assert read_to_end(bootstrap, topic) == ["3", "7"]


def test_a_fenced_producer_commits_no_offsets(bootstrap: str, topic: str) -> None:
    group = f"group-{uuid4().hex[:8]}"
    with group_consumer(bootstrap, group) as consumer:
        zombie = transactional(bootstrap, f"id-{topic}")
        zombie.begin_transaction()
        send_offset(zombie, consumer, topic, 3)
        producer = transactional(bootstrap, f"id-{topic}")
        assert stable_offset(bootstrap, group, topic) == -1
        with pytest.raises(KafkaException) as refused:
            send_offset(zombie, consumer, topic, 4)
        assert refused.value.args[0].code() == KafkaError._FENCED
        producer.begin_transaction()
        send_offset(producer, consumer, topic, 5)
        producer.commit_transaction(DEADLINE_S)
        assert stable_offset(bootstrap, group, topic) == 5


def test_the_later_commit_of_an_offset_counts_whichever_transaction_ends_last(bootstrap: str, topic: str) -> None:
    """The order of the log decides, so that compaction and a restart give the same offset."""
    group = f"group-{uuid4().hex[:8]}"
    first, second = (transactional(bootstrap, f"{which}-{topic}") for which in ("first", "second"))
    with group_consumer(bootstrap, group) as consumer:
        for producer, offset in ((first, 3), (second, 5)):
            producer.begin_transaction()
            send_offset(producer, consumer, topic, offset)
        second.commit_transaction(DEADLINE_S)
        first.commit_transaction(DEADLINE_S)
        assert stable_offset(bootstrap, group, topic) == 5
        first.begin_transaction()
        send_offset(first, consumer, topic, 7)
        consumer.commit(offsets=[TopicPartition(topic, 0, 9)], asynchronous=False)
        first.commit_transaction(DEADLINE_S)
        assert stable_offset(bootstrap, group, topic) == 9


def test_a_loop_that_is_killed_repeatedly_copies_each_record_once(bootstrap: str, topic: str, tmp_path: Path) -> None:
    target, values = made_topic(bootstrap, partitions=1), [str(number) for number in range(1_000)]
    plain = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for value in values:
        plain.produce(topic, value, partition=0)
    assert plain.flush(DEADLINE_S) == 0
    copied: list[str] = []
    with reader(bootstrap, target, "read_committed") as consumer:
        for kill in range(KILLS + 1):
            with copying(bootstrap, topic, target, tmp_path / "copier.log") as process:
                wanted = len(values) if kill == KILLS else len(values) // (KILLS + 1) * (kill + 1)
                deadline_s = time.monotonic() + DEADLINE_S
                while len(copied) < wanted:
                    assert process.poll() is None, (tmp_path / "copier.log").read_text()[-2000:]
                    assert time.monotonic() < deadline_s, f"{len(copied)} of {wanted} copies came"
                    messages = consumer.consume(1, 0.2)
                    copied += [value_of(message) for message in messages if message.error() is None]
    assert copied == [f"copy of {value}" for value in values]
    assert read_to_end(bootstrap, target) == copied
    assert stable_offset(bootstrap, topic, topic) == len(values)


@contextmanager
def copying(bootstrap: str, source: str, target: str, log_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the copy loop in a process, which is killed at the end of the block."""
    with log_path.open("ab") as log:
        process = subprocess.Popen([sys.executable, copy_loop.__file__, bootstrap, source, target], stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait(DEADLINE_S)
