"""Reads the rows of a batch to the driver as Arrow record batches of bounded size.

In the JVM an Arrow record batch is a byte array. An Arrow partition is a Scala iterator of the record batches of one
Spark partition; an Arrow RDD is a Java RDD of record batches.
"""

from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.serializers import FramedSerializer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.util import _create_local_socket, _local_iterator_from_socket

from coterie.nouns.errors import UnreachableError

ARROW_BATCH_ROWS_MAX = 10_000
"""Maximum number of rows in one Arrow record batch."""
STORED_ARROW_BATCH_ROWS_MAX = 1_000
"""Maximum number of rows in one Arrow record batch that Spark stores: the driver holds one at a time, and rows may be
long."""
CODE_GENERATION_KEY = "spark.sql.codegen.factoryMode"
"""Spark's internal setting: whether Spark interprets projections and conditions (``NO_CODEGEN``) or compiles them, with
the same result. Spark reads it when it plans a query, and in each Spark task from the properties of the job."""


def read_arrow_batches(
    rows: DataFrame, *, is_small: bool, has_bounded_spark_partitions: bool
) -> Generator[pa.RecordBatch, None, None]:
    """Read ``rows`` to the driver, in their order, as Arrow record batches of at most :data:`ARROW_BATCH_ROWS_MAX`
    rows. The caller must close the generator if it does not read to the end.

    ``is_small``: whether all rows fit into the driver's memory; they are then collected at once.
    ``has_bounded_spark_partitions``: whether two Spark partitions fit into the driver's memory; the driver then holds
    the rows of two Spark partitions at a time: the partition that the caller reads, and the next partition, which Spark
    computes meanwhile. Otherwise Spark stores the rows on disk (:func:`store_and_yield_arrow_partitions`), and the
    driver holds some record batches.

    :raises PySparkException, Py4JError: when Spark cannot compute the rows.
    :raises UnreachableError: as :func:`store_and_yield_arrow_partitions`.
    """
    if is_small:
        with _with_interpreted_expressions(rows.sparkSession):
            table = rows.toArrow()
        yield from table.to_batches(ARROW_BATCH_ROWS_MAX)
        return
    schema = to_arrow_schema(rows.schema, timezone="UTC")
    if not has_bounded_spark_partitions:
        with closing(store_and_yield_arrow_partitions(rows)) as partitions:
            for partition in partitions:
                # Closed before `partitions`: Java must no longer use the partition when its block is released.
                with closing(_read_byte_arrays_from_java(rows.sparkSession, partition)) as messages:
                    for message in messages:
                        yield pa.ipc.read_record_batch(message, schema)
        return
    session: Any = rows.sparkSession
    # Spark's public methods return either all rows at once as Arrow, or the rows of one partition after the other
    # pickled, which takes 20 times the CPU time. These are the two internal methods of toArrow and toLocalIterator.
    socket_info = session._jvm.PythonRDD.toLocalIteratorAndServe(_arrow_rdd(rows, ARROW_BATCH_ROWS_MAX), True)
    for message in _local_iterator_from_socket(socket_info, FramedBytesSerializer()):
        yield pa.ipc.read_record_batch(message, schema)


def store_and_yield_arrow_partitions(rows: DataFrame) -> Generator[Any, None, None]:
    """Evaluate all ``rows`` once, store them on the disks of Spark's executors, and yield for each Spark partition, in
    order, a Scala iterator of its Arrow record batches: byte arrays, each of at most
    :data:`STORED_ARROW_BATCH_ROWS_MAX` rows. An iterator reads one record batch after the other from disk, and must no
    longer be used when the next iterator is requested. The stored rows are removed when the generator ends; the caller
    must close the generator.

    Needed because Spark sends the rows of one Spark partition only as a whole to the driver, and a file that is
    compressed as a whole is one Spark partition of any size.

    :raises PySparkException, Py4JError: when Spark cannot compute the rows, or their disk is full.
    :raises UnreachableError: when an executor was lost with its stored rows.
    """
    session: Any = rows.sparkSession
    java = session._jvm
    arrow_rdd = _arrow_rdd(rows, STORED_ARROW_BATCH_ROWS_MAX)
    arrow_rdd.persist(java.org.apache.spark.storage.StorageLevel.DISK_ONLY())
    try:
        arrow_rdd.count()
        block_manager = java.org.apache.spark.SparkEnv.get().blockManager()
        for number in range(arrow_rdd.getNumPartitions()):
            block_id = java.org.apache.spark.storage.RDDBlockId(arrow_rdd.id(), number)
            block = block_manager.get(block_id, arrow_rdd.elementClassTag())
            if block.isEmpty():
                raise UnreachableError(
                    f"The stored rows of Spark partition {number} are lost, because the executor that stored them has "
                    "ended. The next attempt computes the rows again"
                )
            record_batches = block.get().data()
            try:
                yield record_batches
            finally:
                # The end of the iterator releases the block. A block that is in use could never be removed.
                if record_batches.hasNext():
                    # A block that was fetched from another executor is not locked here.
                    with suppress(Py4JJavaError):
                        block_manager.releaseLock(block_id, java.scala.Option.empty())
    finally:
        arrow_rdd.unpersist(False)


