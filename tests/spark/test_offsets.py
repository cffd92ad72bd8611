"""Offsets on a real Spark session: they are read while tasks run, and a change lets exactly the named input be read
again."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from coterie.herder.seams import SplitOrOffsetChangeAbortedError
from coterie.nouns.connector_offsets import ConnectorOffset, JsonMap, OffsetsRefusedError
from coterie.spark.checkpoint import find_batch_id_in_flight, last_batch_id_in_log
from coterie.spark.generations.layout import GenerationId
from coterie.spark.generations.manifest import GenerationPlan, read_manifest
from coterie.spark.generations.resplit import close_generation_and_return_stored_plan
from coterie.spark.plugins import source_by_name
from coterie.spark.sources.files import FileSource
from coterie.spark.sources.rate import RateSource
from tests.kafka.embedded_broker import EmbeddedBroker
from tests.sink_files import counted, take_back
from tests.spark.conftest import Rig, write_file
from tests.spark.connector_tasks import NAMES, Tasks
from tests.spark.rest_worker import rest_worker, until_true

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(240)]

QUOTED = ["a'b", "x y+z", "q=1&2", "t~d", "c:d", "e,f;g", "日本", "pct%20", "(p)", "!e@$", "a|b", "a^b", 'a"b', "a<b>"]
SPACES = ["nb\u00a0sp", "e\u0301", "\u2003"]


def file_offset(path: Path, modified_ms: int | None) -> ConnectorOffset:
    return ConnectorOffset(
        partition={"filename": str(path)},
        offset=None if modified_ms is None else {"modification_time_ms": modified_ms},
    )


async def shown(tasks: Tasks, config: dict[str, str]) -> dict[str, int]:
    """The paths of the read files, with the times that mark them as read."""
    offsets = await tasks.offsets(config)
    return {
        str((offset.partition or {})["filename"]): int(str((offset.offset or {})["modification_time_ms"]))
        for offset in offsets
    }


async def test_exactly_the_files_whose_offsets_are_removed_are_read_again(rig: Rig, tmp_path: Path) -> None:
    tasks = Tasks(rig, "forget")
    config = rig.config(tmp_path, tasks__max="3", source__max__files__per__trigger="2")
    names = [*NAMES, *QUOTED, *SPACES]
    files = [write_file(tmp_path / "in", f"{name} .csv", [(row, 1.0, 1)]) for row, name in enumerate(names)]
    once = Counter(range(len(files)))
    assert await shown(tasks, config) == {}
    await tasks.split(config)
    await tasks.start()
    await rig.wait_until(lambda: counted(tmp_path / "out", "row") == once)
    # Read while the tasks run.
    async with asyncio.timeout(30):
        while (await shown(tasks, config)).keys() != {str(path) for path in files}:  # noqa: ASYNC110 - waits for commits
            await asyncio.sleep(0.1)
    times = await shown(tasks, config)
    assert times == {str(path): path.stat().st_mtime_ns // 1_000_000 for path in files}
    await tasks.stop()

    forgotten = [0, len(NAMES) + 2]
    await tasks.change_offsets(config, *(file_offset(files[row], None) for row in forgotten))
    assert await shown(tasks, config) == {
        path: at for path, at in times.items() if path not in [str(files[row]) for row in forgotten]
    }
    await tasks.split(config)
    await tasks.start()
    await rig.wait_until(lambda: counted(tmp_path / "out", "row") == once + Counter(forgotten))
    await tasks.stop()

    # All files again, but for those that are marked as read; the names are quoted as Spark quotes them.
    await tasks.change_offsets(config)
    assert await shown(tasks, config) == {}
    await tasks.change_offsets(config, *(file_offset(path, 5) for path in files[:-1]))
    assert await shown(tasks, config) == {str(path): 5 for path in files[:-1]}
    new = write_file(tmp_path / "in", "new.csv", [(len(files), 1.0, 1)])
    await tasks.split(config)
    await tasks.start()
    expected = once + Counter(forgotten) + Counter([len(files) - 1, len(files)])
    await rig.wait_until(lambda: counted(tmp_path / "out", "row") == expected)
    await tasks.stop()
    assert str(new) in await shown(tasks, config)
    assert counted(tmp_path / "out", "row") == expected


async def test_a_batch_in_flight_is_finished_before_the_offsets_are_removed(rig: Rig, tmp_path: Path) -> None:
    tasks = Tasks(rig, "forget-in-flight")
    config = rig.config(tmp_path, source__max__files__per__trigger="2")
    files = [write_file(tmp_path / "in", f"{row}.csv", [(row, 1.0, 1)]) for row in range(4)]
    await tasks.split(config)
    await tasks.start()
    await rig.wait_until(lambda: counted(tmp_path / "out", "row") == Counter(range(4)))
    checkpoint = tasks.held(0)
    await tasks.stop()
    assert last_batch_id_in_log(checkpoint / "commits") == 1
    (checkpoint / "commits" / "1").unlink()
    take_back(tmp_path / "out", 1)
    assert find_batch_id_in_flight(checkpoint) == 1
    await tasks.change_offsets(config)
    assert counted(tmp_path / "out", "row") == Counter(range(4))
    await tasks.split(config)
    await tasks.start()
    await rig.wait_until(lambda: counted(tmp_path / "out", "row") == Counter([*range(4), *range(4)]))
    await tasks.stop()
    assert set(await shown(tasks, config)) == {str(path) for path in files}


async def test_offsets_that_are_set_before_the_first_split_are_used_by_it(rig: Rig, tmp_path: Path) -> None:
    tasks = Tasks(rig, "preset")
    config = rig.config(tmp_path, tasks__max="2")
    files = [write_file(tmp_path / "in", f"{row}.csv", [(row, 1.0, 1)]) for row in range(4)]
    await tasks.change_offsets(config, file_offset(files[0], 1), file_offset(files[1], 1))
    await tasks.split(config)
    await tasks.start()
    await rig.wait_until(lambda: counted(tmp_path / "out", "row") == Counter([2, 3]))
    await tasks.stop()
    assert (await shown(tasks, config)).keys() == {str(path) for path in files}


async def test_the_rate_source_continues_at_the_second_that_is_set(rig: Rig, tmp_path: Path) -> None:
    tasks = Tasks(rig, "rate-offsets")
    config = {
        **rig.config(tmp_path),
        "connector.class": "RateSource",
        "tasks.max": "2",
        "source.rows.per.second": "10",
    }
    config = {
        key: value
        for key, value in config.items()
        if not key.startswith(("source.format", "source.path", "source.schema", "source.option"))
    }
    offset = ConnectorOffset(partition={"task": 1, "task_count": 2}, offset={"seconds": 100})
    await tasks.change_offsets(config, offset)
    await tasks.split(config)
    assert list(await tasks.offsets(config)) == [offset]
    await tasks.start()
    await rig.wait_until(
        lambda: any(row >= 1000 for row in (counted(tmp_path / "out", "value") if (tmp_path / "out").exists() else ()))
    )
    await tasks.stop()
    rows = counted(tmp_path / "out", "value")
    assert min(row for row in rows if row % 2) == 1001
    assert all(row < 1000 for row in rows if row % 2 == 0)
    with pytest.raises(OffsetsRefusedError, match="has 2 task"):
        await tasks.change_offsets(
            config, ConnectorOffset(partition={"task": 2, "task_count": 2}, offset={"seconds": 1})
        )


def rate_config(rig: Rig, folder: Path, **keys: str) -> dict[str, str]:
    own = {"connector.class": "RateSource", "source.rows.per.second": "10", "tasks.max": "2"}
    config = rig.config(folder, **keys) | own
    return {key: value for key, value in config.items() if key in own or not key.startswith("source.")}


@pytest.mark.parametrize(
    "partition",
    [
        {"task": True, "task_count": 2},
        {"task": 1.0, "task_count": 2},
        {"task": 1, "task_count": 2.0},
        {"task": "1", "task_count": 2},
        {"task": [1], "task_count": 2},
        {"task": None, "task_count": 2},
    ],
)
async def test_a_partition_of_the_rate_source_whose_numbers_are_not_whole_numbers_is_refused(
    rig: Rig, tmp_path: Path, partition: JsonMap
) -> None:
    """``1 == True == 1.0`` in Python, and a position that was stored for task ``True`` would be read by no task."""
    tasks = Tasks(rig, "rate-partitions")
    with pytest.raises(OffsetsRefusedError, match="The connector has 2 task"):
        await tasks.change_offsets(
            rate_config(rig, tmp_path), ConnectorOffset(partition=partition, offset={"seconds": 1})
        )


def python_config(rig: Rig, folder: Path) -> dict[str, str]:
    own = {
        "connector.class": "PythonSource",
        "pipeline.function": "tests.spark.user_functions:build",
        "folder": str(folder / "in"),
        "offset": "100",
    }
    return {key: value for key, value in rig.config(folder).items() if not key.startswith("source.")} | own


async def test_a_source_of_another_class_does_not_begin_at_the_offsets_that_were_set_for_the_first_class(
    rig: Rig, tmp_path: Path
) -> None:
    tasks = Tasks(rig, "other-class")
    files, rate = rig.config(tmp_path), rate_config(rig, tmp_path)
    in_files = [write_file(tmp_path / "in", f"{row}.csv", [(row, 1.0, 1)]) for row in range(2)]
    for_files = file_offset(in_files[0], 1)
    for_rate = ConnectorOffset(partition={"task": 1, "task_count": 2}, offset={"seconds": 100})
    await tasks.change_offsets(files, for_files)
    assert list(await tasks.offsets(rate)) == []
    # They are still those of the first class, until offsets are set for another one or it is started.
    assert list(await tasks.offsets(files)) == [for_files]
    await tasks.change_offsets(rate, for_rate)
    assert list(await tasks.offsets(rate)) == [for_rate]
    assert list(await tasks.offsets(files)) == []
    await tasks.change_offsets(files, file_offset(in_files[1], 1))
    await tasks.split(rate)
    assert len(tasks.configs) == 2
    assert list(await tasks.offsets(rate)) == []
    await tasks.start()
    await rig.wait_until(lambda: (tmp_path / "out").exists() and counted(tmp_path / "out", "value")[0] == 1)
    await tasks.stop()
    assert all(row < 1000 for row in counted(tmp_path / "out", "value"))


async def test_a_source_whose_positions_cannot_be_moved_starts_after_offsets_were_set_for_another_class(
    rig: Rig, tmp_path: Path
) -> None:
    tasks = Tasks(rig, "unmovable-class")
    path = write_file(tmp_path / "in", "0.csv", [(1, 1.0, 1)])
    await tasks.change_offsets(rig.config(tmp_path), file_offset(path, 1))
    config = python_config(rig, tmp_path)
    assert list(await tasks.offsets(config)) == []
    await tasks.split(config)
    await tasks.start()
    await rig.wait_until(lambda: (tmp_path / "out").exists() and counted(tmp_path / "out", "row") == Counter([101]))
    await tasks.stop()


async def test_a_split_whose_task_configs_were_never_published_is_not_read_by_another_class(
    rig: Rig, tmp_path: Path
) -> None:
    tasks = Tasks(rig, "unpublished")
    rate = rate_config(rig, tmp_path)
    set_for_rate = ConnectorOffset(partition={"task": 1, "task_count": 2}, offset={"seconds": 100})
    await tasks.change_offsets(rate, set_for_rate)
    await tasks.split(rate)
    tasks.configs = []
    write_file(tmp_path / "in", "0.csv", [(1, 1.0, 1)])
    config = rig.config(tmp_path)
    assert list(await tasks.offsets(config)) == []
    await tasks.split(config)
    await tasks.start()
    await rig.wait_until(lambda: (tmp_path / "out").exists() and counted(tmp_path / "out", "row") == Counter([1]))
    await tasks.stop()
    assert [offset.partition for offset in await tasks.offsets(config)] == [
        {"filename": str(tmp_path / "in" / "0.csv")}
    ]


@pytest.mark.parametrize(("former", "newest"), [("rate", "files"), ("files", "rate"), ("files", "python")])
async def test_a_new_split_that_a_killed_worker_planned_for_another_class_does_not_keep_the_connector_from_starting(
    rig: Rig, tmp_path: Path, former: str, newest: str
) -> None:
    """The task configs of the first split were never published, so the class could still be changed."""
    tasks = Tasks(rig, f"planned-{former}-{newest}")
    files = rig.config(tmp_path)
    configs = {"files": files, "rate": rate_config(rig, tmp_path), "python": python_config(rig, tmp_path)}
    path = write_file(tmp_path / "in", "0.csv", [(1, 1.0, 1)])
    for_rate = ConnectorOffset(partition={"task": 1, "task_count": 2}, offset={"seconds": 100})
    offset = {"files": file_offset(path, 1), "rate": for_rate}[former]
    await tasks.change_offsets(configs[former], offset)
    await tasks.split(configs[former])
    tasks.configs = []
    manifest = read_manifest(tasks.folder / "gen-2")
    plan = GenerationPlan(
        generation=GenerationId(number=3, id="planned"),
        split=manifest.split,
        config={**manifest.config, "sink.path": str(tmp_path / "planned")},
        inferred_values=manifest.inferred_values,
        initial_positions={},
    )
    close_generation_and_return_stored_plan(tasks.folder, plan)
    with pytest.raises(
        SplitOrOffsetChangeAbortedError, match="Another worker has created checkpoint generation 3-planned"
    ):
        await tasks.split(configs[newest])
    # The finished generation has the positions of the former class. They are used if the user puts this class again.
    assert list(await tasks.offsets(configs[former])) == [offset]
    assert list(await tasks.offsets(configs[newest])) == []
    await tasks.split(configs[newest])
    await tasks.start()
    column, first = {"files": ("row", 1), "rate": ("value", 0), "python": ("row", 101)}[newest]
    await rig.wait_until(lambda: (tmp_path / "out").exists() and counted(tmp_path / "out", column)[first] == 1)
    await tasks.stop()


async def test_a_new_split_that_was_planned_for_a_class_that_this_worker_does_not_have_waits_for_the_plug_in(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker with the plug-in has planned the split and was killed; the user has put the former class again."""
    tasks = Tasks(rig, "planned-unknown")
    files, other = rig.config(tmp_path), "com.example.OtherSource"
    set_offset = file_offset(write_file(tmp_path / "in", "0.csv", [(1, 1.0, 1)]), 1)
    await tasks.change_offsets(files, set_offset)
    await tasks.split(files)
    tasks.configs = []
    manifest = read_manifest(tasks.folder / "gen-2")
    plan = GenerationPlan(
        generation=GenerationId(number=3, id="planned"),
        split=manifest.split,
        config={**manifest.config, "connector.class": other},
        inferred_values=manifest.inferred_values,
        initial_positions={},
    )
    close_generation_and_return_stored_plan(tasks.folder, plan)
    for operation in (tasks.split(files), tasks.change_offsets(files, set_offset)):
        with pytest.raises(
            SplitOrOffsetChangeAbortedError, match=f"planned-unknown was made for the source {other}, which this worker"
        ):
            await operation
    assert not (tasks.folder / "gen-2" / "closing").exists(), "the checkpoints were taken over"
    assert not (tasks.folder / "gen-3").exists()
    monkeypatch.setitem(source_by_name(), other, RateSource)  # The plug-in is installed.
    with pytest.raises(
        SplitOrOffsetChangeAbortedError, match="Another worker has created checkpoint generation 3-planned"
    ):
        await tasks.split(files)
    await tasks.split(files)
    await tasks.start()
    await rig.wait_until(lambda: (tmp_path / "out").exists() and counted(tmp_path / "out", "row") == Counter([1]))
    await tasks.stop()


