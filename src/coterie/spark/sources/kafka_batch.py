"""Spark's options for Kafka's consumers, and given offsets of topics read as one batch."""

import json
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from coterie.spark.sources.kafka_positions import KafkaPart, spark_offsets

FETCH_WAIT_MS = 5
"""How long a broker holds a fetch at the end of a partition, where there is no record yet.

Kafka's default is 500. After each fetch its consumer sends the next one at once, and Spark's reader then asks for the
offsets of the partition. A broker answers one request of a connection after the other, so each partition that is read
up to its end would take half a second longer. Spark reads only offsets that exist, so it never waits for new records.
"""


def consumer_options(consumer: Mapping[str, str]) -> dict[str, str]:
    """Spark's options for the consumers of its executors."""
    properties = {"fetch.max.wait.ms": str(FETCH_WAIT_MS), **consumer}
    return {f"kafka.{name}": value for name, value in properties.items()}


def records_of(spark: SparkSession, consumer: Mapping[str, str], ranges: Mapping[KafkaPart, range]) -> DataFrame:
    """The records of ``ranges`` that still exist; retention may delete some before they are read."""
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
