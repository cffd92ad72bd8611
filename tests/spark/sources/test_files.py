"""The formats of the file source, each read once by two tasks; and the limits of a batch."""

import gzip
import logging
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

from coterie.nouns.errors import ConfigError, WorldError
from coterie.nouns.ids import Incarnation
from coterie.nouns.jobs import ConnectorName
from coterie.spark.generations.split import Split, SplitFunction
from coterie.spark.positions import commit_empty_batches, write_first_source_log_entry
from coterie.spark.prefixed_config import SOURCE_PREFIX, PrefixedConfig
from coterie.spark.seams import SMALL_BATCH_BYTES_MAX, SMALL_BATCH_ROWS_MAX, SPARK_PARTITION_BYTES_MAX, TaskInput
from coterie.spark.sources.files import FileSource
from coterie.spark.sources.folder_size import FolderSizeReporter
from tests.spark.conftest import Rig, rows_of, write_file

ROWS = 60


def write_files(spark: SparkSession, folder: Path, format_: str) -> None:
    """Six files, written elsewhere and renamed into the folder."""
    aside, here = folder / "aside", folder / "in"
    rows = spark.range(ROWS).selectExpr("id AS row", "named_struct('half', id / 2) AS nested").repartition(6)
    if format_ == "text":
        rows = rows.selectExpr("CAST(row AS STRING) AS value")
    rows.write.format(format_).save(str(aside))
    here.mkdir()
    for path in aside.glob("part-*"):
        path.rename(here / path.name)


@pytest.mark.spark
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.timeout(180)
@pytest.mark.parametrize("format_", ["avro", "orc", "parquet", "text"])
async def test_each_row_of_a_format_is_read_by_one_of_two_tasks(
    rig: Rig, tmp_path: Path, spark_jars: Path, format_: str
) -> None:
    write_files(rig.spark_runtime._running_driver().spark.newSession(), tmp_path, format_)
    config = rig.config(tmp_path, tasks__max="2", source__format=format_)
    del config["source.option.header"]
    config["source.schema"] = "row BIGINT, nested STRUCT<half: DOUBLE>"
    if format_ == "text":
        del config["source.schema"]
        cast = {"type": "Cast", "spec": "value:bigint"}
        config |= {"transforms": "typed", **{f"transforms.typed.{key}": value for key, value in cast.items()}}
    assert await rig.config_errors(config, ()) == {}
    assert set(await rig.config_errors(config | {"source.option.xx": "1"}, ())) == {"source.option.xx"}
    column = "value" if format_ == "text" else "row"
    starts = [await rig.start(config, f"read-{format_}", index) for index in range(2)]
    await rig.wait_until(lambda: rows_of(tmp_path / "out", column) == list(range(ROWS)))
    for start in starts:
        await rig.runtime.stop(start.task, grace_ms=10_000)
    assert rows_of(tmp_path / "out", column) == list(range(ROWS))


@pytest.mark.spark
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("format_", "columns"),
    [
        ("csv", "row INT,name STRING"),
        ("json", "name STRING,row BIGINT"),
        ("orc", "row BIGINT,name STRING"),
        ("parquet", "row BIGINT,name STRING"),
    ],
)
async def test_columns_are_inferred_from_the_first_files_and_kept_when_the_connector_is_split_again(
    rig: Rig, tmp_path: Path, format_: str, columns: str
) -> None:
    spark = rig.spark_runtime._running_driver().spark.newSession()
    config = rig.config(tmp_path, source__format=format_, source__option__header="true")
    del config["source.schema"]
    if format_ != "csv":
        del config["source.option.header"]

    def put(name: str, *selected: str) -> None:
        aside = tmp_path / name
        writer = spark.range(3).selectExpr(*selected).coalesce(1).write.format(format_)
        (writer.option("header", "true") if format_ == "csv" else writer).save(str(aside))
        (file,) = aside.glob("part-*")
        file.rename(tmp_path / "in" / f"{name}{file.suffix}")

    assert await rig.config_errors(config, ()) == {
        "source.schema": [
            f"There is no file in {tmp_path / 'in'} to infer the columns from: set source.schema, or add a file"
        ]
    }
    (tmp_path / "in" / "_hidden").write_text("not looked at")
    put("first", "id AS row", "concat('n', id) AS name")
    assert await rig.config_errors(config, ()) == {}
    config |= {"name": f"inferred-{format_}"}
    start = await rig.start(config, config["name"])
    assert start.config["source.schema"] == columns
    await rig.wait_until(lambda: rows_of(tmp_path / "out") == [0, 1, 2])
    await rig.runtime.stop(start.task, grace_ms=10_000)
    # Later files have another column.
    if format_ != "csv":  # The header of a CSV file must name the columns.
        put("second", "id + 3 AS row", "concat('n', id) AS name", "true AS late")
    config["tasks.max"] = "2"
    assert await rig.config_errors(config, [start.config]) == {}
    starts = [await rig.start(config, config["name"], index) for index in range(2)]
    assert [one.config["source.schema"] for one in starts] == [start.config["source.schema"]] * 2
    await rig.wait_until(lambda: rows_of(tmp_path / "out") == list(range(3 if format_ == "csv" else 6)))
    for one in starts:
        await rig.runtime.stop(one.task, grace_ms=10_000)
    # Columns in the config take precedence from then on.
    named = config | {"source.schema": "row INT"}
    start = await rig.start(named, config["name"])
    assert start.config["source.schema"] == "row INT"
    await rig.runtime.stop(start.task, grace_ms=10_000)


