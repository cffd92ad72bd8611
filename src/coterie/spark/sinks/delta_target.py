"""The config keys of the Delta sink, named as in Connect's sinks where the meaning is the same; and ``DeltaTarget``."""

from dataclasses import dataclass
from pathlib import Path

from coterie.config.definition import (
    ConfigDef,
    ConfigKey,
    Importance,
    Type,
    Width,
    at_least,
    one_of,
)
from coterie.nouns.errors import ConfigError
from coterie.spark.paths import SINK_GROUP, local_path_error, path_of_config_value
from coterie.spark.prefixed_config import PrefixedConfig
from coterie.spark.sinks.sink_keys import column_names_error, make_sink_config_key, only_false_validator

LOG_FOLDER = "_delta_log"
"""The folder of a table that contains its commits."""


DEFINITION = ConfigDef(
    (
        ConfigKey(
            name="path",
            type=Type.STRING,
            documentation="The folder of the Delta table, on the file system that all workers share.",
            importance=Importance.HIGH,
            validator=local_path_error,
            group=SINK_GROUP,
            width=Width.LONG,
            display_name="Table folder",
        ),
        make_sink_config_key(
            "insert.mode",
            Type.STRING,
            "insert appends rows; upsert replaces the row that has the same values in pk.fields.",
            "Insert mode",
            default="insert",
            validator=one_of(("insert", "upsert")),
        ),
        make_sink_config_key(
            "pk.fields",
            Type.LIST,
            "With insert.mode=upsert, the columns that identify a row.",
            "Key columns",
            default="",
            validator=column_names_error,
        ),
        make_sink_config_key(
            "delete.enabled",
            Type.BOOLEAN,
            "Only false is allowed: rows are never deleted.",
            "Enable deletes",
            default="false",
            validator=only_false_validator(
                "DeltaSink deletes no rows; set false, and drop tombstones by Filter and RecordIsTombstone"
            ),
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
        make_sink_config_key(
            "partition.field.name",
            Type.LIST,
            "The columns by which a table that the sink creates is partitioned.",
            "Partition columns",
            default="",
            validator=column_names_error,
        ),
        make_sink_config_key(
            "optimize.interval.batches",
            Type.INT,
            "Number of batches after which task 0 merges small files into large ones; 0 means never.",
            "Optimize interval (batches)",
            default="200",
            validator=at_least(0),
        ),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaTarget:
    """A Delta table and how a task writes to it."""

    path: Path
    is_upsert: bool
    """Whether rows are upserted by ``key_columns``, and not appended."""
    key_columns: tuple[str, ...]
    """The columns that identify a row for an upsert; empty unless ``is_upsert``."""
    creates_missing_table: bool
    """Whether a missing table is created."""
    partition_columns: tuple[str, ...]
    """The columns by which the table is partitioned if the sink creates it."""
    optimize_interval_batches: int
    """Number of batches of task 0 after which small files are merged into large ones; 0 means never."""

    @classmethod
    def of(cls, config: PrefixedConfig) -> "DeltaTarget":
        """The values in ``config``.

        :raises ConfigError: when a value is not valid, or values do not fit together; the error names the key.
        """
        is_upsert = config.required_value(DEFINITION, "insert.mode", str) == "upsert"
        key_columns = config.required_value(DEFINITION, "pk.fields", tuple)
        partition_columns = config.required_value(DEFINITION, "partition.field.name", tuple)
        auto_create = config.required_value(DEFINITION, "auto.create", bool)
        if is_upsert and not key_columns:
            raise config.make_config_error("insert.mode", "upsert needs pk.fields: the columns that identify a row")
        if key_columns and not is_upsert:
            raise config.make_config_error(
                "pk.fields", "insert.mode=insert has no key; set insert.mode=upsert or drop pk.fields"
            )
        if partition_columns and not auto_create:
            raise config.make_config_error(
                "partition.field.name",
                "partition columns apply only to a table that the sink creates: set auto.create=true",
            )
        return cls(
            path=path_of_config_value(config.required_value(DEFINITION, "path", str)),
            is_upsert=is_upsert,
            key_columns=key_columns,
            creates_missing_table=auto_create,
            partition_columns=partition_columns,
            optimize_interval_batches=config.required_value(DEFINITION, "optimize.interval.batches", int),
        )

    @property
    def description(self) -> str:
        """The table as text, for messages."""
        return f"Delta table {self.path}"


def value_combination_errors(config: PrefixedConfig) -> dict[str, list[str]]:
    """Error messages, by the user's key, about values that are valid alone and invalid together. Empty when there are
    none."""
    try:
        DeltaTarget.of(config)
    except ConfigError as error:
        return error.errors_as_new_lists
    return {}
