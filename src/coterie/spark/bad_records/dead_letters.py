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

DATA_EXCEPTION_CLASS = "org.apache.kafka.connect.errors.DataException"
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


def dead_letter_arrow_batch_for_table(bad_rows: pa.RecordBatch, task: ConnectorTaskId) -> pa.RecordBatch:
    """Convert ``bad_rows``, of ``task`` and with the columns of ``BAD_ROW_TYPE``, to the columns of
    :data:`DEAD_LETTER_SCHEMA`, for a table."""
    row_count = bad_rows.num_rows
    columns = {name: bad_rows.column(name) for name in bad_rows.schema.names}
    columns |= {
        "connector": pa.array([str(task.connector)] * row_count, pa.string()),
        "task": pa.array([task.task] * row_count, pa.int32()),
        "headers": pa.array([_headers_to_json(value) for value in bad_rows.column("headers").to_pylist()], pa.string()),
        "exception_class_name": pa.array([DATA_EXCEPTION_CLASS] * row_count, pa.string()),
        "exception_message": bad_rows.column("message"),
    }
    return pa.record_batch([columns[name] for name in DEAD_LETTER_SCHEMA.names], names=DEAD_LETTER_SCHEMA.names)


def dead_letter_rows_for_folder(bad_rows: DataFrame, task: ConnectorTaskId) -> DataFrame:
    """Convert ``bad_rows``, of ``task`` and with the columns of ``BAD_ROW_TYPE``, to the columns of
    :data:`DEAD_LETTER_SCHEMA`, for a folder. Only ``headers`` differs from that schema: the column stays an array of
    structs."""
    record_columns = [F.col(name) for name in ORIGINAL_RECORD_TYPE.names if name not in ("key", "value", "headers")]
    return bad_rows.select(
        F.lit(str(task.connector)).alias("connector"),
        F.lit(task.task).alias("task"),
        *record_columns,
        "key",
        "value",
        "headers",
        "stage",
        "class_name",
        F.lit(DATA_EXCEPTION_CLASS).alias("exception_class_name"),
        F.col("message").alias("exception_message"),
    )


def _headers_to_json(headers: list[dict[str, object]] | None) -> str | None:
    """The headers of a record as JSON for :data:`DEAD_LETTER_SCHEMA`; None when ``headers`` is None."""
    if headers is None:
        return None
    return json.dumps(
        [{"key": header["key"], "value": _bytes_or_none_to_base64(header["value"])} for header in headers]
    )


def _bytes_or_none_to_base64(value: object) -> str | None:
    """The bytes ``value`` in base64; None when ``value`` is None."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else None


def dead_letter_record_columns_for_topic(
    bad_row_column: Callable[[str], Column], task: ConnectorTaskId, *, has_context: bool
) -> dict[str, Column]:
    """The columns ``key``, ``value`` and ``headers`` of a dead letter in a topic, by name: the key, value and headers
    of the record as it was read.

    ``bad_row_column`` receives a name of ``BAD_ROW_TYPE`` and returns this column of the bad row. With ``has_context``
    the headers in which Connect describes the error follow the record's own headers, in Connect's order.
    """
    record_columns = {
        "key": bad_row_column("key"),
        "value": bad_row_column("value"),
        "headers": bad_row_column("headers"),
    }
    if has_context:
        context_values = {
            "topic": bad_row_column("topic"),
            "partition": bad_row_column("partition"),
            "offset": bad_row_column("offset"),
            "connector.name": F.lit(str(task.connector)),
            "task.id": F.lit(task.task),
            "stage": bad_row_column("stage"),
            "class.name": bad_row_column("class_name"),
            "exception.class.name": F.lit(DATA_EXCEPTION_CLASS),
            "exception.message": bad_row_column("message"),
            # There is no Java stack trace: only the line that Java prints above a stack trace.
            "exception.stacktrace": F.concat(
                F.lit(f"{DATA_EXCEPTION_CLASS}: "), bad_row_column("message"), F.lit("\n")
            ),
        }
        context_headers = [
            F.struct(
                F.lit(CONTEXT_HEADER_PREFIX + name).alias("key"), value.cast("string").cast("binary").alias("value")
            )
            for name, value in context_values.items()
        ]
        record_headers = F.coalesce(bad_row_column("headers"), F.array().cast(HEADERS_TYPE))
        record_columns["headers"] = F.concat(record_headers, F.array(*context_headers).cast(HEADERS_TYPE))
    return record_columns
