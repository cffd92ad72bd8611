"""The columns of a table that the PostgreSQL sink fills from a record: of its value, and with pk.mode=record_key of its
key."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from coterie.spark.end_config import EndConfig
from coterie.spark.record import Part, column, has, visible_names
from coterie.spark.sinks.postgres_target import PostgresTarget

DELETED = Part.TOMBSTONE.value
"""The column of a batch that says whether the row of the record's key is deleted; there only with delete.enabled."""
_TOMBSTONE = (
    "A record has no value (a tombstone), and delete.enabled is false: set delete.enabled=true, or drop such records "
    "by the transform Filter with the predicate RecordIsTombstone"
)


def table_columns(rows: DataFrame, target: PostgresTarget, config: EndConfig) -> DataFrame:
    """The columns of the key first. A column of the value that has the name of one of these is left out, as Connect's
    sink does. A tombstone fails the batch unless it deletes: its columns would be nulls.

    :raises ConfigError: when the rows have no key, or it has no such field.
    """
    names = visible_names(rows)
    chosen: list[Column] = []
    # Rows that are no records always have a value.
    is_tombstone = column(DELETED) if has(rows, Part.TOMBSTONE) else F.lit(False)
    if target.has_record_key:
        keys = _key_columns(rows, target.key_columns, config)
        if not target.deletes:
            keys = {name: F.when(~is_tombstone, key).otherwise(F.raise_error(_TOMBSTONE)) for name, key in keys.items()}
        chosen += [key.alias(name) for name, key in keys.items()]
        names = [name for name in names if name not in target.key_columns]
    chosen += map(column, names)
    if target.deletes:
        chosen.append(is_tombstone.alias(DELETED))
    return rows.select(*chosen)


def _key_columns(rows: DataFrame, names: tuple[str, ...], config: EndConfig) -> dict[str, Column]:
    if not has(rows, Part.KEY):
        raise config.refused(
            "pk.mode",
            "the rows have no key: KafkaSource reads one, the transform ValueToKey makes one, and after the transform "
            "Function there is none",
        )
    key = column(Part.KEY.value)
    type_ = next(field.dataType for field in rows.schema.fields if field.name == Part.KEY.value)
    if not isinstance(type_, StructType):
        if len(names) == 1:
            return {names[0]: key}
        raise config.refused("pk.fields", f"the key is one {type_.simpleString()}: name one column for it")
    if missing := [name for name in names if name not in type_.names]:
        raise config.refused("pk.fields", f"the key has no field {', '.join(missing)}; it has {', '.join(type_.names)}")
    return {name: key[name] for name in names}
