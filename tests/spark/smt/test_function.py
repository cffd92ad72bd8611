"""Functions of users over Arrow batches: only from allowed modules; a failing function fails only its task."""

import asyncio
import sys
from pathlib import Path

import pytest

from coterie.herder.seams import TaskDied
from coterie.nouns.errors import ConfigError
from coterie.spark.settings import PythonSettings
from coterie.spark.user_code import python_session_settings
from tests.spark import user_functions
from tests.spark.conftest import Rig, rows_of, write_file
from tests.spark.smt.records import config_of, records, through, values

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]

MODULE = "tests.spark.user_functions"


def function(name: str, schema: str = "row BIGINT, twice BIGINT") -> dict[str, str]:
    return {
        "transforms": "f",
        "transforms.f.type": "Function",
        "transforms.f.function": f"{MODULE}:{name}",
        "transforms.f.schema": schema,
    }


async def test_a_function_changes_columns_and_drops_rows(rig: Rig, tmp_path: Path) -> None:
    config = rig.config(tmp_path) | function("doubled")
    assert await rig.config_errors(config, ()) == {}
    write_file(tmp_path / "in", "a.csv", [(row, 1.0, row) for row in range(9)])
    start = await rig.start(config, "doubled")
    await rig.wait_until(lambda: len(rows_of(tmp_path / "out")) >= 5)
    await rig.runtime.stop(start.task, grace_ms=10_000)
    assert rows_of(tmp_path / "out") == [0, 2, 4, 6, 8]
    assert rows_of(tmp_path / "out", "twice") == [0, 4, 8, 12, 16]


async def test_a_function_runs_in_the_python_that_the_worker_names(rig: Rig, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nCOTERIE_TEST_PYTHON=named exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    session = rig.session
    for name, value in python_session_settings(
        PythonSettings(allowed_modules=(MODULE,), executable=str(python))
    ).items():
        session.conf.set(name, value)
    rows = through(
        records(session, (1, "a", None)),
        config_of(type="Function", function=f"{MODULE}:python_of_worker", schema="python STRING"),
    )
    assert values(rows) == [{"python": "named"}]


FAILURES = {
    "raises": "LookupError: no rate for the currency XYZ (user_functions.py, line "
    f"{user_functions.raises.__code__.co_firstlineno + 2}, in raises)",
    "exits": "A function's Python process ended",
    "leaves": "SystemExit: enough",
    "renames": f"{MODULE}:renames returned the columns number, and the schema in the config has row, twice",
}


async def test_a_function_that_fails_fails_only_its_task_with_one_clear_sentence(rig: Rig, tmp_path: Path) -> None:
    neighbour = await rig.start(rig.config(tmp_path / "neighbour"), "neighbour")
    starts = {}
    for name in FAILURES:
        write_file(tmp_path / name / "in", "a.csv", [(1, 1.0, 1)])
        starts[name] = await rig.start(rig.config(tmp_path / name) | function(name), f"function-{name}")
    traces: dict[str, str] = {}
    async with asyncio.timeout(120):
        while len(traces) < len(FAILURES):
            event = await rig.runtime.next_event()
            for name, start in starts.items():
                if isinstance(event, TaskDied) and event.task == start.task:
                    traces[name] = event.trace
    first = {name: trace.splitlines()[0] for name, trace in traces.items()}
    assert {name: words for name, words in FAILURES.items() if words not in first[name]} == {}, first
    for start in starts.values():
        await rig.runtime.stop(start.task, grace_ms=0)
    write_file(tmp_path / "neighbour" / "in", "a.csv", [(5, 1.0, 5)])
    await rig.wait_until(lambda: rows_of(tmp_path / "neighbour" / "out") == [5])
    await rig.runtime.stop(neighbour.task, grace_ms=10_000)


@pytest.mark.parametrize(
    ("named", "schema", "key", "words"),
    [
        ("os:getcwd", "row INT", "function", "allows tests.spark.user_functions, pipelines. Add the module"),
        ("tests.spark.user_functions_too:f", "row INT", "function", "does not allow the module"),
        (f"{MODULE}.no:f", "row INT", "function", "cannot be imported: ModuleNotFoundError"),
        (f"{MODULE}:nothing", "row INT", "function", "has no nothing"),
        (f"{MODULE}:NUMBER", "row INT", "function", "is a int and not a function"),
        ("doubled", "row INT", "function", "Must be package.module:function"),
        (f"{MODULE}:doubled", "row ITN", "schema", ""),
    ],
)
async def test_a_function_that_cannot_be_run_is_refused_by_its_key(
    rig: Rig, named: str, schema: str, key: str, words: str
) -> None:
    rows = records(rig.session, (1, "a", None))
    with pytest.raises(ConfigError) as raised:
        through(rows, config_of(type="Function", function=named, schema=schema))
    assert set(raised.value.errors) == {f"transforms.t.{key}"}
    assert words in raised.value.errors[f"transforms.t.{key}"][0]
