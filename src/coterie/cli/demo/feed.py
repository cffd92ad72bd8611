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
PER_SECOND = 5.0


def numbered_files(header: str, rows: Sequence[str], *, files: int) -> Iterator[tuple[str, str]]:
    """Yield the name and text of each file, in order. Each row begins with its number, counted from 1."""
    size = -(-len(rows) // files)
    for number in range(files):
        first = number * size
        part = rows[first : first + size]
        if part:
            numbered = (f"{at},{row}" for at, row in enumerate(part, start=first + 1))
            yield f"flights-{number:04}.csv", "\n".join([f"row,{header}", *numbered, ""])


def lay(folder: Path, name: str, text: str) -> None:
    """Write one file into ``folder`` atomically."""
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
    """Write all files, the n-th one ``n / per_second`` s after the first. A late file does not delay later files."""
    header, rows = lines(source)
    started = time.monotonic()
    for number, (name, text) in enumerate(numbered_files(header, rows, files=files)):
        time.sleep(max(0.0, started + number / per_second - time.monotonic()))
        lay(folder, name, text)


def main() -> None:
    parent.end_with_it()
    arguments = argparse.ArgumentParser(description="Write the flights as files, some each second.")
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--files", type=int, default=FILES)
    arguments.add_argument("--per-second", type=float, default=PER_SECOND)
    given = arguments.parse_args()
    feed(archive(), given.folder, files=given.files, per_second=given.per_second)


if __name__ == "__main__":
    main()
