"""Functions for configs of the tests, valid ones and invalid ones."""

import os
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from tests.spark.gated_plugins import Gate

NUMBER = 7
function_gate = Gate()
"""The gate that each look-up of ``gated_rows`` enters."""


def __getattr__(name: str) -> Any:
    if name != "gated_rows":
        raise AttributeError(name)
    function_gate.enter()
    return unchanged


# -- over Arrow batches -----------------------------------------------------------------------------------------------


def doubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows with an even number, and twice that number."""
    for batch in batches:
        even = batch.filter(pc.equal(pc.bit_wise_and(batch["row"], 1), 0))
        yield pa.record_batch({"twice": pc.multiply(even["row"], 2).cast("int32"), "row": even["row"]})


def unchanged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def raises(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        raise LookupError("no rate for the currency XYZ")
    return iter(())


def exits(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        os._exit(3)
    return iter(())


def leaves(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        sys.exit("enough")
    return iter(())


def renames(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Returns other columns than those in the config."""
    for batch in batches:
        yield pa.record_batch({"number": batch["row"]})


def python_of_worker(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A variable of the environment of the Python process that runs this function."""
    for batch in batches:
        yield pa.record_batch({"python": [os.environ.get("COTERIE_TEST_PYTHON")] * batch.num_rows})


# -- sources ----------------------------------------------------------------------------------------------------------


def build(spark: SparkSession, config: dict[str, str]) -> DataFrame:
    """The rows of a folder, numbered from ``offset``."""
    rows = spark.readStream.schema("row BIGINT, delay DOUBLE, distance INT").option("header", "true")
    return rows.csv(config["folder"]).selectExpr(f"row + {config.get('offset', 0)} AS row", "delay")


def build_batch(spark: SparkSession, config: dict[str, str]) -> DataFrame:
    return spark.range(3)


def build_nothing(spark: SparkSession, config: dict[str, str]) -> Any:
    return None


def build_raises(spark: SparkSession, config: dict[str, str]) -> DataFrame:
    raise KeyError("folder")


def build_leaves(spark: SparkSession, config: dict[str, str]) -> DataFrame:
    sys.exit("enough")


def build_counts(spark: SparkSession, config: dict[str, str]) -> DataFrame:
    return spark.readStream.format("rate").load().groupBy("value").count()
