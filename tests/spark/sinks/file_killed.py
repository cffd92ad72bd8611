"""Owners of a sink's folder, killed or stopped at a named point, each in its own process; see ``test_file_copies.py``.

``python -m tests.spark.sinks.file_killed FOLDER TIMES`` prints, as JSON, how often each point was hit with each fault:
a play counts only if the files show that the fault occurred at the point.
"""

import json
import os
import random
import signal
import sys
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from coterie.spark.sinks import file_copies
from tests.spark.sinks.file_owners import FILES, LINEAGE, Checkpoint, Owners, folder_at, rows_of_batch

POINTS = ("begun", "half written", "staged", "decided", "half moved", "moved")
BATCHES = 6


def file_counter(name: str) -> Any:
    """A number in a file, which all processes share."""
    return property(
        lambda self: int((self.folder / name).read_text()),
        lambda self, value: (self.folder / name).write_text(str(int(value))),
    )


class CheckpointInFiles(Checkpoint):
    holder, starts, planned, committed, is_retired = map(
        file_counter, ("holder", "starts", "planned", "committed", "retired")
    )

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        super().__init__()
        self.is_retired = False


class KilledOwner:
    """An owner that sends itself a signal at a point of one batch."""

    def __init__(self, owners: Owners, point: str, how: signal.Signals, batch: int) -> None:
        self._owners, self._point, self._how, self._batch = owners, point, how, batch

    def run(self) -> None:
        rename, write_text = os.rename, Path.write_text

        def seen_rename(source: Any, there: Any) -> None:
            rename(source, there)
            if Path(there).parent == self._owners.folder.committed_batches_folder(LINEAGE):
                self._reached("decided")
            elif file_copies.COMMITTED_FOLDER in Path(source).parts:
                self._reached("half moved")

        def seen_write(path: Path, text: str) -> int:
            count = write_text(path, text)
            if file_copies.STAGED_FOLDER in path.parts and path.suffix == ".json":
                self._reached("half written")
            return count

        os.rename = seen_rename  # type: ignore[assignment]
        Path.write_text = seen_write  # type: ignore[method-assign, assignment]
        self._owners.own(lambda point: self._reached("moved" if point == "in place" else point))

    def _reached(self, point: str) -> None:
        if point == self._point and self._owners.checkpoint.planned == self._batch:
            self._point = ""
            os.kill(os.getpid(), self._how)


def shown_by_disk(owners: Owners, batch: int) -> str:
    """The point that the owner of a batch has reached, from the files."""
    folder = owners.folder
    committed = folder.committed_batches_folder(LINEAGE) / str(batch)
    if committed.is_dir():
        left = len(list(committed.rglob("*.json")))
        return "decided" if left == FILES else "half moved" if left else "moved"
    (staged,) = folder.staged_copies_folder.glob(f"*-{LINEAGE.lineage_id}-*")
    written = list(staged.rglob("*.json"))
    if not written:
        return "begun"
    rows = sum(len(path.read_text().split()) for path in written)
    return "staged" if rows == len(rows_of_batch(batch)) else "half written"


def run(path: Path, point: str, fault: str, seed: int) -> bool:
    """Whether the files showed the point; raises if a row is lost or doubled."""
    owners = Owners(folder_at(path / "out", "p"), random.Random(seed), BATCHES)
    owners.checkpoint = CheckpointInFiles(path / "checkpoint")
    batch = (1, 2, 4, 5)[seed % 4]
    how = signal.SIGSTOP if fault == "frozen" else signal.SIGKILL
    victim = os.fork()
    if victim == 0:
        code = 0
        try:
            KilledOwner(owners, point, how, batch).run()
        except BaseException:  # noqa: BLE001 - a forked child must not run on in its parent's code
            traceback.print_exc()
            code = 1
        os._exit(code)
    _, status = os.waitpid(victim, os.WUNTRACED)
    assert os.WIFSTOPPED(status) if fault == "frozen" else os.WIFSIGNALED(status), (point, fault, seed, status)
    was_hit = shown_by_disk(owners, batch) == point
    owners.own()
    assert owners.checkpoint.committed == BATCHES - 1
    if seed % 3 == 0:
        owners.remove_deduplication_data()
    if fault == "frozen":
        os.kill(victim, signal.SIGCONT)
        _, status = os.waitpid(victim, 0)
        assert os.waitstatus_to_exitcode(status) == 0, (point, fault, seed)
    owners.check_committed()
    return was_hit


def main() -> None:
    folder, times = Path(sys.argv[1]), int(sys.argv[2])
    hits: Counter[str] = Counter()
    for point in POINTS:
        for fault in ("killed", "frozen"):
            for seed in range(times):
                name = f"{point}, {fault}"
                hits[name] += run(folder / f"{name} {seed}".replace(" ", "-"), point, fault, seed)
    sys.stdout.write(json.dumps(hits))


if __name__ == "__main__":
    main()
