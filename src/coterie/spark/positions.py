"""Positions: what a task's committed batches have read, and how a checkpoint without batches is made to go on there.

A seeded checkpoint looks to Spark as if batches without rows had been committed on it.
"""

import json
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from coterie.spark.checkpoint import last_batch

Positions: TypeAlias = Mapping[str, int]
"""A position by what it is a position in. What both mean is the source's: for files the modification time by URI."""

_PLAN = {"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {}}
_COMMIT = {"nextBatchWatermarkMs": 0}


def committed_offset(checkpoint: Path) -> str | None:
    """The source's offset at the end of the last committed batch, as Spark wrote it; None before the first."""
    batch_id = last_batch(checkpoint / "commits")
    return None if batch_id is None else planned_offset(checkpoint, batch_id)


def planned_offset(checkpoint: Path, batch_id: int) -> str | None:
    """The source's offset at the end of a planned batch; None when the source had nothing yet."""
    line = (checkpoint / "offsets" / str(batch_id)).read_text().splitlines()[2]
    return None if line == "-" else line


def commit_empty_batches(checkpoint: Path, offset: str, batches: int) -> None:
    """Commit batches 0 to ``batches`` - 1 on a checkpoint that has none, all of them at the source's ``offset``."""
    for batch_id in range(batches):
        commit_empty_batch(checkpoint, offset, batch_id)


def commit_empty_batch(checkpoint: Path, offset: str, batch_id: int) -> None:
    """Commit the batch after the last committed one, at the source's ``offset``."""
    if batch_id == 0:
        with suppress(FileExistsError):  # A query that planned no batch has left one.
            _write(checkpoint / "metadata", json.dumps({"id": str(uuid.uuid4())}))
    _write(checkpoint / "offsets" / str(batch_id), f"v1\n{json.dumps(_PLAN)}\n{offset}")
    _write(checkpoint / "commits" / str(batch_id), f"v1\n{json.dumps(_COMMIT)}")


def write_source_log(checkpoint: Path, lines: list[str]) -> None:
    """Write entry 0 of the log of the checkpoint's only source."""
    _write(checkpoint / "sources" / "0" / "0", "\n".join(["v1", *lines]))


def _write(path: Path, text: str) -> None:
    """:raises FileExistsError: when the checkpoint has such a file: it is not to be seeded."""
    path.parent.mkdir(exist_ok=True, parents=True)
    if path.exists():
        raise FileExistsError(path)
    # A file that is there is whole. What a start that died has left begins with a dot, and is swept by the next one.
    aside = path.with_name(f".{path.name}")
    aside.write_text(text)
    aside.rename(path)