@pytest.mark.spark
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.timeout(180)
async def test_columns_that_cannot_be_inferred_are_reported_by_key_after_other_wrong_keys(
    rig: Rig, tmp_path: Path
) -> None:
    config = rig.config(tmp_path, source__format="parquet")
    del config["source.schema"], config["source.option.header"]
    (tmp_path / "in" / "link").symlink_to(tmp_path / "nothing")
    errors = await rig.config_errors(config, ())
    assert errors == {
        "source.schema": [
            f"There is no file in {tmp_path / 'in'} to infer the columns from: set source.schema, or add a file"
        ]
    }
    assert set(await rig.config_errors(config | {"source.option.xx": "1"}, ())) == {"source.option.xx"}
    (tmp_path / "in" / "a.parquet").write_text("no Parquet")
    errors = await rig.config_errors(config, ())
    with pytest.raises(ConfigError) as raised:
        await rig.split(ConnectorName("unreadable-files"), Incarnation("i"), config, ())
    assert set(errors) == set(raised.value.errors) == {"source.schema"}
    for sentence in (errors["source.schema"][0], raised.value.errors["source.schema"][0]):
        assert sentence.startswith("No columns can be inferred: ")
        assert "a.parquet" in sentence
        assert sentence.endswith("Set source.schema, or try again")
        assert "\n" not in sentence


@pytest.mark.spark
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.timeout(180)
async def test_columns_are_not_inferred_from_files_in_folders_whose_names_spark_would_take_as_patterns(
    rig: Rig, tmp_path: Path
) -> None:
    config = rig.config(tmp_path)
    del config["source.schema"]
    (tmp_path / "in" / "a[1]").mkdir()
    (tmp_path / "in" / "a[1]" / "f.csv").write_text("other\n1\n")
    assert "There is no file in" in (await rig.config_errors(config, ()))["source.schema"][0]
    (tmp_path / "in" / "b").mkdir()
    (tmp_path / "in" / "b" / "f.csv").write_text("row\n1\n")
    assert await rig.config_errors(config, ()) == {}
    start = await rig.start(config, "pattern-folders")
    assert start.config["source.schema"] == "row INT"
    await rig.runtime.stop(start.task, grace_ms=10_000)


@pytest.mark.spark
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.timeout(180)
@pytest.mark.parametrize("schema", [None, "row BIGINT"])
async def test_a_source_folder_whose_name_spark_would_take_as_a_pattern_is_refused(
    rig: Rig, tmp_path: Path, schema: str | None
) -> None:
    """Spark reads the files of ``a1`` for the folder ``a[1]``, and none of the folder's own files."""
    config = rig.config(tmp_path, source__path=str(tmp_path / "a[1]"))
    if schema is None:
        del config["source.schema"]
    (tmp_path / "a[1]").mkdir()
    (tmp_path / "a[1]" / "f.csv").write_text("row\n1\n")
    errors = await rig.config_errors(config, ())
    assert set(errors) == {"source.path"}
    assert "rename the folder" in errors["source.path"][0]


# -- the size of a batch ----------------------------------------------------------------------------------------------


