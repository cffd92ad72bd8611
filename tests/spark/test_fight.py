"""Two processes fight for one checkpoint; stopped ones come back from the dead. Nothing is lost, nothing doubled."""

import contextlib
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from coterie.spark.checkpoint import batch_in_flight, is_taken
from tests.spark.conftest import SCHEMA, rows_of, write_file
from tests.spark.holders import Holder, directories, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

FIRST_FILES = 12
FILES_A_ROUND = 8
ROWS = 400


def write_input(folder: Path, first: int, count: int) -> None:
    for number in range(first, first + count):
        write_file(folder / "in", f"{number}.csv", [(number * ROWS + i, 1.0, i) for i in range(ROWS)])


def all_committed(holder: Holder, folder: Path, files: int) -> bool:
    """The batches are not counted: a batch has two files where its task was taken over after Spark noted the first of
    them (``sources/``) and before it planned the batch (``offsets/``)."""
    return set(rows_of(folder / "out")) == set(range(files * ROWS)) and not any(
        batch_in_flight(path) is not None for path in directories(holder, folder)
    )


def check_rows(folder: Path, files: int) -> None:
    counted = Counter(rows_of(folder / "out"))
    assert sorted(set(range(files * ROWS)) - set(counted)) == [], "lost"
    assert sorted(row for row, count in counted.items() if count > 1) == [], "doubled"
    assert len(counted) == files * ROWS


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Holder, Holder]]:
    """Two warm workers for all tests here: the only two cold starts."""
    folder = tmp_path_factory.mktemp("fight")
    with contextlib.ExitStack() as stack:
        holders = (Holder(folder, "one", stack), Holder(folder, "two", stack))
        for holder in holders:
            holder.jvm = int(holder.hear("ready").split()[1])
        yield holders


@pytest.fixture
def two(tmp_path: Path, warm: tuple[Holder, Holder]) -> Iterator[tuple[Holder, Holder]]:
    """Both workers with a task of their own for one test."""
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
def test_two_processes_fight_for_one_checkpoint_and_one_wins_each_time(
    tmp_path: Path, two: tuple[Holder, Holder], rounds: int
) -> None:
    write_input(tmp_path, 0, FIRST_FILES)
    files = FIRST_FILES
    two[0].tell(two[0].start)
    two[0].hear("holds")
    in_flight = fights = 0
    for _ in range(rounds):
        write_input(tmp_path, files, FILES_A_ROUND)
        files += FILES_A_ROUND
        # A moment at which a batch has been planned; whether it still runs when it is taken, the taker sees.
        wait_until(lambda: _plans_a_batch(two[0], tmp_path), "the holder has planned a batch")
        # The barrier: both are waiting, and are told in the same breath.
        for holder in two:
            holder.tell(holder.start)
        caught = False
        for holder in two:
            answer = holder.hear_of("holds", "lost").split()
            if answer[0] == "holds":
                fights += 1
                caught |= answer[2] != "-"
        in_flight += caught
        wait_until(
            lambda: sorted(holder.ask("who", "yes", "no") for holder in two) == ["no", "yes"], "one of them holds it"
        )
        assert len(directories(two[0], tmp_path)) == 1
    sys.stdout.write(f"\nA batch was in flight in {in_flight} of {rounds} rounds, {fights} take-overs held\n")
    assert in_flight * 2 >= rounds
    wait_until(lambda: all_committed(two[0], tmp_path, files), "all batches are committed")
    check_rows(tmp_path, files)


def _plans_a_batch(holder: Holder, folder: Path) -> bool:
    return any(batch_in_flight(path) is not None for path in directories(holder, folder))


@pytest.mark.parametrize("jvm_too", [True, False], ids=["python-and-jvm", "python-alone"])
def test_a_stopped_holder_that_comes_back_is_dead_at_its_next_batch_and_stays_so(
    tmp_path: Path, two: tuple[Holder, Holder], jvm_too: bool
) -> None:
    old, new = two
    write_input(tmp_path, 0, FIRST_FILES)
    old.tell(old.start)
    old.hear("holds 1 ")
    held = directories(old, tmp_path)[0]
    wait_until(lambda: len(rows_of(tmp_path / "out")) > 0, "the first batch is there")
    with old.stopped(jvm_too=jvm_too):
        new.tell(new.start)
        new.hear("holds 2 ")
        before = len(rows_of(tmp_path / "out"))
        wait_until(lambda: len(rows_of(tmp_path / "out")) > before, "the new owner gets on")
    old.hear("taken")
    assert is_taken(held)
    write_input(tmp_path, FIRST_FILES, 5)
    wait_until(lambda: all_committed(new, tmp_path, FIRST_FILES + 5), "all batches are committed")
    check_rows(tmp_path, FIRST_FILES + 5)
    assert held.is_file()
    assert old.said() == []
    assert new.said() == []
