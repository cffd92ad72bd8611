"""Bad rows pass transforms unchanged, and a row that a transform cannot compute becomes bad; on a real Spark."""

from collections.abc import Mapping

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from coterie.nouns.errors import ConfigError
from coterie.spark.bad_records.error_columns import (
    BAD_ROW_COLUMN,
    ERROR_COLUMN,
    ERROR_TYPE,
    ORIGINAL_COLUMN,
    bad_rows,
    error_column_value,
    good_rows,
    with_original_and_null_error_columns,
)
from coterie.spark.bad_records.tolerant_transforms import apply_transforms_tolerantly
from coterie.spark.prefixed_config import PrefixedConfig
from coterie.spark.smt.transform_type import KeyOrValue, TransformType, make_transform_config_key
from coterie.spark.transforms import Transform, apply_transforms, parse_transforms
from tests.spark.conftest import Rig

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(240)]

TEXTS = ["1", "2", "x", "40", "", "-5"]
RECORDS = "key BINARY, value BINARY, headers ARRAY<STRUCT<key STRING, value BINARY>>, topic STRING, partition INT, \
offset BIGINT, timestamp TIMESTAMP"


def records(spark: SparkSession) -> DataFrame:
    """Rows with a column ``text``; the record with the text -5 is already bad for another reason."""
    rows = [(None, text.encode(), None, "t", 0, offset, None) for offset, text in enumerate(TEXTS)]
    text = F.col("value").cast("string")
    hidden = with_original_and_null_error_columns(spark.createDataFrame(rows, RECORDS)).withColumn(
        "text", F.when(text != "-5", text)
    )
    error = F.when(text == "-5", error_column_value("VALUE_CONVERTER", "aConverter", "negative").cast(ERROR_TYPE))
    return hidden.withColumn(ERROR_COLUMN, error).select("text", ORIGINAL_COLUMN, ERROR_COLUMN)


def separated(rows: DataFrame, config: Mapping[str, str]) -> tuple[list[object], dict[int, str]]:
    """The first column of the good rows, and the stage and the class of each bad row by its offset."""
    classified = apply_transforms_tolerantly(rows, parse_transforms(config), None).coalesce(1)
    bad = bad_rows(classified).collect()
    assert all(row["value"].decode() == TEXTS[row["offset"]] for row in bad)
    good = good_rows(classified)
    assert BAD_ROW_COLUMN not in good.columns
    return [row[0] for row in good.collect()], {row["offset"]: f"{row['stage']} {row['class_name']}" for row in bad}


def named(*transforms: tuple[str, str, str]) -> dict[str, str]:
    """A config of transforms: type, key, value."""
    config = {"transforms": ",".join(f"t{number}" for number in range(len(transforms)))}
    for number, (type_, name, value) in enumerate(transforms):
        config |= {f"transforms.t{number}.type": type_, f"transforms.t{number}.{name}": value}
    return config


async def test_a_cast_or_a_condition_that_fails_makes_its_row_bad_and_bad_rows_pass_filters(rig: Rig) -> None:
    spark = rig.spark_runtime._running_driver().spark
    before = "VALUE_CONVERTER aConverter"
    cast = named(
        ("Filter", "condition", "text <> '2'"), ("Cast", "spec", "text:int"), ("Filter", "condition", "text > 1")
    )
    with pytest.raises(PySparkException, match="CAST_INVALID_INPUT"):
        apply_transforms(records(spark).select("text"), parse_transforms(cast)).collect()
    assert separated(records(spark), cast) == (
        [40],
        {2: "TRANSFORMATION Cast", 4: "TRANSFORMATION Cast", 5: before},
    )
    condition = named(("Filter", "condition", "CAST(text AS INT) < 3"))
    assert separated(records(spark), condition) == (
        ["1", "2"],
        {2: "TRANSFORMATION Filter", 4: "TRANSFORMATION Filter", 5: before},
    )
    raised = named(("Filter", "condition", "text <> 'x' OR raise_error('no') IS NULL"))
    assert separated(records(spark), raised) == (["1", "2", "40", ""], {2: "TRANSFORMATION Filter", 5: before})
    assert separated(records(spark), {}) == (["1", "2", "x", "40", ""], {5: before})


async def test_an_error_is_reported_with_the_record_and_the_transforms_key(rig: Rig) -> None:
    spark = rig.spark_runtime._running_driver().spark
    classified = apply_transforms_tolerantly(
        records(spark), parse_transforms(named(("Cast", "spec", "text:int"))), None
    )
    row = bad_rows(classified).where("offset = 2").collect()[0]
    assert (row["topic"], row["partition"], bytes(row["value"])) == ("t", 0, b"x")
    assert row["message"] == "transforms.t0.spec=text:int cannot be computed for this record"


async def test_a_transform_that_does_not_work_row_by_row_is_refused_by_its_key(rig: Rig) -> None:
    def count(rows: DataFrame, side: KeyOrValue, settings: PrefixedConfig) -> DataFrame:
        return rows.groupBy("text").count()

    counting = Transform(
        transform_type=TransformType(
            short_class_name="Count", java_package=None, keys=(make_transform_config_key("by", "", ""),), apply=count
        ),
        key_or_value_side=KeyOrValue.VALUE,
        settings=PrefixedConfig(config=named(("Count", "by", "text")), prefix="transforms.t0."),
    )
    with pytest.raises(ConfigError, match=r"cannot be used with transforms\.t0\.by: Spark runs this step as Aggregate"):
        apply_transforms_tolerantly(records(rig.spark_runtime._running_driver().spark), [counting], None)
