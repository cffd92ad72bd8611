"""Headers, topics and predicates, with Connect's names and keys."""

from collections.abc import Mapping
from typing import Any

import pytest

from coterie.nouns.errors import ConfigError
from coterie.spark import transforms
from tests.spark.conftest import Rig
from tests.spark.smt.records import config_of, parts, records, through, values

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(180)]

ROW = (1, "a", None)
OTHER = (2, "b", None)
H = {"key": "h", "value": bytearray(b"1")}


def header(key: str, value: bytes | None) -> dict[str, Any]:
    return {"key": key, "value": None if value is None else bytearray(value)}


@pytest.mark.parametrize(
    ("keys", "headers"),
    [
        ({"type": "InsertHeader", "header": "k", "value.literal": "v"}, [H, header("k", b"v")]),
        ({"type": "DropHeaders", "headers": "h,none"}, []),
        ({"type": "HeaderFrom", "fields": "id,place", "headers": "a,b", "operation": "copy"},
         [H, header("a", b"1"), header("b", None)]),
        ({"type": "HeaderFrom$Key", "fields": "id", "headers": "a", "operation": "copy"}, [H, header("a", b"7")]),
    ],
)  # fmt: skip
async def test_headers_are_added_and_dropped(rig: Rig, keys: Mapping[str, str], headers: list[object]) -> None:
    rows = through(records(rig.session, ROW), config_of(**keys))
    assert parts(rows)[0]["headers"] == headers
    assert transforms.uses_headers(config_of(**keys))
    assert not transforms.uses_headers(config_of(type="Flatten"))


async def test_a_field_that_moves_to_a_header_leaves_the_value(rig: Rig) -> None:
    keys = {"type": "HeaderFrom", "fields": "id", "headers": "a", "operation": "move"}
    rows = through(records(rig.session, ROW), config_of(**keys))
    assert values(rows) == [{"name": "a", "place": None}]
    with pytest.raises(ConfigError, match=r"as many names as transforms\.t\.fields"):
        transforms.parse_transforms(config_of(**keys | {"headers": "a,b"}))


@pytest.mark.parametrize(
    ("keys", "topic"),
    [
        ({"type": "RegexRouter", "regex": "or(.*)", "replacement": "b-$1"}, "b-ders"),
        ({"type": "RegexRouter", "regex": "rder", "replacement": "x"}, "orders"),
        ({"type": "TimestampRouter"}, "orders-20260102"),
        (
            {"type": "TimestampRouter", "topic.format": "x.${timestamp}.${topic}.y", "timestamp.format": "HH"},
            "x.03.orders.y",
        ),
    ],
)
async def test_a_transform_changes_the_topic_of_a_record(rig: Rig, keys: Mapping[str, str], topic: str) -> None:
    assert parts(through(records(rig.session, ROW), config_of(**keys)))[0]["topic"] == topic


PREDICATES: list[tuple[Mapping[str, str], bool]] = [
    ({"type": "TopicNameMatches", "pattern": "ord.*"}, True),
    ({"type": "TopicNameMatches", "pattern": "ord"}, False),
    ({"type": "org.apache.kafka.connect.transforms.predicates.HasHeaderKey", "name": "h"}, True),
    ({"type": "HasHeaderKey", "name": "g"}, False),
    ({"type": "RecordIsTombstone"}, False),
]


@pytest.mark.parametrize(("keys", "matches"), PREDICATES)
@pytest.mark.parametrize("negate", [False, True])
async def test_a_filter_drops_the_rows_that_match_its_predicate(
    rig: Rig, keys: Mapping[str, str], matches: bool, negate: bool
) -> None:
    config = {
        "transforms": "t",
        "transforms.t.type": "org.apache.kafka.connect.transforms.Filter",
        "transforms.t.predicate": "p",
        **({"transforms.t.negate": "true"} if negate else {}),
        "predicates": "p",
        **{f"predicates.p.{key}": value for key, value in keys.items()},
    }
    assert len(values(through(records(rig.session, ROW), config))) == (1 if matches == negate else 0)


async def test_tombstones_differ_from_rows_of_nulls(rig: Rig) -> None:
    rows = records(rig.session, (None, None, None), None)
    config = config_of(type="Filter", predicate="p", predicates="p", predicates__p__type="RecordIsTombstone")
    assert [part["offset"] for part in parts(through(rows, config))] == [0]


async def test_a_tombstone_has_no_fields_for_a_key(rig: Rig) -> None:
    rows, keyed = records(rig.session, ROW, None), {"type": "ValueToKey", "fields": "name"}
    with pytest.raises(Exception, match="cannot make a key of the fields of a tombstone"):
        parts(through(rows, config_of(**keyed)))
    config = config_of(type="Filter", predicate="p", predicates="p", predicates__p__type="RecordIsTombstone")
    filtered = through(rows, config)
    assert [part["key"] for part in parts(through(filtered, config_of(**keyed)))] == [{"name": "a"}]


async def test_a_transform_changes_only_the_rows_that_match_its_predicate(rig: Rig) -> None:
    p = {"predicates": "p", "predicates__p__type": "RecordIsTombstone", "predicate": "p", "negate": "true"}
    rows = records(rig.session, ROW, None)
    inserted = through(rows, config_of(type="InsertField", static__field="s", static__value="x", **p))
    assert [row["s"] for row in values(inserted)] == ["x", None]
    renamed = through(rows, config_of(type="ReplaceField", renames="name:title", **p))
    assert [(row["title"], row["name"]) for row in values(renamed)] == [("a", None), (None, None)]
    kept = through(records(rig.session, ROW, OTHER, None), config_of(type="Filter", condition="id = 2", **p))
    assert [row["id"] for row in values(kept)] == [2, None]
    routed = through(rows, config_of(type="RegexRouter", regex=".*", replacement="x", **p))
    assert [part["topic"] for part in parts(routed)] == ["x", "orders"]
    with pytest.raises(ConfigError, match=r"predicate: the transform makes string of column id, and rows .* bigint"):
        through(rows, config_of(type="Cast", spec="id:string", **p))


@pytest.mark.parametrize(
    ("keys", "key", "words"),
    [
        ({"predicate": "q"}, "transforms.t.predicate", "There is no such predicate; the key predicates lists p"),
        ({"negate": "true"}, "transforms.t.negate", "There is no predicate to negate"),
        (
            {"predicates.p.type": "Nothing"},
            "predicates.p.type",
            "Class Nothing could not be found.",
        ),
        ({"predicates.p.pattern": None}, "predicates.p.pattern", "Missing required"),
        ({"predicates.q.pattern": "x"}, "predicates.q.pattern", "Unknown configuration"),
        ({"predicates.p.pattern": "(", "predicate": "p"}, "predicates.p.pattern", "Unclosed group"),
    ],
)
async def test_an_invalid_predicate_is_refused_by_its_key(
    rig: Rig, keys: Mapping[str, str | None], key: str, words: str
) -> None:
    config = {
        "transforms": "t",
        "transforms.t.type": "Filter",
        "transforms.t.condition": "id > 0",
        "predicates": "p",
        "predicates.p.type": "TopicNameMatches",
        "predicates.p.pattern": "o.*",
    }
    for name, value in keys.items():
        full = name if name.startswith("predicates") else f"transforms.t.{name}"
        config = {one: config[one] for one in config if one != full} | ({full: value} if value is not None else {})
    with pytest.raises(ConfigError) as raised:
        through(records(rig.session, ROW), config)
    assert key in raised.value.errors
    assert words in raised.value.errors[key][0]
