"""Records as rows with hidden columns, and transforms applied to them, without a stream."""

import datetime
from collections.abc import Mapping
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType, TimestampType

from coterie.nouns.errors import ConfigError
from coterie.spark import transforms
from coterie.spark.record_columns import HEADERS_TYPE, exact_column, metadata_column_names, without_metadata_columns

SCHEMA = "id BIGINT, name STRING, place STRUCT<city: STRING, at: STRUCT<x: INT>>"
HIDDEN = (
    "__coterie_key STRUCT<id: BIGINT>, __coterie_headers "
    f"{HEADERS_TYPE.simpleString()}, __coterie_topic STRING, __coterie_partition INT, __coterie_offset BIGINT, "
    "__coterie_timestamp TIMESTAMP, __coterie_tombstone BOOLEAN"
)
MOMENT = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)


def records(spark: SparkSession, *values: tuple[Any, ...] | None, schema: str = SCHEMA) -> DataFrame:
    """Records of the topic ``orders``, numbered by their offset; None is a tombstone.

    They come from Arrow, so that Spark transforms them without a job.
    """
    names = cast(StructType, StructType.fromDDL(schema)).names
    whole = cast(StructType, StructType.fromDDL(f"{schema}, {HIDDEN}"))
    headers = [{"key": "h", "value": b"1"}]
    rows = [
        (*(value or (None,) * len(names)), {"id": 7}, headers, "orders", 3, offset, MOMENT, value is None)
        for offset, value in enumerate(values)
    ]
    table = pa.Table.from_pylist(
        [dict(zip(whole.names, row, strict=True)) for row in rows], to_arrow_schema(whole, timezone="UTC")
    )
    return spark.createDataFrame(table, whole)


def config_of(**keys: str) -> dict[str, str]:
    """The config of one transform ``t`` with these keys; keys of predicates begin with ``predicates``."""
    given = {key.replace("__", "."): value for key, value in keys.items()}
    own = {key: value for key, value in given.items() if key.startswith("predicates")}
    return {"transforms": "t", **own, **{f"transforms.t.{key}": given[key] for key in given.keys() - own.keys()}}


def through(rows: DataFrame, config: Mapping[str, str]) -> DataFrame:
    """``rows`` after the transforms of a config, which is validated first."""
    if errors := transforms.config_errors(config):
        raise ConfigError(errors)
    return transforms.apply_transforms(rows, transforms.parse_transforms(config))


def values(rows: DataFrame) -> list[dict[str, Any]]:
    """The visible columns of each row, with timestamps as text."""
    chosen = [
        exact_column(field.name).cast("string" if isinstance(field.dataType, TimestampType) else field.dataType)
        for field in without_metadata_columns(rows).schema.fields
    ]
    return [row.asDict(recursive=True) for row in without_metadata_columns(rows).select(*chosen).collect()]


def parts(rows: DataFrame) -> list[dict[str, Any]]:
    """The hidden columns of each row, by the name of the part."""
    hidden = rows.select(metadata_column_names(rows))
    return [
        {name.removeprefix("__coterie_"): value for name, value in row.asDict(recursive=True).items()}
        for row in hidden.collect()
    ]
