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
from coterie.cli.demo.flights import archive, lines

FILES = 320
"""The number of files among which the flights are divided."""
PER_SECOND = 5.0
"""The number of files written in a second."""


def numbered_files(header: str, rows: Sequence[str], *, files: int) -> Iterator[tuple[str, str]]:
    """Divide ``rows`` among at most ``files`` files; yield the name and text of each file, in order.

    Each text begins with ``header``, to which the column ``row`` is added. Each row begins with its number among all
    ``rows``, counted from 1.
    """
    size = -(-len(rows) // files)
    for number in range(files):
        first = number * size
        part = rows[first : first + size]
        if part:
            numbered = (f"{at},{row}" for at, row in enumerate(part, start=first + 1))
            yield f"flights-{number:04}.csv", "\n".join([f"row,{header}", *numbered, ""])


def write_atomically(folder: Path, name: str, text: str) -> None:
    """Write ``text`` as the file ``name`` into ``folder``, so that no reader sees an incomplete file.

    The file is first written into the folder ``<folder>.aside`` and synced, and then renamed.
    """
    aside = folder.parent / f"{folder.name}.aside"
    aside.mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    written = aside / name
    with written.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    written.rename(folder / name)


def feed(source: Path, folder: Path, *, files: int = FILES, per_second: float = PER_SECOND) -> None:
    """Write the flights of ``source``, the zip file of the package, as ``files`` files into ``folder``.

    The n-th file is written ``n / per_second`` s after the first. If a file is late, the times of later files stay.
    """
    header, rows = lines(source)
    started = time.monotonic()
    for number, (name, text) in enumerate(numbered_files(header, rows, files=files)):
        time.sleep(max(0.0, started + number / per_second - time.monotonic()))
        write_atomically(folder, name, text)


def main() -> None:
    """Run the feed with the options of the command line."""
    parent.exit_with_parent()
    arguments = argparse.ArgumentParser(description="Write the flights as files, some each second.")
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--files", type=int, default=FILES)
    arguments.add_argument("--per-second", type=float, default=PER_SECOND)
    given = arguments.parse_args()
    feed(archive(), given.folder, files=given.files, per_second=given.per_second)


if __name__ == "__main__":
    main()
