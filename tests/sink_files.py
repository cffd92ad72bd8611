"""Reads the files of a sink's folder without Spark."""

import csv
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.orc
import pyarrow.parquet


def visible_files(folder: Path) -> Iterator[Path]:
    """The files that readers read: Spark, Arrow and others skip names that begin with ``_`` or ``.``."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(("_", ".")))
        yield from (Path(parent, name) for name in sorted(names) if not name.startswith(("_", ".")))


def values_in(path: Path, column: str) -> list[Any]:
    """The values of one column in one file; CSV has a header."""
    match path.suffix:
        case ".parquet":
            return list(pyarrow.parquet.ParquetFile(path).read(columns=[column])[column].to_pylist())
        case ".orc":
            return list(pyarrow.orc.ORCFile(path).read(columns=[column])[column].to_pylist())
        case ".csv":
            with path.open(newline="") as file:
                return [line[column] for line in csv.DictReader(file)]
        case _:
            return [json.loads(line)[column] for line in path.read_text().splitlines()]


def counted(folder: Path, column: str) -> Counter[Any]:
    """How often each value of a column occurs in the files of a folder."""
    seen: Counter[Any] = Counter()
    for path in visible_files(folder):
        seen.update(values_in(path, column))
    return seen


def batch_of(path: Path) -> tuple[str, int]:
    """The task and lineage that wrote a file of a sink, and the batch."""
    owner, batch, _ = path.name.rsplit("-", 2)
    return owner, int(batch)


def take_back(folder: Path, batch_id: int) -> None:
    """Undo the commit of a batch in a sink's folder."""
    for path in list(visible_files(folder)):
        if batch_of(path)[1] == batch_id:
            path.unlink()
    for marks in (folder.parent / f".{folder.name}.coterie" / "committed").glob(f"*/{batch_id}"):
        shutil.rmtree(marks)
