"""``PostgresWriter``: writes the batches of one start of a task to PostgreSQL.

Theory of operation. The table ``coterie_ledger`` is in the schema of the table that is written. It has one row for each
task and lineage: the number of the last start that has taken over, and the last batch that is in the table. A batch is
one transaction::

    UPDATE coterie_ledger SET batch = N WHERE task, lineage AND start = S AND batch < N
    COPY … the good rows
    COPY … the bad rows, where the config names a table for them
    COMMIT

The first statement determines whether the batch is written. It locks the row, so that another owner of the same task
waits until this transaction has ended, and then updates nothing: the table has the batch, or a later start has taken
over. Because batch numbers of a lineage only grow, the ledger needs no row for each batch.

A process that is suspended or frozen inside COPY keeps the lock without limit: the server waits for its rows and has no
time limit for this. So a take-over ends the sessions of earlier starts, which it finds by their ``application_name``,
and then raises ``start`` in the ledger. A session of an earlier start that connects afterwards updates nothing and
fails with FencedError.
"""

import hashlib
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from typing import Any, TypeVar

import psycopg
import pyarrow as pa
from psycopg import errors
from psycopg.conninfo import make_conninfo
from pyspark.sql.types import StructType

from coterie.nouns.errors import UnreachableError, WorldError
from coterie.spark.bad_records.dead_letters import DEAD_LETTER_SCHEMA, dead_letter_arrow_batch_for_table
from coterie.spark.bad_records.separator import SeparatedRows
from coterie.spark.fence import FencedError
from coterie.spark.seams import TaskCheckpointLineage
from coterie.spark.sinks.postgres_columns import DELETED_COLUMN
from coterie.spark.sinks.postgres_tables import (
    TableColumn,
    check_key_columns_exist,
    check_rows_fit,
    create_table_statement,
    find_first_row_with_nul_character,
    find_first_row_with_null,
    quote_name,
    to_csv_for_copy,
)
from coterie.spark.sinks.postgres_target import PostgresTarget

_TEMPORARY_ERROR_CODES = (
    "08",  # the connection
    "25006",  # a read-only transaction: the server became a standby
    "53",  # insufficient resources: too many connections, disk full
    "55P03",  # a lock was not available
    "57014",  # the statement was cancelled: statement_timeout, or a long lock
    "57P05",  # the idle session was ended
)
"""PostgreSQL's error codes, or their classes, of states of the server that end without a change of the connector."""

T = TypeVar("T")

LEDGER_TABLE = "coterie_ledger"
"""Name of the ledger table. It has one row for each task and lineage, with the last start that has taken over and the
last committed batch."""
POSTGRES_VERSION_MIN = 14
"""The oldest supported version of PostgreSQL: from this version on ``pg_terminate_backend`` waits for the end of a
session."""
SERVER_ERROR_GRACE_S = 5
"""How long the client waits for the server's error message after the time limit of a statement on the server, in
seconds."""
EARLIER_SESSIONS_END_TIMEOUT_S = 45
"""How long a take-over waits until the sessions of earlier starts have ended, in seconds. Less than the default of
``plugin.call.timeout.ms``, so that the task is retried and does not fail."""
TERMINATE_WAIT_S = 0.9
"""How long one statement of a take-over waits for the end of a session, in seconds; shorter than any
``statement.timeout.ms``."""
POSITION_COLUMN = "coterie_position"
"""Column of :data:`UPSERT_TABLE` with the number of the row in its batch: of the rows with one key, the last one
counts."""
UPSERT_TABLE = "pg_temp.coterie_upsert"
"""The temporary table of a session into which the rows of one upsert are copied; the server empties it at each
commit."""

_CREATE_TABLE_LOCK_KEY = 0x636F7465726965
"""Key of an advisory lock of PostgreSQL that a task holds while it creates a table: without the lock, one of two tasks
that create the same table at once would fail."""

