"""A connector whose stream a function of the user builds, on a real Spark."""

from pathlib import Path

import pytest

from coterie.nouns.errors import ConfigError, WorldError
from coterie.nouns.ids import Incarnation
from coterie.nouns.jobs import ConnectorName
from coterie.spark.checkpoint import last_batch_id_in_log
from coterie.spark.generations.stores import UnmovablePositionStore
from tests.spark.conftest import Rig, rows_of, write_file

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]

MODULE = "tests.spark.user_functions"


def config_of(folder: Path, function: str = f"{MODULE}:build", **changes: str) -> dict[str, str]:
    (folder / "in").mkdir(exist_ok=True)
    return {
        "connector.class": "PythonSource",
        "tasks.max": "4",
        "trigger.interval.ms": "0",
        "pipeline.function": function,
        "folder": str(folder / "in"),
        "offset": "100",
        "transforms": "kept",
        "transforms.kept.type": "Filter",
        "transforms.kept.condition": "delay IS NOT NULL",
        "sink.format": "json",
        "sink.path": str(folder / "out"),
    } | changes


async def test_rows_of_a_functions_stream_are_written_once_also_after_a_replay(rig: Rig, tmp_path: Path) -> None:
    config = config_of(tmp_path)
    assert await rig.config_errors(config, ()) == {}
    assert len((await rig.split(ConnectorName("build"), Incarnation("i"), config, ())).task_configs) == 1
    for number in range(2):
        rows = [(row, 1.0 if row % 2 else None, row) for row in range(number * 10, number * 10 + 10)]
        write_file(tmp_path / "in", f"{number}.csv", rows)
        start = await rig.start(config, "build")
        await rig.wait_until(lambda expected=(number + 1) * 5: len(rows_of(tmp_path / "out")) >= expected)  # type: ignore[misc]
        held = rig.spark_runtime.held_checkpoint(start.task)
        assert held is not None
        await rig.runtime.stop(start.task, grace_ms=0)
        if (last := last_batch_id_in_log(held.path / "commits")) is not None:
            # The last batch was written and not committed, as after a kill at that point.
            (held.path / "commits" / str(last)).unlink()
    start = await rig.start(config, "build")
    write_file(tmp_path / "in", "last.csv", [(51, 1.0, 1)])
    expected = [100 + row for row in (*range(1, 20, 2), 51)]
    await rig.wait_until(lambda: rows_of(tmp_path / "out") == expected)
    await rig.runtime.stop(start.task, grace_ms=10_000)
    assert rows_of(tmp_path / "out") == expected


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("shutil:rmtree", "its pipeline.modules allows tests.spark.user_functions"),
        (f"{MODULE}:no", "has no no"),
        (f"{MODULE}:build_nothing", "the function returned a NoneType, not a DataFrame"),
        (f"{MODULE}:build_batch", "that is not a stream: build it from spark.readStream"),
        (f"{MODULE}:build_raises", "the function raised KeyError: 'folder' ("),
        (f"{MODULE}:build_leaves", "the function raised SystemExit: enough ("),
        (f"{MODULE}:build_counts", "keeps state between batches (Aggregate)"),
    ],
)
async def test_a_function_that_builds_no_stream_is_refused_with_the_reason(
    rig: Rig, tmp_path: Path, function: str, words: str
) -> None:
    errors = await rig.config_errors(config_of(tmp_path, function), ())
    assert set(errors) == {"pipeline.function"}
    assert words in errors["pipeline.function"][0]


async def test_the_sink_of_a_python_source_with_checkpoints_cannot_be_changed(rig: Rig, tmp_path: Path) -> None:
    config = config_of(tmp_path)
    name, incarnation = ConnectorName("stays"), Incarnation("i")
    tasks = (await rig.split(name, incarnation, config, ())).task_configs
    assert await rig.config_errors(config | {"offset": "7", "tasks.max": "2"}, tasks) == {}
    changed = config | {"sink.path": str(tmp_path / "other")}
    errors = await rig.config_errors(changed, tasks)
    assert set(errors) == {"sink.path"}
    assert "a connector of PythonSource keeps its sink" in errors["sink.path"][0]
    with pytest.raises(ConfigError, match="keeps its sink"):
        await rig.split(name, incarnation, changed, tasks)
    with pytest.raises(WorldError, match="cannot be moved to another checkpoint"):
        UnmovablePositionStore().read(tmp_path, ["stream"])
