"""Positions: the input that a task's committed batches have read, and how positions are written into a new checkpoint.

A checkpoint that was initialized with positions has the same files as a checkpoint after batches without rows.

A source's offset is None while the source had no input yet. The functions that write into a checkpoint raise
FileExistsError if it has the batch or the entry.
"""

import json
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from coterie.spark.checkpoint import last_batch_id_in_log

Positions: TypeAlias = Mapping[str, int]
"""How far the input was read: by key, a whole number. The source defines the meaning of both: for Kafka, the next
offset by partition; for files, the modification time by URI."""

_EMPTY_BATCH_PLAN = {"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {}}
"""The second line of Spark's file ``offsets/N`` for a batch without rows."""
_EMPTY_BATCH_COMMIT = {"nextBatchWatermarkMs": 0}
"""The second line of Spark's file ``commits/N`` for a batch without rows."""


def last_committed_source_offset(checkpoint: Path) -> str | None:
    """The source's offset at the end of the last committed batch, as Spark wrote it. None when no batch is committed,
    or the source had no input yet."""
    batch_id = last_batch_id_in_log(checkpoint / "commits")
    return None if batch_id is None else planned_source_offset(checkpoint, batch_id)


def planned_source_offset(checkpoint: Path, batch_id: int) -> str | None:
    """The source's offset at the end of the planned batch ``batch_id``, as Spark wrote it; None when the source had no
    input yet.

    :raises FileNotFoundError: when the batch is not planned.
    """
    line = (checkpoint / "offsets" / str(batch_id)).read_text().splitlines()[2]
    return None if line == "-" else line


def commit_empty_batches(checkpoint: Path, offset: str, batch_count: int) -> None:
    """Commit the batches 0 to ``batch_count`` - 1, each at the source's ``offset``, in a checkpoint without batches.

    :raises FileExistsError: when the checkpoint has one of these batches.
    """
    for batch_id in range(batch_count):
        commit_empty_batch(checkpoint, offset, batch_id)


def commit_empty_batch(checkpoint: Path, offset: str, batch_id: int) -> None:
    """Write the batch ``batch_id``, the next one after the last committed batch, as planned and committed without rows,
    at the source's ``offset``.

    :raises FileExistsError: when the checkpoint has this batch.
    """
    if batch_id == 0:
        with suppress(FileExistsError):  # A query that ended before its first batch has written this file.
            _create_complete_file(checkpoint / "metadata", json.dumps({"id": str(uuid.uuid4())}))
    _create_complete_file(checkpoint / "offsets" / str(batch_id), f"v1\n{json.dumps(_EMPTY_BATCH_PLAN)}\n{offset}")
    _create_complete_file(checkpoint / "commits" / str(batch_id), f"v1\n{json.dumps(_EMPTY_BATCH_COMMIT)}")


def write_first_source_log_entry(checkpoint: Path, lines: list[str]) -> None:
    """Write ``lines`` as entry 0 of the log of the checkpoint's only source.

    :raises FileExistsError: when this entry exists.
    """
    _create_complete_file(checkpoint / "sources" / "0" / "0", "\n".join(["v1", *lines]))


def _create_complete_file(path: Path, text: str) -> None:
    """Write ``text`` to the new file ``path``, by a rename, so that the file is always complete. Creates the folder if
    it is missing.

    :raises FileExistsError: when the file exists: the checkpoint then has batches, and must not be initialized.
    """
    path.parent.mkdir(exist_ok=True, parents=True)
    if path.exists():
        raise FileExistsError(path)
    # A file at ``path`` is always complete. A killed process can leave only a temporary file, whose name starts with a
    # dot; the next start removes it.
    temporary_file = path.with_name(f".{path.name}")
    temporary_file.write_text(text)
    temporary_file.rename(path)
