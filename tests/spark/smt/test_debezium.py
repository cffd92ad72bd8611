"""Debezium's change events: the result of each operation with the keys of ExtractNewRecordState."""

from typing import Any

import pytest
from pyspark.sql import DataFrame

from coterie.nouns.errors import ConfigError
from coterie.spark import transforms
from tests.spark.conftest import Rig
from tests.spark.smt.records import config_of, parts, records, through, values

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(180)]

TYPE = "io.debezium.transforms.ExtractNewRecordState"
EVENT = (
    "before STRUCT<id: BIGINT, name: STRING>, after STRUCT<id: BIGINT, name: STRING>, op STRING, ts_ms BIGINT, "
    "source STRUCT<table: STRING, lsn: BIGINT>"
)


def event(op: str | None, before: str | None, after: str | None) -> tuple[Any, ...]:
    rows = (None if name is None else {"id": 1, "name": name} for name in (before, after))
    return (*rows, op, 5, {"table": "users", "lsn": 9})


def events(rig: Rig, *made: tuple[Any, ...] | None) -> DataFrame:
    every = (event("c", None, "a"), event("u", "a", "b"), event("t", None, None), event("d", "b", None), None)
    return records(rig.session, *(made or every), schema=EVENT)


def shown(rows: DataFrame) -> list[str]:
    """``name`` of each row; ``-`` for a tombstone, and a ``!`` for a row that is marked as deleted."""
    return [
        "-" if part["tombstone"] else f"{row['name']}{'!' if row.get('__deleted') == 'true' else ''}"
        for row, part in zip(values(rows), parts(rows), strict=True)
    ]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, ["a", "b", "-"]),
        ({"delete.tombstone.handling.mode": "tombstone"}, ["a", "b", "-"]),
        ({"delete.tombstone.handling.mode": "drop"}, ["a", "b"]),
        ({"delete.tombstone.handling.mode": "delete-to-tombstone"}, ["a", "b", "-"]),
        ({"delete.tombstone.handling.mode": "rewrite"}, ["a", "b", "b!"]),
        ({"delete.tombstone.handling.mode": "rewrite-with-tombstone"}, ["a", "b", "b!", "-"]),
        ({"drop.tombstones": "true"}, ["a", "b"]),
        ({"drop.tombstones": "false"}, ["a", "b", "-"]),
        ({"delete.handling.mode": "rewrite"}, ["a", "b", "b!"]),
        ({"delete.handling.mode": "none"}, ["a", "b", "-"]),
    ],
)
async def test_deletions_and_tombstones_are_handled_as_the_config_states(
    rig: Rig, keys: dict[str, str], expected: list[str]
) -> None:
    rows = through(events(rig), config_of(type=TYPE, **keys))
    assert shown(rows) == expected
    offsets = [part["offset"] for part in parts(rows)]
    is_the_event = "delete-to" in str(keys) or "none" in str(keys) or "rewrite" in str(keys)
    assert offsets[2:3] == ([3] if is_the_event else [4])[: len(offsets) - 2]


async def test_fields_of_the_event_become_columns_headers_and_the_topic(rig: Rig) -> None:
    keys = {
        "add.fields": "op,table,source.lsn,ts_ms:moment",
        "add.headers": "op",
        "add.headers.prefix": "x-",
        "route.by.field": "name",
    }
    rows = through(events(rig, event("c", None, "a")), config_of(type=TYPE, **keys))
    assert values(rows) == [{"id": 1, "name": "a", "__op": "c", "__table": "users", "__source_lsn": 9, "__moment": 5}]
    (part,) = parts(rows)
    assert part["headers"][1] == {"key": "x-op", "value": bytearray(b"c")}
    assert part["topic"] == "a"
    assert transforms.uses_headers(config_of(type=TYPE, **keys))
    assert not transforms.uses_headers(config_of(type=TYPE))


async def test_a_record_that_is_no_change_event_fails_the_batch(rig: Rig) -> None:
    rows = through(events(rig, event(None, None, None)), config_of(type=TYPE))
    with pytest.raises(Exception, match="not a change event of Debezium: its op is null"):
        values(rows)


@pytest.mark.parametrize(
    ("keys", "key", "words"),
    [
        ({"add.fields": "no"}, "add.fields", "no such column: no"),
        ({"add.headers": "source.no"}, "add.headers", "no such column: no"),
        ({"route.by.field": "no"}, "route.by.field", "no such column: no"),
        ({"delete.tombstone.handling.mode": "x"}, "delete.tombstone.handling.mode", "must be one of"),
        (
            {"delete.tombstone.handling.mode": "drop", "drop.tombstones": "false"},
            "drop.tombstones",
            "delete.tombstone.handling.mode replaces it",
        ),
        ({"delete.handling.mode": "none", "drop.tombstones": "false"}, "delete.handling.mode", "becomes a tombstone"),
        ({"drop.fields.header.name": "x"}, "drop.fields.header.name", "Unknown configuration"),
    ],
)
async def test_invalid_values_are_refused_by_their_key(rig: Rig, keys: dict[str, str], key: str, words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        through(events(rig), config_of(type=TYPE, **keys))
    assert set(raised.value.errors) == {f"transforms.t.{key}"}
    assert words in raised.value.errors[f"transforms.t.{key}"][0]


async def test_rows_that_are_no_events_are_refused(rig: Rig) -> None:
    with pytest.raises(ConfigError, match=r"before and after, two structs of the same columns; value\.schema"):
        through(records(rig.session, (1, "a", None)), config_of(type=TYPE))
