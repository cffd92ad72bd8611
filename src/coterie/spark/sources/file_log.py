"""What Spark's file source planned for a batch, read from the checkpoint, and what is wrong with such a plan.

The source writes the files of a batch to ``sources/0`` before the batch is planned in ``offsets``, and a replay takes
them from there. Between that and the reading it loses and doubles files by itself:

- a file that has vanished meanwhile is skipped in silence;
- a name with a character of a glob pattern makes *other* files of its batch be read again (SPARK-58518).
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

GLOB_CHARACTERS = frozenset("{}[]*?\\")


def planned_files(checkpoint: Path, batch_id: int) -> tuple[str, ...]:
    """The local paths of the files that batch ``batch_id`` is to read, sorted."""
    sources = checkpoint / "sources" / "0"
    first = _source_offset(checkpoint, batch_id - 1) + 1 if batch_id > 0 else 0
    found: set[str] = set()
    for number in range(first, _source_offset(checkpoint, batch_id) + 1):
        found.update(local_path(entry["path"]) for entry in _entries(sources, number) if entry["batchId"] == number)
    return tuple(sorted(found))


def names_with_glob_characters(paths: Iterable[str]) -> list[str]:
    return [path for path in paths if GLOB_CHARACTERS & set(path)]


def vanished(paths: Iterable[str]) -> list[str]:
    return [path for path in paths if not os.path.exists(path)]


def local_path(uri: str) -> str:
    """The path of a ``file:`` URI, or of a plain path."""
    return unquote(urlsplit(uri).path) if uri.startswith("file:") else uri


def _source_offset(checkpoint: Path, batch_id: int) -> int:
    """The number in the source's log up to which a batch reads: the third line of its plan."""
    line = (checkpoint / "offsets" / str(batch_id)).read_text().splitlines()[2]
    return -1 if line == "-" else int(json.loads(line)["logOffset"])


def _entries(sources: Path, number: int) -> list[dict[str, Any]]:
    plain = sources / str(number)
    # Every tenth file holds all entries so far, and may have taken the plain one's place.
    text = (plain if plain.exists() else sources / f"{number}.compact").read_text()
    return [json.loads(line) for line in text.splitlines()[1:] if line]
