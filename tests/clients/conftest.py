"""Consumers of three Kafka clients, hosted by processes, and the groups and topics that a test plays with."""

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
    """What is known of one hosted consumer."""

    name: str
    partitions: list[int] = field(default_factory=list)
    member_id: str = ""
    read: list[tuple[int, int, str]] = field(default_factory=list)
    """Partition, offset and value, in order."""
    assignments: int = 0
    """How often it was told another assignment than before."""
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
        self._listening: asyncio.Task[None]
        self._changed = asyncio.Condition()
        self._failure: str | None = None

    async def open(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.clients.host", self.kind,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=2**20,
        )  # fmt: skip
        self._listening = asyncio.create_task(self._listen())

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
        """``poll_ms`` is for kafka-python; the others tell of an assignment between two polls only."""
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
        await self._tell({"do": "start", "member": name, "config": config})
        return client

    async def commit(self, client: Client) -> None:
        """Commit all that it has read."""
        before = client.commits
        await self._tell({"do": "commit", "member": client.name})
        await self.until(lambda: client.commits > before, f"{client.name} commits")

    async def stop(self, client: Client) -> None:
        """Close it in good order: a dynamic member takes its leave."""
        await self._tell({"do": "stop", "member": client.name})
        await self.until(lambda: client.is_stopped, f"{client.name} stops")

    async def until(self, is_so: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(DEADLINE_S), self._changed:
                await self._changed.wait_for(lambda: self._failure is not None or is_so())
        except TimeoutError:
            raise AssertionError(f"not within {DEADLINE_S} s: {what}; {self.clients}") from None
        assert self._failure is None, self._failure

    async def kill(self) -> None:
        """As when the machine loses its power: the sockets close, and nobody says farewell."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self._listening
        assert self._process.stdin is not None
        self._process.stdin.close()
        # asyncio closes the pipes behind the transport a turn of the loop later.
        await asyncio.sleep(0)

    async def _tell(self, command: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        await self._process.stdin.drain()

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self._take(json.loads(line))
            async with self._changed:
                self._changed.notify_all()

    def _take(self, event: dict[str, Any]) -> None:
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
    """Starts processes with consumers of a client; those that are left at the end are killed."""
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
    """A topic of the test's own, seen by another client than those under test."""

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
        # A producer refuses what goes to partitions that it has not heard of.
        deadline = time.monotonic() + DEADLINE_S
        while len(self._producer.list_topics(self.name, DEADLINE_S).topics[self.name].partitions) < partitions:
            assert time.monotonic() < deadline, f"the producer does not hear of {partitions} partitions"
            time.sleep(0.02)

    def lag(self, group: str) -> int:
        """What the group has still to read, by what it has committed."""
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
