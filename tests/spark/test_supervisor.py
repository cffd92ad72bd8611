"""The supervisor's threads: a task that hangs in a sink does not delay other tasks."""

import asyncio
import errno
import logging
import os
import threading
from pathlib import Path
from types import ModuleType

import pytest

from coterie.herder.seams import (
    TaskCheckpointClosed,
    TaskDied,
    TaskHaltedWithoutOrder,
    TaskProgressed,
    TaskRetrying,
    TaskSpec,
)
from coterie.nouns.errors import UnreachableError, WorldError
from coterie.nouns.jobs import ConnectorTaskId
from coterie.spark import query, supervisor
from coterie.spark.checkpoint import take_over_checkpoint
from coterie.spark.fence import FencedError
from coterie.spark.generations.layout import CLOSED_FILE, STOPPED_FOLDER
from coterie.spark.seams import TaskCheckpointLineage
from coterie.spark.sinks.file_copies import BatchCopy
from coterie.spark.sinks.files import FileSink
from coterie.spark.supervisor import (
    CONCURRENT_RESTARTS_MAX,
    CONCURRENT_RESTARTS_OF_CONNECTOR_MAX,
    CONCURRENT_STARTS_MAX,
)
from tests.refused_threads import refuse_threads
from tests.spark.conftest import Rig, rows_of, write_file

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(180)]


