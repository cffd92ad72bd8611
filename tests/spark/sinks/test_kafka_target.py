"""The key, column or hidden column from which the Kafka sink takes each part of a record; needs no broker."""

from collections.abc import Mapping
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from coterie.nouns.errors import ConfigError, WorldError
from coterie.spark.prefixed_config import SINK_PREFIX, PrefixedConfig
from coterie.spark.record_columns import MetadataColumn, metadata_column_names, without_metadata_columns
from coterie.spark.sinks.kafka import KafkaSink
from coterie.spark.sinks.kafka_target import KafkaTarget
from tests.spark.conftest import Rig
from tests.spark.smt.records import records, through

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(240)]

JSON_KEY = {"key.converter": "JsonConverter", "key.converter.schemas.enable": "false"}
READ_HEADERS = [{"key": "h", "value": b"1"}]
"""The headers of the records that were read; their key is {"id": 7} and their topic is orders."""
HEADERS = "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"


@pytest.fixture
def spark(rig: Rig) -> SparkSession:
    return rig.session


def end(keys: Mapping[str, str]) -> PrefixedConfig:
    return PrefixedConfig(
        config={"value.converter.schemas.enable": "false", **keys}, prefix=SINK_PREFIX, is_prefix_optional=True
    )


def written(rows: DataFrame, keys: Mapping[str, str]) -> list[dict[str, Any]]:
    """The parts of the record that the sink makes of each row."""
    shaped = KafkaSink.of(end(keys)).to_sink_columns(rows)
    return [row.asDict(recursive=True) for row in KafkaTarget.of(end(keys)).to_records(shaped).collect()]


async def test_a_record_keeps_its_key_its_headers_its_topic_and_its_null_value(spark: SparkSession) -> None:
    rows = records(spark, (1, "a"), None, schema="id BIGINT, name STRING")
    read = {"key": b'{"id":7}', "headers": READ_HEADERS, "topic": "orders"}
    assert written(rows, JSON_KEY) == [read | {"value": b'{"id":1,"name":"a"}'}, read | {"value": None}]
    assert written(rows, JSON_KEY | {"value.converter.schemas.enable": "true"})[1] == read | {"value": None}


async def test_a_column_comes_before_the_hidden_part_and_a_key_of_the_config_before_both(spark: SparkSession) -> None:
    headers = [{"key": "own", "value": b"2"}]
    rows = records(spark, ("k", "t", headers, 1), schema=f"key STRING, topic STRING, {HEADERS}, row BIGINT")
    by_columns = {"key": b"k", "headers": headers, "topic": "t", "value": b'{"row":1}'}
    assert written(rows, {}) == [by_columns]
    assert written(rows, {"topic": "named", "key.fields": "row"}) == [
        {"key": b"1", "headers": headers, "value": b'{"key":"k","topic":"t","row":1}'}
    ]


async def test_a_column_that_cannot_become_a_part_of_the_record_stays_in_the_value(spark: SparkSession) -> None:
    rows = records(spark, ("text", "T", "K"), schema="headers STRING, Topic STRING, Key STRING")
    (record,) = written(rows, JSON_KEY)
    assert record["value"] == b'{"headers":"text","Topic":"T","Key":"K"}'
    assert (record["key"], record["headers"], record["topic"]) == (b'{"id":7}', READ_HEADERS, "orders")


async def test_hidden_parts_are_written_as_transforms_changed_them(spark: SparkSession) -> None:
    rows = through(
        records(spark, (1, "a"), schema="id BIGINT, name STRING"),
        {
            "transforms": "routed,keyed,plain,marked",
            "transforms.routed.type": "RegexRouter",
            "transforms.routed.regex": "(or)ders",
            "transforms.routed.replacement": "$1iginals",
            "transforms.keyed.type": "ValueToKey",
            "transforms.keyed.fields": "name",
            "transforms.plain.type": "ExtractField$Key",
            "transforms.plain.field": "name",
            "transforms.marked.type": "InsertHeader",
            "transforms.marked.header": "by",
            "transforms.marked.value.literal": "c",
        },
    )
    headers = [*READ_HEADERS, {"key": "by", "value": b"c"}]
    assert written(rows, {}) == [
        {"key": b"a", "headers": headers, "topic": "originals", "value": b'{"id":1,"name":"a"}'}
    ]


async def test_rows_that_are_no_records_get_their_parts_from_columns_and_transforms(
    spark: SparkSession,
) -> None:
    rows = without_metadata_columns(records(spark, (1, None), schema="id BIGINT, name STRING"))
    value = {"value": b'{"id":1,"name":null}'}
    assert written(rows, {"topic": "t"}) == [value]
    keyed = through(rows, {"transforms": "k", "transforms.k.type": "ValueToKey", "transforms.k.fields": "id"})
    assert written(keyed, JSON_KEY | {"topic": "t"}) == [value | {"key": b'{"id":1}'}]
    with pytest.raises(WorldError, match="no column topic; add it, or set the config key topic; they have: id"):
        written(rows, {})


async def test_a_key_that_the_converter_cannot_write_is_refused_by_the_converters_key(spark: SparkSession) -> None:
    rows = records(spark, (1,), schema="id BIGINT")
    with pytest.raises(
        ConfigError, match=r"key\.converter: the converter cannot write the key of .* use a JsonConverter"
    ):
        KafkaSink.of(end({})).to_sink_columns(rows)
    assert written(rows, {"key.fields": "id"})[0]["key"] == b"1"


async def test_batches_contain_only_the_hidden_columns_that_become_parts(spark: SparkSession) -> None:
    rows = records(spark, (1,), schema="id BIGINT")
    assert len(metadata_column_names(rows)) == len(MetadataColumn)
    taken = metadata_column_names(KafkaSink.of(end({"topic": "t", "key.fields": "id"})).to_sink_columns(rows))
    assert set(taken) == {MetadataColumn.HEADERS.value, MetadataColumn.TOMBSTONE.value}
