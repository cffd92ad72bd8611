"""A batch is in a table of a real PostgreSQL once, even if owners are killed, freeze or resume."""

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from coterie.nouns.errors import UnreachableError, WorldError
from coterie.spark.fence import FencedError
from coterie.spark.sinks.postgres_writer import PostgresSession, PostgresWriter, StagedTransaction
from tests.ports import free_port
from tests.spark.sinks.owner_process import OwnerProcess
from tests.spark.sinks.postgres_rows import LINEAGE, ROWS, SCHEMA, divided, piece, target_of
from tests.spark.sinks.postgres_server import PASSWORD, PostgresServer

ALL = "SELECT row FROM rows ORDER BY row"


def pieces_of(batch_id: int) -> Callable[[], Iterable[pa.RecordBatch]]:
    return lambda: [piece(batch_id * ROWS, ROWS)]


def numbers(batches: int) -> list[tuple[int]]:
    return [(row,) for row in range(batches * ROWS)]


@pytest.fixture
def server(postgres: PostgresServer) -> PostgresServer:
    """The server with an empty table and without a ledger."""
    postgres.run("DROP TABLE IF EXISTS rows, coterie_ledger, made", "CREATE TABLE rows (row bigint, text text)")
    return postgres


@pytest.fixture
def keys(server: PostgresServer) -> dict[str, str]:
    return server.keys | {"table.name.format": "rows", "retry.backoff.ms": "50", "statement.timeout.ms": "20000"}


@pytest.fixture
def own(keys: dict[str, str]) -> Iterator[Callable[..., PostgresWriter]]:
    """A function that takes the task over, with a start's number and changed keys."""
    with contextlib.ExitStack() as stack:

        def owner(start: int = 1, kind: type[PostgresWriter] = PostgresWriter, **changes: str) -> PostgresWriter:
            changed = {key.replace("__", "."): value for key, value in changes.items()}
            writer = kind(target_of(keys | changed), LINEAGE, start)
            stack.callback(writer.close)
            writer.take_over()
            return writer

        yield owner


def write(writer: PostgresWriter, batch_id: int, pieces: Callable[[], Iterable[pa.RecordBatch]] | None = None) -> None:
    staged = writer.stage(batch_id, SCHEMA, divided(pieces or pieces_of(batch_id)))
    staged.commit()
    staged.clean_up()


@pytest.fixture
def start_process(keys: dict[str, str]) -> Iterator[Callable[[int, int], OwnerProcess]]:
    with contextlib.ExitStack() as stack:

        def process(start: int, batch_id: int) -> OwnerProcess:
            made = OwnerProcess("postgres_owner", json.dumps(keys), str(start), str(batch_id), str(batch_id * ROWS))
            stack.callback(made.end)
            return made

        yield process


def is_locked(server: PostgresServer) -> bool:
    """Whether a transaction holds the ledger's row."""
    try:
        server.rows("SELECT FROM coterie_ledger FOR UPDATE NOWAIT")
    except psycopg.errors.LockNotAvailable:
        return True
    return False


# -- exactly once -----------------------------------------------------------------------------------------------------


def test_a_batch_is_visible_only_after_it_was_put_in_place(
    server: PostgresServer, own: Callable[..., PostgresWriter]
) -> None:
    staged = own().stage(0, SCHEMA, divided(pieces_of(0)))
    assert server.rows(ALL) == []
    staged.commit()
    staged.clean_up()
    assert server.rows(ALL) == numbers(1)


def test_a_dropped_staged_batch_leaves_nothing_and_can_be_staged_again(
    server: PostgresServer, own: Callable[..., PostgresWriter]
) -> None:
    writer = own()
    writer.stage(0, SCHEMA, divided(pieces_of(0))).clean_up()
    assert server.rows(ALL) == []
    write(writer, 0)
    assert server.rows(ALL) == numbers(1)


def test_a_replay_writes_nothing(server: PostgresServer, own: Callable[..., PostgresWriter]) -> None:
    for start in (1, 2):
        writer = own(start)
        write(writer, 0)
        write(writer, 1)
        write(writer, 0)
    assert server.rows(ALL) == numbers(2)
    assert server.rows("SELECT task, lineage, start, batch FROM coterie_ledger") == [("my/é-2", "l", 2, 1)]


class WithoutLedger(PostgresWriter):
    """A mutant that does not check the ledger."""

    def _claim_batch(self, session: PostgresSession, batch_id: int) -> bool:
        return True


def test_without_the_ledger_a_replay_doubles_every_row(
    server: PostgresServer, own: Callable[..., PostgresWriter]
) -> None:
    """Shows that the previous test can fail."""
    for start in (1, 2):
        write(own(start, WithoutLedger), 0)
    assert len(server.rows(ALL)) == 2 * ROWS


