"""A task on Spark that writes files and kills its process at a point of a batch; see ``test_files_killed.py``.

``python -m tests.spark.sinks.file_task FOLDER FORMAT POINT`` takes the task over, finishes the batch in flight and
continues. At the point, in the second batch after that, it sends SIGKILL to its process group; without a point (``-``)
it reads everything.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.spark.checkpoint import create_first_checkpoint_if_absent, take_over_checkpoint
from coterie.spark.fence import Fence
from coterie.spark.generations.split import SplitFunction
from coterie.spark.pipeline import Pipeline
from coterie.spark.query import TaskQuery
from coterie.spark.seams import Batch
from coterie.spark.session import start_driver
from coterie.spark.settings import SparkConfig
from coterie.spark.sinks import file_writers, files
from coterie.spark.sinks.file_copies import COMMITTED_FOLDER, BatchCopy
from coterie.spark.sinks.files import FileSink

TASK = ConnectorTaskId(ConnectorName("c"), 0)
POINTS = ("planned", "begun", "staged", "decided", "half moved", "moved", "committed")


class KillPoints:
    """Kills the process group at a point of one batch."""

    def __init__(self, point: str, batch: int) -> None:
        self._point, self._batch = point, batch
        self._current = -1

    def install(self) -> None:
        stage, put_in_place, rename = FileSink.stage, BatchCopy.commit, os.rename

        def seen_stage(sink: FileSink, batch: Batch) -> BatchCopy:
            # The previous batch is committed.
            self._reached("committed" if batch.batch_id == self._batch + 1 else "", self._batch)
            self._current = batch.batch_id
            self._reached("planned")
            copy = stage(sink, batch)
            self._reached("staged")
            return copy

        def seen_write(*args: Any, **keys: Any) -> None:
            self._reached("begun")
            file_writers.write_batch(*args, **keys)

        def seen_rename(source: Any, there: Any) -> None:
            rename(source, there)
            if Path(there).parent.parent.name == COMMITTED_FOLDER:
                self._reached("decided")
            elif COMMITTED_FOLDER in Path(source).parts:
                self._reached("half moved")

        def seen_put(copy: BatchCopy) -> None:
            put_in_place(copy)
            self._reached("moved")

        seams: list[tuple[object, str, Callable[..., Any]]] = [
            (FileSink, "stage", seen_stage),
            (files, "write_batch", seen_write),
            (os, "rename", seen_rename),
            (BatchCopy, "commit", seen_put),
        ]
        for owner, name, seen in seams:
            setattr(owner, name, seen)

    def _reached(self, point: str, batch: int | None = None) -> None:
        if point == self._point and (self._current if batch is None else batch) == self._batch:
            os.killpg(0, signal.SIGKILL)


def config_of(folder: Path, format_: str) -> dict[str, str]:
    return {
        "task.class": "FileSource",
        "task.index": "0",
        "task.count": "1",
        "task.split": SplitFunction.PATH_HASH_V1.value,
        "source.format": "json",
        "source.path": str(folder / "in"),
        "source.schema": "row BIGINT, part INT",
        "source.max.files.per.trigger": "1",
        "sink.format": format_,
        "sink.path": str(folder / "out"),
        "sink.partition.field.name": "part",
    }


def main(folder: Path, format_: str, point: str) -> None:
    (folder / "scratch").mkdir(exist_ok=True)
    session = start_driver(
        SparkConfig(
            checkpoint_location=folder / "checkpoints",
            scratch_folder=folder / "scratch",
            jvm_log_file=folder / "spark.log",
            user_settings={"spark.master": "local[2]", "spark.driver.memory": "512m"},
            jar_folder_settings=None,
        ),
        lambda _: None,
    )
    create_first_checkpoint_if_absent(folder / "checkpoints" / "0")
    held = take_over_checkpoint(folder / "checkpoints" / "0")
    last = max((int(path.name) for path in (held.path / "offsets").glob("[0-9]*")), default=-1)
    if point != "-":
        KillPoints(point, last + 2).install()
        (folder / "victim").write_text(str(last + 2))
    query = TaskQuery(session.spark, TASK, Pipeline.of(config_of(folder, format_), {}), held, Fence())
    query.run_available_input_until_end(timeout_s=60)
    session.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
