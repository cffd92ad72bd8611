"""Workers with simulated tasks on the embedded broker, over TCP: topics, group and take-over are real, Spark is not."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from coterie.broker.server import running_broker
from coterie.broker.settings import BrokerSettings
from coterie.groups.classic.state import ClassicGroupSettings
from coterie.groups.connect.settings import ConnectGroupSettings
from coterie.nouns.jobs import ConnectorName
from coterie.nouns.membership import GroupProtocolName
from coterie.wire.connect import ConnectProtocol
from tests.worker.fleet import ORDERS, SESSION_MS, Fleet, Link
from tests.worker.simulated import until

pytestmark = pytest.mark.interop
CLASSIC, CONNECT = GroupProtocolName.CLASSIC, GroupProtocolName.CONNECT
FAST = pytest.mark.parametrize(
    ("group_protocol", "protocol"),
    [
        pytest.param(CLASSIC, ConnectProtocol.EAGER, id="eager"),
        pytest.param(CLASSIC, ConnectProtocol.COMPATIBLE, id="compatible", marks=pytest.mark.soak),
        pytest.param(CLASSIC, ConnectProtocol.SESSIONED, id="sessioned"),
        pytest.param(CLASSIC, ConnectProtocol.STATIC, id="static"),
        pytest.param(CONNECT, ConnectProtocol.STATIC, id="connect"),
    ],
)
"""``connect.protocol`` has no effect in a connect group."""
SLOW = pytest.mark.parametrize(
    ("group_protocol", "protocol"),
    [
        pytest.param(CLASSIC, ConnectProtocol.EAGER, id="eager"),
        pytest.param(CLASSIC, ConnectProtocol.STATIC, id="static"),
        pytest.param(CONNECT, ConnectProtocol.STATIC, id="connect", marks=pytest.mark.soak),
    ],
)
"""These tests wait for sessions to end, which does not differ between the cooperative protocols."""


def broker_settings(folder: Path, *, port: int = 0) -> BrokerSettings:
    return BrokerSettings(
        data_path=folder,
        port=port,
        group_limits=ClassicGroupSettings(initial_rebalance_delay_ms=300),
        connect_groups=ConnectGroupSettings(session_timeout_ms=SESSION_MS, initial_rebalance_delay_ms=300),
    )


@pytest.fixture
async def fleet(tmp_path: Path, protocol: ConnectProtocol, group_protocol: GroupProtocolName) -> AsyncIterator[Fleet]:
    async with running_broker(broker_settings(tmp_path)) as broker, AsyncExitStack() as stack:
        fleet = Fleet(f"127.0.0.1:{broker.port}", stack, protocol=protocol, group_protocol=group_protocol)
        yield fleet
        await fleet.stop()


@FAST
async def test_a_worker_continues_the_tasks_of_a_worker_that_left(fleet: Fleet) -> None:
    one, two = await fleet.start(), await fleet.start()
    await until(lambda: one.worker.phase == two.worker.phase == "running", within_s=60)
    await fleet.create(ORDERS, 4)
    await until(lambda: len(one.runtime.running) == len(two.runtime.running) == 2, within_s=60)
    await fleet.until_running(one, ORDERS, 4)
    kept = set(one.runtime.running)
    two.worker.order_shutdown("SIGTERM")
    assert (await two.run).exit_code == 0
    await until(lambda: len(one.runtime.running) == 4, within_s=60)
    await fleet.until_running(one, ORDERS, 4)
    starts = {fleet.starts()[str(task)] for task in kept}
    if fleet.protocol is ConnectProtocol.EAGER:
        assert min(starts) > 1, "an eager rebalance stops all tasks"
    else:
        assert starts == {1}, "a task that did not move was restarted"


@SLOW
async def test_a_short_broker_restart_stops_no_task_and_loses_no_record(
    tmp_path: Path, protocol: ConnectProtocol, group_protocol: GroupProtocolName
) -> None:
    async with AsyncExitStack() as stack:
        async with running_broker(broker_settings(tmp_path)) as broker:
            fleet = Fleet(f"127.0.0.1:{broker.port}", stack, protocol=protocol, group_protocol=group_protocol)
            one, two = await fleet.start(), await fleet.start()
            await until(lambda: one.worker.phase == two.worker.phase == "running", within_s=60)
            await fleet.create(ORDERS, 4)
            await until(lambda: len(one.runtime.running) == len(two.runtime.running) == 2, within_s=60)
            await fleet.until_running(one, ORDERS, 4)
        async with running_broker(broker_settings(tmp_path, port=broker.port)):
            before = fleet.starts()
            await fleet.create(ConnectorName("stock"), 1)
            await fleet.until_running(two, ConnectorName("stock"), 1)
            if protocol is ConnectProtocol.EAGER:
                assert set((fleet.starts() - before).values()) == {2, 1}, (
                    "one rebalance for the connector, one for its task"
                )
            else:
                assert set(fleet.starts().values()) == {1}
            await fleet.stop()


@SLOW
async def test_a_disconnected_worker_stops_within_its_session_and_another_worker_continues(fleet: Fleet) -> None:
    clock = asyncio.get_running_loop().time
    one = await fleet.start()
    async with Link(int(fleet.bootstrap.rpartition(":")[2])) as link:
        two = await fleet.start(port=link.port)
        await until(lambda: one.worker.phase == two.worker.phase == "running", within_s=60)
        await fleet.create(ORDERS, 4)
        await until(lambda: len(one.runtime.running) == len(two.runtime.running) == 2, within_s=60)
        link.cut()
        cut_s = clock()
        await until(lambda: not two.runtime.running, within_s=60)
        stopped_ms = (clock() - cut_s) * 1000
        assert len(one.runtime.running) == 2, "a task was continued that may still run elsewhere"
        assert stopped_ms < SESSION_MS
        await until(lambda: len(one.runtime.running) == 4, within_s=60)
        assert not two.runtime.running
