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
    Validator,
    Width,
    as_list,
    at_least,
    not_blank,
)
from coterie.nouns.errors import ConfigError
from coterie.spark.bad_records.keys import DeadLetterTable, error_tolerance_of
from coterie.spark.paths import SINK_GROUP
from coterie.spark.prefixed_config import PrefixedConfig

PORT = 5432
NAME_BYTES = 63
"""Longest name of a table, schema or column, in bytes. PostgreSQL truncates longer names without an error."""

_SCHEMES = ("jdbc:postgresql", "postgresql", "postgres")
_PARAMETERS = ("currentSchema", "sslcert", "sslkey", "sslmode", "sslrootcert")
"""The parameters allowed after the ``?`` of a URL. libpq and the JDBC driver use the same names for the parameters of
SSL."""


def _url(value: str) -> str | None:
    """Error message for a URL; None when it is valid."""
    try:
        _split(value)
    except ValueError as error:
        return str(error)
    return None


def _database(url: str) -> str:
    """What identifies the database of a valid URL, as text: host, port, database and default schema."""
    host, port, database, parameters = _split(url)
    return f"{host}:{port}/{database}?currentSchema={parameters.get('currentSchema', '')}"


def _table(value: str) -> str | None:
    """Error message for ``table`` or ``schema.table``; None when the value is valid."""
    if "${" in value:
        return "${topic} cannot be replaced: the sink does not have the topic of a row. Set the name of the table"
    if not 1 <= len(parts := value.split(".")) <= 2 or not all(parts):
        return "Must be table or schema.table"
    return next((_too_long(part) for part in parts if _too_long(part)), None)


def _columns(value: str) -> str | None:
    """Error message for a list of column names; None when the list is valid or empty."""
    columns = as_list(value)
    if not all(columns) or len(set(columns)) != len(columns):
        return "Must be names of columns, separated by commas, each once"
    return next((_too_long(column) for column in columns if _too_long(column)), None)


def _too_long(name: str) -> str | None:
    """Error message for a name that is longer than :data:`NAME_BYTES`; else None."""
    is_long = len(name.encode()) > NAME_BYTES
    return f"{name} has more than the {NAME_BYTES} bytes that PostgreSQL allows for a name" if is_long else None


@dataclass(frozen=True, slots=True)
class _OneOf(OneOf):
    """A validator of values from a list, with separate messages for those of Connect's values that Coterie does not
    support."""

    refused: Mapping[str, str]
    """The messages, by value."""

    def __call__(self, value: str) -> str | None:
        return self.refused.get(value) or OneOf.__call__(self, value)


def _one_of(*values: str, refused: Mapping[str, str]) -> _OneOf:
    """A validator that accepts ``values``; ``refused`` contains separate messages for other values."""
    return _OneOf(values, "String must be one of", refused)


def _only_false(refusal: str) -> Validator:
    """A validator that accepts only false; ``refusal`` is the message for every other value."""
    return lambda value: None if value.lower() == "false" else refusal


def _key(
    name: str,
    type_: Type,
    documentation: str,
    label: str,
    *,
    default: str | None = None,
    validator: Validator | None = None,
) -> ConfigKey:
    """A config key of the sink; without ``default`` it is optional."""
    return ConfigKey(
        name=name,
        type=type_,
        documentation=documentation,
        default=default,
        optional=default is None,
        validator=validator,
        group=SINK_GROUP,
        width=Width.MEDIUM,
        display_name=label,
    )


