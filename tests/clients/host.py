"""A process that hosts consumers of one Kafka client: it reads commands and writes events as JSON lines.

``python -m tests.clients.host aiokafka``. A process can be killed, which a client cannot handle, and each
client's threads and warnings stay with it.
"""

import asyncio
import json
import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any


class HostedConsumer(ABC):
    """A consumer on a separate thread."""

    def __init__(self, name: str, config: dict[str, Any]) -> None:
        self.name = name
        self.config = config
        self.stops = threading.Event()
        self.commits = threading.Event()
        self._last_assignment: tuple[Any, ...] = ()
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def consume(self) -> None:
        """Poll until `stops` is set, commit when `commits` is set, and close: `emit` every event."""

    def emit(self, event: str, **more: Any) -> None:
        write_line({"member": self.name, "event": event, **more})

    def emit_assignment(self, partitions: Iterable[int], member_id: str) -> None:
        """Emit the assignment if it differs from the last emitted one."""
        now = (sorted(partitions), member_id)
        if now != self._last_assignment:
            self._last_assignment = now
            self.emit("assigned", partitions=now[0], member_id=member_id)

    def _run(self) -> None:
        try:
            self.consume()
            self.emit("stopped")
        except Exception as error:  # noqa: BLE001 the test must receive any error
            self.emit("failed", error=repr(error))


class Confluent(HostedConsumer):
    def consume(self) -> None:
        from confluent_kafka import Consumer

        config = self.config
        consumer = Consumer(
            {
                "bootstrap.servers": config["bootstrap"],
                "group.id": config["group"],
                "client.id": self.name,
                "partition.assignment.strategy": config["strategy"],
                "session.timeout.ms": config["session_timeout_ms"],
                "heartbeat.interval.ms": config["heartbeat_interval_ms"],
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "topic.metadata.refresh.interval.ms": config["metadata_age_ms"],
                "fetch.wait.max.ms": 100,
                **({"group.instance.id": config["instance_id"]} if config["instance_id"] else {}),
            }
        )
        consumer.subscribe([config["topic"]])
        while not self.stops.is_set():
            message = consumer.poll(0.05)
            self.emit_assignment((one.partition for one in consumer.assignment()), consumer.memberid() or "")
            if message is not None and message.error() is None:
                self.emit("read", messages=[[message.partition(), message.offset(), (message.value() or b"").decode()]])
            if self.commits.is_set():
                self.commits.clear()
                committed = consumer.commit(asynchronous=False) or []
                self.emit("committed", offsets={str(one.partition): one.offset for one in committed})
        consumer.close()


class KafkaPython(HostedConsumer):
    def consume(self) -> None:
        from kafka import ConsumerRebalanceListener, KafkaConsumer
        from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
        from kafka.coordinator.assignors.range import RangePartitionAssignor
        from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
        from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

        config = self.config
        assignors = (
            RangePartitionAssignor, RoundRobinPartitionAssignor, StickyPartitionAssignor, CooperativeStickyAssignor
        )  # fmt: skip
        hosted = self

        class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_revoked(self, revoked: Any) -> None:
                hosted.emit_assignment((one.partition for one in consumer.assignment()), member_id())

            def on_partitions_assigned(self, assigned: Any) -> None:
                hosted.emit_assignment((one.partition for one in consumer.assignment()), member_id())

        def member_id() -> str:
            return str(consumer._coordinator._generation.member_id)

        consumer = KafkaConsumer(
            bootstrap_servers=config["bootstrap"],
            group_id=config["group"],
            client_id=self.name,
            group_instance_id=config["instance_id"],
            partition_assignment_strategy=[one for one in assignors if one().name == config["strategy"]],
            session_timeout_ms=config["session_timeout_ms"],
            heartbeat_interval_ms=config["heartbeat_interval_ms"],
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            metadata_max_age_ms=config["metadata_age_ms"],
            fetch_max_wait_ms=100,
        )
        consumer.subscribe([config["topic"]], listener=Listener())
        while not self.stops.is_set():
            polled = consumer.poll(timeout_ms=config["poll_ms"])
            for partition, messages in polled.items():
                self.emit("read", messages=[[partition.partition, one.offset, one.value.decode()] for one in messages])
            if self.commits.is_set():
                self.commits.clear()
                consumer.commit()
                own = consumer.assignment()
                offsets = {str(one.partition): consumer.committed(one) for one in own}
                self.emit("committed", offsets={p: offset for p, offset in offsets.items() if offset is not None})
        consumer.close()


class AioKafka(HostedConsumer):
    def consume(self) -> None:
        asyncio.run(self._consume())

    async def _consume(self) -> None:
        from aiokafka import AIOKafkaConsumer
        from aiokafka.coordinator.assignors.range import RangePartitionAssignor
        from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
        from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

        config = self.config
        assignors = (RangePartitionAssignor, RoundRobinPartitionAssignor, StickyPartitionAssignor)
        consumer = AIOKafkaConsumer(
            config["topic"],
            bootstrap_servers=config["bootstrap"],
            group_id=config["group"],
            client_id=self.name,
            group_instance_id=config["instance_id"],
            partition_assignment_strategy=tuple(one for one in assignors if one.name == config["strategy"]),
            session_timeout_ms=config["session_timeout_ms"],
            heartbeat_interval_ms=config["heartbeat_interval_ms"],
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            metadata_max_age_ms=config["metadata_age_ms"],
            fetch_max_wait_ms=100,
        )
        await consumer.start()
        while not self.stops.is_set():
            polled = await consumer.getmany(timeout_ms=50)
            self.emit_assignment(
                (one.partition for one in consumer.assignment()), consumer._coordinator.member_id or ""
            )
            for partition, messages in polled.items():
                self.emit("read", messages=[[partition.partition, one.offset, one.value.decode()] for one in messages])
            if self.commits.is_set():
                self.commits.clear()
                await consumer.commit()
                own = consumer.assignment()
                offsets = {str(one.partition): await consumer.committed(one) for one in own}
                self.emit("committed", offsets={p: offset for p, offset in offsets.items() if offset is not None})
        await consumer.stop()


KINDS: dict[str, type[HostedConsumer]] = {
    "confluent-kafka": Confluent,
    "kafka-python": KafkaPython,
    "aiokafka": AioKafka,
}

_output_lock = threading.Lock()


def write_line(line: dict[str, Any]) -> None:
    with _output_lock:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def main(arguments: Sequence[str]) -> None:
    (kind,) = arguments
    members: dict[str, HostedConsumer] = {}
    for line in sys.stdin:
        command = json.loads(line)
        name = command["member"]
        match command["do"]:
            case "start":
                members[name] = KINDS[kind](name, command["config"])
                members[name].thread.start()
            case "commit":
                members[name].commits.set()
            case "stop":
                members[name].stops.set()
            case unknown:
                raise ValueError(f"no such command: {unknown}")
    # The process that started this one has ended.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
