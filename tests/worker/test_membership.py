import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeAlias

import pytest

from coterie.broker.server import running
from coterie.broker.settings import BrokerSettings
from coterie.kafka.coordinator import KafkaCoordinator
from coterie.member.classic.machine import step
from coterie.member.classic.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    LeaveResponse,
    Request,
    Response,
    SyncRequest,
    SyncResponse,
    Timer,
)
from coterie.member.classic.state import Member, MemberSettings
from coterie.nouns.errors import WorldError
from coterie.nouns.ids import ConfigOffset, Generation, GroupId, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.membership import (
    Assigned,
    AssignmentWanted,
    Computed,
    Install,
    MemberAssignment,
    MembershipEvent,
    MembershipRefused,
    ProvedUntil,
    Rejoin,
    Subscribe,
)
from coterie.wire.errors import ErrorCode
from coterie.worker.membership import GroupMembership
from tests.worker import counter
from tests.worker.counter import CountingCoordinator

Lonely: TypeAlias = GroupMembership[Member, Request, Response, Timer]

DEADLINE_S = 30
ME = MemberId("worker-1")


class LonelyCoordinator:
    """A coordinator whose group has one member, its leader."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.unreachable_times = 0
        self.silent_to: tuple[type[Request], ...] = ()
        self.given_up: list[Request] = []
        self.closed = False
        self.beats = asyncio.Semaphore(0)
        """Released by each heartbeat."""

    async def ask(self, request: Request) -> Response:
        self.asked.append(request)
        if self.unreachable_times > 0:
            self.unreachable_times -= 1
            raise WorldError("nobody is there")
        if isinstance(request, self.silent_to):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.given_up.append(request)
                raise
        match request:
            case JoinRequest(member_id=""):
                return JoinResponse(error=ErrorCode.member_id_required, member_id=ME)
            case JoinRequest():
                return JoinResponse(
                    error=ErrorCode.none,
                    generation=Generation(1),
                    protocol=request.protocols[0][0],
                    leader=ME,
                    member_id=ME,
                    members={ME: request.protocols[0][1]},
                )
            case SyncRequest():
                return SyncResponse(error=ErrorCode.none, assignment=dict(request.assignments)[ME])
            case HeartbeatRequest():
                self.beats.release()
                return HeartbeatResponse(error=ErrorCode.none)
            case LeaveRequest():
                return LeaveResponse(error=ErrorCode.none)

    async def close(self) -> None:
        self.closed = True

    def asked_of(self, kind: type[Request]) -> int:
        return sum(isinstance(request, kind) for request in self.asked)


@pytest.fixture
def coordinator() -> LonelyCoordinator:
    return LonelyCoordinator()


@pytest.fixture
async def membership(coordinator: LonelyCoordinator) -> AsyncIterator[Lonely]:
    settings = MemberSettings(
        group_id=GroupId("group"),
        url=WorkerUrl("http://worker-1:8083/"),
        heartbeat_interval_ms=5,
        session_timeout_ms=30_000,
        retry_backoff_ms=1,
    )
    yield GroupMembership(step, Member(settings), coordinator)
    assert coordinator.closed


async def joined(membership: Lonely) -> None:
    membership.order(Subscribe(config_offset=ConfigOffset(3), owned=NO_JOBS))
    wanted = await until(membership, AssignmentWanted)
    assert isinstance(wanted, AssignmentWanted)
    computed = Computed(config_offset=ConfigOffset(3), assignments={ME: MemberAssignment()})
    membership.order(Install(token=wanted.token, computed=computed))
    await until(membership, Assigned)


async def until(membership: Lonely, kind: type[MembershipEvent]) -> MembershipEvent:
    async with asyncio.timeout(DEADLINE_S):
        while not isinstance(event := await membership.next_event(), kind):
            pass
        return event


async def test_a_member_joins_beats_and_leaves(membership: Lonely, coordinator: LonelyCoordinator) -> None:
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(membership.run())
        await joined(membership)
        await until(membership, ProvedUntil)
        await membership.leave("done")
    assert isinstance(coordinator.asked[-1], LeaveRequest)


async def test_whoever_joined_nothing_has_nothing_to_leave(membership: Lonely, coordinator: LonelyCoordinator) -> None:
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(membership.run())
        await membership.leave("done")
        await membership.leave("done twice")
    assert coordinator.asked == []


async def test_a_coordinator_out_of_reach_is_asked_again(membership: Lonely, coordinator: LonelyCoordinator) -> None:
    coordinator.unreachable_times = 3
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(membership.run())
        await joined(membership)
        await membership.leave("done")
    assert coordinator.asked_of(JoinRequest) == 5


async def test_leaving_returns_though_nobody_answers(membership: Lonely, coordinator: LonelyCoordinator) -> None:
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(membership.run())
        await joined(membership)
        coordinator.silent_to = (HeartbeatRequest, LeaveRequest)
        await membership.leave("done")
    assert any(isinstance(request, LeaveRequest) for request in coordinator.given_up)


async def test_leaving_gives_a_parked_join_up(membership: Lonely, coordinator: LonelyCoordinator) -> None:
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(membership.run())
        await joined(membership)
        coordinator.silent_to = (JoinRequest,)
        joins = coordinator.asked_of(JoinRequest)
        membership.order(Rejoin(reason="a wish"))
        while coordinator.asked_of(JoinRequest) == joins:
            await membership.next_event()
        await membership.leave("done")
    assert isinstance(coordinator.given_up[0], JoinRequest)
    assert isinstance(coordinator.asked[-1], LeaveRequest)


async def test_cancelled_it_leaves_nothing_behind(membership: Lonely, coordinator: LonelyCoordinator) -> None:
    async with asyncio.timeout(DEADLINE_S):
        before = asyncio.all_tasks()
        running = asyncio.ensure_future(membership.run())
        await joined(membership)
        coordinator.silent_to = (HeartbeatRequest,)
        running.cancel()
        await asyncio.wait([running])
        assert asyncio.all_tasks() == before
        await membership.leave("nobody is there to hear it")


async def test_of_heartbeats_that_nobody_took_only_the_last_is_told(
    membership: Lonely, coordinator: LonelyCoordinator
) -> None:
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(membership.run())
        await joined(membership)
        first = await until(membership, ProvedUntil)
        assert isinstance(first, ProvedUntil)
        for _ in range(10):
            await coordinator.beats.acquire()
        latest = await until(membership, ProvedUntil)
        assert isinstance(latest, ProvedUntil)
        assert latest.until_ms - first.until_ms > 5 * 5
        await membership.leave("done")


@pytest.mark.interop
async def test_a_session_that_the_broker_does_not_accept_is_told_once_and_the_setting_named(tmp_path: Path) -> None:
    settings = MemberSettings(
        group_id=GroupId("group"), url=WorkerUrl("http://worker-1:8083/"), session_timeout_ms=3_000
    )
    async with running(BrokerSettings(data_path=tmp_path)) as broker, asyncio.timeout(DEADLINE_S):
        coordinator = KafkaCoordinator(
            [f"127.0.0.1:{broker.port}"], client_id="worker-1", request_timeout_ms=10_000, parked_timeout_ms=10_000
        )
        membership = GroupMembership(step, Member(settings), coordinator)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(membership.run())
            membership.order(Subscribe(config_offset=ConfigOffset(3), owned=NO_JOBS))
            refused = await until(membership, MembershipRefused)
            assert isinstance(refused, MembershipRefused)
            assert "session.timeout.ms=3000" in refused.reason
            assert "group.min.session.timeout.ms" in refused.reason
            await membership.leave(refused.reason)


# -- a machine of another protocol -----------------------------------------------------------------------------------


async def test_a_request_that_its_machine_gave_up_is_not_cancelled_and_its_late_answer_has_no_effect() -> None:
    coordinator = CountingCoordinator()
    membership = GroupMembership(counter.step, counter.Counter(), coordinator)
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(membership.run())
        membership.order(Subscribe(config_offset=ConfigOffset(0), owned=NO_JOBS))
        assert await coordinator.asked.get() == 1
        membership.order(Rejoin(reason="the next request"))
        assert await coordinator.asked.get() == 2
        coordinator.answers[1].set_result(1)
        coordinator.answers[2].set_result(2)
        assert await membership.next_event() == counter.assigned(2)
        membership.order(Rejoin(reason="a request that is outstanding at the end"))
        await coordinator.asked.get()
        await membership.leave("done")
    assert coordinator.closed
    assert [answer.cancelled() for answer in coordinator.answers.values()] == [False, False, True]


async def test_a_failure_is_reported_to_the_machine_and_its_timers_fire() -> None:
    coordinator = CountingCoordinator()
    membership = GroupMembership(counter.step, counter.Counter(), coordinator)
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(membership.run())
        membership.order(Subscribe(config_offset=ConfigOffset(0), owned=NO_JOBS))
        coordinator.answers[await coordinator.asked.get()].set_exception(WorldError("the connection broke"))
        coordinator.answers[await coordinator.asked.get()].set_result(2)
        assert await membership.next_event() == counter.assigned(2)
        await membership.leave("done")
