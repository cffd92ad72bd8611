"""Bad rows pass transforms unchanged, and a row that a transform cannot compute becomes bad; on a real Spark."""

from collections.abc import Mapping

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from coterie.nouns.errors import ConfigError
from coterie.spark.bad_records.guarded import guarded
from coterie.spark.bad_records.hidden import BAD, ERROR, FAULT, ORIGINAL, bad_rows, fault, good_rows, with_hidden
from coterie.spark.end_config import EndConfig
from coterie.spark.smt.kind import Kind, Side, key
from coterie.spark.transforms import Transform, parsed, transform
from tests.spark.conftest import Rig

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(240)]

TEXTS = ["1", "2", "x", "40", "", "-5"]
RECORDS = "key BINARY, value BINARY, headers ARRAY<STRUCT<key STRING, value BINARY>>, topic STRING, partition INT, \
offset BIGINT, timestamp TIMESTAMP"


def records(spark: SparkSession) -> DataFrame:
    """Rows with a column ``text``; the record whose text is -5 is bad already, for another reason."""
    rows = [(None, text.encode(), None, "t", 0, offset, None) for offset, text in enumerate(TEXTS)]
    text = F.col("value").cast("string")
    hidden = with_hidden(spark.createDataFrame(rows, RECORDS)).withColumn("text", F.when(text != "-5", text))
    error = F.when(text == "-5", fault("VALUE_CONVERTER", "aConverter", "negative").cast(FAULT))
    return hidden.withColumn(ERROR, error).select("text", ORIGINAL, ERROR)


def sifted(rows: DataFrame, config: Mapping[str, str]) -> tuple[list[object], dict[int, str]]:
    """The good rows' first column, and of each bad row's offset the stage and the class."""
    classified = guarded(rows, parsed(config), None).coalesce(1)
    bad = bad_rows(classified).collect()
    assert all(row["value"].decode() == TEXTS[row["offset"]] for row in bad)
    good = good_rows(classified)
    assert BAD not in good.columns
    return [row[0] for row in good.collect()], {row["offset"]: f"{row['stage']} {row['class_name']}" for row in bad}


def named(*transforms: tuple[str, str, str]) -> dict[str, str]:
    """A config of transforms: type, key, value."""
    config = {"transforms": ",".join(f"t{number}" for number in range(len(transforms)))}
    for number, (type_, name, value) in enumerate(transforms):
        config |= {f"transforms.t{number}.type": type_, f"transforms.t{number}.{name}": value}
    return config


async def test_a_cast_or_a_condition_that_fails_makes_its_row_bad_and_bad_rows_pass_filters(rig: Rig) -> None:
    spark = rig.spark_runtime._living().spark
    before = "VALUE_CONVERTER aConverter"
    cast = named(
        ("Filter", "condition", "text <> '2'"), ("Cast", "spec", "text:int"), ("Filter", "condition", "text > 1")
    )
    with pytest.raises(PySparkException, match="CAST_INVALID_INPUT"):
        transform(records(spark).select("text"), parsed(cast)).collect()
    assert sifted(records(spark), cast) == (
        [40],
        {2: "TRANSFORMATION Cast", 4: "TRANSFORMATION Cast", 5: before},
    )
    condition = named(("Filter", "condition", "CAST(text AS INT) < 3"))
    assert sifted(records(spark), condition) == (
        ["1", "2"],
        {2: "TRANSFORMATION Filter", 4: "TRANSFORMATION Filter", 5: before},
    )
    raised = named(("Filter", "condition", "text <> 'x' OR raise_error('no') IS NULL"))
    assert sifted(records(spark), raised) == (["1", "2", "40", ""], {2: "TRANSFORMATION Filter", 5: before})
    assert sifted(records(spark), {}) == (["1", "2", "x", "40", ""], {5: before})


async def test_the_record_and_the_transforms_key_stand_beside_the_error(rig: Rig) -> None:
    spark = rig.spark_runtime._living().spark
    classified = guarded(records(spark), parsed(named(("Cast", "spec", "text:int"))), None)
    row = bad_rows(classified).where("offset = 2").collect()[0]
    assert (row["topic"], row["partition"], bytes(row["value"])) == ("t", 0, b"x")
    assert row["message"] == "transforms.t0.spec=text:int cannot be computed for this record"


async def test_a_transform_that_does_not_work_row_by_row_is_refused_by_its_key(rig: Rig) -> None:
    def count(rows: DataFrame, side: Side, settings: EndConfig) -> DataFrame:
        return rows.groupBy("text").count()

    counting = Transform(
        kind=Kind(name="Count", package=None, keys=(key("by", "", ""),), apply=count),
        side=Side.VALUE,
        settings=EndConfig(config=named(("Count", "by", "text")), prefix="transforms.t0."),
    )
    with pytest.raises(ConfigError, match=r"cannot be used with transforms\.t0\.by: Spark runs it as Aggregate"):
        guarded(records(rig.spark_runtime._living().spark), [counting], None)
