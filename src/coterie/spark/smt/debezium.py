"""Debezium's ExtractNewRecordState: a change event becomes the row as it is after the change.

A change event is a value with the columns ``before``, ``after`` (structs of the table's columns) and ``op``: ``c``,
``u`` and ``r`` (created, updated, read by a snapshot), ``d`` (deleted), ``t`` and ``m`` (truncated, a message; both are
dropped). After a deletion Debezium also sends a tombstone. The two are handled in one of five modes, which Debezium 3
sets by one key and older versions by two keys.
"""

from enum import Enum

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from coterie.config.definition import Type, as_list, one_of
from coterie.spark.end_config import EndConfig
from coterie.spark.record import Part, column, has, part_of
from coterie.spark.smt.kind import Errors, Kind, Side, keep, key, known, types, with_fields
from coterie.spark.smt.records import header, with_headers


class Deletes(Enum):
    """How the event of a deletion, and the tombstone that follows it, are handled."""

    DROP = "drop"
    """Both are dropped."""
    TOMBSTONE = "tombstone"
    """The event is dropped, the tombstone stays."""
    DELETE_TO_TOMBSTONE = "delete-to-tombstone"
    """The event becomes a tombstone; the tombstone that follows is dropped."""
    REWRITE = "rewrite"
    """The event becomes the row before the deletion, with ``__deleted`` = ``true``; the tombstone is dropped."""
    REWRITE_WITH_TOMBSTONE = "rewrite-with-tombstone"
    """As ``rewrite``, and the tombstone stays."""


NEW = "delete.tombstone.handling.mode"
OLD, OLD_TOMBSTONES = "delete.handling.mode", "drop.tombstones"
_OF_OLD = {
    ("drop", True): Deletes.DROP,
    ("drop", False): Deletes.TOMBSTONE,
    ("rewrite", True): Deletes.REWRITE,
    ("rewrite", False): Deletes.REWRITE_WITH_TOMBSTONE,
    ("none", True): Deletes.DELETE_TO_TOMBSTONE,
}
DELETED = "__deleted"


def _deletes(settings: EndConfig) -> Deletes:
    own = EXTRACT_NEW_RECORD_STATE.definition
    if (chosen := settings.find(own, NEW, str)) is not None:
        return Deletes(chosen)
    mode, drops = settings.find(own, OLD, str), settings.find(own, OLD_TOMBSTONES, bool)
    if mode is None and drops is None:
        return Deletes.TOMBSTONE
    return _OF_OLD[mode or "drop", True if drops is None else drops]


def _one_way(settings: EndConfig) -> Errors:
    """Errors for configs with both the new key and the old keys, and for two tombstones for each deletion."""
    given = [name for name in (OLD, OLD_TOMBSTONES) if settings.key(name) in settings.config]
    if given and settings.key(NEW) in settings.config:
        return settings.error(given[0], f"{settings.key(NEW)} replaces it; set that key only")
    own = EXTRACT_NEW_RECORD_STATE.definition
    if settings.find(own, OLD, str) == "none" and settings.find(own, OLD_TOMBSTONES, bool) is False:
        return settings.error(OLD, f"With none each deletion becomes a tombstone: leave {OLD_TOMBSTONES} at true")
    return {}


def _items(settings: EndConfig, name: str) -> list[tuple[list[str], str]]:
    """Path and new name of each field in the value of the key ``name``."""
    prefix = settings.read(EXTRACT_NEW_RECORD_STATE.definition, f"{name}.prefix", str)
    found = []
    for item in settings.read(EXTRACT_NEW_RECORD_STATE.definition, name, tuple):
        path, _, new = (part.strip() for part in item.partition(":"))
        found.append((path.split("."), prefix + (new or path.replace(".", "_"))))
    return found


