"""The checker: compares the connectors' output with the rows of the package, row by row and value by value.

It uses neither Spark nor code of the sinks, and evaluates the filter itself. The output is defined as in the
documentation for readers: the files in the connector's folder whose names do not begin with `_` or `.`.
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
_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result for one connector. Rows are row numbers, in ascending order."""

    connector: str
    expected: int
    found: int
    lost: tuple[int, ...] = ()
    """Expected rows that are missing."""
    doubled: tuple[int, ...] = ()
    """Rows that occur more than once."""
    strange: tuple[int, ...] = ()
    """Rows that are not expected: the filter drops them, or the package does not contain them."""
    wrong: tuple[tuple[int, str], ...] = ()
    """Row and column of each value that differs."""

    @property
    def is_right(self) -> bool:
        return not (self.lost or self.doubled or self.strange or self.wrong) and self.expected == self.found

    def __str__(self) -> str:
        counts = f"{self.connector}: {self.expected:,} rows expected, {self.found:,} found"
        if self.is_right:
            return f"{counts}: no row lost, no row duplicated, every value as in the package"
        wrong = [f"{row} ({column})" for row, column in self.wrong]
        findings = [
            f"{len(rows):,} {what} (rows {', '.join(map(str, rows[:_SHOWN]))}{', …' if len(rows) > _SHOWN else ''})"
            for what, rows in (
                ("lost", self.lost),
                ("duplicated", self.doubled),
                ("not expected", self.strange),
                ("with wrong values", wrong),
            )
            if rows
        ]
        return f"{counts}: {', '.join(findings)}"


def package_rows(archive: Path) -> pa.Table:
    """Every flight of the package, with its number as the column ``row``."""
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
    """The files that readers of a connector's folder see, sorted."""
    folder = out / connector
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if not path.name.startswith(("_", ".")))


def written_rows(files: Iterable[Path], schema: pa.Schema) -> pa.Table:
    """All rows in these files, in the given shape."""
    return pa.concat_tables([schema.empty_table(), *(_read(file, schema) for file in files)])


def compare(connector: str, expected: pa.Table, found: pa.Table) -> Comparison:
    """Compare the rows that one connector wrote with the expected rows."""
    counted = pc.value_counts(found["row"])
    rows, counts = counted.field("values"), counted.field("counts")
    lost = expected["row"].filter(pc.invert(pc.is_in(expected["row"], value_set=rows)))
    strange = rows.filter(pc.invert(pc.is_in(rows, value_set=expected["row"].combine_chunks())))
    return Comparison(
        connector=connector,
        expected=expected.num_rows,
        found=found.num_rows,
        lost=tuple(sorted(lost.to_pylist())),
        doubled=tuple(sorted(rows.filter(pc.greater(counts, 1)).to_pylist())),
        strange=tuple(sorted(strange.to_pylist())),
        wrong=tuple(_wrong_values(expected, found)),
    )


def check(archive: Path, out: Path, connectors: tuple[str, ...] = (PARQUET, JSON)) -> list[Comparison]:
    """Compare the output of every connector with the package."""
    flights = package_rows(archive)
    comparisons = []
    for connector in connectors:
        expected = expected_rows(connector, flights)
        comparisons.append(compare(connector, expected, written_rows(written_files(out, connector), expected.schema)))
    return comparisons


# -- helpers ----------------------------------------------------------------------------------------------------------


def _wrong_values(expected: pa.Table, found: pa.Table) -> list[tuple[int, str]]:
    """Return the differing values of rows that are in both tables. Null is equal only to null."""
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
    if file.suffix == ".json":
        if file.stat().st_size == 0:
            return schema.empty_table()
        # Spark does not write null values; the explicit schema restores the column.
        options = pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error")
        return pa.json.read_json(file, parse_options=options).select(schema.names)
    table = pa.parquet.read_table(file, partitioning=None)
    return pa.table({name: table[name] for name in schema.names}).cast(schema)


def _with(table: pa.Table, column: str, type_: pa.DataType) -> pa.Table:
    at = table.schema.get_field_index(column)
    return table.set_column(at, column, table[column].cast(type_))