async def test_offsets_are_not_changed_while_the_generation_has_a_class_that_this_worker_does_not_have(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = Tasks(rig, "unknown-class")
    files, other = rig.config(tmp_path), "com.example.OtherSource"
    offset = file_offset(write_file(tmp_path / "in", "0.csv", [(1, 1.0, 1)]), 1)
    with monkeypatch.context() as patch:
        patch.setitem(source_by_name(), other, FileSource)
        await tasks.change_offsets({**files, "connector.class": other}, offset)
    with pytest.raises(
        SplitOrOffsetChangeAbortedError, match=f"unknown-class was made for the source {other}, which this worker"
    ):
        await tasks.change_offsets(files, offset)
    assert not (tasks.folder / "gen-1" / "closed").exists(), "no worker without the class could finish the change"


@pytest.mark.processes
async def test_the_offsets_of_a_connector_that_got_another_class_before_its_first_start_are_read(
    rig: Rig, embedded_broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_file(tmp_path / "in", "0.csv", [(1, 1.0, 1)])
    offsets = [{"partition": {"filename": str(path)}, "offset": {"modification_time_ms": 5}}]
    async with rest_worker(rig, embedded_broker, tmp_path, monkeypatch) as worker:
        body = {"name": "c", "config": rig.config(tmp_path), "initial_state": "STOPPED", "initial_offsets": offsets}
        assert (await worker.ask("POST", "/connectors", body)).status_code == 201
        assert (await worker.ask("GET", "/connectors/c/offsets")).json() == {"offsets": offsets}
        other = rate_config(rig, tmp_path)
        assert (await worker.ask("PUT", "/connectors/c/config", other)).status_code == 200
        answer = await worker.ask("GET", "/connectors/c/offsets")
        assert (answer.status_code, answer.json()) == (200, {"offsets": []})
        await worker.order("PUT", "/connectors/c/resume")
        await rig.wait_until(lambda: (tmp_path / "out").exists() and counted(tmp_path / "out", "value")[0] == 1)
        await worker.order("PUT", "/connectors/c/stop")
        await worker.until_stopped("c")
        assert (await worker.ask("GET", "/connectors/c/offsets")).status_code == 200


@pytest.mark.processes
async def test_exactly_the_files_that_a_client_of_the_rest_api_lets_a_stopped_connector_forget_are_read_again(
    rig: Rig, embedded_broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = rig.config(tmp_path, tasks__max="3", source__max__files__per__trigger="2")
    files = [write_file(tmp_path / "in", f"{name}.csv", [(row, 1.0, 1)]) for row, name in enumerate(NAMES[:10])]
    once = Counter(range(10))
    forgotten = [3, 7]
    times = {str(path): path.stat().st_mtime_ns // 1_000_000 for path in files}

    def rows() -> Counter[int]:
        return counted(tmp_path / "out", "row") if (tmp_path / "out").exists() else Counter()

    async with rest_worker(rig, embedded_broker, tmp_path, monkeypatch) as worker:

        async def shown_offsets() -> dict[str, int]:
            answer = await worker.ask("GET", "/connectors/files/offsets")
            assert answer.status_code == 200, answer.text
            return {
                offset["partition"]["filename"]: offset["offset"]["modification_time_ms"]
                for offset in answer.json()["offsets"]
            }

        async def all_are_shown() -> bool:
            return await shown_offsets() == times

        async def forget() -> tuple[int, str]:
            offsets = [{"partition": {"filename": str(files[row])}, "offset": None} for row in forgotten]
            answer = await worker.ask("PATCH", "/connectors/files/offsets", {"offsets": offsets})
            return answer.status_code, answer.json()["message"]

        await worker.create("files", config)
        await rig.wait_until(lambda: rows() == once)
        await until_true(all_are_shown, "all files are committed")
        await worker.until_running("files", 3)
        assert await forget() == (
            400,
            "Connectors must be in the STOPPED state before their offsets can be modified. This can be done for the "
            "specified connector by issuing a 'PUT' request to the '/connectors/files/stop' endpoint",
        )
        assert await shown_offsets() == times
        await worker.order("PUT", "/connectors/files/stop")
        await worker.until_stopped("files")
        assert await forget() == (200, "The offsets for this connector have been altered successfully")
        kept = {path: time for path, time in times.items() if path not in [str(files[row]) for row in forgotten]}
        assert await shown_offsets() == kept
        assert rows() == once
        await worker.order("PUT", "/connectors/files/resume")
        await rig.wait_until(lambda: rows() == once + Counter(forgotten))
        await until_true(all_are_shown, "the two files are committed again")
        # A file that is written now is read after any other file that a task would read again.
        write_file(tmp_path / "in", "last.csv", [(10, 1.0, 1)])
        await rig.wait_until(lambda: rows()[10] == 1)
        await worker.order("PUT", "/connectors/files/stop")
        await worker.until_stopped("files")
    assert rows() == once + Counter([*forgotten, 10])
