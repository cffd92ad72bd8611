"""Debezium's ExtractNewRecordState: a change event becomes the row as it is after the change.

A change event is a value with the columns ``before``, ``after`` (structs of the table's columns) and ``op``: ``c``,
``u`` and ``r`` (created, updated, read by a snapshot), ``d`` (deleted), ``t`` and ``m`` (truncated, a message; both are
dropped). After the event of a deletion Debezium also sends a tombstone. Both are handled in one of five modes, which a
config sets by one key, as for Debezium 3, or by two keys, as for older versions.
"""

from enum import Enum

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from coterie.config.definition import Type, as_list, one_of
from coterie.spark.prefixed_config import PrefixedConfig
from coterie.spark.record_columns import MetadataColumn, column, has_metadata, metadata_column
from coterie.spark.smt.records import header, with_headers
from coterie.spark.smt.transform_type import (
    Errors,
    Side,
    TransformType,
    check_columns_exist,
    filter_rows,
    key,
    types,
    with_fields,
)


class TombstoneHandling(Enum):
    """How the event of a deletion, and the tombstone that follows this event, are handled. A member's value is that of
    the key :data:`TOMBSTONE_HANDLING_MODE`."""

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
"""Debezium 3's key for the mode."""
DELETE_HANDLING_MODE, DROP_TOMBSTONES = "delete.handling.mode", "drop.tombstones"
"""The two keys for the mode in older versions of Debezium."""
_MODE_BY_OLD_KEYS = {
    ("drop", True): TombstoneHandling.DROP,
    ("drop", False): TombstoneHandling.TOMBSTONE,
    ("rewrite", True): TombstoneHandling.REWRITE,
    ("rewrite", False): TombstoneHandling.REWRITE_WITH_TOMBSTONE,
    ("none", True): TombstoneHandling.DELETE_TO_TOMBSTONE,
}
"""The mode by the values of the two old keys."""
DELETED = "__deleted"
"""The column that the modes ``rewrite`` and ``rewrite-with-tombstone`` add: ``true`` for a deletion, else ``false``."""


def _tombstone_handling(settings: PrefixedConfig) -> TombstoneHandling:
    """The mode that the new or the old keys set; without any of them :attr:`TombstoneHandling.TOMBSTONE`."""
    own = EXTRACT_NEW_RECORD_STATE.definition
    if (chosen := settings.find(own, TOMBSTONE_HANDLING_MODE, str)) is not None:
        return TombstoneHandling(chosen)
    mode, drops = settings.find(own, DELETE_HANDLING_MODE, str), settings.find(own, DROP_TOMBSTONES, bool)
    if mode is None and drops is None:
        return TombstoneHandling.TOMBSTONE
    return _MODE_BY_OLD_KEYS[mode or "drop", True if drops is None else drops]


def _key_conflict_errors(settings: PrefixedConfig) -> Errors:
    """An error, by key, if a config sets both the new key and an old key, or sets the old keys such that each deletion
    would give two tombstones."""
    given = [name for name in (DELETE_HANDLING_MODE, DROP_TOMBSTONES) if settings.key(name) in settings.config]
    if given and settings.key(TOMBSTONE_HANDLING_MODE) in settings.config:
        return settings.error_by_key(
            given[0], f"{settings.key(TOMBSTONE_HANDLING_MODE)} replaces it; set that key only"
        )
    own = EXTRACT_NEW_RECORD_STATE.definition
    if settings.find(own, DELETE_HANDLING_MODE, str) == "none" and settings.find(own, DROP_TOMBSTONES, bool) is False:
        return settings.error_by_key(
            DELETE_HANDLING_MODE, f"With none each deletion becomes a tombstone: leave {DROP_TOMBSTONES} at true"
        )
    return {}


def _items(settings: PrefixedConfig, name: str) -> list[tuple[list[str], str]]:
    """The fields in the value of the key ``name`` (``add.fields`` or ``add.headers``): for each field its path in the
    event, and the name that it gets, with the configured prefix."""
    prefix = settings.read(EXTRACT_NEW_RECORD_STATE.definition, f"{name}.prefix", str)
    found = []
    for item in settings.read(EXTRACT_NEW_RECORD_STATE.definition, name, tuple):
        path, _, new = (part.strip() for part in item.partition(":"))
        found.append((path.split("."), prefix + (new or path.replace(".", "_"))))
    return found


def _event_field(event_fields: dict[str, DataType], path: list[str]) -> Column:
    """The field of the event at ``path``. If ``path`` is one name that only the event's struct ``source`` has, it is
    that field of ``source``. ``event_fields``: the types of the event's fields, by name.

    :raises ValueError: when there is no such field.
    """
    source = event_fields.get("source")
    inner = {field.name: field.dataType for field in source.fields} if isinstance(source, StructType) else {}
    if len(path) == 1 and path[0] not in event_fields and path[0] in inner:
        path = ["source", path[0]]
    found = column(check_columns_exist([path[0]], event_fields)[0])
    type_ = event_fields[path[0]]
    for name in path[1:]:
        fields = {field.name: field.dataType for field in type_.fields} if isinstance(type_, StructType) else {}
        found, type_ = found[check_columns_exist([name], fields)[0]], fields[name]
    return found


