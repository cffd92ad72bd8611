"""The config keys of the PostgreSQL sink, named as in Connect's JDBC sink; and ``PostgresTarget``, their values."""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

from coterie.config.definition import (
    ConfigDef,
    ConfigKey,
    Importance,
    OneOf,
    Secret,
    Type,
    Width,
    at_least,
    blank_value_error,
    split_list,
)
from coterie.nouns.errors import ConfigError
from coterie.spark.bad_records.keys import DeadLetterTable, read_bad_record_settings
from coterie.spark.paths import SINK_GROUP
from coterie.spark.prefixed_config import PrefixedConfig
from coterie.spark.sinks.sink_keys import column_names_error, make_sink_config_key, only_false_validator

DEFAULT_PORT = 5432
NAME_BYTES_MAX = 63
"""Longest name of a table, schema or column, in bytes. PostgreSQL truncates longer names without an error."""

_URL_SCHEMES = ("jdbc:postgresql", "postgresql", "postgres")
_URL_PARAMETERS = ("currentSchema", "sslcert", "sslkey", "sslmode", "sslrootcert")
"""The parameters allowed after the ``?`` of a URL. libpq and the JDBC driver use the same names for the parameters of
SSL."""


def _url_error(value: str) -> str | None:
    """A validator: the error message for a URL; None when it is valid."""
    try:
        _parse_url(value)
    except ValueError as error:
        return str(error)
    return None


def _normalize_url_for_comparison(url: str) -> str:
    """A valid URL in one spelling, for comparisons: only host, port, database and the parameter ``currentSchema``. URLs
    that differ only in the scheme or in parameters of SSL give the same text."""
    host, port, database, parameters = _parse_url(url)
    return f"{host}:{port}/{database}?currentSchema={parameters.get('currentSchema', '')}"


def _table_name_error(value: str) -> str | None:
    """A validator: the error message for a value that is not ``table`` or ``schema.table``; None when it is valid."""
    if "${" in value:
        return "${topic} cannot be replaced: the sink does not have the topic of a row. Set the name of the table"
    if not 1 <= len(name_parts := value.split(".")) <= 2 or not all(name_parts):
        return "Must be table or schema.table"
    return next((_name_length_error(name_part) for name_part in name_parts if _name_length_error(name_part)), None)


def _column_names_error(value: str) -> str | None:
    """A validator: the error message for a list of column names; None when the list is valid or empty."""
    if message := column_names_error(value):
        return message
    return next((message for column in split_list(value) if (message := _name_length_error(column))), None)


def _name_length_error(name: str) -> str | None:
    """Error message for a name that is longer than :data:`NAME_BYTES_MAX`; else None."""
    is_long = len(name.encode()) > NAME_BYTES_MAX
    return f"{name} has more than the {NAME_BYTES_MAX} bytes that PostgreSQL allows for a name" if is_long else None


@dataclass(frozen=True, slots=True)
class _OneOfSupported(OneOf):
    """A validator that accepts only the listed values. For another value the error message is the one in
    :attr:`error_by_value`, if there is one, else the usual message with the list."""

    error_by_value: Mapping[str, str]
    """By value: the error message for a value that Connect accepts and Coterie does not support."""

    def __call__(self, value: str) -> str | None:
        return self.error_by_value.get(value) or OneOf.__call__(self, value)


def _one_of_supported(*values: str, error_by_value: Mapping[str, str]) -> _OneOfSupported:
    """A validator that accepts only ``values``; see :class:`_OneOfSupported`."""
    return _OneOfSupported(values, "String must be one of", error_by_value)


_KAFKA_KEY_ERROR = (
    "a key of topic, partition and offset is not supported; use record_key or record_value with pk.fields, or none"
)
"""Error message for pk.mode=kafka."""

