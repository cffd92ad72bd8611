"""Debezium's ExtractNewRecordState: a change event becomes the row as it is after the change.

A change event is a value with the columns ``before``, ``after`` (structs of the table's columns) and ``op``: ``c``,
``u`` and ``r`` (created, updated, read by a snapshot), ``d`` (deleted), ``t`` and ``m`` (truncated, a message; both are
dropped). After the event of a deletion Debezium also sends a tombstone. The event of a deletion and its tombstone are
handled in one of five modes, which a config sets by one key, as for Debezium 3, or by two keys, as for older versions.
"""

from enum import Enum

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from coterie.config.definition import Type, one_of, split_list
from coterie.spark.prefixed_config import PrefixedConfig
from coterie.spark.record_columns import MetadataColumn, exact_column, has_metadata_column, required_metadata_column
from coterie.spark.smt.records import append_headers, header_struct
from coterie.spark.smt.transform_type import (
    ErrorsByKey,
    KeyOrValue,
    TransformType,
    field_types,
    filter_rows_to_which_transform_applies,
    make_transform_config_key,
    replace_all_fields,
    require_columns,
)


class TombstoneHandling(Enum):
    """How the event of a deletion, and the tombstone that follows this event, are handled. The text of each member is a
    value of the config key :data:`TOMBSTONE_HANDLING_MODE`."""

    DROP = "drop"
    """Both are dropped."""
    TOMBSTONE = "tombstone"
    """The event is dropped, the tombstone stays."""
    DELETE_TO_TOMBSTONE = "delete-to-tombstone"
    """The event becomes a tombstone; the tombstone that follows is dropped."""
    REWRITE = "rewrite"
    """The event becomes the row before the deletion, with ``__deleted`` = ``true``; the tombstone is dropped."""
    REWRITE_WITH_TOMBSTONE = "rewrite-with-tombstone"
    """The event becomes the row before the deletion, with ``__deleted`` = ``true``; the tombstone stays."""


TOMBSTONE_HANDLING_MODE = "delete.tombstone.handling.mode"
"""Debezium 3's key for the handling of deletions and tombstones: a value of :class:`TombstoneHandling`."""
DELETE_HANDLING_MODE, DROP_TOMBSTONES = "delete.handling.mode", "drop.tombstones"
"""The two keys with which older versions of Debezium set the handling of deletions and tombstones."""
_MODE_BY_OLD_KEYS = {
    ("drop", True): TombstoneHandling.DROP,
    ("drop", False): TombstoneHandling.TOMBSTONE,
    ("rewrite", True): TombstoneHandling.REWRITE,
    ("rewrite", False): TombstoneHandling.REWRITE_WITH_TOMBSTONE,
    ("none", True): TombstoneHandling.DELETE_TO_TOMBSTONE,
}
"""The mode by the values of the two older keys. ``none`` without dropped tombstones has no mode:
:func:`_tombstone_handling_conflict_errors` rejects it."""
DELETED_COLUMN = "__deleted"
"""The name of the column that the modes ``rewrite`` and ``rewrite-with-tombstone`` add: ``true`` for a deletion, else
``false``."""


def _tombstone_handling(settings: PrefixedConfig) -> TombstoneHandling:
    """The mode that ``delete.tombstone.handling.mode`` sets or, if it is not set, the two older keys that it replaces
    (``delete.handling.mode`` and ``drop.tombstones``); :attr:`TombstoneHandling.TOMBSTONE` if no key is set."""
    definition = EXTRACT_NEW_RECORD_STATE.definition
    if (mode_text := settings.optional_value(definition, TOMBSTONE_HANDLING_MODE, str)) is not None:
        return TombstoneHandling(mode_text)
    old_mode, drops_tombstones = (
        settings.optional_value(definition, DELETE_HANDLING_MODE, str),
        settings.optional_value(definition, DROP_TOMBSTONES, bool),
    )
    if old_mode is None and drops_tombstones is None:
        return TombstoneHandling.TOMBSTONE
    return _MODE_BY_OLD_KEYS[old_mode or "drop", True if drops_tombstones is None else drops_tombstones]


