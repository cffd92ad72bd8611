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

WHOLE_NUMBER_TYPES = (ByteType, ShortType, IntegerType, LongType)
PARTITION_TYPES = (*WHOLE_NUMBER_TYPES, StringType, DateType, BooleanType)
"""Types of partition columns whose values pyarrow and Spark write into folder names in the same form, that of Delta."""

_CREATABLE_TYPES = (
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
_FORBIDDEN_NAME_CHARACTERS = " ,;{}()\n\t="
"""Characters that names of columns must not contain in a table without column mapping."""
_NULLABILITY_KEYS = ("nullable", "containsNull", "valueContainsNull")
"""The keys in a schema's JSON that state whether a column, an array or a map may contain nulls."""
_SUPPORTED_WRITER_FEATURES = {"appendOnly", "invariants", "timestampNtz"}
"""The table features of Delta with which Parquet files may be added to a table without further work. With
``invariants`` only if no column has an invariant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaTableLayout:
    """The data about a Delta table, at one version, that a writer needs. Two versions of a table with equal layouts
    accept the same files."""

    columns: StructType | None
    """The columns of the table; None when deltalake cannot read the table, although it exists."""
    partition_columns: tuple[str, ...]
    is_append_only: bool
    """Whether the table has ``delta.appendOnly=true``: then no row may be changed. False when deltalake cannot read the
    table."""
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
        schema_json = json.loads(schema)
        columns = StructType.fromJson(schema_json)
        return cls(
            columns=columns,
            partition_columns=tuple(partition_columns),
            is_append_only=configuration.get("delta.appendOnly", "").lower() == "true",
            spark_only_reason=_describe_unsupported_protocol(writer_version, writer_features)
            or _describe_unenforced_column_rule(schema_json)
            or _describe_unsupported_partition_column(columns, partition_columns),
        )


def _describe_unsupported_protocol(version: int, features: Sequence[str]) -> str | None:
    """The reason why the table's protocol requires Spark's Delta, for messages: the writer version ``version``, or one
    of the table features ``features`` that is not in :data:`_SUPPORTED_WRITER_FEATURES`. None when Parquet files can be
    added."""
    if version <= 2:
        return None
    if version < 7:
        return f"its writer version is {version}"
    unknown = sorted(set(features) - _SUPPORTED_WRITER_FEATURES)
    return f"it has the table feature {unknown[0]}" if unknown else None


def _describe_unenforced_column_rule(node: Any) -> str | None:
    """A text for a message: the first column rule in ``node``, a part of a schema's JSON, that an append of Parquet
    files would not enforce (NOT NULL, an invariant, a generated or default value, a length). None when there is no such
    rule."""
    if isinstance(node, list):
        return next((rule for item in node if (rule := _describe_unenforced_column_rule(item))), None)
    if not isinstance(node, dict):
        return None
    name = node.get("name", "")
    if any(node.get(word) is False for word in _NULLABILITY_KEYS):
        return f"column {name} is NOT NULL" if name else "it has an array or a map without nulls"
    if rules := sorted(set(node.get("metadata", {})) - {"comment"}):
        return f"column {name} has {rules[0]}"
    return _describe_unenforced_column_rule([value for key, value in node.items() if key != "metadata"])


def _describe_unsupported_partition_column(columns: StructType, partition_columns: Sequence[str]) -> str | None:
    """A text for a message: the first partition column whose type is not in :data:`PARTITION_TYPES`, and its type. None
    when there is no such column."""
    unsupported = [name for name in partition_columns if not isinstance(columns[name].dataType, PARTITION_TYPES)]
    return (
        f"its partition column {unsupported[0]} has type {columns[unsupported[0]].dataType.simpleString()}"
        if unsupported
        else None
    )


def new_table_schema_json(rows: StructType, partition_columns: Sequence[str]) -> str:
    """The schema, as Delta's JSON, of a new table for ``rows`` that is partitioned by ``partition_columns``. Each
    column may be null.

    :raises WorldError: when the sink cannot create a column with the name or type of one in ``rows``; when a partition
        column is missing or has a type that is not in :data:`PARTITION_TYPES`; when all columns are partition columns.
    """
    for field in rows.fields:
        if any(character in field.name for character in _FORBIDDEN_NAME_CHARACTERS):
            raise WorldError(
                f"Column {field.name!r} cannot be created in a Delta table: its name has a space or one of ,;{{}}()=; "
                "rename the column"
            )
        if not _can_sink_create_type(field.dataType):
            raise WorldError(
                f"Column {field.name} has type {field.dataType.simpleString()}, with which the sink can create no "
                "column of a Delta table; cast the column or drop it"
            )
    for name in partition_columns:
        if name not in rows.names:
            raise WorldError(f"The rows have no column {name}, which is in partition.field.name; {_columns_text(rows)}")
        if not isinstance(rows[name].dataType, PARTITION_TYPES):
            raise WorldError(
                f"Column {name} has type {rows[name].dataType.simpleString()}, and partition.field.name takes text, "
                "whole numbers, dates and booleans; cast the column"
            )
    if set(rows.names) == set(partition_columns):
        raise WorldError("partition.field.name contains all columns of the rows; leave one out")
    return json.dumps(_without_nullability_and_metadata(json.loads(rows.json())))


def _can_sink_create_type(type_: DataType) -> bool:
    """Whether the sink can create a column of this type: one of :data:`_CREATABLE_TYPES`, or a struct, an array or a
    map of such types, at any depth."""
    match type_:
        case StructType():
            return all(_can_sink_create_type(field.dataType) for field in type_.fields)
        case ArrayType():
            return _can_sink_create_type(type_.elementType)
        case MapType():
            return _can_sink_create_type(type_.keyType) and _can_sink_create_type(type_.valueType)
        case _:
            return isinstance(type_, _CREATABLE_TYPES)


def check_rows_and_upsert_fit(
    table_name: str, layout: DeltaTableLayout, rows: StructType, key_columns: Sequence[str]
) -> None:
    """Check that rows of the schema ``rows`` fit into the table with this ``layout``. ``table_name``: the table in
    messages about it. If the layout has no columns, only the key columns are checked, and whether the table is
    append-only.

    :raises WorldError: when the rows have a column that the table does not have, or with another type; when the rows
        have no column for a key or partition column; when ``key_columns`` is not empty and the table is append-only.
    """
    for name in key_columns:
        if name not in rows.names:
            raise WorldError(f"The rows have no column {name}, which is in pk.fields; {_columns_text(rows)}")
    if layout.is_append_only and key_columns:
        raise WorldError(
            f"{table_name} has delta.appendOnly=true, so no row can be upserted; set insert.mode=insert, or unset the "
            "property"
        )
    if layout.columns is None:
        return
    types = {field.name: field.dataType for field in layout.columns.fields}
    for field in rows.fields:
        if (type_ := types.get(field.name)) is None:
            raise WorldError(
                f"{table_name} has no column {field.name} ({field.dataType.simpleString()}); add the column to the "
                f"table, or drop it from the rows. The table has: {', '.join(sorted(types))}"
            )
        if _comparable_type(type_) != _comparable_type(field.dataType):
            raise WorldError(
                f"Column {field.name} of {table_name} has type {type_.simpleString()}, and the rows have "
                f"{field.dataType.simpleString()}; cast the column, or change the table"
            )
    for name in layout.partition_columns:
        if name not in rows.names:
            raise WorldError(
                f"{table_name} is partitioned by {name}, and the rows have no such column; {_columns_text(rows)}"
            )


def _columns_text(rows: StructType) -> str:
    """The end of a message: the names of the columns that the rows have."""
    return f"they have: {', '.join(rows.names)}"


def _comparable_type(type_: DataType) -> Any:
    """The JSON of a type without the parts that do not matter to a writer: whether values may be null, and metadata
    such as comments."""
    return _without_nullability_and_metadata(json.loads(type_.json()))


def _without_nullability_and_metadata(node: Any) -> Any:
    """The JSON ``node`` of a schema, with nulls allowed everywhere and without the columns' metadata."""
    if isinstance(node, list):
        return [_without_nullability_and_metadata(item) for item in node]
    if not isinstance(node, dict):
        return node
    replaced_values: dict[str, Any] = dict.fromkeys(_NULLABILITY_KEYS, True) | {"metadata": {}}
    return {
        key: replaced_values[key] if key in replaced_values else _without_nullability_and_metadata(value)
        for key, value in node.items()
    }
