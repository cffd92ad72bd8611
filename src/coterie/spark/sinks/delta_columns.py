"""The layout of a Delta table, from its schema and protocol: which rows fit into the table, and whether only Spark can
write to it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from coterie.nouns.errors import WorldError

WHOLE_NUMBERS = (ByteType, ShortType, IntegerType, LongType)
PARTITION_TYPES = (*WHOLE_NUMBERS, StringType, DateType, BooleanType)
"""Types of partition columns whose values pyarrow and Spark write into folder names in the same form, that of Delta."""

_PLAIN = (
    *PARTITION_TYPES,
    BinaryType,
    CharType,
    DecimalType,
    DoubleType,
    FloatType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)
"""The types of columns that the sink can create, except structs, arrays and maps."""
_FORBIDDEN = " ,;{}()\n\t="
"""Characters that names of columns must not contain in a table without column mapping."""
_NULLABLE = ("nullable", "containsNull", "valueContainsNull")
"""The keys in a schema's JSON that state whether a column, an array or a map may contain nulls."""
_WRITER_FEATURES = {"appendOnly", "invariants", "timestampNtz"}
"""The table features of Delta with which Parquet files may be added to a table without further work. With
``invariants`` only if no column has an invariant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaTableLayout:
    """What a writer must know about a table. Two versions of a table with equal layouts accept the same files."""

    columns: StructType | None
    """None when deltalake cannot read the table."""
    partition_columns: tuple[str, ...]
    is_append_only: bool
    """Whether the table has ``delta.appendOnly=true``: then no row may be changed."""
    spark_only_reason: str | None
    """The reason why only Spark's Delta can write to the table, for messages; None when Parquet files can be added."""

    @classmethod
    def of(
        cls,
        *,
        schema: str,
        partition_columns: Sequence[str],
        configuration: Mapping[str, str],
        writer_version: int,
        writer_features: Sequence[str],
    ) -> "DeltaTableLayout":
        """The layout from Delta's metadata (``schema`` is JSON) and from its protocol (``writer_version`` and
        ``writer_features``)."""
        tree = json.loads(schema)
        columns = StructType.fromJson(tree)
        return cls(
            columns=columns,
            partition_columns=tuple(partition_columns),
            is_append_only=configuration.get("delta.appendOnly", "").lower() == "true",
            spark_only_reason=_unknown_feature(writer_version, writer_features)
            or _constraint(tree)
            or _odd_partition(columns, partition_columns),
        )


def _unknown_feature(version: int, features: Sequence[str]) -> str | None:
    """The reason why the table's protocol requires Spark's Delta, for messages: the writer version, or a table feature
    that is not in :data:`_WRITER_FEATURES`. None when Parquet files can be added."""
    if version <= 2:
        return None
    if version < 7:
        return f"its writer version is {version}"
    unknown = sorted(set(features) - _WRITER_FEATURES)
    return f"it has the table feature {unknown[0]}" if unknown else None


def _constraint(node: Any) -> str | None:
    """The first column rule in ``node``, a part of a schema's JSON, that an append of Parquet files would not enforce
    (NOT NULL, an invariant, a generated or default value, a length), for messages; None without such a rule."""
    if isinstance(node, list):
        return next((found for item in node if (found := _constraint(item))), None)
    if not isinstance(node, dict):
        return None
    name = node.get("name", "")
    if any(node.get(word) is False for word in _NULLABLE):
        return f"column {name} is NOT NULL" if name else "it has an array or a map without nulls"
    if rules := sorted(set(node.get("metadata", {})) - {"comment"}):
        return f"column {name} has {rules[0]}"
    return _constraint([value for key, value in node.items() if key != "metadata"])


def _odd_partition(columns: StructType, partition_columns: Sequence[str]) -> str | None:
    """The first partition column whose type is not in :data:`PARTITION_TYPES`, for messages; None when there is
    none."""
    odd = [name for name in partition_columns if not isinstance(columns[name].dataType, PARTITION_TYPES)]
    return f"its partition column {odd[0]} has type {columns[odd[0]].dataType.simpleString()}" if odd else None


