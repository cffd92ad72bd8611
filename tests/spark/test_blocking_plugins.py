"""Plug-ins that block without end, on real Spark: no other connector is delayed, and they can be deleted."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from coterie.herder.requests.reads import ConnectorStatus, DescribeConnectorStatus
from coterie.herder.requests.refusals import RequestRefused
from coterie.herder.requests.views import DescribeWorker, WorkerView
from coterie.herder.requests.writes import DeleteConnector, DeletedConnector, PutConnector
from coterie.herder.seams import TaskEvent, TaskSpec
from coterie.nouns.ids import Incarnation
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.spark import supervisor
from coterie.spark.plugin_calls import PluginTimeoutError
from coterie.spark.runtime import SparkTaskRuntime
from coterie.spark.sinks.files import FileSink
from coterie.worker.worker import Worker
from tests import blocking_source
from tests.blocking_source import STAGES, blocking_config
from tests.spark import user_functions
from tests.spark.conftest import Rig, rows_of, write_file
from tests.spark.connector_tasks import Tasks
from tests.spark.gated_plugins import Gate, gated_member
from tests.spark.installed_plugins import installed_blocking_source
from tests.worker.fleet import Fleet
from tests.worker.simulated import until

pytestmark = [
    pytest.mark.spark,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(240),
]

CALL_TIMEOUT_MS = 4_000
GOOD = {"connector.class": "RateSource", "trigger.interval.ms": "500", "sink.format": "noop"}


@pytest.fixture(autouse=True)
def short_limits(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The source is installed, calls have a short time limit, and no call blocks after the test."""
    with installed_blocking_source(tmp_path, monkeypatch):
        monkeypatch.setattr(rig.spark_runtime._calls, "timeout_ms", CALL_TIMEOUT_MS)
        yield


async def all_threads_returned(rig: Rig) -> None:
    blocking_source.go_on.set()
    await rig.wait_until(lambda: rig.spark_runtime._calls.lost_thread_count == 0)


async def test_a_start_that_returns_after_it_was_abandoned_finds_its_fence_shut_and_reports_nothing(
    rig: Rig, tmp_path: Path
) -> None:
    config = blocking_config("start") | {"sink.format": "json", "sink.path": str(tmp_path / "out")}
    name, incarnation = ConnectorName("late-start"), Incarnation("i")
    (task_config,) = (await rig.split(name, incarnation, config | {"tasks.max": "1"}, ())).task_configs
    spec = TaskSpec(task=ConnectorTaskId(name, 0), connector_incarnation=incarnation, config=task_config)
    with pytest.raises(PluginTimeoutError, match=r"The plug-in of task late-start-0 has not returned from read"):
        await rig.runtime.start(spec)
    assert rig.spark_runtime._calls.lost_thread_count == 1
    assert not rig.spark_runtime._supervisor._runs
    await all_threads_returned(rig)
    assert rig.spark_runtime.held_checkpoint(spec.task) is None
    events: list[TaskEvent] = []
    while (event := await next_event_if_any(rig)) is not None:
        events.append(event)
    assert not [event for event in events if getattr(event, "task", None) == spec.task]
    # The next start takes over the checkpoint that the first one held.
    await rig.runtime.start(spec)
    await rig.wait_until(lambda: len(rows_of(tmp_path / "out", "value")) > 1)
    await rig.runtime.stop(spec.task, grace_ms=10_000)
    rows = rows_of(tmp_path / "out", "value")
    assert rows == list(range(len(rows)))


async def next_event_if_any(rig: Rig) -> TaskEvent | None:
    try:
        return await asyncio.wait_for(rig.runtime.next_event(), 0.5)
    except TimeoutError:
        return None


async def test_a_stop_of_a_batch_that_blocks_ends_soon_after_its_grace(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "INTERRUPTED_STOP_TIMEOUT_MS", 500)
    start = await rig.start(blocking_config("read"), "blocked-batch")
    (run,) = rig.spark_runtime._supervisor._runs
    held = rig.spark_runtime.held_checkpoint(start.task)
    assert held is not None
    await rig.wait_until((held.path / "offsets" / "0").exists)
    began_s = time.monotonic()
    await rig.runtime.stop(start.task, grace_ms=300)
    assert time.monotonic() - began_s < 20
    assert run.fence.is_closed
    assert not rig.spark_runtime._supervisor._runs
    assert rig.spark_runtime._calls.lost_thread_count == 1, "the thread that stops the batch waits for its end"
    await all_threads_returned(rig)
    assert not (held.path / "commits" / "0").exists(), "the batch was committed after its task was stopped"


