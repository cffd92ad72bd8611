"""The broker killed -9 at each record that a rebalance writes and in each of its phases, with offsets on their way.

Each time it comes back on the same port and data. Members notice no more than that they ask again, the group settles,
and nothing that was acknowledged is lost.
"""

import asyncio
import itertools
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer

from coterie.kafka.coordinator import KafkaCoordinator
from coterie.member.state import MemberSettings
from coterie.nouns.ids import ConfigOffset, Generation, GroupId, InstanceId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, ConnectorName, Jobs
from coterie.wire.connect import WorkerAssignment
from coterie.wire.connect_events import (
    AssignmentReceived,
    AssignmentWanted,
    HeartbeatAnswered,
    MembershipEvent,
    MembershipLost,
)
from coterie.wire.errors import ErrorCode
from coterie.worker.inbox import now_ms
from coterie.worker.membership import ClassicMembership
from tests.broker.conftest import RawClient, raw_client

pytestmark = pytest.mark.processes

DEADLINE_S = 90
COMMIT, FETCH, CREATE = 8, 9, 19
TOPIC = "t"
PARTITIONS = 4
NEVER = "never"


class DyingBroker:
    """A broker that dies at one point after the other: see `dying_broker`."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._process: subprocess.Popen[str] | None = None
        self.port = 0

    def start(self, point: str) -> None:
        program = Path(__file__).with_name("dying_broker.py")
        with (self._data.parent / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(program), str(self._data), str(self.port), point],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        assert self._process.stdout is not None
        port = self._process.stdout.readline()
        assert port, f"the broker did not start; see {log.name}: {Path(log.name).read_text()[-2000:]}"
        self.port = int(port)

    @property
    def is_dead(self) -> bool:
        assert self._process is not None
        return self._process.poll() is not None

    def bury(self) -> int:
        """How it ended; it is killed where it still lives."""
        if self._process is None:
            return 0
        self._process.kill()
        code = self._process.wait(DEADLINE_S)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process = None
        return code


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[DyingBroker]:
    """Not started yet."""
    broker = DyingBroker(tmp_path / "data")
    yield broker
    broker.bury()


# -- who commits all the while ----------------------------------------------------------------------------------------


class Committer(threading.Thread):
    """Commits 1, 2, 3, … for a group of its own; looks after each death whether what was acknowledged is there."""

    def __init__(self, port: int) -> None:
        super().__init__(name="committer")
        self._port = port
        self._enough = threading.Event()
        self.sent = 0
        self.acknowledged = 0
        self.failures: list[str] = []

    def run(self) -> None:
        while not self._enough.is_set():
            try:
                with raw_client(self._port) as client:
                    self._compare(client)
                    while not self._enough.wait(0.01):
                        self.sent += 1
                        error = self._commit(client, self.sent)
                        if error is ErrorCode.none:
                            self.acknowledged = self.sent
                        else:
                            self.failures.append(f"offset {self.sent}: {error.name}")
            except OSError:
                self._enough.wait(0.02)  # the broker is away

    def stop(self) -> None:
        self._enough.set()
        self.join(DEADLINE_S)
        assert not self.is_alive()
        with raw_client(self._port) as client:
            self._compare(client)
        assert self.acknowledged > 0
        assert self.failures == []

    def _commit(self, client: RawClient, offset: int) -> ErrorCode:
        partition = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
        answer = client.ask(
            COMMIT, 9, group_id="reader", generation_id_or_member_epoch=-1, member_id="", group_instance_id=None,
            topics=[{"name": TOPIC, "partitions": [partition | {"committed_leader_epoch": -1}]}],
        )  # fmt: skip
        error: ErrorCode = answer.topics[0].partitions[0].error_code
        return error

    def _compare(self, client: RawClient) -> None:
        topics = [{"name": TOPIC, "partition_indexes": [0]}]
        answer = client.ask(
            FETCH, 9, groups=[{"group_id": "reader", "member_id": None, "topics": topics}], require_stable=True
        )
        kept = max(answer.groups[0].topics[0].partitions[0].committed_offset, 0)
        if not self.acknowledged <= kept <= self.sent:
            self.failures.append(f"{self.acknowledged} was acknowledged, {kept} is kept")


def create_topic(broker: DyingBroker) -> None:
    wanted = {"name": TOPIC, "num_partitions": PARTITIONS, "replication_factor": 1, "assignments": (), "configs": ()}
    with raw_client(broker.port) as client:
        client.ask(CREATE, 7, topics=[wanted], timeout=30_000, validate_only=False)


@contextmanager
def committing(broker: DyingBroker) -> Iterator[None]:
    create_topic(broker)
    committer = Committer(broker.port)
    committer.start()
    try:
        yield
    finally:
        committer.stop()


# -- members ----------------------------------------------------------------------------------------------------------


class Worker:
    """As much of a herder as a membership needs: a leader that gives every member the connector of its name."""

    def __init__(self, membership: ClassicMembership, url: WorkerUrl) -> None:
        self.membership = membership
        self.url = url
        self.events: list[MembershipEvent] = []
        self.changed = asyncio.Event()
        self._offset = 0

    @property
    def assignments(self) -> list[AssignmentReceived]:
        return [event for event in self.events if isinstance(event, AssignmentReceived)]

    def is_settled_since(self, at_ms: int) -> bool:
        """It has an assignment, has not joined since, and was heard of after ``at_ms``."""
        last = self.events[-1]
        *_, news = [event for event in self.events if not isinstance(event, HeartbeatAnswered)]
        return isinstance(news, AssignmentReceived) and isinstance(last, HeartbeatAnswered) and last.sent_at_ms > at_ms

    async def run(self) -> None:
        while True:
            event = await self.membership.next_event()
            self.events.append(event)
            if isinstance(event, AssignmentWanted):
                await asyncio.sleep(0.05)  # its followers are in the sync phase before it ends
                self._compute(event)
            self.changed.set()

    def want_a_round(self) -> None:
        """What this worker says of itself has changed, so its join begins a round, leader or not."""
        self._offset += 1
        self.membership.subscribe(config_offset=ConfigOffset(self._offset), owned=NO_JOBS)
        self.membership.rejoin("it has read on")

    def _compute(self, wanted: AssignmentWanted) -> None:
        assignments = {
            member: WorkerAssignment(
                leader=wanted.member_id,
                leader_url=self.url,
                config_offset=ConfigOffset(len(wanted.members)),  # tells the test which round it is
                assigned=Jobs.of([ConnectorName(metadata.url)]),
            )
            for member, metadata in wanted.members.items()
        }
        self.membership.install(wanted.generation, assignments)


@asynccontextmanager
async def worker(port: int, name: str, *, instance: str | None = None) -> AsyncIterator[Worker]:
    settings = MemberSettings(
        group_id=GroupId("fleet"),
        instance_id=None if instance is None else InstanceId(instance),
        url=WorkerUrl(f"http://{name}:8083/"),
        session_timeout_ms=60_000,
        rebalance_timeout_ms=60_000,
        heartbeat_interval_ms=100,
        retry_backoff_ms=50,
        retry_backoff_max_ms=200,
    )
    coordinator = KafkaCoordinator(
        [f"127.0.0.1:{port}"], client_id=name, request_timeout_ms=20_000, rebalance_timeout_ms=60_000
    )
    membership = ClassicMembership(settings, coordinator)
    one = Worker(membership, settings.url)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(membership.run())
        listening = tasks.create_task(one.run())
        membership.subscribe(config_offset=ConfigOffset(0), owned=NO_JOBS)
        yield one
        running.cancel()
        listening.cancel()


async def settled(*workers: Worker) -> Generation:
    """Until all of them are in one generation, each with its own connector, and have been heard of from now on."""
    began_at_ms = now_ms()
    async with asyncio.timeout(DEADLINE_S):
        while True:
            last = [one.assignments[-1] for one in workers if one.assignments]
            if (
                len(last) == len(workers)
                and len({event.generation for event in last}) == 1
                and all(event.assignment.config_offset == len(workers) for event in last)
                and all(one.is_settled_since(began_at_ms) for one in workers)
            ):
                break
            for one in workers:
                one.changed.clear()
            waiting = [asyncio.create_task(one.changed.wait()) for one in workers]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in waiting:
                task.cancel()
    for one, event in zip(workers, last, strict=True):
        assert event.assignment.assigned == Jobs.of([ConnectorName(one.url)])
    return last[0].generation


def check(*workers: Worker) -> None:
    """Nobody lost its place, and no generation was ever given out twice."""
    members: dict[Generation, ConfigOffset] = {}
    leaders: dict[Generation, str] = {}
    for one in workers:
        assert not [event for event in one.events if isinstance(event, MembershipLost)]
        generations = [event.generation for event in one.assignments]
        assert generations == sorted(generations)
        for event in one.assignments:
            number, leader = event.assignment.config_offset, event.assignment.leader
            assert members.setdefault(event.generation, number) == number
            assert leader is not None
            assert leaders.setdefault(event.generation, leader) == leader


async def dies(broker: DyingBroker, poke: Sequence[Worker] = ()) -> None:
    """It dies at its point, for the round that one of ``poke`` wants."""
    async with asyncio.timeout(DEADLINE_S):
        for number in itertools.count():
            if broker.is_dead:
                break
            if poke and number % 40 == 0:
                poke[number // 40 % len(poke)].want_a_round()
            await asyncio.sleep(0.05)
    assert broker.bury() == -signal.SIGKILL


async def start(broker: DyingBroker, point: str) -> None:
    """In place of the life before, if there was one."""
    broker.bury()
    await asyncio.to_thread(broker.start, point)


# -- the plays --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "point", ["initial", "joined before", "joined durable", "syncing", "assigned before", "assigned durable"]
)
async def test_a_new_group_settles_though_its_broker_dies_under_it(broker: DyingBroker, point: str) -> None:
    await start(broker, point)
    with committing(broker):
        async with (
            worker(broker.port, "one") as one,
            worker(broker.port, "two") as two,
            worker(broker.port, "three", instance="three") as three,
        ):
            await dies(broker)
            await start(broker, NEVER)
            await settled(one, two, three)
            check(one, two, three)


async def test_a_group_goes_on_though_its_broker_dies_in_each_phase_of_a_round(broker: DyingBroker) -> None:
    points = ("stable", "joining", "joined before", "joined durable", "syncing", "assigned before", "assigned durable")
    await start(broker, NEVER)
    with committing(broker):
        async with (
            worker(broker.port, "one") as one,
            worker(broker.port, "two") as two,
            worker(broker.port, "three", instance="three") as three,
        ):
            generation = await settled(one, two, three)
            for point in points:
                await start(broker, point)
                await dies(broker, poke=() if point == "stable" else (one, two, three))
            await start(broker, NEVER)
            assert await settled(one, two, three) > generation
            check(one, two, three)


@pytest.mark.parametrize("point", ["assigned before", "assigned durable"])
async def test_a_static_member_comes_back_though_the_broker_dies_as_it_does(broker: DyingBroker, point: str) -> None:
    await start(broker, NEVER)
    with committing(broker):
        async with worker(broker.port, "one") as one, worker(broker.port, "two") as two:
            async with worker(broker.port, "three", instance="three") as three:
                generation = await settled(one, two, three)
            await start(broker, point)
            async with worker(broker.port, "three", instance="three") as back:
                await dies(broker)
                await start(broker, NEVER)
                await settled(one, two, back)
                # What it had at once; where it leads, it asks for a round afterwards.
                assert back.assignments[0].generation == generation
                check(one, two, three, back)


@pytest.mark.parametrize("point", ["committed before", "committed durable"])
async def test_a_group_does_not_notice_that_the_broker_dies_over_an_offset(broker: DyingBroker, point: str) -> None:
    await start(broker, NEVER)
    with committing(broker):
        async with worker(broker.port, "one") as one, worker(broker.port, "two", instance="two") as two:
            generation = await settled(one, two)
            await start(broker, point)
            await dies(broker)
            await start(broker, NEVER)
            assert await settled(one, two) == generation
            check(one, two)


# -- a client that is not ours ----------------------------------------------------------------------------------------


class Reader(threading.Thread):
    """A consumer of librdkafka that commits each record that it has read, and waits for that to be acknowledged."""

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
                # Not acknowledged: the broker is away, or the partition is another's by now.
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


@pytest.mark.interop
async def test_consumers_of_another_client_read_and_commit_on_through_the_same_deaths(broker: DyingBroker) -> None:
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
            await dies(broker)
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
    kept = {partition: committed(broker, partition) for partition in range(PARTITIONS)}
    for reader in readers:
        assert all(kept[partition] >= offset for partition, offset in reader.acknowledged.items())


def produce(producer: Producer, delivered: set[tuple[int, int]]) -> None:
    def on_delivery(error: Any, message: Any) -> None:
        assert error is None
        delivered.add((message.partition(), message.offset()))

    for number in range(100):
        producer.produce(TOPIC, b"value", partition=number % PARTITIONS, on_delivery=on_delivery)
    producer.poll(0)


def committed(broker: DyingBroker, partition: int) -> int:
    with raw_client(broker.port) as client:
        topics = [{"name": TOPIC, "partition_indexes": [partition]}]
        answer = client.ask(
            FETCH, 9, groups=[{"group_id": "fleet", "member_id": None, "topics": topics}], require_stable=True
        )
    offset: int = answer.groups[0].topics[0].partitions[0].committed_offset
    return offset