def source(format_: str, **keys: str) -> FileSource:
    config = {"format": format_, "path": "/in", "schema": "row BIGINT"} | keys
    end = PrefixedConfig(
        config={SOURCE_PREFIX + key.replace("__", "."): value for key, value in config.items()}, prefix=SOURCE_PREFIX
    )
    return FileSource.of(
        end,
        TaskInput(task_number=0, task_count=1, source_partitions=("/in",), split_function=SplitFunction.PATH_HASH_V1),
    )


def is_small(checkpoint: Path, format_: str, *files: Path) -> bool:
    """Whether a batch of these files is small."""
    entries = [f'{{"path": "{path.as_uri()}", "timestamp": 1, "batchId": 0}}' for path in files]
    write_first_source_log_entry(checkpoint, entries)
    commit_empty_batches(checkpoint, '{"logOffset": 0}', 1)
    without_spark: Any = None
    return source(format_).is_batch_small(without_spark, checkpoint, 0)


def has_bounded_spark_partitions(checkpoint: Path, checked: FileSource, *files: Path) -> bool:
    """Whether the Spark partitions of a batch of these files are bounded."""
    write_first_source_log_entry(
        checkpoint, [f'{{"path": "{path.as_uri()}", "timestamp": 1, "batchId": 0}}' for path in files]
    )
    commit_empty_batches(checkpoint, '{"logOffset": 0}', 1)
    without_spark: Any = None
    return checked.has_bounded_spark_partitions(without_spark, checkpoint, 0)


@pytest.mark.parametrize(
    ("format_", "name", "size_mb", "option", "is_bounded"),
    [
        ("csv", "a.csv", 1_000, {}, True),
        ("csv", "a.csv", 65, {"option.multiLine": "TRUE"}, False),
        ("csv", "a.csv", 64, {"option.multiLine": "true"}, True),
        ("text", "a.txt", 65, {"option.wholetext": "true"}, False),
        ("csv", "a.csv.gz", 8, {}, True),
        ("csv", "a.csv.gz", 9, {}, False),
        ("json", "a.json.zst", 9, {}, False),
        ("parquet", "a.parquet", 9, {}, False),
    ],
)
def test_spark_partitions_are_bounded_unless_spark_cannot_divide_a_large_file(
    tmp_path: Path, format_: str, name: str, size_mb: int, option: dict[str, str], is_bounded: bool
) -> None:
    path = tmp_path / name
    path.touch()
    os.truncate(path, size_mb << 20)
    assert has_bounded_spark_partitions(tmp_path / "checkpoint", source(format_, **option), path) == is_bounded
    path.unlink()
    if not is_bounded:
        assert not has_bounded_spark_partitions(tmp_path / "gone", source(format_, **option), path), "nothing is known"


@pytest.mark.parametrize("format_", ["orc", "parquet"])
def test_the_size_of_a_batch_of_files_with_footers_is_its_row_count(tmp_path: Path, format_: str) -> None:
    """Equal rows take almost no bytes in such a file."""
    for rows in (SMALL_BATCH_ROWS_MAX, SMALL_BATCH_ROWS_MAX + 1):
        path, table = tmp_path / f"{rows}.{format_}", pa.table({"row": pa.array([7] * rows)})
        (pyarrow.orc.write_table if format_ == "orc" else pyarrow.parquet.write_table)(table, path)
        assert is_small(tmp_path / f"{rows}", format_, path) == (rows == SMALL_BATCH_ROWS_MAX)


def test_the_size_of_a_batch_of_other_files_is_in_bytes_and_compressed_files_count_more(tmp_path: Path) -> None:
    half = b" " * (SMALL_BATCH_BYTES_MAX // 2)
    for name, count, small in (
        ("a.json", 2, True),
        ("b.json", 3, False),
        ("c.json.gz", 1, False),
        ("d.avro", 1, False),
    ):
        files = [tmp_path / f"{number}-{name}" for number in range(count)]
        for path in files:
            path.write_bytes(half)
        assert is_small(tmp_path / f"of-{name}", name.split(".")[1], *files) == small, name
    damaged = tmp_path / "damaged.parquet"
    damaged.write_text("no Parquet")
    assert not is_small(tmp_path / "of-damaged", "parquet", damaged)


def test_the_size_of_a_gzip_file_is_read_from_its_end(tmp_path: Path) -> None:
    """Equal lines take almost no bytes in such a file."""
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(b" " * SMALL_BATCH_BYTES_MAX))
    assert is_small(tmp_path / "small", "json", path)
    path.write_bytes(gzip.compress(b" " * (SMALL_BATCH_BYTES_MAX + 1)))
    assert not is_small(tmp_path / "large", "json", path)
    bound = 2 * SPARK_PARTITION_BYTES_MAX
    path.write_bytes(gzip.compress(b" " * bound))
    assert has_bounded_spark_partitions(tmp_path / "bounded", source("json"), path)
    path.write_bytes(gzip.compress(b" " * (bound + 1)))
    assert not has_bounded_spark_partitions(tmp_path / "unbounded", source("json"), path)
    path.write_bytes(b"")
    assert not is_small(tmp_path / "empty", "json", path), "Spark reports the error in the file"


