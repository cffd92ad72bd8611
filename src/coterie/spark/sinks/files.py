"""File sinks: a batch is written aside and put in place by one rename that only the first can win.

A batch goes to ``PATH/_staging/<unique>/out`` and from there to ``PATH/<connector>/<task>-<lineage>/<batch>/``. Where a
directory stands already, an earlier owner of the checkpoint has put the same batch there, and ours is dropped. A batch
without rows makes no directory: a replay reads the same rows, finds none again, and leaves the same nothing.

Spark's own file sink is not used: it keeps one log a path, outside the checkpoint, and skips in silence a batch number
that another task has written to it.
"""

import errno
import shutil
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import pyarrow.parquet
from pyspark.sql import SparkSession

from coterie.config.definition import Definition, Importance, Key, Type, Width, one_of
from coterie.nouns.errors import WorldError
from coterie.spark.checkpoint import safe_name
from coterie.spark.end_config import OPTIONS, EndConfig
from coterie.spark.fence import FencedError
from coterie.spark.paths import SINK_GROUP, as_path, local_file_path
from coterie.spark.seams import Batch, TaskLineage

FORMATS = ("json", "parquet")
STAGING = "_staging"
"""Readers of a folder skip names that start with an underscore."""
SWEPT = "swept"
"""How a folder in staging is called that is being removed."""

DEFINITION = Definition(
    (
        Key(
            name="format",
            type=Type.STRING,
            documentation="Format of the files that are written.",
            importance=Importance.HIGH,
            check=one_of(FORMATS),
            group=SINK_GROUP,
            width=Width.SHORT,
            display_name="Sink format",
        ),
        Key(
            name="path",
            type=Type.STRING,
            documentation="Folder that the files are written to; each batch of a task is one folder below it.",
            importance=Importance.HIGH,
            check=local_file_path,
            group=SINK_GROUP,
            width=Width.LONG,
            display_name="Sink folder",
        ),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSink:
    """Files in a folder."""

    free_prefixes: ClassVar[tuple[str, ...]] = (OPTIONS,)

    format: str
    path: Path
    options: Mapping[str, str]

    @classmethod
    def definition(cls, config: EndConfig) -> Definition:
        return DEFINITION

    @classmethod
    def validate(cls, spark: SparkSession, config: EndConfig) -> dict[str, list[str]]:
        """The names of the options."""
        sql = spark._jvm.org.apache.spark.sql  # type: ignore[union-attr]
        format_ = config.read(DEFINITION, "format", str)
        known = {
            "json": sql.catalyst.json.JSONOptions,
            "parquet": sql.execution.datasources.parquet.ParquetOptions,
        }[format_]
        return {
            config.key(OPTIONS + option): [f"Spark's {format_} files have no option {option}"]
            for option in config.under(OPTIONS)
            if not (known.isValidOption(option) or option.startswith("parquet."))
        }

    @classmethod
    def is_exactly_once(cls, config: EndConfig) -> bool:
        return True

    @classmethod
    def of(cls, config: EndConfig) -> Self:
        return cls(
            format=config.read(DEFINITION, "format", str),
            path=as_path(config.read(DEFINITION, "path", str)),
            options=config.under(OPTIONS),
        )

    def take_over(self, lineage: TaskLineage, start: int) -> None:
        """Remove what earlier owners of this task have left in staging.

        One of them may still be writing. So its folder goes away whole, by a rename, and its mark with it: whatever it
        writes afterwards is not put in place by it any more.
        """
        for left in self.path.glob(f"{STAGING}/{_key(lineage)}-*"):
            with suppress(FileNotFoundError):
                left.rename(left.with_name(f"{SWEPT}-{uuid.uuid4().hex}"))
        for swept in self.path.glob(f"{STAGING}/{SWEPT}-*"):
            shutil.rmtree(swept, ignore_errors=True)

    def stage(self, batch: Batch) -> "StagedFiles":
        """Write the batch aside; no reader sees it yet."""
        staged = StagedFiles(self, batch.lineage, batch.batch_id)
        batch.rows.write.format(self.format).options(**self.options).save(str(staged.out))
        return staged

    def close(self) -> None:
        """There is no connection."""

    def folder_of(self, lineage: TaskLineage, batch_id: int) -> Path:
        """What a reader sees of a batch."""
        task = lineage.task
        return self.path / safe_name(task.connector) / f"{task.task}-{lineage.lineage}" / str(batch_id)


def _key(lineage: TaskLineage) -> str:
    return f"{safe_name(lineage.task.connector)}-{lineage.task.task}-{lineage.lineage}"


class StagedFiles:
    """A batch written aside, still to be put in place or dropped."""

    def __init__(self, sink: FileSink, lineage: TaskLineage, batch_id: int) -> None:
        self._format = sink.format
        self._there = sink.folder_of(lineage, batch_id)
        self._folder = sink.path / STAGING / f"{_key(lineage)}-{uuid.uuid4().hex}"
        self._mark = self._folder / "mark"
        self.out = self._folder / "out"
        try:
            self._folder.mkdir(parents=True)
            self._mark.touch()
        except OSError as error:
            # Not a refusal: the next start may find the folder in order.
            raise OSError(error.errno, f"Nothing can be written to sink.path={sink.path}: {error.strerror}") from None

    def put_in_place(self) -> None:
        """Rename the copy to what readers see, unless the batch has no rows or another copy of it stands there.

        :raises FencedError: when another owner has swept this copy away.
        """
        try:
            has_rows = self._has_rows()
            # Spark writes no more to the copy, and a sweep takes the mark along: a mark that is still here proves that
            # the copy was whole when its rows were looked for. A swept copy must not be taken for an empty batch.
            if not self._mark.exists():
                raise FencedError
            if not has_rows:
                return
            self._there.parent.mkdir(parents=True, exist_ok=True)
            self.out.rename(self._there)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return
            if not self._mark.exists():
                raise FencedError from error
            raise WorldError(f"A batch could not be put at {self._there}: {error}") from error

    def drop(self) -> None:
        """Remove what is left of the copy."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _has_rows(self) -> bool:
        parts = [path for path in self.out.rglob("part-*") if path.is_file()]
        if self._format == "parquet":
            return any(pyarrow.parquet.read_metadata(part).num_rows for part in parts)
        return any(part.stat().st_size for part in parts)
