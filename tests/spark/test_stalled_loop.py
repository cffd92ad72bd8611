"""A worker on real Spark whose event loop is blocked: it commits no batch when other workers may have its tasks."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from coterie.herder.seams import TaskHaltedWithoutOrder
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.spark.fence import FencedError
from coterie.spark.query import TaskQuery
from coterie.spark.runtime import SparkTaskRuntime
from coterie.spark.seams import Batch
from coterie.spark.sinks.file_copies import BatchCopy
from coterie.spark.sinks.files import FileSink
from coterie.spark.supervisor import CONCURRENT_STARTS_MAX
from tests.sink_files import visible_files
from tests.spark.conftest import Rig, rows_of, write_file
from tests.worker.fleet import SESSION_MS, Fleet
from tests.worker.simulated import until

pytestmark = [
    pytest.mark.spark,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(240),
]


class Feed:
    """Writes files of ten rows from a thread, so that there is data to read even if the event loop is blocked."""

    def __init__(self, folder: Path) -> None:
        self.rows = 0
        self._folder = folder

    @contextmanager
    def running(self) -> Iterator[None]:
        ended = threading.Event()

        def feed() -> None:
            while not ended.wait(0.15):
                write_file(self._folder, f"{self.rows:06}.csv", [(self.rows + row, 1.0, 1) for row in range(10)])
                self.rows += 10

        thread = threading.Thread(target=feed)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


async def test_a_stalled_worker_commits_nothing_after_its_session_and_loses_and_doubles_no_row(
    fleet: Fleet, lent: SparkTaskRuntime, rig: Rig, tmp_path: Path
) -> None:
    checkpoints = lent._config.checkpoint_location
    config = rig.config(tmp_path)
    feed = Feed(tmp_path / "in")

    def done() -> list[tuple[Path, float]]:
        """Every commit and every batch put in place, with its time."""
        paths = [*checkpoints.glob("flights-*/*/*/commits/[0-9]*"), *visible_files(tmp_path / "out")]
        return sorted((path, path.stat().st_mtime) for path in paths)

    worker, _ = await fleet.start_on(lent)
    await until(lambda: worker.phase == "running", within_s=120)
    await fleet.create(ConnectorName("flights"), 1, config)
    with feed.running():
        await until(lambda: len(rows_of(tmp_path / "out")) > 50, within_s=120)
        proved = worker._herder.place.lease_renewal
        await until(lambda: worker._herder.place.lease_renewal != proved)
        # The stall: all code up to its end blocks the event loop.
        began_s, rows = time.time(), feed.rows
        assert worker._herder.place.lease_ends_ms is not None
        lease_ends_s = began_s + worker._herder.place.lease_ends_ms / 1000 - time.monotonic()
        time.sleep(SESSION_MS / 1000)  # noqa: ASYNC251
        at_its_end = done()
        time.sleep(2.0)  # noqa: ASYNC251
        assert done() == at_its_end, "a batch was committed although other workers may have the tasks"
        assert feed.rows > rows, "there was no data to read"
        last_s = max(at_s for _, at_s in at_its_end)
        assert began_s < last_s < lease_ends_s + SESSION_MS / 3 / 1000, (
            "batches were committed up to the end of the lease only"
        )
        await until(lambda: len(done()) > len(at_its_end), within_s=120)
    await until(lambda: len(rows_of(tmp_path / "out")) >= feed.rows, within_s=120)
    assert rows_of(tmp_path / "out") == list(range(feed.rows))


async def test_a_halt_also_ends_tasks_that_are_starting_and_later_starts_run(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = rig.spark_runtime
    config = rig.config(tmp_path)
    write_file(tmp_path / "in", "0.csv", [(row, 1.0, 1) for row in range(10)])
    in_start, go_on = threading.Event(), threading.Event()
    start_query = TaskQuery.start

    def slow(query: TaskQuery) -> None:
        in_start.set()
        assert go_on.wait(60)
        start_query(query)

    monkeypatch.setattr(TaskQuery, "start", slow)
    async with asyncio.TaskGroup() as tasks:
        starting = tasks.create_task(rig.start(config, "half"))
        await rig.wait_until(in_start.is_set)
        await asyncio.to_thread(runtime.halt_all_tasks)
        go_on.set()
    monkeypatch.undo()
    task = starting.result().task
    async with asyncio.timeout(60):
        while await runtime.next_event() != TaskHaltedWithoutOrder(task=task):
            pass
    assert runtime.held_checkpoint(task) is None
    assert rows_of(tmp_path / "out") == []
    await runtime.start(starting.result())
    await rig.wait_until(lambda: rows_of(tmp_path / "out") == list(range(10)))
    await runtime.stop(task, grace_ms=10_000)


async def test_a_halt_ends_a_start_that_waits_for_a_thread_before_its_take_over(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = rig.spark_runtime
    threads = CONCURRENT_STARTS_MAX
    config = rig.config(tmp_path, tasks__max=str(threads + 1))
    in_start: list[TaskQuery] = []
    go_on = threading.Event()

    def slow(query: TaskQuery) -> None:
        in_start.append(query)
        assert go_on.wait(60)
        raise FencedError

    def running_count() -> int:
        return sum(run.task.connector == "queue" for run in runtime._supervisor._runs)

    monkeypatch.setattr(TaskQuery, "start", slow)
    async with asyncio.TaskGroup() as tasks:
        for index in range(threads + 1):
            tasks.create_task(rig.start(config, "queue", index))
        await rig.wait_until(lambda: len(in_start) == threads and running_count() == threads + 1)
        await asyncio.to_thread(runtime.halt_all_tasks)
        go_on.set()
    halted = set[ConnectorTaskId]()
    async with asyncio.timeout(60):
        while len(halted) <= threads:
            event = await runtime.next_event()
            if isinstance(event, TaskHaltedWithoutOrder) and event.task.connector == "queue":
                halted.add(event.task)
    assert running_count() == 0
    checkpoints = (runtime._config.checkpoint_location / "queue-i" / "gen-1").glob("[0-9]*")
    assert sorted(len(list(task.iterdir())) for task in checkpoints) == [1, *[2] * threads], "one was not taken over"


async def test_a_halt_ends_a_graceful_stop_and_leaves_the_last_batch_to_the_next_owner(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = rig.spark_runtime
    config = rig.config(tmp_path)
    write_file(tmp_path / "in", "0.csv", [(0, 1.0, 1)])
    start = await rig.start(config, "grace")
    await rig.wait_until(lambda: rows_of(tmp_path / "out") == [0])
    in_batch, go_on = threading.Event(), threading.Event()
    stage = FileSink.stage

    def slow(sink: FileSink, batch: Batch) -> BatchCopy:
        staged = stage(sink, batch)
        in_batch.set()
        assert go_on.wait(60)
        return staged

    monkeypatch.setattr(FileSink, "stage", slow)
    write_file(tmp_path / "in", "1.csv", [(1, 1.0, 1)])
    await rig.wait_until(in_batch.is_set)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(runtime.stop(start.task, grace_ms=60_000))
        await rig.wait_until(lambda: runtime.held_checkpoint(start.task) is None)
        await asyncio.to_thread(runtime.halt_all_tasks)
        go_on.set()
    assert rows_of(tmp_path / "out") == [0]
    assert start.task not in {run.task for run in runtime._supervisor._runs}
    monkeypatch.undo()
    await runtime.start(start)
    await rig.wait_until(lambda: rows_of(tmp_path / "out") == [0, 1])
    await runtime.stop(start.task, grace_ms=10_000)
