"""From files to Delta tables with real Spark; rows are counted by deltalake."""

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql import DataFrame, SparkSession

from coterie.nouns.errors import WorldError
from coterie.nouns.jobs import ConnectorTaskId
from coterie.spark.checkpoint import last_batch_id_in_log
from coterie.spark.jars import Jar, JarPackage
from coterie.spark.seams import SMALL_BATCH_BYTES_MAX, Batch, TaskCheckpointLineage
from coterie.spark.sinks import delta_spark
from coterie.spark.sinks.delta_files import write_parquet_by_arrow, write_parquet_by_spark
from coterie.spark.sinks.delta_table import SharedDeltaTable, shared_table_at
from coterie.spark.sinks.delta_writer import AlreadyCommittedBatch, DeltaWriter, DirectDeltaWrite, StagedMerge
from tests.spark.conftest import Rig, write_file
from tests.spark.sinks.delta_rows import LINEAGE, rows_of, target_of, versions

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]

LARGE = 300_000
"""Rows of a batch that is too large to be written by the driver."""


def config_of(rig: Rig, folder: Path, **changes: str) -> dict[str, str]:
    config = {key: value for key, value in rig.config(folder).items() if not key.startswith("sink.")}
    config |= {"sink.class": "DeltaSink", "sink.path": str(folder / "table"), "sink.auto.create": "true"}
    return config | {key.replace("__", "."): value for key, value in changes.items()}


@pytest.fixture
def spark(rig: Rig, spark_jars: Path) -> SparkSession:
    return rig.spark_runtime._running_driver().spark.newSession()


# -- through a task ---------------------------------------------------------------------------------------------------


async def test_rows_of_files_are_written_once_over_stops_starts_and_replays(rig: Rig, tmp_path: Path) -> None:
    """Stops without grace, and checkpoints as after a kill before ``commits/N``."""
    config = config_of(rig, tmp_path, exactly__once__support="required")
    assert await rig.config_errors(config, ()) == {}
    table = tmp_path / "table"
    for number in range(4):
        write_file(tmp_path / "in", f"{number}.csv", [(number * 10 + i, None, i) for i in range(10)])
        start = await rig.start(config, "to-delta")
        held = rig.spark_runtime.held_checkpoint(start.task)
        assert held is not None
        await rig.wait_until(lambda expected=(number + 1) * 10: len(rows_of(table)) >= expected)  # type: ignore[misc]
        await rig.wait_until(lambda expected=number, path=held.path: last_batch_id_in_log(path / "commits") == expected)  # type: ignore[misc]
        await rig.runtime.stop(start.task, grace_ms=10_000 if number % 2 else 0)
        (held.path / "commits" / str(number)).unlink()
    assert rows_of(table) == list(range(40))
    assert versions(table) == 5


async def test_a_batch_too_large_for_the_driver_is_written_by_spark_and_committed_like_a_small_one(
    rig: Rig, tmp_path: Path
) -> None:
    table = tmp_path / "table"
    config = config_of(rig, tmp_path, sink__partition__field__name="distance", source__max__files__per__trigger="1")
    write_file(tmp_path / "in", "a.csv", [(row, 1.0, 0) for row in range(10)])
    start = await rig.start(config, "large-to-delta")
    await rig.wait_until(lambda: len(rows_of(table)) == 10)
    path = write_file(tmp_path / "in", "b.csv", [(row, 1 / 3, row % 3) for row in range(10, LARGE)])
    assert path.stat().st_size > SMALL_BATCH_BYTES_MAX
    await rig.wait_until(lambda: versions(table) == 3)
    await rig.runtime.stop(start.task, grace_ms=10_000)
    assert rows_of(table) == list(range(LARGE))
    assert rows_of(table, "distance")[-1] == 2


async def test_a_row_that_the_table_refuses_fails_the_task_and_names_the_column(rig: Rig, tmp_path: Path) -> None:
    table = tmp_path / "table"
    DeltaTable.create(str(table), pa.schema({"row": pa.int64(), "distance": pa.int32()}))
    write_file(tmp_path / "in", "a.csv", [(1, 1.0, 1)])
    start = await rig.start(config_of(rig, tmp_path), "refused-by-delta")
    died = await rig.end_of(start.task)
    assert died.holds_checkpoint
    assert f"Delta table {table} has no column delay (double); add the column" in died.trace
    await rig.runtime.stop(start.task, grace_ms=0)


