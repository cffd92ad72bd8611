"""Spark, DuckDB and pyarrow read a sink's folder, written by each of the writers."""

import datetime
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.dataset
import pytest
from pyspark.sql import DataFrame, SparkSession

from coterie.nouns.errors import WorldError
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.spark.prefixed_config import SINK_PREFIX, PrefixedConfig
from coterie.spark.seams import Batch, TaskCheckpointLineage
from coterie.spark.sinks.files import FileSink
from tests.sink_files import counted, visible_files
from tests.spark.conftest import Rig

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]

LINEAGE = TaskCheckpointLineage(task=ConnectorTaskId(ConnectorName("c"), 0), lineage_id="l")
COLUMNS = """
    id INT, truth BOOLEAN, tiny TINYINT, small SMALLINT, long BIGINT, single FLOAT, double DOUBLE,
    price DECIMAL(9,2), middle DECIMAL(18,4), large DECIMAL(38,10), text STRING, bytes BINARY, day DATE,
    at TIMESTAMP, local TIMESTAMP_NTZ, numbers ARRAY<INT>, counts MAP<STRING, BIGINT>,
    nested STRUCT<p: INT, q: ARRAY<STRUCT<r: STRING>>>
"""
UTC = datetime.UTC
FULL = (
    1,
    True,
    -128,
    -32768,
    2**63 - 1,
    0.5,
    -0.1,
    Decimal("-1234567.89"),
    Decimal("12345678901234.5678"),
    Decimal("1234567890123456789012345678.0123456789"),
    "grün ' \" \n",
    b"\x00\xff",
    datetime.date(1582, 10, 4),
    datetime.datetime(1850, 3, 4, 5, 6, 7, 123456, tzinfo=UTC),
    datetime.datetime(2024, 2, 29, 23, 59, 59, 999999),  # noqa: DTZ001 - TIMESTAMP_NTZ has no time zone
    [1, None, 3],
    {"a": 1, "b": None},
    (7, [("x",), (None,)]),
)
ROWS = [FULL, (2, *(None,) * (len(FULL) - 1)), (3, *FULL[1:])]


def spark_of(rig: Rig) -> SparkSession:
    return rig.spark_runtime._running_driver().spark.newSession()


def sink_to(path: Path, **keys: str) -> FileSink:
    config = {"path": str(path)} | {key.replace("__", "."): value for key, value in keys.items()}
    sink = FileSink.of(
        PrefixedConfig(config={SINK_PREFIX + key: value for key, value in config.items()}, prefix=SINK_PREFIX)
    )
    sink.take_over(LINEAGE, 1)
    return sink


def put(sink: FileSink, rows: DataFrame, batch_id: int, *, is_small: bool) -> None:
    staged = sink.stage(Batch(task_lineage=LINEAGE, batch_id=batch_id, rows=rows, is_small=is_small))
    staged.commit()
    staged.clean_up()


def readers(spark: SparkSession, glob: str = "parquet") -> Mapping[str, Callable[[Path], list[Any]]]:
    """Functions that read a whole folder, sorted by ``id``, into Python values."""

    def by_duckdb(folder: Path) -> list[Any]:
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            text = f"from read_parquet('{folder}/**/*.parquet', hive_partitioning = true) order by id"
            return list(connection.sql(text).to_arrow_table().to_pylist())

    def by_pyarrow(folder: Path) -> list[Any]:
        table = pyarrow.dataset.dataset(folder, partitioning="hive").to_table()
        return list(table.sort_by("id").to_pylist())

    def by_spark(folder: Path) -> list[Any]:
        return spark.read.parquet(str(folder)).orderBy("id").collect()

    return {"spark": by_spark, "duckdb": by_duckdb, "pyarrow": by_pyarrow}


async def test_three_readers_read_the_same_from_files_of_both_writers(rig: Rig, tmp_path: Path) -> None:
    spark = spark_of(rig)
    rows = spark.createDataFrame(ROWS, COLUMNS).coalesce(1)
    by_arrow, by_spark, by_both = (sink_to(tmp_path / name, format="parquet") for name in ("arrow", "spark", "both"))
    put(by_arrow, rows, 0, is_small=True)
    put(by_spark, rows, 0, is_small=False)
    put(by_both, rows, 0, is_small=True)
    put(by_both, rows, 1, is_small=False)
    # Staged and not put in place: not visible to readers.
    by_both.stage(Batch(task_lineage=LINEAGE, batch_id=2, rows=rows, is_small=True))
    (file,) = visible_files(tmp_path / "arrow")
    assert file.name == "c-0-l-0-0.snappy.parquet"
    for name, read in readers(spark).items():
        arrows, sparks, both = (read(tmp_path / folder) for folder in ("arrow", "spark", "both"))
        assert arrows == sparks, name
        assert len(arrows) == 3, name
        assert sorted(map(str, both)) == sorted(map(str, arrows + sparks)), name
    (first, *_) = readers(spark)["spark"](tmp_path / "both")
    assert tuple(first[:9]) == FULL[:9]
    assert spark.read.parquet(str(tmp_path / "arrow")).schema == rows.schema
    assert spark.read.parquet(str(tmp_path / "spark")).schema == rows.schema


