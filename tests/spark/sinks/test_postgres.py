"""From files and the rate source to a real PostgreSQL with real Spark; rows are counted by psycopg."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from coterie.spark.seams import SMALL_BATCH_BYTES_MAX
from tests.spark.conftest import Rig, write_file
from tests.spark.sinks.postgres_server import PASSWORD, PostgresServer

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]

LARGE = 500_000
"""Rows of a batch that is too large for the driver to write at once."""


@pytest.fixture
def server(postgres: PostgresServer) -> PostgresServer:
    """The server without the table."""
    postgres.run("DROP TABLE IF EXISTS flights, coterie_ledger")
    return postgres


def config_of(rig: Rig, server: PostgresServer, folder: Path, **changes: str) -> dict[str, str]:
    keys = server.keys | {"table.name.format": "flights", "auto.create": "true"}
    config = {key: value for key, value in rig.config(folder).items() if not key.startswith("sink.")}
    return (
        config
        | {"sink.class": "PostgresSink"}
        | {f"sink.{key}": value for key, value in keys.items()}
        | {key.replace("__", "."): value for key, value in changes.items()}
    )


def rows(server: PostgresServer, column: str = "row") -> list[object]:
    if not server.rows("SELECT 1 WHERE to_regclass('flights') IS NOT NULL"):
        return []
    return [row for (row,) in server.rows(f"SELECT {column} FROM flights ORDER BY 1")]


def count(server: PostgresServer) -> object:
    [number] = rows(server, "count(*)") or [0]
    return number


async def test_rows_of_files_are_written_once_over_a_stop_and_a_start(
    rig: Rig, server: PostgresServer, tmp_path: Path
) -> None:
    config = config_of(rig, server, tmp_path, exactly__once__support="required")
    assert await rig.config_errors(config, ()) == {}
    for number in range(3):
        write_file(tmp_path / "in", f"{number}.csv", [(number * 10 + i, None, i) for i in range(10)])
        start = await rig.start(config, "to-postgres")
        await rig.wait_until(lambda expected=(number + 1) * 10: len(rows(server)) >= expected)  # type: ignore[misc]
        await rig.runtime.stop(start.task, grace_ms=10_000 if number else 0)
    assert rows(server) == list(range(30))
    assert server.rows("SELECT DISTINCT delay FROM flights") == [(None,)]


async def test_a_batch_too_large_for_the_driver_is_written_in_pieces(
    rig: Rig, server: PostgresServer, tmp_path: Path
) -> None:
    path = write_file(tmp_path / "in", "large.csv", [(row, 1.0, row) for row in range(LARGE)])
    assert path.stat().st_size > SMALL_BATCH_BYTES_MAX
    start = await rig.start(config_of(rig, server, tmp_path), "large-to-postgres")
    await rig.wait_until(lambda: count(server) == LARGE)
    await rig.runtime.stop(start.task, grace_ms=10_000)
    assert rows(server) == list(range(LARGE))


async def test_values_of_the_rate_source_are_written_once_by_two_tasks(
    rig: Rig, server: PostgresServer, tmp_path: Path
) -> None:
    config = {key: value for key, value in config_of(rig, server, tmp_path).items() if not key.startswith("source.")}
    config |= {"connector.class": "RateSource", "source.rows.per.second": "50", "tasks.max": "2"}
    starts = [await rig.start(config, "rate-to-postgres", index) for index in range(2)]
    await rig.wait_until(lambda: len(rows(server, "value")) >= 150)
    for start in starts:
        await rig.runtime.stop(start.task, grace_ms=10_000)
    found = rows(server, "value")
    assert len(found) == len(set(found))
    for index in range(2):
        own = [value for value in found if isinstance(value, int) and value % 2 == index]
        assert own == list(range(index, own[-1] + 1, 2)), "lost"


async def test_a_row_that_the_table_refuses_fails_the_task_with_the_constraint(
    rig: Rig, server: PostgresServer, tmp_path: Path
) -> None:
    server.run("CREATE TABLE flights (row bigint, delay float8, distance int CONSTRAINT far CHECK (distance < 5))")
    write_file(tmp_path / "in", "a.csv", [(row, 1.0, row) for row in range(9)])
    start = await rig.start(config_of(rig, server, tmp_path), "refused-by-postgres")
    died = await rig.end_of(start.task)
    assert died.holds_checkpoint
    assert 'violates check constraint "far"' in died.trace
    assert PASSWORD not in died.trace
    assert rows(server) == []
    await rig.runtime.stop(start.task, grace_ms=0)


@pytest.mark.parametrize(
    ("changes", "key", "words"),
    [
        ({"sink.connection.url": "postgresql://127.0.0.1:1/none"}, "sink.connection.url", "cannot be reached"),
        ({"sink.connection.url": "jdbc:mysql://h/d"}, "sink.connection.url", "jdbc:postgresql://host:port/database"),
        ({"sink.connection.url": "postgresql://u:p@h/d"}, "sink.connection.url", "not in the URL"),
        ({"sink.connection.url": "postgresql://h:0/d"}, "sink.connection.url", "a number from 1 to 65535"),
        ({"sink.connection.url": "postgresql://h/d?ssl=1"}, "sink.connection.url", "parameter ssl is not supported"),
        ({"sink.connection.password": "wrong"}, "sink.connection.url", "password authentication failed"),
        ({"sink.table.name.format": "${topic}"}, "sink.table.name.format", "Set the name of the table"),
        ({"sink.table.name.format": "none.flights"}, "sink.table.name.format", "no schema none"),
        ({"sink.auto.create": "false"}, "sink.table.name.format", "set auto.create=true"),
        ({"sink.insert.mode": "update"}, "sink.insert.mode", "Only insert and upsert"),
        ({"sink.insert.mode": "upsert"}, "sink.pk.mode", "needs pk.mode=record_key or record_value"),
        ({"sink.pk.mode": "record_value"}, "sink.pk.fields", "needs pk.fields"),
        ({"sink.pk.mode": "kafka"}, "sink.pk.mode", "use record_key or record_value"),
        ({"sink.pk.mode": "record_key"}, "sink.pk.fields", "needs pk.fields"),
        ({"sink.delete.enabled": "true"}, "sink.delete.enabled", "pk.mode=record_key and insert.mode=upsert"),
        ({"sink.auto.evolve": "true"}, "sink.auto.evolve", "set false"),
        ({"sink.option.x": "y"}, "sink.option.x", "Unknown"),
    ],
)
async def test_unsupported_values_are_refused_by_key(
    rig: Rig, server: PostgresServer, tmp_path: Path, changes: dict[str, str], key: str, words: str
) -> None:
    errors = await rig.config_errors(config_of(rig, server, tmp_path) | changes, ())
    assert set(errors) == {key}
    assert words in errors[key][0]
    assert PASSWORD not in errors[key][0]


async def test_a_key_of_an_upsert_needs_a_column_and_a_unique_constraint(
    rig: Rig, server: PostgresServer, tmp_path: Path
) -> None:
    server.run("CREATE TABLE flights (row bigint, delay float8, distance int)")
    upsert = {"sink.insert.mode": "upsert", "sink.pk.mode": "record_value"}
    config = config_of(rig, server, tmp_path) | upsert
    errors = await rig.config_errors(config | {"sink.pk.fields": "id"}, ())
    assert "has no column id" in errors["sink.pk.fields"][0]
    errors = await rig.config_errors(config | {"sink.pk.fields": "row"}, ())
    assert "no primary key or unique constraint" in errors["sink.pk.fields"][0]
    server.run("CREATE UNIQUE INDEX ON flights (distance, row)")
    assert await rig.config_errors(config | {"sink.pk.fields": "row,distance"}, ()) == {}


async def test_the_error_for_missing_rights_names_what_to_grant(
    rig: Rig, server: PostgresServer, tmp_path: Path
) -> None:
    server.run(
        "DROP SCHEMA IF EXISTS sales CASCADE",
        "DROP ROLE IF EXISTS clerk",
        "CREATE SCHEMA sales",
        "CREATE TABLE sales.flights (row bigint, delay float8, distance int)",
        f"CREATE ROLE clerk LOGIN PASSWORD '{PASSWORD}'",
        "GRANT USAGE ON SCHEMA sales TO clerk",
    )
    config = config_of(rig, server, tmp_path)
    config |= {"sink.connection.user": "clerk", "sink.table.name.format": "sales.flights"}
    errors = await rig.config_errors(config, ())
    assert 'GRANT CREATE ON SCHEMA "sales"' in errors["sink.table.name.format"][0]
    server.run("GRANT CREATE ON SCHEMA sales TO clerk")
    errors = await rig.config_errors(config, ())
    assert 'GRANT INSERT ON "sales"."flights"' in errors["sink.table.name.format"][0]
    server.run("GRANT INSERT ON sales.flights TO clerk")
    assert await rig.config_errors(config, ()) == {}
    write_file(tmp_path / "in", "a.csv", [(row, 1.0, row) for row in range(9)])
    start = await rig.start(config, "clerk")
    await rig.wait_until(lambda: server.rows("SELECT FROM sales.flights") != [])
    await rig.runtime.stop(start.task, grace_ms=10_000)
    assert server.rows("SELECT row FROM sales.flights ORDER BY row") == [(row,) for row in range(9)]


async def test_each_right_that_an_upsert_needs_is_checked(rig: Rig, server: PostgresServer, tmp_path: Path) -> None:
    """Without each of these rights the task would fail."""
    server.run(
        "DROP SCHEMA IF EXISTS sales CASCADE",
        "DROP ROLE IF EXISTS clerk",
        "CREATE SCHEMA sales",
        "CREATE TABLE sales.flights (row bigint PRIMARY KEY, delay float8, distance int)",
        "CREATE TABLE sales.coterie_ledger (task text, lineage text, start bigint NOT NULL, batch bigint NOT NULL, "
        "written timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (task, lineage))",
        f"CREATE ROLE clerk LOGIN PASSWORD '{PASSWORD}'",
        "GRANT USAGE ON SCHEMA sales TO clerk",
        "GRANT INSERT ON sales.flights TO clerk",
        "REVOKE TEMPORARY ON DATABASE postgres FROM PUBLIC",
    )
    config = config_of(rig, server, tmp_path) | {
        "sink.connection.user": "clerk",
        "sink.table.name.format": "sales.flights",
        "sink.insert.mode": "upsert",
        "sink.pk.mode": "record_value",
        "sink.pk.fields": "row",
    }
    for key, right in (
        ("sink.table.name.format", 'SELECT ON "sales".coterie_ledger'),
        ("sink.table.name.format", 'INSERT ON "sales".coterie_ledger'),
        ("sink.table.name.format", 'UPDATE ON "sales".coterie_ledger'),
        ("sink.insert.mode", 'SELECT ON "sales"."flights"'),
        ("sink.insert.mode", 'UPDATE ON "sales"."flights"'),
        ("sink.insert.mode", 'TEMPORARY ON DATABASE "postgres"'),
    ):
        errors = await rig.config_errors(config, ())
        assert set(errors) == {key}
        assert f"run: GRANT {right} TO" in errors[key][0]
        server.run(f"GRANT {right} TO clerk")
    assert await rig.config_errors(config, ()) == {}
    write_file(tmp_path / "in", "a.csv", [(row % 3, 1.0, row) for row in range(9)])
    start = await rig.start(config, "upserting-clerk")
    await rig.wait_until(lambda: server.rows("SELECT FROM sales.flights") != [])
    write_file(tmp_path / "in", "b.csv", [(0, 1.0, 99)])
    await rig.wait_until(lambda: server.rows("SELECT FROM sales.flights WHERE distance = 99") != [])
    await rig.runtime.stop(start.task, grace_ms=10_000)
    assert server.rows("SELECT row, distance FROM sales.flights ORDER BY row") == [(0, 99), (1, 7), (2, 8)]
    server.run("GRANT TEMPORARY ON DATABASE postgres TO PUBLIC", "REVOKE ALL ON DATABASE postgres FROM clerk")


async def test_an_empty_search_path_is_reported_by_the_key_that_can_name_the_schema(
    rig: Rig, server: PostgresServer, tmp_path: Path
) -> None:
    server.run(
        "DROP SCHEMA IF EXISTS sales CASCADE",
        "DROP ROLE IF EXISTS clerk",
        f"CREATE ROLE clerk LOGIN PASSWORD '{PASSWORD}'",
        "ALTER ROLE clerk SET search_path = ''",
    )
    errors = await rig.config_errors(config_of(rig, server, tmp_path) | {"sink.connection.user": "clerk"}, ())
    assert set(errors) == {"sink.table.name.format"}
    assert "search path has no schema; set table.name.format to schema.table" in errors["sink.table.name.format"][0]


async def test_a_config_of_connects_jdbc_sink_runs_with_another_class(
    rig: Rig, server: PostgresServer, tmp_path: Path
) -> None:
    """Uses the keys of Connect's JDBC sink without a prefix."""
    source = {key: value for key, value in rig.config(tmp_path).items() if key.startswith("source.")}
    config = source | server.keys
    config |= {
        "connector.class": "PostgresSink",
        "source.class": "FileSource",
        "tasks.max": "1",
        "insert.mode": "upsert",
        "pk.mode": "record_value",
        "pk.fields": "row",
        "table.name.format": "public.flights",
        "auto.create": "true",
        "delete.enabled": "false",
    }
    assert await rig.config_errors(config, ()) == {}
    write_file(tmp_path / "in", "a.csv", [(row % 5, float(row), row) for row in range(10)])
    start = await rig.start(config, "from-connect")
    await rig.wait_until(lambda: len(rows(server)) > 0)
    await rig.runtime.stop(start.task, grace_ms=10_000)
    assert server.rows("SELECT row, distance FROM flights ORDER BY row") == [(row, row + 5) for row in range(5)]