def test_an_earlier_owner_that_resumes_is_fenced_and_a_later_one_is_not(
    server: PostgresServer, own: Callable[..., PostgresWriter]
) -> None:
    old = own(1)
    new = own(2)
    with pytest.raises(FencedError):
        write(old, 0)
    write(new, 0)
    with pytest.raises(FencedError):
        own(1)
    assert server.rows(ALL) == numbers(1)


def test_a_restart_under_the_same_number_aborts_the_open_transaction_of_the_former_query(
    server: PostgresServer, own: Callable[..., PostgresWriter]
) -> None:
    """A failed query is restarted under the same number; its last batch may still be in progress."""
    left = own(1).stage(0, SCHEMA, divided(pieces_of(0)))
    write(own(1), 0)
    with pytest.raises(UnreachableError):
        left.commit()
    assert server.rows(ALL) == numbers(1)


def test_two_concurrent_owners_put_each_batch_in_place_once(
    server: PostgresServer, keys: dict[str, str], own: Callable[..., PostgresWriter]
) -> None:
    """Repeated take-overs from a running owner, during its batches."""
    rounds, batches = 10, 5
    writer = own(1)
    for number in range(rounds):
        wanted = range(number * batches, (number + 1) * batches)
        old = threading.Thread(target=write_until_fenced, args=(writer, wanted))
        old.start()
        writer = own(number + 2)
        # The new owner replays the batch that the old one may have written.
        for batch_id in wanted:
            write(writer, batch_id)
        old.join()
    assert server.rows(ALL) == numbers(rounds * batches)


def write_until_fenced(writer: PostgresWriter, batches: Iterable[int]) -> None:
    with contextlib.suppress(FencedError, UnreachableError):
        for batch_id in batches:
            write(writer, batch_id)


# -- owners that are killed or freeze ---------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["owns", "inside", "staged", "done"])
def test_an_owner_that_is_killed_at_a_point_loses_and_doubles_nothing(
    server: PostgresServer,
    own: Callable[..., PostgresWriter],
    start_process: Callable[[int, int], OwnerProcess],
    point: str,
) -> None:
    """Before the transaction, inside COPY, before the commit, and after it but before Spark commits the batch."""
    process = start_process(1, 0)
    for word in ("owns", "inside", "staged", "done"):
        process.wait_for_word(word)
        if word == point:
            break
        process.go_on()
    assert server.rows(ALL) == (numbers(1) if point == "done" else [])
    process.process.kill()
    write(own(2), 0)
    assert server.rows(ALL) == numbers(1)


def test_an_owner_stopped_inside_copy_delays_no_other_and_doubles_nothing_when_it_continues(
    server: PostgresServer, own: Callable[..., PostgresWriter], start_process: Callable[[int, int], OwnerProcess]
) -> None:
    process = start_process(1, 0)
    process.wait_for_word("owns")
    process.go_on()
    process.wait_for_word("inside")
    os.kill(process.process.pid, signal.SIGSTOP)
    assert is_locked(server), "the owner was not stopped inside its transaction"
    new = own(2)
    assert not is_locked(server)
    write(new, 0)
    os.kill(process.process.pid, signal.SIGCONT)
    process.go_on()
    process.wait_for_word("fenced")
    write(new, 1)
    assert server.rows(ALL) == numbers(2)


# -- rows -------------------------------------------------------------------------------------------------------------


def test_upsert_keeps_the_last_row_of_each_key_over_pieces_and_batches(
    server: PostgresServer, own: Callable[..., PostgresWriter]
) -> None:
    server.run("ALTER TABLE rows ADD PRIMARY KEY (row)")
    writer = own(insert__mode="upsert", pk__mode="record_value", pk__fields="row")

    def batch(*pieces: dict[int, str]) -> list[pa.RecordBatch]:
        return [
            pa.record_batch({"row": pa.array(one.keys(), pa.int64()), "text": list(one.values())}) for one in pieces
        ]

    write(writer, 0, lambda: batch({3: "a", 1: "b"}, {3: "c"}))
    write(writer, 1, lambda: batch({1: "d", 2: "e"}, {2: "f"}))
    assert server.rows("SELECT row, text FROM rows ORDER BY row") == [(1, "d"), (2, "f"), (3, "c")]