def schema_for(rows: StructType, partition_columns: Sequence[str]) -> str:
    """The schema, as Delta's JSON, of a new table for ``rows`` that is partitioned by ``partition_columns``. Each
    column may be null.

    :raises WorldError: when the sink cannot create a column with the name or type of one in ``rows``; when a partition
        column is missing or has a type that is not in :data:`PARTITION_TYPES`; when all columns are partition columns.
    """
    for field in rows.fields:
        if any(sign in field.name for sign in _FORBIDDEN):
            raise WorldError(
                f"Column {field.name!r} cannot be created in a Delta table: its name has a space or one of ,;{{}}()=; "
                "rename the column"
            )
        if not _is_plain(field.dataType):
            raise WorldError(
                f"Column {field.name} has type {field.dataType.simpleString()}, with which the sink can create no "
                "column of a Delta table; cast the column or drop it"
            )
    for name in partition_columns:
        if name not in rows.names:
            raise WorldError(f"The rows have no column {name}, which is in partition.field.name; {_has(rows)}")
        if not isinstance(rows[name].dataType, PARTITION_TYPES):
            raise WorldError(
                f"Column {name} has type {rows[name].dataType.simpleString()}, and partition.field.name takes text, "
                "whole numbers, dates and booleans; cast the column"
            )
    if set(rows.names) == set(partition_columns):
        raise WorldError("partition.field.name contains all columns of the rows; leave one out")
    return json.dumps(_nullable(json.loads(rows.json())))


def _is_plain(type_: DataType) -> bool:
    """Whether the sink can create a column of this type: one of :data:`_PLAIN`, or a struct, an array or a map of such
    types, at any depth."""
    match type_:
        case StructType():
            return all(_is_plain(field.dataType) for field in type_.fields)
        case ArrayType():
            return _is_plain(type_.elementType)
        case MapType():
            return _is_plain(type_.keyType) and _is_plain(type_.valueType)
        case _:
            return isinstance(type_, _PLAIN)


def check_fit(where: str, layout: DeltaTableLayout, rows: StructType, key_columns: Sequence[str]) -> None:
    """Check that rows of the schema ``rows`` fit into the table. ``where`` names the table in messages. If the layout
    has no columns, only the keys are checked.

    :raises WorldError: when the rows have a column that the table does not have, or with another type; when the rows
        have no column for a key or partition column; when ``key_columns`` is not empty and the table is append-only.
    """
    for name in key_columns:
        if name not in rows.names:
            raise WorldError(f"The rows have no column {name}, which is in pk.fields; {_has(rows)}")
    if layout.is_append_only and key_columns:
        raise WorldError(f"{where} has delta.appendOnly=true; set insert.mode=insert, or unset the property")
    if layout.columns is None:
        return
    types = {field.name: field.dataType for field in layout.columns.fields}
    for field in rows.fields:
        if (type_ := types.get(field.name)) is None:
            raise WorldError(
                f"{where} has no column {field.name} ({field.dataType.simpleString()}); add the column to the table, "
                f"or drop it from the rows. The table has: {', '.join(sorted(types))}"
            )
        if _shape(type_) != _shape(field.dataType):
            raise WorldError(
                f"Column {field.name} of {where} has type {type_.simpleString()}, and the rows have "
                f"{field.dataType.simpleString()}; cast the column, or change the table"
            )
    for name in layout.partition_columns:
        if name not in rows.names:
            raise WorldError(f"{where} is partitioned by {name}, and the rows have no such column; {_has(rows)}")


def _has(rows: StructType) -> str:
    """The columns of the rows, for messages."""
    return f"they have: {', '.join(rows.names)}"


def _shape(type_: DataType) -> Any:
    """The JSON of a type without what a writer need not know: whether values may be null, and metadata such as
    comments."""
    return _nullable(json.loads(type_.json()))


def _nullable(node: Any) -> Any:
    """The JSON ``node`` of a schema, with nulls allowed everywhere and without the columns' metadata."""
    if isinstance(node, list):
        return [_nullable(item) for item in node]
    if not isinstance(node, dict):
        return node
    free: dict[str, Any] = dict.fromkeys(_NULLABLE, True) | {"metadata": {}}
    return {key: free[key] if key in free else _nullable(value) for key, value in node.items()}
