"""Dead letters: the form in which bad rows are written to a table, a folder or a topic, with the record's origin."""

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
from coterie.spark.bad_records.hidden import RECORD
from coterie.spark.record import HEADERS_TYPE

EXCEPTION = "org.apache.kafka.connect.errors.DataException"
"""The exception that Connect raises for a record that a converter or a transform cannot process."""

CONTEXT = "__connect.errors."
"""Prefix of the keys of Connect's headers about an error."""

ROW = StructType(
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
"""The columns of a dead letter in a table. ``headers`` is JSON: a list of key and value, the value in base64."""


def letters(bad: pa.RecordBatch, task: ConnectorTaskId) -> pa.RecordBatch:
    """The bad rows of ``task`` with the columns of :data:`ROW`."""
    count = bad.num_rows
    columns = {name: bad.column(name) for name in bad.schema.names}
    columns |= {
        "connector": pa.array([str(task.connector)] * count, pa.string()),
        "task": pa.array([task.task] * count, pa.int32()),
        "headers": pa.array([_headers(value) for value in bad.column("headers").to_pylist()], pa.string()),
        "exception_class_name": pa.array([EXCEPTION] * count, pa.string()),
        "exception_message": bad.column("message"),
    }
    return pa.record_batch([columns[name] for name in ROW.names], names=ROW.names)


def file_letters(bad: DataFrame, task: ConnectorTaskId) -> DataFrame:
    """The bad rows of ``task`` with the columns of :data:`ROW`, but with unchanged ``headers``."""
    record = [F.col(name) for name in RECORD.names if name not in ("key", "value", "headers")]
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
    if headers is None:
        return None
    return json.dumps([{"key": header["key"], "value": _text(header["value"])} for header in headers])


def _text(value: object) -> str | None:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else None


def record_parts(of: Callable[[str], Column], task: ConnectorTaskId, *, has_context: bool) -> dict[str, Column]:
    """The key, value and headers of a dead letter in a topic. ``of`` returns a column of the bad row by name.

    With ``has_context`` the headers of Connect follow the record's own headers, in Connect's order.
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
            F.struct(F.lit(CONTEXT + name).alias("key"), value.cast("string").cast("binary").alias("value"))
            for name, value in context.items()
        ]
        own = F.coalesce(of("headers"), F.array().cast(HEADERS_TYPE))
        parts["headers"] = F.concat(own, F.array(*added).cast(HEADERS_TYPE))
    return parts