_COLUMNS_QUERY = """
SELECT a.attname,
       CASE WHEN b.typtype = 'e' THEN 'enum' ELSE b.typname END,
       format_type(a.atttypid, a.atttypmod),
       a.attnotnull AND NOT a.atthasdef AND a.attidentity = ''
FROM pg_attribute a
JOIN pg_type t ON t.oid = a.atttypid
JOIN pg_type b ON b.oid = coalesce(nullif(t.typbasetype, 0), t.oid)
WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""
"""A query: the columns of a table (the parameter: its quoted name), each with the fields of :class:`TableColumn`."""
_SCHEMA_OF_TABLE_QUERY = """
SELECT coalesce((SELECT c.relnamespace::regnamespace::text FROM pg_class c WHERE c.oid = to_regclass(%s)),
                quote_ident(current_schema()))
"""
"""A query: the quoted name of the schema in which the server finds a table, else of the one in which it would create
the table."""


class PostgresSession(psycopg.Connection[tuple[Any, ...]]):
    """A connection on which no wait for the server is longer than :attr:`wait_limit_s`. Another thread ends a wait
    earlier by setting :attr:`must_end_wait` to True."""

    wait_limit_s: float = 0
    """The longest wait for the server, in seconds, counted from the start of each wait."""
    must_end_wait: bool = False
    """Set to True by another thread to end a wait: the wait then raises within 0.1 s and closes the connection."""

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        """Wait for the server, with a time limit. psycopg calls this override of its method with a generator ``gen``
        that yields at each wait on the connection.

        :raises psycopg.OperationalError: when the server does not respond within :attr:`wait_limit_s`, or another
            thread has set :attr:`must_end_wait`. The connection is then closed.
        """
        return super().wait(self._with_time_limit(gen), *args, **kwargs)

    def _with_time_limit(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        """A generator that yields and returns what ``gen``, a wait of psycopg, yields and returns; but it closes the
        connection and raises the error of :meth:`wait` when the time limit is over or :attr:`must_end_wait` is set."""
        deadline_s = time.monotonic() + self.wait_limit_s
        try:
            state = next(gen)
            while True:
                is_ready = yield state
                # Without a response, psycopg continues this generator ten times a second.
                if not is_ready and (self.must_end_wait or time.monotonic() > deadline_s):
                    self.close()
                    raise psycopg.OperationalError(
                        "this worker has ended the wait for the server"
                        if self.must_end_wait
                        else f"the server did not answer within {self.wait_limit_s:.0f} s"
                    )
                state = gen.send(is_ready)
        except StopIteration as stop:
            result: T = stop.value
            return result


def connect(target: PostgresTarget, application_name: str) -> PostgresSession:
    """A new session, in which no transaction is open. ``application_name`` is its name on the server.

    :raises UnreachableError: when the server cannot be reached or rejects the connection; the message names host and
        database.
    """
    statement_timeout_ms = target.statement_timeout_ms
    settings = {
        "statement_timeout": statement_timeout_ms,
        "lock_timeout": statement_timeout_ms,
        "timezone": "UTC",
        "datestyle": "ISO",
    }
    try:
        session = PostgresSession.connect(
            make_conninfo("", **target.ssl_parameters),
            host=target.host,
            port=target.port,
            dbname=target.database,
            user=target.user,
            password=None if target.password is None else target.password.text,
            application_name=application_name,
            client_encoding="UTF8",
            connect_timeout=max(1, target.connection_timeout_ms // 1000),
            tcp_user_timeout=target.connection_timeout_ms,
            options=" ".join(f"-c {name}={value}" for name, value in settings.items()),
        )
    except psycopg.Error as error:
        raise UnreachableError(
            f"{target.server_description} cannot be reached: {postgres_error_message(error)}"
        ) from error
    session.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    session.wait_limit_s = statement_timeout_ms / 1000 + SERVER_ERROR_GRACE_S
    return session


class PostgresWriter:
    """Writes the batches of one start of one task. Batches come one after another; :meth:`close` may come from any
    thread."""

    def __init__(self, target: PostgresTarget, lineage: TaskCheckpointLineage, task_start_number: int) -> None:
        self._target = target
        self._lineage = lineage
        self._start_number = task_start_number
        self._ledger_row_key = (str(lineage.task), lineage.lineage_id)
        """Task and lineage: the key of the row in the ledger."""
        row_key_hash = hashlib.sha256(repr(self._ledger_row_key).encode()).hexdigest()[:24]
        self._session_name_prefix = f"coterie {row_key_hash} "
        """The beginning of the names of all sessions of this task and lineage on the server."""
        self._table = quote_name(target.schema, target.table)
        dead_letter_table = target.dead_letter_table
        self._dead_letter_table = (
            None
            if dead_letter_table is None
            else quote_name(dead_letter_table.schema or target.schema, dead_letter_table.table)
        )
        self._ledger = ""
        """The ledger's quoted name with its schema; set by :meth:`take_over`."""
        self._tables_are_checked = False
        """Whether the tables exist and were found to have the columns of the rows."""
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._idle_session: PostgresSession | None = None
        """The session for the next batch; None when it has to be connected."""
        self._used_session: PostgresSession | None = None
        """The session of the open transaction; None when there is none."""

    # -- the take-over ------------------------------------------------------------------------------------------------

    def take_over(self) -> None:
        """End the sessions of earlier starts, and other sessions of this start, and store this start in the ledger, so
        that earlier starts cannot write. Creates a missing ledger.

        :raises FencedError: when a later start has taken over, or this writer is closed.
        :raises UnreachableError: when the server cannot be reached or does not respond in time.
        :raises WorldError: when sessions have not ended within :data:`EARLIER_SESSIONS_END_TIMEOUT_S`, or the server
            reports another error.
        """
        session = self._borrow_session()
        try:
            self._ledger = create_missing_ledger_and_return_name(session, self._target)
            deadline_s = time.monotonic() + EARLIER_SESSIONS_END_TIMEOUT_S
            while not self._try_take_over_or_raise_fenced(session):
                self._try_end_earlier_or_leftover_sessions(session, deadline_s)
        except psycopg.Error as error:
            raise self._flag_changed_tables_and_make_error(
                error, "the take-over of task " + self._ledger_row_key[0]
            ) from error
        finally:
            self._roll_back_and_give_back_session(session)

    def _try_take_over_or_raise_fenced(self, session: PostgresSession) -> bool:
        """Try to store this start in the ledger. True when it is stored and no session of
        :meth:`_list_sessions_to_end` is left. False when such a session exists, before or after the start was
        stored, or when the lock of the ledger's row was not available within 1 s.

        :raises FencedError: when a later start has taken over.
        """
        if self._list_sessions_to_end(session):
            return False
        statement = (
            f"INSERT INTO {self._ledger} AS l (task, lineage, start, batch) VALUES (%s, %s, %s, -1) "
            "ON CONFLICT (task, lineage) DO UPDATE SET start = excluded.start WHERE l.start <= excluded.start"
        )
        try:
            # An earlier start that has connected just now may hold the row.
            session.execute("SET LOCAL lock_timeout = '1s'")
            if session.execute(statement.encode(), (*self._ledger_row_key, self._start_number)).rowcount == 0:
                raise FencedError
            session.commit()
        except errors.LockNotAvailable:
            session.rollback()
            return False
        return not self._list_sessions_to_end(session)

    def _list_sessions_to_end(self, session: PostgresSession) -> list[tuple[int, str]]:
        """The other sessions of this task and lineage on the server, except those of later starts: of each, the process
        id on the server and the application name. Other sessions of this start count, too."""
        statement = (
            "SELECT pid, application_name FROM pg_stat_activity "
            "WHERE starts_with(application_name, %s) AND pid <> pg_backend_pid()"
        )
        sessions = session.execute(statement, (self._session_name_prefix,)).fetchall()
        session.commit()
        return [(pid, name) for pid, name in sessions if int(name.split()[2]) <= self._start_number]

    def _try_end_earlier_or_leftover_sessions(self, session: PostgresSession, deadline_s: float) -> None:
        """Order the server once to end each session of :meth:`_list_sessions_to_end` (those of earlier starts, and
        other sessions of this start), and wait for at most :data:`TERMINATE_WAIT_S` for each. Sessions may be left
        afterwards: the caller checks this, and calls this method again.

        :raises WorldError: when ``deadline_s``, a value of time.monotonic(), has passed before this call. No session is
            ended then; the message names the sessions that are left.
        """
        sessions = self._list_sessions_to_end(session)
        if (remaining_s := deadline_s - time.monotonic()) <= 0:
            pids = ", ".join(str(pid) for pid, _ in sessions)
            raise WorldError(
                f"{self._target.server_description}: sessions of earlier starts of task {self._ledger_row_key[0]} have "
                f"not ended within {EARLIER_SESSIONS_END_TIMEOUT_S} s (their processes on the server: "
                f"{pids or 'unknown'}); end them by pg_terminate_backend"
            )
        for pid, name in sessions:
            session.execute(
                "SELECT pg_terminate_backend(pid, %s) FROM pg_stat_activity WHERE pid = %s AND application_name = %s",
                (round(min(remaining_s, TERMINATE_WAIT_S) * 1000), pid, name),
            )
            session.commit()

    # -- a batch ------------------------------------------------------------------------------------------------------

    def stage(self, batch_id: int, schema: StructType, separate: Callable[[], SeparatedRows]) -> "StagedTransaction":
        """Write the batch in a transaction and leave the transaction open. Each call of ``separate`` evaluates the
        rows. Nothing is written when the table has the batch. The first call also checks that the rows fit into the
        tables, and creates missing tables if the config allows this.

        The whole transaction is retried, at most ``max_retries`` times, when the server rolled it back because of
        another transaction, or when the server could not be reached or the connection broke: it was not committed.

        :raises FencedError: when another start has taken over, or this writer was closed.
        :raises UnreachableError: when the server could not be reached at the last attempt either.
        :raises WorldError: when the rows do not fit into the table or the server rejects them, or another transaction
            was the cause at the last attempt too.
        :raises PySparkException, Py4JError: when Spark cannot compute the rows.
        """
        for attempt in range(self._target.max_retries + 1):
            is_last = attempt == self._target.max_retries
            try:
                return self._stage_once(batch_id, schema, separate)
            except UnreachableError:
                if is_last:
                    raise
                # The server may have ended only the idle session and be reachable: the first retry is at once.
                if attempt > 0:
                    self._closed.wait(self._target.retry_backoff_ms / 1000)
            except _RolledBackByConflictError as error:
                if is_last:
                    raise WorldError(
                        f"{error}. The batch was tried {attempt + 1} times: find the other writer of these rows, or "
                        "raise max.retries"
                    ) from error
        raise AssertionError("a batch was not tried at all: max.retries is negative, which is a bug in Coterie")

    def _stage_once(
        self, batch_id: int, schema: StructType, separate: Callable[[], SeparatedRows]
    ) -> "StagedTransaction":
        """Try once to write the batch in a transaction that stays open: one attempt of :meth:`stage`, with its errors.

        :raises _RolledBackByConflictError: when the server rolled the transaction back because of another transaction.
        """
        session = self._borrow_session()
        try:
            if not self._tables_are_checked:
                self._check_or_create_tables(
                    session, StructType([field for field in schema.fields if field.name != DELETED_COLUMN])
                )
                self._tables_are_checked = True
            if is_new := self._claim_batch(session, batch_id):
                columns = [name for name in schema.names if name != DELETED_COLUMN]
                with closing(separate()) as separated_rows:
                    self._write_good_and_bad_rows(session, batch_id, columns, separated_rows)
        except BaseException as error:
            self._roll_back_and_give_back_session(session)
            if isinstance(error, psycopg.Error):
                raise self._flag_changed_tables_and_make_error(
                    error, f"the writing of batch {batch_id} of task {self._ledger_row_key[0]}"
                ) from error
            raise
        return StagedTransaction(self, session, batch_id, is_new=is_new)

    def _claim_batch(self, session: PostgresSession, batch_id: int) -> bool:
        """Store ``batch_id`` in the ledger's row of this task and lineage, and lock the row until the transaction ends.
        Returns True; or False, without a change, when the table has the batch already.

        :raises FencedError: when another start has taken over.
        :raises WorldError: when the row was removed.
        """
        statement = (
            f"UPDATE {self._ledger} SET batch = %s, written = now() "
            "WHERE task = %s AND lineage = %s AND start = %s AND batch < %s"
        )
        parameters = (batch_id, *self._ledger_row_key, self._start_number, batch_id)
        if session.execute(statement.encode(), parameters).rowcount == 1:
            return True
        statement = f"SELECT start, batch FROM {self._ledger} WHERE task = %s AND lineage = %s"
        ledger_row = session.execute(statement.encode(), self._ledger_row_key).fetchone()
        if ledger_row is None:
            raise WorldError(
                f"{self._target.server_description}: the row of task {self._ledger_row_key[0]} and lineage "
                f"{self._ledger_row_key[1]} was removed from {self._ledger}, so it is unknown whether the table "
                f"already has the rows of batch {batch_id}. The task has failed, and its next start writes this batch "
                "again: before you restart the task, delete the newest rows of the table if they are from this batch"
            )
        if ledger_row[0] != self._start_number:
            raise FencedError
        return False

    def _write_good_and_bad_rows(
        self, session: PostgresSession, batch_id: int, column_names: Sequence[str], separated_rows: SeparatedRows
    ) -> None:
        """Append the good rows, or upsert and delete them by key; then, if the config names a table for them, write the
        bad rows. ``column_names``: the columns of the table."""
        # Spark may compute the rows for longer than one statement may take; each wait for the server is limited.
        session.execute("SET LOCAL statement_timeout = 0")
        self._append_or_upsert_good_rows(session, batch_id, column_names, separated_rows.read_good_rows())
        if self._dead_letter_table is not None and separated_rows.bad_row_summary_so_far.count:
            columns = ", ".join(quote_name(name) for name in DEAD_LETTER_SCHEMA.names)
            with session.cursor() as cursor:
                statement = f"COPY {self._dead_letter_table} ({columns}) FROM STDIN (FORMAT csv)"
                with cursor.copy(statement.encode()) as copy:
                    for arrow_batch in separated_rows.read_bad_rows():
                        copy.write(to_csv_for_copy(dead_letter_arrow_batch_for_table(arrow_batch, self._lineage.task)))

    def _append_or_upsert_good_rows(
        self,
        session: PostgresSession,
        batch_id: int,
        column_names: Sequence[str],
        arrow_batches: Iterable[pa.RecordBatch],
    ) -> None:
        """Append the rows to the table. For an upsert, copy them to :data:`UPSERT_TABLE`, and then write or delete the
        last row of each key."""
        columns = ", ".join(quote_name(name) for name in column_names)
        if not self._target.is_upsert:
            self._copy_into(session, batch_id, f"{self._table} ({columns})", arrow_batches)
            return
        has_deletes = self._target.deletes_on_tombstones
        session.execute(
            f"CREATE TEMPORARY TABLE IF NOT EXISTS {UPSERT_TABLE.removeprefix('pg_temp.')} ON COMMIT DELETE ROWS AS "
            f"SELECT {columns}, false AS {DELETED_COLUMN}, 0::bigint AS {POSITION_COLUMN} FROM {self._table} WITH "
            "NO DATA".encode()
        )
        self._copy_into(
            session,
            batch_id,
            f"{UPSERT_TABLE} ({columns}, {f'{DELETED_COLUMN}, ' if has_deletes else ''}{POSITION_COLUMN})",
            arrow_batches,
        )
        keys = ", ".join(quote_name(name) for name in self._target.primary_key_columns)
        assignments = ", ".join(
            f"{quote_name(name)} = excluded.{quote_name(name)}"
            for name in column_names
            if name not in self._target.primary_key_columns
        )
        session.execute(f"SET LOCAL statement_timeout = {self._target.statement_timeout_ms}".encode())
        last_rows_query = f"SELECT DISTINCT ON ({keys}) * FROM {UPSERT_TABLE} ORDER BY {keys}, {POSITION_COLUMN} DESC"
        if has_deletes:
            keys_are_equal = " AND ".join(
                f"t.{quote_name(name)} = l.{quote_name(name)}" for name in self._target.primary_key_columns
            )
            session.execute(
                f"DELETE FROM {self._table} t USING ({last_rows_query}) l WHERE l.{DELETED_COLUMN} AND "
                f"{keys_are_equal}".encode()
            )
        # Sorted by key, so that two tasks lock the rows that both change in one order.
        session.execute(
            f"INSERT INTO {self._table} ({columns}) SELECT {columns} FROM ({last_rows_query}) l "
            f"{f'WHERE NOT {DELETED_COLUMN} ' if has_deletes else ''}ORDER BY {keys} "
            f"ON CONFLICT ({keys}) DO {f'UPDATE SET {assignments}' if assignments else 'NOTHING'}".encode()
        )

    def _copy_into(
        self, session: PostgresSession, batch_id: int, target_sql: str, arrow_batches: Iterable[pa.RecordBatch]
    ) -> None:
        """Write the rows by COPY to ``target_sql``: a table with its columns, as SQL. For an upsert, the row's position
        in the batch is appended to each row as its last column.

        :raises WorldError: when a key is null, or a text contains the character NUL or is not UTF-8.
        """
        rows_written = 0
        with session.cursor() as cursor, cursor.copy(f"COPY {target_sql} FROM STDIN (FORMAT csv)".encode()) as copy:
            for arrow_batch in arrow_batches:
                if row_and_column := find_first_row_with_null(arrow_batch, self._target.primary_key_columns):
                    raise self._make_row_error(
                        batch_id, rows_written, row_and_column, "is null, and the column is in pk.fields"
                    )
                csv_lines = to_csv_for_copy(arrow_batch, rows_written if self._target.is_upsert else None)
                # A byte 0 in the lines can only be this character in text: bytea is written as hexadecimal digits.
                if b"\0" in csv_lines and (row_and_column := find_first_row_with_nul_character(arrow_batch)):
                    raise self._make_row_error(
                        batch_id, rows_written, row_and_column, "has the character NUL, which PostgreSQL cannot store"
                    )
                copy.write(csv_lines)
                rows_written += arrow_batch.num_rows

    def _make_row_error(
        self, batch_id: int, rows_before: int, row_and_column: tuple[int, str], reason: str
    ) -> WorldError:
        """The error for a row of the batch. ``row_and_column``: the row's number in its Arrow record batch, and the
        column. ``rows_before``: the number of rows in the record batches before."""
        row, column = row_and_column
        return WorldError(
            f"{self._target.server_description}: batch {batch_id} of task {self._ledger_row_key[0]}, row "
            f"{rows_before + row} (counted from 0): column {column} {reason}"
        )

    # -- the table ----------------------------------------------------------------------------------------------------

    def _check_or_create_tables(self, session: PostgresSession, schema: StructType) -> None:
        """Create missing tables (that of good rows only with auto.create=true), and check that the good rows fit into
        their table and the dead letters into theirs. ``schema``: that of the good rows.

        :raises WorldError: when a table is missing and must not be created, or the rows do not fit.
        """
        target = self._target
        check_key_columns_exist(schema, target.primary_key_columns)
        self._check_or_create_table(
            session, self._table, schema, target.primary_key_columns, may_create=target.creates_missing_table
        )
        if self._dead_letter_table is not None:
            self._check_or_create_table(session, self._dead_letter_table, DEAD_LETTER_SCHEMA, (), may_create=True)

    def _check_or_create_table(
        self,
        session: PostgresSession,
        table: str,
        schema: StructType,
        primary_key_columns: Sequence[str],
        *,
        may_create: bool,
    ) -> None:
        """Check that rows of ``schema`` fit into ``table`` (a quoted name). If the table is missing and ``may_create``,
        create it with ``primary_key_columns`` as its primary key.

        :raises WorldError: when the table is missing and must not be created, or the rows do not fit.
        """
        if not (columns := read_columns_if_table_exists(session, table)):
            if not may_create:
                raise WorldError(
                    f"{self._target.server_description} has no table {table}; create it, or set auto.create=true"
                )
            session.execute("SELECT pg_advisory_xact_lock(%s)", (_CREATE_TABLE_LOCK_KEY,))
            if not read_columns_if_table_exists(session, table):
                session.execute(create_table_statement(table, schema, primary_key_columns).encode())
            session.commit()
            columns = read_columns_if_table_exists(session, table)
        check_rows_fit(table, columns, schema)
        session.commit()

    # -- sessions -----------------------------------------------------------------------------------------------------

    def _borrow_session(self) -> PostgresSession:
        """The idle session, or a new one. The caller must return it by :meth:`_roll_back_and_give_back_session`.

        :raises FencedError: when this writer is closed.
        :raises UnreachableError: when the server cannot be reached.
        """
        with self._lock:
            session, self._idle_session = self._idle_session, None
        if session is None or session.closed:
            session = connect(self._target, self._application_name)
        with self._lock:
            if not self._closed.is_set():
                self._used_session = session
                return session
        session.close()
        raise FencedError

    @property
    def _application_name(self) -> str:
        """The name of this start's sessions on the server: it identifies task and lineage, and contains the start
        number."""
        readable = str(self._lineage.task).encode("ascii", "replace").decode()
        return f"{self._session_name_prefix}{self._start_number} {readable}"[:63]

    def _roll_back_and_give_back_session(self, session: PostgresSession) -> None:
        """Roll back an open transaction. Keep the session for the next batch, unless its connection is broken or this
        writer is closed."""
        try:
            session.rollback()
        except psycopg.Error:
            session.close()
        with self._lock:
            self._used_session = None
            if not self._closed.is_set() and not session.closed:
                self._idle_session = session
                return
        session.close()

    def close(self) -> None:
        """End the idle session. A wait of this writer on another thread ends with an error within 0.1 s; the session of
        that wait ends when its transaction was rolled back. Every later call that needs a session raises
        FencedError."""
        with self._lock:
            self._closed.set()
            session, self._idle_session = self._idle_session, None
            if self._used_session is not None:
                self._used_session.must_end_wait = True
        if session is not None:
            session.close()

    def end_transaction(self, session: PostgresSession, batch_id: int, *, commit: bool) -> None:
        """Commit the transaction of ``session``, or with ``commit=False`` roll it back. The session is then kept for
        the next batch, unless its connection is broken or this writer is closed.

        :raises FencedError: when the commit failed and this writer is closed.
        :raises WorldError: when the server rejected the commit, or the connection broke. The next start reads from the
            ledger whether the batch was committed.
        """
        try:
            if commit:
                session.commit()
        except psycopg.Error as error:
            raise self._flag_changed_tables_and_make_error(
                error, f"the commit of batch {batch_id} of task {self._ledger_row_key[0]}"
            ) from error
        finally:
            self._roll_back_and_give_back_session(session)

    def _flag_changed_tables_and_make_error(self, error: psycopg.Error, operation: str) -> Exception:
        """The task's error for ``error``, which was raised during ``operation``; FencedError when this writer is
        closed. After an error about a changed table, the next batch checks the tables again."""
        if self._closed.is_set():
            return FencedError()
        message = f"{self._target.server_description}: {operation} failed: {postgres_error_message(error)}"
        match error:
            case errors.DeadlockDetected() | errors.SerializationFailure():
                return _RolledBackByConflictError(message)
            case errors.InvalidColumnReference() if self._target.is_upsert:
                keys = ", ".join(self._target.primary_key_columns)
                return WorldError(
                    f"{self._target.server_description}: table {self._table} has no primary key or unique constraint "
                    f"on ({keys}), the columns in pk.fields; insert.mode=upsert needs one"
                )
            case errors.UndefinedTable() | errors.UndefinedColumn() | errors.DatatypeMismatch():
                self._tables_are_checked = False
                return WorldError(
                    f"{message}. The table was changed or dropped while the task ran: restart the task when the "
                    "table fits the rows"
                )
            case errors.AdminShutdown() | errors.CrashShutdown() | errors.CannotConnectNow():
                return UnreachableError(message)
            case psycopg.OperationalError() if error.sqlstate is None:
                return UnreachableError(message)
            case _ if (error.sqlstate or "").startswith(_TEMPORARY_ERROR_CODES):
                return UnreachableError(message)
            case _:
                return WorldError(message)


