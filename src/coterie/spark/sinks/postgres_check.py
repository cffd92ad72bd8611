"""Validates a config of the PostgreSQL sink against the server."""

from collections.abc import Set
from dataclasses import replace

import psycopg

from coterie.nouns.errors import UnreachableError, WorldError
from coterie.spark.bad_records.keys import DEAD_LETTER_TABLE_KEY, DeadLetterTable
from coterie.spark.prefixed_config import PrefixedConfig
from coterie.spark.sinks.postgres_tables import quote_name
from coterie.spark.sinks.postgres_target import PostgresTarget
from coterie.spark.sinks.postgres_writer import (
    LEDGER_TABLE,
    POSTGRES_VERSION_MIN,
    PostgresSession,
    connect,
    find_quoted_target_schema,
    postgres_error_message,
    read_columns_if_table_exists,
)

VALIDATION_TIMEOUT_MS = 5000
"""How long the server may take for the connection, and for each query, in ms; the config's own time limits apply if
they are shorter."""

_HAS_UNIQUE_INDEX_QUERY = """
SELECT EXISTS (
    SELECT FROM pg_index i
    WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indpred IS NULL AND i.indexprs IS NULL
      AND (SELECT array_agg(a.attname::text ORDER BY a.attname::text) FROM pg_attribute a
           WHERE a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1])) = %s::text[])
"""
"""A query: whether a table (the first parameter) has a unique index for all its rows on exactly these columns (the
second parameter: their sorted names)."""


def find_first_server_error(config: PrefixedConfig) -> dict[str, list[str]]:
    """The first error found that only the server can detect, as a message by the user's key, for a config whose values
    are valid; empty when none was found. Changes nothing on the server."""
    target = PostgresTarget.of(config)
    short_timeout_target = replace(
        target,
        connection_timeout_ms=min(VALIDATION_TIMEOUT_MS, target.connection_timeout_ms),
        statement_timeout_ms=min(VALIDATION_TIMEOUT_MS, target.statement_timeout_ms),
    )
    try:
        with connect(short_timeout_target, "coterie validate") as session:
            return _find_first_server_or_table_error(session, target, config)
    except UnreachableError as error:
        return config.error_by_key("connection.url", str(error))
    except WorldError as error:  # The search path is empty: the name of the table can contain the schema.
        return config.error_by_key("table.name.format", str(error))
    except psycopg.Error as error:
        return config.error_by_key(
            "connection.url", f"{target.server_description} failed: {postgres_error_message(error)}"
        )


def _find_first_server_or_table_error(
    session: PostgresSession, target: PostgresTarget, config: PrefixedConfig
) -> dict[str, list[str]]:
    """The first error found, as a message by the user's key: about the server's version, the schema, the tables, the
    user's rights or the key columns. Empty when none was found. Types of columns are not checked.

    :raises WorldError: when the user's search path has no schema.
    """
    version = session.info.server_version // 10_000
    if version < POSTGRES_VERSION_MIN:
        message = (
            f"{target.server_description} has version {version}; the sink needs PostgreSQL {POSTGRES_VERSION_MIN} or "
            "newer"
        )
        return config.error_by_key("connection.url", message)
    schema = target.schema
    if schema is not None and not _query_is_true(session, "SELECT to_regnamespace(%s) IS NOT NULL", quote_name(schema)):
        return config.error_by_key(
            "table.name.format", f"{target.server_description} has no schema {schema}; create it"
        )
    if errors := _find_first_ledger_right_error(session, target, config):
        return errors
    if target.dead_letter_table is not None and (
        errors := _find_first_dead_letter_table_error(session, target, target.dead_letter_table)
    ):
        return errors
    return _find_first_table_error(session, target, config)


def _find_first_ledger_right_error(
    session: PostgresSession, target: PostgresTarget, config: PrefixedConfig
) -> dict[str, list[str]]:
    """The first right that the user lacks for the ledger table, or for the creation of a missing table, as a message by
    the user's key. Empty when none is missing.

    :raises WorldError: when the user's search path has no schema.
    """
    quoted_schema = find_quoted_target_schema(session, target)
    ledger = f"{quoted_schema}.{LEDGER_TABLE}"
    has_ledger = bool(read_columns_if_table_exists(session, ledger))
    has_all_tables = has_ledger and read_columns_if_table_exists(session, f"{quoted_schema}.{quote_name(target.table)}")
    if not has_all_tables and not _query_is_true(
        session, "SELECT has_schema_privilege(to_regnamespace(%s), 'CREATE')", quoted_schema
    ):
        return config.error_by_key(
            "table.name.format",
            f"The user has no right to create tables in schema {quoted_schema}, and the sink needs the table "
            f"{LEDGER_TABLE} there; run: GRANT CREATE ON SCHEMA {quoted_schema} TO …",
        )
    for right in ("SELECT", "INSERT", "UPDATE") if has_ledger else ():
        if not _query_is_true(session, "SELECT has_table_privilege(to_regclass(%s), %s)", ledger, right):
            return config.error_by_key(
                "table.name.format",
                f"The sink needs the right {right} on its ledger table; run: GRANT {right} ON {ledger} TO …",
            )
    return {}


