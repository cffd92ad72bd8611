"""The columns that the PostgreSQL sink writes: those of a record's value, and with pk.mode=record_key of its key."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from coterie.spark.end_config import EndConfig
from coterie.spark.record import Part, column, has, visible_names
from coterie.spark.sinks.postgres_target import PostgresTarget

DELETED = Part.TOMBSTONE.value
"""The boolean column of a batch for rows to delete by their key; batches have it only with delete.enabled."""
_TOMBSTONE = (
    "A record has no value (a tombstone), and delete.enabled is false: set delete.enabled=true, or drop such records "
    "by the transform Filter with the predicate RecordIsTombstone"
)


def table_columns(rows: DataFrame, target: PostgresTarget, config: EndConfig) -> DataFrame:
    """``rows`` with the columns of the table, those of the key first.

    A column of the value with the name of a key column is left out, as Connect's sink does. With delete.enabled=false a
    tombstone fails the batch, since its columns would be nulls.

    :raises ConfigError: when the rows have no key, or the key has no field of a name in pk.fields.
    """
    names = visible_names(rows)
    chosen: list[Column] = []
    # Rows that do not come from Kafka records always have a value.
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
            "the rows have no key: KafkaSource reads a key, the transform ValueToKey sets a key, and the transform "
            "Function removes it",
        )
    key = column(Part.KEY.value)
    type_ = next(field.dataType for field in rows.schema.fields if field.name == Part.KEY.value)
    if not isinstance(type_, StructType):
        if len(names) == 1:
            return {names[0]: key}
        raise config.refused("pk.fields", f"the key is one {type_.simpleString()}: set exactly one column")
    if missing := [name for name in names if name not in type_.names]:
        raise config.refused("pk.fields", f"the key has no field {', '.join(missing)}; it has {', '.join(type_.names)}")
    return {name: key[name] for name in names}