_NO_POSITION = (
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
            validator=_url,
            group=SINK_GROUP,
            width=Width.LONG,
            display_name="Connection URL",
            normalizer=_database,
            may_hold_password=True,
        ),
        _key("connection.user", Type.STRING, "The user who connects.", "User", validator=not_blank),
        _key("connection.password", Type.PASSWORD, "The password of connection.user.", "Password"),
        _key(
            "connection.timeout.ms",
            Type.LONG,
            "How long one attempt to connect may take.",
            "Connection timeout (ms)",
            default="10000",
            validator=at_least(1000),
        ),
        _key(
            "statement.timeout.ms",
            Type.LONG,
            "How long the server may take for one statement, including a wait for a lock.",
            "Statement timeout (ms)",
            default="120000",
            validator=at_least(1000),
        ),
        _key(
            "max.retries",
            Type.INT,
            "How often a batch is retried after a deadlock or a lost connection before the task fails.",
            "Maximum retries",
            default="10",
            validator=at_least(0),
        ),
        _key(
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
            validator=_table,
            group=SINK_GROUP,
            width=Width.MEDIUM,
            display_name="Table",
        ),
        _key(
            "insert.mode",
            Type.STRING,
            "insert appends rows; upsert replaces the row that has the same values in pk.fields.",
            "Insert mode",
            default="insert",
            validator=_one_of("insert", "upsert", refused={"update": "Only insert and upsert are supported"}),
        ),
        _key(
            "pk.mode",
            Type.STRING,
            "Where the columns in pk.fields come from: the record's key (record_key) or its value (record_value).",
            "Primary key mode",
            default="none",
            validator=_one_of("none", "record_key", "record_value", refused={"kafka": _NO_POSITION}),
        ),
        _key(
            "pk.fields",
            Type.LIST,
            "The columns of the primary key.",
            "Primary key fields",
            default="",
            validator=_columns,
        ),
        _key(
            "delete.enabled",
            Type.BOOLEAN,
            "Whether a record with a null value deletes the row that has its key.",
            "Enable deletes",
            default="false",
        ),
        _key(
            "auto.create",
            Type.BOOLEAN,
            "Whether a missing table is created from the columns of the first batch.",
            "Auto-create",
            default="false",
        ),
        _key(
            "auto.evolve",
            Type.BOOLEAN,
            "Only false is allowed: the columns of a table are never changed.",
            "Auto-evolve",
            default="false",
            validator=_only_false("Columns are not added to a table; add them yourself and set false"),
        ),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresTarget:
    """A table of a database and how a task writes to it."""

    host: str
    port: int
    database: str
    ssl: Mapping[str, str]
    """The URL's parameters for SSL, by libpq's names."""
    user: str | None
    password: Secret | None
    schema: str | None
    """The schema of the table and of the ledger; None means that the server's search path decides."""
    table: str
    is_upsert: bool
    """Whether rows are upserted by ``key_columns``, and not appended."""
    key_columns: tuple[str, ...]
    """The columns of the primary key; empty for pk.mode=none."""
    has_record_key: bool
    """Whether the key columns come from the record's key, and not from its value."""
    deletes: bool
    """Whether a record with a null value deletes the row that has its key."""
    auto_create: bool
    bad_table: DeadLetterTable | None
    """The table of bad rows, created when it is missing; by default in the schema of the table of good rows. None when
    bad rows go to no table."""
    connection_timeout_ms: int
    statement_timeout_ms: int
    max_retries: int
    """How often a batch is retried after a deadlock or a lost connection."""
    retry_backoff_ms: int
    """How long the second and each later retry waits after the server could not be reached."""

    @classmethod
    def of(cls, config: PrefixedConfig) -> "PostgresTarget":
        """The values in ``config``.

        :raises ConfigError: when a value is not valid, or values do not fit together; the error names the key.
        """
        host, port, database, parameters = _split(config.read(DEFINITION, "connection.url", str))
        *schema, table = config.read(DEFINITION, "table.name.format", str).split(".")
        is_upsert = config.read(DEFINITION, "insert.mode", str) == "upsert"
        pk_mode = config.read(DEFINITION, "pk.mode", str)
        has_key, deletes = pk_mode != "none", config.read(DEFINITION, "delete.enabled", bool)
        key_columns = config.read(DEFINITION, "pk.fields", tuple)
        if is_upsert and not has_key:
            raise config.config_error("pk.mode", "insert.mode=upsert needs pk.mode=record_key or record_value")
        if has_key and not key_columns:
            raise config.config_error("pk.fields", f"pk.mode={pk_mode} needs the columns of the primary key here")
        if deletes and not (is_upsert and pk_mode == "record_key"):
            raise config.config_error("delete.enabled", "deletes need pk.mode=record_key and insert.mode=upsert")
        tolerance = error_tolerance_of(config.config)
        return cls(
            host=host,
            port=port,
            database=database,
            ssl={name: value for name, value in parameters.items() if name != "currentSchema"},
            user=config.find(DEFINITION, "connection.user", str),
            password=config.find(DEFINITION, "connection.password", Secret),
            schema=schema[0] if schema else parameters.get("currentSchema"),
            table=table,
            is_upsert=is_upsert,
            key_columns=key_columns if has_key else (),
            has_record_key=pk_mode == "record_key",
            deletes=deletes,
            auto_create=config.read(DEFINITION, "auto.create", bool),
            bad_table=tolerance.dead_letter_destination
            if tolerance is not None and isinstance(tolerance.dead_letter_destination, DeadLetterTable)
            else None,
            connection_timeout_ms=config.read(DEFINITION, "connection.timeout.ms", int),
            statement_timeout_ms=config.read(DEFINITION, "statement.timeout.ms", int),
            max_retries=config.read(DEFINITION, "max.retries", int),
            retry_backoff_ms=config.read(DEFINITION, "retry.backoff.ms", int),
        )

    @property
    def where(self) -> str:
        """The server and the database, for messages."""
        return f"PostgreSQL at {self.host}:{self.port}, database {self.database}"


def _split(url: str) -> tuple[str, int, str, dict[str, str]]:
    """Host, port, database and parameters of ``url``.

    :raises ValueError: when the URL is not valid; the message never contains a part that may be a password.
    """
    scheme, separator, rest = url.strip().partition("://")
    if not separator or scheme not in _SCHEMES:
        raise ValueError("Must be jdbc:postgresql://host:port/database or postgresql://host:port/database")
    parts = urlsplit("//" + rest)
    # A password may contain / ? or #; urlsplit then does not count the text after it as user and password.
    if parts.username is not None or "@" in rest.partition("=")[0]:
        raise ValueError("Set user and password by connection.user and connection.password, not in the URL")
    try:
        port = parts.port or PORT
    except ValueError:
        raise ValueError("The port must be a number from 1 to 65535") from None
    database = unquote(parts.path.removeprefix("/"))
    if not parts.hostname or not database or "/" in database:
        raise ValueError("Must name a host and a database: postgresql://host:port/database")
    parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
    if {"user", "password"} & parameters.keys():
        raise ValueError("Set user and password by connection.user and connection.password, not in the URL")
    if unknown := sorted(parameters.keys() - set(_PARAMETERS)):
        raise ValueError(f"The parameter {unknown[0]} is not supported; there are: {', '.join(_PARAMETERS)}")
    return parts.hostname, port, database, parameters


def config_errors(config: PrefixedConfig) -> dict[str, list[str]]:
    """Error messages, by the user's key, about values that are valid alone and invalid together. Empty when there are
    none."""
    try:
        PostgresTarget.of(config)
    except ConfigError as error:
        return error.listed
    return {}
