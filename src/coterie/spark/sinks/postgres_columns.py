"""The columns that the PostgreSQL sink writes: those of a record's value, and with pk.mode=record_key of its key."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from coterie.spark.prefixed_config import PrefixedConfig
from coterie.spark.record_columns import MetadataColumn, exact_column, has_metadata_column, visible_column_names
from coterie.spark.sinks.postgres_target import PostgresTarget

DELETED_COLUMN = MetadataColumn.TOMBSTONE.value
"""The boolean column of a batch that is true for a row to delete by its key. Batches have it only with
delete.enabled=true."""
_TOMBSTONE_ERROR = (
    "A record has no value (a tombstone), and delete.enabled is false: set delete.enabled=true, or drop such records "
    "by the transform Filter with the predicate RecordIsTombstone"
)
"""Error message for a tombstone that the sink cannot write."""


def select_columns_to_write(rows: DataFrame, target: PostgresTarget, config: PrefixedConfig) -> DataFrame:
    """``rows`` with the columns that the sink writes to the table, those of the record's key first.

    With pk.mode=record_key, a column of the value with the name of a key column is left out, as Connect's sink does.
    With delete.enabled=true the column :data:`DELETED_COLUMN` is added. With pk.mode=record_key and
    delete.enabled=false, a tombstone fails the batch, since the columns of its value would be nulls.

    :raises ConfigError: when pk.mode=record_key, and the rows have no key, the key has no field of a name in pk.fields,
        or the key is not a struct and pk.fields names several columns.
    """
    names = visible_column_names(rows)
    selected: list[Column] = []
    # Rows that do not come from Kafka records always have a value.
    is_tombstone = exact_column(DELETED_COLUMN) if has_metadata_column(rows, MetadataColumn.TOMBSTONE) else F.lit(False)
    if target.is_key_from_record_key:
        keys = _columns_of_record_key(rows, target.primary_key_columns, config)
        if not target.deletes_on_tombstones:
            keys = {
                name: F.when(~is_tombstone, key).otherwise(F.raise_error(_TOMBSTONE_ERROR))
                for name, key in keys.items()
            }
        selected += [key.alias(name) for name, key in keys.items()]
        names = [name for name in names if name not in target.primary_key_columns]
    selected += map(exact_column, names)
    if target.deletes_on_tombstones:
        selected.append(is_tombstone.alias(DELETED_COLUMN))
    return rows.select(*selected)


def _columns_of_record_key(rows: DataFrame, names: tuple[str, ...], config: PrefixedConfig) -> dict[str, Column]:
    """The columns of the record's key, by the names of the key columns (``names``): the key's fields of these names; a
    key that is not a struct is the only column.

    :raises ConfigError: when the rows have no key, the key has no field of a name in ``names``, or the key is not a
        struct and there are several names.
    """
    if not has_metadata_column(rows, MetadataColumn.KEY):
        raise config.make_config_error(
            "pk.mode",
            "the rows have no key: KafkaSource reads a key, the transform ValueToKey sets a key, and the transform "
            "Function removes it",
        )
    key = exact_column(MetadataColumn.KEY.value)
    type_ = next(field.dataType for field in rows.schema.fields if field.name == MetadataColumn.KEY.value)
    if not isinstance(type_, StructType):
        if len(names) == 1:
            return {names[0]: key}
        raise config.make_config_error(
            "pk.fields", f"the record's key is one {type_.simpleString()}: name exactly one column"
        )
    if missing_fields := [name for name in names if name not in type_.names]:
        raise config.make_config_error(
            "pk.fields", f"the record's key has no field {', '.join(missing_fields)}; it has {', '.join(type_.names)}"
        )
    return {name: key[name] for name in names}
