"""The client of a connect group's coordinator: every field on the wire, one connection, and each failure of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from typing import Any

import pytest

from coterie.broker.apis.connect_groups.response_values import (
    describe_values,
    described_group_values,
    heartbeat_values,
    install_assignment_values,
    prepare_assignment_values,
)
from coterie.groups.connect.messages import (
    DescribedDepartedMember,
    DescribedMember,
    DescribeGroupResponse,
    GroupState,
    Heartbeat,
    InstallAssignment,
    MemberDeparted,
    MemberRecord,
    PrepareAssignment,
)
from coterie.kafka.connect_coordinator import KafkaConnectCoordinatorClient
from coterie.member.connect.messages import (
    GroupDescriptionRequest,
    GroupDescriptionResponse,
    HeartbeatRequest,
    InstallAssignmentRequest,
    PrepareAssignmentRequest,
)
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.connect_groups import (
    AssignmentToMember,
    Claims,
    ConfiguredJobs,
    HeartbeatResponse,
    InstallAssignmentResponse,
    LeaderOfGroup,
    PrepareAssignmentResponse,
    SupportedAssignor,
)
from coterie.nouns.errors import WorldError
from coterie.nouns.group_description import DepartedMemberDescription, GroupDescription, MemberDescription
from coterie.nouns.ids import (
    ConfigOffset,
    GroupEpoch,
    GroupId,
    InstanceId,
    LeaderEpoch,
    MemberEpoch,
    MemberId,
    WorkerUrl,
)
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Jobs
from coterie.nouns.member_state import MemberState
from coterie.nouns.target_assignments import (
    ComputedTarget,
    DeferredJobs,
    GroupSnapshot,
    SnapshotDeparted,
    SnapshotMember,
    TargetOfMember,
    UnplaceableJobs,
)
from coterie.wire.errors import ErrorCode
from tests.kafka.connect_server import Answer, ConnectServer, connect_server

DEADLINE_S = 30
GROUP, ME, OTHER = GroupId("workers"), MemberId("me"), MemberId("other")
A = ConnectorName("a")
SOME = Jobs.of([A, ConnectorTaskId(A, 0), ConnectorTaskId(A, 7)])
MORE = Jobs.of([ConnectorTaskId(A, 1)])
OK: Answer = lambda _: heartbeat_values(HeartbeatResponse(member_epoch=MemberEpoch(1)))  # noqa: E731


@asynccontextmanager
async def connected(answer: Answer) -> AsyncIterator[tuple[ConnectServer, KafkaConnectCoordinatorClient]]:
    async with asyncio.timeout(DEADLINE_S), connect_server(answer) as server:
        coordinator = KafkaConnectCoordinatorClient(
            [f"127.0.0.1:{server.port}"], client_id="tests", request_timeout_ms=5_000
        )
        yield server, coordinator
        await coordinator.close()


def heartbeat(number: int = 1, **values: Any) -> HeartbeatRequest:
    request = HeartbeatRequest(
        group_id=GROUP,
        member_id=ME,
        member_epoch=MemberEpoch(1),
        request_number=number,
        response_timeout_ms=20_000,
    )
    return replace(request, **values) if values else request


FULL = heartbeat(
    3,
    instance_id=InstanceId("i"),
    rebalance_timeout_ms=60_000,
    client_assignors=(
        SupportedAssignor(name="c", minimum_version=0, maximum_version=3, reason=1, version=2, metadata=b"m"),
    ),
    owned=SOME,
    url=WorkerUrl("http://me"),
    name="one",
    config_offset=ConfigOffset(-1),
    config_topic_id=bytes(range(16)),
    configured=ConfiguredJobs(config_offset=ConfigOffset(9), jobs=SOME | MORE),
    claims=Claims(jobs=SOME),
    draining=False,
    max_wait_ms=700,
    connection_grace_ms=0,
    resumes=True,
)

# -- every field on the wire ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(FULL, id="all fields"),
        pytest.param(heartbeat(4, max_wait_ms=1_000), id="a settled heartbeat"),
        pytest.param(
            heartbeat(5, server_assignor="cooperative", claims=Claims(), owned=NO_JOBS, draining=True), id="any job"
        ),
        pytest.param(heartbeat(6, claims=Claims(jobs=NO_JOBS)), id="no job"),
    ],
)
async def test_the_broker_receives_each_field_of_a_heartbeat(request_: HeartbeatRequest) -> None:
    async with connected(OK) as (server, coordinator):
        await coordinator.ask(request_)
        event = await server.received.get()
    assert isinstance(event, Heartbeat)
    same = {field.name for field in fields(HeartbeatRequest)} - {"group_id", "response_timeout_ms"}
    assert {name: getattr(event, name) for name in same} == {name: getattr(request_, name) for name in same}
    assert event.client_id == "tests"


@pytest.mark.parametrize(
    "response",
    [
        HeartbeatResponse(member_epoch=MemberEpoch(4), heartbeat_interval_ms=3_000),
        HeartbeatResponse(
            error=ConnectErrorCode.COMPUTE_ASSIGNMENT,
            message="text",
            member_epoch=MemberEpoch(0),
            heartbeat_interval_ms=200,
            assignment=AssignmentToMember(
                jobs=SOME | MORE,
                jobs_by_assignment_epoch={GroupEpoch(2): SOME, GroupEpoch(4): MORE},
                assignment_epoch=GroupEpoch(4),
                config_offset=ConfigOffset(9),
                version=2,
                metadata=b"x",
            ),
            leader=LeaderOfGroup(member_id=OTHER, leader_epoch=LeaderEpoch(3), url=WorkerUrl("http://other")),
            session_timeout_ms=9_000,
        ),
    ],
    ids=["nothing new", "all fields"],
)
async def test_the_member_receives_each_field_of_a_heartbeat_response(response: HeartbeatResponse) -> None:
    async with connected(lambda _: heartbeat_values(response)) as (_, coordinator):
        assert await coordinator.ask(heartbeat()) == response


async def test_prepare_and_install_reach_the_broker_and_their_responses_the_member() -> None:
    snapshot = GroupSnapshot(
        group_epoch=GroupEpoch(7),
        assignor="cooperative",
        members=(
            SnapshotMember(
                member_id=ME,
                member_epoch=MemberEpoch(5),
                instance_id=InstanceId("i"),
                url=WorkerUrl("http://me"),
                name="one",
                config_offset=ConfigOffset(4),
                version=2,
                reason=1,
                metadata=b"m",
                claims=SOME,
                draining=True,
                target=SOME,
                current=MORE,
                pending=MORE,
                former_jobs=SOME,
            ),
            SnapshotMember(
                member_id=OTHER,
                member_epoch=MemberEpoch(5),
                url=WorkerUrl(""),
                config_offset=ConfigOffset(-1),
                target=MORE,
                current=MORE,
            ),
        ),
        departed=(
            SnapshotDeparted(member_id=OTHER, url=WorkerUrl("u"), jobs=MORE, delay_left_ms=None),
            SnapshotDeparted(member_id=ME, instance_id=InstanceId("i"), url=WorkerUrl("u"), jobs=SOME, delay_left_ms=0),
        ),
        config_offset=ConfigOffset(9),
        configured=SOME | MORE,
        max_delay_ms=20_000,
    )
    target = ComputedTarget(
        members={ME: TargetOfMember(jobs=SOME, version=2, metadata=b"t"), OTHER: TargetOfMember(jobs=NO_JOBS)},
        deferred={MemberId("gone"): DeferredJobs(jobs=MORE, delay_ms=5)},
        unplaceable=(UnplaceableJobs(jobs=MORE, reason="no worker"),),
        next_in_ms=30,
    )
    prepared = PrepareAssignmentResponse(snapshot=snapshot)
    installed = InstallAssignmentResponse(error=ConnectErrorCode.INVALID_ASSIGNMENT, message="why")
    prepare = PrepareAssignmentRequest(
        group_id=GROUP, member_id=ME, member_epoch=MemberEpoch(5), response_timeout_ms=20_000
    )
    install = InstallAssignmentRequest(
        group_id=GROUP,
        member_id=ME,
        member_epoch=MemberEpoch(5),
        group_epoch=GroupEpoch(7),
        assignor_error=0,
        target=target,
        response_timeout_ms=20_000,
    )

    def answer(event: Any) -> Any:
        if isinstance(event, PrepareAssignment):
            return prepare_assignment_values(prepared)
        return install_assignment_values(installed)

    async with connected(answer) as (server, coordinator):
        assert await coordinator.ask(prepare) == prepared
        assert await coordinator.ask(install) == installed
        first, second = await server.received.get(), await server.received.get()
    assert (first.member_id, first.member_epoch) == (ME, 5)
    assert isinstance(second, InstallAssignment)
    assert (second.group_epoch, second.assignor_error, second.target) == (7, 0, target)


async def test_the_description_of_a_group_has_each_field() -> None:
    metadata = MemberRecord(
        member_id=ME,
        group_epoch=GroupEpoch(7),
        joined_epoch=GroupEpoch(1),
        instance_id=InstanceId("i"),
        client_id="c",
        client_host="/h",
        url=WorkerUrl("http://me"),
        name="one",
        rebalance_timeout_ms=1,
        session_timeout_ms=1,
        connection_grace_ms=1,
        server_assignor=None,
        client_assignors=(),
        claims=SOME,
        draining=True,
    )
    departed = MemberDeparted(
        member_id=OTHER,
        instance_id=None,
        url=WorkerUrl("u"),
        jobs=MORE,
        held=NO_JOBS,
        held_until_ms=0,
        left_at_ms=0,
        deadline_ms=None,
        reason="an operator has removed it",
    )
    described = DescribeGroupResponse(
        state=GroupState.RECONCILING,
        group_epoch=GroupEpoch(7),
        assignment_epoch=GroupEpoch(6),
        assignor="cooperative",
        computing_member=ME,
        assignment_error="late",
        leader=OTHER,
        leader_epoch=LeaderEpoch(2),
        config_offset=ConfigOffset(9),
        members=(
            DescribedMember(
                metadata=metadata,
                member_epoch=MemberEpoch(6),
                state=MemberState.COMPLETING_REBALANCE,
                config_offset=ConfigOffset(8),
                assigned=SOME,
                pending=MORE,
                target=SOME | MORE,
                awaited_jobs_by_holder={OTHER: MORE},
            ),
        ),
        departed_members=(DescribedDepartedMember(departed_member=departed, delay_left_ms=None, held_jobs_left_ms=3),),
        unplaceable=(UnplaceableJobs(jobs=MORE, reason="no worker"),),
        effective_configs={"connect.session.timeout.ms": "10000"},
    )
    values = describe_values([described_group_values(GROUP, described)])
    async with connected(lambda _: values) as (server, coordinator):
        response = await coordinator.ask(GroupDescriptionRequest(group_id=GROUP, response_timeout_ms=20_000))
        assert (await server.received.get()).group_ids == (GROUP,)
    assert response == GroupDescriptionResponse(
        description=GroupDescription(
            state="Reconciling",
            group_epoch=GroupEpoch(7),
            assignment_epoch=GroupEpoch(6),
            assignor="cooperative",
            computing_member=ME,
            assignment_error="late",
            leader=OTHER,
            leader_epoch=LeaderEpoch(2),
            config_offset=ConfigOffset(9),
            members=(
                MemberDescription(
                    member_id=ME,
                    member_epoch=MemberEpoch(6),
                    state=MemberState.COMPLETING_REBALANCE,
                    instance_id=InstanceId("i"),
                    client_id="c",
                    client_host="/h",
                    url=WorkerUrl("http://me"),
                    name="one",
                    config_offset=ConfigOffset(8),
                    claims=SOME,
                    draining=True,
                    assigned=SOME,
                    pending=MORE,
                    target=SOME | MORE,
                    awaited_jobs_by_holder={OTHER: MORE},
                ),
            ),
            departed=(
                DepartedMemberDescription(
                    member_id=OTHER,
                    url=WorkerUrl("u"),
                    jobs=MORE,
                    delay_left_ms=None,
                    held_jobs_left_ms=3,
                    reason="an operator has removed it",
                ),
            ),
            unplaceable=(UnplaceableJobs(jobs=MORE, reason="no worker"),),
            configs={"connect.session.timeout.ms": "10000"},
        )
    )


# -- connections ------------------------------------------------------------------------------------------------------


async def test_a_request_ends_the_hold_of_an_earlier_one_on_the_same_connection() -> None:
    def hold_first(event: Any) -> Any:
        return None if event.request_number == 1 else heartbeat_values(HeartbeatResponse(member_epoch=MemberEpoch(2)))

    async with connected(hold_first) as (server, coordinator):
        server.hold_values = heartbeat_values(HeartbeatResponse(member_epoch=MemberEpoch(1)))
        async with asyncio.TaskGroup() as tasks:
            held = tasks.create_task(coordinator.ask(heartbeat(1)))
            await server.received.get()
            assert not held.done()
            second = tasks.create_task(coordinator.ask(heartbeat(2)))
        assert held.result() == HeartbeatResponse(member_epoch=MemberEpoch(1))
        assert second.result() == HeartbeatResponse(member_epoch=MemberEpoch(2))
        assert (server.connections, server.searches) == (1, 1)


async def test_requests_at_the_same_time_share_one_connection_in_their_order() -> None:
    async with connected(OK) as (server, coordinator):
        async with asyncio.TaskGroup() as tasks:
            for number in range(1, 11):
                tasks.create_task(coordinator.ask(heartbeat(number)))
        numbers = [server.received.get_nowait().request_number for _ in range(10)]
        assert numbers == list(range(1, 11))
        assert server.connections == 1


async def test_a_request_without_a_response_in_time_fails_with_all_others_and_the_next_one_reconnects() -> None:
    def hold_small(event: Any) -> Any:
        return None if event.max_wait_ms else heartbeat_values(HeartbeatResponse())

    async with connected(hold_small) as (server, coordinator):
        with pytest.raises(WorldError, match="did not respond to ConnectGroupHeartbeat within 50 ms"):
            await coordinator.ask(heartbeat(1, max_wait_ms=10, response_timeout_ms=50))
        assert await coordinator.ask(heartbeat(2)) == HeartbeatResponse()
        assert server.connections == 2


async def test_a_broken_connection_fails_the_request_and_the_next_one_reconnects() -> None:
    async with connected(lambda event: None if event.request_number == 1 else OK(event)) as (server, coordinator):
        held = asyncio.ensure_future(coordinator.ask(heartbeat(1)))
        await server.received.get()
        server.hang_up()
        with pytest.raises(WorldError, match="broke"):
            await held
        assert await coordinator.ask(heartbeat(2)) == HeartbeatResponse(member_epoch=MemberEpoch(1))
        assert (server.connections, server.searches) == (2, 2)


@pytest.mark.parametrize("error", [ConnectErrorCode.NOT_COORDINATOR, ConnectErrorCode.COORDINATOR_NOT_AVAILABLE])
async def test_a_coordinator_that_has_moved_is_searched_for_again(error: ConnectErrorCode) -> None:
    def moved_first(event: Any) -> Any:
        return heartbeat_values(HeartbeatResponse(error=error)) if event.request_number == 1 else OK(event)

    async with connected(moved_first) as (server, coordinator):
        response = await coordinator.ask(heartbeat(1))
        assert response.error is error
        assert (await coordinator.ask(heartbeat(2))).error is ConnectErrorCode.NONE
        assert server.searches == 2


async def test_a_group_without_a_coordinator_is_a_response_with_that_error() -> None:
    async with connected(OK) as (server, coordinator):
        server.find_error = ErrorCode.coordinator_not_available
        response = await coordinator.ask(heartbeat())
        assert response == HeartbeatResponse(
            error=ConnectErrorCode.COORDINATOR_NOT_AVAILABLE,
            message="no coordinator of group workers was found: coordinator_not_available",
        )
        assert server.connections == 0


@pytest.mark.parametrize(
    ("request_", "kind"),
    [
        (heartbeat(), HeartbeatResponse),
        (
            PrepareAssignmentRequest(
                group_id=GROUP, member_id=ME, member_epoch=MemberEpoch(1), response_timeout_ms=20_000
            ),
            PrepareAssignmentResponse,
        ),
        (GroupDescriptionRequest(group_id=GROUP, response_timeout_ms=20_000), GroupDescriptionResponse),
    ],
    ids=["heartbeat", "prepare", "describe"],
)
async def test_a_broker_without_connect_groups_gives_a_response_with_unsupported_version(
    request_: Any, kind: type[Any]
) -> None:
    async with connected(OK) as (server, coordinator):
        server.api_keys = ()
        response = await coordinator.ask(request_)
    assert isinstance(response, kind)
    assert response.error is ConnectErrorCode.UNSUPPORTED_VERSION
    assert response.message is not None
    assert f"127.0.0.1:{server.port} supports these versions of ConnectGroup" in response.message
    assert response.message.endswith("use a Coterie broker that serves connect groups")
    assert "\n" not in response.message


async def test_an_unknown_error_code_is_kept_in_the_message() -> None:
    values = {**heartbeat_values(HeartbeatResponse()), "error_code": 12_345, "error_message": "odd"}
    async with connected(lambda _: values) as (_, coordinator):
        response = await coordinator.ask(heartbeat())
    assert response.error is ConnectErrorCode.UNKNOWN_SERVER_ERROR
    assert response.message == "unknown error code 12345: odd"


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(lambda _: b"\x00", id="a truncated response"),
        pytest.param(lambda _: b"\xff" * 64, id="garbage"),
        pytest.param(
            lambda _: heartbeat_values(
                HeartbeatResponse(
                    assignment=AssignmentToMember(
                        jobs=Jobs.of([ConnectorName("")]),
                        jobs_by_assignment_epoch={},
                        assignment_epoch=GroupEpoch(1),
                        config_offset=ConfigOffset(1),
                    )
                )
            ),
            id="a connector without a name",
        ),
    ],
)
async def test_an_invalid_response_is_one_failed_request(answer: Answer) -> None:
    async with connected(answer) as (server, coordinator):
        with pytest.raises(WorldError, match="ConnectGroupHeartbeat is not"):
            await coordinator.ask(heartbeat(1))
        server.answer = OK
        assert (await coordinator.ask(heartbeat(2))).error is ConnectErrorCode.NONE


async def test_a_closed_client_refuses_outstanding_and_later_requests() -> None:
    async with connected(lambda _: None) as (server, coordinator):
        held = asyncio.ensure_future(coordinator.ask(heartbeat()))
        await server.received.get()
        await coordinator.close()
        with pytest.raises(WorldError):
            await held
        with pytest.raises(WorldError, match="closed"):
            await coordinator.ask(heartbeat())
        await coordinator.close()
