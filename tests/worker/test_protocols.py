"""Groups that change their protocol while their tasks run, on the embedded broker, over TCP.

The fleet checks that no worker starts a task that another worker still runs.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from coterie.broker.server import running_broker
from coterie.broker.settings import BrokerSettings
from coterie.groups.classic.state import ClassicGroupSettings
from coterie.herder.requests.views import DescribeWorker, WorkerView
from coterie.kafka.coordinator import KafkaClassicCoordinatorClient
from coterie.member.classic.messages import JoinRequest, JoinResponse, LeaveRequest, SyncRequest, SyncResponse
from coterie.member.classic.state import PARKED_TIMEOUT_MARGIN_MS
from coterie.nouns.ids import MemberId
from coterie.nouns.jobs import ConnectorTaskId, Jobs
from coterie.wire.connect import PROTOCOL_TYPE, ConnectProtocol
from coterie.wire.errors import ErrorCode
from tests.worker.fleet import ORDERS, REBALANCE_TIMEOUT_MS, SESSION_MS, Fleet, Remote
from tests.worker.simulated import until

pytestmark = pytest.mark.interop
EAGER, COMPATIBLE, SESSIONED, STATIC = ConnectProtocol
TASKS = 4


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    settings = BrokerSettings(data_path=tmp_path, group_limits=ClassicGroupSettings(initial_rebalance_delay_ms=100))
    async with running_broker(settings) as broker, AsyncExitStack() as stack:
        fleet = Fleet(f"127.0.0.1:{broker.port}", stack)
        fleet.delay_ms = 300
        yield fleet
        await fleet.stop()


async def until_all_run(remotes: list[Remote], protocol: ConnectProtocol, tasks: int = TASKS) -> None:
    """All workers use ``protocol``, are in one generation, and run all tasks, evenly distributed."""

    async def is_so() -> bool:
        answers = [await remote.worker.ask(DescribeWorker()) for remote in remotes]
        views = [answer for answer in answers if isinstance(answer, WorkerView) and answer.has_current_assignment]
        running = [len(remote.runtime.running) for remote in remotes]
        return (
            len(views) == len(remotes)
            and {view.protocol for view in views} == {protocol.setting}
            and len({view.generation for view in views}) == 1
            and sum(running) == tasks
            and max(running) - min(running) <= 1
        )

    await until(is_so, within_s=60)


async def bounce(fleet: Fleet, remote: Remote, number: int, protocol: ConnectProtocol) -> Remote:
    """Restart a worker as an operator does: stop it, change its ``connect.protocol``, start it."""
    remote.worker.order_shutdown("SIGTERM")
    assert (await remote.run).exit_code == 0
    return await fleet.start(number=number, protocol=protocol)


async def test_a_rolling_restart_changes_the_group_to_eager_and_another_one_to_static(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.protocol = COMPATIBLE
    remotes = [await fleet.start(), await fleet.start()]
    await until(lambda: all(remote.worker.phase == "running" for remote in remotes), within_s=60)
    await fleet.create(ORDERS, TASKS)
    await until_all_run(remotes, COMPATIBLE)
    for number in range(len(remotes)):
        with caplog.at_level(logging.WARNING):
            remotes[number] = await bounce(fleet, remotes[number], number, EAGER)
            await until_all_run(remotes, EAGER)
    assert "The group uses connect.protocol eager, not compatible" in caplog.text
    for number in range(len(remotes)):
        remotes[number] = await bounce(fleet, remotes[number], number, STATIC)
        # One remaining eager worker keeps the whole group on eager.
        await until_all_run(remotes, EAGER if number == 0 else STATIC)
    await fleet.until_running(remotes[0], ORDERS, TASKS)
    before = fleet.starts()
    newcomer = await fleet.start(protocol=STATIC)
    await until_all_run([*remotes, newcomer], STATIC)
    assert sum((fleet.starts() - before).values()) <= 2, "more tasks were stopped than have to move"


async def test_claims_apply_only_while_every_worker_uses_static(fleet: Fleet) -> None:
    claims = Jobs.of([ConnectorTaskId(ORDERS, 0)])
    remotes = [await fleet.start(), await fleet.start(claims=claims), await fleet.start(protocol=SESSIONED)]
    await until(lambda: all(remote.worker.phase == "running" for remote in remotes), within_s=60)
    await fleet.create(ORDERS, 6)
    await until_all_run(remotes, SESSIONED, 6)
    assert len(remotes[1].runtime.running) == 2, "claims do not apply yet"
    older = remotes.pop()
    older.worker.order_shutdown("SIGTERM")
    assert (await older.run).exit_code == 0
    await until(lambda: set(remotes[1].runtime.running) == claims.tasks, within_s=60)
    await until(lambda: len(remotes[0].runtime.running) == 5, within_s=60)


async def test_a_member_with_undecodable_metadata_gets_no_assignment_and_the_others_continue(fleet: Fleet) -> None:
    one = await fleet.start()
    await until(lambda: one.worker.phase == "running", within_s=60)
    await fleet.create(ORDERS, TASKS)
    await until_all_run([one], STATIC)
    before = fleet.starts()
    stranger = KafkaClassicCoordinatorClient(
        [fleet.bootstrap],
        client_id="stranger",
        request_timeout_ms=SESSION_MS // 3,
        parked_timeout_ms=REBALANCE_TIMEOUT_MS + PARKED_TIMEOUT_MARGIN_MS,
    )

    async def join(member_id: MemberId) -> JoinResponse:
        request = JoinRequest(
            group_id=fleet.group_id,
            member_id=member_id,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            protocol_type=PROTOCOL_TYPE,
            protocols=tuple((offered.wire_name, b"\x00\x03nonsense") for offered in STATIC.versions_to_offer),
        )
        answer = await stranger.ask(request)
        assert isinstance(answer, JoinResponse)
        return answer

    try:
        async with asyncio.timeout(30):
            joined = await join(MemberId(""))
            if joined.error is ErrorCode.member_id_required:
                joined = await join(joined.member_id)
            synced = await stranger.ask(
                SyncRequest(
                    group_id=fleet.group_id,
                    member_id=joined.member_id,
                    generation=joined.generation,
                    protocol_type=PROTOCOL_TYPE,
                    protocol=joined.protocol,
                )
            )
            assert synced == SyncResponse(error=ErrorCode.none, assignment=b"")
            await until_all_run([one], STATIC)
            assert fleet.starts() == before, "the other worker's tasks were stopped or moved"
            await stranger.ask(LeaveRequest(group_id=fleet.group_id, member_id=joined.member_id))
    finally:
        await stranger.close()