def hold_commits(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Make commits of file sinks wait. The first event is set once one waits; the second one lets all continue."""
    in_commit, go_on = threading.Event(), threading.Event()
    put_in_place = BatchCopy.commit

    def slow(copy: BatchCopy) -> None:
        in_commit.set()
        assert go_on.wait(120)
        put_in_place(copy)

    monkeypatch.setattr(BatchCopy, "commit", slow)
    return in_commit, go_on


async def test_a_task_taken_during_a_commit_is_reported_at_once_and_other_tasks_are_still_supervised(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "coterie.spark.query")
    neighbour = await rig.start(rig.config(tmp_path / "neighbour"), "watched")
    in_effect, go_on = hold_commits(monkeypatch)
    write_file(tmp_path / "long" / "in", "a.csv", [(1, 1.0, 1)])
    long = await rig.start(rig.config(tmp_path / "long"), "long-effect")
    try:
        await rig.wait_until(in_effect.is_set)
        monkeypatch.undo()
        held = rig.spark_runtime.held_checkpoint(long.task)
        assert held is not None
        take_over_checkpoint(held.path.parent)
        died = await rig.end_of(long.task)
        assert not died.holds_checkpoint
        write_file(tmp_path / "neighbour" / "in", "a.csv", [(7, 1.0, 1)])
        async with asyncio.timeout(60):
            while not isinstance(event := await rig.runtime.next_event(), TaskProgressed) or not event.input_rows:
                pass
        assert event.task == neighbour.task
        assert rows_of(tmp_path / "neighbour" / "out") == [7]
        assert rows_of(tmp_path / "long" / "out") == [], "the effect has ended too early"
    finally:
        go_on.set()
    stopped = f"Task {long.task}: the query has stopped without its checkpoint, which another start has taken over"
    await rig.wait_until(lambda: any(message.startswith(stopped) for message in caplog.messages))
    await rig.runtime.stop(neighbour.task, grace_ms=10_000)


async def test_a_stopping_query_counts_as_running_until_its_last_batch_is_committed(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the lag of its connector in Kafka would be that of the previous batch."""
    in_commit, go_on = hold_commits(monkeypatch)
    write_file(tmp_path / "in", "a.csv", [(1, 1.0, 1)])
    start = await rig.start(rig.config(tmp_path), "stopped-late")

    def is_running() -> bool:
        return start.task in [query.task for query in rig.spark_runtime._supervisor.running_and_stopping_queries()]

    try:
        await rig.wait_until(in_commit.is_set)
        stopping = asyncio.create_task(rig.runtime.stop(start.task, grace_ms=60_000))
        await rig.wait_until(lambda: rig.spark_runtime.held_checkpoint(start.task) is None)
        assert is_running()
    finally:
        go_on.set()
    await stopping
    assert not is_running()
    assert rows_of(tmp_path / "out") == [1]


async def test_tasks_that_wait_for_a_server_do_not_delay_starts_of_other_connectors(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[ConnectorTaskId] = []
    waiting: list[ConnectorTaskId] = []
    go_on = threading.Event()
    take_over_folder = FileSink.take_over

    def unreachable(sink: FileSink, lineage: TaskCheckpointLineage, task_start_number: int) -> None:
        if lineage.task.connector != "away":
            take_over_folder(sink, lineage, task_start_number)
            return
        attempts.append(lineage.task)
        if attempts.count(lineage.task) > 1:
            waiting.append(lineage.task)
            assert go_on.wait(120)
        raise UnreachableError("the server cannot be reached")

    monkeypatch.setattr(FileSink, "take_over", unreachable)
    count = CONCURRENT_STARTS_MAX + 2
    config = rig.config(tmp_path / "away", tasks__max=str(count), errors__retry__timeout="-1")
    tasks = [(await rig.start(config, "away", index)).task for index in range(count)]
    try:
        await rig.wait_until(lambda: len(waiting) >= CONCURRENT_STARTS_MAX)
        traces: dict[ConnectorTaskId, str] = {}
        async with asyncio.timeout(30):
            while len(traces) < count:
                if isinstance(event := await rig.runtime.next_event(), TaskRetrying):
                    traces[event.task] = event.trace
        assert traces == dict.fromkeys(
            tasks,
            "A server cannot be reached; the task is restarted until errors.retry.timeout is over: "
            "The query did not start: the server cannot be reached",
        )
        write_file(tmp_path / "healthy" / "in", "a.csv", [(7, 1.0, 1)])
        healthy = await asyncio.wait_for(rig.start(rig.config(tmp_path / "healthy"), "healthy"), 60)
        await rig.wait_until(lambda: rows_of(tmp_path / "healthy" / "out") == [7])
        assert len(waiting) == CONCURRENT_RESTARTS_OF_CONNECTOR_MAX
        assert len(set(attempts)) == count
        for task in [*tasks, healthy.task]:
            await asyncio.wait_for(rig.runtime.stop(task, grace_ms=0), 60)
    finally:
        go_on.set()


async def test_a_start_that_a_sink_fences_is_reported_with_this_cause(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[Exception] = [FencedError(), WorldError("not yet"), FencedError()]

    def fail(sink: FileSink, lineage: TaskCheckpointLineage, task_start_number: int) -> None:
        raise failures.pop(0)

    monkeypatch.setattr(FileSink, "take_over", fail)
    fenced = await rig.start(rig.config(tmp_path), "fenced")
    died = await rig.end_of(fenced.task)
    assert (died.trace, died.holds_checkpoint) == ("A later start of the task has taken over in the sink", False)
    failed = await rig.start(rig.config(tmp_path), "fenced")
    assert (await rig.end_of(failed.task)).holds_checkpoint
    await rig.runtime.restart(failed.task)
    assert await rig.end_of(failed.task) == died
    assert rig.spark_runtime.held_checkpoint(failed.task) is None


@pytest.mark.parametrize("message", ["", "Another producer uses the transactional id c-0, or the id has expired"])
async def test_a_batch_that_a_sink_fences_ends_its_run_as_taken_over(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    def reject(*_: object) -> None:
        raise FencedError(message)

    monkeypatch.setattr(FileSink, "stage", reject)
    write_file(tmp_path / "in", "a.csv", [(7, 1.0, 1)])
    start = await rig.start(rig.config(tmp_path, errors__restart__max="0"), "fenced-batch")
    assert await rig.end_of(start.task) == TaskDied(
        task=start.task,
        trace=message or "A later start of the task has taken over in the sink",
        holds_checkpoint=False,
    )
    assert rig.spark_runtime.held_checkpoint(start.task) is None
    monkeypatch.undo()
    await rig.runtime.start(start)
    await rig.wait_until(lambda: rows_of(tmp_path / "out") == [7])
    await rig.runtime.stop(start.task, grace_ms=10_000)


async def test_a_start_that_fails_because_its_task_was_halted_is_reported_as_halted(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The herder must not start it again before the group has confirmed that the task is assigned to this worker."""
    start = await rig.start(rig.config(tmp_path), "halted-start")
    await rig.runtime.stop(start.task, grace_ms=0)

    def halt_and_fail(*_: object) -> None:
        rig.runtime.halt_all_tasks()
        raise WorldError("the folder is away")

    monkeypatch.setattr(supervisor, "take_over_in_open_generation", halt_and_fail)
    await rig.runtime.start(start)
    async with asyncio.timeout(30):
        while (event := await rig.runtime.next_event()) != TaskHaltedWithoutOrder(task=start.task):
            assert not isinstance(event, TaskDied)


@pytest.mark.parametrize("error", [WorldError, UnreachableError])
async def test_tasks_that_wait_for_a_server_do_not_delay_a_restart_that_the_herder_requests(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[WorldError]
) -> None:
    """Neither a restart of a task whose server can be reached again, nor one of a task without a server."""
    failed: list[ConnectorTaskId] = []
    waiting: list[ConnectorTaskId] = []
    go_on = threading.Event()
    take_over_folder = FileSink.take_over
    name = f"restarted-after-{error.__name__}"

    def take_over(sink: FileSink, lineage: TaskCheckpointLineage, task_start_number: int) -> None:
        if lineage.task in failed:
            if lineage.task.connector == name:
                take_over_folder(sink, lineage, task_start_number)
                return
            waiting.append(lineage.task)
            assert go_on.wait(120)
        failed.append(lineage.task)
        raise (error if lineage.task.connector == name else UnreachableError)("it fails once, or cannot be reached")

    monkeypatch.setattr(FileSink, "take_over", take_over)
    monkeypatch.setattr(supervisor, "CONCURRENT_RESTARTS_OF_CONNECTOR_MAX", CONCURRENT_RESTARTS_MAX)
    unreachable = rig.config(tmp_path / "away", tasks__max=str(CONCURRENT_RESTARTS_MAX), errors__retry__timeout="-1")
    tasks = [(await rig.start(unreachable, f"away-{name}", index)).task for index in range(CONCURRENT_RESTARTS_MAX)]
    try:
        await rig.wait_until(lambda: len(waiting) == CONCURRENT_RESTARTS_MAX)
        write_file(tmp_path / "back" / "in", "a.csv", [(7, 1.0, 1)])
        back = await rig.start(rig.config(tmp_path / "back"), name)
        assert (await rig.end_of(back.task)).holds_checkpoint
        await asyncio.wait_for(rig.runtime.restart(back.task), 30)
        await rig.wait_until(lambda: rows_of(tmp_path / "back" / "out") == [7])
        assert len(waiting) == CONCURRENT_RESTARTS_MAX, "a waiting restart has ended too early"
    finally:
        go_on.set()
    for task in [*tasks, back.task]:
        await asyncio.wait_for(rig.runtime.stop(task, grace_ms=0), 60)


async def test_without_a_thread_for_it_a_start_fails_and_leaves_nothing_behind(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start = await rig.start(rig.config(tmp_path), "no-thread")
    rig.runtime.halt_all_tasks()
    refuse_threads(monkeypatch, f"coterie task {start.task}")
    with pytest.raises(WorldError, match="the system starts no further thread"):
        await rig.runtime.start(start)
    caplog.clear()
    rig.runtime.halt_all_tasks()
    assert [line[:19] for line in caplog.messages] == ["Stopped all 0 tasks"], "a run is left"


async def test_without_a_thread_to_read_the_cause_a_failed_query_is_reported_and_can_be_restarted(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = await rig.start(rig.config(tmp_path), "no-cause")
    refuse_threads(monkeypatch, f"coterie task {start.task}")
    monkeypatch.setattr(FileSink, "stage", raise_world_error)
    write_file(tmp_path / "in", "a.csv", [(7, 1.0, 1)])
    died = await rig.end_of(start.task)
    assert died.trace.startswith("The query failed, and the cause could not be read: The call for task no-cause-0")
    assert (died.holds_checkpoint, died.can_restart) == (True, True)
    monkeypatch.undo()
    await rig.runtime.restart(start.task)
    await rig.wait_until(lambda: rows_of(tmp_path / "out") == [7])
    await rig.runtime.stop(start.task, grace_ms=10_000)


async def test_without_a_thread_for_it_a_restart_fails_and_can_be_ordered_later(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = await start_waiting_task(rig, tmp_path, monkeypatch, "no-restart")
    refuse_threads(monkeypatch, f"coterie task {start.task}")
    died = await rig.end_of(start.task)
    assert died.trace.startswith(f"The call for task {start.task} did not begin: the system starts no further thread")
    assert (died.holds_checkpoint, died.can_restart) == (True, True)
    monkeypatch.undo()
    write_file(tmp_path / "in", "a.csv", [(7, 1.0, 1)])
    await rig.runtime.restart(start.task)
    await rig.wait_until(lambda: rows_of(tmp_path / "out") == [7])
    await rig.runtime.stop(start.task, grace_ms=10_000)


async def start_waiting_task(
    rig: Rig, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, **config: str
) -> TaskSpec:
    """Start a task whose server cannot be reached, until ``monkeypatch.undo`` is called."""
    monkeypatch.setattr(FileSink, "take_over", raise_unreachable)
    start = await rig.start(rig.config(folder, errors__retry__timeout="-1", **config), name)
    async with asyncio.timeout(60):
        while not isinstance(await rig.runtime.next_event(), TaskRetrying):
            pass
    return start


async def test_a_waiting_run_that_cannot_be_polled_fails_with_the_cause(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start = await start_waiting_task(rig, tmp_path, monkeypatch, "unpolled")

    def fail(*_: object) -> bool:
        raise ValueError("a bug")

    monkeypatch.setattr(query, "is_checkpoint_taken_over_or_absent", fail)
    died = await rig.end_of(start.task)
    assert died.trace.startswith("ValueError: a bug\n\nTraceback")
    assert (died.holds_checkpoint, died.can_restart) == (True, False)
    assert len([message for message in caplog.messages if "polling the query failed" in message]) == 1
    monkeypatch.undo()
    await rig.runtime.stop(start.task, grace_ms=0)


async def test_a_restart_in_which_a_plug_in_exits_is_reported_as_failed(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = await start_waiting_task(rig, tmp_path, monkeypatch, "exits")
    monkeypatch.setattr(FileSink, "take_over", exit_process)
    died = await rig.end_of(start.task)
    assert died.trace.startswith("The query did not start: SystemExit: 3")
    assert (died.holds_checkpoint, died.can_restart) == (True, True)
    monkeypatch.undo()
    await rig.runtime.stop(start.task, grace_ms=0)


async def test_a_failed_restart_is_reported_also_when_the_checkpoint_cannot_be_read(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = await start_waiting_task(rig, tmp_path, monkeypatch, "folder-away-in-restart")

    def fail(*_: object) -> None:
        monkeypatch.setattr(query, "is_checkpoint_taken_over_or_absent", raise_os_error)
        raise WorldError("the sink is broken")

    monkeypatch.setattr(FileSink, "take_over", fail)
    died = await rig.end_of(start.task)
    assert died.trace == "The query did not start: the sink is broken"
    assert died.holds_checkpoint
    monkeypatch.undo()
    await rig.runtime.stop(start.task, grace_ms=0)


@pytest.mark.parametrize(
    ("module", "function"),
    [(query, "is_checkpoint_taken_over_or_absent"), (supervisor, "is_generation_closed_or_removed")],
)
async def test_a_failed_query_is_reported_with_its_cause_also_when_the_checkpoints_cannot_be_read(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType, function: str
) -> None:
    start = await rig.start(rig.config(tmp_path), "folder-away")
    monkeypatch.setattr(module, function, raise_os_error)
    monkeypatch.setattr(FileSink, "stage", raise_world_error)
    write_file(tmp_path / "in", "a.csv", [(7, 1.0, 1)])
    died = await rig.end_of(start.task)
    assert died.trace == "the sink is broken"
    assert died.holds_checkpoint
    monkeypatch.undo()
    await rig.runtime.stop(start.task, grace_ms=0)


async def test_a_sink_that_fails_to_close_does_not_keep_its_query_running(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = await rig.start(rig.config(tmp_path), "unclosed")
    [task_query] = [
        query for query in rig.spark_runtime._supervisor.running_and_stopping_queries() if query.task == start.task
    ]
    monkeypatch.setattr(FileSink, "close", raise_world_error)
    await rig.runtime.stop(start.task, grace_ms=0)
    assert not task_query.is_active()


async def test_a_stop_without_a_thread_for_it_returns_and_closes_the_fence(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = await rig.start(rig.config(tmp_path), "no-stop")
    refuse_threads(monkeypatch, f"coterie task {start.task}")
    await rig.runtime.stop(start.task, grace_ms=10_000)
    assert rig.spark_runtime.held_checkpoint(start.task) is None
    write_file(tmp_path / "in", "a.csv", [(7, 1.0, 1)])
    monkeypatch.undo()
    await rig.runtime.start(start)
    await rig.wait_until(lambda: rows_of(tmp_path / "out") == [7])
    await rig.runtime.stop(start.task, grace_ms=10_000)


@pytest.mark.parametrize("stops", ["ordered", "generation closed", "start in the closed generation"])
async def test_a_stop_that_cannot_be_recorded_is_logged_once_with_its_cause(
    rig: Rig, tmp_path: Path, caplog: pytest.LogCaptureFixture, stops: str
) -> None:
    start = await rig.start(rig.config(tmp_path), f"unrecorded-{stops.partition(' ')[0]}")
    held = rig.spark_runtime.held_checkpoint(start.task)
    assert held is not None
    generation = held.path.parent.parent
    record = generation / STOPPED_FOLDER / str(start.task.task)
    record.parent.mkdir()
    record.symlink_to(record)  # Each access fails with ELOOP.
    if stops == "ordered":
        await rig.runtime.stop(start.task, grace_ms=10_000)
    else:
        if stops.startswith("start"):
            rig.runtime.halt_all_tasks()
        (generation / CLOSED_FILE).touch()
        if stops.startswith("start"):
            await rig.runtime.start(start)
        async with asyncio.timeout(60):
            while await rig.runtime.next_event() != TaskCheckpointClosed(task=start.task):
                pass
    messages = [message for message in caplog.messages if "this could not be recorded" in message]
    assert len(messages) == 1
    assert messages[0].startswith(f"Task {start.task}: ")
    assert os.strerror(errno.ELOOP) in messages[0]


def raise_world_error(*_: object) -> None:
    raise WorldError("the sink is broken")


def raise_unreachable(*_: object) -> None:
    raise UnreachableError("the server cannot be reached")


def raise_os_error(*_: object) -> bool:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def exit_process(*_: object) -> None:
    raise SystemExit(3)
