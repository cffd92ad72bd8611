"""Workers with simulated tasks on the embedded broker, over TCP: topics, group, take-over, all real but Spark."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from coterie.broker.server import running
from coterie.broker.settings import BrokerSettings
from coterie.groups.classic.state import Limits
from coterie.nouns.jobs import ConnectorName
from coterie.wire.connect import ConnectProtocol
from tests.worker.fleet import ORDERS, SESSION_MS, Fleet, Link
from tests.worker.simulated import until

pytestmark = pytest.mark.interop
SLOW = pytest.mark.parametrize("protocol", [ConnectProtocol.EAGER, ConnectProtocol.STATIC], ids=["eager", "static"])
"""Sessions have to end here, and between the cooperative protocols there is no difference in that."""


@pytest.fixture
async def fleet(tmp_path: Path, protocol: ConnectProtocol) -> AsyncIterator[Fleet]:
    settings = BrokerSettings(data_path=tmp_path, limits=Limits(initial_rebalance_delay_ms=300))
    async with running(settings) as broker, AsyncExitStack() as stack:
        fleet = Fleet(f"127.0.0.1:{broker.port}", stack, protocol=protocol)
        yield fleet
        await fleet.stop()


async def test_two_workers_share_a_connector_and_one_continues_what_the_other_left(fleet: Fleet) -> None:
    one, two = await fleet.start(), await fleet.start()
    await until(lambda: one.worker.phase == two.worker.phase == "running", within_s=60)
    await fleet.create(ORDERS, 4)
    await until(lambda: len(one.runtime.running) == len(two.runtime.running) == 2, within_s=60)
    await fleet.until_running(one, ORDERS, 4)
    kept = set(one.runtime.running)
    two.worker.order_shutdown("SIGTERM")
    assert (await two.run).code == 0
    await until(lambda: len(one.runtime.running) == 4, within_s=60)
    await fleet.until_running(one, ORDERS, 4)
    starts = {fleet.starts()[str(task)] for task in kept}
    if fleet.protocol is ConnectProtocol.EAGER:
        assert min(starts) > 1, "eager stops everything"
    else:
        assert starts == {1}, "what stayed was never touched"


@SLOW
async def test_a_broker_that_is_soon_back_stops_nothing_and_has_forgotten_nothing(
    tmp_path: Path, protocol: ConnectProtocol
) -> None:
    limits = Limits(initial_rebalance_delay_ms=300)
    async with AsyncExitStack() as stack:
        async with running(BrokerSettings(data_path=tmp_path, limits=limits)) as broker:
            fleet = Fleet(f"127.0.0.1:{broker.port}", stack, protocol=protocol)
            one, two = await fleet.start(), await fleet.start()
            await until(lambda: one.worker.phase == two.worker.phase == "running", within_s=60)
            await fleet.create(ORDERS, 4)
            await until(lambda: len(one.runtime.running) == len(two.runtime.running) == 2, within_s=60)
            await fleet.until_running(one, ORDERS, 4)
        async with running(BrokerSettings(data_path=tmp_path, port=broker.port, limits=limits)):
            before = fleet.starts()
            await fleet.create(ConnectorName("stock"), 1)
            await fleet.until_running(two, ConnectorName("stock"), 1)
            if protocol is ConnectProtocol.EAGER:
                assert set((fleet.starts() - before).values()) == {2, 1}, "two rounds, for the connector and its task"
            else:
                assert set(fleet.starts().values()) == {1}
            await fleet.stop()


@SLOW
async def test_a_worker_that_is_cut_off_stops_within_its_session_and_another_continues(fleet: Fleet) -> None:
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
        assert len(one.runtime.running) == 2, "nobody continues what still may run"
        assert stopped_ms < SESSION_MS
        await until(lambda: len(one.runtime.running) == 4, within_s=60)
        assert not two.runtime.running