def test_two_tasks_that_change_the_same_rows_in_opposite_orders_both_succeed(
    server: PostgresServer, keys: dict[str, str]
) -> None:
    server.run("ALTER TABLE rows ADD PRIMARY KEY (row)")
    target = target_of(keys | {"insert.mode": "upsert", "pk.mode": "record_value", "pk.fields": "row"})
    tasks = [PostgresWriter(target, replace(LINEAGE, lineage_id=name), 1) for name in ("one", "two")]
    errors: list[BaseException] = []

    def run(writer: PostgresWriter, order: list[int]) -> None:
        batch = pa.record_batch({"row": pa.array(order, pa.int64()), "text": [str(row) for row in order]})
        try:
            for batch_id in range(20):
                write(writer, batch_id, lambda: [batch])
        except WorldError as error:
            errors.append(error)

    for task in tasks:
        task.take_over()
    threads = [
        threading.Thread(target=run, args=(task, list(range(500))[::step]))
        for task, step in zip(tasks, (1, -1), strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for task in tasks:
        task.close()
    assert errors == []
    assert len(server.rows(ALL)) == 500


def test_a_batch_is_retried_as_a_whole_after_a_deadlock(
    server: PostgresServer, own: Callable[..., PostgresWriter]
) -> None:
    """A trigger deadlocks with another session, at the first attempt."""
    server.run(
        "DROP TABLE IF EXISTS one, two",
        "CREATE TABLE one (n int); CREATE TABLE two (n int)",
        "CREATE OR REPLACE FUNCTION lock_two() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN LOCK TABLE two; LOCK TABLE one; RETURN NULL; END $$",
        "CREATE TRIGGER locks AFTER INSERT ON rows EXECUTE FUNCTION lock_two()",
    )
    attempts: list[int] = []
    writer = own()
    with server.connect() as other, other.transaction():
        # The server does not end the session that waits longer.
        other.execute("SET LOCAL deadlock_timeout = '60s'")
        other.execute("LOCK TABLE one")

        def rows() -> Iterator[pa.RecordBatch]:
            attempts.append(1)
            yield piece(0, ROWS)

        thread = threading.Thread(target=write, args=(writer, 0, rows))
        thread.start()
        with server.connect() as look:
            while not look.execute("SELECT FROM pg_locks WHERE NOT granted").fetchall():
                pass
        other.execute("LOCK TABLE two")
    thread.join()
    assert len(attempts) == 2, "there was no deadlock"
    assert server.rows(ALL) == numbers(1)


def test_a_session_that_the_server_closed_between_batches_is_replaced(
    server: PostgresServer, own: Callable[..., PostgresWriter]
) -> None:
    writer = own()
    write(writer, 0)
    server.run("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name LIKE 'coterie %'")
    write(writer, 1)
    assert server.rows(ALL) == numbers(2)


def test_a_batch_waits_for_a_server_that_restarts(server: PostgresServer, own: Callable[..., PostgresWriter]) -> None:
    writer = own(max__retries="1000")
    write(writer, 0)
    tries: list[int] = []

    def rows() -> Iterator[pa.RecordBatch]:
        """The server stops inside COPY."""
        tries.append(1)
        yield piece(ROWS, ROWS // 2)
        if len(tries) == 1:
            server.stop()
            starting.start()
        yield piece(ROWS + ROWS // 2, ROWS // 2)

    starting = threading.Thread(target=server.start)
    write(writer, 1, rows)
    starting.join()
    assert len(tries) == 2
    assert server.rows(ALL) == numbers(2)


# -- refusals ---------------------------------------------------------------------------------------------------------


def stage_error(writer: PostgresWriter, batch: pa.RecordBatch, schema: StructType = SCHEMA) -> str:
    with pytest.raises(WorldError) as caught:
        writer.stage(0, schema, divided(lambda: [batch]))
    return str(caught.value)


def test_text_with_the_character_nul_is_refused_with_its_row_and_column(
    server: PostgresServer, own: Callable[..., PostgresWriter]
) -> None:
    batch = pa.record_batch({"row": pa.array([1, 2], pa.int64()), "text": ["fine", "a\0b"]})
    assert "row 1 (counted from 0): column text has the character NUL" in stage_error(own(), batch)


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("ALTER TABLE rows ADD CONSTRAINT few UNIQUE (row)", 'unique constraint "few"'),
        ("ALTER TABLE rows ADD CONSTRAINT small CHECK (row < 1)", 'check constraint "small"'),
        ("ALTER TABLE rows ALTER COLUMN text SET NOT NULL", 'null value in column "text"'),
        ("ALTER TABLE rows ALTER COLUMN text TYPE varchar(1)", "line 1, column text"),
        ("ALTER TABLE rows DROP COLUMN text", "has no column text (string)"),
        (
            "ALTER TABLE rows ALTER COLUMN row TYPE int",
            'Column row of table "rows" has type integer, and the rows have',
        ),
        ("ALTER TABLE rows ADD COLUMN more int NOT NULL", "Column more of table"),
        ("DROP TABLE rows", "set auto.create=true"),
    ],
)
def test_rows_that_do_not_fit_are_refused_with_the_constraint_or_column(
    server: PostgresServer, own: Callable[..., PostgresWriter], statement: str, words: str
) -> None:
    server.run(statement)
    batch = pa.record_batch({"row": pa.array([1, 1, 1], pa.int64()), "text": ["ab", "b", None]})
    writer = own()
    assert words in stage_error(writer, batch)
    assert not is_locked(server)


@pytest.mark.parametrize("statement", ["DROP TABLE rows", "ALTER TABLE rows DROP COLUMN text"])
def test_a_table_that_is_dropped_or_changed_between_batches_is_named(
    server: PostgresServer, own: Callable[..., PostgresWriter], statement: str
) -> None:
    writer = own()
    write(writer, 0)
    server.run(statement)
    with pytest.raises(WorldError, match=r'"rows".*The table was changed or dropped while the task ran'):
        write(writer, 1)


def test_a_server_that_has_become_a_standby_or_has_no_free_connection_is_waited_for(
    server: PostgresServer, own: Callable[..., PostgresWriter]
) -> None:
    """Its errors are those of an unreachable server: the query is started again until ``errors.retry.timeout``."""
    writer = own()
    write(writer, 0)
    end_sessions = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'coterie%'"
    server.run("ALTER DATABASE postgres SET default_transaction_read_only = on", end_sessions)
    try:
        with pytest.raises(UnreachableError, match="read-only transaction"):
            write(writer, 1)
    finally:
        server.run(
            "SET default_transaction_read_only = off", "ALTER DATABASE postgres RESET default_transaction_read_only"
        )
    for error in (psycopg.errors.TooManyConnections, psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled):
        assert isinstance(writer._flag_changed_tables_and_make_error(error("no"), "a commit"), UnreachableError)


def test_a_ledger_row_that_was_removed_stops_the_task(
    server: PostgresServer, own: Callable[..., PostgresWriter]
) -> None:
    writer = own()
    write(writer, 0)
    server.run("DELETE FROM coterie_ledger")
    with pytest.raises(WorldError, match="it is unknown whether the table already has the rows of batch 1"):
        write(writer, 1)


def test_upsert_without_a_unique_constraint_is_refused(own: Callable[..., PostgresWriter]) -> None:
    writer = own(insert__mode="upsert", pk__mode="record_value", pk__fields="row")
    assert "no primary key or unique constraint on (row)" in stage_error(writer, piece(0, 2))


def test_a_null_in_a_key_column_is_refused_with_its_row(
    server: PostgresServer, own: Callable[..., PostgresWriter]
) -> None:
    server.run("ALTER TABLE rows ADD PRIMARY KEY (row)")
    writer = own(insert__mode="upsert", pk__mode="record_value", pk__fields="row")
    batch = pa.record_batch({"row": pa.array([1, None], pa.int64()), "text": ["a", "b"]})
    assert "row 1 (counted from 0): column row is null" in stage_error(writer, batch)


def test_an_unreachable_server_is_named_with_its_database_and_without_the_password(
    own: Callable[..., PostgresWriter],
) -> None:
    port = free_port()
    with pytest.raises(UnreachableError) as caught:
        own(connection__url=f"postgresql://127.0.0.1:{port}/sales")
    assert f"PostgreSQL at 127.0.0.1:{port}, database sales cannot be reached" in str(caught.value)
    assert PASSWORD not in str(caught.value)


def test_the_repr_of_a_target_contains_no_password(keys: dict[str, str]) -> None:
    assert PASSWORD not in repr(target_of(keys))


def test_the_error_for_a_wrong_password_does_not_contain_it(own: Callable[..., PostgresWriter]) -> None:
    with pytest.raises(UnreachableError, match="password authentication failed") as caught:
        own(connection__password="another-s3cret")
    assert "another-s3cret" not in str(caught.value)


def test_a_batch_fails_if_the_server_does_not_respond_in_time(
    server: PostgresServer, own: Callable[..., PostgresWriter], keys: dict[str, str]
) -> None:
    """The server's process is frozen during a batch: no time limit of the server itself applies."""
    writer = own(statement__timeout__ms="1000", max__retries="0")
    write(writer, 0)
    [(pid,)] = server.rows("SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'coterie %'")
    assert isinstance(pid, int)
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(UnreachableError, match="the server did not answer within 6 s"):
            write(writer, 1)
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_close_from_another_thread_ends_a_wait_for_the_server(
    server: PostgresServer, own: Callable[..., PostgresWriter]
) -> None:
    writer = own()
    caught: list[Any] = []

    def stage() -> StagedTransaction | None:
        try:
            return writer.stage(0, SCHEMA, divided(pieces_of(0)))
        except FencedError as error:
            caught.append(error)
            return None

    with server.connect() as other, other.transaction():
        other.execute("LOCK TABLE rows")
        thread = threading.Thread(target=stage)
        thread.start()
        with server.connect() as look:
            while not look.execute("SELECT FROM pg_locks WHERE NOT granted").fetchall():
                pass
        writer.close()
        thread.join(5)
        assert not thread.is_alive()
    assert len(caught) == 1
