"""Listeners of rebalances on workers of a connect group, over TCP: the order of the calls, and faulty plug-ins."""

import asyncio
import logging
import threading
from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import ClassVar

import pytest

from coterie.assignors.connect.interface import LISTENER_ENTRY_POINTS
from coterie.broker.server import running_broker
from coterie.broker.settings import BrokerSettings
from coterie.cli import listeners
from coterie.groups.connect.settings import ConnectGroupSettings
from coterie.kafka.connect_coordinator import KafkaConnectCoordinatorClient
from coterie.member.connect.messages import HeartbeatRequest
from coterie.nouns.connect_groups import LEAVE_EPOCH
from coterie.nouns.ids import GroupEpoch, GroupId, MemberId
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId, Jobs
from tests.worker.fleet import Link
from tests.worker.process_fleet import ProcessFleet, WorkerProcess, largest_heartbeat_gap_ms
from tests.worker.simulated import until

pytestmark = pytest.mark.processes

GROUP = GroupId("workers")
SESSION_MS = 6_000
STALL_MAX_MS = 1_000
"""Far less than a blocked listener blocks, and far less than a lease."""
ORDERS = ConnectorName("orders")
ALL_JOBS = Jobs.of([ORDERS, *(ConnectorTaskId(ORDERS, number) for number in range(3))])


class JournalOfTest:
    """A listener that records its calls, for the one worker that has it."""

    calls: ClassVar[list[tuple[str, Jobs]]] = []

    def on_revoked(self, jobs: Jobs) -> None:
        self.calls.append(("revoked", jobs))

    def on_assigned(self, jobs: Jobs, assignment_epoch: GroupEpoch) -> None:
        assert assignment_epoch > 0
        self.calls.append(("assigned", jobs))

    def on_lost(self, jobs: Jobs) -> None:
        self.calls.append(("lost", jobs))


class Raises:
    """A listener all of whose methods fail."""

    def on_revoked(self, jobs: Jobs) -> None:
        raise ValueError("no")

    def on_assigned(self, jobs: Jobs, assignment_epoch: GroupEpoch) -> None:
        raise SystemExit(1)

    def on_lost(self, jobs: Jobs) -> None:
        raise ValueError("no")


class Blocks:
    """A listener that does not return until the test ends."""

    begun, returns = threading.Event(), threading.Event()

    def on_revoked(self, jobs: Jobs) -> None:
        self.begun.set()
        self.returns.wait()

    def on_assigned(self, jobs: Jobs, assignment_epoch: GroupEpoch) -> None:
        self.on_revoked(jobs)

    def on_lost(self, jobs: Jobs) -> None:
        self.on_revoked(jobs)