async def test_a_re_split_that_blocks_ends_at_the_time_limit_of_each_call_and_can_be_tried_again(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks, config = Tasks(rig, "blocked-re-split"), rig.config(tmp_path)
    write_file(tmp_path / "in", "0.csv", [(row, 1.0, 1) for row in range(3)])
    failing = {
        "transforms": "f",
        "transforms.f.type": "Filter",
        "transforms.f.condition": "raise_error('no') IS NULL",
    }
    gated_rows = {
        "transforms": "f",
        "transforms.f.type": "Function",
        "transforms.f.function": "tests.spark.user_functions:gated_rows",
        "transforms.f.schema": "row BIGINT, delay DOUBLE, distance INT",
    }
    await tasks.split({**config, **failing})
    await tasks.start()
    await rig.end_of(tasks.running[0])
    await tasks.stop()
    gate = Gate()
    monkeypatch.setattr(user_functions, "function_gate", gate)

    async def split_blocks(count: int, stage: str, **keys: str) -> None:
        gate.close()
        message = rf"The plug-in of connector blocked-re-split has not returned from {stage} after"
        with pytest.raises(PluginTimeoutError, match=message):
            await tasks.split({**config, **keys, "tasks.max": str(count)})
        assert gate.has_blocked.is_set()
        gate.open()
        await all_threads_returned(rig)
        blocking_source.go_on.clear()

    # The first batch is in flight: the re-split must run it.
    await split_blocks(2, "transforms", **gated_rows)
    with monkeypatch.context() as patch:
        patch.setattr(FileSink, "close", gated_member(FileSink, "close", gate))
        await split_blocks(2, "close")
    await tasks.split({**config, "tasks.max": "2"})
    with monkeypatch.context() as patch:
        marker_removal = gated_member(FileSink, "remove_deduplication_data", gate)
        patch.setattr(FileSink, "remove_deduplication_data", marker_removal)
        await split_blocks(3, "remove_deduplication_data")
    await tasks.split({**config, "tasks.max": "3"})
    assert [task["generation"].split("-")[0] for task in tasks.configs] == ["3"] * 3
    assert rows_of(tmp_path / "out") == [0, 1, 2], "the batch in flight was written once"


async def test_connectors_that_block_in_every_stage_delay_no_other_and_can_be_deleted(
    fleet: Fleet, lent: SparkTaskRuntime, rig: Rig
) -> None:
    worker, _ = await fleet.start_on(lent)
    await until(lambda: worker.phase == "running", within_s=60)
    await until(lambda: worker._herder.place.is_leader_with_current_assignment, within_s=60)
    member_id = worker._herder.place.member_id
    good = [ConnectorName(f"good-{number}") for number in range(3)]
    bad = {stage: ConnectorName(f"blocks-in-{stage}") for stage in STAGES}
    creations = [asyncio.create_task(put(worker, name, blocking_config(stage))) for stage, name in bad.items()]
    creations += [asyncio.create_task(put(worker, name, GOOD)) for name in good]
    async with watched_batches(worker, good):
        answers = {name: await creation for name, creation in zip([*bad.values(), *good], creations, strict=True)}
        refusal = answers.pop(bad["validate"])
        assert isinstance(refusal, RequestRefused)
        assert "has not returned from validate" in refusal.message
        assert not [answer for answer in answers.values() if isinstance(answer, RequestRefused)]
        split_trace, start_trace = await asyncio.gather(
            failure_of(worker, bad["split"]), failure_of(worker, bad["start"])
        )
        assert "has not returned from initial_positions" in split_trace
        assert "has not returned from read" in start_trace
        stops = ConnectorTaskId(bad["stop"], 0)
        await until(
            lambda: (run := worker._herder.work.local_tasks.get(stops)) is not None and run.batch_id == 1, within_s=60
        )
        for name in (bad["split"], bad["start"], bad["read"], bad["stop"]):
            assert isinstance(await worker.ask(DeleteConnector(connector=name)), DeletedConnector)
        # The jobs of the deleted connectors are free, although their calls still block.
        await until(
            lambda: not any(task.connector in bad.values() for task in worker._herder.work.local_tasks), within_s=60
        )
        await until(lambda: has_lost(worker, len(STAGES)))
    assert worker._herder.place.member_id == member_id, "the worker has kept its membership"
    # Less than a call that blocks the event loop would take; a stall of a busy machine is shorter.
    assert worker.stall.longest_ms < CALL_TIMEOUT_MS
    for name in good:
        await worker.ask(DeleteConnector(connector=name))
    await all_threads_returned(rig)


async def has_lost(worker: Worker, count: int) -> bool:
    view = await worker.ask(DescribeWorker())
    assert isinstance(view, WorkerView)
    return view.lost_threads == count


async def put(worker: Worker, name: ConnectorName, config: dict[str, str]) -> object:
    return await worker.ask(
        PutConnector(connector=name, config={"name": name, "tasks.max": "1", **config}, may_replace=True)
    )


async def failure_of(worker: Worker, name: ConnectorName) -> str:
    """The trace with which the connector or its only task is FAILED; waits until it is."""
    async with asyncio.timeout(60):
        while True:
            status = await worker.ask(DescribeConnectorStatus(connector=name))
            if isinstance(status, ConnectorStatus):
                for one in (status.status, *(status for _, status in status.tasks)):
                    if one.state == "FAILED" and one.trace:
                        return one.trace
            await asyncio.sleep(0.1)


@asynccontextmanager
async def watched_batches(worker: Worker, names: list[ConnectorName]) -> AsyncIterator[None]:
    """Context manager: no task of ``names`` misses its batches in the block (:func:`watch_batches`)."""
    watch = asyncio.create_task(watch_batches(worker, names))
    try:
        yield
    finally:
        watch.cancel()
        with suppress(asyncio.CancelledError):
            await watch


async def watch_batches(worker: Worker, names: list[ConnectorName]) -> None:
    """Fail when a task that has committed a batch commits no other one for 10 s; its interval is 0.5 s."""
    last_seen: dict[ConnectorName, tuple[int, float]] = {}
    while True:
        for name in names:
            run = worker._herder.work.local_tasks.get(ConnectorTaskId(name, 0))
            if run is None or run.batch_id is None:
                continue
            batch_id, since_s = last_seen.get(name, (-1, 0.0))
            if run.batch_id != batch_id:
                last_seen[name] = (run.batch_id, time.monotonic())
            assert run.batch_id != batch_id or time.monotonic() - since_s < 10, f"{name} has missed its batches"
        await asyncio.sleep(0.2)
