"""Dead letters: bad rows as they are written to a table, a folder or a topic, with where they come from."""

import base64
import json

import pyarrow as pa
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

EXCEPTION = "org.apache.kafka.connect.errors.DataException"
"""What Connect raises for a record that a converter or a transform refuses."""

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
    """Bad rows of ``task`` as columns of :data:`ROW`."""
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


def _headers(headers: list[dict[str, object]] | None) -> str | None:
    if headers is None:
        return None
    return json.dumps([{"key": header["key"], "value": _text(header["value"])} for header in headers])


def _text(value: object) -> str | None:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else None