def test_files_that_other_tasks_read_do_not_count(tmp_path: Path) -> None:
    split = Split(function=SplitFunction.PATH_HASH_V1, partitions_by_task=(("/in",),) * 4)
    files = [tmp_path / f"{number}.avro" for number in range(40)]
    own = split.positions_of_task(0, {path.as_uri(): 1 for path in files}).keys()
    assert 0 < len(own) < len(files)
    for path in files:
        path.touch()
        if path.as_uri() not in own:
            os.truncate(path, 9 << 20)
    one_of_four = replace(source("avro"), task_input=replace(source("avro").task_input, task_count=4))
    without_spark: Any = None
    assert has_bounded_spark_partitions(tmp_path / "checkpoint", one_of_four, *files)
    assert not has_bounded_spark_partitions(tmp_path / "of-one-task", source("avro"), *files)
    assert one_of_four.is_batch_small(without_spark, tmp_path / "checkpoint", 0)
    (tmp_path / own_name(own)).unlink()
    with pytest.raises(WorldError, match=f"deleted after the batch was planned.*{own_name(own)}"):
        one_of_four.check_after_read(without_spark, tmp_path / "checkpoint", 0)
    (tmp_path / own_name(own)).touch()
    (tmp_path / next(path.name for path in files if path.as_uri() not in own)).unlink()
    one_of_four.check_after_read(without_spark, tmp_path / "checkpoint", 0)


def own_name(own: Iterable[str]) -> str:
    """The name of one of these files."""
    return min(own).rpartition("/")[2]


@pytest.mark.spark
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.timeout(180)
async def test_the_size_of_spark_partitions_is_estimated_only_for_a_sink_whose_driver_reads_them(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    estimated: list[int] = []

    def estimate(source: FileSource, spark: SparkSession, checkpoint: Path, batch_id: int) -> bool:
        estimated.append(batch_id)
        return True

    monkeypatch.setattr(FileSource, "is_batch_small", lambda *_: False)
    monkeypatch.setattr(FileSource, "has_bounded_spark_partitions", estimate)
    write_file(tmp_path / "in", "a.csv", [(1, 1.0, 1)])
    start = await rig.start(rig.config(tmp_path), "no-estimate")
    await rig.wait_until(lambda: rows_of(tmp_path / "out") == [1])
    await rig.runtime.stop(start.task, grace_ms=10_000)
    assert estimated == []


def test_a_batch_is_bounded_by_files_or_by_bytes() -> None:
    assert source("json").batch_limit_option_by_name == {"maxFilesPerTrigger": "1000"}
    assert source("json", max__files__per__trigger="7").batch_limit_option_by_name == {"maxFilesPerTrigger": "7"}
    assert source("json", max__bytes__per__trigger="70000").batch_limit_option_by_name == {
        "maxBytesPerTrigger": "70000"
    }


def test_a_warning_about_a_folder_of_many_files_is_logged_once_and_when_the_number_has_doubled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = FolderSizeReporter()
    counts = iter([9_999, 10_000, 19_999, 20_000, 39_999])
    monkeypatch.setattr("os.listdir", lambda _: range(next(counts)))
    with caplog.at_level(logging.WARNING, "coterie"):
        for _ in range(5):
            size.warn_if_many_files(str(tmp_path))
    assert [record.getMessage().partition(" or more")[0] for record in caplog.records] == [
        f"The folder source.path={tmp_path} contains {count} files and folders. Each task lists all of them "
        f"whenever it checks for new files, which takes about {cpu_s} s of CPU time"
        for count, cpu_s in ((10_000, 0.26), (20_000, 0.52))
    ]
