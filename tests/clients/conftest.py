"""Consumers of three Kafka clients, hosted by processes, and the groups and topics of a test."""

import asyncio
import json
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

DEADLINE_S = 60
STRATEGIES = {
    "confluent-kafka": ("range", "roundrobin", "cooperative-sticky"),
    "kafka-python": ("range", "roundrobin", "sticky", "cooperative-sticky"),
    "aiokafka": ("range", "roundrobin", "sticky"),
}


@dataclass(slots=True, kw_only=True)
class Client:
    """The reported state of one hosted consumer."""

    name: str
    partitions: list[int] = field(default_factory=list)
    member_id: str = ""
    read: list[tuple[int, int, str]] = field(default_factory=list)
    """Partition, offset and value, in order."""
    assignments: int = 0
    """How often its assignment changed."""
    commits: int = 0
    is_stopped: bool = False

    @property
    def values(self) -> set[str]:
        return {value for _, _, value in self.read}


class Host:
    """A process with consumers of one client."""

    def __init__(self, kind: str, bootstrap: str) -> None:
        self.kind = kind
        self.bootstrap = bootstrap
        self.clients: dict[str, Client] = {}
        self._process: asyncio.subprocess.Process
        self._reader_task: asyncio.Task[None]
        self._changed = asyncio.Condition()
        self._failure: str | None = None

    async def open(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.clients.host", self.kind,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=2**20,
        )  # fmt: skip
        self._reader_task = asyncio.create_task(self._read_events())

    async def start(
        self,
        name: str,
        group: str,
        topic: str,
        *,
        strategy: str,
        instance_id: str | None = None,
        session_timeout_ms: int = 30_000,
        poll_ms: int = 50,
    ) -> Client:
        """``poll_ms`` is for kafka-python; the other clients report an assignment only between two polls."""
        client = self.clients[name] = Client(name=name)
        config = {
            "bootstrap": self.bootstrap,
            "group": group,
            "topic": topic,
            "strategy": strategy,
            "instance_id": instance_id,
            "session_timeout_ms": session_timeout_ms,
            "heartbeat_interval_ms": 300,
            "metadata_age_ms": 1000,
            "poll_ms": poll_ms,
        }
        await self._send_command({"do": "start", "member": name, "config": config})
        return client

    async def commit(self, client: Client) -> None:
        """Commit the offsets of all messages that the consumer has read."""
        before = client.commits
        await self._send_command({"do": "commit", "member": client.name})
        await self.until(lambda: client.commits > before, f"{client.name} commits")

    async def stop(self, client: Client) -> None:
        """Close the consumer: a dynamic member leaves the group."""
        await self._send_command({"do": "stop", "member": client.name})
        await self.until(lambda: client.is_stopped, f"{client.name} stops")

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(DEADLINE_S), self._changed:
                await self._changed.wait_for(lambda: self._failure is not None or condition())
        except TimeoutError:
            raise AssertionError(f"not within {DEADLINE_S} s: {what}; {self.clients}") from None
        assert self._failure is None, self._failure

    async def kill(self) -> None:
        """Kill the process, like a power failure: the sockets close without a LeaveGroup."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self._reader_task
        assert self._process.stdin is not None
        self._process.stdin.close()
        # asyncio closes the pipes behind the transport one iteration of the event loop later.
        await asyncio.sleep(0)

    async def _send_command(self, command: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        await self._process.stdin.drain()

    async def _read_events(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self._apply_event(json.loads(line))
            async with self._changed:
                self._changed.notify_all()

    def _apply_event(self, event: dict[str, Any]) -> None:
        client = self.clients[event["member"]]
        match event["event"]:
            case "assigned":
                client.partitions, client.member_id = event["partitions"], event["member_id"]
                client.assignments += 1
            case "read":
                client.read += [(partition, offset, value) for partition, offset, value in event["messages"]]
            case "committed":
                client.commits += 1
            case "stopped":
                client.is_stopped = True
            case "failed":
                self._failure = f"{self.kind} {client.name}: {event['error']}"
            case unknown:
                raise ValueError(f"no such event: {unknown}")


OpenHost = Callable[[str], Awaitable[Host]]


@pytest.fixture
async def open_host(bootstrap: str) -> AsyncIterator[OpenHost]:
    """Starts processes with consumers of a client; the fixture kills the remaining ones at the end."""
    hosts: list[Host] = []

    async def opened(kind: str) -> Host:
        hosts.append(Host(kind, bootstrap))
        await hosts[-1].open()
        return hosts[-1]

    yield opened
    for host in hosts:
        await host.kill()


@pytest.fixture(params=sorted(STRATEGIES))
async def host(request: pytest.FixtureRequest, open_host: OpenHost) -> Host:
    """A process of each client."""
    return await open_host(request.param)


class Topic:
    """A topic of the test's own, accessed with another client than those under test."""

    def __init__(self, bootstrap: str, partitions: int) -> None:
        self.name = f"t-{uuid.uuid4()}"
        self.partitions = partitions
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        self.admin.create_topics([NewTopic(self.name, partitions, 1)])[self.name].result(DEADLINE_S)

    def write(self, first: int, count: int) -> set[str]:
        """``count`` messages from number ``first`` on, over all partitions in turn; their values."""
        values = {str(number) for number in range(first, first + count)}
        refused: list[object] = []

        def delivered(error: object, _: object) -> None:
            if error is not None:
                refused.append(error)

        for number in range(first, first + count):
            self._producer.produce(self.name, str(number), partition=number % self.partitions, on_delivery=delivered)
        assert self._producer.flush(DEADLINE_S) == 0
        assert refused == []
        return values

    def grow(self, partitions: int) -> None:
        self.admin.create_partitions([NewPartitions(self.name, partitions)])[self.name].result(DEADLINE_S)
        self.partitions = partitions
        # A producer refuses messages for partitions that its metadata does not contain.
        deadline = time.monotonic() + DEADLINE_S
        while len(self._producer.list_topics(self.name, DEADLINE_S).topics[self.name].partitions) < partitions:
            assert time.monotonic() < deadline, f"the producer's metadata does not contain {partitions} partitions"
            time.sleep(0.02)

    def lag(self, group: str) -> int:
        """The number of messages after the group's committed offsets."""
        from confluent_kafka import ConsumerGroupTopicPartitions

        wanted = [ConsumerGroupTopicPartitions(group, [TopicPartition(self.name, n) for n in range(self.partitions)])]
        committed = self.admin.list_consumer_group_offsets(wanted)[group].result(DEADLINE_S)
        offsets = defaultdict(int, {one.partition: max(one.offset, 0) for one in committed.topic_partitions})
        ends = self.admin.list_offsets(
            {TopicPartition(self.name, number): OffsetSpec.latest() for number in range(self.partitions)}
        )
        return sum(end.result(DEADLINE_S).offset - offsets[one.partition] for one, end in ends.items())


@pytest.fixture
def make_topic(bootstrap: str) -> Callable[[int], Topic]:
    return lambda partitions: Topic(bootstrap, partitions)
