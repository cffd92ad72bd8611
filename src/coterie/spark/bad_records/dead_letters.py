"""Dead letters: the columns with which bad rows are written to a table, a folder or a topic, with the origin of each
record."""

import base64
import json
from collections.abc import Callable

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from coterie.nouns.jobs import ConnectorTaskId
from coterie.spark.bad_records.error_columns import ORIGINAL_RECORD_TYPE
from coterie.spark.record_columns import HEADERS_TYPE

EXCEPTION = "org.apache.kafka.connect.errors.DataException"
"""Class name of the exception that Connect raises for a record that a converter or a transform cannot process. Every
dead letter names this class."""

CONTEXT_HEADER_PREFIX = "__connect.errors."
"""Prefix of the keys of the headers in which Connect describes the error of a dead letter."""

DEAD_LETTER_SCHEMA = StructType(
    [
        StructField("connector", StringType()),
        StructField("task", IntegerType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("headers", StringType()),
        StructField("stage", StringType()),
        StructField("class_name", StringType()),
        StructField("exception_class_name", StringType()),
        StructField("exception_message", StringType()),
    ]
)
"""The columns of a dead letter in a table. ``headers`` is JSON: a list of objects with ``key`` and ``value``, the value
in base64."""


def dead_letter_arrow_batch(bad: pa.RecordBatch, task: ConnectorTaskId) -> pa.RecordBatch:
    """Convert ``bad``, bad rows of ``task`` with the columns of ``BAD_ROW_TYPE``, to the columns of
    :data:`DEAD_LETTER_SCHEMA`, for a table."""
    count = bad.num_rows
    columns = {name: bad.column(name) for name in bad.schema.names}
    columns |= {
        "connector": pa.array([str(task.connector)] * count, pa.string()),
        "task": pa.array([task.task] * count, pa.int32()),
        "headers": pa.array([_headers(value) for value in bad.column("headers").to_pylist()], pa.string()),
        "exception_class_name": pa.array([EXCEPTION] * count, pa.string()),
        "exception_message": bad.column("message"),
    }
    return pa.record_batch([columns[name] for name in DEAD_LETTER_SCHEMA.names], names=DEAD_LETTER_SCHEMA.names)


def dead_letter_rows(bad: DataFrame, task: ConnectorTaskId) -> DataFrame:
    """Convert ``bad``, bad rows of ``task`` with the columns of ``BAD_ROW_TYPE``, to the columns of
    :data:`DEAD_LETTER_SCHEMA`, for a folder. Only ``headers`` differs from that schema: the column stays an array of
    structs."""
    record = [F.col(name) for name in ORIGINAL_RECORD_TYPE.names if name not in ("key", "value", "headers")]
    return bad.select(
        F.lit(str(task.connector)).alias("connector"),
        F.lit(task.task).alias("task"),
        *record,
        "key",
        "value",
        "headers",
        "stage",
        "class_name",
        F.lit(EXCEPTION).alias("exception_class_name"),
        F.col("message").alias("exception_message"),
    )


def _headers(headers: list[dict[str, object]] | None) -> str | None:
    """The headers of a record as JSON for :data:`DEAD_LETTER_SCHEMA`; None when ``headers`` is None."""
    if headers is None:
        return None
    return json.dumps([{"key": header["key"], "value": _text(header["value"])} for header in headers])


def _text(value: object) -> str | None:
    """The bytes ``value`` in base64; None when ``value`` is None."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else None


def dead_letter_record_columns(
    of: Callable[[str], Column], task: ConnectorTaskId, *, has_context: bool
) -> dict[str, Column]:
    """The columns ``key``, ``value`` and ``headers`` of a dead letter in a topic, by name: the key, value and headers
    of the record as it was read.

    ``of`` receives a name of ``BAD_ROW_TYPE`` and returns this column of the bad row. With ``has_context`` the headers
    of Connect about the error follow the record's own headers, in Connect's order.
    """
    parts = {"key": of("key"), "value": of("value"), "headers": of("headers")}
    if has_context:
        context = {
            "topic": of("topic"),
            "partition": of("partition"),
            "offset": of("offset"),
            "connector.name": F.lit(str(task.connector)),
            "task.id": F.lit(task.task),
            "stage": of("stage"),
            "class.name": of("class_name"),
            "exception.class.name": F.lit(EXCEPTION),
            "exception.message": of("message"),
            # There is no Java stack trace: only the line that Java prints above a stack trace.
            "exception.stacktrace": F.concat(F.lit(f"{EXCEPTION}: "), of("message"), F.lit("\n")),
        }
        added = [
            F.struct(
                F.lit(CONTEXT_HEADER_PREFIX + name).alias("key"), value.cast("string").cast("binary").alias("value")
            )
            for name, value in context.items()
        ]
        own = F.coalesce(of("headers"), F.array().cast(HEADERS_TYPE))
        parts["headers"] = F.concat(own, F.array(*added).cast(HEADERS_TYPE))
    return parts