DEFINITION = ConfigDef(
    (
        ConfigKey(
            name="connection.url",
            type=Type.STRING,
            documentation="The database: jdbc:postgresql://host:port/database or postgresql://host:port/database.",
            importance=Importance.HIGH,
            validator=_url_error,
            group=SINK_GROUP,
            width=Width.LONG,
            display_name="Connection URL",
            normalizer_for_comparison=_normalize_url_for_comparison,
            is_value_hidden_in_errors=True,
        ),
        make_sink_config_key(
            "connection.user",
            Type.STRING,
            "The user who connects.",
            "User",
            is_optional=True,
            validator=blank_value_error,
        ),
        make_sink_config_key(
            "connection.password", Type.PASSWORD, "The password of connection.user.", "Password", is_optional=True
        ),
        make_sink_config_key(
            "connection.timeout.ms",
            Type.LONG,
            "How long one attempt to connect may take.",
            "Connection timeout (ms)",
            default="10000",
            validator=at_least(1000),
        ),
        make_sink_config_key(
            "statement.timeout.ms",
            Type.LONG,
            "How long the server may take for one statement, including a wait for a lock.",
            "Statement timeout (ms)",
            default="120000",
            validator=at_least(1000),
        ),
        make_sink_config_key(
            "max.retries",
            Type.INT,
            "How often a batch is retried after a deadlock or a lost connection before the task fails.",
            "Maximum retries",
            default="10",
            validator=at_least(0),
        ),
        make_sink_config_key(
            "retry.backoff.ms",
            Type.LONG,
            "How long a retry waits after the server could not be reached.",
            "Retry backoff (ms)",
            default="3000",
            validator=at_least(0),
        ),
        ConfigKey(
            name="table.name.format",
            type=Type.STRING,
            documentation="The table that rows are written to: table or schema.table.",
            importance=Importance.HIGH,
            validator=_table_name_error,
            group=SINK_GROUP,
            width=Width.MEDIUM,
            display_name="Table",
        ),
        make_sink_config_key(
            "insert.mode",
            Type.STRING,
            "insert appends rows; upsert replaces the row that has the same values in pk.fields.",
            "Insert mode",
            default="insert",
            validator=_one_of_supported(
                "insert", "upsert", error_by_value={"update": "Only insert and upsert are supported"}
            ),
        ),
        make_sink_config_key(
            "pk.mode",
            Type.STRING,
            "Where the columns in pk.fields come from: the record's key (record_key) or its value (record_value).",
            "Primary key mode",
            default="none",
            validator=_one_of_supported(
                "none", "record_key", "record_value", error_by_value={"kafka": _KAFKA_KEY_ERROR}
            ),
        ),
        make_sink_config_key(
            "pk.fields",
            Type.LIST,
            "The columns of the primary key.",
            "Primary key fields",
            default="",
            validator=_column_names_error,
        ),
        make_sink_config_key(
            "delete.enabled",
            Type.BOOLEAN,
            "Whether a record with a null value deletes the row that has its key.",
            "Enable deletes",
            default="false",
        ),
        make_sink_config_key(
            "auto.create",
            Type.BOOLEAN,
            "Whether a missing table is created from the columns of the first batch.",
            "Auto-create",
            default="false",
        ),
        make_sink_config_key(
            "auto.evolve",
            Type.BOOLEAN,
            "Only false is allowed: the columns of a table are never changed.",
            "Auto-evolve",
            default="false",
            validator=only_false_validator("Columns are not added to a table; add them yourself and set false"),
        ),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresTarget:
    """A table of a database and how a task writes to it. None as ``user`` or ``password`` means that the config has
    none, so that libpq's default applies; None as ``schema``, that the server's search path decides. The table of bad
    rows is always created when it is missing; ``creates_missing_table`` is about the table of good rows."""

    host: str
    port: int
    database: str
    ssl_parameters: Mapping[str, str]
    """The URL's parameters for SSL, by libpq's names."""
    user: str | None
    """The user who connects; None when the config has none: then libpq's default applies."""
    password: Secret | None
    """The password of ``user``; None when the config has none."""
    schema: str | None
    """The schema of the table and of the ledger; None means that the server's search path decides."""
    table: str
    """The table's name, without schema and quotes."""
    is_upsert: bool
    """Whether rows are upserted by ``primary_key_columns``, and not appended."""
    primary_key_columns: tuple[str, ...]
    """The columns of the primary key; empty for pk.mode=none."""
    is_key_from_record_key: bool
    """Whether the key columns come from the record's key, and not from its value."""
    deletes_on_tombstones: bool
    """Whether a record with a null value deletes the row that has its key."""
    creates_missing_table: bool
    dead_letter_table: DeadLetterTable | None
    """The table of bad rows, created when it is missing; by default in the schema of the table of good rows. None when
    bad rows go to no table."""
    connection_timeout_ms: int
    """How long one attempt to connect may take, in ms."""
    statement_timeout_ms: int
    """How long the server may take for one statement, including a wait for a lock, in ms."""
    max_retries: int
    """How often a batch is retried at most, after a deadlock or a lost connection."""
    retry_backoff_ms: int
    """How long the second and each later retry waits after the server could not be reached, in ms. The first retry does
    not wait."""

    @classmethod
    def of(cls, config: PrefixedConfig) -> "PostgresTarget":
        """The values in ``config``.

        :raises ConfigError: when a value is not valid, or values do not fit together; the error names the key.
        """
        host, port, database, parameters = _parse_url(config.required_value(DEFINITION, "connection.url", str))
        *schema, table = config.required_value(DEFINITION, "table.name.format", str).split(".")
        is_upsert = config.required_value(DEFINITION, "insert.mode", str) == "upsert"
        pk_mode = config.required_value(DEFINITION, "pk.mode", str)
        has_key_columns, has_deletes = pk_mode != "none", config.required_value(DEFINITION, "delete.enabled", bool)
        primary_key_columns = config.required_value(DEFINITION, "pk.fields", tuple)
        if is_upsert and not has_key_columns:
            raise config.make_config_error("pk.mode", "insert.mode=upsert needs pk.mode=record_key or record_value")
        if has_key_columns and not primary_key_columns:
            raise config.make_config_error(
                "pk.fields", f"pk.mode={pk_mode} needs pk.fields: the columns of the primary key"
            )
        if has_deletes and not (is_upsert and pk_mode == "record_key"):
            raise config.make_config_error("delete.enabled", "deletes need pk.mode=record_key and insert.mode=upsert")
        tolerance = read_bad_record_settings(config.config)
        return cls(
            host=host,
            port=port,
            database=database,
            ssl_parameters={name: value for name, value in parameters.items() if name != "currentSchema"},
            user=config.optional_value(DEFINITION, "connection.user", str),
            password=config.optional_value(DEFINITION, "connection.password", Secret),
            schema=schema[0] if schema else parameters.get("currentSchema"),
            table=table,
            is_upsert=is_upsert,
            primary_key_columns=primary_key_columns if has_key_columns else (),
            is_key_from_record_key=pk_mode == "record_key",
            deletes_on_tombstones=has_deletes,
            creates_missing_table=config.required_value(DEFINITION, "auto.create", bool),
            dead_letter_table=tolerance.dead_letter_destination
            if tolerance is not None and isinstance(tolerance.dead_letter_destination, DeadLetterTable)
            else None,
            connection_timeout_ms=config.required_value(DEFINITION, "connection.timeout.ms", int),
            statement_timeout_ms=config.required_value(DEFINITION, "statement.timeout.ms", int),
            max_retries=config.required_value(DEFINITION, "max.retries", int),
            retry_backoff_ms=config.required_value(DEFINITION, "retry.backoff.ms", int),
        )

    @property
    def server_description(self) -> str:
        """The server and the database, for messages."""
        return f"PostgreSQL at {self.host}:{self.port}, database {self.database}"


def _parse_url(url: str) -> tuple[str, int, str, dict[str, str]]:
    """Host, port, database and parameters of ``url``.

    :raises ValueError: when the URL is not valid; the message never contains a part that may be a password.
    """
    scheme, separator, url_rest = url.strip().partition("://")
    if not separator or scheme not in _URL_SCHEMES:
        raise ValueError(
            "Must be jdbc:postgresql://host:port/database or postgresql://host:port/database; the port may be left out"
        )
    url_parts = urlsplit("//" + url_rest)
    # A password may contain / ? or #; urlsplit then does not count the text after it as user and password.
    if url_parts.username is not None or "@" in url_rest.partition("=")[0]:
        raise ValueError("Set user and password by connection.user and connection.password, not in the URL")
    try:
        port = DEFAULT_PORT if url_parts.port is None else url_parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise ValueError("The port must be a number from 1 to 65535")
    database = unquote(url_parts.path.removeprefix("/"))
    if not url_parts.hostname or not database or "/" in database:
        raise ValueError("Must name a host and a database: postgresql://host:port/database")
    parameters = dict(parse_qsl(url_parts.query, keep_blank_values=True))
    if {"user", "password"} & parameters.keys():
        raise ValueError("Set user and password by connection.user and connection.password, not in the URL")
    if unknown := sorted(parameters.keys() - set(_URL_PARAMETERS)):
        raise ValueError(f"The parameter {unknown[0]} is not supported; supported are: {', '.join(_URL_PARAMETERS)}")
    return url_parts.hostname, port, database, parameters


def value_combination_errors(config: PrefixedConfig) -> dict[str, list[str]]:
    """Error messages, by the user's key, about values that are valid alone and invalid together; empty when there are
    none. The server is not asked."""
    try:
        PostgresTarget.of(config)
    except ConfigError as error:
        return error.errors_as_new_lists
    return {}