def _looked_up(there: dict[str, DataType], path: list[str]) -> Column:
    """A field of the event, or of its ``source`` when the event has no field of that name.

    :raises ValueError: when there is no such field.
    """
    source = there.get("source")
    inner = {field.name: field.dataType for field in source.fields} if isinstance(source, StructType) else {}
    if len(path) == 1 and path[0] not in there and path[0] in inner:
        path = ["source", path[0]]
    found = column(known([path[0]], there)[0])
    type_ = there[path[0]]
    for name in path[1:]:
        fields = {field.name: field.dataType for field in type_.fields} if isinstance(type_, StructType) else {}
        found, type_ = found[known([name], fields)[0]], fields[name]
    return found


def _extract(rows: DataFrame, side: Side, settings: EndConfig) -> DataFrame:
    there = types(rows, Side.VALUE)
    after = there.get("after")
    if "op" not in there or not isinstance(after, StructType) or there.get("before") != after:
        raise ValueError(
            "the rows are not change events: they need the columns op STRING and before and after, two structs of the "
            "same columns; value.schema must contain them"
        )
    deletes, op = _deletes(settings), column("op")
    was_tombstone = column(Part.TOMBSTONE.value) if has(rows, Part.TOMBSTONE) else F.lit(False)
    keeps_tombstones = deletes in (Deletes.TOMBSTONE, Deletes.REWRITE_WITH_TOMBSTONE)
    keeps_deletes = deletes not in (Deletes.DROP, Deletes.TOMBSTONE)
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
    rows = keep(rows, kept)
    is_rewritten = deletes in (Deletes.REWRITE, Deletes.REWRITE_WITH_TOMBSTONE)
    row = F.when(is_delete, column("before")).otherwise(column("after")) if is_rewritten else column("after")
    made = {field.name: row[field.name] for field in after.fields}
    if is_rewritten:
        made[DELETED] = F.when(~was_tombstone, is_delete.cast("string"))
    headers = []
    for name in ("add.fields", "add.headers"):
        for path, new in _items(settings, name):
            try:
                found = _looked_up(there, path)
            except ValueError as error:
                raise settings.refused(name, str(error)) from error
            if name == "add.fields":
                made[new] = found
            else:
                headers.append(header(new, found))
    if (routed := settings.read(EXTRACT_NEW_RECORD_STATE.definition, "route.by.field", str)) != "":
        fields = {field.name: field.dataType for field in after.fields}
        try:
            topic = F.coalesce(column("after"), column("before"))[known([routed], fields)[0]].cast("string")
        except ValueError as error:
            raise settings.refused("route.by.field", str(error)) from error
        rows = rows.withColumn(Part.TOPIC.value, F.coalesce(topic, part_of(rows, Part.TOPIC)))
    rows = with_headers(rows, headers)
    is_tombstone = was_tombstone | is_delete if deletes is Deletes.DELETE_TO_TOMBSTONE else was_tombstone
    return with_fields(rows.withColumn(Part.TOMBSTONE.value, is_tombstone), Side.VALUE, made)


EXTRACT_NEW_RECORD_STATE = Kind(
    name="ExtractNewRecordState",
    package="io.debezium.transforms",
    keys=(
        key(
            NEW,
            "How deletions and tombstones are handled; by default tombstone.",
            "Deletions and tombstones",
            optional=True,
            check=one_of(way.value for way in Deletes),
        ),
        key(OLD, "How deletions are handled.", "Deletions", optional=True, check=one_of(("drop", "none", "rewrite"))),
        key(OLD_TOMBSTONES, "Whether tombstones are dropped.", "Drop tombstones", type_=Type.BOOLEAN, optional=True),
        key("add.fields", "Fields of the event that become columns.", "Added columns", type_=Type.LIST, default=""),
        key("add.fields.prefix", "Prefix of the columns' names.", "Prefix of added columns", default="__"),
        key("add.headers", "Fields of the event that become headers.", "Added headers", type_=Type.LIST, default=""),
        key("add.headers.prefix", "Prefix of the headers' names.", "Prefix of added headers", default="__"),
        key("route.by.field", "The column that becomes the topic.", "Column of the topic", default=""),
    ),
    apply=_extract,
    check=_one_way,
    uses_headers=lambda settings: bool(as_list(settings.config.get(settings.key("add.headers"), ""))),
)
