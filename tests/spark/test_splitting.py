"""Connectors are split again on a real Spark session: tasks stop, the next generation continues, each row is once."""

import asyncio
import itertools
import json
import os
import threading
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from coterie.herder.seams import (
    RuntimeDied,
    SourcePartsChanged,
    SplitOrOffsetChangeAbortedError,
    SplitResult,
    TaskCheckpointClosed,
)
from coterie.nouns.errors import UnreachableError, WorldError
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.spark import plugins, splitting, supervisor
from coterie.spark.checkpoint import (
    create_first_checkpoint_if_absent,
    find_batch_id_in_flight,
    last_batch_id_in_log,
    take_over_checkpoint,
)
from coterie.spark.events import EventQueue
from coterie.spark.fence import Fence, FencedError
from coterie.spark.generations.split import Split, SplitFunction
from coterie.spark.pipeline import Pipeline
from coterie.spark.prefixed_config import PrefixedConfig
from coterie.spark.query import TaskQuery
from coterie.spark.seams import TooManyTasksError
from coterie.spark.session import SparkDriver
from coterie.spark.sinks.files import FileSink
from coterie.spark.sources.file_log import to_spark_file_uri
from coterie.spark.sources.files import DEFINITION, FileSource
from coterie.spark.splitting import Splitter
from tests.refused_threads import refuse_threads
from tests.sink_files import take_back
from tests.spark.conftest import Rig, rows_of, write_file
from tests.spark.connector_tasks import INCARNATION, NAMES, Tasks
from tests.spark.sinks.postgres_server import PostgresServer, running_server

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(240)]


async def closed(rig: Rig, tasks: list[ConnectorTaskId]) -> None:
    """Wait until each task is reported as closed."""
    left = set(tasks)
    async with asyncio.timeout(60):
        while left:
            event = await rig.runtime.next_event()
            assert not isinstance(event, RuntimeDied), event
            if isinstance(event, TaskCheckpointClosed):
                left.discard(event.task)


def write_files(folder: Path, first: int, count: int) -> None:
    for row in range(first, first + count):
        write_file(folder / "in", f"{NAMES[row % len(NAMES)]} {row}.csv", [(row, 1.0, 1)])


def write_files_of_tasks(folder: Path, count: int, split: Split) -> None:
    """Write ``count`` files with one row each. The task ``row % task count`` of ``split`` reads the file of ``row``:
    which task reads a file depends on the hash of the whole path, so the name is chosen for the folder of this test."""
    task_count = len(split.partitions_by_task)
    for row in range(count):
        names = (f"{NAMES[row % len(NAMES)]} {row} {number}.csv" for number in itertools.count())
        name = next(
            name
            for name in names
            if split.positions_of_task(row % task_count, {to_spark_file_uri(str(folder / "in" / name)): 0})
        )
        write_file(folder / "in", name, [(row, 1.0, 1)])


async def test_a_re_split_closes_running_tasks_and_every_row_is_read_once(rig: Rig, tmp_path: Path) -> None:
    tasks = Tasks(rig, "split-again")
    before = rig.config(tmp_path, tasks__max="2", source__max__files__per__trigger="1")
    written = 0
    for count in (2, 3, 1, 4):
        write_files(tmp_path, written, 6)
        written += 6
        former = tasks.running
        await tasks.split({**before, "tasks.max": str(count)})
        assert len(tasks.configs) == count
        # The query of each former task has ended before the split returned.
        await closed(rig, former)
        assert [rig.spark_runtime.held_checkpoint(task) for task in former] == [None] * len(former)
        tasks.running = []
        await tasks.start()
        # After some batches, the next split follows during further ones.
        seen = len(rows_of(tmp_path / "out")) if (tmp_path / "out").exists() else 0
        await rig.wait_until(lambda: len(rows_of(tmp_path / "out")) >= seen + 2)  # noqa: B023
    await rig.wait_until(lambda: rows_of(tmp_path / "out") == list(range(written)))
    await tasks.stop()
    assert rows_of(tmp_path / "out") == list(range(written))
    assert sorted(name for name in os.listdir(tasks.folder) if (tasks.folder / name).is_dir()) == ["gen-3", "gen-4"]
    # The sink's marks were removed with the generations, and replaced by plain files.
    marks = {path.name.rpartition("-")[2]: path for path in (tmp_path / ".out.coterie" / "committed").iterdir()}
    lineages = {path.read_text() for path in tasks.folder.rglob("lineage") if path.is_file()}
    assert {lineage for lineage, path in marks.items() if path.is_dir()} == lineages & marks.keys()
    assert len(marks.keys() - lineages) > 0