def arrow_batches_to_internal_rows(rows: DataFrame, record_batches: Any) -> Generator[Any, None, None]:
    """Yield, for each record batch of ``record_batches``, the rows of the record batch as a Scala iterator of rows in
    Spark's internal form. ``record_batches`` is one of the iterators that :func:`store_and_yield_arrow_partitions`
    yields for ``rows``. A yielded iterator must no longer be used when the next one is requested: the memory of its
    record batch, outside the heap of the JVM, is then free. The caller must close the generator."""
    java: Any = rows.sparkSession._jvm
    converters = getattr(getattr(java.org.apache.spark.sql.execution.arrow, "ArrowConverters$"), "MODULE$")
    schema = rows._jdf.schema()
    # One conversion of several record batches would free the memory of all of them at its end.
    single_batches = record_batches.grouped(1)
    while single_batches.hasNext():
        converted_rows = converters.fromBatchIterator(
            single_batches.next().iterator(), schema, "UTC", True, False, None
        )
        try:
            yield converted_rows
        finally:
            resources = converted_rows.resources().reverseIterator()
            while resources.hasNext():
                resources.next().close()


def _arrow_rdd(rows: DataFrame, batch_rows_max: int) -> Any:
    """``rows`` as a Java RDD whose elements are Arrow record batches, byte arrays, of at most ``batch_rows_max``
    rows."""
    return rows._jdf.toArrowBatchRdd(batch_rows_max, "UTC", True, False)


def _read_byte_arrays_from_java(session: SparkSession, elements: Any) -> Generator[bytes, None, None]:
    """Read the elements of a Scala iterator of byte arrays, while Java sends them. When this generator ends or is
    closed, Java no longer uses the iterator.

    :raises Py4JJavaError: when the iterator raises.
    """
    java: Any = session._jvm
    connection, secret, server = java.PythonRDD.serveIterator(elements, "coterie-stored-rows")
    socket_file, socket = _create_local_socket((connection, secret))
    is_read = False
    try:
        # After an error of the iterator the stream ends as after the last element.
        yield from FramedBytesSerializer().load_stream(socket_file)  # type: ignore[no-untyped-call]
        is_read = True
    finally:
        socket_file.close()
        socket.close()
        # Waits for the thread that sends; it fails if the other side of its connection was closed early.
        with nullcontext() if is_read else suppress(Py4JJavaError):
            server.getResult()


@contextmanager
def _with_interpreted_expressions(session: SparkSession) -> Iterator[None]:
    """Context manager: Spark interprets the projections and conditions that it evaluates for actions of the block.

    Outside the block Spark compiles them. The compiled classes are in a cache whose key is the Java code, so Spark
    generates the code of each projection again for each Spark partition. For a small batch that takes longer than the
    evaluation of the rows. Not for a MERGE of Delta, which may read a large table.
    """
    former_mode = session.conf.get(CODE_GENERATION_KEY)
    assert former_mode is not None, "Spark has a default"
    session.conf.set(CODE_GENERATION_KEY, "NO_CODEGEN")
    try:
        yield
    finally:
        session.conf.set(CODE_GENERATION_KEY, former_mode)


class FramedBytesSerializer(FramedSerializer):
    """PySpark's serializer for a stream of messages that are bytes: each message is written unchanged, after its
    length."""

    def dumps(self, obj: Any) -> bytes:
        return bytes(obj)

    def loads(self, obj: bytes) -> bytes:
        return obj
