"""What the tests of the PostgreSQL sink write: batches of numbered rows, as pieces of Arrow, without Spark."""

from collections.abc import Callable, Iterable, Mapping

import pyarrow as pa
from pyspark.sql.types import LongType, StringType, StructField, StructType

from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.spark.bad_records.sifted import Divided
from coterie.spark.end_config import SINK, EndConfig
from coterie.spark.seams import TaskLineage
from coterie.spark.sinks.postgres_target import PostgresTarget

LINEAGE = TaskLineage(task=ConnectorTaskId(ConnectorName("my/é"), 2), lineage="l")
SCHEMA = StructType([StructField("row", LongType()), StructField("text", StringType())])
ROWS = 100
"""Of a batch."""


def piece(first: int, count: int) -> pa.RecordBatch:
    rows = range(first, first + count)
    return pa.record_batch({"row": pa.array(rows, pa.int64()), "text": [f"text {row}" for row in rows]})


def divided(pieces: Callable[[], Iterable[pa.RecordBatch]]) -> Callable[[], Divided]:
    """What the writer asks for at each attempt."""
    return lambda: Divided(pieces())


def target_of(keys: Mapping[str, str]) -> PostgresTarget:
    return PostgresTarget.of(EndConfig(config=keys, prefix=SINK, is_prefix_optional=True))
