"""The files that Spark's file source planned for a batch, read from the checkpoint, and checks of such a plan.

The source writes the files of a batch to ``sources/0`` before the batch is planned in ``offsets``, and a replay reads
them from there. Between planning and reading, Spark loses or duplicates rows in two cases:

- a file that was deleted in the meantime is skipped without an error;
- a name with a character of a glob pattern makes Spark read *other* files of its batch twice (SPARK-58518).
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from coterie.spark.positions import (
    Positions,
    commit_empty_batches,
    committed_offset,
    planned_offset,
    write_source_log,
)

GLOB_CHARACTERS = frozenset("{}[]*?\\")


def planned_files(checkpoint: Path, batch_id: int) -> tuple[str, ...]:
    """The local paths of the files that are planned for batch ``batch_id``, sorted."""
    sources = checkpoint / "sources" / "0"
    first = _source_offset(checkpoint, batch_id - 1) + 1 if batch_id > 0 else 0
    found: set[str] = set()
    for number in range(first, _source_offset(checkpoint, batch_id) + 1):
        found.update(local_path(entry["path"]) for entry in _entries(sources, number) if entry["batchId"] == number)
    return tuple(sorted(found))


def read_files(checkpoint: Path) -> Positions:
    """The files of all committed batches, including those of other tasks: modification time in ms by URI, both as Spark
    wrote them."""
    offset = committed_offset(checkpoint)
    last = -1 if offset is None else _number(offset)
    numbers: dict[int, Path] = {}
    for path in (checkpoint / "sources" / "0").glob("[0-9]*"):
        numbers[int(path.name.removesuffix(".compact"))] = path
    compacted = [number for number, path in numbers.items() if path.suffix]
    found: dict[str, int] = {}
    # The newest compact file contains all earlier entries, including those of plain files that were removed since.
    for number in range(max(compacted, default=0), max(numbers, default=-1) + 1):
        for entry in _entries(checkpoint / "sources" / "0", number):
            if entry["batchId"] <= last:
                found[entry["path"]] = entry["timestamp"]
    return found


def seed_read_files(checkpoint: Path, files: Positions) -> None:
    """Record ``files`` as read in a checkpoint without batches.

    This commits two batches. Spark plans the last batch again at every start; if that were the batch with all files,
    Spark would check each of them.
    """
    entries = [json.dumps({"path": uri, "timestamp": at_ms, "batchId": 0}) for uri, at_ms in sorted(files.items())]
    write_source_log(checkpoint, entries)
    commit_empty_batches(checkpoint, json.dumps({"logOffset": 0}), batches=2)


def names_with_glob_characters(paths: Iterable[str]) -> list[str]:
    return [path for path in paths if GLOB_CHARACTERS & set(path)]


def vanished(paths: Iterable[str]) -> list[str]:
    return [path for path in paths if not os.path.exists(path)]


def local_path(uri: str) -> str:
    """The path of a ``file:`` URI, or of a plain path."""
    return unquote(urlsplit(uri).path) if uri.startswith("file:") else uri


def _source_offset(checkpoint: Path, batch_id: int) -> int:
    """The number in the source's log up to which a batch reads."""
    offset = planned_offset(checkpoint, batch_id)
    return -1 if offset is None else _number(offset)


def _number(offset: str) -> int:
    return int(json.loads(offset)["logOffset"])


def _entries(sources: Path, number: int) -> list[dict[str, Any]]:
    plain = sources / str(number)
    # Every tenth file is compact: it contains all entries so far, and may have replaced the plain file.
    text = (plain if plain.exists() else sources / f"{number}.compact").read_text()
    return [json.loads(line) for line in text.splitlines()[1:] if line]
