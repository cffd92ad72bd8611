"""Spark tasks that write files are killed by SIGKILL at each point of a batch: each row is in the folder once."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from coterie.spark.checkpoint import (
    FIRST_CHECKPOINT_NAME,
    find_batch_id_in_flight,
    is_checkpoint_taken_over_or_absent,
    last_batch_id_in_log,
)
from tests.sink_files import batch_of, counted, visible_files
from tests.spark.sinks.file_task import POINTS

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(7200)]

ROOT = Path(__file__).parents[3]
ROWS = 40
PARTS = 3
"""Files of a batch."""
BATCHES_A_START = 4


def write_input(folder: Path, files: range) -> None:
    (folder / "in").mkdir(exist_ok=True)
    for number in files:
        lines = (json.dumps({"row": number * ROWS + row, "part": row % PARTS}) for row in range(ROWS))
        aside = folder / f".{number}"
        aside.write_text("".join(f"{line}\n" for line in lines))
        aside.rename(folder / "in" / f"{number}.json")


def run(folder: Path, format_: str, point: str) -> int:
    command = [sys.executable, "-m", "tests.spark.sinks.file_task", str(folder), format_, point]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, start_new_session=True)
    assert ended.returncode in (0, -9), ended.stderr
    return ended.returncode


def shown_by_disk(folder: Path) -> str:
    """The point that the killed process had reached in its batch, from the files."""
    batch = int((folder / "victim").read_text())
    (checkpoint,) = (
        path for path in (folder / "checkpoints" / "0").iterdir() if not is_checkpoint_taken_over_or_absent(path)
    )
    assert checkpoint.name != FIRST_CHECKPOINT_NAME
    if last_batch_id_in_log(checkpoint / "commits") == batch:
        return "committed"
    assert find_batch_id_in_flight(checkpoint) == batch
    work = folder / ".out.coterie"
    copies = list((work / "committed").glob(f"*/{batch}"))
    if copies:
        left = [path for path in copies[0].rglob("*.*") if path.is_file()]
        moved = [path for path in visible_files(folder / "out") if batch_of(path)[1] == batch]
        assert len(left) + len(moved) == PARTS
        return "decided" if not moved else "half moved" if left else "moved"
    staged = list((work / "staged").glob("c-*"))
    if not staged:
        return "planned"
    return "staged" if list(staged[0].rglob("*.*")) else "begun"


@pytest.mark.parametrize("format_", ["parquet", "json"])
@pytest.mark.parametrize("times", [1, 20])
def test_each_row_is_in_the_folder_once_although_the_task_was_killed_at_each_point(
    tmp_path: Path, format_: str, times: int
) -> None:
    """Each start finishes the batch of the previous one. A kill counts if the files show that it hit the point."""
    hits: Counter[str] = Counter()
    written = 0
    for _ in range(times):
        for point in POINTS:
            write_input(tmp_path, range(written, written + BATCHES_A_START))
            written += BATCHES_A_START
            assert run(tmp_path, format_, point) == -9
            hits[point] += shown_by_disk(tmp_path) == point
    assert run(tmp_path, format_, "-") == 0
    assert hits == dict.fromkeys(POINTS, times)
    assert {int(row): count for row, count in counted(tmp_path / "out", "row").items()} == dict.fromkeys(
        range(written * ROWS), 1
    )
    assert list((tmp_path / ".out.coterie" / "staged").iterdir()) == []
