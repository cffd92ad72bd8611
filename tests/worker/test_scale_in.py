"""Drains and restarts over a real broker and real REST: what moves, what does not, and how a worker ends."""

import asyncio
import json
import re
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from coterie.cli.plan import preview
from coterie.cli.workers import commands
from coterie.kafka.group_admin import GroupAdmin
from coterie.nouns.errors import WorldError
from coterie.nouns.membership import GroupProtocolName
from coterie.wire.connect import ConnectProtocol
from tests.kafka.embedded_broker import EmbeddedBroker
from tests.worker.process_fleet import ProcessFleet, WorkerProcess
from tests.worker.simulated import until

pytestmark = pytest.mark.processes

TASKS = 6


CONNECT_TOO = pytest.mark.parametrize("group_protocol", list(GroupProtocolName))
"""These tests run with both group protocols."""


@pytest.fixture
def group_protocol() -> GroupProtocolName:
    """The group protocol of tests that say no other."""
    return GroupProtocolName.CLASSIC


@pytest.fixture
async def fleet(embedded_broker: EmbeddedBroker, group_protocol: GroupProtocolName) -> AsyncIterator[ProcessFleet]:
    async with ProcessFleet(
        embedded_broker.bootstrap_servers,
        group=f"lives-{uuid.uuid4().hex[:8]}",
        properties={"group.protocol": group_protocol.value},
    ) as fleet:
        yield fleet


async def order(fleet: ProcessFleet, via: WorkerProcess, method: str, worker: str, what: str) -> Any:
    return await fleet.client.request(method, f"{via.url}/coterie/workers/{worker}/{what}")


async def leader_of(fleet: ProcessFleet) -> WorkerProcess:
    shown = await fleet.group()
    assert shown is not None
    # By its address: older protocols do not send worker names.
    return next(process for process in fleet.workers if process.url == f"http://{shown['leader']['worker_id']}")


def stops(process: WorkerProcess) -> int:
    return sum(len(runtime.stops) for runtime in process.runtimes)


@CONNECT_TOO
@pytest.mark.parametrize("role", ["a follower", "the leader"])
async def test_a_drain_moves_all_jobs_without_a_delay_and_the_worker_exits_with_code_0(
    fleet: ProcessFleet, role: str
) -> None:
    processes = await fleet.start("anna", "bert", "cleo")
    await fleet.create("orders", TASKS)
    before = fleet.starts()
    leader = await leader_of(fleet)
    drained = leader if role == "the leader" else next(process for process in processes if process is not leader)
    others = [process for process in processes if process is not drained]
    moved = drained.running
    assert moved

    # Requested through another worker, which finds the leader and the drained worker through the group only.
    await asyncio.to_thread(commands.drain_worker_and_wait, others[0].url, drained.name)

    assert drained.run is not None
    async with asyncio.timeout(60):
        assert await drained.run == 0
    await until(fleet.is_stable, within_s=60)
    assert len(fleet.running()) == TASKS
    grown = fleet.starts() - before
    assert grown == dict.fromkeys(moved, 1), "each moved task was started once, no other task was"
    assert [stops(process) for process in others] == [0, 0]
    shown = await fleet.group()
    assert shown is not None
    assert [member["name"] for member in shown["members"]] == sorted(process.name for process in others)
    assert (shown["deferred"], shown["unassigned"]) == ([], [])


