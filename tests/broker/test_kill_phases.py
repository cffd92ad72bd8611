"""The broker killed -9 at each record that a rebalance writes and in each of its phases, with offsets on their way.

Each time it comes back on the same port and data. Members notice no more than that they ask again, the group settles,
and nothing that was acknowledged is lost.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from coterie.engine.lease import Lease
from coterie.kafka.coordinator import KafkaCoordinator
from coterie.member.classic.machine import step
from coterie.member.classic.messages import Request, Response, Timer
from coterie.member.classic.state import Member, MemberSettings
from coterie.nouns.ids import ConfigOffset, GroupId, InstanceId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, ConnectorName, Jobs
from coterie.nouns.membership import (
    Assigned,
    AssignmentWanted,
    Computed,
    Install,
    Lost,
    MemberAssignment,
    MembershipEvent,
    ProvedUntil,
    Rejoin,
    Subscribe,
)
from coterie.worker.inbox import now_ms
from coterie.worker.membership import GroupMembership
from tests.broker.dying import DEADLINE_S, NEVER, DyingBroker, committing, dies, start

pytestmark = pytest.mark.processes


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[DyingBroker]:
    """Not started yet."""
    broker = DyingBroker(tmp_path / "data")
    yield broker
    broker.bury()


# -- members ----------------------------------------------------------------------------------------------------------


def sent_at_ms(proved: ProvedUntil) -> int:
    """When the heartbeat was sent."""
    return proved.until_ms - Lease(proved.session_timeout_ms).proved_ms


class Worker:
    """As much of a herder as a membership needs: a leader that gives every member the connector of its name."""

    def __init__(self, membership: GroupMembership[Member, Request, Response, Timer], url: WorkerUrl) -> None:
        self.membership = membership
        self.url = url
        self.events: list[MembershipEvent] = []
        self.changed = asyncio.Event()
        self._offset = 0

    @property
    def assignments(self) -> list[Assigned]:
        return [event for event in self.events if isinstance(event, Assigned)]

    def is_settled_since(self, at_ms: int) -> bool:
        """It has an assignment, has not joined since, and was heard of after ``at_ms``."""
        last = self.events[-1]
        *_, news = [event for event in self.events if not isinstance(event, ProvedUntil)]
        return isinstance(news, Assigned) and isinstance(last, ProvedUntil) and sent_at_ms(last) > at_ms

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
        self.membership.order(Subscribe(config_offset=ConfigOffset(self._offset), owned=NO_JOBS))
        self.membership.order(Rejoin(reason="it has read on"))

    def _compute(self, wanted: AssignmentWanted) -> None:
        assignments = {
            member: MemberAssignment(assigned=Jobs.of([ConnectorName(report.url)]))
            for member, report in wanted.members.items()
        }
        end = ConfigOffset(len(wanted.members))  # tells the test which round it is
        self.membership.order(
            Install(token=wanted.token, computed=Computed(config_offset=end, assignments=assignments))
        )


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
        [f"127.0.0.1:{port}"], client_id=name, request_timeout_ms=20_000, parked_timeout_ms=60_000
    )
    membership = GroupMembership(step, Member(settings), coordinator)
    one = Worker(membership, settings.url)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(membership.run())
        listening = tasks.create_task(one.run())
        membership.order(Subscribe(config_offset=ConfigOffset(0), owned=NO_JOBS))
        yield one
        running.cancel()
        listening.cancel()


async def settled(*workers: Worker) -> int:
    """Until all of them are in one generation, each with its own connector, and have been heard of from now on."""
    began_at_ms = now_ms()
    async with asyncio.timeout(DEADLINE_S):
        while True:
            last = [one.assignments[-1] for one in workers if one.assignments]
            if (
                len(last) == len(workers)
                and len({event.epoch for event in last}) == 1
                and all(event.config_offset == len(workers) for event in last)
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
        assert event.jobs == Jobs.of([ConnectorName(one.url)])
    return last[0].epoch


def check(*workers: Worker) -> None:
    """Nobody lost its place, and no generation was ever given out twice."""
    members: dict[int, ConfigOffset] = {}
    leaders: dict[int, str] = {}
    for one in workers:
        assert not [event for event in one.events if isinstance(event, Lost)]
        generations = [event.epoch for event in one.assignments]
        assert generations == sorted(generations)
        for event in one.assignments:
            number, leader = event.config_offset, event.leader
            assert members.setdefault(event.epoch, number) == number
            assert leader is not None
            assert leaders.setdefault(event.epoch, leader) == leader


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
            pokes = [one.want_a_round, two.want_a_round, three.want_a_round]
            for point in points:
                await start(broker, point)
                await dies(broker, poke=() if point == "stable" else pokes)
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
                assert back.assignments[0].epoch == generation
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