async def test_both_writers_name_the_folders_of_partitions_alike(rig: Rig, tmp_path: Path) -> None:
    spark = spark_of(rig)
    odd = ["plain", "a=b/c", "50%", "é #'\"", "", None, "{x}[y]:?*\\^", "t\tn\n", " "]
    rows = spark.createDataFrame(
        [(number, text, bool(number % 2), datetime.date(2024, 1, 1 + number)) for number, text in enumerate(odd)],
        "id INT, Kind STRING, flag BOOLEAN, day DATE",
    )
    found = {}
    for name, is_small in (("arrow", True), ("spark", False)):
        sink = sink_to(tmp_path / name, format="parquet", partition__field__name="kind,flag,day")
        put(sink, rows, 0, is_small=is_small)
        found[name] = {file.parent.relative_to(tmp_path / name) for file in visible_files(tmp_path / name)}
        read = spark.read.parquet(str(tmp_path / name)).orderBy("id").collect()
        # Readers infer the types of partition columns from their values; Spark reads true and false as text.
        assert [(row["id"], row["Kind"], row["flag"], row["day"]) for row in read] == [
            (row["id"], row["Kind"] or None, str(row["flag"]).lower(), row["day"])
            for row in rows.orderBy("id").collect()
        ]
        for reader in ("duckdb", "pyarrow"):
            assert len(readers(spark)[reader](tmp_path / name)) == len(odd)
    assert found["arrow"] == found["spark"]
    assert Path("Kind=a%3Db%2Fc/flag=true/day=2024-01-02") in found["arrow"]
    # Spark names the folders of a column of another type, even for a small batch.
    sink = sink_to(tmp_path / "float", format="parquet", partition__field__name="half")
    put(sink, rows.selectExpr("id", "CAST(id AS DOUBLE) / 2 AS half"), 0, is_small=True)
    assert {file.parent.name for file in visible_files(tmp_path / "float")} >= {"half=0.0", "half=0.5"}


@pytest.mark.parametrize("format_", ["csv", "csv.bz2", "csv.gz", "json", "json.gz", "orc", "parquet"])
async def test_each_format_is_read_back_and_empty_batches_leave_no_file(rig: Rig, tmp_path: Path, format_: str) -> None:
    spark = spark_of(rig)
    format_, _, codec = format_.partition(".")
    options = {"option.header": "true"} if format_ == "csv" else {}
    if codec:
        options["option.compression"] = {"bz2": "bzip2", "gz": "gzip"}[codec]
    sink = sink_to(tmp_path / "out", format=format_, **options)
    rows = spark.range(10).selectExpr("id AS row", "id % 3 AS third").repartition(2)
    for batch_id, (batch, is_small) in enumerate([(rows, True), (rows.where("false"), True), (rows, False)]):
        put(sink, batch, batch_id, is_small=is_small)
    files = list(visible_files(tmp_path / "out"))
    put(sink, rows.where("false"), 3, is_small=False)
    assert list(visible_files(tmp_path / "out")) == files
    read = spark.read.format(format_).options(header="true", inferSchema="true").load(str(tmp_path / "out"))
    assert sorted(row["row"] for row in read.collect()) == sorted([*range(10), *range(10)])
    if not codec:
        found = {str(value): count for value, count in counted(tmp_path / "out", "row").items()}
        assert found == {str(row): 2 for row in range(10)}


async def test_rows_below_a_header_are_written_with_any_line_separator(rig: Rig, tmp_path: Path) -> None:
    options = {"option.header": "true", "option.lineSep": "\r"}
    sink = sink_to(tmp_path / "out", format="csv", **options)
    put(sink, spark_of(rig).range(2).selectExpr("id AS row"), 0, is_small=False)
    text = b"".join(file.read_bytes() for file in visible_files(tmp_path / "out"))
    assert sorted(text.replace(b"row\r", b"").split()) == [b"0", b"1"]


async def test_the_compression_is_that_of_the_options_or_else_of_spark(rig: Rig, tmp_path: Path) -> None:
    spark = spark_of(rig)
    rows = spark.range(3).toDF("row")
    for name, suffix in {"zstd": ".zstd.parquet", "gzip": ".gz.parquet", "none": ".parquet"}.items():
        sink = sink_to(tmp_path / name, format="parquet", option__compression=name)
        put(sink, rows, 0, is_small=True)
        put(sink, rows.coalesce(1), 1, is_small=False)
        assert [file.name for file in visible_files(tmp_path / name)] == [f"c-0-l-{n}-0{suffix}" for n in (0, 1)]
    spark.conf.set("spark.sql.parquet.compression.codec", "zstd")
    put(sink_to(tmp_path / "default", format="parquet"), rows, 0, is_small=True)
    (file,) = visible_files(tmp_path / "default")
    assert file.name.endswith(".zstd.parquet")


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ("day", "sink.partition.field.name contains day, and the rows have only the columns id, kind: "),
        ("kind,id", "sink.partition.field.name contains every column of the rows"),
    ],
)
async def test_partition_columns_that_do_not_fit_the_rows_are_refused(
    rig: Rig, tmp_path: Path, columns: str, sentence: str
) -> None:
    rows = spark_of(rig).range(3).selectExpr("id", "'a' AS kind")
    sink = sink_to(tmp_path / "out", format="parquet", partition__field__name=columns)
    with pytest.raises(WorldError, match=sentence):
        put(sink, rows, 0, is_small=True)
    assert list((tmp_path / ".out.coterie" / "staged").iterdir()) == []
