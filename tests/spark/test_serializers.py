"""Output of the serializers, read by Kafka Connect's own JsonConverter, on a real Spark session."""

import datetime
import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from coterie.nouns.errors import WorldError
from coterie.spark.converters import Format
from coterie.spark.serializers import Serializer
from tests.spark.conftest import Rig
from tests.spark.sinks.kafka_jvm import running_jvm

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(240)]

SCHEMA = (
    "row BIGINT NOT NULL, flag BOOLEAN, tiny TINYINT, small SMALLINT, whole INT, ratio FLOAT, exact DOUBLE, "
    "price DECIMAL(10,2), text STRING, raw BINARY, day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, "
    "list ARRAY<TIMESTAMP>, map MAP<STRING, DATE>, nested STRUCT<a: INT, days: ARRAY<DATE>>, `dotted.name` INT"
)
DAY = datetime.date(2024, 2, 29)
AT = datetime.datetime(2024, 2, 29, 12, 30, 1, 234000, tzinfo=datetime.UTC)
FULL = (
    1, True, 2, 3, 4, 0.5, 0.25, Decimal("12345678.90"), 'gr"ün\n', b"\0\xff", DAY, AT, AT.replace(tzinfo=None),
    [AT, None], {"k": DAY, "n": None}, (5, [DAY]), 6,
)  # fmt: skip
NULLS = (2, *(None for _ in FULL[1:]))
MILLIS, DAYS = 1709209801234, 19782


@pytest.fixture(scope="module")
def connect(kafka_jars: Path) -> Iterator[Any]:
    """A JVM with Connect's converters."""
    with running_jvm(kafka_jars) as java:
        yield java


def rows_of(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([FULL, NULLS], SCHEMA).coalesce(1)


def written(rows: DataFrame, *, has_envelope: bool) -> list[bytes]:
    serializer = Serializer(key_or_value_side="value", format=Format.JSON, has_schema_envelope=has_envelope)
    return [bytes(row[0]) for row in rows.select(serializer.serialize_columns_as_json(rows, rows.columns)).collect()]


async def test_connects_own_converter_reads_every_type_and_writes_the_same_bytes(rig: Rig, connect: Any) -> None:
    rows = rows_of(rig.spark_runtime._running_driver().spark)
    for has_envelope in (True, False):
        converter = connect.org.apache.kafka.connect.json.JsonConverter()
        settings = connect.java.util.HashMap()
        settings.put("schemas.enable", str(has_envelope).lower())
        settings.put("decimal.format", "NUMERIC")
        converter.configure(settings, False)
        for ours in written(rows, has_envelope=has_envelope):
            read = converter.toConnectData("t", ours)
            assert json.loads(converter.fromConnectData("t", read.schema(), read.value())) == json.loads(ours)


async def test_timestamps_are_milliseconds_dates_are_days_and_nulls_are_written(rig: Rig) -> None:
    full, nulls = (
        json.loads(one) for one in written(rows_of(rig.spark_runtime._running_driver().spark), has_envelope=False)
    )
    assert full == {
        "row": 1, "flag": True, "tiny": 2, "small": 3, "whole": 4, "ratio": 0.5, "exact": 0.25, "price": 12345678.9,
        "text": 'gr"ün\n', "raw": "AP8=", "day": DAYS, "at": MILLIS, "local": MILLIS, "list": [MILLIS, None],
        "map": {"k": DAYS, "n": None}, "nested": {"a": 5, "days": [DAYS]}, "dotted.name": 6,
    }  # fmt: skip
    assert nulls == {**dict.fromkeys(full), "row": 2}


async def test_one_column_can_be_written_as_bytes_text_or_json(rig: Rig) -> None:
    rows = rows_of(rig.spark_runtime._running_driver().spark)
    for format_, name, expected in (
        (Format.BYTES, "raw", b"\0\xff"),
        (Format.STRING, "raw", b"\0\xff"),
        (Format.STRING, "row", b"1"),
        (Format.STRING, "text", 'gr"ün\n'.encode()),
        (Format.JSON, "row", b"1"),
        (Format.JSON, "text", '"gr\\"ün\\n"'.encode()),
        (Format.JSON, "at", b"%d" % MILLIS),
        (Format.JSON, "nested", b'{"a":5,"days":[%d]}' % DAYS),
    ):
        column = Serializer(key_or_value_side="key", format=format_).serialize_column(rows, name)
        first, second = (row[0] for row in rows.select(column).collect())
        assert bytes(first) == expected, (format_, name)
        assert second is None or name == "row"


async def test_a_column_that_cannot_be_written_is_named(rig: Rig) -> None:
    spark = rig.spark_runtime._running_driver().spark
    rows = spark.createDataFrame([], "f INT, i INTERVAL DAY TO SECOND, m MAP<INT, INT>, l ARRAY<MAP<INT, INT>>")
    serializer = Serializer(key_or_value_side="value", format=Format.JSON)
    for name, type_ in (("i", "interval day to second"), ("m", "map<int,int>"), ("l", "map<int,int>")):
        with pytest.raises(WorldError, match=f"Column {name} has type {type_}, which a JsonConverter cannot write"):
            serializer.serialize_columns_as_json(rows, ["f", name])
    with pytest.raises(WorldError, match="Column f has type int, and the ByteArrayConverter of the value"):
        Serializer(key_or_value_side="value", format=Format.BYTES).serialize_column(rows, "f")
    with pytest.raises(WorldError, match="Column m has type map<int,int>, and the StringConverter of the key"):
        Serializer(key_or_value_side="key", format=Format.STRING).serialize_column(rows, "m")
