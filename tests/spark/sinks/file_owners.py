"""Owners of one task that write its batches into a sink's folder, without Spark: rows are lines of small files.

Every owner puts the rows of a batch into its files in another order, as Spark may: files of two copies of a batch do
not go together. In a folder with a folder of bad records each owner takes other rows of a batch for bad ones.
"""

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.spark.fence import FencedError
from coterie.spark.seams import TaskLineage
from coterie.spark.sinks.file_copies import Copy, Layout, SinkFolder

TASK = ConnectorTaskId(ConnectorName("my/c"), 2)
LINEAGE = TaskLineage(task=TASK, lineage="l")
FILES = 3


def folder_at(path: Path, *columns: str, bad: Path | None = None) -> SinkFolder:
    """``bad`` is where bad records go."""
    return SinkFolder(
        path=path,
        layout=Layout(format="json", partition_columns=columns),
        bad=None
        if bad is None
        else SinkFolder(path=bad, layout=Layout(format="json", partition_columns=()), key="bad"),
    )


def other_device(than: Path) -> Path:
    """A folder on another device."""
    shared = Path("/dev/shm")
    return shared if shared.stat().st_dev != than.stat().st_dev else Path("/proc")


def write(copy: Copy, lines: list[str], rng: random.Random) -> None:
    """Some files in two folders, none without lines. A writer whose folder was removed makes it again."""
    rng.shuffle(lines)
    if copy.folder.bad is not None and lines:
        bad = [lines.pop() for _ in range(rng.randrange(1, 4))]
        copy.bad.folder.mkdir(parents=True, exist_ok=True)
        for number, line in enumerate(bad):
            (copy.bad.folder / copy.bad.name(number, ".json")).write_text(f"{line}\n")
    for number in range(FILES if lines else 0):
        there = copy.good.folder / f"p={number % 2}"
        there.mkdir(parents=True, exist_ok=True)
        (there / copy.good.name(number, ".json")).write_text("".join(f"{line}\n" for line in lines[number::FILES]))


def rows_of_batch(number: int) -> list[str]:
    """Every third batch has none."""
    return [f"{number}-{row}" for row in range(6)] if number % 3 else []


def visible(path: Path) -> Counter[str]:
    """What readers see."""
    seen: Counter[str] = Counter()
    for file in path.rglob("*.json"):
        seen.update(file.read_text().split())
    return seen


class Checkpoint:
    """Who holds the task, and how far it is. It changes between two operations of the file system."""

    def __init__(self) -> None:
        self.holder = self.starts = 0
        self.planned = self.committed = -1
        self.is_retired = False

    def take(self) -> int:
        self.starts += 1
        self.holder = self.starts
        return self.starts


class Owners:
    """Owners of a task of so many batches."""

    def __init__(self, folder: SinkFolder, rng: random.Random, batches: int) -> None:
        self.folder = folder
        self.checkpoint = Checkpoint()
        self.batches = batches
        self._rng = rng

    def own(self, at: Callable[[str], None] = lambda _: None) -> None:
        """Take the task and run its batches until another owner has it, or all are done."""
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
        copy = self.folder.copy(LINEAGE, batch)
        try:
            if not copy.is_decided:
                copy.begin()
                at("begun")
                try:
                    write(copy, rows_of_batch(batch), self._rng)
                except OSError:
                    assert not copy.is_whole
                    raise FencedError from None
                at("staged")
            copy.put_in_place()
            at("in place")
        finally:
            copy.drop()

    def retire(self) -> None:
        """What happens two generations later."""
        self.checkpoint.is_retired = True
        self.checkpoint.holder = 0
        self.folder.retire([LINEAGE])

    def check_committed(self) -> None:
        """Readers see each row of a committed batch, and no row twice."""
        wanted = {row for batch in range(self.checkpoint.committed + 1) for row in rows_of_batch(batch)}
        seen = visible(self.folder.path)
        if self.folder.bad is not None:
            seen += visible(self.folder.bad.path)
        lost, doubled = sorted(wanted - seen.keys()), sorted(row for row, count in seen.items() if count > 1)
        if lost or doubled:
            raise AssertionError(f"lost {lost}, doubled {doubled}")
