"""The bad-row summary that metrics of Spark's plan contain."""

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from coterie.spark.arrow import store_and_yield_arrow_partitions
from coterie.spark.bad_records.error_columns import BAD_ROW_COLUMN, BAD_ROW_TYPE
from coterie.spark.bad_records.separator import BadRowSeparator
from tests.spark.conftest import Rig

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(120)]

TYPE = StructType([StructField("row", LongType()), StructField(BAD_ROW_COLUMN, BAD_ROW_TYPE)])


def bad_row(**fields: object) -> tuple[object, ...]:
    return tuple(fields.get(name) for name in BAD_ROW_TYPE.names)


@pytest.mark.parametrize("is_stored", [True, False])
@pytest.mark.parametrize("topic", [None, "t"])
async def test_metrics_contain_all_fields_of_the_first_bad_row_also_if_it_has_no_topic(
    rig: Rig, topic: str | None, is_stored: bool
) -> None:
    spark: SparkSession = rig.session
    bad = bad_row(stage="VALUE_CONVERTER", message="no", topic=topic)
    classified = spark.createDataFrame([(1, None), (2, bad), (3, None)], TYPE).coalesce(1)
    separator = BadRowSeparator(classified, is_small=False, has_bounded_spark_partitions=lambda: True)
    rows = separator.with_bad_row_metrics()
    if is_stored:
        list(store_and_yield_arrow_partitions(rows))
    else:
        rows.collect()
    separator.set_summary_from_metrics(rows)
    assert separator.bad_row_summary_so_far.count == 1
    assert dict(separator.bad_row_summary_so_far.first_bad_row_fields) == {
        "stage": "VALUE_CONVERTER",
        "message": "no",
        "topic": topic,
        "partition": None,
        "offset": None,
        "timestamp": None,
    }
