"""Spark's options for Kafka's consumers, and a read of given offset ranges with Spark, outside a stream."""

import json
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from coterie.spark.sources.kafka_positions import TopicIdPartition, to_spark_offsets_json

FETCH_WAIT_MAX_MS = 5
"""How long, in ms, a broker waits for new records before it answers a fetch at the end of a partition.

Kafka's default is 500. After each fetch Kafka's consumer sends the next fetch at once, and Spark's reader then requests
the offsets of the partition. A broker answers one request of a connection after the other, so with the default each
partition that is read up to its end would take half a second longer. Spark reads only offsets that exist, so it never
needs to wait for new records.
"""


def spark_consumer_options(consumer_properties: Mapping[str, str]) -> dict[str, str]:
    """The properties ``consumer_properties`` as options of Spark's Kafka source (``kafka.<name>``), with
    :data:`FETCH_WAIT_MAX_MS` unless ``consumer_properties`` sets it."""
    properties = {"fetch.max.wait.ms": str(FETCH_WAIT_MAX_MS), **consumer_properties}
    return {f"kafka.{name}": value for name, value in properties.items()}


def read_offset_ranges(
    spark: SparkSession, consumer_properties: Mapping[str, str], offsets_by_partition: Mapping[TopicIdPartition, range]
) -> DataFrame:
    """The records at ``offsets_by_partition`` (ranges of offsets), as columns of Spark's Kafka source. Records that
    retention deletes before they are read are missing without an error."""
    partitions_by_topic: dict[str, list[int]] = {}
    for partition in offsets_by_partition:
        partitions_by_topic.setdefault(partition.topic, []).append(partition.partition)
    options = {
        **spark_consumer_options(consumer_properties),
        "assign": json.dumps(partitions_by_topic),
        "startingOffsets": to_spark_offsets_json(
            {str(partition): offsets.start for partition, offsets in offsets_by_partition.items()}
        ),
        "endingOffsets": to_spark_offsets_json(
            {str(partition): offsets.stop for partition, offsets in offsets_by_partition.items()}
        ),
        "failOnDataLoss": "false",
    }
    return spark.read.format("kafka").options(**options).load()
