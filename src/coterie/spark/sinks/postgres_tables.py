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

_TEXT = ("text", "varchar", "bpchar", "citext", "json", "jsonb", "uuid", "xml", "enum")
_TYPES: Mapping[type[DataType], tuple[str, tuple[str, ...]]] = {
    BooleanType: ("boolean", ("bool",)),
    ByteType: ("smallint", ("int2", "int4", "int8", "numeric", "float4", "float8")),
    ShortType: ("smallint", ("int2", "int4", "int8", "numeric", "float4", "float8")),
    IntegerType: ("integer", ("int4", "int8", "numeric", "float8")),
    LongType: ("bigint", ("int8", "numeric")),
    FloatType: ("real", ("float4", "float8")),
    DoubleType: ("double precision", ("float8",)),
    StringType: ("text", _TEXT),
    VarcharType: ("text", _TEXT),
    CharType: ("text", _TEXT),
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
    """A column of a table."""

    name: str
    type: str
    """PostgreSQL's internal name of the type; for a domain that of its base type; for an enumeration ``enum``."""
    shown_type: str
    """The type as PostgreSQL shows it to users."""
    must_be_given: bool
    """Whether the column is NOT NULL and has no default."""


def quoted(*names: str | None) -> str:
    """An identifier in SQL: ``names`` with quotes, separated by dots. None is left out."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names if name is not None)


def create_table(table: str, schema: StructType, key_columns: Sequence[str]) -> str:
    """The statement that creates ``table`` (a quoted name) with the columns of ``schema`` and, unless ``key_columns``
    is empty, a primary key.

    :raises WorldError: when PostgreSQL has no type for a column, or a key column is missing.
    """
    check_keys(schema, key_columns)
    columns = [f"{quoted(field.name)} {_type_for(field.name, field.dataType)}" for field in schema.fields]
    if key_columns:
        columns.append(f"PRIMARY KEY ({', '.join(quoted(name) for name in key_columns)})")
    return f"CREATE TABLE {table} ({', '.join(columns)})"


def check_keys(schema: StructType, key_columns: Sequence[str]) -> None:
    """Check that ``schema`` has all key columns.

    :raises WorldError: when a key column is missing; the message names the column.
    """
    for name in key_columns:
        if name not in schema.names:
            raise WorldError(
                f"The rows have no column {name}, which is in pk.fields; they have: {', '.join(schema.names)}"
            )


def check_fit(table: str, columns: Sequence[TableColumn], schema: StructType) -> None:
    """Check that rows of ``schema`` fit into ``table``, which has ``columns``.

    :raises WorldError: when the table has no column for one of the rows, or a column of another type; when PostgreSQL
        has no type for a column; when the rows lack a column that must be given. The message names the column.
    """
    by_name = {column.name: column for column in columns}
    for field in schema.fields:
        if (column := by_name.get(field.name)) is None:
            raise WorldError(
                f"Table {table} has no column {field.name} ({_shown(field.dataType)}); add the column to the table, or "
                f"drop it from the rows. The table has: {', '.join(sorted(by_name))}"
            )
        if column.type not in _types_for(field.name, field.dataType)[1]:
            raise WorldError(
                f"Column {field.name} of table {table} has type {column.shown_type}, and the rows have "
                f"{_shown(field.dataType)}; cast the column, or change the table"
            )
    for column in columns:
        if column.must_be_given and column.name not in schema.names:
            raise WorldError(
                f"Column {column.name} of table {table} is NOT NULL without a default, and the rows have no "
                "such column; add the column to the rows, or give it a default in the table"
            )


def _types_for(name: str, type_: DataType) -> tuple[str, tuple[str, ...]]:
    """For a column ``name`` of this type: see :data:`_TYPES`.

    :raises WorldError: when PostgreSQL has no type for the column.
    """
    if isinstance(type_, DecimalType):
        return f"numeric({type_.precision},{type_.scale})", ("numeric",)
    if (found := _TYPES.get(type(type_))) is None:
        raise WorldError(
            f"Column {name} has type {_shown(type_)}, for which PostgreSQL has no column type; drop the column or "
            "convert it (to_json converts a structure, an array or a map to text)"
        )
    return found


def _type_for(name: str, type_: DataType) -> str:
    """The type with which a column ``name`` is created.

    :raises WorldError: when PostgreSQL has no type for the column.
    """
    return _types_for(name, type_)[0]


def _shown(type_: DataType) -> str:
    """The type, for messages."""
    return type_.simpleString()


# -- rows as text -----------------------------------------------------------------------------------------------------


def as_csv(arrow_batch: pa.RecordBatch, positions_from: int | None = None) -> bytes:
    """The rows as lines for ``COPY … (FORMAT csv)``. Text is always quoted and null never, so that empty text and null
    differ.

    With ``positions_from`` an additional last column has the row numbers, which start with this number.

    :raises WorldError: when a text is not UTF-8.
    """
    arrays = [_plain(array) for array in arrow_batch.columns]
    if positions_from is not None:
        arrays.append(pa.array(range(positions_from, positions_from + arrow_batch.num_rows), pa.int64()))
    out = io.BytesIO()
    table = pa.record_batch(arrays, names=[str(number) for number in range(len(arrays))])
    try:
        pyarrow.csv.write_csv(table, out, pyarrow.csv.WriteOptions(include_header=False))
    except pa.ArrowInvalid as error:
        raise WorldError(f"The rows cannot be written as text for COPY: {error}") from error
    return out.getvalue()


def _plain(array: pa.Array) -> pa.Array:
    """``array`` in a type whose CSV text PostgreSQL reads: timestamps with a zone in UTC, bytes as hexadecimal
    digits."""
    if pa.types.is_timestamp(array.type) and array.type.tz is not None:
        # The instants stay the same; without the cast the text would have the session's zone.
        return array.cast(pa.timestamp(array.type.unit, "UTC"))
    if pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type):
        return pa.array([None if value is None else "\\x" + value.hex() for value in array.to_pylist()], pa.string())
    return array


def first_null(arrow_batch: pa.RecordBatch, columns: Sequence[str]) -> tuple[int, str] | None:
    """The first row with a null in ``columns``: its number in ``arrow_batch``, from 0, and the column. None when there
    is no null."""
    found = [
        (pyarrow.compute.index(arrow_batch.column(name).is_null(), True).as_py(), name)
        for name in columns
        if arrow_batch.column(name).null_count
    ]
    return min(found, default=None)


def first_nul_character(arrow_batch: pa.RecordBatch) -> tuple[int, str] | None:
    """The first row with the character NUL in a text: its number in ``arrow_batch``, from 0, and the column. None when
    there is no such text."""
    found = [
        (index, name)
        for name, array in zip(arrow_batch.schema.names, arrow_batch.columns, strict=True)
        if pa.types.is_string(array.type) or pa.types.is_large_string(array.type)
        if (index := pyarrow.compute.index(pyarrow.compute.match_substring(array, "\0"), True).as_py()) >= 0
    ]
    return min(found, default=None)