def _find_first_table_error(
    session: PostgresSession, target: PostgresTarget, config: PrefixedConfig
) -> dict[str, list[str]]:
    """The first error found about the table, the user's rights to it or its key columns, as a message by the user's
    key. Empty when none was found, or the sink creates the missing table."""
    table = quote_name(target.schema, target.table)
    columns = {column.name for column in read_columns_if_table_exists(session, table)}
    if not columns:
        if target.creates_missing_table:
            return {}
        return config.error_by_key(
            "table.name.format", f"{target.server_description} has no table {table}; create it, or set auto.create=true"
        )
    if not _query_is_true(session, "SELECT has_table_privilege(to_regclass(%s), 'INSERT')", table):
        return config.error_by_key(
            "table.name.format", f"The user has no right to insert; run: GRANT INSERT ON {table} TO …"
        )
    if target.deletes_on_tombstones and not _query_is_true(
        session, "SELECT has_table_privilege(to_regclass(%s), 'DELETE')", table
    ):
        return config.error_by_key(
            "delete.enabled", f"The user has no right to delete; run: GRANT DELETE ON {table} TO …"
        )
    if target.is_upsert and (errors := _find_first_upsert_right_error(session, target, config, columns)):
        return errors
    for name in target.primary_key_columns:
        if name not in columns:
            return config.error_by_key(
                "pk.fields", f"Table {table} has no column {name}; there are: {', '.join(sorted(columns))}"
            )
    if target.is_upsert and not _query_is_true(
        session, _HAS_UNIQUE_INDEX_QUERY, table, sorted(target.primary_key_columns)
    ):
        return config.error_by_key(
            "pk.fields", f"Table {table} has no primary key or unique constraint on these columns"
        )
    return {}


def _find_first_upsert_right_error(
    session: PostgresSession, target: PostgresTarget, config: PrefixedConfig, columns: Set[str]
) -> dict[str, list[str]]:
    """The first right that the PostgreSQL user lacks for an upsert into the table, which has the columns ``columns``,
    as a message for the config key ``insert.mode``: SELECT, UPDATE unless all columns are keys, or TEMPORARY on the
    database. Empty when none is missing. SELECT and UPDATE on some columns suffice: which columns the rows have is not
    known."""
    table = quote_name(target.schema, target.table)
    for right in ("SELECT", "UPDATE") if columns - set(target.primary_key_columns) else ("SELECT",):
        if not _query_is_true(session, "SELECT has_any_column_privilege(to_regclass(%s), %s)", table, right):
            return config.error_by_key(
                "insert.mode", f"An upsert needs the right {right} on the table; run: GRANT {right} ON {table} TO …"
            )
    if not _query_is_true(session, "SELECT has_database_privilege(current_database(), 'TEMPORARY')"):
        return config.error_by_key(
            "insert.mode",
            "An upsert needs the right to create a temporary table; run: GRANT TEMPORARY ON DATABASE "
            f"{quote_name(target.database)} TO …",
        )
    return {}


def _find_first_dead_letter_table_error(
    session: PostgresSession, target: PostgresTarget, dead_letter_table: DeadLetterTable
) -> dict[str, list[str]]:
    """The first error found about ``dead_letter_table``, the table of bad rows, as a message by the user's key: its
    schema is missing, or the user has no right to create or to fill it. Empty when none was found."""
    schema = dead_letter_table.schema or target.schema
    if schema is not None and not _query_is_true(session, "SELECT to_regnamespace(%s) IS NOT NULL", quote_name(schema)):
        return {
            DEAD_LETTER_TABLE_KEY: [
                f"{DEAD_LETTER_TABLE_KEY}: {target.server_description} has no schema {schema}; create it"
            ]
        }
    table = quote_name(schema, dead_letter_table.table)
    if read_columns_if_table_exists(session, table):
        if not _query_is_true(session, "SELECT has_table_privilege(to_regclass(%s), 'INSERT')", table):
            return {
                DEAD_LETTER_TABLE_KEY: [
                    f"{DEAD_LETTER_TABLE_KEY}: the user has no right to insert; run: GRANT INSERT ON {table} TO …"
                ]
            }
        return {}
    quoted_schema = find_quoted_target_schema(session, target) if schema is None else quote_name(schema)
    if not _query_is_true(session, "SELECT has_schema_privilege(to_regnamespace(%s), 'CREATE')", quoted_schema):
        message = (
            f"the user has no right to create tables in schema {quoted_schema}; run: GRANT CREATE ON SCHEMA "
            f"{quoted_schema} TO …"
        )
        return {DEAD_LETTER_TABLE_KEY: [f"{DEAD_LETTER_TABLE_KEY}: {message}"]}
    return {}


def _query_is_true(session: PostgresSession, query: str, *arguments: object) -> bool:
    """Whether ``query``, with the parameters ``arguments``, returns a row whose first column is true."""
    row = session.execute(query.encode(), arguments).fetchone()
    return row is not None and bool(row[0])