class _RolledBackByConflictError(WorldError):
    """The server rolled the transaction back because of another transaction: a deadlock or a conflict."""


class StagedTransaction:
    """A batch that was written in a transaction that is still open. If the table has the batch already, the transaction
    contains nothing."""

    def __init__(self, writer: PostgresWriter, session: PostgresSession, batch_id: int, *, is_new: bool) -> None:
        """``is_new``: whether the table does not have the batch, so that there is something to commit."""
        self._writer = writer
        self._session: PostgresSession | None = session
        self._batch_id = batch_id
        self._is_new = is_new

    def commit(self) -> None:
        """Commit the transaction. If the table has the batch already, roll it back: it contains nothing.

        :raises FencedError, WorldError: see :meth:`PostgresWriter.end_transaction`.
        """
        self._commit_or_roll_back_once(commit=self._is_new)

    def clean_up(self) -> None:
        """Roll back the transaction, unless :meth:`commit` was called."""
        self._commit_or_roll_back_once(commit=False)

    def _commit_or_roll_back_once(self, *, commit: bool) -> None:
        """Commit or roll back the transaction, if neither was done before."""
        session, self._session = self._session, None
        if session is not None:
            self._writer.end_transaction(session, self._batch_id, commit=commit)


def read_columns_if_table_exists(session: PostgresSession, table: str) -> list[TableColumn]:
    """The columns of ``table`` (a quoted name) in their order; empty when there is no such table."""
    return [
        TableColumn(name=name, type=type_, display_type=display_type, is_value_required=is_value_required)
        for name, type_, display_type, is_value_required in session.execute(_COLUMNS_QUERY, (table,)).fetchall()
    ]


