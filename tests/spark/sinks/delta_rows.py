"""Input and output of the Delta sink's tests: batches of numbered rows as Arrow, without Spark."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql.types import LongType, StringType, StructField, StructType

from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.spark.prefixed_config import SINK_PREFIX, PrefixedConfig
from coterie.spark.seams import TaskCheckpointLineage
from coterie.spark.sinks.delta_files import write_parquet_by_arrow
from coterie.spark.sinks.delta_target import DeltaTarget
from coterie.spark.sinks.delta_writer import DeltaWriter

LINEAGE = TaskCheckpointLineage(task=ConnectorTaskId(ConnectorName("my/é"), 2), lineage_id="l")
SCHEMA = StructType([StructField("row", LongType()), StructField("text", StringType())])
ROWS = 100
"""Rows of a batch."""


def arrow(first: int, count: int) -> pa.Table:
    rows = range(first, first + count)
    return pa.table({"row": pa.array(rows, pa.int64()), "text": [f"text {row}" for row in rows]})


def target_of(path: Path, keys: Mapping[str, str]) -> DeltaTarget:
    config = {"path": str(path), "auto.create": "true", **keys}
    return DeltaTarget.of(PrefixedConfig(config=config, prefix=SINK_PREFIX, is_prefix_optional=True))


def write(writer: DeltaWriter, batch_id: int) -> None:
    """Write a batch in all its steps."""
    append(
        writer, batch_id, SCHEMA, partial(write_parquet_by_arrow, arrow(batch_id * ROWS, ROWS), partition_columns=())
    )


def append(writer: DeltaWriter, batch_id: int, schema: StructType, files: Callable[[Path], None]) -> None:
    staged = writer.stage_files(batch_id, writer.check_or_create_table(schema), files)
    try:
        staged.commit()
    finally:
        staged.clean_up()


def rows_of(path: Path, column: str = "row") -> list[object]:
    """The values that a reader without Spark finds, sorted; empty if there is no table."""
    if not DeltaTable.is_deltatable(str(path)):
        return []
    return sorted(DeltaTable(str(path)).to_pyarrow_table(columns=[column])[column].to_pylist())


def versions(path: Path) -> int:
    """The number of the table's commits."""
    return DeltaTable(str(path)).version() + 1
