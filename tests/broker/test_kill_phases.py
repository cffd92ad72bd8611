"""The broker is killed -9 at each record that a rebalance writes and in each of its phases, during offset commits.

Each time it restarts on the same port and data. Members only repeat their requests, the group settles, and nothing
that was acknowledged is lost.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from coterie.engine.lease import LeaseDurations
from coterie.kafka.coordinator import KafkaClassicCoordinatorClient
from coterie.member.classic.machine import step
from coterie.member.classic.messages import Request, Response, Timer
from coterie.member.classic.state import Member, MemberSettings
from coterie.nouns.ids import ConfigOffset, GroupId, InstanceId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, ConnectorName, Jobs
from coterie.nouns.membership import (
    Assigned,
    AssignmentChange,
    AssignmentsRequested,
    ComputedAssignments,
    LeaseRenewed,
    MembershipEvent,
    MembershipLost,
    Rejoin,
    SendAssignments,
    SetWorkerState,
)
from coterie.worker.inbox import now_ms
from coterie.worker.membership import GroupMembership
from tests.broker.dying import DEADLINE_S, NEVER, CrashingBroker, committing, start, wait_killed

pytestmark = pytest.mark.processes


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[CrashingBroker]:
    """A broker that is not started yet."""
    broker = CrashingBroker(tmp_path / "data")
    yield broker
    broker.stop()


# -- members ----------------------------------------------------------------------------------------------------------


def sent_at_ms(proved: LeaseRenewed) -> int:
    """When the heartbeat was sent."""
    return proved.lease_ends_ms - LeaseDurations(proved.session_timeout_ms).duration_ms


class Worker:
    """The part of a herder that a membership needs; as leader it assigns to every member the connector of its name."""

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
        """Whether it has an assignment, has not joined since, and has sent a successful heartbeat after ``at_ms``."""
        last = self.events[-1]
        *_, news = [event for event in self.events if not isinstance(event, LeaseRenewed)]
        return isinstance(news, Assigned) and isinstance(last, LeaseRenewed) and sent_at_ms(last) > at_ms

    async def run(self) -> None:
        while True:
            event = await self.membership.next_event()
            self.events.append(event)
            if isinstance(event, AssignmentsRequested):
                await asyncio.sleep(0.05)  # its followers must be in the sync phase before it ends
                self._compute(event)
            self.changed.set()

    def request_rebalance(self) -> None:
        """Change this worker's metadata, so that its join starts a rebalance even if it does not lead."""
        self._offset += 1
        self.membership.order(SetWorkerState(config_offset=ConfigOffset(self._offset), owned=NO_JOBS))
        self.membership.order(Rejoin(reason="its config offset has changed"))

    def _compute(self, requested: AssignmentsRequested) -> None:
        assignments = {
            member: AssignmentChange(assigned=Jobs.of([ConnectorName(report.url)]))
            for member, report in requested.members.items()
        }
        end = ConfigOffset(len(requested.members))  # identifies the rebalance for the test
        self.membership.order(
            SendAssignments(
                token=requested.token, computed=ComputedAssignments(config_offset=end, assignments=assignments)
            )
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
    coordinator = KafkaClassicCoordinatorClient(
        [f"127.0.0.1:{port}"], client_id=name, request_timeout_ms=20_000, parked_timeout_ms=60_000
    )
    membership = GroupMembership(step, Member(settings), coordinator)
    one = Worker(membership, settings.url)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(membership.run())
        listening = tasks.create_task(one.run())
        membership.order(SetWorkerState(config_offset=ConfigOffset(0), owned=NO_JOBS))
        yield one
        running.cancel()
        listening.cancel()


async def wait_settled(*workers: Worker) -> int:
    """Wait until all are in one generation, each with its own connector, and have sent a new heartbeat."""
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


def check_memberships(*workers: Worker) -> None:
    """Check that no worker lost its membership and that no generation was assigned twice."""
    members: dict[int, ConfigOffset] = {}
    leaders: dict[int, str] = {}
    for one in workers:
        assert not [event for event in one.events if isinstance(event, MembershipLost)]
        generations = [event.epoch for event in one.assignments]
        assert generations == sorted(generations)
        for event in one.assignments:
            number, leader = event.config_offset, event.leader
            assert members.setdefault(event.epoch, number) == number
            assert leader is not None
            assert leaders.setdefault(event.epoch, leader) == leader


# -- tests ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "point", ["initial", "joined before", "joined durable", "syncing", "assigned before", "assigned durable"]
)
async def test_a_new_group_settles_although_its_broker_is_killed(broker: CrashingBroker, point: str) -> None:
    await start(broker, point)
    with committing(broker):
        async with (
            worker(broker.port, "one") as one,
            worker(broker.port, "two") as two,
            worker(broker.port, "three", instance="three") as three,
        ):
            await wait_killed(broker)
            await start(broker, NEVER)
            await wait_settled(one, two, three)
            check_memberships(one, two, three)


async def test_a_group_settles_although_its_broker_is_killed_in_each_phase_of_a_rebalance(
    broker: CrashingBroker,
) -> None:
    points = ("stable", "joining", "joined before", "joined durable", "syncing", "assigned before", "assigned durable")
    await start(broker, NEVER)
    with committing(broker):
        async with (
            worker(broker.port, "one") as one,
            worker(broker.port, "two") as two,
            worker(broker.port, "three", instance="three") as three,
        ):
            generation = await wait_settled(one, two, three)
            triggers = [one.request_rebalance, two.request_rebalance, three.request_rebalance]
            for point in points:
                await start(broker, point)
                await wait_killed(broker, triggers=() if point == "stable" else triggers)
            await start(broker, NEVER)
            assert await wait_settled(one, two, three) > generation
            check_memberships(one, two, three)


@pytest.mark.parametrize("point", ["assigned before", "assigned durable"])
async def test_a_static_member_keeps_its_assignment_although_the_broker_is_killed_as_it_returns(
    broker: CrashingBroker, point: str
) -> None:
    await start(broker, NEVER)
    with committing(broker):
        async with worker(broker.port, "one") as one, worker(broker.port, "two") as two:
            async with worker(broker.port, "three", instance="three") as three:
                generation = await wait_settled(one, two, three)
            await start(broker, point)
            async with worker(broker.port, "three", instance="three") as back:
                await wait_killed(broker)
                await start(broker, NEVER)
                await wait_settled(one, two, back)
                # It gets its old assignment at once; if it leads, it requests a rebalance afterwards.
                assert back.assignments[0].epoch == generation
                check_memberships(one, two, three, back)


@pytest.mark.parametrize("point", ["committed before", "committed durable"])
async def test_a_group_stays_in_its_generation_when_the_broker_is_killed_during_an_offset_commit(
    broker: CrashingBroker, point: str
) -> None:
    await start(broker, NEVER)
    with committing(broker):
        async with worker(broker.port, "one") as one, worker(broker.port, "two", instance="two") as two:
            generation = await wait_settled(one, two)
            await start(broker, point)
            await wait_killed(broker)
            await start(broker, NEVER)
            assert await wait_settled(one, two) == generation
            check_memberships(one, two)