class UnlimitedSource(FileSource):
    """A source of another package that ignores ``tasks.max``."""

    @classmethod
    def divide_partitions(cls, source_partitions: Sequence[str], tasks_max: int) -> Sequence[Sequence[str]]:
        return FileSource.divide_partitions(source_partitions, 3)


async def test_a_source_with_too_many_tasks_fails_unless_the_limit_is_not_enforced(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    known = plugins.source_by_name()
    monkeypatch.setattr(plugins, "source_by_name", lambda: {**known, "UnlimitedSource": UnlimitedSource})
    tasks = Tasks(rig, "unlimited")
    config = rig.config(tmp_path, connector__class="UnlimitedSource", name="unlimited")
    write_files(tmp_path, 0, 12)
    with pytest.raises(TooManyTasksError) as raised:
        await tasks.split(config)
    begin = (
        "The connector unlimited has generated 3 tasks, which is greater than 1, the maximum number of tasks it is "
        "configured to create. "
    )
    assert str(raised.value) == (
        f"{begin}This behaviour should be considered a bug and is disallowed. If necessary, it can be permitted by "
        "reconfiguring the connector with 'tasks.max.enforce' set to false; however, this option will be removed in a "
        "future release of Kafka Connect."
    )
    assert tasks.configs == []
    await tasks.split(config | {"tasks.max.enforce": "false"})
    assert [message for message in caplog.messages if message.startswith(begin)]
    assert len(tasks.configs) == 3
    await tasks.start()
    await rig.wait_until(lambda: rows_of(tmp_path / "out") == list(range(12)))
    await tasks.stop()


async def test_a_split_can_be_tried_again_while_the_folder_of_the_checkpoints_is_away(rig: Rig, tmp_path: Path) -> None:
    tasks = Tasks(rig, "folder-away")
    config = rig.config(tmp_path)
    await tasks.split(config)
    folder, away = tasks.folder, tasks.folder.with_name("away")
    folder.rename(away)
    folder.touch()  # a file: reading and writing in this folder fails
    with pytest.raises(UnreachableError, match=f"The checkpoints in {folder} cannot be read or written"):
        await tasks.split({**config, "tasks.max": "2"})
    folder.unlink()
    away.rename(folder)
    await tasks.split({**config, "tasks.max": "2"})
    assert len(tasks.configs) == 2


async def test_a_config_with_the_same_source_and_sink_keeps_the_generation(rig: Rig, tmp_path: Path) -> None:
    tasks = Tasks(rig, "same")
    config = rig.config(tmp_path)
    await tasks.split(config)
    (first,) = tasks.configs
    changed = {
        **config,
        "trigger.interval.ms": "5",
        "transforms": "kept",
        "transforms.kept.type": "Filter",
        "transforms.kept.condition": "row > 0",
    }
    await tasks.split(changed)
    (second,) = tasks.configs
    assert first["generation"] == second["generation"]
    assert second["transforms.kept.condition"] == "row > 0"
    # While a task is FAILED it keeps its share, and gets changes that may fix it.
    mended = {**changed, "tasks.max": "2", "transforms.kept.condition": "row > 1"}
    result = await rig.split(tasks.name, INCARNATION, mended, tasks.configs, keeps_source_parts=True)
    (kept,) = result.task_configs
    assert result.kept_source_parts_reason is not None
    assert result.kept_source_parts_reason.startswith(
        "One of the connector's tasks is failing, so the tasks keep their source"
    )
    assert (kept["generation"], kept["task.count"]) == (first["generation"], "1")
    assert kept["transforms.kept.condition"] == "row > 1"


@pytest.mark.parametrize("was_written", [False, True])
async def test_a_batch_in_flight_is_finished_once_in_its_former_sink(
    rig: Rig, tmp_path: Path, was_written: bool
) -> None:
    tasks = Tasks(rig, f"in-flight-{was_written}")
    config = rig.config(tmp_path, source__max__files__per__trigger="2")
    write_files(tmp_path, 0, 6)
    await tasks.split(config)
    await tasks.start()
    await rig.wait_until(lambda: rows_of(tmp_path / "out") == list(range(6)))
    checkpoint = tasks.held(0)
    await tasks.stop()
    # As after a kill of the owner inside its last batch, before or after the batch was put in place.
    last = last_batch_id_in_log(checkpoint / "commits")
    assert last == 2
    (checkpoint / "commits" / "2").unlink()
    if not was_written:
        take_back(tmp_path / "out", 2)
        assert len(rows_of(tmp_path / "out")) == 4
    assert find_batch_id_in_flight(checkpoint) == 2

    write_files(tmp_path, 6, 3)
    await tasks.split({**config, "sink.path": str(tmp_path / "elsewhere"), "tasks.max": "2"})
    assert rows_of(tmp_path / "out") == list(range(6))
    await tasks.start()
    await rig.wait_until(lambda: rows_of(tmp_path / "elsewhere") == [6, 7, 8])
    await tasks.stop()
    assert rows_of(tmp_path / "out") == list(range(6))


async def test_a_batch_that_cannot_be_finished_blocks_the_re_split_until_a_config_fixes_it(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reject(*_: object) -> None:
        raise FencedError

    tasks = Tasks(rig, "held-up")
    bad = {
        "transforms": "kept",
        "transforms.kept.type": "Filter",
        "transforms.kept.condition": "raise_error('no') IS NULL",
    }
    config = rig.config(tmp_path)
    write_files(tmp_path, 0, 3)
    await tasks.split({**config, **bad})
    await tasks.start()
    await rig.end_of(tasks.running[0])
    await tasks.stop()
    with pytest.raises(WorldError, match="batch 0 of task 0 must be finished first, and this batch fails"):
        await tasks.split({**config, **bad, "tasks.max": "2"})
    with pytest.raises(WorldError, match="batch 0 of task 0 must be finished first, and this batch fails"):
        await tasks.split({**config, **bad, "tasks.max": "2"})
    with monkeypatch.context() as patch:
        patch.setattr(FileSink, "stage", reject)
        with pytest.raises(
            SplitOrOffsetChangeAbortedError, match="finished first, and the sink rejects it: A later start of the task"
        ):
            await tasks.split({**config, "tasks.max": "2"})
    await tasks.split({**config, "tasks.max": "2"})
    assert rows_of(tmp_path / "out") == [0, 1, 2]
    assert [config["generation"].split("-")[0] for config in tasks.configs] == ["2", "2"]


@pytest.mark.parametrize("table", ["flights", "later"])
async def test_a_batch_in_flight_is_finished_with_the_new_password(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    """The next generation has another number of tasks, or another table of the same database."""
    monkeypatch.setattr(splitting, "TASKS_STOP_TIMEOUT_MS", 0)
    with running_server() as server:
        server.run("CREATE ROLE clerk LOGIN PASSWORD 'first'", "GRANT ALL ON SCHEMA public TO clerk")
        tasks = Tasks(rig, f"rotated-{table}")
        config = {key: value for key, value in rig.config(tmp_path).items() if not key.startswith("sink.")}
        config |= {
            "sink.class": "PostgresSink",
            "sink.connection.url": server.keys["connection.url"],
            "sink.connection.user": "clerk",
            "sink.connection.password": "first",
            "sink.table.name.format": "flights",
            "sink.auto.create": "true",
            "sink.max.retries": "0",
        }
        write_files(tmp_path, 0, 3)
        await tasks.split(config)
        await tasks.start()
        await rig.wait_until(lambda: table_rows(server, "flights") == [0, 1, 2])
        server.run("ALTER TABLE flights ADD CONSTRAINT shut CHECK (row < 3)")
        # One file, and so one batch: the task lists the files continuously.
        write_file(tmp_path / "in", "later.csv", [(row, 1.0, 1) for row in range(3, 6)])
        assert 'constraint "shut"' in (await rig.end_of(tasks.running[0])).trace
        await tasks.stop()
        server.run("ALTER TABLE flights DROP CONSTRAINT shut", "ALTER ROLE clerk PASSWORD 'second'")
        changed = {**config, "tasks.max": "2", "sink.table.name.format": table}
        with pytest.raises(WorldError, match="password authentication failed"):
            await tasks.split(changed)
        mended = {**changed, "sink.connection.password": "second"}
        server.stop()
        with pytest.raises(
            UnreachableError, match="batch 1 of task 0 must be finished first, and a server cannot be reached"
        ):
            await tasks.split(mended)
        server.start()
        await tasks.split(mended)
        assert table_rows(server, "flights") == list(range(6)), "the batch in flight must be in its own table once"
        write_files(tmp_path, 6, 4)
        await tasks.start()
        expected = list(range(0 if table == "flights" else 6, 10))
        await rig.wait_until(lambda: table_rows(server, table) == expected)
        await tasks.stop()
        assert table_rows(server, "flights") == list(range(10 if table == "flights" else 6))


def table_rows(server: PostgresServer, table: str) -> list[object]:
    if not server.rows(f"SELECT 1 WHERE to_regclass('{table}') IS NOT NULL"):
        return []
    return [row for (row,) in server.rows(f"SELECT row FROM {table} ORDER BY row")]


async def test_checkpoints_without_generations_are_upgraded(rig: Rig, tmp_path: Path) -> None:
    """One of three tasks never ran, and one was killed in a batch."""
    tasks = Tasks(rig, "flat")
    config = rig.config(tmp_path, tasks__max="3", source__max__files__per__trigger="3")
    parts = {"task.class": "FileSource", "task.count": "3", "name": "flat"}
    flat = [{**config, **parts, "task.index": str(index)} for index in range(3)]
    write_files_of_tasks(
        tmp_path, 9, Split(function=SplitFunction.PATH_HASH_V0, partitions_by_task=((str(tmp_path / "in"),),) * 3)
    )
    session = rig.spark_runtime._driver
    assert session is not None
    for index in range(2):
        create_first_checkpoint_if_absent(tasks.folder / str(index))
        held = take_over_checkpoint(tasks.folder / str(index))
        task = ConnectorTaskId(tasks.name, index)
        TaskQuery(session.spark, task, Pipeline.of(flat[index], {}), held, Fence()).run_available_input_until_end(
            timeout_s=60
        )
        assert (held.path / "commits" / "2").exists()
    (held.path / "commits" / "2").unlink()
    assert rows_of(tmp_path / "out") == [0, 1, 3, 4, 6, 7], "the rows of the third task are missing"

    tasks.configs = list(flat)
    await tasks.split(config)
    assert [one["task.split"] for one in tasks.configs] == ["path-hash-v1"] * 3
    await tasks.start()
    await rig.wait_until(lambda: rows_of(tmp_path / "out") == list(range(9)))
    write_files(tmp_path, 9, 6)
    await rig.wait_until(lambda: rows_of(tmp_path / "out") == list(range(15)))
    await tasks.stop()
    assert json.loads((tasks.folder / "manifest.json").read_text())["generation"] == "0-flat"


async def test_a_connector_that_kafka_connect_has_run_is_split_as_a_new_one(rig: Rig, tmp_path: Path) -> None:
    """The config topic contains the config of a task of a Java class, without checkpoints of Coterie."""
    tasks = Tasks(rig, "migrated")
    tasks.configs = [{"task.class": "org.apache.kafka.connect.file.FileStreamSourceTask", "file": "/a", "topic": "t"}]
    write_files(tmp_path, 0, 2)
    await tasks.split(rig.config(tmp_path))
    assert [config["generation"].partition("-")[0] for config in tasks.configs] == ["1"]
    await tasks.start()
    await rig.wait_until(lambda: rows_of(tmp_path / "out") == [0, 1])
    await tasks.stop()


async def test_a_task_waits_if_its_config_names_a_closed_generation_or_none(rig: Rig, tmp_path: Path) -> None:
    tasks = Tasks(rig, "late")
    config = rig.config(tmp_path)
    await tasks.split(config)
    stale = tasks.configs
    await tasks.split({**config, "tasks.max": "2"})
    for late in (stale[0], {key: value for key, value in stale[0].items() if key != "generation"}):
        tasks.configs = [late]
        await tasks.start()
        await closed(rig, tasks.running)
        assert rig.spark_runtime.held_checkpoint(tasks.running[0]) is None
        tasks.running = []


async def test_a_generation_that_is_missing_on_this_workers_disk_fails_the_task(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "GENERATION_VISIBLE_TIMEOUT_MS", 400)
    tasks = Tasks(rig, "absent")
    await tasks.split(rig.config(tmp_path))
    tasks.folder.rename(tasks.folder.with_name("moved"))
    with pytest.raises(WorldError, match=r"check that all workers share checkpoint\.location"):
        await tasks.start()
    with pytest.raises(WorldError, match=r"check that all workers share checkpoint\.location"):
        await tasks.split(rig.config(tmp_path))


async def test_a_rate_stream_continues_at_its_position_in_another_sink(rig: Rig, tmp_path: Path) -> None:
    tasks = Tasks(rig, "counts")
    config = {
        "connector.class": "RateSource",
        "trigger.interval.ms": "0",
        "source.rows.per.second": "20",
        "sink.format": "json",
        "sink.path": str(tmp_path / "out"),
    }
    await tasks.split(config)
    await tasks.start()
    await rig.wait_until(lambda: len(rows_of(tmp_path / "out", "value")) >= 40)
    await tasks.split({**config, "sink.path": str(tmp_path / "later")})
    counted = len(rows_of(tmp_path / "out", "value"))
    await tasks.start()
    await rig.wait_until(lambda: len(rows_of(tmp_path / "later", "value")) >= 40)
    await tasks.stop()
    assert rows_of(tmp_path / "out", "value") == list(range(counted))
    later = rows_of(tmp_path / "later", "value")
    assert later == list(range(counted, counted + len(later)))


class Watched:
    """A separate splitter that lists parts continuously: each folder below a source's path is a part."""

    def __init__(self, rig: Rig, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(splitting, "POLL_INTERVAL_S", 0.05)
        monkeypatch.setattr(FileSource, "list_source_partitions", self._parts)
        self.answers = threading.Event()
        """Until this event is set, listing the folder ``silent`` blocks."""
        self.answers.set()
        self.fails = False
        """Whether listing the folder ``silent`` fails then."""
        self.listings: Counter[str] = Counter()
        self.last_threads: dict[str, threading.Thread] = {}
        """The thread of the last listing of each folder."""
        self._rig = rig
        self._folder = folder
        self.events = EventQueue()
        self.events.bind_to_running_loop()
        self.splitter = Splitter(
            rig.spark_runtime._config,
            self.events,
            lambda: cast(SparkDriver, rig.spark_runtime._driver),
            rig.spark_runtime._calls,
        )

    def _parts(self, config: PrefixedConfig) -> list[str]:
        path = Path(config.required_value(DEFINITION, "path", str))
        self.last_threads[path.parent.name] = threading.current_thread()
        self.listings[path.parent.name] += 1
        if path.parent.name == "silent":
            assert self.answers.wait(60)
            if self.fails:
                raise WorldError("listing fails")
        return sorted(str(part) for part in path.iterdir() if part.is_dir())

    async def split(self, name: str, *tasks: Mapping[str, str]) -> SplitResult:
        connector = ConnectorName(name)
        config = self._rig.config(self._folder / name, metadata__max__age__ms="0" if name != "rare" else "60000")
        fence = self.splitter.add_fence(connector)
        return await asyncio.to_thread(self.splitter.split, fence, connector, INCARNATION, config, tasks)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        closing = threading.Event()
        watcher = threading.Thread(target=self.splitter.watch_source_partitions, args=(closing,))
        watcher.start()
        try:
            yield
        finally:
            closing.set()
            self.answers.set()
            await asyncio.to_thread(watcher.join)

    async def reported(self) -> str:
        event = await asyncio.wait_for(self.events.get(), 30)
        assert isinstance(event, SourcePartsChanged)
        return event.connector


async def test_a_split_that_never_began_leaves_no_fence_behind(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_threads(monkeypatch, "coterie connector no-thread")
    with pytest.raises(WorldError, match="the system starts no further thread"):
        await rig.split(ConnectorName("no-thread"), INCARNATION, rig.config(tmp_path), ())
    assert not rig.spark_runtime._splitter._connector_by_fence


async def test_a_source_with_new_parts_is_reported_until_it_is_split_again(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(rig, tmp_path, monkeypatch)
    folder = tmp_path / "grown" / "in"
    (folder / "a").mkdir(parents=True)
    async with watched.watching():
        (one,) = (await watched.split("grown")).task_configs
        (folder / "b").mkdir()
        assert await watched.reported() == "grown"
        (two,) = (await watched.split("grown", one)).task_configs
        assert [len(json.loads(task["task.parts"])) for task in (one, two)] == [1, 2]
        (folder / "a").rmdir()
        assert await watched.reported() == "grown"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(watched.events.get(), 0.5)


async def test_a_source_that_does_not_respond_does_not_block_the_listing_of_others(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(rig, tmp_path, monkeypatch)
    for name in ("silent", "spoken"):
        (tmp_path / name / "in" / "a").mkdir(parents=True)
        await watched.split(name)
    watched.answers.clear()
    watched.listings.clear()
    async with watched.watching():
        (tmp_path / "silent" / "in" / "b").mkdir()
        await rig.wait_until(lambda: watched.listings["spoken"] > 3)
        assert watched.listings["silent"] == 1, "listed again before the first listing has returned"
        (tmp_path / "spoken" / "in" / "b").mkdir()
        assert await watched.reported() == "spoken"
        watched.answers.set()
        assert await watched.reported() == "silent"


async def test_parts_of_a_stopped_connector_are_not_listed_any_more(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(rig, tmp_path, monkeypatch)
    for name in ("forgotten", "remembered", "rare"):
        (tmp_path / name / "in" / "a").mkdir(parents=True)
        await watched.split(name)
    async with watched.watching():
        await rig.wait_until(lambda: watched.listings["forgotten"] > 2)
        watched.splitter.stop_connector(ConnectorName("forgotten"))
        before = Counter(watched.listings)
        await rig.wait_until(lambda: watched.listings["remembered"] > before["remembered"] + 3)
        assert watched.listings["forgotten"] <= before["forgotten"] + 1
        assert watched.listings["rare"] == 1, "listed only for the split: metadata.max.age.ms is not over"


@pytest.mark.parametrize("is_stopped", [False, True])
async def test_a_listing_that_fails_is_logged_unless_the_connector_was_stopped_meanwhile(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_stopped: bool
) -> None:
    watched = Watched(rig, tmp_path, monkeypatch)
    (tmp_path / "silent" / "in" / "a").mkdir(parents=True)
    await watched.split("silent")
    watched.answers.clear()
    watched.fails = True
    before = watched.listings["silent"]
    async with watched.watching():
        await rig.wait_until(lambda: watched.listings["silent"] > before)
        if is_stopped:
            watched.splitter.stop_connector(ConnectorName("silent"))
        check = watched.last_threads["silent"]
        watched.answers.set()
        await asyncio.to_thread(check.join)
    assert ("Connector silent: listing the source's partitions failed" in caplog.text) == (not is_stopped)


async def test_a_re_split_does_not_wait_for_tasks_that_were_stopped_before(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connector is stopped, changed and resumed; then the same for tasks that have been restarted."""
    monkeypatch.setattr(splitting, "TASKS_STOP_TIMEOUT_MS", 600_000)
    tasks = Tasks(rig, "stopped-before")
    config = rig.config(tmp_path)
    write_files(tmp_path, 0, 3)
    for count in (1, 2, 3):
        await tasks.split({**config, "tasks.max": str(count)})
        await tasks.start()
        await rig.wait_until(lambda: rows_of(tmp_path / "out") == [0, 1, 2])
        assert list((tasks.folder / f"gen-{count}" / "released").glob("*")) == []
        await tasks.stop()


@pytest.mark.parametrize("by", ["forget", "halt"])
async def test_a_cancelled_re_split_leaves_the_generation_to_the_next_one(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """No runtime reports that it has stopped the task, so the split waits."""
    monkeypatch.setattr(splitting, "TASKS_STOP_TIMEOUT_MS", 60_000)
    tasks = Tasks(rig, f"ended-by-{by}")
    config = rig.config(tmp_path)
    await tasks.split(config)
    take_over_checkpoint(tasks.folder / "gen-1" / "0")
    changed = {**config, "tasks.max": "2"}
    split = asyncio.create_task(tasks.split(changed))
    await rig.wait_until(lambda: (tasks.folder / "gen-1" / "closed").exists())
    if by == "forget":
        rig.runtime.stop_connector(tasks.name)
    else:
        await asyncio.to_thread(rig.runtime.halt_all_tasks)
    with pytest.raises(SplitOrOffsetChangeAbortedError):
        await asyncio.wait_for(split, 10)
    assert not (tasks.folder / "gen-2").exists()
    monkeypatch.setattr(splitting, "TASKS_STOP_TIMEOUT_MS", 0)
    await tasks.split(changed)
    assert [config["generation"].split("-")[0] for config in tasks.configs] == ["2", "2"]
