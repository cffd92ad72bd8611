"""The rows of a batch as Arrow record batches on the driver, in pieces of bounded size."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.serializers import FramedSerializer
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.util import _local_iterator_from_socket

PIECE_ROWS = 10_000


def pieces(rows: DataFrame, *, is_small: bool) -> Iterator[pa.RecordBatch]:
    """The rows in their order, at most :data:`PIECE_ROWS` each.

    A small batch is collected whole. Of another one the driver holds the rows of two of Spark's partitions at a time:
    the one that is read and the next, which Spark computes meanwhile.

    :raises PySparkException, Py4JError: when Spark cannot compute the rows.
    """
    if is_small:
        yield from rows.toArrow().to_batches(PIECE_ROWS)
        return
    session: Any = rows.sparkSession
    # Spark's public methods bring all rows at once as Arrow, or partition by partition as pickled rows: 20 times the
    # CPU. These two are what its own toArrow and toLocalIterator call.
    arrow = rows._jdf.toArrowBatchRdd(PIECE_ROWS, "UTC", True, False)
    served = session._jvm.PythonRDD.toLocalIteratorAndServe(arrow, True)
    schema = to_arrow_schema(rows.schema, timezone="UTC")
    for message in _local_iterator_from_socket(served, FramedBytes()):
        yield pa.ipc.read_record_batch(message, schema)


class FramedBytes(FramedSerializer):
    """Messages as they are, each after its length."""

    def dumps(self, obj: Any) -> bytes:
        return bytes(obj)

    def loads(self, obj: bytes) -> bytes:
        return obj