def _tombstone_handling_conflict_errors(settings: PrefixedConfig) -> ErrorsByKey:
    """An error, by key, if a config sets keys that contradict each other: ``delete.tombstone.handling.mode`` together
    with one of the two older keys that it replaces (``delete.handling.mode`` and ``drop.tombstones``); or
    ``delete.handling.mode=none`` with ``drop.tombstones=false``, because each deletion would give two tombstones."""
    set_old_keys = [
        name for name in (DELETE_HANDLING_MODE, DROP_TOMBSTONES) if settings.user_key(name) in settings.config
    ]
    if set_old_keys and settings.user_key(TOMBSTONE_HANDLING_MODE) in settings.config:
        return settings.error_by_key(
            set_old_keys[0], f"{settings.user_key(TOMBSTONE_HANDLING_MODE)} replaces it; set that key only"
        )
    definition = EXTRACT_NEW_RECORD_STATE.definition
    if (
        settings.optional_value(definition, DELETE_HANDLING_MODE, str) == "none"
        and settings.optional_value(definition, DROP_TOMBSTONES, bool) is False
    ):
        return settings.error_by_key(
            DELETE_HANDLING_MODE, f"With none each deletion becomes a tombstone: leave {DROP_TOMBSTONES} at true"
        )
    return {}


def _field_paths_and_new_names_to_add(settings: PrefixedConfig, name: str) -> list[tuple[list[str], str]]:
    """The fields that the config key ``name`` (``add.fields`` or ``add.headers``) lists. Each field is a pair: the path
    of the field in the event, and the name of the new column or header, with the configured prefix."""
    prefix = settings.required_value(EXTRACT_NEW_RECORD_STATE.definition, f"{name}.prefix", str)
    paths_and_names = []
    for item in settings.required_value(EXTRACT_NEW_RECORD_STATE.definition, name, tuple):
        path, _, new_name = (item_part.strip() for item_part in item.partition(":"))
        paths_and_names.append((path.split("."), prefix + (new_name or path.replace(".", "_"))))
    return paths_and_names


def _event_or_source_field_or_raise(event_fields: dict[str, DataType], path: list[str]) -> Column:
    """The field of the event at ``path``. If ``path`` is one name that only the event's struct ``source`` has, it is
    that field of ``source``. ``event_fields``: the types of the event's fields, by name.

    :raises ValueError: when there is no such field.
    """
    source = event_fields.get("source")
    source_fields = {field.name: field.dataType for field in source.fields} if isinstance(source, StructType) else {}
    if len(path) == 1 and path[0] not in event_fields and path[0] in source_fields:
        path = ["source", path[0]]
    field_column = exact_column(require_columns([path[0]], event_fields)[0])
    type_ = event_fields[path[0]]
    for name in path[1:]:
        nested_types = {field.name: field.dataType for field in type_.fields} if isinstance(type_, StructType) else {}
        field_column, type_ = field_column[require_columns([name], nested_types)[0]], nested_types[name]
    return field_column


