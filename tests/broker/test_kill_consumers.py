"""librdkafka's consumers, static and dynamic; their broker is killed -9 while the group forms and while they commit."""

import asyncio
import itertools
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer

from tests.broker.conftest import raw_client
from tests.broker.dying import (
    DEADLINE_S,
    NEVER,
    PARTITIONS,
    TOPIC,
    CrashingBroker,
    committed_offset,
    create_topic,
    start,
    wait_killed,
)

pytestmark = [pytest.mark.processes, pytest.mark.interop]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[CrashingBroker]:
    """A broker that is not started yet."""
    broker = CrashingBroker(tmp_path / "data")
    yield broker
    broker.stop()


class Reader(threading.Thread):
    """librdkafka's consumer, which commits after each record and waits for the acknowledgement."""

    def __init__(self, port: int, *, instance: str | None) -> None:
        super().__init__(name=f"reader {instance}")
        settings: dict[str, str | int | bool] = {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "group.id": "fleet",
            "session.timeout.ms": 60_000,
            "heartbeat.interval.ms": 200,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
        self._settings = settings if instance is None else settings | {"group.instance.id": instance}
        self._enough = threading.Event()
        self.seen: set[tuple[int, int]] = set()
        self.acknowledged: dict[int, int] = {}
        self.losses = 0

    def run(self) -> None:
        consumer = Consumer(self._settings)
        try:
            consumer.subscribe([TOPIC], on_lost=self._on_lost)
            while not self._enough.is_set():
                message = consumer.poll(0.1)
                if message is None or message.error() is not None:
                    continue
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                self.seen.add((partition, offset))
                # Not acknowledged: the broker cannot be reached, or another consumer has the partition now.
                with suppress(KafkaException):
                    (done,) = consumer.commit(message=message, asynchronous=False)
                    if done.error is None:
                        self.acknowledged[partition] = offset + 1
        finally:
            consumer.close()

    def stop(self) -> None:
        self._enough.set()
        self.join(DEADLINE_S)
        assert not self.is_alive()

    def _on_lost(self, _consumer: Any, _partitions: Any) -> None:
        self.losses += 1


async def test_consumers_continue_to_read_and_commit_while_their_broker_is_killed_repeatedly(
    broker: CrashingBroker,
) -> None:
    await start(broker, "joined durable")
    create_topic(broker)
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{broker.port}", "linger.ms": 1, "log_level": 0})
    delivered: set[tuple[int, int]] = set()
    readers = [Reader(broker.port, instance=None), Reader(broker.port, instance="static")]
    for reader in readers:
        reader.start()
    try:
        for point in ("assigned before", "assigned durable", "committed durable", NEVER):
            produce(producer, delivered)
            await wait_killed(broker)
            await start(broker, point)
        produce(producer, delivered)
        async with asyncio.timeout(DEADLINE_S):
            for _ in itertools.count():
                if not producer.flush(0) and delivered <= readers[0].seen | readers[1].seen:
                    break
                await asyncio.sleep(0.05)
    finally:
        for reader in readers:
            await asyncio.to_thread(reader.stop)
    assert [reader.losses for reader in readers] == [0, 0]
    with raw_client(broker.port) as peer:
        kept = {partition: committed_offset(peer, "fleet", partition) for partition in range(PARTITIONS)}
    for reader in readers:
        assert all(kept[partition] >= offset for partition, offset in reader.acknowledged.items())


def produce(producer: Producer, delivered: set[tuple[int, int]]) -> None:
    def on_delivery(error: Any, message: Any) -> None:
        assert error is None
        delivered.add((message.partition(), message.offset()))

    for number in range(100):
        producer.produce(TOPIC, b"value", partition=number % PARTITIONS, on_delivery=on_delivery)
    producer.poll(0)
