"""Two workers' memberships with their drivers, over TCP."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from coterie.engine.lease import LeaseDurations
from coterie.herder.seams import Membership
from coterie.kafka.coordinator import KafkaClassicCoordinatorClient
from coterie.member.classic.machine import step
from coterie.member.classic.state import Member, MemberSettings
from coterie.nouns.ids import ConfigOffset, GroupId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, ConnectorName, Jobs
from coterie.nouns.membership import (
    Assigned,
    AssignmentChange,
    AssignmentsRequested,
    ComputedAssignments,
    LeaseRenewed,
    MembershipEvent,
    MembershipLost,
    MemberStateChanged,
    Rejoin,
    SendAssignments,
    SetWorkerState,
)
from coterie.wire.connect import ClassicAssignmentDetails
from coterie.worker.inbox import now_ms
from coterie.worker.membership import GroupMembership
from tests.kafka.embedded_broker import EmbeddedBroker

DEADLINE_S = 60


class Worker:
    """The part of a herder that a membership needs; as leader it assigns to every member the connector of its name."""

    def __init__(self, membership: Membership, url: WorkerUrl) -> None:
        self.membership = membership
        self.url = url
        self.events: list[MembershipEvent] = []

    async def until(self, expected: Callable[[MembershipEvent], bool]) -> MembershipEvent:
        """Process events, including requests for assignments, up to the ``expected`` one."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                event = await self.membership.next_event()
                self.events.append(event)
                if isinstance(event, AssignmentsRequested):
                    self._compute(event)
                if isinstance(event, Assigned):
                    self.membership.order(SetWorkerState(config_offset=ConfigOffset(7), owned=event.jobs))
                if expected(event):
                    return event

    async def assigned_among(self, members: int) -> Assigned:
        """The assignment of a rebalance with this number of members."""
        event = await self.until(
            lambda event: (
                isinstance(event, Assigned)
                and ClassicAssignmentDetails.checked_instance(event.protocol_details).delay_ms == members
            )
        )
        assert isinstance(event, Assigned)
        return event

    def _compute(self, expected: AssignmentsRequested) -> None:
        computed = ComputedAssignments(
            config_offset=ConfigOffset(7),
            assignments={
                member: AssignmentChange(assigned=Jobs.of([ConnectorName(report.url)]))
                for member, report in expected.members.items()
            },
            delay_ms=len(expected.members),  # identifies the rebalance for the test
        )
        self.membership.order(SendAssignments(token=expected.token, computed=computed))


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
    coordinator = KafkaClassicCoordinatorClient(
        [bootstrap], client_id=name, request_timeout_ms=session_timeout_ms // 3, parked_timeout_ms=20_000
    )
    membership = GroupMembership(step, Member(settings), coordinator)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(membership.run())
        membership.order(SetWorkerState(config_offset=ConfigOffset(7), owned=NO_JOBS))
        yield Worker(membership, settings.url)
        running.cancel()


def sent_at_ms(proved: LeaseRenewed) -> int:
    """When the heartbeat was sent."""
    return proved.lease_ends_ms - LeaseDurations(proved.session_timeout_ms).duration_ms


def _beat_after(at_ms: int) -> Callable[[MembershipEvent], bool]:
    return lambda event: isinstance(event, LeaseRenewed) and sent_at_ms(event) > at_ms


@pytest.fixture
def group_id() -> GroupId:
    return GroupId(f"group-{uuid.uuid4().hex[:8]}")


async def test_two_workers_join_one_group_and_one_gets_all_when_the_other_leaves(
    bootstrap: str, group_id: GroupId
) -> None:
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
    assert not any(isinstance(event, MembershipLost) for event in first.events + second.events)


async def test_a_request_to_rejoin_starts_a_rebalance(bootstrap: str, group_id: GroupId) -> None:
    async with worker(bootstrap, group_id, "only") as only:
        before = await only.assigned_among(1)
        only.membership.order(Rejoin(reason="the connectors have changed"))
        after = await only.assigned_among(1)
        assert after.epoch > before.epoch
        assert after.member_id == before.member_id


@pytest.mark.processes
async def test_a_broker_that_restarts_within_the_session_stops_no_job(
    mortal_broker: EmbeddedBroker, group_id: GroupId
) -> None:
    bootstrap = mortal_broker.bootstrap_servers
    async with worker(bootstrap, group_id, "only", session_timeout_ms=30_000) as only:
        await only.assigned_among(1)
        for _ in range(3):
            await only.until(lambda event: isinstance(event, LeaseRenewed))
            only.events.clear()
            await asyncio.to_thread(mortal_broker.kill)
            await asyncio.to_thread(mortal_broker.start)
            await only.until(_beat_after(now_ms()))
            assert all(isinstance(event, LeaseRenewed) for event in only.events), only.events


@pytest.mark.processes
async def test_an_unreachable_broker_ends_the_membership_within_the_session(
    mortal_broker: EmbeddedBroker, group_id: GroupId
) -> None:
    async with worker(mortal_broker.bootstrap_servers, group_id, "only", session_timeout_ms=3_000) as only:
        await only.assigned_among(1)
        await asyncio.to_thread(mortal_broker.kill)
        lost = await only.until(lambda event: isinstance(event, MembershipLost))
        assert isinstance(lost, MembershipLost)
        assert "coordinator" in lost.reason
        # Its jobs have stopped: it rejoins as soon as a broker can be reached.
        only.membership.order(SetWorkerState(config_offset=ConfigOffset(7), owned=NO_JOBS))
        await asyncio.to_thread(mortal_broker.start)
        await only.assigned_among(1)