async def test_an_unreachable_server_is_named_and_the_task_continues_when_it_can_be_reached_again(
    rig: Rig, server: PostgresServer, tmp_path: Path
) -> None:
    config = config_of(rig, server, tmp_path, sink__max__retries="1", sink__retry__backoff__ms="10")
    write_file(tmp_path / "in", "a.csv", [(row, 1.0, 1) for row in range(9)])
    start = await rig.start(config, "away")
    await rig.wait_until(lambda: len(rows(server)) == 9)
    server.stop()
    try:
        write_file(tmp_path / "in", "b.csv", [(row, 1.0, 1) for row in range(9, 20)])
        died = await rig.end_of(start.task)
    finally:
        server.start()
    assert died.can_restart
    assert f"PostgreSQL at 127.0.0.1:{server.port}, database postgres cannot be reached" in died.trace
    assert PASSWORD not in died.trace
    await rig.runtime.restart(start.task)
    await rig.wait_until(lambda: len(rows(server)) >= 20)
    await rig.runtime.stop(start.task, grace_ms=10_000)
    assert rows(server) == list(range(20))


async def test_a_task_waits_for_its_server_for_errors_retry_timeout_and_can_be_stopped_meanwhile(
    rig: Rig, server: PostgresServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_of(rig, server, tmp_path, sink__max__retries="0", errors__retry__delay__max__ms="400")
    write_file(tmp_path / "in", "a.csv", [(row, 1.0, 1) for row in range(9)])
    start = await rig.start(config | {"errors.retry.timeout": "-1"}, "waits")
    await rig.wait_until(lambda: len(rows(server)) == 9)

    def attempts() -> int:
        return len(
            [record for record in caplog.records if "waits-0: a server cannot be reached" in record.getMessage()]
        )

    server.stop()
    try:
        write_file(tmp_path / "in", "b.csv", [(row, 1.0, 1) for row in range(9, 20)])
        await rig.wait_until(lambda: attempts() >= 3)
    finally:
        server.start()
    # The herder received no event: the task continues without it.
    await rig.wait_until(lambda: len(rows(server)) >= 20)
    server.stop()
    try:
        before = attempts()
        write_file(tmp_path / "in", "c.csv", [(row, 1.0, 1) for row in range(20, 30)])
        await rig.wait_until(lambda: attempts() > before)
        began = time.monotonic()
        await rig.runtime.stop(start.task, grace_ms=30_000)
        assert time.monotonic() - began < 15, "the stop waited for the server"
        start = await rig.start(config | {"errors.retry.timeout": "900"}, "waits")
        died = await rig.end_of(start.task)
    finally:
        server.start()
    assert died.can_restart
    assert f"PostgreSQL at 127.0.0.1:{server.port}, database postgres cannot be reached" in died.trace
    await rig.runtime.restart(start.task)
    await rig.wait_until(lambda: len(rows(server)) >= 30)
    await rig.runtime.stop(start.task, grace_ms=10_000)
    assert rows(server) == list(range(30))


async def test_without_psycopg_validate_and_start_name_the_extra(
    rig: Rig, server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("postgres_check", "postgres_writer"):
        monkeypatch.delitem(sys.modules, f"coterie.spark.sinks.{module}", raising=False)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    config = config_of(rig, server, tmp_path)
    errors = await rig.config_errors(config, ())
    assert "pip install 'coterie[postgres]'" in errors["sink.connection.url"][0]
    start = await rig.start(config, "without-psycopg")
    died = await rig.end_of(start.task)
    assert "pip install 'coterie[postgres]'" in died.trace
    await rig.runtime.stop(start.task, grace_ms=0)


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_a_worker_stopped_inside_copy_while_its_task_moves_doubles_nothing_when_it_continues(
    rig: Rig, server: PostgresServer, tmp_path: Path
) -> None:
    """The other worker is a separate process: Python and the JVM are stopped during a large batch.

    ``make test`` has the same without Spark, in ``test_postgres_writer.py``.
    """
    config = config_of(rig, server, tmp_path)
    write_file(tmp_path / "in", "a.csv", [(-1, 1.0, 1)])
    here = await rig.start(config, "fight")
    await rig.wait_until(lambda: len(rows(server)) == 1)
    held = rig.spark_runtime.held_checkpoint(here.task)
    assert held is not None
    await rig.runtime.stop(here.task, grace_ms=10_000)
    write_file(tmp_path / "in", "b.csv", [(row, 1.0, row) for row in range(LARGE)])
    location = held.path.parents[2]
    holder = await asyncio.to_thread(Holder, location, tmp_path / "other", config | dict(here.config))
    try:
        await rig.wait_until(lambda: is_inside_copy(server))
        holder.signal(signal.SIGSTOP)
        assert is_inside_copy(server), "the worker was not stopped inside COPY"
        assert len(rows(server)) == 1
        again = await rig.start(config, "fight")
        await rig.wait_until(lambda: count(server) != 1)
        holder.signal(signal.SIGCONT)
        await asyncio.to_thread(holder.wait_for, "taken")
        await rig.runtime.stop(again.task, grace_ms=10_000)
    finally:
        await asyncio.to_thread(holder.end)
    assert rows(server) == list(range(-1, LARGE))


def is_inside_copy(server: PostgresServer) -> bool:
    """Whether the server has rows of a COPY that has not ended."""
    return server.rows("SELECT FROM pg_stat_progress_copy WHERE tuples_processed > 0") != []


class Holder:
    """One process of ``task_process.py``, which runs the task ``fight-0``."""

    def __init__(self, location: Path, scratch: Path, config: Mapping[str, str]) -> None:
        scratch.mkdir()
        command = [sys.executable, "-m", "tests.spark.task_process", str(location), str(scratch), str(os.getpid())]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True, bufsize=1
        )
        self._jvm = int(self.wait_for("ready").split()[1])
        assert self._process.stdin is not None
        self._process.stdin.write(f"start i {json.dumps(dict(config))}\n")

    def wait_for(self, first: str) -> str:
        """Read lines up to one that begins with ``first``."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(first):
                return line
        raise AssertionError(f"the holder ended and never printed {first}")

    def signal(self, number: int) -> None:
        for pid in (self._process.pid, self._jvm):
            os.kill(pid, number)

    def end(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
