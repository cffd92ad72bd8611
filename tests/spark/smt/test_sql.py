"""``Sql``: a SELECT over each row; a query that does not work row by row is refused by name."""

import re
from pathlib import Path

import pytest

from coterie.nouns.errors import ConfigError
from coterie.spark import transforms
from tests.spark.conftest import Rig
from tests.spark.smt.records import config_of, parts, records, through, values

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(180)]

PLACE = {"city": "Oslo", "at": {"x": 5}}
ROW = (1, "a", PLACE)
HIDDEN = ["headers", "key", "offset", "partition", "timestamp", "tombstone", "topic"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT id + 1 AS next, upper(name) AS name FROM source", [{"next": 2, "name": "A"}]),
        ("SELECT * FROM source WHERE id > 1", []),
        ("SELECT s.*, s.place.city FROM source AS s", [{"id": 1, "name": "a", "place": PLACE, "city": "Oslo"}]),
        ("SELECT x FROM (SELECT id AS x FROM source WHERE name = 'a') t WHERE x = 1", [{"x": 1}]),
        ("SELECT to_json(struct(* EXCEPT (place))) AS j FROM source", [{"j": '{"id":1,"name":"a"}'}]),
        ("SELECT id, x FROM source LATERAL VIEW explode(array(7, 8)) e AS x", [{"id": 1, "x": 7}, {"id": 1, "x": 8}]),
        ("SELECT CASE WHEN id = 1 THEN 'one' END AS n, id AS `__x` FROM source", [{"n": "one", "__x": 1}]),
    ],
)
async def test_a_query_reads_the_values_columns_and_hidden_columns_stay_unchanged(
    rig: Rig, query: str, expected: list[object]
) -> None:
    rows = through(records(rig.session, ROW), config_of(type="Sql", query=query))
    assert values(rows) == expected
    assert sorted(name.removeprefix("__coterie_") for name in rows.columns if name.startswith("__coterie_")) == HIDDEN
    assert [part["offset"] for part in parts(rows)] == [0] * len(expected)


async def test_several_queries_run_in_sequence_and_leave_no_view_behind(rig: Rig) -> None:
    session = rig.session
    rows = through(records(session, ROW), config_of(type="Sql", query="SELECT id AS a FROM source"))
    rows = through(rows, config_of(type="Sql", query="SELECT a + 1 AS b FROM source"))
    assert values(rows) == [{"b": 2}]
    assert session.catalog.listTables() == []


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("SELECT count(*) FROM source", "aggregates and GROUP BY"),
        ("SELECT name, sum(id) FROM source GROUP BY name", "aggregates and GROUP BY"),
        ("SELECT DISTINCT id FROM source", "DISTINCT"),
        ("SELECT a.id FROM source a JOIN source b ON a.id = b.id", "joins"),
        ("SELECT id, row_number() OVER (ORDER BY id) FROM source", "window functions"),
        ("SELECT id FROM source ORDER BY id", "ORDER BY"),
        ("SELECT id FROM source LIMIT 1", "LIMIT"),
        ("SELECT id FROM source UNION ALL SELECT id FROM source", "UNION"),
        ("SELECT id FROM source WHERE id IN (SELECT id FROM source)", "a subquery in an expression"),
        ("SELECT (SELECT max(id) FROM source) AS m FROM source", "a subquery in an expression"),
        ("WITH t AS (SELECT id FROM source) SELECT id FROM t", "WITH"),
        ("SELECT 1", "a SELECT without FROM source"),
        ("SELECT * FROM range(3)", "functions that make a table"),
        ("SELECT no FROM source", "`no` cannot be resolved"),
        ("SELECT id FROM sorce", "`sorce` cannot be found"),
        ("SELECT id FROM source WHERE id >", "Syntax error"),
        ("SELECT __coterie_key FROM source", "cannot be resolved"),
        ("CREATE TABLE t (id INT) USING parquet", "the query is not a SELECT"),
        ("DROP VIEW source", "the query is not a SELECT"),
        ("SET spark.sql.ansi.enabled=false", "the query is not a SELECT"),
    ],
)
async def test_a_query_that_does_not_work_row_by_row_is_refused_by_name(rig: Rig, query: str, words: str) -> None:
    session = rig.session
    with pytest.raises(ConfigError) as raised:
        through(records(session, ROW), config_of(type="Sql", query=query))
    assert set(raised.value.errors) == {"transforms.t.query"}
    assert words in raised.value.errors["transforms.t.query"][0]
    assert session.conf.get("spark.sql.ansi.enabled") == "true"


async def test_a_query_cannot_read_files(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("secret\n")
    with pytest.raises(ConfigError, match="the query is not a SELECT"):
        through(records(rig.session, ROW), config_of(type="Sql", query=f"SELECT * FROM csv.`{tmp_path}`"))


@pytest.mark.parametrize("function", ["reflect", "java_method", "try_reflect", "system.builtin.reflect"])
async def test_a_query_or_condition_cannot_call_java(rig: Rig, tmp_path: Path, function: str) -> None:
    """It could end the worker, or read its environment."""
    call = f"{function}('java.lang.System', 'getenv', 'HOME')"
    transforms = {"q": {"type": "Sql", "query": f"SELECT {call} AS home FROM source"}, "f": {"type": "Filter"}}
    transforms["f"]["condition"] = f"{call} IS NULL"
    for name, key in (("q", "query"), ("f", "condition")):
        keys = {f"transforms.{name}.{one}": value for one, value in transforms[name].items()}
        errors = await rig.config_errors({**rig.config(tmp_path), "transforms": name, **keys}, ())
        assert set(errors) == {f"transforms.{name}.{key}"}
        assert re.search("Cannot resolve routine|requires a single-part", errors[f"transforms.{name}.{key}"][0])


async def test_a_sql_transform_accepts_no_predicate() -> None:
    config = config_of(
        type="Sql", query="SELECT 1 FROM source", predicate="p", predicates="p", predicates__p__type="RecordIsTombstone"
    )
    assert set(transforms.config_errors(config)) == {"transforms.t.predicate"}