@CONNECT_TOO
async def test_a_drain_moves_the_jobs_that_the_plan_shows(
    fleet: ProcessFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    processes = await fleet.start("anna", "bert", "cleo")
    await fleet.create("orders", TASKS)
    leader = await leader_of(fleet)
    drained = next(process for process in processes if process is not leader)
    options = preview.ChangeOptions(drain=[drained.name])
    await asyncio.to_thread(preview.show_plan, options, url=leader.url, file=None, as_json=True)
    planned = json.loads(capsys.readouterr().out)["after"]
    await asyncio.to_thread(commands.drain_worker_and_wait, leader.url, drained.name)
    await until(fleet.is_stable, within_s=60)
    for process in fleet.running_workers:
        assert sorted(process.running) == planned[process.name]["tasks"]


@CONNECT_TOO
async def test_a_drained_static_worker_leaves_the_group_before_its_session_ends(
    fleet: ProcessFleet, embedded_broker: EmbeddedBroker
) -> None:
    """Its session has a length of minutes: without a request to leave, its membership would remain."""
    admin = GroupAdmin([embedded_broker.bootstrap_servers], client_id="tests", timeout_ms=60_000)
    await admin.alter_group_configs(fleet.group_id, {"connect.session.timeout.ms": "300000"})
    session = {"session.timeout.ms": "300000", "rebalance.timeout.ms": "300000"}
    (static,) = await fleet.start("anna", properties={**session, "group.instance.id": "place-of-anna"})
    (other,) = await fleet.start("bert")
    await fleet.create("orders", 2)
    answer = await order(fleet, other, "POST", "place-of-anna", "drain")
    assert answer.status_code == 202
    assert static.run is not None
    async with asyncio.timeout(60):
        assert await static.run == 0

    async def only_one_is_left() -> bool:
        shown = await fleet.group()
        return shown is not None and [member["name"] for member in shown["members"]] == ["bert"]

    await until(only_one_is_left, within_s=60)
    await until(lambda: len(other.running) == 2, within_s=60)


@CONNECT_TOO
async def test_the_drain_of_the_last_worker_waits_with_a_reason_and_can_be_cancelled(
    fleet: ProcessFleet, group_protocol: GroupProtocolName, capsys: pytest.CaptureFixture[str]
) -> None:
    (anna,) = await fleet.start("anna")
    await fleet.create("orders", 2)
    assert (await order(fleet, anna, "POST", "anna", "drain")).status_code == 202

    async def waits() -> bool:
        shown = await fleet.group()
        if shown is None or shown["members"][0]["drain_waits"] is None:
            return False
        assert shown["members"][0]["drain_waits"] == "every worker is draining"
        return bool(shown["members"][0]["state"] == "STABLE")  # the round that the drain has caused is over

    await until(waits, within_s=60)
    assert (len(anna.running), stops(anna)) == (2, 0), "it keeps the jobs that no other worker can run"
    await asyncio.to_thread(commands.show_group, anna.url, as_json=False)
    output = " ".join(capsys.readouterr().out.split())
    counter, protocol = (
        ("Group epoch", "connect") if group_protocol is GroupProtocolName.CONNECT else ("Generation", "static")
    )
    assert re.match(rf"{counter} [0-9]+ \({protocol}\), led by anna", output)
    assert "The drain of anna waits: every worker is draining." in output
    assert "STABLE, draining 1 2 2 running" in output

    await asyncio.to_thread(commands.cancel_drain, anna.url, "anna")

    async def takes_work_again() -> bool:
        shown = await fleet.group()
        return shown is not None and not shown["members"][0]["draining"]

    await until(takes_work_again, within_s=60)
    (bert,) = await fleet.start("bert")
    await until(lambda: len(bert.running) == 1, within_s=60)
    assert len(anna.running) == 1, "it gets its share of the jobs again"


async def test_a_drain_waits_with_a_reason_while_the_group_uses_an_older_protocol(
    fleet: ProcessFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    (anna,) = await fleet.start("anna")
    await fleet.create("orders", 2)
    assert (await order(fleet, anna, "POST", "anna", "drain")).status_code == 202
    (older,) = await fleet.start("bert", properties={"connect.protocol": "sessioned"})
    why = "the group uses protocol sessioned, which cannot announce a drain; set connect.protocol=static on all workers"

    async def is_shown() -> bool:
        shown, view = await fleet.group(), await fleet.view(anna)
        of_anna = [member for member in shown["members"] if member["draining"]] if shown is not None else []
        return (
            view is not None and view["drain_waits"] == why and [process["drain_waits"] for process in of_anna] == [why]
        )

    await until(is_shown, within_s=60)
    await until(fleet.is_stable, within_s=60)
    await asyncio.to_thread(commands.show_group, anna.url, as_json=False)
    at = anna.url.removeprefix("http://")
    assert f"The drain of {at} waits: {why}." in " ".join(capsys.readouterr().out.split())
    assert len(fleet.running()) == 2
    await fleet.start("cleo")
    assert older.worker is not None
    assert older.run is not None
    older.worker.order_shutdown("the test goes on without it")
    await older.run
    assert anna.run is not None
    async with asyncio.timeout(60):
        assert await anna.run == 0, "the drain continues when all workers use static"


@CONNECT_TOO
async def test_workers_that_all_drain_keep_their_jobs_until_another_worker_joins(
    fleet: ProcessFleet,
) -> None:
    processes = await fleet.start("anna", "bert", "cleo")
    await fleet.create("orders", TASKS)
    ordered = await asyncio.gather(*(order(fleet, process, "POST", process.name, "drain") for process in processes))
    assert {answer.status_code for answer in ordered} == {202}

    async def all_wait() -> bool:
        shown = await fleet.group()
        return (
            shown is not None
            and [member["drain_waits"] for member in shown["members"]]
            == ["every worker is draining"] * len(fleet.running_workers)
            and not shown["unassigned"]
            and len(fleet.running()) == TASKS
            and await fleet.is_stable()
        )

    await until(all_wait, within_s=60)
    (dora,) = await fleet.start("dora")
    for process in processes:
        assert process.run is not None
        async with asyncio.timeout(60):
            assert await process.run == 0
    await until(lambda: len(dora.running) == TASKS, within_s=60)


@CONNECT_TOO
async def test_a_waiting_drain_continues_when_another_worker_joins(fleet: ProcessFleet) -> None:
    (anna,) = await fleet.start("anna")
    await fleet.create("orders", 2)
    assert (await order(fleet, anna, "POST", "anna", "drain")).status_code == 202
    (bert,) = await fleet.start("bert")
    assert anna.run is not None
    async with asyncio.timeout(60):
        assert await anna.run == 0
    await until(lambda: len(bert.running) == 2, within_s=60)


async def test_a_drain_is_refused_with_advice_when_the_group_uses_an_older_protocol(
    embedded_broker: EmbeddedBroker,
) -> None:
    group = f"lives-{uuid.uuid4().hex[:8]}"
    async with ProcessFleet(embedded_broker.bootstrap_servers, group=group, properties={}) as fleet:
        (anna,) = await fleet.start("anna")
        await fleet.start("bert", properties={"connect.protocol": "compatible"})
        at = anna.url.removeprefix("http://")  # This protocol does not send worker names.
        answer = await order(fleet, anna, "POST", at, "drain")
        assert answer.status_code == 409
        assert "uses protocol compatible" in answer.json()["message"]
        assert "connect.protocol=static" in answer.json()["message"]
        with pytest.raises(WorldError, match="uses protocol compatible"):
            await asyncio.to_thread(commands.drain_worker_and_wait, anna.url, at)
        assert len(fleet.running_workers) == 2


@CONNECT_TOO
async def test_a_rolling_restart_restarts_every_task_once_on_the_same_worker(
    fleet: ProcessFleet, group_protocol: GroupProtocolName
) -> None:
    processes = await fleet.start("anna", "bert", "cleo")
    await fleet.create("orders", TASKS)
    owned = {process.name: process.running for process in processes}
    before, last = fleet.starts(), await leader_of(fleet)
    order_of_ends: list[str] = []
    for process in processes:

        async def noted(name: str = process.name) -> None:
            order_of_ends.append(name)

        process.before_relaunch = noted
    generation, members = await _generation(fleet), await _member_ids(fleet)

    await asyncio.to_thread(commands.restart_workers_rolling, processes[0].url, timeout_s=60)

    assert fleet.starts() - before == dict.fromkeys(before, 1), "each task was started exactly once"
    assert {process.name: process.running for process in processes} == owned, "a task moved to another worker"
    assert [len(process.runtimes) for process in processes] == [2, 2, 2]
    assert order_of_ends[-1] == last.name, "the leader restarts last"
    assert await _member_ids(fleet) == members
    if group_protocol is GroupProtocolName.CONNECT:
        assert await _generation(fleet) == generation, "a restart in place changes nothing in a connect group"
    else:
        assert await _generation(fleet) <= generation + 1, "only the leader's restart requests a rebalance"


@CONNECT_TOO
async def test_a_rolling_restart_that_moves_jobs_runs_them_elsewhere_while_a_worker_restarts(
    fleet: ProcessFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    processes = await fleet.start("anna", "bert", "cleo")
    await fleet.create("orders", TASKS)
    configured = frozenset().union(*(process.running for process in processes))
    running_during_restarts: list[int] = []

    for process in processes:

        async def wait_for_moved_jobs(restarting: WorkerProcess = process) -> None:
            """Called between the end of a process and the start of the next one."""
            others = [other for other in processes if other is not restarting]
            await until(lambda: sum(len(other.running) for other in others) == len(configured), within_s=60)
            running_during_restarts.append(len(configured))

        process.before_relaunch = wait_for_moved_jobs

    await asyncio.to_thread(commands.restart_workers_rolling, processes[0].url, timeout_s=60, moves_jobs=True)

    assert running_during_restarts == [len(configured)] * 3, "a job waited for the restart of its worker"
    assert [len(process.runtimes) for process in processes] == [2, 2, 2]
    assert [process.handovers for process in processes] == [[None]] * 3, "each returns as a new member"
    assert max(len(process.running) for process in processes) < len(configured), "the workers have got jobs again"
    output = capsys.readouterr().out
    assert "moves its jobs to other workers, then restarts…" in output
    assert output.endswith("All 3 workers have restarted.\n")


@CONNECT_TOO
async def test_the_only_worker_cannot_move_its_jobs_before_a_restart(fleet: ProcessFleet) -> None:
    (anna,) = await fleet.start("anna")
    await fleet.create("orders", TASKS)
    with pytest.raises(WorldError, match="no other worker than anna, so its jobs cannot move"):
        await asyncio.to_thread(
            commands.restart_workers_rolling, anna.url, timeout_s=60, only_workers=("anna",), moves_jobs=True
        )


async def test_a_followers_restart_causes_no_rebalance_in_any_protocol(
    embedded_broker: EmbeddedBroker, protocol: ConnectProtocol
) -> None:
    group, properties = f"lives-{uuid.uuid4().hex[:8]}", {"connect.protocol": protocol.setting}
    async with ProcessFleet(embedded_broker.bootstrap_servers, group=group, properties=properties) as fleet:
        processes = await fleet.start("anna", "bert")
        await fleet.create("orders", 4)
        leader = await leader_of(fleet)
        follower = next(process for process in processes if process is not leader)
        owned, before, generation = follower.running, fleet.starts(), await _generation(fleet)
        worker_id = follower.url.removeprefix("http://")
        assert (await order(fleet, leader, "POST", worker_id, "restart")).status_code == 202
        await until(lambda: len(follower.runtimes) == 2 and follower.running == owned, within_s=60)
        assert await _generation(fleet) == generation
        assert fleet.starts() - before == dict.fromkeys(owned, 1)


async def _member_ids(fleet: ProcessFleet) -> set[str]:
    shown = await fleet.group()
    assert shown is not None
    return {member["member_id"] for member in shown["members"]}


async def _generation(fleet: ProcessFleet) -> int:
    await until(fleet.is_stable, within_s=60)
    shown = await fleet.group()
    assert shown is not None
    generation: int = shown["generation"]
    return generation
