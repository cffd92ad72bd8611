"""Workers of a connect group on the embedded broker, over TCP: what stops, what does not, and who takes over."""

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import ClassVar

import pytest

from coterie.assignors.connect.cooperative import CooperativeAssignor
from coterie.assignors.connect.interface import AssignorMetadata
from coterie.assignors.members import RebalancePolicy
from coterie.broker.server import Broker, running_broker
from coterie.broker.settings import BrokerSettings, GroupProtocol
from coterie.cli import assignors
from coterie.cli.assignor_watch import AssignorMetadataWatch
from coterie.cli.workers import compose
from coterie.groups.connect.settings import ConnectGroupSettings
from coterie.nouns.errors import ConfigError
from coterie.nouns.target_assignments import ComputedTarget, GroupSnapshot
from tests.kafka.embedded_broker import EmbeddedBroker
from tests.worker.fleet import Link
from tests.worker.process_fleet import ProcessFleet, WorkerProcess, largest_heartbeat_gap_ms
from tests.worker.simulated import until

pytestmark = pytest.mark.processes

SESSION_MS = 6_000
SETTINGS = ConnectGroupSettings(
    session_timeout_ms=SESSION_MS, initial_rebalance_delay_ms=300, computation_timeout_ms=1_000
)
DELAY = {"scheduled.rebalance.max.delay.ms": "1500"}


def connect_fleet(bootstrap: str, properties: Mapping[str, str] | None = None) -> ProcessFleet:
    return ProcessFleet(
        bootstrap,
        group=f"connect-{uuid.uuid4().hex[:8]}",
        properties={"group.protocol": "connect", **DELAY, **(properties or {})},
    )


def stop_count(process: WorkerProcess) -> int:
    return sum(len(runtime.stops) for runtime in process.runtimes)


@asynccontextmanager
async def broker_with_short_sessions(
    folder: Path,
    *,
    protocols: frozenset[GroupProtocol] = frozenset(GroupProtocol),
    connect_groups: ConnectGroupSettings = SETTINGS,
) -> AsyncIterator[Broker]:
    settings = BrokerSettings(data_path=folder, group_protocols=protocols, connect_groups=connect_groups)
    async with running_broker(settings) as broker:
        yield broker


async def test_the_jobs_of_a_stopped_worker_move_after_the_delay_and_no_other_task_stops(
    embedded_broker: EmbeddedBroker,
) -> None:
    async with connect_fleet(embedded_broker.bootstrap_servers) as fleet:
        anna, bert = await fleet.start("anna", "bert")
        await fleet.create("orders", 4)
        moved, before = bert.running, fleet.starts()
        assert len(moved) == 2
        assert bert.worker is not None
        assert bert.run is not None
        clock = asyncio.get_running_loop().time
        bert.worker.order_shutdown("SIGTERM")
        assert await bert.run == 0
        left_s = clock()
        await until(lambda: len(anna.running) == 4, within_s=60)
        assert (clock() - left_s) * 1000 > 1_000, "the jobs have waited for the worker to return"
        assert fleet.starts() - before == dict.fromkeys(moved, 1)
        assert stop_count(anna) == 0


async def test_a_killed_broker_stops_no_task_and_continues_with_the_same_group(mortal_broker: EmbeddedBroker) -> None:
    async with connect_fleet(mortal_broker.bootstrap_servers) as fleet:
        await fleet.start("anna", "bert")
        await fleet.create("orders", 4)
        owned, before = {process.name: process.running for process in fleet.workers}, fleet.starts()
        mortal_broker.kill()
        mortal_broker.start()
        await fleet.create("stock", 1)
        assert set((fleet.starts() - before).values()) == {1}, "only the new task was started"
        assert all(running <= process.running for process in fleet.workers for running in [owned[process.name]])
        assert [stop_count(process) for process in fleet.workers] == [0, 0]


