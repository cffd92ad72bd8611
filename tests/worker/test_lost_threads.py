"""A worker shows its lost threads; a worker with too many takes no new jobs: the group assigns them to other workers.
On a real broker."""

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from coterie.cli.workers import commands
from coterie.herder.seams import PluginThreadsLost
from coterie.nouns.membership import GroupProtocolName
from coterie.spark.call_ledger import CallQueueSpec
from coterie.spark.plugin_calls import PluginCalls, PluginTimeoutError
from tests.kafka.embedded_broker import EmbeddedBroker
from tests.worker.process_fleet import CONNECTOR, ProcessFleet, WorkerProcess
from tests.worker.simulated import until

pytestmark = pytest.mark.processes

NO_NEW_JOBS = "starts no new jobs until it is restarted: 65 of its threads hang in plug-ins"


@pytest.fixture(params=list(GroupProtocolName))
async def fleet(embedded_broker: EmbeddedBroker, request: pytest.FixtureRequest) -> AsyncIterator[ProcessFleet]:
    async with ProcessFleet(
        embedded_broker.bootstrap_servers,
        group=f"lost-{uuid.uuid4().hex[:8]}",
        properties={"group.protocol": request.param.value},
    ) as fleet:
        yield fleet


async def lose_threads(fleet: ProcessFleet, *processes: WorkerProcess) -> None:
    """Let the workers lose too many threads, and wait until the group has settled with that."""
    for process in processes:
        process.runtimes[-1].emit(PluginThreadsLost(lost_threads_total=65))

    async def are_known() -> bool:
        members = {member["name"]: member for member in (await fleet.group() or {"members": []})["members"]}
        lost = [members.get(process.name, {"claims": None, "no_new_jobs": None}) for process in processes]
        return (
            all(member["claims"] is not None and NO_NEW_JOBS in str(member["no_new_jobs"]) for member in lost)
            and await fleet.is_stable()
        )

    await until(are_known, within_s=60)


def stops(process: WorkerProcess) -> int:
    return sum(len(runtime.stops) for runtime in process.runtimes)


async def status_of(fleet: ProcessFleet, name: str) -> Any:
    answer = await fleet.client.get(f"{fleet.running_workers[0].url}/connectors/{name}/status")
    return answer.json() if answer.is_success else None


async def test_other_workers_receive_the_new_jobs_until_the_worker_is_restarted(
    fleet: ProcessFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    anna, bert, cleo = await fleet.start("anna", "bert", "cleo")
    await fleet.create("orders", 6)
    before = anna.running
    await lose_threads(fleet, anna)
    await fleet.create("flights", 6)
    assert anna.running == before, "it keeps its jobs, and receives no new ones"
    assert len(bert.running | cleo.running) == 12 - len(before)
    assert (stops(anna), len(fleet.running())) == (0, 12)
    await asyncio.to_thread(commands.show_group, bert.url, as_json=False)
    assert f"anna {NO_NEW_JOBS}" in " ".join(capsys.readouterr().out.split())

    assert (await fleet.client.post(f"{bert.url}/coterie/workers/anna/restart")).status_code == 202

    async def has_its_share() -> bool:
        shown = await fleet.group()
        members = [] if shown is None else shown["members"]
        return all(member["claims"] is None and member["no_new_jobs"] is None for member in members) and sorted(
            len(process.running) for process in (anna, bert, cleo)
        ) == [4, 4, 4]

    await until(has_its_share, within_s=60)


async def test_a_job_that_no_worker_takes_is_unassigned_with_the_reason_and_all_workers_are_unhealthy(
    fleet: ProcessFleet,
) -> None:
    workers = await fleet.start("anna", "bert")
    await fleet.create("orders", 4)
    await lose_threads(fleet, *workers)
    config = {**CONNECTOR, "tasks.max": "2"}
    answer = await fleet.client.post(f"{workers[0].url}/connectors", json={"name": "flights", "config": config})
    assert answer.status_code == 201, answer.text

    async def is_unassigned() -> bool:
        status = await status_of(fleet, "flights")
        return status is not None and NO_NEW_JOBS in status["connector"].get("trace", "")

    await until(is_unassigned, within_s=60)
    assert (await status_of(fleet, "flights"))["connector"]["state"] == "UNASSIGNED"
    shown = await fleet.group()
    assert shown is not None
    assert [job["connector"] for job in shown["unassigned"]] == ["flights"]
    for worker in workers:
        health = await fleet.client.get(f"{worker.url}/health")
        assert health.status_code == 500
        assert NO_NEW_JOBS in health.json()["message"]
    assert len(fleet.running()) == 4

    await fleet.start("cleo")

    async def all_run() -> bool:
        return len(fleet.running()) == 6

    await until(all_run, within_s=60)


async def test_the_gauge_rises_with_the_lost_threads_and_falls_when_they_return(fleet: ProcessFleet) -> None:
    (anna,) = await fleet.start("anna")
    runtime, loop, go_on = anna.runtimes[-1], asyncio.get_running_loop(), threading.Event()

    def report(count: int) -> None:
        """As the runtime for Spark does it."""
        loop.call_soon_threadsafe(runtime.emit, PluginThreadsLost(lost_threads_total=count))

    calls = PluginCalls(20, report)

    async def lose_thread() -> None:
        with pytest.raises(PluginTimeoutError):
            await calls.call(
                CallQueueSpec(name="validations", concurrent_calls_max=4),
                "connector orders",
                go_on.wait,
                stage="validate",
            )

    async def lost_threads() -> float:
        answer = await fleet.client.get(f"{anna.url}/metrics")
        families = {family.name: family for family in text_string_to_metric_families(answer.text)}
        return families["coterie_plugin_lost_threads"].samples[0].value

    async def until_gauge_is(expected: int) -> None:
        async def is_expected() -> bool:
            return await lost_threads() == expected

        await until(is_expected, within_s=30)

    try:
        assert await lost_threads() == 0
        await lose_thread()
        await until_gauge_is(1)
        await asyncio.gather(lose_thread(), lose_thread())
        await until_gauge_is(3)
        go_on.set()
        await until_gauge_is(0)
    finally:
        go_on.set()
        calls.close()