def find_quoted_target_schema(session: PostgresSession, target: PostgresTarget) -> str:
    """The quoted name of the schema of the target's table: the configured one, if there is one, without a question to
    the server; otherwise the one in which the server finds the table, or would create it if there is no such table.

    :raises WorldError: when no schema is configured, and the user's search path has none.
    """
    schema: str | None = None if target.schema is None else quote_name(target.schema)
    if schema is None:
        row = session.execute(_SCHEMA_OF_TABLE_QUERY, (quote_name(target.table),)).fetchone()
        schema = row[0] if row else None
    if schema is None:
        raise WorldError(
            f"{target.server_description}: the user's search path has no schema; set table.name.format to schema.table"
        )
    return schema


def create_missing_ledger_and_return_name(session: PostgresSession, target: PostgresTarget) -> str:
    """Create the ledger table in the schema of the target's table, if it is missing, and return its quoted name with
    the schema. Ends the transaction of ``session``.

    :raises WorldError: when the user's search path has no schema.
    """
    ledger = f"{find_quoted_target_schema(session, target)}.{LEDGER_TABLE}"
    if not read_columns_if_table_exists(session, ledger):
        session.execute("SELECT pg_advisory_xact_lock(%s)", (_CREATE_TABLE_LOCK_KEY,))
        session.execute(
            f"CREATE TABLE IF NOT EXISTS {ledger} (task text, lineage text, start bigint NOT NULL, "
            "batch bigint NOT NULL, written timestamptz NOT NULL DEFAULT now(), "
            "PRIMARY KEY (task, lineage)) WITH (fillfactor = 50)".encode()
        )
    session.commit()
    return ledger


def postgres_error_message(error: psycopg.Error) -> str:
    """The server's primary message; after an error in COPY also its context, with the line and the column. If the error
    has no message of the server, the first line of the error's text."""
    message = error.diag.message_primary
    if message is None:
        lines = str(error).strip().splitlines()
        message = lines[0] if lines else type(error).__name__
    context = (error.diag.context or "").split(":")[0]
    return f"{message} ({context})" if context.startswith("COPY") else message
