"""Owners of one task that write its batches to a sink's folder, without Spark: rows are lines of small files.

Every owner distributes the rows of a batch over its files in another order, as Spark may: files of two copies of a
batch must not be mixed. With a folder of bad records, other rows of a batch are bad for each owner.
"""

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.spark.fence import FencedError
from coterie.spark.seams import TaskCheckpointLineage
from coterie.spark.sinks.file_copies import BatchCopy, FolderLayout, SinkFolder

TASK = ConnectorTaskId(ConnectorName("my/c"), 2)
LINEAGE = TaskCheckpointLineage(task=TASK, lineage_id="l")
FILES = 3


def folder_at(path: Path, *columns: str, bad: Path | None = None) -> SinkFolder:
    """The sink's folder; ``bad`` is the folder of bad records."""
    return SinkFolder(
        path=path,
        layout=FolderLayout(format="json", partition_columns=columns),
        bad_records_folder=None
        if bad is None
        else SinkFolder(path=bad, layout=FolderLayout(format="json", partition_columns=()), config_key="bad"),
    )


def other_device(than: Path) -> Path:
    """A folder on another device."""
    shared = Path("/dev/shm")
    return shared if shared.stat().st_dev != than.stat().st_dev else Path("/proc")


def write(copy: BatchCopy, lines: list[str], rng: random.Random) -> None:
    """Write some files in two folders, none without lines. A writer creates its folder again if it was removed."""
    rng.shuffle(lines)
    if copy.sink_folder.bad_records_folder is not None and lines:
        bad = [lines.pop() for _ in range(rng.randrange(1, 4))]
        copy.bad_files.folder.mkdir(parents=True, exist_ok=True)
        for number, line in enumerate(bad):
            (copy.bad_files.folder / copy.bad_files.file_name(number, ".json")).write_text(f"{line}\n")
    for number in range(FILES if lines else 0):
        there = copy.good_files.folder / f"p={number % 2}"
        there.mkdir(parents=True, exist_ok=True)
        (there / copy.good_files.file_name(number, ".json")).write_text(
            "".join(f"{line}\n" for line in lines[number::FILES])
        )


def rows_of_batch(number: int) -> list[str]:
    """The rows of a batch; every third batch has none."""
    return [f"{number}-{row}" for row in range(6)] if number % 3 else []


def visible(path: Path) -> Counter[str]:
    """The rows that readers see, with their counts."""
    seen: Counter[str] = Counter()
    for file in path.rglob("*.json"):
        seen.update(file.read_text().split())
    return seen


class Checkpoint:
    """The owner and the progress of the task. They change between two file-system operations."""

    def __init__(self) -> None:
        self.holder = self.starts = 0
        self.planned = self.committed = -1
        self.is_retired = False

    def take(self) -> int:
        self.starts += 1
        self.holder = self.starts
        return self.starts


class Owners:
    """Owners of a task with a number of batches."""

    def __init__(self, folder: SinkFolder, rng: random.Random, batches: int) -> None:
        self.folder = folder
        self.checkpoint = Checkpoint()
        self.batches = batches
        self._rng = rng

    def own(self, at: Callable[[str], None] = lambda _: None) -> None:
        """Take the task over and run its batches until another owner has taken it or all are done."""
        checkpoint = self.checkpoint
        if checkpoint.is_retired:
            return
        start = checkpoint.take()
        self.folder.take_over(LINEAGE)
        while checkpoint.holder == start:
            if checkpoint.planned == checkpoint.committed:
                if checkpoint.planned == self.batches - 1:
                    return
                checkpoint.planned += 1
            batch = checkpoint.planned
            at("planned")
            try:
                self.run(batch, at)
            except FencedError:
                return
            if checkpoint.holder == start:
                checkpoint.committed = batch
                self.check_committed()

    def run(self, batch: int, at: Callable[[str], None]) -> None:
        copy = self.folder.new_batch_copy(LINEAGE, batch)
        try:
            if not copy.is_batch_committed:
                copy.check_sink_and_create_staging_folder()
                at("begun")
                try:
                    write(copy, rows_of_batch(batch), self._rng)
                except OSError:
                    assert not copy.is_still_staged
                    raise FencedError from None
                at("staged")
            copy.commit()
            at("in place")
        finally:
            copy.clean_up()

    def remove_deduplication_data(self) -> None:
        """Remove the marks, as two generations later."""
        self.checkpoint.is_retired = True
        self.checkpoint.holder = 0
        self.folder.remove_deduplication_data([LINEAGE])

    def check_committed(self) -> None:
        """Check that readers see each row of a committed batch, and no row twice."""
        wanted = {row for batch in range(self.checkpoint.committed + 1) for row in rows_of_batch(batch)}
        seen = visible(self.folder.path)
        if self.folder.bad_records_folder is not None:
            seen += visible(self.folder.bad_records_folder.path)
        lost, doubled = sorted(wanted - seen.keys()), sorted(row for row, count in seen.items() if count > 1)
        if lost or doubled:
            raise AssertionError(f"lost {lost}, doubled {doubled}")
