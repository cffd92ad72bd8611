"""Samples the size of the records of a Kafka batch, so that a batch too large for memory is not collected at once.

Offsets determine how many records a batch has, not their size: 20,000 records may be 2 MB or 20 GB. So some records of
a batch are read before the batch.
"""

from collections.abc import Mapping

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from coterie.spark.sources.kafka_batch import records_of
from coterie.spark.sources.kafka_positions import KafkaPart

SAMPLED_AT_EDGE = 10
"""How many records are sampled at each end of a partition's range."""


def mean_bytes(spark: SparkSession, consumer: Mapping[str, str], ranges: Mapping[KafkaPart, range]) -> int:
    """The approximate size of a record of ``ranges``, in bytes of key and value.

    This is the larger of two means: over the first records of all partitions, and over their last records. It is 0 when
    retention or compaction has deleted all these records.

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
