"""Reads the rows of a batch to the driver as Arrow record batches of bounded size."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark.serializers import FramedSerializer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.util import _local_iterator_from_socket

ARROW_BATCH_ROWS_MAX = 10_000
"""Maximum number of rows in one Arrow record batch."""
CODE_GENERATION_KEY = "spark.sql.codegen.factoryMode"
"""Spark's internal setting: whether Spark interprets projections and conditions (``NO_CODEGEN``) or compiles them, with
the same result. Spark reads it when it plans a query, and in each Spark task from the properties of the job."""


def read_arrow_batches(rows: DataFrame, *, is_small: bool) -> Iterator[pa.RecordBatch]:
    """Read ``rows`` to the driver, in their order, as Arrow record batches of at most :data:`ARROW_BATCH_ROWS_MAX`
    rows.

    ``is_small``: whether all rows fit into the driver's memory; they are then collected at once. Otherwise the driver
    holds the rows of two Spark partitions at a time: the partition that the caller reads, and the next partition, which
    Spark computes meanwhile.

    :raises PySparkException, Py4JError: when Spark cannot compute the rows.
    """
    if is_small:
        with _interpreted_expressions(rows.sparkSession):
            table = rows.toArrow()
        yield from table.to_batches(ARROW_BATCH_ROWS_MAX)
        return
    session: Any = rows.sparkSession
    # Spark's public methods return either all rows at once as Arrow, or the rows of one partition after the other
    # pickled, which takes 20 times the CPU time. These are the two internal methods of toArrow and toLocalIterator.
    arrow_rdd = rows._jdf.toArrowBatchRdd(ARROW_BATCH_ROWS_MAX, "UTC", True, False)
    socket_info = session._jvm.PythonRDD.toLocalIteratorAndServe(arrow_rdd, True)
    schema = to_arrow_schema(rows.schema, timezone="UTC")
    for message in _local_iterator_from_socket(socket_info, FramedBytesSerializer()):
        yield pa.ipc.read_record_batch(message, schema)


@contextmanager
def _interpreted_expressions(session: SparkSession) -> Iterator[None]:
    """Context manager: Spark interprets the projections and conditions that it evaluates for actions of the block.

    Otherwise it generates and formats the Java code of each projection again for each Spark partition, before it finds
    the compiled class in its cache: for the rows of a small batch that takes longer than to evaluate them. Not for
    other actions of the batch, for instance a MERGE of Delta, which may read a large table.
    """
    former_mode = session.conf.get(CODE_GENERATION_KEY)
    assert former_mode is not None, "Spark has a default"
    session.conf.set(CODE_GENERATION_KEY, "NO_CODEGEN")
    try:
        yield
    finally:
        session.conf.set(CODE_GENERATION_KEY, former_mode)


class FramedBytesSerializer(FramedSerializer):
    """PySpark's serializer for a stream of messages that are bytes: each message is unchanged, after its length."""

    def dumps(self, obj: Any) -> bytes:
        return bytes(obj)

    def loads(self, obj: bytes) -> bytes:
        return obj
