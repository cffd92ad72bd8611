"""A small batch is evaluated in few Spark partitions and without generated code, with the same result."""

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from coterie.spark.batch_execution import CODE_GENERATION_KEY, adapt_to_size
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


@pytest.mark.parametrize(
    ("is_small", "source_partitions", "spark_partitions"),
    [(True, 5, CORES), (True, CORES, 5), (True, 1, 5), (False, 5, 5)],
    ids=["small", "as many as cores", "one source partition", "large"],
)
async def test_only_a_small_batch_of_many_source_partitions_is_merged(
    rig: Rig, is_small: bool, source_partitions: int, spark_partitions: int
) -> None:
    rows = values(rig.session, 5)
    adapted = adapt_to_size(rows, is_small=is_small, source_partition_count=source_partitions)
    assert adapted.rdd.getNumPartitions() == spark_partitions
    assert sorted(adapted.collect()) == sorted(rows.collect())


async def test_code_is_generated_again_for_a_large_batch_after_a_small_one(rig: Rig) -> None:
    session = rig.session
    rows = values(session, 1)
    seen = []
    for is_small in (True, False, True):
        adapt_to_size(rows, is_small=is_small, source_partition_count=1)
        seen.append(session.conf.get(CODE_GENERATION_KEY))
    assert seen == ["NO_CODEGEN", "FALLBACK", "NO_CODEGEN"]
    assert rig.session.conf.get(CODE_GENERATION_KEY) == "FALLBACK", "other queries have sessions of their own"


async def test_both_evaluations_have_the_same_result(rig: Rig) -> None:
    session = rig.session
    rows = values(session, 5)

    def converted() -> list[dict[str, object]]:
        record = F.from_json("value", "n INT, t TIMESTAMP, a ARRAY<INT>")
        columns = rows.select("id", record.alias("record"), F.md5("value").alias("digest"), F.rand(7).alias("random"))
        chosen: pa.Table = columns.where("id % 2 = 1 OR record.n IS NULL").select("*", "record.*").toArrow()
        return list(chosen.to_pylist())

    compiled = converted()
    adapt_to_size(rows, is_small=True, source_partition_count=1)
    assert converted() == compiled
    assert len(compiled) > 50
