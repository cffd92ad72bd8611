import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NoReturn, TypeAlias

import pytest

from coterie.broker.server import running_broker
from coterie.broker.settings import BrokerSettings
from coterie.kafka.coordinator import KafkaClassicCoordinatorClient
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
from coterie.nouns.ids import ConfigOffset, GenerationId, GroupId, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.membership import (
    Assigned,
    AssignmentChange,
    AssignmentsRequested,
    ComputedAssignments,
    LeaseRenewed,
    MembershipEvent,
    MembershipRefused,
    Rejoin,
    SendAssignments,
    SetWorkerState,
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
        self.requests: list[Request] = []
        self.unreachable_times = 0
        self.silent_to: tuple[type[Request], ...] = ()
        self.abandoned: list[Request] = []
        self.closed = False
        self.beats = asyncio.Semaphore(0)
        """Released by each heartbeat."""

    async def ask(self, request: Request) -> Response:
        self.requests.append(request)
        if self.unreachable_times > 0:
            self.unreachable_times -= 1
            raise WorldError("the coordinator cannot be reached")
        if isinstance(request, self.silent_to):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.abandoned.append(request)
                raise
        match request:
            case JoinRequest(member_id=""):
                return JoinResponse(error=ErrorCode.member_id_required, member_id=ME)
            case JoinRequest():
                return JoinResponse(
                    error=ErrorCode.none,
                    generation=GenerationId(1),
                    protocol=request.protocols[0][0],
                    leader=ME,
                    member_id=ME,
                    metadata_by_member={ME: request.protocols[0][1]},
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

    def count_requests(self, kind: type[Request]) -> int:
        return sum(isinstance(request, kind) for request in self.requests)


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
    membership.order(SetWorkerState(config_offset=ConfigOffset(3), owned=NO_JOBS))
    requested = await until(membership, AssignmentsRequested)
    assert isinstance(requested, AssignmentsRequested)
    computed = ComputedAssignments(config_offset=ConfigOffset(3), assignments={ME: AssignmentChange()})
    membership.order(SendAssignments(token=requested.token, computed=computed))
    await until(membership, Assigned)


async def until(membership: Lonely, kind: type[MembershipEvent]) -> MembershipEvent:
    async with asyncio.timeout(DEADLINE_S):
        while not isinstance(event := await membership.next_event(), kind):
            pass
        return event


async def test_a_member_joins_sends_heartbeats_and_leaves(membership: Lonely, coordinator: LonelyCoordinator) -> None:
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(membership.run())
        await joined(membership)
        await until(membership, LeaseRenewed)
        await membership.leave("done")
    assert isinstance(coordinator.requests[-1], LeaveRequest)


async def test_leaving_before_the_first_join_sends_no_request(
    membership: Lonely, coordinator: LonelyCoordinator
) -> None:
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(membership.run())
        await membership.leave("done")
        await membership.leave("done twice")
    assert coordinator.requests == []


async def test_requests_to_an_unreachable_coordinator_are_retried(
    membership: Lonely, coordinator: LonelyCoordinator
) -> None:
    coordinator.unreachable_times = 3
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(membership.run())
        await joined(membership)
        await membership.leave("done")
    assert coordinator.count_requests(JoinRequest) == 5


async def test_leaving_returns_when_the_coordinator_does_not_respond(
    membership: Lonely, coordinator: LonelyCoordinator
) -> None:
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(membership.run())
        await joined(membership)
        coordinator.silent_to = (HeartbeatRequest, LeaveRequest)
        await membership.leave("done")
    assert any(isinstance(request, LeaveRequest) for request in coordinator.abandoned)


async def test_leaving_abandons_a_parked_join(membership: Lonely, coordinator: LonelyCoordinator) -> None:
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(membership.run())
        await joined(membership)
        coordinator.silent_to = (JoinRequest,)
        joins = coordinator.count_requests(JoinRequest)
        membership.order(Rejoin(reason="the test requests it"))
        while coordinator.count_requests(JoinRequest) == joins:
            await membership.next_event()
        await membership.leave("done")
    assert isinstance(coordinator.abandoned[0], JoinRequest)
    assert isinstance(coordinator.requests[-1], LeaveRequest)


async def test_a_cancelled_membership_leaves_no_asyncio_task_behind(
    membership: Lonely, coordinator: LonelyCoordinator
) -> None:
    async with asyncio.timeout(DEADLINE_S):
        before = asyncio.all_tasks()
        running = asyncio.ensure_future(membership.run())
        await joined(membership)
        coordinator.silent_to = (HeartbeatRequest,)
        running.cancel()
        await asyncio.wait([running])
        assert asyncio.all_tasks() == before
        await membership.leave("the coordinator does not respond")


async def test_only_the_last_of_several_unread_lease_renewals_is_delivered(
    membership: Lonely, coordinator: LonelyCoordinator
) -> None:
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(membership.run())
        await joined(membership)
        first = await until(membership, LeaseRenewed)
        assert isinstance(first, LeaseRenewed)
        for _ in range(10):
            await coordinator.beats.acquire()
        latest = await until(membership, LeaseRenewed)
        assert isinstance(latest, LeaseRenewed)
        assert latest.lease_ends_ms - first.lease_ends_ms > 5 * 5
        await membership.leave("done")


@pytest.mark.interop
async def test_a_refused_session_timeout_is_reported_once_with_its_config_key(tmp_path: Path) -> None:
    settings = MemberSettings(
        group_id=GroupId("group"), url=WorkerUrl("http://worker-1:8083/"), session_timeout_ms=3_000
    )
    async with running_broker(BrokerSettings(data_path=tmp_path)) as broker, asyncio.timeout(DEADLINE_S):
        coordinator = KafkaClassicCoordinatorClient(
            [f"127.0.0.1:{broker.port}"], client_id="worker-1", request_timeout_ms=10_000, parked_timeout_ms=10_000
        )
        membership = GroupMembership(step, Member(settings), coordinator)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(membership.run())
            membership.order(SetWorkerState(config_offset=ConfigOffset(3), owned=NO_JOBS))
            refused = await until(membership, MembershipRefused)
            assert isinstance(refused, MembershipRefused)
            assert "session.timeout.ms=3000" in refused.reason
            assert "group.min.session.timeout.ms" in refused.reason
            await membership.leave(refused.reason)


# -- a machine of another protocol -----------------------------------------------------------------------------------


async def test_an_abandoned_request_is_not_cancelled_and_its_late_response_is_ignored() -> None:
    coordinator = CountingCoordinator()
    membership = GroupMembership(counter.step, counter.CountingMember(), coordinator)
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(membership.run())
        membership.order(SetWorkerState(config_offset=ConfigOffset(0), owned=NO_JOBS))
        assert await coordinator.requests.get() == 1
        membership.order(Rejoin(reason="the next request"))
        assert await coordinator.requests.get() == 2
        coordinator.answers[1].set_result(1)
        coordinator.answers[2].set_result(2)
        assert await membership.next_event() == counter.assigned(2)
        membership.order(Rejoin(reason="a request that is outstanding at the end"))
        await coordinator.requests.get()
        await membership.leave("done")
    assert coordinator.closed
    assert [answer.cancelled() for answer in coordinator.answers.values()] == [False, False, True]


async def test_a_failure_is_reported_to_the_machine_and_its_timers_fire() -> None:
    coordinator = CountingCoordinator()
    membership = GroupMembership(counter.step, counter.CountingMember(), coordinator)
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(membership.run())
        membership.order(SetWorkerState(config_offset=ConfigOffset(0), owned=NO_JOBS))
        coordinator.answers[await coordinator.requests.get()].set_exception(WorldError("the connection broke"))
        coordinator.answers[await coordinator.requests.get()].set_result(2)
        assert await membership.next_event() == counter.assigned(2)
        await membership.leave("done")


@pytest.mark.parametrize("bug", [AssertionError, KeyError])
async def test_a_bug_in_the_member_machine_ends_the_run_and_is_logged_with_the_last_events(
    coordinator: LonelyCoordinator, bug: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    def broken_step(member: Member, event: object, *, now_ms: int) -> NoReturn:
        raise bug("a bug")

    settings = MemberSettings(group_id=GroupId("group"), url=WorkerUrl("http://worker-1:8083/"))
    membership: Lonely = GroupMembership(broken_step, Member(settings), coordinator)
    with pytest.raises(ExceptionGroup) as caught:
        await membership.run()
    assert [type(error) for error in caught.value.exceptions] == [bug]
    (message,) = [record.getMessage() for record in caplog.records if record.levelname == "CRITICAL"]
    assert message.startswith("Bug in Coterie: the state machine of the group member failed")
    assert "MemberStarted" in message
