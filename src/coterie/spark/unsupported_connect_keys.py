"""Keys of Connect's JDBC and S3 sinks that have no effect in Coterie: a config that sets one of them is not valid.

A config of Connect runs in Coterie with another class, and keys that no plug-in defines are ignored, as in Connect. If
the keys of this module were ignored, the connector would write other columns, other values or other files than in
Connect, or connect to the database in another way. docs/connect-keys.md lists every key of these sinks.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from coterie.spark.plugins import ConfiguredSink, ConfiguredSource
from coterie.spark.sinks.files import FileSink
from coterie.spark.sinks.postgres import PostgresSink
from coterie.spark.sources.kafka import KafkaSource


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsupportedConnectKey:
    """A key of a Connect sink that has no effect in Coterie."""

    advice: str
    """Why the key has no effect, or what to set instead."""
    accepted_values: tuple[str, ...] = ("",)
    """Values, in lower case, that request what Coterie does in any case: a config may set the key to them."""


_PARTITIONERS_PACKAGE = "io.confluent.connect.storage.partitioner."
"""The Java package of the S3 sink's partitioners."""
UNSUPPORTED_JDBC_SINK_KEYS: Mapping[str, UnsupportedConnectKey] = {
    "db.timezone": UnsupportedConnectKey(
        advice="a timestamp goes into a column without time zone as UTC; convert it by the transform Sql",
        accepted_values=("utc", "etc/utc"),
    ),
    "date.timezone": UnsupportedConnectKey(
        advice="a date is written unchanged, without a time zone; convert it by the transform Sql",
        accepted_values=("utc", "db_timezone"),
    ),
    "dialect.name": UnsupportedConnectKey(
        advice="PostgresSink writes to PostgreSQL only", accepted_values=("", "postgresqldatabasedialect")
    ),
    "fields.whitelist": UnsupportedConnectKey(advice="keep these columns by the transform ReplaceField, with include"),
    "quote.sql.identifiers": UnsupportedConnectKey(
        advice="names of tables and columns are always quoted; write them exactly as PostgreSQL stores them",
        accepted_values=("always",),
    ),
    "string.output.value.column.name": UnsupportedConnectKey(
        advice="the column is named value; rename it by the transform ReplaceField, with renames",
        accepted_values=("value",),
    ),
    "timestamp.fields.list": UnsupportedConnectKey(advice="make timestamps by the transform TimestampConverter or Sql"),
    "timestamp.precision.mode": UnsupportedConnectKey(
        advice="a timestamp has microseconds", accepted_values=("", "microseconds")
    ),
}
"""By name: keys of Connect's JDBC sink that have no effect in PostgresSink."""
UNSUPPORTED_JDBC_SINK_PREFIXES: Mapping[str, UnsupportedConnectKey] = {
    "connection.": UnsupportedConnectKey(
        advice="properties of a JDBC driver have no effect; set those that PostgresSink supports, such as sslmode, as "
        "parameters of connection.url",
        accepted_values=(),
    ),
    "jdbc.credentials.provider.": UnsupportedConnectKey(
        advice="set connection.user and connection.password",
        accepted_values=("io.confluent.connect.jdbc.util.defaultjdbccredentialsprovider",),
    ),
}
"""By prefix: keys of Connect's JDBC sink that have no effect in PostgresSink and no fixed name."""
IGNORED_JDBC_SINK_KEYS = ("connection.attempts", "connection.backoff.ms")
"""Keys with a prefix of :data:`UNSUPPORTED_JDBC_SINK_PREFIXES` that are ignored without an error, because they do not
affect the written data: ``max.retries`` and ``retry.backoff.ms`` replace them."""
UNSUPPORTED_S3_SINK_KEYS: Mapping[str, UnsupportedConnectKey] = {
    "behavior.on.null.values": UnsupportedConnectKey(
        advice="a record with a null value is written as a row of nulls; drop such records by the transform Filter "
        "with the predicate RecordIsTombstone",
        accepted_values=(),
    ),
    "partitioner.class": UnsupportedConnectKey(
        advice="make a column by a transform, and name it in partition.field.name",
        accepted_values=(
            "",
            f"{_PARTITIONERS_PACKAGE}defaultpartitioner",
            f"{_PARTITIONERS_PACKAGE}fieldpartitioner",
        ),
    ),
    "store.kafka.headers": UnsupportedConnectKey(
        advice="name headers in columns, and they become a column", accepted_values=("false",)
    ),
    "store.kafka.keys": UnsupportedConnectKey(
        advice="name key in columns, and it becomes a column", accepted_values=("false",)
    ),
}
"""By name: keys of Connect's S3 sink that have no effect in FileSink."""


def unsupported_key_errors(source: ConfiguredSource, sink: ConfiguredSink) -> dict[str, list[str]]:
    """An error, by key, for each set key of Connect's sink that has no effect in Coterie and a value that is not
    accepted. Empty unless the source is KafkaSource and the sink's keys may have no prefix, as in a config of
    Connect."""
    if source.plugin is not KafkaSource or not sink.config.is_prefix_optional:
        return {}
    known_keys = {key.name for connector_end in (source, sink) for key in connector_end.definition.keys}
    entry_by_key = {
        key: find_unsupported_key_entry(sink, key)
        for key in sink.config.config
        if key not in known_keys and key not in IGNORED_JDBC_SINK_KEYS
    }
    return {
        key: [f"Configuration {key} has no effect here: {entry.advice} (docs/connect-keys.md)"]
        for key, entry in entry_by_key.items()
        if entry is not None and sink.config.config[key].strip().lower() not in entry.accepted_values
    }


def find_unsupported_key_entry(sink: ConfiguredSink, key: str) -> UnsupportedConnectKey | None:
    """The entry of ``key``, which ``sink`` does not define, in the table of the Connect sink that ``sink`` replaces;
    None when it has no entry. :data:`IGNORED_JDBC_SINK_KEYS` is not considered."""
    if sink.plugin is FileSink:
        return UNSUPPORTED_S3_SINK_KEYS.get(key)
    if sink.plugin is not PostgresSink:
        return None
    prefixed = (entry for prefix, entry in UNSUPPORTED_JDBC_SINK_PREFIXES.items() if key.startswith(prefix))
    return UNSUPPORTED_JDBC_SINK_KEYS.get(key) or next(prefixed, None)