@pytest.mark.parametrize(
    ("changes", "key", "words"),
    [
        ({"sink.path": "table"}, "sink.path", "A relative path is another folder on each worker"),
        ({"sink.path": "s3://bucket/table"}, "sink.path", "Only paths of this machine's file system"),
        ({"sink.path": "{folder}/in"}, "sink.path", "contains files that are no Delta table"),
        ({"sink.auto.create": "false"}, "sink.path", "set auto.create=true"),
        ({"sink.insert.mode": "update"}, "sink.insert.mode", "insert, upsert"),
        ({"sink.insert.mode": "upsert"}, "sink.insert.mode", "upsert needs pk.fields"),
        ({"sink.pk.fields": "row"}, "sink.pk.fields", "set insert.mode=upsert"),
        ({"sink.pk.fields": "row,row"}, "sink.pk.fields", "each once"),
        ({"sink.delete.enabled": "true"}, "sink.delete.enabled", "set false"),
        ({"sink.auto.evolve": "true"}, "sink.auto.evolve", "set false"),
        ({"sink.optimize.interval.batches": "-1"}, "sink.optimize.interval.batches", "at least 0"),
        ({"sink.option.x": "y"}, "sink.option.x", "Unknown"),
    ],
)
async def test_unsupported_values_are_refused_by_key(
    rig: Rig, tmp_path: Path, changes: dict[str, str], key: str, words: str
) -> None:
    write_file(tmp_path / "in", "a.csv", [(1, 1.0, 1)])
    changes = {name: value.format(folder=tmp_path) for name, value in changes.items()}
    errors = await rig.config_errors(config_of(rig, tmp_path) | changes, ())
    assert set(errors) == {key}
    assert words in errors[key][0]


async def test_keys_that_do_not_fit_the_table_are_refused(rig: Rig, tmp_path: Path) -> None:
    schema = pa.schema({"row": pa.int64(), "delay": pa.float64(), "distance": pa.int32()})
    table = DeltaTable.create(str(tmp_path / "table"), schema, partition_by="distance")
    upsert = {"sink.insert.mode": "upsert", "sink.pk.fields": "row"}
    config = config_of(rig, tmp_path)
    assert await rig.config_errors(config | {"sink.partition.field.name": "distance"}, ()) == {}
    errors = await rig.config_errors(config | {"sink.partition.field.name": "row"}, ())
    assert "is partitioned by: distance" in errors["sink.partition.field.name"][0]
    errors = await rig.config_errors(config | upsert | {"sink.pk.fields": "id"}, ())
    assert "has no column id; there are: delay, distance, row" in errors["sink.pk.fields"][0]
    table.alter.set_table_properties({"delta.appendOnly": "true"})
    errors = await rig.config_errors(config | upsert, ())
    assert "delta.appendOnly=true" in errors["sink.insert.mode"][0]


async def test_an_upsert_of_several_tasks_is_refused_if_exactly_once_is_required(rig: Rig, tmp_path: Path) -> None:
    """Spark's Delta merges large batches, and its commit may replace one of another task."""
    config = config_of(rig, tmp_path, exactly__once__support="required", tasks__max="2")
    assert await rig.config_errors(config, ()) == {}, "deltalake commits all batches that are appended"
    upsert = config | {"sink.insert.mode": "upsert", "sink.pk.fields": "row"}
    errors = await rig.config_errors(upsert, ())
    assert set(errors) == {"tasks.max"}
    assert "sink.insert.mode=upsert" in errors["tasks.max"][0]
    assert "set tasks.max=1, or remove exactly.once.support=required" in errors["tasks.max"][0]
    for accepted in ({"tasks.max": "1"}, {"exactly.once.support": "requested"}):
        assert await rig.config_errors(upsert | accepted, ()) == {}