async def test_a_disconnected_worker_stops_within_its_lease_and_another_worker_continues(tmp_path: Path) -> None:
    """The link is a proxy: its end of the connection says nothing about the worker (connection grace 0)."""
    clock, settings = asyncio.get_running_loop().time, replace(SETTINGS, connection_grace_ms=0)
    async with broker_with_short_sessions(tmp_path, connect_groups=settings) as broker, Link(broker.port) as link:
        properties = {"scheduled.rebalance.max.delay.ms": "0"}
        async with connect_fleet(f"127.0.0.1:{broker.port}", properties) as fleet:
            (anna,) = await fleet.start("anna")
            (bert,) = await fleet.start("bert", properties={"bootstrap.servers": f"127.0.0.1:{link.port}"})
            await fleet.create("orders", 4)
            assert len(bert.running) == 2
            link.cut()
            cut_s = clock()
            await until(lambda: not bert.running, within_s=60)
            assert (clock() - cut_s) * 1000 < SESSION_MS
            assert len(anna.running) == 2, "a task was continued that may still run elsewhere"
            await until(lambda: len(anna.running) == 4, within_s=60)
            link.mend()
            await until(lambda: len(bert.running) == 2, within_s=60)


async def test_a_worker_logs_one_line_if_the_broker_serves_no_connect_groups(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    protocols = frozenset({GroupProtocol.CLASSIC})
    async with (
        broker_with_short_sessions(tmp_path, protocols=protocols) as broker,
        connect_fleet(f"127.0.0.1:{broker.port}") as fleet,
    ):
        anna = fleet.begin("anna")
        assert anna.run is not None
        async with asyncio.timeout(60):
            assert await anna.run == 1
    (line,) = {record.getMessage() for record in caplog.records if "has ended: " in record.getMessage()}
    assert "group.protocol=classic" in line


class BlockingAssignor(CooperativeAssignor):
    """An assignor that never returns, until the test ends."""

    name = "blocking"
    returns = threading.Event()

    def assign(self, group: GroupSnapshot) -> ComputedTarget:
        self.returns.wait()
        return super().assign(group)


class ChangingAssignor(CooperativeAssignor):
    """An assignor whose metadata a test changes on one worker; records what it computes with."""

    name = "changing"
    instances: ClassVar[list["ChangingAssignor"]] = []
    snapshots: ClassVar[list[GroupSnapshot]] = []

    def __init__(self, policy: RebalancePolicy) -> None:
        super().__init__(policy)
        self.instances.append(self)
        self.offered = super().metadata()
        self.reads = 0

    def metadata(self) -> AssignorMetadata:
        self.reads += 1
        return self.offered

    def is_read_again(self) -> Callable[[], bool]:
        """Whether the metadata were read five times since now: so that a second report would have followed."""
        last = self.reads + 5
        return lambda: self.reads > last

    def assign(self, group: GroupSnapshot) -> ComputedTarget:
        self.snapshots.append(group)
        return super().assign(group)


class SilentAssignor(CooperativeAssignor):
    """An assignor whose metadata cannot be had until the test ends."""

    name = "silent"

    def metadata(self) -> AssignorMetadata:
        BlockingAssignor.returns.wait()
        return super().metadata()


class LyingAssignor(CooperativeAssignor):
    """An assignor that assigns no job at all."""

    name = "lying"

    def assign(self, group: GroupSnapshot) -> ComputedTarget:
        return ComputedTarget(members={})


class MistypingAssignor(CooperativeAssignor):
    """An assignor whose target cannot be written as a request."""

    name = "mistyping"

    def assign(self, group: GroupSnapshot) -> ComputedTarget:
        return ComputedTarget(members=dict.fromkeys([one.member_id for one in group.members]))  # type: ignore[arg-type]


class RaisingAssignor(CooperativeAssignor):
    """An assignor all of whose computations fail."""

    name = "raising"

    def assign(self, group: GroupSnapshot) -> ComputedTarget:
        raise ValueError("no")


@pytest.fixture
def _registered_assignors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The assignors of this module are the installed ones; at the end, those that block return."""
    BlockingAssignor.returns.clear()
    ChangingAssignor.instances.clear()
    ChangingAssignor.snapshots.clear()
    found = EntryPoints(
        EntryPoint(cls.name, f"{__name__}:{cls.__name__}", "coterie.assignors")
        for cls in (
            BlockingAssignor,
            ChangingAssignor,
            LyingAssignor,
            MistypingAssignor,
            RaisingAssignor,
            SilentAssignor,
        )
    )
    monkeypatch.setattr(assignors, "entry_points", lambda group: found)
    yield
    BlockingAssignor.returns.set()


@pytest.mark.usefixtures("_registered_assignors")
@pytest.mark.parametrize("name", ["blocking", "raising", "lying", "mistyping"])
async def test_an_assignor_that_blocks_raises_or_lies_costs_no_worker_its_membership_or_a_heartbeat(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        broker_with_short_sessions(tmp_path) as broker,
        connect_fleet(f"127.0.0.1:{broker.port}", {"group.local.assignors": name}) as fleet,
    ):
        for worker in ("anna", "bert"):
            fleet.begin(worker)
        await until(lambda: _both_are_members(fleet), within_s=60)
        config = {"connector.class": "SimulatedSource", "tasks.max": "1"}
        body = {"name": "orders", "config": config}
        assert (await fleet.client.post(f"{fleet.workers[0].url}/connectors", json=body)).status_code == 201
        members = await _member_ids(fleet)
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + 1.5 * SESSION_MS / 1000
        while loop.time() < ends_s:
            assert await _member_ids(fleet) == members, "a member was lost"
            await asyncio.sleep(0.2)
        assert not fleet.running(), "no target was computed"
        assert not [one for one in caplog.records if "Bug in Coterie" in one.getMessage()]
        assert largest_heartbeat_gap_ms(broker, fleet.group_id) < SESSION_MS / 2


@pytest.mark.usefixtures("_registered_assignors")
async def test_an_assignor_that_asks_for_a_target_causes_one_computation_and_no_job_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compose, "AssignorMetadataWatch", partial(AssignorMetadataWatch, interval_ms=200))
    async with (
        broker_with_short_sessions(tmp_path) as broker,
        connect_fleet(f"127.0.0.1:{broker.port}", {"group.local.assignors": "changing"}) as fleet,
    ):
        await fleet.start("anna", "bert")
        await fleet.create("orders", 4)
        starts, members, epoch = fleet.starts(), await _member_ids(fleet), await _group_epoch(fleet)
        asking = ChangingAssignor.instances[0]
        for number, (metadata, reason) in enumerate([(b"new", 2), (b"new", 3), (b"newer", 0)], start=1):
            ChangingAssignor.snapshots.clear()
            asking.offered = AssignorMetadata(version=3, metadata=metadata, reason=reason)
            await until(lambda: bool(ChangingAssignor.snapshots), within_s=60)
            await until(asking.is_read_again(), within_s=60)
            (snapshot,) = ChangingAssignor.snapshots
            assert snapshot.group_epoch == epoch + number
            assert sorted((one.metadata, one.reason) for one in snapshot.members) == [(b"", 0), (metadata, reason)]
            assert await _group_epoch(fleet) == epoch + number
        assert fleet.starts() == starts
        assert [stop_count(process) for process in fleet.workers] == [0, 0]
        assert await _member_ids(fleet) == members


@pytest.mark.usefixtures("_registered_assignors")
async def test_a_worker_whose_assignor_blocks_at_the_start_ends_with_its_name(
    embedded_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compose, "AssignorMetadataWatch", partial(AssignorMetadataWatch, timeout_ms=50))
    async with connect_fleet(embedded_broker.bootstrap_servers, {"group.local.assignors": "silent"}) as fleet:
        anna = fleet.begin("anna")
        assert anna.run is not None
        with pytest.raises(ConfigError, match=r"metadata of assignor silent did not return within 0\.05 s"):
            async with asyncio.timeout(60):
                await anna.run
        fleet.workers.clear()


async def _group_epoch(fleet: ProcessFleet) -> int:
    shown = await fleet.group()
    assert shown is not None
    epoch = shown["generation"]
    assert isinstance(epoch, int)
    return epoch


async def _member_ids(fleet: ProcessFleet) -> set[str]:
    shown = await fleet.group()
    assert shown is not None
    return {member["member_id"] for member in shown["members"]}


async def _both_are_members(fleet: ProcessFleet) -> bool:
    if any(process.url == "" for process in fleet.workers):
        return False
    shown = await fleet.group()
    return shown is not None and len(shown["members"]) == 2
