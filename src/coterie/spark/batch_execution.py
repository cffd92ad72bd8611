"""In how many Spark partitions a small batch is evaluated."""

from pyspark.sql import DataFrame


def coalesce_if_above_default_parallelism(rows: DataFrame, *, source_partition_count_of_task: int) -> DataFrame:
    """Return ``rows``, the rows of a small batch, with at most ``spark.default.parallelism`` Spark partitions (by
    default one for each core). ``source_partition_count_of_task`` is the number of source partitions of the task. If
    this number is not higher than ``spark.default.parallelism``, return ``rows`` unchanged: the plan that merges Spark
    partitions would cost more than it saves.

    Each Spark partition is a Spark task, which is serialized, scheduled and reported. For a few rows that costs more
    CPU time than to read them. In exchange fewer partitions are read at the same time.

    :raises PySparkException, Py4JError: when Spark does not respond.
    """
    if source_partition_count_of_task == 1:  # Most tasks: without a request to the JVM.
        return rows
    partitions_max = rows.sparkSession.sparkContext.defaultParallelism
    return rows.coalesce(partitions_max) if source_partition_count_of_task > partitions_max else rows
