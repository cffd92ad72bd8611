"""A stream of your own, for examples/python-to-json.json; README.md describes how a worker runs it."""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F


def flights(spark: SparkSession, config: dict[str, str]) -> DataFrame:
    """The flights of the CSV files in the connector's ``folder``, with a column for late ones."""
    read = spark.readStream.schema("id BIGINT, carrier STRING, delay INT").option("header", "true")
    return read.csv(config["folder"]).withColumn("is_late", F.col("delay") > 15)
