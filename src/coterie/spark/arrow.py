"""Reads the rows of a batch to the driver as Arrow record batches of bounded size."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.serializers import FramedSerializer
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.util import _local_iterator_from_socket

ARROW_BATCH_ROWS_MAX = 10_000
"""Maximum number of rows in one Arrow record batch."""


def read_arrow_batches(rows: DataFrame, *, is_small: bool) -> Iterator[pa.RecordBatch]:
    """Read ``rows`` to the driver, in their order, as Arrow record batches of at most :data:`ARROW_BATCH_ROWS_MAX`
    rows.

    ``is_small``: whether all rows fit into the driver's memory; they are then collected at once. Otherwise the driver
    holds the rows of two Spark partitions at a time: the partition that the caller reads, and the next partition, which
    Spark computes meanwhile.

    :raises PySparkException, Py4JError: when Spark cannot compute the rows.
    """
    if is_small:
        yield from rows.toArrow().to_batches(ARROW_BATCH_ROWS_MAX)
        return
    session: Any = rows.sparkSession
    # Spark's public methods return either all rows at once as Arrow, or the rows of one partition after the other
    # pickled, which takes 20 times the CPU time. These are the two internal methods of toArrow and toLocalIterator.
    arrow_rdd = rows._jdf.toArrowBatchRdd(ARROW_BATCH_ROWS_MAX, "UTC", True, False)
    socket_info = session._jvm.PythonRDD.toLocalIteratorAndServe(arrow_rdd, True)
    schema = to_arrow_schema(rows.schema, timezone="UTC")
    for message in _local_iterator_from_socket(socket_info, FramedBytesSerializer()):
        yield pa.ipc.read_record_batch(message, schema)


class FramedBytesSerializer(FramedSerializer):
    """PySpark's serializer for a stream of messages that are bytes: each message is unchanged, after its length."""

    def dumps(self, obj: Any) -> bytes:
        return bytes(obj)

    def loads(self, obj: bytes) -> bytes:
        return obj
