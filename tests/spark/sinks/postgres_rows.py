"""Input of the PostgreSQL sink's tests: batches of numbered rows, as pieces of Arrow, without Spark."""

from collections.abc import Callable, Iterable, Mapping

import pyarrow as pa
from pyspark.sql.types import LongType, StringType, StructField, StructType

from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.spark.bad_records.separator import SeparatedRows
from coterie.spark.prefixed_config import SINK_PREFIX, PrefixedConfig
from coterie.spark.seams import TaskCheckpointLineage
from coterie.spark.sinks.postgres_target import PostgresTarget

LINEAGE = TaskCheckpointLineage(task=ConnectorTaskId(ConnectorName("my/é"), 2), lineage_id="l")
SCHEMA = StructType([StructField("row", LongType()), StructField("text", StringType())])
ROWS = 100
"""Rows of a batch."""


def piece(first: int, count: int) -> pa.RecordBatch:
    rows = range(first, first + count)
    return pa.record_batch({"row": pa.array(rows, pa.int64()), "text": [f"text {row}" for row in rows]})


def divided(pieces: Callable[[], Iterable[pa.RecordBatch]]) -> Callable[[], SeparatedRows]:
    """The function that the writer calls at each attempt."""
    return lambda: SeparatedRows(piece for piece in pieces())


def target_of(keys: Mapping[str, str]) -> PostgresTarget:
    return PostgresTarget.of(PrefixedConfig(config=keys, prefix=SINK_PREFIX, is_prefix_optional=True))
