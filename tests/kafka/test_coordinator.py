import asyncio
import uuid
from collections.abc import AsyncIterator, Callable

import pytest

from coterie.kafka.coordinator import KafkaClassicCoordinatorClient
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
)
from coterie.nouns.errors import WorldError
from coterie.nouns.ids import GenerationId, GroupId, MemberId
from coterie.wire.errors import ErrorCode

DEADLINE_S = 40
NO_MEMBER_ID = MemberId("")


@pytest.fixture
async def coordinator_of(bootstrap: str) -> AsyncIterator[Callable[[], KafkaClassicCoordinatorClient]]:
    """A function that makes a member's connection to the coordinator; all are closed at the end."""
    made: list[KafkaClassicCoordinatorClient] = []

    def make() -> KafkaClassicCoordinatorClient:
        # The first server does not exist: one reachable server is enough.
        servers = ["127.0.0.1:1", bootstrap]
        made.append(
            KafkaClassicCoordinatorClient(
                servers, client_id="tests", request_timeout_ms=10_000, parked_timeout_ms=20_000
            )
        )
        return made[-1]

    yield make
    for coordinator in made:
        await coordinator.close()


Make = Callable[[], KafkaClassicCoordinatorClient]
_NOT_YET = (
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
    ErrorCode.coordinator_load_in_progress,
)


