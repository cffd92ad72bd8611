"""The kill of a fake worker that writes `offsets/N` and `commits/N` as Spark does, and handmade checkpoints."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from coterie.cli.demo import kill
from coterie.cli.demo.kill import (
    BatchInFlight,
    are_batches_repeated_or_raise,
    kill_in_mid_batch_unless_ended,
    process_states,
)
from coterie.cli.demo.observe import CheckpointFinder
from coterie.cli.processes import Children
from coterie.nouns.errors import WorldError
from coterie.nouns.jobs import ConnectorTaskId
from coterie.spark.checkpoint import find_batch_id_in_flight

TASK = ConnectorTaskId.parse("a-0")

# Plans and commits batch after batch; it has a child process that must be killed, too.
WORKER = """
import itertools, subprocess, sys, time
from pathlib import Path
from coterie.cli import parent
parent.exit_with_parent()
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
for batch in itertools.count():
    plan = Path(sys.argv[1], "offsets", f".{batch}.tmp")
    plan.write_text(f"plan {batch}")
    plan.rename(plan.with_name(str(batch)))
    time.sleep(0.05)
    Path(sys.argv[1], "commits", str(batch)).touch()
    time.sleep(0.05)
"""


def make_checkpoint(location: Path, name: str) -> Path:
    checkpoint = location / "a-incarnation" / "gen-1" / "0" / name
    for log in ("offsets", "commits"):
        (checkpoint / log).mkdir(parents=True)
    (checkpoint / "lineage").touch()
    return checkpoint


@pytest.mark.processes
def test_a_worker_is_killed_with_a_batch_planned_and_not_committed(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path, "1-aa")
    with Children(tmp_path / "logs") as children:
        child = children.start_python("worker", ["-c", WORKER, str(checkpoint)])
        deadline = time.monotonic() + 30
        while not (checkpoint / "commits" / "2").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        (interrupted,) = kill_in_mid_batch_unless_ended(
            child, [TASK], CheckpointFinder(tmp_path), timeout_s=30, between_checks=lambda: None
        )
        assert set(process_states(child.pid)) <= {"Z"}
    assert find_batch_id_in_flight(checkpoint) == interrupted.batch_id
    assert (interrupted.task, interrupted.task_start_number, interrupted.planned_offsets) == (
        TASK,
        1,
        f"plan {interrupted.batch_id}".encode(),
    )
    assert not (checkpoint / "commits" / str(interrupted.batch_id)).exists()


@pytest.mark.processes
def test_without_a_batch_in_flight_no_worker_is_killed(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "1-aa")
    with Children(tmp_path / "logs") as children:
        child = children.start_python("worker", ["-c", "import time; time.sleep(600)"])
        with pytest.raises(WorldError, match="could not kill worker in the middle of a batch"):
            kill_in_mid_batch_unless_ended(
                child, [TASK], CheckpointFinder(tmp_path), timeout_s=0.2, between_checks=lambda: None
            )
        assert child.is_running


@pytest.mark.processes
def test_a_worker_that_does_not_stop_is_reported_and_not_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (make_checkpoint(tmp_path, "1-aa") / "offsets" / "7").write_text("plan")
    monkeypatch.setattr(kill, "SUSPENSION_TIMEOUT_S", 0.05)
    with Children(tmp_path / "logs") as children:
        child = children.start_python("worker", ["-c", "import time; time.sleep(600)"])
        suspend = child.suspend
        monkeypatch.setattr(child, "suspend", lambda: None)
        with pytest.raises(WorldError, match=rf"^Process group {child.pid} has not stopped 0\.05 s after SIGSTOP"):
            kill_in_mid_batch_unless_ended(
                child, [TASK], CheckpointFinder(tmp_path), timeout_s=30, between_checks=lambda: None
            )
        # The signal comes late, and the worker is resumed: it must not stay stopped.
        monkeypatch.setattr(kill, "wait_until_processes_suspended", late(suspend))
        with pytest.raises(WorldError, match="late"):
            kill_in_mid_batch_unless_ended(
                child, [TASK], CheckpointFinder(tmp_path), timeout_s=30, between_checks=lambda: None
            )
        assert child.is_running
        assert "T" not in process_states(child.pid)


def late(suspend: Callable[[], None]) -> Callable[[int], None]:
    def wait(group: int) -> None:
        suspend()
        raise WorldError("late")

    return wait


@pytest.mark.processes
def test_a_worker_killed_by_another_process_has_no_interrupted_batch(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "1-aa")
    with Children(tmp_path / "logs") as children:
        child = children.start_python("worker", ["-c", "import time; time.sleep(600)"])
        assert (
            kill_in_mid_batch_unless_ended(
                child,
                [TASK],
                CheckpointFinder(tmp_path),
                timeout_s=30,
                between_checks=lambda: os.kill(child.pid, signal.SIGKILL) if child.is_running else None,
            )
            == []
        )
        assert child.exit_code == -signal.SIGKILL


def test_a_batch_has_continued_when_its_new_owner_has_committed_it_as_planned(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path, "1-aa")
    (checkpoint / "offsets" / "7").write_text("plan")
    interrupted = [BatchInFlight(task=TASK, batch_id=7, planned_offsets=b"plan", task_start_number=1)]
    checkpoints = CheckpointFinder(tmp_path)
    (checkpoint / "commits" / "7").touch()
    assert not are_batches_repeated_or_raise(interrupted, checkpoints), "the old owner still holds the checkpoint"
    (checkpoint / "commits" / "7").unlink()
    checkpoint = checkpoint.rename(checkpoint.with_name("2-bb"))
    assert not are_batches_repeated_or_raise(interrupted, checkpoints), "not committed yet"
    (checkpoint / "commits" / "7").touch()
    assert are_batches_repeated_or_raise(interrupted, checkpoints)
    (checkpoint / "offsets" / "7").write_text("another plan")
    with pytest.raises(WorldError, match="planned batch 7 again"):
        are_batches_repeated_or_raise(interrupted, checkpoints)


def test_a_checkpoint_renamed_during_the_check_is_checked_again(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path, "2-bb")
    (checkpoint / "commits" / "7").touch()
    # The state during a rename of the checkpoint: the commit is still listed, the plan is no longer there.
    assert not are_batches_repeated_or_raise(
        [BatchInFlight(task=TASK, batch_id=7, planned_offsets=b"plan", task_start_number=1)], CheckpointFinder(tmp_path)
    )
