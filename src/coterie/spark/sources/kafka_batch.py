"""Spark's options for Kafka's consumers, and a read of given offset ranges with Spark, outside a stream."""

import json
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from coterie.spark.sources.kafka_positions import TopicIdPartition, spark_offsets

FETCH_WAIT_MS = 5
"""How long, in ms, a broker waits for new records before it answers a fetch at the end of a partition.

Kafka's default is 500. After each fetch Kafka's consumer sends the next fetch at once, and Spark's reader then requests
the offsets of the partition. A broker answers one request of a connection after the other, so with the default each
partition that is read up to its end would take half a second longer. Spark reads only offsets that exist, so it never
needs to wait for new records.
"""


def consumer_options(consumer: Mapping[str, str]) -> dict[str, str]:
    """The properties ``consumer`` as options of Spark's Kafka source (``kafka.<name>``), with :data:`FETCH_WAIT_MS`
    unless ``consumer`` sets it."""
    properties = {"fetch.max.wait.ms": str(FETCH_WAIT_MS), **consumer}
    return {f"kafka.{name}": value for name, value in properties.items()}


def records_of(spark: SparkSession, consumer: Mapping[str, str], ranges: Mapping[TopicIdPartition, range]) -> DataFrame:
    """The records in ``ranges``, the offsets to read by partition, as columns of Spark's Kafka source. Records that
    retention deletes before they are read are missing without an error."""
    assigned: dict[str, list[int]] = {}
    for part in ranges:
        assigned.setdefault(part.topic, []).append(part.partition)
    options = {
        **consumer_options(consumer),
        "assign": json.dumps(assigned),
        "startingOffsets": spark_offsets({str(part): offsets.start for part, offsets in ranges.items()}),
        "endingOffsets": spark_offsets({str(part): offsets.stop for part, offsets in ranges.items()}),
        "failOnDataLoss": "false",
    }
    return spark.read.format("kafka").options(**options).load()
