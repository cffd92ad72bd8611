"""Kafka Streams with exactly-once processing, unmodified: its word count is killed in the middle, on each broker."""

import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.kafka.embedded_broker import EmbeddedBroker
from tests.kafka.streams import INPUT, OUTPUT, WordCount, counts_in_order

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

DEADLINE_S = 120
WORDS = ("all", "streams", "lead", "to", "kafka")
INTERRUPTIONS = 3


@contextmanager
def running_word_count(jars: Path, folder: Path, bootstrap: str) -> Iterator[WordCount]:
    """The word count on new topics. It writes each count, and commits a transaction every 100 ms."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics([NewTopic(name, 1, 1) for name in (INPUT, OUTPUT)]).values():
        created.result(DEADLINE_S)
    word_count = WordCount(
        jars,
        folder,
        {
            "bootstrap.servers": bootstrap,
            "application.id": f"word-count-{uuid4().hex[:8]}",
            "processing.guarantee": "exactly_once_v2",
            "commit.interval.ms": 100,
            "session.timeout.ms": 3_000,
            "heartbeat.interval.ms": 500,
        },
    )
    word_count.start()
    try:
        yield word_count
    finally:
        word_count.kill()
        for deleted in admin.delete_topics([INPUT, OUTPUT]).values():
            deleted.result(DEADLINE_S)


class Output:
    """Reads the committed counts."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self.seen: list[tuple[str, int]] = []

    def read_until(self, total: int, is_healthy: Callable[[], None]) -> None:
        """Read until ``total`` counts have been seen."""
        deadline_s = time.monotonic() + DEADLINE_S
        while len(self.seen) < total:
            is_healthy()
            assert time.monotonic() < deadline_s, f"{len(self.seen)} of {total} counts came"
            for message in self._consumer.consume(1_000, 0.2):
                assert message.error() is None, message.error()
                key, value = message.key(), message.value()
                assert key is not None
                assert value is not None
                self.seen.append((key.decode(), struct.unpack(">q", value)[0]))


@contextmanager
def committed_output(bootstrap: str) -> Iterator[Output]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": f"readers-{uuid4().hex[:8]}", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(OUTPUT, 0, 0)])
    with closing(consumer):
        yield Output(consumer)


class Feeder(threading.Thread):
    """Sends a line every few milliseconds, so that a transaction is open nearly always."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(name="feeder")
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0})
        self._enough = threading.Event()
        self.sent: Counter[str] = Counter()

    def run(self) -> None:
        for number in count():
            words = (WORDS[number % 5], WORDS[number // 5 % 5])
            self._producer.produce(INPUT, " ".join(words), partition=0)
            self.sent.update(words)
            if self._enough.wait(0.003):
                return

    def end(self) -> Counter[str]:
        """End; returns how often each word was sent."""
        self._enough.set()
        self.join(DEADLINE_S)
        assert self._producer.flush(DEADLINE_S) == 0
        return self.sent


def run(word_count: WordCount, bootstrap: str, interrupt: Callable[[], None]) -> None:
    """Send lines all the time, call ``interrupt`` several times while they are counted, and check all counts."""
    feeder = Feeder(bootstrap)
    feeder.start()
    try:
        with committed_output(bootstrap) as output:
            for _ in range(INTERRUPTIONS):
                output.read_until(len(output.seen) + 500, word_count.check_runs)
                interrupt()
            output.read_until(len(output.seen) + 500, word_count.check_runs)
            sent = feeder.end()
            output.read_until(sent.total(), word_count.check_runs)
    finally:
        feeder.end()
    assert counts_in_order(output.seen) == {word: list(range(1, number + 1)) for word, number in sent.items()}


@pytest.mark.parametrize(
    "bootstrap",
    [
        pytest.param("embedded", marks=pytest.mark.processes),
        pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.soak]),
    ],
    indirect=True,
)
def test_each_word_is_counted_once_though_the_application_is_killed(
    bootstrap: str, streams_jars: Path, tmp_path: Path
) -> None:
    with running_word_count(streams_jars, tmp_path, bootstrap) as word_count:

        def restart_application() -> None:
            word_count.kill()
            word_count.start()

        run(word_count, bootstrap, restart_application)


@pytest.mark.processes
def test_each_word_is_counted_once_though_the_broker_is_killed(
    mortal_broker: EmbeddedBroker, streams_jars: Path, tmp_path: Path
) -> None:
    bootstrap = mortal_broker.bootstrap_servers
    with running_word_count(streams_jars, tmp_path, bootstrap) as word_count:

        def restart_broker() -> None:
            mortal_broker.kill()
            mortal_broker.start()

        run(word_count, bootstrap, restart_broker)
