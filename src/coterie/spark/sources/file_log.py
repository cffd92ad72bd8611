"""The log of Spark's file source in a checkpoint: the files that are planned for a batch, and checks of these files.

Spark's file source writes the names of a batch's files to its log, ``sources/0``, before the batch is planned in
``offsets``. A replay of the batch takes the files from this log. Between planning and reading, Spark loses or
duplicates rows in two cases:

- a file that was deleted in the meantime is skipped without an error;
- a name with a character of a glob pattern makes Spark read *other* files of its batch twice (SPARK-58518).
"""

import json
import os
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from coterie.spark.positions import (
    Positions,
    commit_empty_batches,
    last_committed_source_offset,
    planned_source_offset,
    write_first_source_log_entry,
)

GLOB_CHARACTERS = frozenset("{}[]*?\\")
"""The characters that have a meaning in a glob pattern (``*.csv``) of Hadoop."""


def planned_files_of_all_tasks(checkpoint: Path, batch_id: int) -> tuple[str, ...]:
    """The local paths of the files that are planned for batch ``batch_id``, sorted. They include the files that other
    tasks read: each task's source lists the whole folder.

    :raises OSError: when a file of the checkpoint cannot be read, for example because the batch is not planned.
    """
    return tuple(sorted(set(map(to_local_path, planned_file_uris_of_all_tasks(checkpoint, batch_id)))))


def planned_file_uris_of_all_tasks(checkpoint: Path, batch_id: int) -> frozenset[str]:
    """The URIs of the files of :func:`planned_files_of_all_tasks`, as Spark wrote them. Raises its errors."""
    log_folder = checkpoint / "sources" / "0"
    first_number = _last_entry_number_of_batch(checkpoint, batch_id - 1) + 1 if batch_id > 0 else 0
    uris: set[str] = set()
    for number in range(first_number, _last_entry_number_of_batch(checkpoint, batch_id) + 1):
        uris.update(entry["path"] for entry in _read_log_entry(log_folder, number) if entry["batchId"] == number)
    return frozenset(uris)


def files_of_committed_batches(checkpoint: Path) -> Positions:
    """The files of all committed batches: modification time in ms since the Unix epoch, by URI, both as Spark wrote
    them. The files include those that other tasks read."""
    offset = last_committed_source_offset(checkpoint)
    last_number = -1 if offset is None else _log_entry_number(offset)
    path_by_number: dict[int, Path] = {}
    for path in (checkpoint / "sources" / "0").glob("[0-9]*"):
        path_by_number[int(path.name.removesuffix(".compact"))] = path
    compact_numbers = [number for number, path in path_by_number.items() if path.suffix]
    modified_ms_by_uri: dict[str, int] = {}
    # The newest compact file contains all earlier entries, including those of plain files that were removed since.
    for number in range(max(compact_numbers, default=0), max(path_by_number, default=-1) + 1):
        for entry in _read_log_entry(checkpoint / "sources" / "0", number):
            if entry["batchId"] <= last_number:
                modified_ms_by_uri[entry["path"]] = entry["timestamp"]
    return modified_ms_by_uri


def record_files_as_read(checkpoint: Path, files: Positions) -> None:
    """Record ``files``, modification times in ms by URI, as read, in a checkpoint without batches: a query on the
    checkpoint does not read these files.

    This commits two batches: batch 0 with all files, batch 1 without files. At every start Spark plans the last batch
    again and checks each of its files, so the last batch must not be the one with all files.

    :raises FileExistsError: when the checkpoint has a batch.
    """
    entries = [
        json.dumps({"path": uri, "timestamp": modified_ms, "batchId": 0}) for uri, modified_ms in sorted(files.items())
    ]
    write_first_source_log_entry(checkpoint, entries)
    commit_empty_batches(checkpoint, json.dumps({"logOffset": 0}), batch_count=2)


def paths_with_glob_characters(paths: Iterable[str]) -> list[str]:
    """Those of ``paths`` that contain one of :data:`GLOB_CHARACTERS`."""
    return [path for path in paths if GLOB_CHARACTERS & set(path)]


def missing_paths(paths: Iterable[str]) -> list[str]:
    """Those of ``paths`` at which there is no file now."""
    return [path for path in paths if not os.path.exists(path)]


def to_local_path(uri: str) -> str:
    """The local path of ``uri``, a ``file:`` URI; a path that is no such URI is returned unchanged."""
    return unquote(urlsplit(uri).path) if uri.startswith("file:") else uri


def to_spark_file_uri(local_path: str) -> str:
    """The URI of a file in the form in which Spark writes it: the path's characters as Java's class URI quotes them."""
    return "file://" + "".join(
        character if _is_unquoted_in_uri(character) else quote(character, safe="") for character in local_path
    )


def _is_unquoted_in_uri(character: str) -> bool:
    """Whether Java's class URI does not quote ``character`` in a path: of ASCII, letters, digits and some other
    characters; outside ASCII, all but control characters and spaces."""
    if character.isascii():
        return character.isalnum() or character in "_-!.~'()*,:;$&+=@/"
    return unicodedata.category(character) not in ("Cc", "Zs", "Zl", "Zp")


def _last_entry_number_of_batch(checkpoint: Path, batch_id: int) -> int:
    """The number of the last entry of the source's log that belongs to batch ``batch_id`` or to an earlier one; -1 when
    the source had no input yet."""
    offset = planned_source_offset(checkpoint, batch_id)
    return -1 if offset is None else _log_entry_number(offset)


def _log_entry_number(offset: str) -> int:
    """The number of the last entry of the source's log that ``offset`` includes. ``offset`` is an offset of Spark's
    file source, as Spark wrote it."""
    return int(json.loads(offset)["logOffset"])


def _read_log_entry(log_folder: Path, number: int) -> list[dict[str, Any]]:
    """The lines of entry ``number`` of the log in ``log_folder``, parsed: each describes one file. A compact entry also
    contains the lines of all entries before."""
    plain_file = log_folder / str(number)
    # Every tenth file is compact: it contains all entries so far, and may have replaced the plain file.
    text = (plain_file if plain_file.exists() else log_folder / f"{number}.compact").read_text()
    return [json.loads(line) for line in text.splitlines()[1:] if line]
