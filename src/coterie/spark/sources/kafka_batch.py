"""Reads given offsets of topics as one Spark batch, independent of the tasks' streams."""

import json
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from coterie.spark.sources.kafka_positions import KafkaPart, spark_offsets


def records_of(spark: SparkSession, consumer: Mapping[str, str], ranges: Mapping[KafkaPart, range]) -> DataFrame:
    """The records of ``ranges`` that still exist; retention may delete some before they are read."""
    assigned: dict[str, list[int]] = {}
    for part in ranges:
        assigned.setdefault(part.topic, []).append(part.partition)
    options = {
        **{f"kafka.{name}": value for name, value in consumer.items()},
        "assign": json.dumps(assigned),
        "startingOffsets": spark_offsets({str(part): offsets.start for part, offsets in ranges.items()}),
        "endingOffsets": spark_offsets({str(part): offsets.stop for part, offsets in ranges.items()}),
        "failOnDataLoss": "false",
    }
    return spark.read.format("kafka").options(**options).load()
