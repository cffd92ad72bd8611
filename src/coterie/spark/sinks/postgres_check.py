"""Validates a config of the PostgreSQL sink against the server."""

from dataclasses import replace

import psycopg

from coterie.nouns.errors import WorldError
from coterie.spark.bad_records.keys import TABLE, DeadLetterTable
from coterie.spark.prefixed_config import PrefixedConfig
from coterie.spark.sinks.postgres_tables import quoted
from coterie.spark.sinks.postgres_target import PostgresTarget
from coterie.spark.sinks.postgres_writer import (
    LEDGER,
    POSTGRES_VERSION_MIN,
    PostgresSession,
    columns_of,
    connect,
    message_of,
    schema_of,
)

VALIDATION_TIMEOUT_MS = 5000
"""How long the server may take for the connection, and for each query."""

_HAS_UNIQUE = """
SELECT EXISTS (
    SELECT FROM pg_index i
    WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indpred IS NULL AND i.indexprs IS NULL
      AND (SELECT array_agg(a.attname::text ORDER BY a.attname::text) FROM pg_attribute a
           WHERE a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1])) = %s::text[])
"""
"""A query: whether a table (the first parameter) has a unique index for all its rows on exactly these columns (the
second parameter: their sorted names)."""


def server_errors(config: PrefixedConfig) -> dict[str, list[str]]:
    """Error messages by the user's key that only the server can detect, for a config whose values are valid. Changes
    nothing on the server."""
    target = PostgresTarget.of(config)
    hasty = replace(
        target,
        connection_timeout_ms=min(VALIDATION_TIMEOUT_MS, target.connection_timeout_ms),
        statement_timeout_ms=min(VALIDATION_TIMEOUT_MS, target.statement_timeout_ms),
    )
    try:
        with connect(hasty, "coterie validate") as session:
            return _errors(session, target, config)
    except WorldError as error:
        return config.error_by_key("connection.url", str(error))
    except psycopg.Error as error:
        return config.error_by_key("connection.url", f"{target.where} failed: {message_of(error)}")


def _errors(session: PostgresSession, target: PostgresTarget, config: PrefixedConfig) -> dict[str, list[str]]:
    """Error messages by the user's key; empty when the sink can write to its tables. The first error found is the only
    one."""
    version = session.info.server_version // 10_000
    if version < POSTGRES_VERSION_MIN:
        sentence = f"{target.where} has version {version}; the sink needs PostgreSQL {POSTGRES_VERSION_MIN} or newer"
        return config.error_by_key("connection.url", sentence)
    schema = target.schema
    if schema is not None and not _is(session, "SELECT to_regnamespace(%s) IS NOT NULL", quoted(schema)):
        return config.error_by_key("table.name.format", f"{target.where} has no schema {schema}; create it")
    home = schema_of(session, target)
    has_all = all(columns_of(session, name) for name in (f"{home}.{LEDGER}", f"{home}.{quoted(target.table)}"))
    if not has_all and not _is(session, "SELECT has_schema_privilege(to_regnamespace(%s), 'CREATE')", home):
        return config.error_by_key(
            "table.name.format",
            f"The user has no right to create tables in schema {home}, and the sink needs the table {LEDGER} there; "
            f"run: GRANT CREATE ON SCHEMA {home} TO …",
        )
    if target.bad_table is not None and (errors := _bad_table_errors(session, target, target.bad_table)):
        return errors
    table = quoted(schema, target.table)
    columns = {column.name for column in columns_of(session, table)}
    if not columns:
        if target.auto_create:
            return {}
        return config.error_by_key(
            "table.name.format", f"{target.where} has no table {table}; create it, or set auto.create=true"
        )
    if not _is(session, "SELECT has_table_privilege(to_regclass(%s), 'INSERT')", table):
        return config.error_by_key(
            "table.name.format", f"The user has no right to insert; run: GRANT INSERT ON {table} TO …"
        )
    if target.deletes and not _is(session, "SELECT has_table_privilege(to_regclass(%s), 'DELETE')", table):
        return config.error_by_key(
            "delete.enabled", f"The user has no right to delete; run: GRANT DELETE ON {table} TO …"
        )
    for name in target.key_columns:
        if name not in columns:
            return config.error_by_key(
                "pk.fields", f"Table {table} has no column {name}; there are: {', '.join(sorted(columns))}"
            )
    if target.is_upsert and not _is(session, _HAS_UNIQUE, table, sorted(target.key_columns)):
        return config.error_by_key(
            "pk.fields", f"Table {table} has no primary key or unique constraint on these columns"
        )
    return {}


def _bad_table_errors(session: PostgresSession, target: PostgresTarget, bad: DeadLetterTable) -> dict[str, list[str]]:
    """Error messages about ``bad``, the table of bad rows, by the user's key; empty when the sink can write to it."""
    schema = bad.schema or target.schema
    if schema is not None and not _is(session, "SELECT to_regnamespace(%s) IS NOT NULL", quoted(schema)):
        return {TABLE: [f"{TABLE}: {target.where} has no schema {schema}; create it"]}
    table = quoted(schema, bad.table)
    if columns_of(session, table):
        if not _is(session, "SELECT has_table_privilege(to_regclass(%s), 'INSERT')", table):
            return {TABLE: [f"{TABLE}: the user has no right to insert; run: GRANT INSERT ON {table} TO …"]}
        return {}
    home = schema_of(session, target) if schema is None else quoted(schema)
    if not _is(session, "SELECT has_schema_privilege(to_regnamespace(%s), 'CREATE')", home):
        sentence = f"the user has no right to create tables in schema {home}; run: GRANT CREATE ON SCHEMA {home} TO …"
        return {TABLE: [f"{TABLE}: {sentence}"]}
    return {}


def _is(session: PostgresSession, question: str, *arguments: object) -> bool:
    """Whether the query ``question`` returns true."""
    row = session.execute(question.encode(), arguments).fetchone()
    return row is not None and bool(row[0])
