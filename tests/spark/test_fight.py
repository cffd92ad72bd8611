"""Two processes take one checkpoint over in turn, and stopped processes resume: no row is lost or doubled."""

import contextlib
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from coterie.spark.checkpoint import find_batch_id_in_flight, is_checkpoint_taken_over_or_absent
from tests.spark.conftest import SCHEMA, rows_of, write_file
from tests.spark.holders import TaskProcess, directories, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

FIRST_FILES = 12
FILES_A_ROUND = 8
ROWS = 400


def write_input(folder: Path, first: int, count: int) -> None:
    for number in range(first, first + count):
        write_file(folder / "in", f"{number}.csv", [(number * ROWS + i, 1.0, i) for i in range(ROWS)])


def all_committed(holder: TaskProcess, folder: Path, files: int) -> bool:
    """Whether all files are committed. Batches are not counted: a batch has two files if its task was taken over after
    Spark wrote the first of them to its log (``sources/``) and before it planned the batch (``offsets/``)."""
    return set(rows_of(folder / "out")) == set(range(files * ROWS)) and not any(
        find_batch_id_in_flight(path) is not None for path in directories(holder, folder)
    )


def check_rows(folder: Path, files: int) -> None:
    counted = Counter(rows_of(folder / "out"))
    assert sorted(set(range(files * ROWS)) - set(counted)) == [], "lost"
    assert sorted(row for row, count in counted.items() if count > 1) == [], "doubled"
    assert len(counted) == files * ROWS


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TaskProcess, TaskProcess]]:
    """Two warm workers for all tests of this module."""
    folder = tmp_path_factory.mktemp("fight")
    with contextlib.ExitStack() as stack:
        holders = (TaskProcess(folder, "one", stack), TaskProcess(folder, "two", stack))
        for holder in holders:
            holder.jvm = int(holder.wait_for_line("ready").split()[1])
        yield holders


@pytest.fixture
def both_processes(tmp_path: Path, warm: tuple[TaskProcess, TaskProcess]) -> Iterator[tuple[TaskProcess, TaskProcess]]:
    """Both workers, with a new task for one test."""
    config = {
        "connector.class": "FileSource",
        "trigger.interval.ms": "0",
        "source.format": "csv",
        "source.path": str(tmp_path / "in"),
        "source.schema": SCHEMA,
        "source.option.header": "true",
        "source.max.files.per.trigger": "1",
        "sink.format": "parquet",
        "sink.path": str(tmp_path / "out"),
    }
    (tmp_path / "in").mkdir()
    for holder in warm:
        holder.start = f"start {tmp_path.name} {json.dumps(config)}"
    yield warm
    for holder in warm:
        holder.ask("stop", "stopped")


@pytest.mark.parametrize("rounds", [5, pytest.param(30, marks=pytest.mark.soak)])
def test_of_two_processes_that_take_one_checkpoint_over_one_wins_each_time(
    tmp_path: Path, both_processes: tuple[TaskProcess, TaskProcess], rounds: int
) -> None:
    write_input(tmp_path, 0, FIRST_FILES)
    files = FIRST_FILES
    both_processes[0].send_command(both_processes[0].start)
    both_processes[0].wait_for_line("holds")
    in_flight = fights = 0
    for _ in range(rounds):
        write_input(tmp_path, files, FILES_A_ROUND)
        files += FILES_A_ROUND
        # A batch is planned now; the process that takes over prints whether it was still in flight.
        wait_until(lambda: _plans_a_batch(both_processes[0], tmp_path), "the holder has planned a batch")
        # Both processes are waiting and get their commands at the same time.
        for holder in both_processes:
            holder.send_command(holder.start)
        caught = False
        for holder in both_processes:
            answer = holder.wait_for_answer("holds", "lost").split()
            if answer[0] == "holds":
                fights += 1
                caught |= answer[2] != "-"
        in_flight += caught
        wait_until(
            lambda: sorted(holder.ask("who", "yes", "no") for holder in both_processes) == ["no", "yes"],
            "one of the processes holds the checkpoint",
        )
        assert len(directories(both_processes[0], tmp_path)) == 1
    sys.stdout.write(f"\nA batch was in flight in {in_flight} of {rounds} rounds, {fights} take-overs held\n")
    assert in_flight * 2 >= rounds
    wait_until(lambda: all_committed(both_processes[0], tmp_path, files), "all batches are committed")
    check_rows(tmp_path, files)


def _plans_a_batch(holder: TaskProcess, folder: Path) -> bool:
    return any(find_batch_id_in_flight(path) is not None for path in directories(holder, folder))


@pytest.mark.parametrize("jvm_too", [True, False], ids=["python-and-jvm", "python-alone"])
def test_a_stopped_holder_that_resumes_fails_at_its_next_batch(
    tmp_path: Path, both_processes: tuple[TaskProcess, TaskProcess], jvm_too: bool
) -> None:
    old, new = both_processes
    write_input(tmp_path, 0, FIRST_FILES)
    old.send_command(old.start)
    old.wait_for_line("holds 1 ")
    held = directories(old, tmp_path)[0]
    wait_until(lambda: len(rows_of(tmp_path / "out")) > 0, "the first batch is there")
    with old.stopped(jvm_too=jvm_too):
        new.send_command(new.start)
        new.wait_for_line("holds 2 ")
        before = len(rows_of(tmp_path / "out"))
        wait_until(lambda: len(rows_of(tmp_path / "out")) > before, "the new owner makes progress")
    old.wait_for_line("taken")
    assert is_checkpoint_taken_over_or_absent(held)
    write_input(tmp_path, FIRST_FILES, 5)
    wait_until(lambda: all_committed(new, tmp_path, FIRST_FILES + 5), "all batches are committed")
    check_rows(tmp_path, FIRST_FILES + 5)
    assert held.is_file()
    assert old.remaining_lines() == []
    assert new.remaining_lines() == []
