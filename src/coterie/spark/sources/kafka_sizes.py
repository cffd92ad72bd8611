"""How large the records of a Kafka batch are, so that none of them has to fit into memory at once.

Offsets say how many records a batch has, and nothing of their size: 20,000 records may be 2 MB or 20 GB. So some
records of a batch are read before the batch is.
"""

from collections.abc import Mapping
from statistics import mean

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from coterie.spark.sources.kafka_batch import records_of
from coterie.spark.sources.kafka_positions import KafkaPart

SAMPLED_AT_EDGE = 10
"""How many records are looked at on either edge of a partition's range."""
SAMPLED_PARTITIONS = 4
"""In how many partitions records are looked at: each needs a consumer of its own, twice."""


def mean_bytes(spark: SparkSession, consumer: Mapping[str, str], ranges: Mapping[KafkaPart, range]) -> int:
    """About how many bytes a record of ``ranges`` has: the first records of a few partitions are read, and the last
    ones, and the larger of both means is returned. 0 when retention or compaction has left none of these records.

    :raises PySparkException, Py4JJavaError: when the cluster cannot be read.
    """
    sampled = _sampled(ranges)
    if not sampled:
        return 0
    firsts = {part: ranges[part][:SAMPLED_AT_EDGE] for part in sampled}
    lasts = {part: ranges[part][-SAMPLED_AT_EDGE:] for part in sampled}
    size = F.coalesce(F.length("key"), F.lit(0)) + F.coalesce(F.length("value"), F.lit(0))
    # The means are not taken by Spark: aggregates need a shuffle, and their plans cost more than the reading.
    sizes = [records_of(spark, consumer, edge).select(size, F.lit(edge is lasts)) for edge in (firsts, lasts)]
    found = [tuple(row) for row in sizes[0].unionAll(sizes[1]).collect()]
    edges = [[bytes_ for bytes_, is_last in found if is_last is edge] for edge in (False, True)]
    return int(max((mean(edge) for edge in edges if edge), default=0))


def _sampled(ranges: Mapping[KafkaPart, range]) -> list[KafkaPart]:
    """The partitions with most records: of each topic the first one, then the others."""
    by_size = sorted((part for part in ranges if ranges[part]), key=lambda part: (-len(ranges[part]), part.name))
    first_of_topic = {part.topic: part for part in reversed(by_size)}
    by_size.sort(key=lambda part: first_of_topic[part.topic] != part)
    return by_size[:SAMPLED_PARTITIONS]
