import csv
import threading
import zipfile
from pathlib import Path

import pytest

from coterie.cli.demo import feed, flights
from coterie.nouns.errors import WorldError

HEADER = ",".join(flights.TYPE_BY_COLUMN)


def row(number: int) -> str:
    return ",".join(str(number) for _ in flights.TYPE_BY_COLUMN)


@pytest.mark.parametrize(("rows", "files"), [(10, 3), (12, 3), (1, 5), (7, 7), (100, 9)])
def test_every_row_is_in_one_file_with_its_number(rows: int, files: int) -> None:
    texts = [text for _, text in feed.files_with_row_numbers(HEADER, [row(n) for n in range(rows)], file_count=files)]
    read = [line for text in texts for line in csv.DictReader(text.splitlines())]
    assert len(texts) <= files
    assert [int(line["row"]) for line in read] == list(range(1, rows + 1))
    assert [int(line["year"]) for line in read] == list(range(rows))


def test_files_appear_complete(tmp_path: Path) -> None:
    folder = tmp_path / "flights"
    folder.mkdir()
    content = "x" * 200_000
    all_written = threading.Event()

    def write_many() -> None:
        for number in range(100):
            feed.write_atomically(folder, f"{number}.csv", content)
        all_written.set()

    thread = threading.Thread(target=write_many)
    thread.start()
    sizes: set[int] = set()
    while not all_written.is_set():
        sizes |= {file.stat().st_size for file in folder.iterdir()}
    thread.join()
    assert sizes <= {len(content)}
    assert len(list(folder.iterdir())) == 100
    assert list((tmp_path / "flights.aside").iterdir()) == []


def test_all_files_of_an_archive_are_written_in_order(tmp_path: Path) -> None:
    archive = tmp_path / "flights.csv.zip"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr(flights.CSV_FILE_IN_ARCHIVE, "\n".join([HEADER, *(row(n) for n in range(50))]))
    feed.write_flights(archive, tmp_path / "flights", file_count=8, files_per_second=1000)
    files = sorted((tmp_path / "flights").iterdir())
    assert [file.name for file in files] == [f"flights-{n:04}.csv" for n in range(len(files))]
    times = [file.stat().st_mtime_ns for file in files]
    assert times == sorted(times)


def test_an_archive_with_other_columns_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "flights.csv.zip"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr(flights.CSV_FILE_IN_ARCHIVE, "a,b\n1,2")
    with pytest.raises(WorldError, match="other columns"):
        flights.read_flights_header_and_rows(archive)


def test_the_package_contains_the_flights() -> None:
    header, rows = flights.read_flights_header_and_rows(flights.flights_archive_path())
    assert header == HEADER
    assert len(rows) == 336_776
