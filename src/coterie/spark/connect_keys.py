"""Keys of Connect's JDBC and S3 sinks that have no effect in Coterie: a config that sets one of them is not valid.

A config of Connect runs in Coterie with another class, and keys that no plug-in defines are ignored, as in Connect. If
the keys of this module were ignored, the connector would write other columns, other values or other files than in
Connect, or connect to the database in another way. docs/connect-keys.md lists every key of these sinks.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from coterie.spark.plugins import SinkEnd, SourceEnd
from coterie.spark.sinks.files import FileSink
from coterie.spark.sinks.postgres import PostgresSink
from coterie.spark.sources.kafka import KafkaSource


@dataclass(frozen=True, slots=True, kw_only=True)
class NoCounterpart:
    """A key of Connect without effect in Coterie: what to set instead."""

    instead: str
    """Why the key has no effect, and what to set instead."""
    without_effect: tuple[str, ...] = ("",)
    """Values that request Coterie's only behaviour and are therefore accepted, in lower case."""


_PARTITIONERS = "io.confluent.connect.storage.partitioner."
JDBC_SINK: Mapping[str, NoCounterpart] = {
    "db.timezone": NoCounterpart(
        instead="a timestamp goes into a column without time zone as UTC; convert it by the transform Sql",
        without_effect=("utc", "etc/utc"),
    ),
    "date.timezone": NoCounterpart(
        instead="a date is written unchanged, without a time zone; convert it by the transform Sql",
        without_effect=("utc", "db_timezone"),
    ),
    "dialect.name": NoCounterpart(
        instead="PostgresSink writes to PostgreSQL only", without_effect=("", "postgresqldatabasedialect")
    ),
    "fields.whitelist": NoCounterpart(instead="keep these columns by the transform ReplaceField, with include"),
    "quote.sql.identifiers": NoCounterpart(
        instead="names of tables and columns are always quoted; write them exactly as PostgreSQL stores them",
        without_effect=("always",),
    ),
    "string.output.value.column.name": NoCounterpart(
        instead="the column is named value; rename it by the transform ReplaceField, with renames",
        without_effect=("value",),
    ),
    "timestamp.fields.list": NoCounterpart(instead="make timestamps by the transform TimestampConverter or Sql"),
    "timestamp.precision.mode": NoCounterpart(
        instead="a timestamp has microseconds", without_effect=("", "microseconds")
    ),
}
JDBC_PREFIXES: Mapping[str, NoCounterpart] = {
    "connection.": NoCounterpart(
        instead="properties of a JDBC driver have no effect; set those that PostgresSink supports, such as sslmode, as "
        "parameters of connection.url",
        without_effect=(),
    ),
    "jdbc.credentials.provider.": NoCounterpart(
        instead="set connection.user and connection.password",
        without_effect=("io.confluent.connect.jdbc.util.defaultjdbccredentialsprovider",),
    ),
}
"""Prefixes of those keys of the JDBC sink that have no fixed name."""
JDBC_UNREAD = ("connection.attempts", "connection.backoff.ms")
"""Keys with such a prefix that do not affect the written data and are ignored: max.retries and retry.backoff.ms replace
them."""
S3_SINK: Mapping[str, NoCounterpart] = {
    "behavior.on.null.values": NoCounterpart(
        instead="a record with a null value is written as a row of nulls; drop such records by the transform Filter "
        "with the predicate RecordIsTombstone",
        without_effect=(),
    ),
    "partitioner.class": NoCounterpart(
        instead="make a column by a transform, and name it in partition.field.name",
        without_effect=(
            "",
            f"{_PARTITIONERS}defaultpartitioner",
            f"{_PARTITIONERS}fieldpartitioner",
        ),
    ),
    "store.kafka.headers": NoCounterpart(
        instead="name headers in columns, and they become a column", without_effect=("false",)
    ),
    "store.kafka.keys": NoCounterpart(
        instead="name key in columns, and it becomes a column", without_effect=("false",)
    ),
}


def errors_of(source: SourceEnd, sink: SinkEnd) -> dict[str, list[str]]:
    """An error, by key, for each key of Connect's sink that would have no effect. Only configs are checked that read
    topics and have the sink's keys without a prefix, as in Connect."""
    if source.plugin is not KafkaSource or not sink.config.is_prefix_optional:
        return {}
    known = {key.name for end in (source, sink) for key in end.definition.keys}
    found = {
        key: no_counterpart(sink, key) for key in sink.config.config if key not in known and key not in JDBC_UNREAD
    }
    return {
        key: [f"Configuration {key} has no effect here: {missed.instead} (docs/connect-keys.md)"]
        for key, missed in found.items()
        if missed is not None and sink.config.config[key].strip().lower() not in missed.without_effect
    }


def no_counterpart(sink: SinkEnd, key: str) -> NoCounterpart | None:
    """The entry of a key that ``sink`` does not define; None for a key that may be ignored."""
    if sink.plugin is FileSink:
        return S3_SINK.get(key)
    if sink.plugin is not PostgresSink:
        return None
    prefixed = (missed for start, missed in JDBC_PREFIXES.items() if key.startswith(start))
    return JDBC_SINK.get(key) or next(prefixed, None)