def _apply_extract_new_record_state(rows: DataFrame, side: KeyOrValue, settings: PrefixedConfig) -> DataFrame:
    """ExtractNewRecordState: replace each change event by the row after the change. Deletions and tombstones are
    handled as the config requires (:class:`TombstoneHandling`); truncations and messages are dropped. An event with an
    unknown ``op`` fails when the rows are evaluated.

    :raises ValueError, ConfigError: when the columns do not fit: see :attr:`TransformType.apply`.
    """
    event_fields = field_types(rows, KeyOrValue.VALUE)
    after_type = event_fields.get("after")
    if "op" not in event_fields or not isinstance(after_type, StructType) or event_fields.get("before") != after_type:
        raise ValueError(
            "the rows are not change events: they need the columns op STRING and before and after, two structs of the "
            "same columns; value.schema must contain them"
        )
    handling, op = _tombstone_handling(settings), exact_column("op")
    was_tombstone = (
        exact_column(MetadataColumn.TOMBSTONE.value)
        if has_metadata_column(rows, MetadataColumn.TOMBSTONE)
        else F.lit(False)
    )
    keeps_tombstones = handling in (TombstoneHandling.TOMBSTONE, TombstoneHandling.REWRITE_WITH_TOMBSTONE)
    keeps_deletes = handling not in (TombstoneHandling.DROP, TombstoneHandling.TOMBSTONE)
    is_delete = F.coalesce(op == "d", F.lit(False)) & ~was_tombstone
    unknown_op_error = F.raise_error(
        F.concat(F.lit("A record is not a change event of Debezium: its op is "), F.coalesce(op, F.lit("null")))
    ).cast("boolean")
    is_kept = (
        F.when(was_tombstone, F.lit(keeps_tombstones))
        .when(op == "d", F.lit(keeps_deletes))
        .when(op.isin("c", "u", "r"), F.lit(True))
        .when(op.isin("t", "m"), F.lit(False))
        .otherwise(unknown_op_error)
    )
    rows = filter_rows_to_which_transform_applies(rows, is_kept)
    is_rewritten = handling in (TombstoneHandling.REWRITE, TombstoneHandling.REWRITE_WITH_TOMBSTONE)
    row_value = (
        F.when(is_delete, exact_column("before")).otherwise(exact_column("after"))
        if is_rewritten
        else exact_column("after")
    )
    new_fields = {field.name: row_value[field.name] for field in after_type.fields}
    if is_rewritten:
        new_fields[DELETED_COLUMN] = F.when(~was_tombstone, is_delete.cast("string"))
    headers = []
    for name in ("add.fields", "add.headers"):
        for path, new_name in _field_paths_and_new_names_to_add(settings, name):
            try:
                field_column = _event_or_source_field_or_raise(event_fields, path)
            except ValueError as error:
                raise settings.make_config_error(name, str(error)) from error
            if name == "add.fields":
                new_fields[new_name] = field_column
            else:
                headers.append(header_struct(new_name, field_column))
    if (topic_field := settings.required_value(EXTRACT_NEW_RECORD_STATE.definition, "route.by.field", str)) != "":
        after_types = {field.name: field.dataType for field in after_type.fields}
        try:
            topic = F.coalesce(exact_column("after"), exact_column("before"))[
                require_columns([topic_field], after_types)[0]
            ].cast("string")
        except ValueError as error:
            raise settings.make_config_error("route.by.field", str(error)) from error
        rows = rows.withColumn(
            MetadataColumn.TOPIC.value, F.coalesce(topic, required_metadata_column(rows, MetadataColumn.TOPIC))
        )
    rows = append_headers(rows, headers)
    is_tombstone = was_tombstone | is_delete if handling is TombstoneHandling.DELETE_TO_TOMBSTONE else was_tombstone
    return replace_all_fields(
        rows.withColumn(MetadataColumn.TOMBSTONE.value, is_tombstone), KeyOrValue.VALUE, new_fields
    )


EXTRACT_NEW_RECORD_STATE = TransformType(
    short_class_name="ExtractNewRecordState",
    java_package="io.debezium.transforms",
    keys=(
        make_transform_config_key(
            TOMBSTONE_HANDLING_MODE,
            "How deletions and tombstones are handled; by default tombstone.",
            "Deletions and tombstones",
            is_optional=True,
            validator=one_of(way.value for way in TombstoneHandling),
        ),
        make_transform_config_key(
            DELETE_HANDLING_MODE,
            "How deletions are handled.",
            "Deletions",
            is_optional=True,
            validator=one_of(("drop", "none", "rewrite")),
        ),
        make_transform_config_key(
            DROP_TOMBSTONES,
            "Whether tombstones are dropped.",
            "Drop tombstones",
            type_=Type.BOOLEAN,
            is_optional=True,
        ),
        make_transform_config_key(
            "add.fields", "Fields of the event that become columns.", "Added columns", type_=Type.LIST, default=""
        ),
        make_transform_config_key(
            "add.fields.prefix", "Prefix of the columns' names.", "Prefix of added columns", default="__"
        ),
        make_transform_config_key(
            "add.headers",
            "Fields of the event that become headers.",
            "Added headers",
            type_=Type.LIST,
            default="",
        ),
        make_transform_config_key(
            "add.headers.prefix", "Prefix of the headers' names.", "Prefix of added headers", default="__"
        ),
        make_transform_config_key(
            "route.by.field", "The column that becomes the topic.", "Column of the topic", default=""
        ),
    ),
    apply=_apply_extract_new_record_state,
    value_combination_errors=_tombstone_handling_conflict_errors,
    uses_headers=lambda settings: bool(split_list(settings.config.get(settings.user_key("add.headers"), ""))),
)