def _extract(rows: DataFrame, side: Side, settings: PrefixedConfig) -> DataFrame:
    """ExtractNewRecordState: replace each change event by the row after the change. Evaluating an event with an unknown
    ``op`` is an error."""
    there = types(rows, Side.VALUE)
    after = there.get("after")
    if "op" not in there or not isinstance(after, StructType) or there.get("before") != after:
        raise ValueError(
            "the rows are not change events: they need the columns op STRING and before and after, two structs of the "
            "same columns; value.schema must contain them"
        )
    deletes, op = _tombstone_handling(settings), column("op")
    was_tombstone = (
        column(MetadataColumn.TOMBSTONE.value) if has_metadata(rows, MetadataColumn.TOMBSTONE) else F.lit(False)
    )
    keeps_tombstones = deletes in (TombstoneHandling.TOMBSTONE, TombstoneHandling.REWRITE_WITH_TOMBSTONE)
    keeps_deletes = deletes not in (TombstoneHandling.DROP, TombstoneHandling.TOMBSTONE)
    is_delete = F.coalesce(op == "d", F.lit(False)) & ~was_tombstone
    strange = F.raise_error(
        F.concat(F.lit("A record is not a change event of Debezium: its op is "), F.coalesce(op, F.lit("null")))
    ).cast("boolean")
    kept = (
        F.when(was_tombstone, F.lit(keeps_tombstones))
        .when(op == "d", F.lit(keeps_deletes))
        .when(op.isin("c", "u", "r"), F.lit(True))
        .when(op.isin("t", "m"), F.lit(False))
        .otherwise(strange)
    )
    rows = filter_rows(rows, kept)
    is_rewritten = deletes in (TombstoneHandling.REWRITE, TombstoneHandling.REWRITE_WITH_TOMBSTONE)
    row = F.when(is_delete, column("before")).otherwise(column("after")) if is_rewritten else column("after")
    made = {field.name: row[field.name] for field in after.fields}
    if is_rewritten:
        made[DELETED] = F.when(~was_tombstone, is_delete.cast("string"))
    headers = []
    for name in ("add.fields", "add.headers"):
        for path, new in _items(settings, name):
            try:
                found = _event_field(there, path)
            except ValueError as error:
                raise settings.config_error(name, str(error)) from error
            if name == "add.fields":
                made[new] = found
            else:
                headers.append(header(new, found))
    if (routed := settings.read(EXTRACT_NEW_RECORD_STATE.definition, "route.by.field", str)) != "":
        fields = {field.name: field.dataType for field in after.fields}
        try:
            topic = F.coalesce(column("after"), column("before"))[check_columns_exist([routed], fields)[0]].cast(
                "string"
            )
        except ValueError as error:
            raise settings.config_error("route.by.field", str(error)) from error
        rows = rows.withColumn(
            MetadataColumn.TOPIC.value, F.coalesce(topic, metadata_column(rows, MetadataColumn.TOPIC))
        )
    rows = with_headers(rows, headers)
    is_tombstone = was_tombstone | is_delete if deletes is TombstoneHandling.DELETE_TO_TOMBSTONE else was_tombstone
    return with_fields(rows.withColumn(MetadataColumn.TOMBSTONE.value, is_tombstone), Side.VALUE, made)


EXTRACT_NEW_RECORD_STATE = TransformType(
    name="ExtractNewRecordState",
    package="io.debezium.transforms",
    keys=(
        key(
            TOMBSTONE_HANDLING_MODE,
            "How deletions and tombstones are handled; by default tombstone.",
            "Deletions and tombstones",
            optional=True,
            validator=one_of(way.value for way in TombstoneHandling),
        ),
        key(
            DELETE_HANDLING_MODE,
            "How deletions are handled.",
            "Deletions",
            optional=True,
            validator=one_of(("drop", "none", "rewrite")),
        ),
        key(DROP_TOMBSTONES, "Whether tombstones are dropped.", "Drop tombstones", type_=Type.BOOLEAN, optional=True),
        key("add.fields", "Fields of the event that become columns.", "Added columns", type_=Type.LIST, default=""),
        key("add.fields.prefix", "Prefix of the columns' names.", "Prefix of added columns", default="__"),
        key("add.headers", "Fields of the event that become headers.", "Added headers", type_=Type.LIST, default=""),
        key("add.headers.prefix", "Prefix of the headers' names.", "Prefix of added headers", default="__"),
        key("route.by.field", "The column that becomes the topic.", "Column of the topic", default=""),
    ),
    apply=_extract,
    check_values=_key_conflict_errors,
    uses_headers=lambda settings: bool(as_list(settings.config.get(settings.key("add.headers"), ""))),
)
