"""Samples the size of the records of a Kafka batch, so that a batch too large for memory is not collected at once.

Offsets determine how many records a batch has, not their size: 20,000 records may be 2 MB or 20 GB. So some records of
a batch are read before the batch.
"""

from collections.abc import Mapping
from statistics import mean

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from coterie.spark.sources.kafka_batch import records_of
from coterie.spark.sources.kafka_positions import KafkaPart

SAMPLED_AT_EDGE = 10
"""How many records are sampled at each end of a partition's range."""
SAMPLED_PARTITIONS = 4
"""In how many partitions records are sampled: each needs two consumers of its own."""


def mean_bytes(spark: SparkSession, consumer: Mapping[str, str], ranges: Mapping[KafkaPart, range]) -> int:
    """The approximate size of a record of ``ranges``, in bytes of key and value.

    This is the larger of two means: over the first records of a few partitions, and over their last records. It is 0
    when retention or compaction has deleted all these records.

    :raises PySparkException, Py4JJavaError: when the cluster cannot be read.
    """
    sampled = _sampled(ranges)
    if not sampled:
        return 0
    firsts = {part: ranges[part][:SAMPLED_AT_EDGE] for part in sampled}
    lasts = {part: ranges[part][-SAMPLED_AT_EDGE:] for part in sampled}
    size = F.coalesce(F.length("key"), F.lit(0)) + F.coalesce(F.length("value"), F.lit(0))
    # Python computes the means: in Spark an aggregate needs a shuffle, and planning that costs more than the reading.
    sizes = [records_of(spark, consumer, edge).select(size, F.lit(edge is lasts)) for edge in (firsts, lasts)]
    found = [tuple(row) for row in sizes[0].unionAll(sizes[1]).collect()]
    edges = [[bytes_ for bytes_, is_last in found if is_last is edge] for edge in (False, True)]
    return int(max((mean(edge) for edge in edges if edge), default=0))


def _sampled(ranges: Mapping[KafkaPart, range]) -> list[KafkaPart]:
    """The partitions to sample: of each topic the partition with most records, then the others by their size."""
    by_size = sorted((part for part in ranges if ranges[part]), key=lambda part: (-len(ranges[part]), part.name))
    first_of_topic = {part.topic: part for part in reversed(by_size)}
    by_size.sort(key=lambda part: first_of_topic[part.topic] != part)
    return by_size[:SAMPLED_PARTITIONS]
