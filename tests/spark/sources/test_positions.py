"""Positions on a real Spark session: read from checkpoints and seeded into fresh ones; nothing is lost or doubled."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from coterie.herder.seams import TaskStart
from coterie.nouns.errors import WorldError
from coterie.nouns.ids import Incarnation
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.spark.checkpoint import last_batch, take_over, task_folder
from coterie.spark.pipeline import Pipeline
from coterie.spark.seams import Source
from tests.spark.conftest import Rig, rows_of, write_file

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(240)]

NAMES = ["a b", "ü", "%41", "c+d", "e#f", *(f"{number}" for number in range(7))]


def spark_of(rig: Rig) -> SparkSession:
    session = rig.spark_runtime._session
    assert session is not None
    return session.spark


def source_of(start: TaskStart) -> Source:
    return Pipeline.of(start.config, {}).source


def checkpoint_of(rig: Rig, start: TaskStart) -> Path:
    held = rig.spark_runtime.held(start.task)
    assert held is not None
    return held.path


async def seed(rig: Rig, config: Mapping[str, str], name: str, positions: Mapping[str, int]) -> None:
    """Seed a fresh checkpoint for each task of a connector that never ran."""
    location = rig.spark_runtime._config.checkpoint_location
    for index, task_config in enumerate(await rig.runtime.split(ConnectorName(name), config, ())):
        task = ConnectorTaskId(ConnectorName(name), index)
        held = take_over(task_folder(location, task, Incarnation("i")))
        Pipeline.of(task_config, {}).source.seed(held.path, positions)


async def committed(rig: Rig, checkpoints: list[Path], batch_id: int) -> None:
    """Wait until each has committed this batch; each batch has a time limit of its own."""
    for number in range(batch_id + 1):
        await rig.wait_until(lambda: all((last_batch(path / "commits") or 0) >= number for path in checkpoints))  # noqa: B023


async def test_files_read_by_two_tasks_are_not_read_again_by_three(rig: Rig, tmp_path: Path) -> None:
    before = rig.config(tmp_path, tasks__max="2", source__max__files__per__trigger="1")
    for row, name in enumerate(NAMES):
        write_file(tmp_path / "in", f"{name}.csv", [(row, 1.0, 1)])
    starts = [await rig.start(before, "two", index) for index in range(2)]
    checkpoints = [checkpoint_of(rig, start) for start in starts]
    await committed(rig, checkpoints, len(NAMES) - 1)
    assert rows_of(tmp_path / "out") == list(range(len(NAMES)))
    assert all((path / "sources" / "0" / "9.compact").exists() for path in checkpoints)
    positions = [
        source_of(start).positions(spark_of(rig), path) for start, path in zip(starts, checkpoints, strict=True)
    ]
    for start in starts:
        await rig.runtime.stop(start.task, grace_ms=10_000)
    assert all(positions)
    assert not positions[0].keys() & positions[1].keys()
    assert len(positions[0]) + len(positions[1]) == len(NAMES)

    after = {**before, "tasks.max": "3", "sink.path": str(tmp_path / "later")}
    await seed(rig, after, "three", {**positions[0], **positions[1]})
    for row in range(100, 106):
        write_file(tmp_path / "in", f"later {row}.csv", [(row, 1.0, 1)])
    starts = [await rig.start(after, "three", index) for index in range(3)]
    checkpoints = [checkpoint_of(rig, start) for start in starts]
    # Batches 0 and 1 are the seed's.
    await committed(rig, checkpoints, 7)
    merged: dict[str, int] = {}
    for start, path in zip(starts, checkpoints, strict=True):
        merged |= source_of(start).positions(spark_of(rig), path)
        await rig.runtime.stop(start.task, grace_ms=10_000)
    assert rows_of(tmp_path / "later") == list(range(100, 106))
    assert len(merged) == len(NAMES) + 6
    assert {**positions[0], **positions[1]}.items() <= merged.items()


async def test_a_rate_stream_goes_on_where_it_was(rig: Rig, tmp_path: Path) -> None:
    config = {
        "connector.class": "RateSource",
        "trigger.interval.ms": "0",
        "source.rows.per.second": "20",
        "sink.format": "json",
        "sink.path": str(tmp_path / "out"),
    }

    def values() -> list[int]:
        return rows_of(tmp_path / "out", "value")

    start = await rig.start(config, "counted")
    await rig.wait_until(lambda: len(values()) >= 40)
    checkpoint = checkpoint_of(rig, start)
    await rig.runtime.stop(start.task, grace_ms=10_000)
    positions = source_of(start).positions(spark_of(rig), checkpoint)
    counted = len(values())
    assert positions == {"task 0 of 1": counted // 20}

    await seed(rig, config, "counts-on", positions)
    start = await rig.start(config, "counts-on")
    await rig.wait_until(lambda: len(values()) >= counted + 40)
    await rig.runtime.stop(start.task, grace_ms=10_000)
    assert values() == list(range(len(values())))


async def test_a_rate_stream_is_not_split_anew(rig: Rig, tmp_path: Path) -> None:
    config = {"connector.class": "RateSource", "tasks.max": "2", "sink.format": "noop"}
    with pytest.raises(WorldError, match="task 0 of 2"):
        await seed(rig, config, "split-anew", {"task 0 of 1": 7})


async def test_a_checkpoint_with_batches_is_not_seeded(rig: Rig, tmp_path: Path) -> None:
    config = rig.config(tmp_path)
    await seed(rig, config, "twice", {})
    with pytest.raises(FileExistsError):
        await seed(rig, config, "twice", {})
