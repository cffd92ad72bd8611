"""Two workers' memberships, their driver and all, over TCP."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from coterie.engine.lease import Lease
from coterie.herder.seams import Membership
from coterie.kafka.coordinator import KafkaCoordinator
from coterie.member.classic.machine import step
from coterie.member.classic.state import Member, MemberSettings
from coterie.nouns.ids import ConfigOffset, GroupId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, ConnectorName, Jobs
from coterie.nouns.membership import (
    Assigned,
    AssignmentWanted,
    Computed,
    Install,
    Lost,
    MemberAssignment,
    MembershipEvent,
    MemberStateChanged,
    ProvedUntil,
    Rejoin,
    Subscribe,
)
from coterie.wire.connect import RoundResult
from coterie.worker.inbox import now_ms
from coterie.worker.membership import GroupMembership
from tests.kafka.embedded_broker import EmbeddedBroker

DEADLINE_S = 60


class Worker:
    """As much of a herder as a membership needs: a leader that gives every member the connector of its name."""

    def __init__(self, membership: Membership, url: WorkerUrl) -> None:
        self.membership = membership
        self.url = url
        self.events: list[MembershipEvent] = []

    async def until(self, wanted: Callable[[MembershipEvent], bool]) -> MembershipEvent:
        """Take events, the leader's duty among them, up to the ``wanted`` one."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                event = await self.membership.next_event()
                self.events.append(event)
                if isinstance(event, AssignmentWanted):
                    self._compute(event)
                if isinstance(event, Assigned):
                    self.membership.order(Subscribe(config_offset=ConfigOffset(7), owned=event.jobs))
                if wanted(event):
                    return event

    async def assigned_among(self, members: int) -> Assigned:
        """The assignment of the round in which there are so many members."""
        event = await self.until(
            lambda event: isinstance(event, Assigned) and RoundResult.of(event.token).delay_ms == members
        )
        assert isinstance(event, Assigned)
        return event

    def _compute(self, wanted: AssignmentWanted) -> None:
        computed = Computed(
            config_offset=ConfigOffset(7),
            assignments={
                member: MemberAssignment(assigned=Jobs.of([ConnectorName(report.url)]))
                for member, report in wanted.members.items()
            },
            delay_ms=len(wanted.members),  # tells the test which round it is
        )
        self.membership.order(Install(token=wanted.token, computed=computed))


@asynccontextmanager
async def worker(
    bootstrap: str, group_id: GroupId, name: str, *, session_timeout_ms: int = 6_000
) -> AsyncIterator[Worker]:
    settings = MemberSettings(
        group_id=group_id,
        url=WorkerUrl(f"http://{name}:8083/"),
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=20_000,
        heartbeat_interval_ms=200,
    )
    coordinator = KafkaCoordinator(
        [bootstrap], client_id=name, request_timeout_ms=session_timeout_ms // 3, parked_timeout_ms=20_000
    )
    membership = GroupMembership(step, Member(settings), coordinator)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(membership.run())
        membership.order(Subscribe(config_offset=ConfigOffset(7), owned=NO_JOBS))
        yield Worker(membership, settings.url)
        running.cancel()


def sent_at_ms(proved: ProvedUntil) -> int:
    """When the heartbeat was sent."""
    return proved.until_ms - Lease(proved.session_timeout_ms).proved_ms


def _beat_after(at_ms: int) -> Callable[[MembershipEvent], bool]:
    return lambda event: isinstance(event, ProvedUntil) and sent_at_ms(event) > at_ms


@pytest.fixture
def group_id() -> GroupId:
    return GroupId(f"group-{uuid.uuid4().hex[:8]}")


async def test_two_workers_meet_and_the_one_left_learns_of_it(bootstrap: str, group_id: GroupId) -> None:
    async with worker(bootstrap, group_id, "first") as first:
        alone = await first.assigned_among(1)
        assert alone.jobs == Jobs.of([ConnectorName("http://first:8083/")])
        assert any(isinstance(event, MemberStateChanged) for event in first.events)
        async with worker(bootstrap, group_id, "second") as second:
            async with asyncio.TaskGroup() as tasks:
                of_first = tasks.create_task(first.assigned_among(2))
                of_second = tasks.create_task(second.assigned_among(2))
            assert of_first.result().epoch == of_second.result().epoch > alone.epoch
            assert of_second.result().jobs == Jobs.of([ConnectorName("http://second:8083/")])
            async with asyncio.timeout(DEADLINE_S):
                await second.membership.leave("scaled in")
            await first.assigned_among(1)
    assert not any(isinstance(event, Lost) for event in first.events + second.events)


async def test_a_wish_to_rejoin_begins_a_round(bootstrap: str, group_id: GroupId) -> None:
    async with worker(bootstrap, group_id, "only") as only:
        before = await only.assigned_among(1)
        only.membership.order(Rejoin(reason="there are other connectors"))
        after = await only.assigned_among(1)
        assert after.epoch > before.epoch
        assert after.member_id == before.member_id


@pytest.mark.processes
async def test_a_broker_killed_and_back_within_the_session_stops_nothing(
    mortal_broker: EmbeddedBroker, group_id: GroupId
) -> None:
    bootstrap = mortal_broker.bootstrap_servers
    async with worker(bootstrap, group_id, "only", session_timeout_ms=30_000) as only:
        await only.assigned_among(1)
        for _ in range(3):
            await only.until(lambda event: isinstance(event, ProvedUntil))
            only.events.clear()
            await asyncio.to_thread(mortal_broker.kill)
            await asyncio.to_thread(mortal_broker.start)
            await only.until(_beat_after(now_ms()))
            assert all(isinstance(event, ProvedUntil) for event in only.events), only.events


@pytest.mark.processes
async def test_a_broker_that_stays_away_ends_the_membership_within_the_session(
    mortal_broker: EmbeddedBroker, group_id: GroupId
) -> None:
    async with worker(mortal_broker.bootstrap_servers, group_id, "only", session_timeout_ms=3_000) as only:
        await only.assigned_among(1)
        await asyncio.to_thread(mortal_broker.kill)
        lost = await only.until(lambda event: isinstance(event, Lost))
        assert isinstance(lost, Lost)
        assert "coordinator" in lost.reason
        # What it owned has stopped: it joins again as soon as there is somebody to ask.
        only.membership.order(Subscribe(config_offset=ConfigOffset(7), owned=NO_JOBS))
        await asyncio.to_thread(mortal_broker.start)
        await only.assigned_among(1)
