"""PostgreSQL's column types for the columns of a DataFrame, and conversion of rows to text for COPY."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
from pyspark.sql.types import (
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
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from coterie.nouns.errors import WorldError

_TEXT_TYPES = ("text", "varchar", "bpchar", "citext", "json", "jsonb", "uuid", "xml", "enum")
_POSTGRES_TYPES: Mapping[type[DataType], tuple[str, tuple[str, ...]]] = {
    BooleanType: ("boolean", ("bool",)),
    ByteType: ("smallint", ("int2", "int4", "int8", "numeric", "float4", "float8")),
    ShortType: ("smallint", ("int2", "int4", "int8", "numeric", "float4", "float8")),
    IntegerType: ("integer", ("int4", "int8", "numeric", "float8")),
    LongType: ("bigint", ("int8", "numeric")),
    FloatType: ("real", ("float4", "float8")),
    DoubleType: ("double precision", ("float8",)),
    StringType: ("text", _TEXT_TYPES),
    VarcharType: ("text", _TEXT_TYPES),
    CharType: ("text", _TEXT_TYPES),
    BinaryType: ("bytea", ("bytea",)),
    DateType: ("date", ("date",)),
    # A timestamp is written to a column without zone as its UTC clock time, as Connect's JDBC sink does.
    TimestampType: ("timestamptz", ("timestamptz", "timestamp")),
    TimestampNTZType: ("timestamp", ("timestamp",)),
}
"""By type of a DataFrame's column: the type with which ``auto.create`` creates the column, and PostgreSQL's internal
names of all types that store its values without loss. ``enum`` means every enumeration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumn:
    """A column of an existing PostgreSQL table."""

    name: str
    type: str
    """PostgreSQL's internal name of the type; for a domain that of its base type; for an enumeration ``enum``."""
    display_type: str
    """The type as PostgreSQL writes it for users, for example ``character varying(10)``."""
    is_value_required: bool
    """Whether every inserted row needs a value: the column is NOT NULL and has no default."""


def quote_name(*names: str | None) -> str:
    """``names`` as one identifier in SQL: each name in double quotes, separated by dots. A name that is None is left
    out."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names if name is not None)


def create_table_statement(table: str, schema: StructType, primary_key_columns: Sequence[str]) -> str:
    """The statement that creates ``table`` (a quoted name) with the columns of ``schema`` and, unless
    ``primary_key_columns`` is empty, a primary key.

    :raises WorldError: when PostgreSQL has no type for a column, or a key column is missing.
    """
    check_key_columns_exist(schema, primary_key_columns)
    columns = [f"{quote_name(field.name)} {_type_of_new_column(field.name, field.dataType)}" for field in schema.fields]
    if primary_key_columns:
        columns.append(f"PRIMARY KEY ({', '.join(quote_name(name) for name in primary_key_columns)})")
    return f"CREATE TABLE {table} ({', '.join(columns)})"


def check_key_columns_exist(schema: StructType, primary_key_columns: Sequence[str]) -> None:
    """Check that ``schema`` has all key columns.

    :raises WorldError: when a key column is missing; the message names the column.
    """
    for name in primary_key_columns:
        if name not in schema.names:
            raise WorldError(
                f"The rows have no column {name}, which is in pk.fields; they have: {', '.join(schema.names)}"
            )


def check_rows_fit(table: str, columns: Sequence[TableColumn], schema: StructType) -> None:
    """Check that rows of ``schema`` fit into ``table``, which has ``columns``.

    :raises WorldError: when the table lacks a column of the rows, or has it with another type; when PostgreSQL has no
        type for a column; when the rows lack a column that requires a value. The message names the column.
    """
    column_by_name = {column.name: column for column in columns}
    for field in schema.fields:
        if (column := column_by_name.get(field.name)) is None:
            raise WorldError(
                f"Table {table} has no column {field.name} ({_type_text(field.dataType)}); add the column to the "
                f"table, or drop it from the rows. The table has: {', '.join(sorted(column_by_name))}"
            )
        if column.type not in _new_and_accepted_column_types(field.name, field.dataType)[1]:
            raise WorldError(
                f"Column {field.name} of table {table} has type {column.display_type}, and the rows have "
                f"{_type_text(field.dataType)}; cast the column, or change the table"
            )
    for column in columns:
        if column.is_value_required and column.name not in schema.names:
            raise WorldError(
                f"Column {column.name} of table {table} is NOT NULL without a default, and the rows have no "
                "such column; add the column to the rows, or give it a default in the table"
            )


def _new_and_accepted_column_types(name: str, type_: DataType) -> tuple[str, tuple[str, ...]]:
    """For a column ``name`` of this type: the type with which it is created, and the accepted types of an existing
    column (see :data:`_POSTGRES_TYPES`).

    :raises WorldError: when PostgreSQL has no type for the column.
    """
    if isinstance(type_, DecimalType):
        return f"numeric({type_.precision},{type_.scale})", ("numeric",)
    if (types := _POSTGRES_TYPES.get(type(type_))) is None:
        raise WorldError(
            f"Column {name} has type {_type_text(type_)}, for which PostgreSQL has no column type; drop the column or "
            "convert it (to_json converts a structure, an array or a map to text)"
        )
    return types


def _type_of_new_column(name: str, type_: DataType) -> str:
    """The type with which a column ``name`` is created.

    :raises WorldError: when PostgreSQL has no type for the column.
    """
    return _new_and_accepted_column_types(name, type_)[0]


def _type_text(type_: DataType) -> str:
    """Spark's name of the type ``type_``, for messages."""
    return type_.simpleString()


