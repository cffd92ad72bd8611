"""Converters from bytes to columns, on a real Spark session."""

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

from coterie.spark.converters import Converter, Format
from coterie.spark.failures import message_passed_to_raise_error
from tests.spark.conftest import Rig

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(240)]

COLUMNS = "id BIGINT, name STRING, nested STRUCT<k: INT>"
GOOD: list[tuple[bytes | None, Row | None]] = [
    (b'{"id": 1, "name": "a", "unknown": [{}]}', Row(id=1, name="a", nested=None)),
    (b' {"nested": {"k": 4}} ', Row(id=None, name=None, nested=Row(k=4))),
    ('{"name": "}],ü"}'.encode(), Row(id=None, name="}],ü", nested=None)),
    (b'{"id": 1}\n', Row(id=1, name=None, nested=None)),
    (b"{}", Row(id=None, name=None, nested=None)),
    (b"null", None),
    (None, None),
]
BAD = [
    b"",
    b'{"id": 1} trailing',
    b'{"id": 1},{"id": 2}',
    b'{"id": 1}]}',
    b'{"id": 1',
    b"}",
    b'"}',
    b"5 }",
    b"null }",
    b'[{"id": 1}',
    b'{"id": 1, [}',
    b'{"id": 1}{"id": 2}',
    b"[1]",
    b'{"id": "x"}',
    b'{"id": 99999999999999999999}',
    b'{"nested": {"k": "x"}}',
    b'{"name": "\xff"}',
]


def converted(spark: SparkSession, converter: Converter, values: list[bytes | None]) -> list[object]:
    rows = [(value, "t", 3, offset) for offset, value in enumerate(values)]
    records = spark.createDataFrame(rows, "value BINARY, topic STRING, partition INT, offset BIGINT")
    converted = converter.convert(records)
    assert converted.columns == records.columns
    assert converted.schema["value"].dataType == converter.data_type()
    return [row["value"] for row in converted.coalesce(1).collect()]


async def test_json_becomes_columns_and_other_values_are_refused_by_offset(rig: Rig) -> None:
    spark = rig.spark_runtime._running_driver().spark
    converter = Converter(key_or_value_side="value", format=Format.JSON, json_columns_ddl=COLUMNS)
    assert converted(spark, converter, [value for value, _ in GOOD]) == [row for _, row in GOOD]
    for bad in BAD:
        with pytest.raises(PySparkException) as raised:
            converted(spark, converter, [b"{}", bad])
        assert message_passed_to_raise_error(raised.value) == (
            "Topic t, partition 3, offset 1: the record's value is not JSON with the columns of value.schema"
        ), bad


async def test_each_text_is_parsed_once_even_if_a_filter_uses_several_columns(rig: Rig) -> None:
    spark = rig.spark_runtime._running_driver().spark
    records = spark.createDataFrame(
        [(b'{"id": 1, "name": "a"}', "t", 0, 0)], "value BINARY, topic STRING, partition INT, offset BIGINT"
    )
    rows = (
        Converter(key_or_value_side="value", format=Format.JSON, json_columns_ddl=COLUMNS)
        .convert(records)
        .select("value.*")
    )
    filtered = rows.where("id > 0 AND name <> '' AND nested IS NULL")
    # Either alone or as an item of an array.
    assert filtered._jdf.queryExecution().executedPlan().toString().count("from_json(") == 2
    assert [row["id"] for row in filtered.collect()] == [1]


async def test_the_payload_of_an_envelope_is_read_and_a_record_without_an_envelope_is_refused(rig: Rig) -> None:
    spark = rig.spark_runtime._running_driver().spark
    converter = Converter(
        key_or_value_side="value", format=Format.JSON, json_columns_ddl="id BIGINT", has_schema_envelope=True
    )
    good = [b'{"schema": {"type": "struct"}, "payload": {"id": 5}}', b'{"schema": null, "payload": null}', None]
    assert converted(spark, converter, good) == [Row(id=5), None, None]
    for bad in (b'{"id": 5}', b'{"schema": null, "payload": {"id": "x"}}', b"5"):
        with pytest.raises(PySparkException, match="offset 0: the record's value is not JSON"):
            converted(spark, converter, [bad])


async def test_invalid_utf_8_is_replaced_in_text_and_bytes_are_unchanged(rig: Rig) -> None:
    spark = rig.spark_runtime._running_driver().spark
    values = ["ü".encode(), b"a\xffb", None]
    assert converted(spark, Converter(key_or_value_side="value", format=Format.STRING), values) == [
        "ü",
        "a\ufffdb",
        None,
    ]
    assert converted(spark, Converter(key_or_value_side="value", format=Format.BYTES), values) == [
        bytearray("ü".encode()),
        bytearray(b"a\xffb"),
        None,
    ]
