"""How Spark evaluates the rows of a batch, by the size of the batch.

A small batch costs less without generated code and in few Spark partitions. A batch of 25 Kafka partitions with two new
rows each took 0.82 s of CPU time with Spark's defaults, and takes 0.25 s (`docs/design.md`).
"""

from pyspark.sql import DataFrame

CODE_GENERATION_KEY = "spark.sql.codegen.factoryMode"
"""Spark's internal setting: whether projections and conditions outside whole stages are compiled (``FALLBACK``) or
interpreted (``NO_CODEGEN``). Spark reads it when it evaluates rows. Both evaluations have the same result."""


def adapt_to_size(rows: DataFrame, *, is_small: bool, source_partition_count: int) -> DataFrame:
    """Return ``rows``, the rows of a batch, in the form in which Spark evaluates them with the least CPU time. Sets
    :data:`CODE_GENERATION_KEY` in the session of the query, so it must be called for each batch.

    ``source_partition_count``: the number of source partitions of the task; the batch may have as many Spark
    partitions.

    Spark generates the code of a projection again for each Spark partition, before it finds the compiled code in its
    cache: that takes longer than to evaluate the rows of a small batch. And each Spark partition is a Spark task, which
    is serialized, scheduled and reported. So a small batch has one Spark partition for each core at most; but the plan
    that merges Spark partitions costs more than it saves if there are no more than that.

    :raises PySparkException, Py4JError: when Spark does not respond.
    """
    session = rows.sparkSession
    session.conf.set(CODE_GENERATION_KEY, "NO_CODEGEN" if is_small else "FALLBACK")
    if not is_small or source_partition_count == 1:
        return rows
    core_count = session.sparkContext.defaultParallelism
    return rows.coalesce(core_count) if source_partition_count > core_count else rows
