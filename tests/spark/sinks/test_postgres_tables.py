"""Values are unchanged in a table of a real PostgreSQL, whose columns follow from the rows' types."""

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
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
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from coterie.nouns.errors import WorldError
from coterie.spark.sinks.postgres_tables import create_table_statement
from coterie.spark.sinks.postgres_writer import PostgresWriter
from tests.spark.sinks.postgres_rows import LINEAGE, divided, target_of
from tests.spark.sinks.postgres_server import PostgresServer

UTC = datetime.UTC
NAN = float("nan")
CASES: list[tuple[DataType, pa.DataType, str, list[Any]]] = [
    (BooleanType(), pa.bool_(), "boolean", [True, False, None]),
    (ByteType(), pa.int8(), "smallint", [-128, 127, None]),
    (ShortType(), pa.int16(), "smallint", [-32768, 32767, None]),
    (IntegerType(), pa.int32(), "integer", [-(2**31), 2**31 - 1, None]),
    (LongType(), pa.int64(), "bigint", [-(2**63), 2**63 - 1, None]),
    (FloatType(), pa.float32(), "real", [0.5, float("inf"), None]),
    (DoubleType(), pa.float64(), "double precision", [0.1, -1e-300, float("-inf")]),
    (
        DecimalType(38, 10),
        pa.decimal128(38, 10),
        "numeric(38,10)",
        [Decimal("-1234567890.0123456789"), Decimal(0), None],
    ),
    (StringType(), pa.string(), "text", ['a "quoted", one', "lines\nand\r\ntabs\t", "\\N \\. \\"]),
    (StringType(), pa.string(), "text", ["", "NULL", None]),
    (StringType(), pa.string(), "text", ["\\.", " é😀 ", "'"]),
    (BinaryType(), pa.binary(), "bytea", [b"\x00\xff\\x", b"", None]),
    (DateType(), pa.date32(), "date", [datetime.date(1, 1, 1), datetime.date(9999, 12, 31), None]),
    (
        TimestampType(),
        pa.timestamp("us", "Europe/Berlin"),
        "timestamp with time zone",
        [
            datetime.datetime(2024, 7, 1, 12, 30, 0, 5, tzinfo=UTC),
            datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
            None,
        ],
    ),
    (
        TimestampNTZType(),
        pa.timestamp("us"),
        "timestamp without time zone",
        [datetime.datetime.fromisoformat(text) for text in ("2024-03-31 02:30:00", "0001-01-01 00:00:00")] + [None],
    ),
]


def write(server: PostgresServer, schema: StructType, batch: pa.RecordBatch, **keys: str) -> None:
    target = target_of(
        server.keys
        | {"table.name.format": "made", "auto.create": "true"}
        | {key.replace("__", "."): value for key, value in keys.items()}
    )
    writer = PostgresWriter(target, LINEAGE, 1)
    try:
        writer.take_over()
        staged = writer.stage(0, schema, divided(lambda: [batch]))
        staged.commit()
        staged.clean_up()
    finally:
        writer.close()


@pytest.fixture
def server(postgres: PostgresServer) -> PostgresServer:
    """The server without the table."""
    postgres.run("DROP TABLE IF EXISTS made, coterie_ledger")
    return postgres


def shown_columns(server: PostgresServer) -> list[tuple[object, ...]]:
    return server.rows(
        "SELECT attname::text, format_type(atttypid, atttypmod), attnotnull FROM pg_attribute "
        "WHERE attrelid = 'made'::regclass AND attnum > 0 ORDER BY attnum"
    )


@pytest.mark.parametrize("mode", ["insert", "upsert"])
def test_every_type_gets_its_column_and_every_value_is_unchanged(server: PostgresServer, mode: str) -> None:
    names = ["n", *(f'c"{number}' for number in range(len(CASES)))]
    fields = [StructField("n", IntegerType()), *(StructField(n, c[0]) for n, c in zip(names[1:], CASES, strict=True))]
    arrays = [pa.array([0, 1, 2], pa.int32()), *(pa.array(values, type_) for _, type_, _, values in CASES)]
    keys = {"insert__mode": mode, "pk__mode": "record_value", "pk__fields": "n"}
    write(server, StructType(fields), pa.record_batch(arrays, names=names), **keys)
    expected = [("n", "integer", True), *((n, case[2], False) for n, case in zip(names[1:], CASES, strict=True))]
    assert shown_columns(server) == expected
    rows = server.rows("SELECT * FROM made ORDER BY n")
    assert [list(column) for column in zip(*rows, strict=True)] == [[0, 1, 2], *(case[3] for case in CASES)]


def test_rows_of_one_null_column_are_written(server: PostgresServer) -> None:
    batch = pa.record_batch({"alone": pa.array([None, "", "x", None], pa.string())})
    write(server, StructType([StructField("alone", StringType())]), batch)
    assert server.rows("SELECT alone FROM made") == [(None,), ("",), ("x",), (None,)]


def test_not_a_number_is_written(server: PostgresServer) -> None:
    write(server, StructType([StructField("d", DoubleType())]), pa.record_batch({"d": [NAN]}))
    assert server.rows("SELECT d = 'NaN' FROM made") == [(True,)]


def test_a_timestamp_is_written_to_a_column_without_time_zone_in_utc(server: PostgresServer) -> None:
    server.run("CREATE TABLE made (t timestamp)")
    moment = datetime.datetime(2024, 7, 1, 12, 30, tzinfo=UTC)
    batch = pa.record_batch({"t": pa.array([moment], pa.timestamp("us", "Europe/Berlin"))})
    write(server, StructType([StructField("t", TimestampType())]), batch)
    assert server.rows("SELECT t FROM made") == [(moment.replace(tzinfo=None),)]


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE made (v jsonb)",
        "CREATE DOMAIN short AS varchar(9); CREATE TABLE made (v short)",
        "CREATE TYPE bracket AS ENUM ('[1]'); CREATE TABLE made (v bracket)",
    ],
)
def test_text_can_be_written_to_columns_of_types_with_a_text_form(server: PostgresServer, statement: str) -> None:
    server.run("DROP DOMAIN IF EXISTS short; DROP TYPE IF EXISTS bracket", statement)
    write(server, StructType([StructField("v", StringType())]), pa.record_batch({"v": ["[1]"]}))
    assert server.rows("SELECT v::text FROM made") == [("[1]",)]


@pytest.mark.parametrize(
    "type_", [ArrayType(LongType()), MapType(StringType(), LongType()), StructType([StructField("a", LongType())])]
)
def test_a_column_without_a_type_in_postgresql_is_refused_by_name(type_: DataType) -> None:
    with pytest.raises(WorldError, match=r"Column odd has type .*to_json"):
        create_table_statement("made", StructType([StructField("odd", type_)]), ())


def test_text_that_is_not_utf_8_is_refused(server: PostgresServer) -> None:
    batch = pa.record_batch({"v": pa.array([b"\xff"]).view(pa.string())})
    with pytest.raises(WorldError):
        write(server, StructType([StructField("v", StringType())]), batch)


def test_a_key_column_that_is_missing_in_the_rows_is_refused_by_name() -> None:
    with pytest.raises(WorldError, match=r"no column id, which is in pk\.fields; they have: n"):
        create_table_statement("made", StructType([StructField("n", LongType())]), ("id",))
