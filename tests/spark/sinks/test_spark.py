"""Spark's own writers as sinks: they write rows at least once, which the config can refuse."""

from dataclasses import replace
from pathlib import Path

import pytest

from coterie.spark.jars import JarPackage
from tests.mirror import jar_of
from tests.spark.conftest import Rig, rows_of, write_file

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(120)]

WRITER = {"sink.class": "SparkSink", "sink.format": "json"}


def config_of(rig: Rig, folder: Path, **changes: str) -> dict[str, str]:
    config = (
        rig.config(folder)
        | WRITER
        | {"sink.option.path": str(folder / "out")}
        | {key.replace("__", "."): value for key, value in changes.items()}
    )
    del config["sink.path"]
    return config


async def test_rows_reach_the_writer_with_its_options(rig: Rig, tmp_path: Path) -> None:
    write_file(tmp_path / "in", "a.csv", [(row, 1.0, 1) for row in range(7)])
    start = await rig.start(config_of(rig, tmp_path), "writer")
    await rig.wait_until(lambda: rows_of(tmp_path / "out") == list(range(7)))
    await rig.runtime.stop(start.task, grace_ms=10_000)


async def test_a_writer_that_fails_is_named_in_the_trace_of_its_task(rig: Rig, tmp_path: Path) -> None:
    write_file(tmp_path / "in", "a.csv", [(0, 1.0, 1)])
    start = await rig.start(config_of(rig, tmp_path, sink__option__compression="none.such"), "failing-writer")
    died = await rig.end_of(start.task)
    assert died.trace.startswith("Spark's json writer failed")
    assert "none.such" in died.trace
    await rig.runtime.stop(start.task, grace_ms=0)


@pytest.mark.parametrize(
    ("changes", "key", "words"),
    [
        ({"exactly.once.support": "required"}, "exactly.once.support", "at least once"),
        ({"sink.format": "nothing.like.this"}, "sink.format", "nothing.like.this"),
        ({"sink.class": "NothingSink"}, "sink.class", "NothingSink"),
    ],
)
async def test_a_guarantee_that_the_sink_cannot_give_is_refused_by_key(
    rig: Rig, tmp_path: Path, changes: dict[str, str], key: str, words: str
) -> None:
    errors = await rig.config_errors(config_of(rig, tmp_path, **changes), ())
    assert set(errors) == {key}
    assert words in errors[key][0]


async def test_the_file_sink_gives_the_required_guarantee(rig: Rig, tmp_path: Path) -> None:
    assert await rig.config_errors(rig.config(tmp_path, exactly__once__support="required"), ()) == {}


@pytest.mark.parametrize(
    ("changes", "package"),
    [
        ({"sink.format": "kafka"}, "kafka"),
        ({"sink.format": "Delta"}, "delta"),
        ({"sink.format": "avro"}, "avro"),
        ({"sink.format": "jdbc", "sink.option.url": "jdbc:postgresql://db/x"}, "postgres"),
    ],
)
async def test_a_format_whose_jars_the_worker_lacks_is_refused_with_coordinates_and_command(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], package: str
) -> None:
    absent = replace(jar_of("absent", b""), class_name_to_check="org.example.Absent")
    lacking = JarPackage(name=package, needed_for="", jars=(absent,), spark_settings={})
    monkeypatch.setattr("coterie.spark.jars.jar_packages", lambda: {package: lacking})
    errors = await rig.config_errors(config_of(rig, tmp_path, **changes), ())
    assert set(errors) == {"sink.format"}
    (sentence,) = errors["sink.format"]
    assert "org.example:absent:1.0" in sentence
    assert f"coterie jars fetch {package}" in sentence


@pytest.mark.parametrize("format_", ["kafka", "delta", "avro"])
async def test_a_worker_with_the_jars_accepts_their_formats(
    spark_jars: Path, rig: Rig, tmp_path: Path, format_: str
) -> None:
    assert await rig.config_errors(config_of(rig, tmp_path, **{"sink.format": format_}), ()) == {}