async def test_without_deltalake_validate_and_start_name_the_extra(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    config = config_of(rig, tmp_path)
    errors = await rig.config_errors(config, ())
    assert "pip install 'coterie[delta]'" in errors["sink.path"][0]
    start = await rig.start(config, "without-deltalake")
    died = await rig.end_of(start.task)
    assert "pip install 'coterie[delta]'" in died.trace
    await rig.runtime.stop(start.task, grace_ms=0)


async def test_without_deltas_jars_rows_are_appended_and_writes_that_need_spark_are_refused(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = Jar(
        maven_group="org.example",
        artifact="absent",
        version="1.0",
        size_bytes=0,
        sha256="",
        class_name_to_check="org.example.Absent",
    )
    lacking = JarPackage(name="delta", needed_for="", jars=(absent,), spark_settings={})
    monkeypatch.setattr("coterie.spark.jars.jar_packages", lambda: {"delta": lacking})
    config = config_of(rig, tmp_path)
    assert await rig.config_errors(config, ()) == {}
    upsert = {"sink.insert.mode": "upsert", "sink.pk.fields": "row"}
    errors = await rig.config_errors(config | upsert, ())
    assert "org.example:absent:1.0: run `coterie jars fetch delta`" in errors["sink.insert.mode"][0]
    write_file(tmp_path / "in", "a.csv", [(1, 1.0, 1)])
    start = await rig.start(config, "without-jars")
    await rig.wait_until(lambda: rows_of(tmp_path / "table") == [1])
    DeltaTable(str(tmp_path / "table")).alter.add_constraint({"few": "row < 100"})
    errors = await rig.config_errors(config, ())
    assert "Only Spark can write to this table: its writer version is 3. " in errors["sink.path"][0]
    write_file(tmp_path / "in", "b.csv", [(2, 1.0, 1)])
    died = await rig.end_of(start.task)
    assert "Only Spark can write batch 1 to Delta table" in died.trace
    assert "coterie jars fetch delta" in died.trace
    await rig.runtime.stop(start.task, grace_ms=0)


# -- writers of one table ---------------------------------------------------------------------------------------------


def batch_of(rows: DataFrame, batch_id: int, *, is_small: bool) -> Batch:
    return Batch(task_lineage=LINEAGE, batch_id=batch_id, rows=rows, is_small=is_small)


def put(writer: DeltaWriter, batch: Batch) -> type[object]:
    """Write the batch; returns the kind of writer that was used."""
    staged = writer.stage(batch)
    staged.commit()
    staged.clean_up()
    return type(staged)


async def test_the_three_writers_of_a_table_share_one_ledger(spark: SparkSession, tmp_path: Path) -> None:
    """The writers write batches of one task in turn, and each other writer replays each batch."""
    path = tmp_path / "table"
    writer = DeltaWriter(target_of(path, {}), LINEAGE)
    application = "my/é-2/l"

    def rows(batch_id: int) -> DataFrame:
        return spark.range(batch_id * 10, batch_id * 10 + 10).selectExpr("id AS row", "string(id) AS text")

    def by_spark(batch_id: int) -> None:
        delta_spark.append_or_upsert_once(rows(batch_id), path, application, batch_id, ())

    def by_files(batch_id: int, *, is_small: bool) -> None:
        layout = writer.check_or_create_table(rows(batch_id).schema)
        table = rows(batch_id)

        def files(out: Path) -> None:
            if is_small:
                write_parquet_by_arrow(table.toArrow(), out, ())
            else:
                write_parquet_by_spark(table, out, ())

        writer.stage_files(batch_id, layout, files).commit()

    small, large = partial(by_files, is_small=True), partial(by_files, is_small=False)
    ways: list[list[Callable[[int], None]]] = [[small, by_spark, large], [by_spark, small], [large, small]]
    for batch_id, first_and_replays in enumerate(ways):
        for way in first_and_replays:
            way(batch_id)
    assert rows_of(path) == list(range(30))
    assert versions(path) == 4
    assert DeltaTable(str(path)).transaction_version(application) == 2
    assert put(writer, batch_of(rows(2), 2, is_small=True)) is AlreadyCommittedBatch


ONLY_SPARK = {
    "column row is NOT NULL": "(row BIGINT NOT NULL, text STRING) USING delta",
    "generatedColumns": "(row BIGINT, text STRING, twice BIGINT GENERATED ALWAYS AS (row * 2)) USING delta",
    "columnMapping": "(row BIGINT, text STRING) USING delta TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
    "deletionVectors": "(row BIGINT, text STRING) USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
}


@pytest.mark.soak
@pytest.mark.parametrize("why", ONLY_SPARK)
async def test_tables_that_only_spark_can_write_to_get_each_batch_once(
    spark: SparkSession, tmp_path: Path, why: str
) -> None:
    path = tmp_path / "table"
    spark.sql(f"CREATE TABLE delta.`{path}` {ONLY_SPARK[why]}")
    writer = DeltaWriter(target_of(path, {}), LINEAGE)
    rows = spark.range(10).selectExpr("id AS row", "string(id) AS text")
    layout = shared_table_at(path).read_newest_layout()
    assert layout is not None
    assert why in (layout.spark_only_reason or "")
    staged = DirectDeltaWrite(batch_of(rows, 0, is_small=True), target_of(path, {}), "my/é-2/l")
    for _ in range(2):
        staged.commit()
    assert put(writer, batch_of(rows, 1, is_small=True)) is DirectDeltaWrite
    found = [row[0] for row in spark.read.format("delta").load(str(path)).select("row").collect()]
    assert sorted(found) == sorted([*range(10)] * 2)


@pytest.mark.soak
async def test_an_upsert_by_spark_and_one_by_deltalake_give_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    keys = {"insert.mode": "upsert", "pk.fields": "row"}
    path = tmp_path / "table"
    writer = DeltaWriter(target_of(path, keys), LINEAGE)

    def rows(*pairs: tuple[int | None, str]) -> DataFrame:
        return spark.createDataFrame(list(pairs), "row BIGINT, text STRING").coalesce(1)

    ways = []
    for batch_id, (is_small, batch) in enumerate(
        [
            (True, rows((3, "a"), (1, "b"), (3, "c"))),
            (False, rows((1, "d"), (2, "e"), (2, "f"))),
            (True, rows((2, "g"), (4, "h"))),
            (False, rows((4, "i"), (4, "j"))),
        ]
    ):
        ways.append(put(writer, batch_of(batch, batch_id, is_small=is_small)))
        assert put(writer, batch_of(batch, batch_id, is_small=not is_small)) is AlreadyCommittedBatch
    assert ways == [StagedMerge, DirectDeltaWrite] * 2
    assert DeltaTable(str(path)).to_pyarrow_table().sort_by("row").to_pylist() == [
        {"row": 1, "text": "d"},
        {"row": 2, "text": "g"},
        {"row": 3, "text": "c"},
        {"row": 4, "text": "j"},
    ]
    with pytest.raises(WorldError, match="Column row is null, and the column is in pk"):
        put(writer, batch_of(rows((None, "k")), 4, is_small=False))


@pytest.mark.soak
async def test_an_upsert_by_spark_is_not_repeated(spark: SparkSession, tmp_path: Path) -> None:
    """A merge that inserts: a replay without a check would change rows that others changed meanwhile."""
    keys = {"insert.mode": "upsert", "pk.fields": "row"}
    path = tmp_path / "table"
    writer = DeltaWriter(target_of(path, keys), LINEAGE)
    one = spark.createDataFrame([(1, "old")], "row BIGINT, text STRING")
    writer.check_or_create_table(one.schema)
    staged = DirectDeltaWrite(batch_of(one, 0, is_small=False), target_of(path, keys), "my/é-2/l")
    staged.commit()
    other = DeltaWriter(target_of(path, keys), replace(LINEAGE, lineage_id="other"))
    other.stage_merge(0, other.check_or_create_table(one.schema), pa.table({"row": [1], "text": ["new"]})).commit()
    staged.commit()
    assert rows_of(path, "text") == ["new"]


@pytest.mark.soak
@pytest.mark.parametrize("keys", [{}, {"insert.mode": "upsert", "pk.fields": "row"}], ids=["insert", "upsert"])
async def test_spark_writes_nothing_if_another_owner_commits_the_batch_first(
    rig: Rig, spark: SparkSession, tmp_path: Path, keys: dict[str, str]
) -> None:
    """Spark has checked for the batch and is writing its rows when another owner commits the batch."""
    path = tmp_path / "table"
    target = target_of(path, keys)
    writer = DeltaWriter(target, LINEAGE)
    rows = spark.range(0, 10, 1, 1).selectExpr("id AS row", "string(id) AS text")
    writer.check_or_create_table(rows.schema)
    slow = rows.where("reflect('java.lang.Thread', 'sleep', 1000L) IS NULL OR row >= 0")
    staged = DirectDeltaWrite(batch_of(slow, 0, is_small=False), target, "my/é-2/l")
    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(staged.commit)
        await rig.wait_until(lambda: writing.done() or list(path.glob("part-*")) != [])
        assert not writing.done(), "Spark had finished the write too early"
        assert put(writer, batch_of(rows, 0, is_small=True)) is not AlreadyCommittedBatch
        await asyncio.wrap_future(writing)
    assert rows_of(path) == list(range(10))
    assert versions(path) == 2


async def test_task_0_compacts_the_table_after_the_configured_number_of_batches(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    rows = spark.range(3).selectExpr("id AS row", "string(id) AS text")
    for number, files in ((1, 9), (0, 3)):
        lineage = TaskCheckpointLineage(task=ConnectorTaskId(LINEAGE.task.connector, number), lineage_id=str(number))
        writer = DeltaWriter(target_of(path, {"optimize.interval.batches": "4"}), lineage)
        for batch_id in range(9 if number else 10):
            put(writer, replace(batch_of(rows, batch_id, is_small=True), task_lineage=lineage))
        assert len(DeltaTable(str(path)).file_uris()) == files
    assert len(rows_of(path)) == 19 * 3


async def test_a_failure_of_the_merge_of_small_files_is_logged_in_one_line(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(table: SharedDeltaTable) -> None:
        raise DeltaError("a file is missing\nin the second line of the message")

    monkeypatch.setattr(SharedDeltaTable, "merge_small_files", fail)
    path = tmp_path / "table"
    lineage = TaskCheckpointLineage(task=ConnectorTaskId(LINEAGE.task.connector, 0), lineage_id="l")
    writer = DeltaWriter(target_of(path, {"optimize.interval.batches": "1"}), lineage)
    rows = spark.range(3).selectExpr("id AS row", "string(id) AS text")
    for batch_id in range(2):
        put(writer, replace(batch_of(rows, batch_id, is_small=True), task_lineage=lineage))
    (message,) = [record.getMessage() for record in caplog.records if "merged" in record.getMessage()]
    assert message.startswith(f"Delta table {path}: small files could not be merged: DeltaError: a file is missing")
    assert "\n" not in message
