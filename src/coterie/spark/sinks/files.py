"""File sinks: a batch is written aside and put in place by one rename that only the first can win.

A batch goes to ``PATH/_staging/<unique>/out`` and from there to ``PATH/<connector>/<task>-<lineage>/<batch>/``. Where a
directory stands already, an earlier owner of the checkpoint has put the same batch there, and ours is dropped. A batch
without rows makes no directory: a replay reads the same rows, finds none again, and leaves the same nothing.

Spark's own file sink is not used: it keeps one log a path, outside the checkpoint, and skips in silence a batch number
that another task has written to it.
"""

import errno
import shutil
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet
from pyspark.sql import DataFrame

from coterie.config.definition import Definition, Importance, Key, Type, Width, one_of
from coterie.nouns.errors import WorldError
from coterie.nouns.jobs import ConnectorTaskId
from coterie.spark.checkpoint import safe_name
from coterie.spark.paths import local_file_path, option_values

FORMATS = ("json", "parquet")
STAGING = "_staging"
"""Readers of a folder skip names that start with an underscore."""
SWEPT = "swept"
"""How a folder in staging is called that is being removed."""
GROUP = "Sink"
OPTIONS = "sink.option."

DEFINITION = Definition(
    (
        Key(
            name="sink.format",
            type=Type.STRING,
            documentation="Format of the files that are written.",
            importance=Importance.HIGH,
            check=one_of(FORMATS),
            group=GROUP,
            order=0,
            width=Width.SHORT,
            display_name="Sink format",
        ),
        Key(
            name="sink.path",
            type=Type.STRING,
            documentation="Folder that the files are written to; each batch of a task is one folder below it.",
            importance=Importance.HIGH,
            check=local_file_path,
            group=GROUP,
            order=1,
            width=Width.LONG,
            display_name="Sink folder",
        ),
    )
)


class FencedError(Exception):
    """The task was stopped here: its effects may not happen any more."""


class Fence:
    """Stands between one run of a task and the world; once closed, nothing of this run gets through."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = False

    def shut(self) -> None:
        """From now on no effect gets through; one may be under way still. Never waits."""
        self._closed = True

    def close(self) -> None:
        """When it returns, no effect is under way and none will be."""
        self.shut()
        with self._lock:
            pass

    @property
    def closed(self) -> bool:
        return self._closed

    @contextmanager
    def passing(self) -> Iterator[None]:
        """:raises FencedError: when the fence is closed."""
        with self._lock:
            if self._closed:
                raise FencedError
            yield


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSink:
    """Where one life of one task's checkpoint puts its batches."""

    format: str
    path: Path
    options: Mapping[str, str]
    task: ConnectorTaskId
    lineage: str
    fence: Fence = field(default_factory=Fence)

    @classmethod
    def of(cls, config: Mapping[str, str], task: ConnectorTaskId, lineage: str, fence: Fence) -> "FileSink":
        return cls(
            format=config["sink.format"],
            path=Path(config["sink.path"].removeprefix("file://")).absolute(),
            options=option_values(config, OPTIONS),
            task=task,
            lineage=lineage,
            fence=fence,
        )

    def stage(self, batch: DataFrame) -> "Staged":
        """Write the batch aside; nobody sees it yet."""
        staged = Staged(self, self.path / STAGING / f"{self._key}-{uuid.uuid4().hex}")
        batch.write.format(self.format).options(**self.options).save(str(staged.out))
        return staged

    def folder_of(self, batch_id: int) -> Path:
        """What a reader sees of a batch."""
        return self.path / safe_name(self.task.connector) / f"{self.task.task}-{self.lineage}" / str(batch_id)

    def sweep(self) -> None:
        """Remove what earlier owners of this task have left in staging.

        One of them may still be writing. So its folder goes away whole, by a rename, and its mark with it: whatever it
        writes afterwards is not put in place by it any more.
        """
        for half_removed in self.path.glob(f"{STAGING}/{SWEPT}-*"):
            shutil.rmtree(half_removed, ignore_errors=True)
        for left in self.path.glob(f"{STAGING}/{self._key}-*"):
            doomed = left.with_name(f"{SWEPT}-{uuid.uuid4().hex}")
            try:
                left.rename(doomed)
            except FileNotFoundError:
                continue
            shutil.rmtree(doomed, ignore_errors=True)

    @property
    def _key(self) -> str:
        return f"{safe_name(self.task.connector)}-{self.task.task}-{self.lineage}"


class Staged:
    """A batch written aside, still to be put in place or dropped."""

    def __init__(self, sink: FileSink, folder: Path) -> None:
        self._sink = sink
        self._folder = folder
        self._mark = folder / "mark"
        self.out = folder / "out"
        folder.mkdir(parents=True)
        self._mark.touch()

    def put_in_place(self, batch_id: int) -> bool:
        """Whether this copy is the one that readers see; False too for a batch without rows.

        :raises FencedError: when the task was stopped here, or another owner has swept this copy away.
        """
        there = self._sink.folder_of(batch_id)
        try:
            if not self._has_rows():
                return False
            there.parent.mkdir(parents=True, exist_ok=True)
            with self._sink.fence.passing():
                # Spark has written all it will write: with the mark still here, the copy is whole.
                if not self._mark.exists():
                    raise FencedError
                self.out.rename(there)
                return True
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return False
            if not self._mark.exists():
                raise FencedError from error
            raise WorldError(f"Batch {batch_id} could not be put at {there}: {error}") from error
        finally:
            self.drop()

    def drop(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _has_rows(self) -> bool:
        parts = [path for path in self.out.rglob("part-*") if path.is_file()]
        if self._sink.format == "parquet":
            return any(pyarrow.parquet.read_metadata(part).num_rows for part in parts)
        return any(part.stat().st_size for part in parts)
