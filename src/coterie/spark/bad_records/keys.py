"""The config keys for bad records and retries, with Connect's names, and their parsed values.

``errors.deadletterqueue.path`` and ``errors.deadletterqueue.table`` are not Connect's: they name a folder or a table as
the destination of bad records instead of a topic.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from coterie.config.definition import ConfigDef, ConfigKey, Importance, Type, Validator, Width, at_least, one_of
from coterie.herder.restart_policy import DEFAULT_RESTART_POLICY
from coterie.nouns.errors import ConfigError
from coterie.spark.paths import local_path_error, path_of_config_value

ERROR_HANDLING_GROUP = "Error Handling"
"""The group, in a form, of the config keys ``errors.*``: Connect's name of the group."""
TOLERANCE_KEY = "errors.tolerance"
DEAD_LETTER_KEY_PREFIX = "errors.deadletterqueue."
DEAD_LETTER_TOPIC_KEY, DEAD_LETTER_PATH_KEY, DEAD_LETTER_TABLE_KEY = (
    DEAD_LETTER_KEY_PREFIX + "topic.name",
    DEAD_LETTER_KEY_PREFIX + "path",
    DEAD_LETTER_KEY_PREFIX + "table",
)
DEAD_LETTER_REPLICATION_KEY = DEAD_LETTER_KEY_PREFIX + "topic.replication.factor"
CONTEXT_HEADERS_KEY = DEAD_LETTER_KEY_PREFIX + "context.headers.enable"

_NAME_BYTES_MAX = 63
"""Longest name of a table or schema, in bytes. PostgreSQL truncates longer names without an error."""


