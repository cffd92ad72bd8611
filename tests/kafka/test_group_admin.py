"""An operator's client of groups, against Coterie's broker and Apache Kafka. Connect groups: `tests/cli/groups`."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable

import pytest

from coterie.kafka.coordinator import KafkaClassicCoordinatorClient
from coterie.kafka.group_admin import ClassicGroupDescription, ClassicMemberDescription, GroupAdmin, ListedGroup
from coterie.member.classic.messages import JoinRequest, JoinResponse, SyncRequest, SyncResponse
from coterie.nouns.errors import WorldError
from coterie.nouns.ids import GroupId, InstanceId, MemberId
from coterie.wire.errors import ErrorCode
from tests.ports import free_port
from tests.worker.simulated import until

PLACE = InstanceId("place")
SESSION_TIMEOUT = {"embedded": "connect.session.timeout.ms", "kafka": "consumer.session.timeout.ms"}


@pytest.fixture
def admin(bootstrap: str) -> GroupAdmin:
    # The first server does not exist: one reachable server is enough.
    return GroupAdmin(["127.0.0.1:1", bootstrap], client_id="tests", timeout_ms=40_000)


@pytest.fixture
def group() -> GroupId:
    return GroupId(f"group-{uuid.uuid4().hex[:8]}")


async def static_member(bootstrap: str, group: GroupId) -> MemberId:
    """A static member of the type of workers, which sends nothing more."""
    coordinator = KafkaClassicCoordinatorClient(
        [bootstrap], client_id="anna", request_timeout_ms=10_000, parked_timeout_ms=20_000
    )
    request = JoinRequest(
        group_id=group,
        member_id=MemberId(""),
        instance_id=PLACE,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=20_000,
        protocol_type="connect",
        protocols=(("compatible", b""),),
    )
    joined = await coordinator.ask(request)
    assert isinstance(joined, JoinResponse)
    assert joined.error is ErrorCode.none, joined
    sync = SyncRequest(
        group_id=group,
        member_id=joined.member_id,
        instance_id=PLACE,
        generation=joined.generation,
        protocol_type="connect",
        protocol=joined.protocol,
        assignments=(),
    )
    assert await coordinator.ask(sync) == SyncResponse(error=ErrorCode.none)
    await coordinator.close()
    return joined.member_id


async def test_a_classic_group_is_listed_described_and_loses_a_removed_member(
    bootstrap: str, admin: GroupAdmin, group: GroupId
) -> None:
    assert await admin.describe_group(group) is None  # waits until the broker's coordinators have started
    member_id = await static_member(bootstrap, group)
    assert ListedGroup(group_id=group, type="classic", protocol_type="connect", state="Stable") in (
        await admin.list_groups()
    )
    described = await admin.describe_group(group)
    assert isinstance(described, ClassicGroupDescription)
    assert (described.state, described.protocol_type, described.protocol) == ("Stable", "connect", "compatible")
    (member,) = described.members
    assert member == ClassicMemberDescription(
        member_id=member_id, instance_id=PLACE, client_id="anna", client_host=member.client_host
    )
    with pytest.raises(WorldError, match=f"cannot remove member {member_id} of group {group}: .*UNKNOWN_MEMBER_ID"):
        await admin.remove_member(group, member_id, InstanceId("elsewhere"))
    await admin.remove_member(group, member_id, PLACE)
    emptied = await admin.describe_group(group)
    assert isinstance(emptied, ClassicGroupDescription)
    assert (emptied.state, emptied.members) == ("Empty", ())


async def test_a_config_is_set_read_and_deleted(
    admin: GroupAdmin, group: GroupId, request: pytest.FixtureRequest
) -> None:
    name = SESSION_TIMEOUT[request.node.callspec.params["bootstrap"]]

    async def value() -> tuple[str, bool]:
        (config,) = (one for one in await admin.group_configs(group) if one.name == name)
        assert config.documentation
        return config.value, config.is_set_on_group

    default, is_set_on_group = await value()
    assert not is_set_on_group

    async def has_value(expected: tuple[str, bool]) -> None:
        """Wait for the value: Kafka's brokers receive a change a little later."""

        async def is_there() -> bool:
            return await value() == expected

        await until(is_there, within_s=40)

    await admin.alter_group_configs(group, {name: "46000"})
    await has_value(("46000", True))
    await admin.alter_group_configs(group, {name: None})
    await has_value((default, False))
    with pytest.raises(WorldError, match=f"cannot change the configs of group {group}: INVALID_CONFIG: .*no.such.key"):
        await admin.alter_group_configs(group, {name: "46000", "no.such.key": "1"})
    assert await value() == (default, False)


async def test_a_silent_first_server_leaves_time_for_the_next_one(bootstrap: str, group: GroupId) -> None:
    accepted: list[asyncio.StreamWriter] = []

    async def never_respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer)

    async with await asyncio.start_server(never_respond, "127.0.0.1", 0) as silent:
        port = silent.sockets[0].getsockname()[1]
        calls: list[Callable[[GroupAdmin], Awaitable[object]]] = [
            GroupAdmin.list_groups,
            lambda admin: admin.describe_group(group),
            lambda admin: admin.group_configs(group),
        ]
        for call in calls:
            admin = GroupAdmin([f"127.0.0.1:{port}", bootstrap], client_id="tests", timeout_ms=9_000)
            await call(admin)
        assert len(accepted) == len(calls), "each call has asked the silent server first"
        for writer in accepted:
            writer.close()


async def test_a_broker_that_is_not_there_is_named() -> None:
    port = free_port()
    admin = GroupAdmin([f"127.0.0.1:{port}"], client_id="tests", timeout_ms=5_000)
    for call in (admin.list_groups(), admin.describe_group(GroupId("g")), admin.group_configs(GroupId("g"))):
        with pytest.raises(WorldError, match=f"cannot reach the broker at 127.0.0.1:{port}"):
            await call
