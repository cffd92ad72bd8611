"""How large the records of a Kafka batch are, so that none of them has to fit into memory at once.

Offsets say how many records a batch has, and nothing of their size: 20,000 records may be 2 MB or 20 GB. So some
records of a batch are read before the batch is.
"""

from collections.abc import Mapping

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from coterie.spark.sources.kafka_batch import records_of
from coterie.spark.sources.kafka_positions import KafkaPart

SAMPLED_AT_EDGE = 10
"""How many records are looked at on either edge of a partition's range."""


def mean_bytes(spark: SparkSession, consumer: Mapping[str, str], ranges: Mapping[KafkaPart, range]) -> int:
    """About how many bytes a record of ``ranges`` has: the first records of all partitions are looked at, and the last
    ones, and the larger of both means is returned. 0 when retention or compaction has left none of these records.

    :raises PySparkException, Py4JJavaError: when the cluster cannot be read.
    """
    firsts = {part: offsets[:SAMPLED_AT_EDGE] for part, offsets in ranges.items() if offsets}
    lasts = {part: offsets[-SAMPLED_AT_EDGE:] for part, offsets in ranges.items() if offsets}
    if not firsts:
        return 0
    size = F.coalesce(F.length("key"), F.lit(0)) + F.coalesce(F.length("value"), F.lit(0))
    means = [records_of(spark, consumer, edge).agg(F.avg(size).alias("mean")) for edge in (firsts, lasts)]
    found = means[0].unionAll(means[1]).agg(F.max("mean")).first()
    assert found is not None, "an aggregate without groups has one row"
    return 0 if found[0] is None else int(found[0])
