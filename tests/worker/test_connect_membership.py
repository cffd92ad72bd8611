"""The membership of a connect group, from its loop to a broker over TCP."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from coterie.broker.apis.connect_groups.response_values import heartbeat_values
from coterie.kafka.connect_coordinator import KafkaConnectCoordinatorClient
from coterie.member.connect.machine import step
from coterie.member.connect.messages import Request, Response, Timer
from coterie.member.connect.state import Member, MemberSettings
from coterie.nouns.connect_groups import AssignmentToMember, HeartbeatResponse, LeaderOfGroup
from coterie.nouns.ids import ConfigOffset, GroupEpoch, GroupId, LeaderEpoch, MemberEpoch, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, ConnectorName, Jobs
from coterie.nouns.membership import Assigned, MembershipEvent, MembershipRefused, SetWorkerState
from coterie.wire.kio_entities import Values
from coterie.worker.membership import GroupMembership
from tests.kafka.connect_server import ConnectServer, connect_server

DEADLINE_S = 30
ME = MemberId("me")
SOME = Jobs.of([ConnectorName("a")])
JOINED = HeartbeatResponse(
    member_epoch=MemberEpoch(1),
    heartbeat_interval_ms=200,
    assignment=AssignmentToMember(
        jobs=SOME,
        jobs_by_assignment_epoch={GroupEpoch(1): SOME},
        assignment_epoch=GroupEpoch(1),
        config_offset=ConfigOffset(0),
    ),
    leader=LeaderOfGroup(member_id=ME, leader_epoch=LeaderEpoch(1), url=WorkerUrl("http://me")),
    session_timeout_ms=9_000,
)
Membership = GroupMembership[Member, Request, Response, Timer]


@asynccontextmanager
async def member_of(server: ConnectServer) -> AsyncIterator[Membership]:
    """A running membership, which leaves at the end."""
    settings = MemberSettings(
        group_id=GroupId("fleet"), member_id=ME, url=WorkerUrl("http://me"), server_assignor="cooperative"
    )
    coordinator = KafkaConnectCoordinatorClient(
        [f"127.0.0.1:{server.port}"], client_id="tests", request_timeout_ms=5_000
    )
    membership: Membership = GroupMembership(step, Member(settings), coordinator)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(membership.run())
        membership.order(SetWorkerState(config_offset=ConfigOffset(0), owned=NO_JOBS))
        yield membership
        await membership.leave("the test is over")


async def first(membership: Membership, kind: type[MembershipEvent]) -> MembershipEvent:
    """The next event of ``kind``."""
    while not isinstance(event := await membership.next_event(), kind):
        pass
    return event


async def test_a_stop_ends_the_hold_on_the_same_connection_and_is_acknowledged() -> None:
    def answer(event: Any) -> Values | None:
        return None if event.max_wait_ms else heartbeat_values(JOINED)

    async with asyncio.timeout(DEADLINE_S), connect_server(answer) as server, member_of(server) as membership:
        server.hold_values = heartbeat_values(HeartbeatResponse(member_epoch=MemberEpoch(1)))
        assigned = await first(membership, Assigned)
        assert isinstance(assigned, Assigned)
        assert assigned.jobs == SOME
        joined, held = await server.received.get(), await server.received.get()
        assert (joined.member_epoch, held.owned) == (0, SOME)
        membership.order(SetWorkerState(config_offset=ConfigOffset(0), owned=SOME))
        membership.order(SetWorkerState(config_offset=ConfigOffset(0), owned=NO_JOBS))
        acknowledged = await server.received.get()
        assert (acknowledged.owned, acknowledged.request_number) == (NO_JOBS, held.request_number + 1)
        assert server.connections == 1


async def test_a_broker_without_connect_groups_ends_the_member_with_one_line() -> None:
    async with asyncio.timeout(DEADLINE_S), connect_server(lambda _: None) as server:
        server.api_keys = ()
        async with member_of(server) as membership:
            refused = await first(membership, MembershipRefused)
    assert isinstance(refused, MembershipRefused)
    assert "does not serve connect groups" in refused.reason
    assert "set group.protocol=classic" in refused.reason
    assert "\n" not in refused.reason