# -- rows as text -----------------------------------------------------------------------------------------------------


def to_csv_for_copy(arrow_batch: pa.RecordBatch, first_position: int | None = None) -> bytes:
    """The rows as lines for ``COPY … (FORMAT csv)``. Text is always quoted and null never, so that empty text and null
    differ.

    With ``first_position`` an additional last column has the rows' positions: consecutive numbers from
    ``first_position``.

    :raises WorldError: when pyarrow cannot write the rows as CSV, for example because a text is not UTF-8.
    """
    arrays = [_to_csv_writable(array) for array in arrow_batch.columns]
    if first_position is not None:
        arrays.append(pa.array(range(first_position, first_position + arrow_batch.num_rows), pa.int64()))
    output = io.BytesIO()
    table = pa.record_batch(arrays, names=[str(number) for number in range(len(arrays))])
    try:
        pyarrow.csv.write_csv(table, output, pyarrow.csv.WriteOptions(include_header=False))
    except pa.ArrowInvalid as error:
        raise WorldError(
            f"The rows cannot be written as text for COPY: {error}. If a text is not UTF-8, convert it by a transform"
        ) from error
    return output.getvalue()


def _to_csv_writable(array: pa.Array) -> pa.Array:
    """``array`` converted to a type whose CSV text PostgreSQL reads: timestamps with a zone in UTC, bytes as
    hexadecimal digits."""
    if pa.types.is_timestamp(array.type) and array.type.tz is not None:
        # The instants stay the same; without the cast the text would have the session's zone.
        return array.cast(pa.timestamp(array.type.unit, "UTC"))
    if pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type):
        return pa.array([None if value is None else "\\x" + value.hex() for value in array.to_pylist()], pa.string())
    return array


def find_first_row_with_null(arrow_batch: pa.RecordBatch, columns: Sequence[str]) -> tuple[int, str] | None:
    """The first row with a null in ``columns``: its number in ``arrow_batch``, from 0, and the column. None when there
    is no null."""
    null_positions = [
        (pyarrow.compute.index(arrow_batch.column(name).is_null(), True).as_py(), name)
        for name in columns
        if arrow_batch.column(name).null_count
    ]
    return min(null_positions, default=None)


def find_first_row_with_nul_character(arrow_batch: pa.RecordBatch) -> tuple[int, str] | None:
    """The first row with the character NUL in a text: its number in ``arrow_batch``, from 0, and the column. None when
    there is no such text."""
    nul_positions = [
        (index, name)
        for name, array in zip(arrow_batch.schema.names, arrow_batch.columns, strict=True)
        if pa.types.is_string(array.type) or pa.types.is_large_string(array.type)
        if (index := pyarrow.compute.index(pyarrow.compute.match_substring(array, "\0"), True).as_py()) >= 0
    ]
    return min(nul_positions, default=None)
