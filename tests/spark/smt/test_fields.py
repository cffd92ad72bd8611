"""Connect's transforms of fields, with Connect's names and keys, on rows of a real Spark."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from coterie.nouns.errors import ConfigError
from coterie.spark.smt.fields import parse_cast_spec
from tests.spark.conftest import Rig
from tests.spark.smt.records import config_of, parts, records, through, values

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(180)]

PLACE = {"city": "Oslo", "at": {"x": 5}}
ROW = (1, "a", PLACE)
MOMENT = "2026-01-02 03:04:05"
CONNECT = "org.apache.kafka.connect.transforms."

CASES: list[tuple[Mapping[str, str], dict[str, Any]]] = [
    ({"type": "Cast", "spec": "id:string,name:binary"}, {"id": "1", "name": b"a", "place": PLACE}),
    ({"type": f"{CONNECT}Cast$Value", "spec": "id:int8"}, {"id": 1, "name": "a", "place": PLACE}),
    (
        {"type": "InsertField$Value", "topic.field": "t!", "partition.field": "p", "offset.field": "o?"},
        {"id": 1, "name": "a", "place": PLACE, "t": "orders", "p": 3, "o": 0},
    ),
    (
        {"type": "InsertField", "static.field": "name", "static.value": "x", "timestamp.field": "at"},
        {"id": 1, "name": "x", "place": PLACE, "at": MOMENT},
    ),
    ({"type": "ReplaceField", "exclude": "place", "renames": "id:number"}, {"number": 1, "name": "a"}),
    ({"type": "ReplaceField", "include": "name,id"}, {"id": 1, "name": "a"}),
    ({"type": "ReplaceField", "renames": "id:name,name:id"}, {"name": 1, "id": "a", "place": PLACE}),
    ({"type": "MaskField", "fields": "id,name"}, {"id": 0, "name": "", "place": PLACE}),
    ({"type": "MaskField", "fields": "id", "replacement": "9"}, {"id": 9, "name": "a", "place": PLACE}),
    ({"type": "HoistField", "field": "all"}, {"all": {"id": 1, "name": "a", "place": PLACE}}),
    ({"type": "ExtractField", "field": "name"}, {"value": "a"}),
    ({"type": "ExtractField", "field": "place"}, {"city": "Oslo", "at": {"x": 5}}),
    ({"type": "ExtractField", "field": "place.at.x", "field.syntax.version": "V2"}, {"value": 5}),
    ({"type": "Flatten"}, {"id": 1, "name": "a", "place.city": "Oslo", "place.at.x": 5}),
    ({"type": "Flatten$Value", "delimiter": "_"}, {"id": 1, "name": "a", "place_city": "Oslo", "place_at_x": 5}),
    (
        {"type": "TimestampConverter", "field": "id", "target.type": "Timestamp", "unix.precision": "seconds"},
        {"id": "1970-01-01 00:00:01", "name": "a", "place": PLACE},
    ),
    (
        {"type": "TimestampConverter", "field": "id", "target.type": "string", "format": "yyyy-MM-dd HH:mm:ss.SSS"},
        {"id": "1970-01-01 00:00:00.001", "name": "a", "place": PLACE},
    ),
    ({"type": "SetSchemaMetadata", "schema.name": "s"}, {"id": 1, "name": "a", "place": PLACE}),
]


@pytest.mark.parametrize(("keys", "expected"), CASES)
async def test_a_value_is_transformed_as_in_connect(
    rig: Rig, keys: Mapping[str, str], expected: dict[str, Any]
) -> None:
    rows = through(records(rig.session, ROW), config_of(**{key.replace(".", "__"): keys[key] for key in keys}))
    assert values(rows) == [expected]
    assert list(values(rows)[0]) == list(expected), "columns keep their order"
    assert parts(rows)[0]["key"] == {"id": 7}


KEYS: list[tuple[Mapping[str, str], Any]] = [
    ({"type": "ExtractField$Key", "field": "id"}, 7),
    ({"type": "Cast$Key", "spec": "id:int32"}, {"id": 7}),
    ({"type": f"{CONNECT}ReplaceField$Key", "renames": "id:number"}, {"number": 7}),
    ({"type": "ValueToKey", "fields": "name,id"}, {"name": "a", "id": 1}),
    ({"type": "HoistField$Key", "field": "all"}, {"all": {"id": 7}}),
    ({"type": "InsertField$Key", "static.field": "s", "static.value": "x"}, {"id": 7, "s": "x"}),
    ({"type": "MaskField$Key", "fields": "id"}, {"id": 0}),
]


@pytest.mark.parametrize(("keys", "expected"), KEYS)
async def test_a_key_is_changed_and_the_value_stays(rig: Rig, keys: Mapping[str, str], expected: Any) -> None:
    rows = through(records(rig.session, ROW), config_of(**keys))
    assert parts(rows)[0]["key"] == expected
    assert values(rows) == [{"id": 1, "name": "a", "place": PLACE}]


async def test_a_value_that_is_no_struct_is_one_column(rig: Rig) -> None:
    text = records(rig.session, ("5",), schema="value STRING")
    assert values(through(text, config_of(type="HoistField", field="line"))) == [{"line": "5"}]
    assert values(through(text, config_of(type="Cast", spec="int32"))) == [{"value": 5}]
    seconds = config_of(type="TimestampConverter", target__type="unix", format="s", unix__precision="seconds")
    assert values(through(text, seconds)) == [{"value": 5}]


async def test_brackets_in_the_names_of_columns_do_not_count_as_those_of_a_type() -> None:
    expected = {"a>b": "int", "(c": "map<string,int>", "d": "decimal(10,2)"}
    assert parse_cast_spec("a>b:int,(c:map<string,int>,d:decimal(10,2)") == expected
    assert parse_cast_spec("decimal(10,2)") == {"": "decimal(10,2)"}


async def test_a_null_stays_null_and_a_null_key_too(rig: Rig) -> None:
    rows = through(records(rig.session, None), config_of(type="MaskField", fields="id,name"))
    assert values(rows) == [{"id": None, "name": None, "place": None}]
    assert parts(rows)[0]["tombstone"] is True


REPLACEMENTS = [
    ("tinyint", "-128", True),
    ("tinyint", "300", False),
    ("int", " +7 ", True),
    ("int", "5.0", False),
    ("int", "1e3", False),
    ("int", "1_000", False),
    ("int", "2147483648", False),
    ("bigint", "2147483648", True),
    ("decimal(5,2)", "999.99", True),
    ("decimal(5,2)", "1e2", True),
    ("decimal(5,2)", "123456", False),
    ("double", "1e3", True),
    ("double", "1_000", False),
    ("double", "NaN", False),
]


@pytest.mark.parametrize(("type_", "replacement", "is_valid"), REPLACEMENTS)
async def test_a_replacement_is_refused_before_a_batch_if_spark_cannot_cast_it(
    rig: Rig, type_: str, replacement: str, is_valid: bool
) -> None:
    rows = records(rig.session, (1,), schema="id INT")
    rows = rows.withColumn("id", F.col("id").cast(type_))
    config = config_of(type="MaskField", fields="id", replacement=replacement)
    if is_valid:
        (row,) = values(through(rows, config))
        assert row["id"] == Decimal(replacement)
        return
    if replacement != "NaN":
        with pytest.raises(PySparkException):
            rows.select(F.lit(replacement).cast(type_)).collect()
    with pytest.raises(ConfigError) as raised:
        through(rows, config)
    ((key, messages),) = raised.value.errors.items()
    assert key == "transforms.t.replacement"
    assert list(messages) == [
        f"Invalid value {replacement} for configuration replacement: the replacement is not a value of "
        f"type {type_}, the type of column id"
    ]


@pytest.mark.parametrize(
    ("keys", "key", "words"),
    [
        ({"type": "Cast", "spec": "no:int"}, "spec", "no such column: no; there are id, name, place"),
        ({"type": "Cast", "spec": "int32"}, "spec", "not column:type"),
        ({"type": "Cast", "spec": "id:itn"}, "spec", ""),
        ({"type": "Cast"}, "spec", "Missing required"),
        ({"type": "InsertField"}, "topic.field", "at least one of"),
        ({"type": "InsertField", "static.field": "x"}, "static.value", "set static.value"),
        ({"type": "ReplaceField", "exclude": "nam"}, "exclude", "no such column: nam"),
        ({"type": "ReplaceField", "renames": "id"}, "renames", "'id' is not old:new"),
        ({"type": "ReplaceField", "renames": "id:name"}, "renames", "two columns would have the name name"),
        ({"type": "ReplaceField", "exclude": "id,name,place"}, "exclude", "no column would be left"),
        ({"type": "ReplaceField", "whitelist": "id"}, "whitelist", "Unknown configuration"),
        ({"type": "MaskField", "fields": ""}, "fields", "one or more names"),
        ({"type": "MaskField", "fields": "place"}, "fields", "has no empty value"),
        ({"type": "MaskField", "fields": "id", "replacement": "x"}, "replacement", "is not a value of type bigint"),
        ({"type": "ExtractField", "field": "place.at"}, "field", "no such column: place.at"),
        ({"type": "TimestampConverter", "target.type": "unix"}, "field", "the value is a struct"),
        ({"type": "TimestampConverter", "target.type": "Time", "field": "id"}, "target.type", "Time is not supported"),
        ({"type": "TimestampConverter", "target.type": "string", "field": "id"}, "format", "needs a format"),
        ({"type": "Flter"}, "type", "Class Flter could not be found."),
        ({"type": "io.debezium.transforms.ByLogicalTableRouter"}, "type", "use RegexRouter"),
        ({"type": "io.confluent.connect.transforms.Filter$Value"}, "type", "use Filter with a SQL condition"),
    ],
)
async def test_invalid_values_are_refused_by_their_key(rig: Rig, keys: Mapping[str, str], key: str, words: str) -> None:
    rows = records(rig.session, ROW)
    with pytest.raises(ConfigError) as raised:
        through(rows, config_of(**keys))
    assert set(raised.value.errors) == {f"transforms.t.{key}"}
    assert words in raised.value.errors[f"transforms.t.{key}"][0]


async def test_rows_that_are_no_records_have_no_key_and_no_topic(rig: Rig) -> None:
    rows = rig.session.createDataFrame([(1,)], "id INT")
    for keys in ({"type": "ExtractField$Key", "field": "id"}, {"type": "InsertField", "topic.field": "t"}):
        with pytest.raises(ConfigError, match=r"the rows have no (key|topic): only records that Kafka"):
            through(rows, config_of(**keys))