def _topic_name_error(value: str) -> str | None:
    """A validator of :data:`DEAD_LETTER_TOPIC_KEY`: the error message; None when the value is valid or empty."""
    if not value or (re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", value) and value not in (".", "..")):
        return None
    return "Must be the name of a topic: at most 249 letters, digits, dots, underscores and hyphens"


def _folder_path_error(value: str) -> str | None:
    """A validator of :data:`DEAD_LETTER_PATH_KEY`: the error message; None when the value is valid or empty."""
    return local_path_error(value) if value else None


def _table_name_error(value: str) -> str | None:
    """A validator of :data:`DEAD_LETTER_TABLE_KEY`: the error message; None when the value is valid or empty."""
    name_parts = value.split(".")
    if value and not (
        len(name_parts) <= 2 and all(0 < len(name_part.encode()) <= _NAME_BYTES_MAX for name_part in name_parts)
    ):
        return f"Must be table or schema.table, each of at most {_NAME_BYTES_MAX} bytes"
    return None


def _replication_factor_error(value: str) -> str | None:
    """A validator of :data:`DEAD_LETTER_REPLICATION_KEY`: the error message; None when the value is valid."""
    return None if int(value) == -1 or int(value) > 0 else "Value must be at least 1, or -1 for the broker's default"


def _error_handling_config_key(
    order: int,
    name: str,
    type_: Type,
    default: str,
    label: str,
    documentation: str,
    validator: Validator | None = None,
    width: Width = Width.MEDIUM,
) -> ConfigKey:
    """A config key of the group :data:`ERROR_HANDLING_GROUP`, of medium importance, at position ``order`` of the group.
    ``label``: the key's name in a form."""
    return ConfigKey(
        name=name,
        type=type_,
        documentation=documentation,
        default=default,
        importance=Importance.MEDIUM,
        validator=validator,
        group=ERROR_HANDLING_GROUP,
        order=order,
        width=width,
        display_name=label,
    )


DEFINITION = ConfigDef(
    (
        _error_handling_config_key(
            0,
            TOLERANCE_KEY,
            Type.STRING,
            "none",
            "Error Tolerance",
            "With none, a record that does not convert or transform fails its task; with all, it is left out.",
            one_of(("none", "all")),
            Width.SHORT,
        ),
        _error_handling_config_key(
            1,
            "errors.log.enable",
            Type.BOOLEAN,
            "false",
            "Log Errors",
            "With errors.tolerance=all: log the number of records that were left out, once a minute.",
        ),
        _error_handling_config_key(
            2,
            "errors.log.include.messages",
            Type.BOOLEAN,
            "false",
            "Log Error Details",
            "Whether the log line names topic, partition, offset and timestamp of the first of these records.",
        ),
        _error_handling_config_key(
            3,
            DEAD_LETTER_TOPIC_KEY,
            Type.STRING,
            "",
            "Dead Letter Queue Topic Name",
            "With errors.tolerance=all: topic to which the left out records are written; empty means none.",
            _topic_name_error,
        ),
        _error_handling_config_key(
            4,
            DEAD_LETTER_REPLICATION_KEY,
            Type.SHORT,
            "3",
            "Dead Letter Queue Topic Replication Factor",
            "Replication factor with which the dead letter queue topic is created.",
            _replication_factor_error,
        ),
        _error_handling_config_key(
            5,
            CONTEXT_HEADERS_KEY,
            Type.BOOLEAN,
            "false",
            "Enable Error Context Headers",
            "Whether dead letter records get headers about the error; their keys start with __connect.errors.",
        ),
        _error_handling_config_key(
            6,
            DEAD_LETTER_PATH_KEY,
            Type.STRING,
            "",
            "Dead Letter Folder",
            "With errors.tolerance=all: folder to which the left out records are written as Parquet files.",
            _folder_path_error,
            Width.LONG,
        ),
        _error_handling_config_key(
            7,
            DEAD_LETTER_TABLE_KEY,
            Type.STRING,
            "",
            "Dead Letter Table",
            "With errors.tolerance=all: table in the PostgresSink's database to which left out records are written.",
            _table_name_error,
        ),
        _error_handling_config_key(
            8,
            "errors.retry.timeout",
            Type.LONG,
            "0",
            "Retry Timeout for Errors",
            "How long a task waits for a server that cannot be reached, in milliseconds; -1 means without limit.",
            at_least(-1),
        ),
        _error_handling_config_key(
            9,
            "errors.retry.delay.max.ms",
            Type.LONG,
            "60000",
            "Maximum Delay Between Retries for Errors",
            "Longest pause between two attempts to reach a server, in milliseconds.",
            at_least(1),
        ),
        _error_handling_config_key(
            10,
            "errors.restart.max",
            Type.INT,
            str(DEFAULT_RESTART_POLICY.restarts_max),
            "Maximum Number of Restarts",
            "How often a task that fails without progress in between is restarted, after failures other than a server "
            "that cannot be reached; -1 means without limit.",
            at_least(-1),
        ),
        _error_handling_config_key(
            11,
            "errors.restart.delay.max.ms",
            Type.LONG,
            str(DEFAULT_RESTART_POLICY.delay_max_ms),
            "Maximum Delay Before a Restart",
            "Longest pause before such a restart, in milliseconds.",
            at_least(1),
        ),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoDeadLetters:
    """No destination of bad records: they are left out and written nowhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterTopic:
    """The destination of bad records: a topic of Kafka."""

    topic: str
    replication_factor: int
    """The replication factor with which the topic is created if it is missing; -1 means the broker's default."""
    has_context_headers: bool
    """Whether a dead letter has headers about the error, as in Connect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterFolder:
    """The destination of bad records: Parquet files in a folder."""

    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterTable:
    """The destination of bad records: a table of the sink's own database, written in the transaction of the good
    rows. Without a ``schema`` it is in the schema of the table to which the sink writes good rows."""

    schema: str | None
    """None: the schema of the table to which the sink writes good rows."""
    table: str


DeadLetterDestination: TypeAlias = NoDeadLetters | DeadLetterTopic | DeadLetterFolder | DeadLetterTable


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRecordSettings:
    """The settings of ``errors.tolerance=all``: where bad records are written, and which log lines are written about
    them."""

    dead_letter_destination: DeadLetterDestination
    logs_bad_record_counts: bool
    """Whether log lines with the number of bad records are written."""
    logs_first_bad_record_position: bool
    """Whether a log line about bad records contains topic, partition, offset and timestamp of the first bad record that
    it counts."""


def read_bad_record_settings(config: Mapping[str, str]) -> BadRecordSettings | None:
    """The settings for bad records in the config of a connector or a task. None when ``errors.tolerance`` is ``none``:
    the first bad record then fails the task.

    :raises ConfigError: when a value is not valid, or more than one destination is set; the error names the key.
    """
    if DEFINITION.required_value(config, TOLERANCE_KEY, str) == "none":
        return None
    return BadRecordSettings(
        dead_letter_destination=_dead_letter_destination(config),
        logs_bad_record_counts=DEFINITION.required_value(config, "errors.log.enable", bool),
        logs_first_bad_record_position=DEFINITION.required_value(config, "errors.log.include.messages", bool),
    )


def _dead_letter_destination(config: Mapping[str, str]) -> DeadLetterDestination:
    """The destination of bad records that ``config`` sets.

    :raises ConfigError: when a value is not valid, or more than one destination is set; the error names the key.
    """
    topic, path, table = (
        DEFINITION.required_value(config, key, str)
        for key in (DEAD_LETTER_TOPIC_KEY, DEAD_LETTER_PATH_KEY, DEAD_LETTER_TABLE_KEY)
    )
    set_keys = [
        key
        for key, value in ((DEAD_LETTER_TOPIC_KEY, topic), (DEAD_LETTER_PATH_KEY, path), (DEAD_LETTER_TABLE_KEY, table))
        if value
    ]
    if len(set_keys) > 1:
        raise ConfigError(
            {set_keys[1]: [f"Bad records have only one destination: set only one of {', '.join(set_keys)}"]}
        )
    if topic:
        return DeadLetterTopic(
            topic=topic,
            replication_factor=DEFINITION.required_value(config, DEAD_LETTER_REPLICATION_KEY, int),
            has_context_headers=DEFINITION.required_value(config, CONTEXT_HEADERS_KEY, bool),
        )
    if path:
        return DeadLetterFolder(path=path_of_config_value(path))
    if table:
        *schema, name = table.split(".")
        return DeadLetterTable(schema=schema[0] if schema else None, table=name)
    return NoDeadLetters()
