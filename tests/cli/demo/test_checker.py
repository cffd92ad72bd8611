"""The checker on handmade outputs: a correct one passes, and each kind of error is reported with its rows."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from coterie.cli.demo import checker, flights

Rows = list[dict[str, Any]]
ROWS = 40


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Forty flights; every fourth was cancelled."""
    lines = [",".join(flights.TYPE_BY_COLUMN)]
    for number in range(1, ROWS + 1):
        values = dict.fromkeys(flights.TYPE_BY_COLUMN, str(number))
        if number % 4 == 0:
            values |= {"dep_delay": "NA", "tailnum": "NA"}
        lines.append(",".join(values.values()))
    path = tmp_path / "flights.csv.zip"
    with zipfile.ZipFile(path, "w") as made:
        made.writestr(flights.CSV_FILE_IN_ARCHIVE, "\n".join(lines))
    return path


@pytest.fixture
def output_folder(tmp_path: Path, archive: Path) -> Path:
    """The correct output of two connectors."""
    package = checker.read_numbered_flight_table(archive)
    for connector, write in ((flights.PARQUET_CONNECTOR, write_parquet), (flights.JSON_CONNECTOR, write_json)):
        rows = checker.expected_rows(connector, package).to_pylist()
        write(tmp_path / "out" / connector, f"{connector}-0-a-0-0", rows[:10])
        write(tmp_path / "out" / connector, f"{connector}-0-a-1-0", rows[10:20])
        write(tmp_path / "out" / connector, f"{connector}-1-b-0-0", rows[20:])
    return tmp_path / "out"


def write_parquet(folder: Path, name: str, rows: Rows) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    fields = [("row", pa.int64())]
    fields += [(name, pa.int32() if type_ == "INT" else pa.string()) for name, type_ in flights.TYPE_BY_COLUMN.items()]
    schema = pa.schema([(name, pa.float64() if name == "distance" else type_) for name, type_ in fields])
    pa.parquet.write_table(pa.Table.from_pylist(rows, schema), folder / f"{name}.parquet")


def write_json(folder: Path, name: str, rows: Rows) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({name: value for name, value in row.items() if value is not None}) + "\n" for row in rows]
    (folder / f"{name}.json").write_text("".join(lines))


def comparisons(archive: Path, output_folder: Path) -> dict[str, checker.OutputComparison]:
    return {comparison.connector: comparison for comparison in checker.compare_outputs(archive, output_folder)}


def read_json(file: Path) -> Rows:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_correct_output_passes_with_both_row_counts(archive: Path, output_folder: Path) -> None:
    found = comparisons(archive, output_folder)
    assert {name: (v.is_correct, v.expected_row_count, v.found_row_count) for name, v in found.items()} == {
        flights.PARQUET_CONNECTOR: (True, 30, 30),
        flights.JSON_CONNECTOR: (True, 40, 40),
    }
    assert str(found[flights.JSON_CONNECTOR]).startswith(
        "flights-json: 40 rows expected, 40 found: no row lost, no row duplicated"
    )


def test_staged_hidden_and_empty_files_are_not_output(archive: Path, output_folder: Path) -> None:
    for connector in flights.CONNECTOR_NAMES:
        write_json(output_folder / f".{connector}.coterie" / "staged" / "7", "part-0", [{"row": 1}])
        (output_folder / connector / "_SUCCESS").touch()
        (output_folder / connector / ".part.crc").touch()
    (output_folder / flights.JSON_CONNECTOR / f"{flights.JSON_CONNECTOR}-0-a-9-0.json").touch()
    assert all(comparison.is_correct for comparison in comparisons(archive, output_folder).values())


def test_a_lost_file_is_reported_by_its_rows(archive: Path, output_folder: Path) -> None:
    (output_folder / flights.JSON_CONNECTOR / f"{flights.JSON_CONNECTOR}-0-a-1-0.json").unlink()
    comparison = comparisons(archive, output_folder)[flights.JSON_CONNECTOR]
    assert (comparison.is_correct, comparison.lost_row_numbers, comparison.duplicated_row_numbers) == (
        False,
        tuple(range(11, 21)),
        (),
    )
    assert "10 lost (rows 11, 12, 13, 14, 15, …)" in str(comparison)


@pytest.mark.parametrize("connector", flights.CONNECTOR_NAMES)
def test_a_duplicated_batch_is_reported_by_its_rows(archive: Path, output_folder: Path, connector: str) -> None:
    write = write_parquet if connector == flights.PARQUET_CONNECTOR else write_json
    rows = checker.expected_rows(connector, checker.read_numbered_flight_table(archive)).to_pylist()[:2]
    write(output_folder / connector, f"{connector}-0-z-5-0", rows)
    comparison = comparisons(archive, output_folder)[connector]
    assert (comparison.is_correct, comparison.duplicated_row_numbers, comparison.lost_row_numbers) == (
        False,
        tuple(row["row"] for row in rows),
        (),
    )


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param(lambda row: row | {"dest": "elsewhere"}, [(3, "dest")], id="another value"),
        pytest.param(lambda row: {k: v for k, v in row.items() if k != "arr_time"}, [(3, "arr_time")], id="a null"),
        pytest.param(lambda row: row | {"hour": 0, "minute": 0}, [(3, "hour"), (3, "minute")], id="two values"),
    ],
)
def test_a_wrong_value_is_reported_by_row_and_column(
    archive: Path,
    output_folder: Path,
    change: Callable[[dict[str, Any]], dict[str, Any]],
    expected: list[tuple[int, str]],
) -> None:
    file = output_folder / flights.JSON_CONNECTOR / f"{flights.JSON_CONNECTOR}-0-a-0-0.json"
    rows = [change(row) if row["row"] == 3 else row for row in read_json(file)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    comparison = comparisons(archive, output_folder)[flights.JSON_CONNECTOR]
    assert (comparison.is_correct, list(comparison.wrong_value_positions), comparison.lost_row_numbers) == (
        False,
        expected,
        (),
    )


def test_a_row_that_the_filter_drops_is_reported_as_unexpected(archive: Path, output_folder: Path) -> None:
    rows = checker.read_numbered_flight_table(archive).to_pylist()
    write_parquet(
        output_folder / flights.PARQUET_CONNECTOR, "flights-1-b-9-0", [row for row in rows if row["row"] == 4]
    )
    comparison = comparisons(archive, output_folder)[flights.PARQUET_CONNECTOR]
    assert (comparison.is_correct, comparison.unexpected_row_numbers, comparison.lost_row_numbers) == (False, (4,), ())


def test_without_any_output_all_rows_are_lost(archive: Path, tmp_path: Path) -> None:
    comparison = comparisons(archive, tmp_path / "nowhere")[flights.PARQUET_CONNECTOR]
    assert (comparison.found_row_count, len(comparison.lost_row_numbers)) == (0, 30)