@pytest.fixture(autouse=True)
def _registered_listeners(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The listeners are installed; at the end, the one that blocks returns."""
    JournalOfTest.calls.clear()
    Blocks.begun.clear()
    Blocks.returns.clear()
    found = EntryPoints(
        EntryPoint(name, f"{__name__}:{cls.__name__}", LISTENER_ENTRY_POINTS)
        for name, cls in (("journal", JournalOfTest), ("raises", Raises), ("blocks", Blocks))
    )
    monkeypatch.setattr(listeners, "entry_points", lambda group: found)
    yield
    Blocks.returns.set()


def broker_settings(folder: Path, *, grace_ms: int = 2_000) -> BrokerSettings:
    groups = ConnectGroupSettings(
        session_timeout_ms=SESSION_MS, initial_rebalance_delay_ms=300, connection_grace_ms=grace_ms
    )
    return BrokerSettings(data_path=folder, connect_groups=groups)


def fleet_on(port: int) -> ProcessFleet:
    properties = {"group.protocol": "connect", "scheduled.rebalance.max.delay.ms": "0"}
    return ProcessFleet(f"127.0.0.1:{port}", group=GROUP, properties=properties)


def held() -> Jobs:
    """The jobs that the journal's worker runs, according to its calls; checks that the calls fit each other."""
    jobs = Jobs()
    for what, changed in list(JournalOfTest.calls):
        assert changed
        if what == "assigned":
            assert not jobs & changed, "assigned twice"
            jobs |= changed
        else:
            assert changed <= jobs, "stopped, and never assigned"
            jobs -= changed
    return jobs


async def member_id(fleet: ProcessFleet, name: str) -> MemberId:
    shown = await fleet.group()
    assert shown is not None
    (found,) = [MemberId(member["member_id"]) for member in shown["members"] if member["name"] == name]
    return found


async def test_listeners_are_called_after_starts_and_stops_although_one_of_them_raises(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_broker(broker_settings(tmp_path)) as broker, fleet_on(broker.port) as fleet:
        (anna,) = await fleet.start("anna", properties={"rebalance.listeners": "raises,journal"})
        await fleet.create(ORDERS, 3)
        await until(lambda: held() == ALL_JOBS, within_s=60)
        assert len(anna.running) == 3, "all were started before the call"
        await fleet.start("bert")
        await until(lambda: any(what == "revoked" for what, _ in JournalOfTest.calls), within_s=60)
        kept = held()
        assert {str(task) for task in kept.tasks} == anna.running, "the others have stopped before the call"
        assert anna.worker is not None
        assert anna.run is not None
        anna.worker.order_shutdown("SIGTERM")
        assert await anna.run == 0
        assert JournalOfTest.calls[-1] == ("revoked", kept)
        failures = {record.getMessage() for record in caplog.records if record.levelno == logging.ERROR}
        assert failures == {
            "on_assigned of rebalance listener raises has failed",
            "on_revoked of rebalance listener raises has failed",
        }


async def test_a_worker_that_the_coordinator_does_not_know_stops_all_jobs_and_rejoins_with_the_same_id(
    tmp_path: Path,
) -> None:
    async with running_broker(broker_settings(tmp_path)) as broker, fleet_on(broker.port) as fleet:
        (anna,) = await fleet.start("anna", properties={"rebalance.listeners": "journal"})
        await fleet.create(ORDERS, 3)
        await until(lambda: held() == ALL_JOBS, within_s=60)
        before = await member_id(fleet, "anna")
        await put_out(broker.port, before)
        await until(lambda: ("revoked", ALL_JOBS) in JournalOfTest.calls, within_s=60)
        await until(lambda: held() == ALL_JOBS and len(anna.running) == 3, within_s=60)
        assert [what for what, _ in JournalOfTest.calls][-2:] == ["revoked", "assigned"]
        await until(fleet.is_stable, within_s=60)
        assert await member_id(fleet, "anna") == before


async def put_out(port: int, member: MemberId) -> None:
    """Let the member leave the group without its knowledge: a request of another client does it in its name."""
    coordinator = KafkaConnectCoordinatorClient([f"127.0.0.1:{port}"], client_id="another", request_timeout_ms=10_000)
    try:
        await coordinator.ask(
            HeartbeatRequest(
                group_id=GROUP,
                member_id=member,
                member_epoch=LEAVE_EPOCH,
                request_number=1_000_000,
                response_timeout_ms=10_000,
            )
        )
    finally:
        await coordinator.close()


async def test_jobs_that_stop_because_the_lease_has_ended_are_lost(tmp_path: Path) -> None:
    async with (
        running_broker(broker_settings(tmp_path, grace_ms=0)) as broker,
        Link(broker.port) as link,
        fleet_on(broker.port) as fleet,
    ):
        await fleet.start("bert")
        properties = {"bootstrap.servers": f"127.0.0.1:{link.port}", "rebalance.listeners": "journal"}
        (anna,) = await fleet.start("anna", properties=properties)
        await fleet.create(ORDERS, 3)
        owned = await settled_jobs(anna)
        link.cut()
        await until(lambda: JournalOfTest.calls[-1] == ("lost", owned), within_s=60)
        assert not anna.running
        link.mend()
        await until(lambda: held() and len(held().tasks) == len(anna.running), within_s=60)


async def settled_jobs(process: WorkerProcess) -> Jobs:
    """The jobs of the journal's worker, as soon as they are those that run."""
    await until(lambda: held() and {str(task) for task in held().tasks} == process.running, within_s=60)
    return held()


async def test_a_listener_that_blocks_costs_no_heartbeat_and_no_move(tmp_path: Path) -> None:
    async with running_broker(broker_settings(tmp_path)) as broker, fleet_on(broker.port) as fleet:
        (anna,) = await fleet.start("anna", properties={"rebalance.listeners": "blocks,journal"})
        await fleet.create(ORDERS, 3)
        assert await asyncio.to_thread(Blocks.begun.wait, 60)
        before = await member_id(fleet, "anna")
        (bert,) = await fleet.start("bert")
        assert len(anna.running) + len(bert.running) == 3, "the revoked jobs were acknowledged"
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + 1.5 * SESSION_MS / 1000
        while loop.time() < ends_s:
            assert await member_id(fleet, "anna") == before
            await asyncio.sleep(0.2)
        assert await fleet.is_stable()
        assert sum(len(runtime.stops) for runtime in bert.runtimes) == 0
        assert anna.worker is not None
        assert anna.worker.stall.longest_ms < STALL_MAX_MS
        assert largest_heartbeat_gap_ms(broker, GROUP) < SESSION_MS / 2
        assert JournalOfTest.calls == [], "the calls after that of the blocked listener wait"
        Blocks.returns.set()
        await until(lambda: {str(task) for task in held().tasks} == anna.running, within_s=60)