async def ask(coordinator: KafkaClassicCoordinatorClient, request: Request) -> Response:
    """Send a request as a member does: repeat it until the coordinator has started."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            response = await coordinator.ask(request)
            if response.error not in _NOT_YET:
                return response
            await asyncio.sleep(0.1)


def fresh_group() -> GroupId:
    return GroupId(f"group-{uuid.uuid4().hex[:8]}")


def join(group: GroupId, member: MemberId, metadata: bytes = b"metadata") -> JoinRequest:
    return JoinRequest(
        group_id=group,
        member_id=member,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=20_000,
        protocol_type="connect",
        protocols=(("compatible", metadata), ("default", b"old")),
        reason="a test",
    )


async def joined(coordinator: KafkaClassicCoordinatorClient, request: JoinRequest) -> JoinResponse:
    response = await ask(coordinator, request)
    assert isinstance(response, JoinResponse)
    return response


async def new_member(coordinator: KafkaClassicCoordinatorClient, group: GroupId) -> MemberId:
    response = await joined(coordinator, join(group, NO_MEMBER_ID))
    assert response.error is ErrorCode.member_id_required
    assert response.member_id
    return response.member_id


def sync(
    group: GroupId, joined_response: JoinResponse, assignments: dict[MemberId, bytes] | None = None
) -> SyncRequest:
    return SyncRequest(
        group_id=group,
        member_id=joined_response.member_id,
        generation=joined_response.generation,
        protocol_type="connect",
        protocol=joined_response.protocol,
        assignments=tuple((assignments or {}).items()),
    )


def heartbeat(group: GroupId, joined_response: JoinResponse) -> HeartbeatRequest:
    return HeartbeatRequest(group_id=group, member_id=joined_response.member_id, generation=joined_response.generation)


async def test_one_member_joins_syncs_sends_heartbeats_and_leaves(coordinator_of: Make) -> None:
    coordinator, group = coordinator_of(), fresh_group()
    member = await new_member(coordinator, group)
    joined_response = await joined(coordinator, join(group, member))
    assert (joined_response.error, joined_response.protocol, joined_response.leader) == (
        ErrorCode.none,
        "compatible",
        member,
    )
    assert joined_response.generation == 1
    assert joined_response.metadata_by_member == {member: b"metadata"}
    synced = await ask(coordinator, sync(group, joined_response, {member: b"work"}))
    assert synced == SyncResponse(error=ErrorCode.none, assignment=b"work")
    assert await ask(coordinator, heartbeat(group, joined_response)) == HeartbeatResponse(error=ErrorCode.none)
    left = await ask(coordinator, LeaveRequest(group_id=group, member_id=member, reason="done"))
    assert left == LeaveResponse(error=ErrorCode.none)
    assert (await ask(coordinator, heartbeat(group, joined_response))).error is ErrorCode.unknown_member_id


async def test_heartbeats_get_responses_while_a_join_is_parked(coordinator_of: Make) -> None:
    first, second, group = coordinator_of(), coordinator_of(), fresh_group()
    one = await joined(first, join(group, await new_member(first, group)))
    assert (await ask(first, sync(group, one, {one.member_id: b"all"}))).error is ErrorCode.none

    # The second member's join is parked until the first has joined again.
    newcomer = await new_member(second, group)
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        parked = tasks.create_task(joined(second, join(group, newcomer)))
        while (await ask(first, heartbeat(group, one))).error is not ErrorCode.rebalance_in_progress:
            assert not parked.done()
        assert not parked.done()
        again = await joined(first, join(group, one.member_id))
        two = await parked
    assert again.generation == two.generation == 2
    assert again.leader == two.leader
    leads, follows, leader, follower = (
        (again, two, first, second) if again.leader == again.member_id else (two, again, second, first)
    )
    assert leads.metadata_by_member is not None
    assert set(leads.metadata_by_member) == {again.member_id, two.member_id}
    assert follows.metadata_by_member is None

    # The follower's sync is parked until the leader's has arrived; its heartbeats get responses meanwhile.
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(ask(follower, sync(group, follows)))
        assert (await ask(follower, heartbeat(group, follows))).error is ErrorCode.none
        assert not waiting.done()
        work = {leads.member_id: b"leader's", follows.member_id: b"follower's"}
        assert await ask(leader, sync(group, leads, work)) == SyncResponse(error=ErrorCode.none, assignment=b"leader's")
        assert await waiting == SyncResponse(error=ErrorCode.none, assignment=b"follower's")

    # A stale generation is refused, and a member that leaves makes the other one rejoin.
    stale = HeartbeatRequest(group_id=group, member_id=two.member_id, generation=GenerationId(1))
    assert (await ask(second, stale)).error is ErrorCode.illegal_generation
    left = await ask(second, LeaveRequest(group_id=group, member_id=two.member_id))
    assert left.error is ErrorCode.none
    assert (await ask(first, heartbeat(group, again))).error is ErrorCode.rebalance_in_progress


async def test_a_member_without_a_protocol_in_common_is_refused(coordinator_of: Make) -> None:
    first, second, group = coordinator_of(), coordinator_of(), fresh_group()
    one = await joined(first, join(group, await new_member(first, group)))
    assert (await ask(first, sync(group, one, {one.member_id: b""}))).error is ErrorCode.none
    other = JoinRequest(
        group_id=group,
        member_id=NO_MEMBER_ID,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=20_000,
        protocol_type="connect",
        protocols=(("another", b""),),
    )
    assert (await joined(second, other)).error is ErrorCode.inconsistent_group_protocol


async def test_requests_of_an_unknown_member_are_refused(coordinator_of: Make) -> None:
    coordinator, group = coordinator_of(), fresh_group()
    unknown = JoinResponse(error=ErrorCode.none, generation=GenerationId(3), member_id=MemberId("stranger"))
    # The sync first: while Kafka's coordinator is loading, it responds to every heartbeat without an error.
    assert (await ask(coordinator, sync(group, unknown))).error is ErrorCode.unknown_member_id
    assert (await ask(coordinator, heartbeat(group, unknown))).error is ErrorCode.unknown_member_id
    leave = LeaveRequest(group_id=group, member_id=unknown.member_id)
    assert (await ask(coordinator, leave)).error is ErrorCode.unknown_member_id


async def test_a_cancelled_request_does_not_affect_later_requests(coordinator_of: Make) -> None:
    first, second, group = coordinator_of(), coordinator_of(), fresh_group()
    one = await joined(first, join(group, await new_member(first, group)))
    assert (await ask(first, sync(group, one, {one.member_id: b""}))).error is ErrorCode.none
    newcomer = await new_member(second, group)
    parked = asyncio.ensure_future(second.ask(join(group, newcomer)))
    async with asyncio.timeout(DEADLINE_S):
        while (await ask(first, heartbeat(group, one))).error is not ErrorCode.rebalance_in_progress:
            pass
    parked.cancel()
    # It uses another connection, so it does not wait for the parked join.
    left = await ask(second, LeaveRequest(group_id=group, member_id=newcomer))
    assert left.error is ErrorCode.none


async def test_a_join_does_not_wait_for_an_earlier_parked_join(coordinator_of: Make) -> None:
    """The member has abandoned the parked join, and both joins get responses."""
    first, second, group = coordinator_of(), coordinator_of(), fresh_group()
    one = await joined(first, join(group, await new_member(first, group)))
    assert (await ask(first, sync(group, one, {one.member_id: b""}))).error is ErrorCode.none
    newcomer = await new_member(second, group)
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        parked = tasks.create_task(second.ask(join(group, newcomer)))
        while (await ask(first, heartbeat(group, one))).error is not ErrorCode.rebalance_in_progress:
            pass
        assert await new_member(second, group) != newcomer
        assert not parked.done()
        left = await ask(second, LeaveRequest(group_id=group, member_id=newcomer))
        assert left.error is ErrorCode.none
        assert (await parked).error is ErrorCode.unknown_member_id


async def test_the_error_without_a_reachable_broker_names_every_server() -> None:
    coordinator = KafkaClassicCoordinatorClient(
        ["127.0.0.1:1", "localhost:2"], client_id="tests", request_timeout_ms=1_000, parked_timeout_ms=1_000
    )
    with pytest.raises(WorldError, match=r"127\.0\.0\.1:1: .*localhost:2: "):
        await coordinator.ask(join(fresh_group(), NO_MEMBER_ID))
    await coordinator.close()
    with pytest.raises(WorldError, match="closed"):
        await coordinator.ask(join(fresh_group(), NO_MEMBER_ID))
