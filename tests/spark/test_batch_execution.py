"""A small batch is evaluated in few Spark partitions and without generated code, with the same result."""

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from coterie.spark.arrow import CODE_GENERATION_KEY, read_arrow_batches
from coterie.spark.batch_execution import coalesce_if_above_default_parallelism
from tests.spark.conftest import Rig

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(180)]

CORES = 2
"""The cores of the session of :class:`Rig`."""


def values(session: SparkSession, spark_partitions: int) -> DataFrame:
    """Texts of JSON, of which every third is not valid and every fifth is null."""
    numbers = session.range(0, 100, 1, spark_partitions)
    text = F.concat(F.lit('{"n": '), F.col("id"), F.lit(', "t": "2026-02-03 04:05:06", "a": [1, null, 3]'))
    return numbers.select(
        "id",
        F.when(F.col("id") % 5 == 0, None)
        .when(F.col("id") % 3 == 0, text)
        .otherwise(F.concat(text, F.lit("}")))
        .alias("value"),
    )


def converted(session: SparkSession) -> DataFrame:
    """Rows whose expressions are a conversion of JSON, a digest, random numbers and a condition."""
    record = F.from_json("value", "n INT, t TIMESTAMP, a ARRAY<INT>")
    digests = F.md5("value").alias("digest"), F.rand(7).alias("random")
    columns = values(session, 5).select("id", record.alias("record"), *digests)
    return columns.where("id % 2 = 1 OR record.n IS NULL").select("*", "record.*")


@pytest.mark.parametrize(
    ("source_partitions", "spark_partitions"),
    [(5, CORES), (CORES, 5), (1, 5)],
    ids=["many", "as many as cores", "one"],
)
async def test_only_the_rows_of_many_source_partitions_are_merged(
    rig: Rig, source_partitions: int, spark_partitions: int
) -> None:
    rows = values(rig.session, 5)
    merged = coalesce_if_above_default_parallelism(rows, source_partition_count_of_task=source_partitions)
    assert merged.rdd.getNumPartitions() == spark_partitions
    assert sorted(merged.collect()) == sorted(rows.collect())


def classes_compiled(session: SparkSession) -> int:
    """How many texts of classes Spark has generated and given to its compiler or found in its cache."""
    java: Any = session._jvm
    metrics = java.org.apache.spark.metrics.source.CodegenMetrics
    return int(metrics.METRIC_SOURCE_CODE_SIZE().getCount())


async def test_the_rows_of_a_small_batch_are_read_without_generated_code(rig: Rig) -> None:
    session = rig.session
    former_mode = session.conf.get(CODE_GENERATION_KEY)
    compiled_rows = converted(session).toArrow().to_pylist()
    # Other expressions than before, so that no class is in Spark's cache.
    fresh = values(session, 5).select(F.concat("value", F.lit("never compiled before")).alias("text"))
    before = classes_compiled(session)
    assert (
        sum(batch.num_rows for batch in read_arrow_batches(fresh, is_small=True, has_bounded_spark_partitions=True))
        == 100
    )
    assert classes_compiled(session) == before
    assert session.conf.get(CODE_GENERATION_KEY) == former_mode
    assert len(fresh.where("text IS NOT NULL").toArrow()) == 80
    assert classes_compiled(session) > before, "other actions of the session generate code"

    interpreted_rows = pa.Table.from_batches(
        read_arrow_batches(converted(session), is_small=True, has_bounded_spark_partitions=True)
    ).to_pylist()
    assert interpreted_rows == compiled_rows
    assert len(compiled_rows) > 50


async def test_the_setting_of_the_session_returns_after_a_failed_read(rig: Rig) -> None:
    session = rig.session
    session.conf.set(CODE_GENERATION_KEY, "CODEGEN_ONLY")
    failing = values(session, 1).select(F.raise_error(F.lit("no row")))
    with pytest.raises(Exception, match="no row"):
        list(read_arrow_batches(failing, is_small=True, has_bounded_spark_partitions=True))
    assert session.conf.get(CODE_GENERATION_KEY) == "CODEGEN_ONLY"
