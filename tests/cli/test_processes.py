"""Child processes end with their parent, however it ends; each test starts real processes and checks that all end."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from coterie.cli.processes import Child, Children
from tests.cli.waiting import wait_until

pytestmark = pytest.mark.processes

# The file appears only with its whole content, also if its writer is stopped or killed right after.
WRITE = """
from pathlib import Path
def write(path, text):
    path.with_suffix(".part").write_text(text)
    path.with_suffix(".part").rename(path)
"""
# A child like Coterie's: it watches its parent and has a child (as a worker has its JVM), which ignores SIGTERM.
CHILD = f"""{WRITE}
import subprocess, sys, time
from coterie.cli import parent
parent.exit_with_parent()
grandchild = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, 1); time.sleep(600)"])
write(Path(sys.argv[1]), str(grandchild.pid))
time.sleep(600)
"""
# A parent that starts one such child, and waits to be ended by the test.
PARENT = f"""{WRITE}
import sys, time
from coterie.cli.processes import Child, Children
folder = Path(sys.argv[1])
with Children(folder) as children:
    child = children.start_python("child", ["-c", {CHILD!r}, str(folder / "grandchild")])
    write(folder / "child", str(child.pid))
    if sys.argv[2] == "stopped":
        while not (folder / "grandchild").exists():
            time.sleep(0.01)
        child.suspend()
    (folder / "ready").touch()
    time.sleep(600)
"""


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def read_pid(file: Path) -> int:
    wait_until(file.exists, f"{file.name} is written")
    return int(file.read_text())


@contextmanager
def started_parent(folder: Path, how: str) -> "Iterator[subprocess.Popen[bytes]]":
    """A parent with a started child; it is killed at the end if it has not ended before."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(folder), how], process_group=0)
    try:
        wait_until((folder / "ready").exists, "the parent is ready")
        yield parent
    finally:
        parent.kill()
        parent.wait(timeout=30)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["SIGKILL", "Ctrl-C"])
def test_children_and_grandchildren_end_with_their_parent(tmp_path: Path, number: signal.Signals) -> None:
    with started_parent(tmp_path, "running") as parent:
        pids = [read_pid(tmp_path / "child"), read_pid(tmp_path / "grandchild")]
        os.kill(parent.pid, number)
        parent.wait(timeout=30)
    wait_until(lambda: not any(map(is_alive, pids)), "all processes have ended")


def test_a_suspended_process_group_ends_with_its_parent(tmp_path: Path) -> None:
    with started_parent(tmp_path, "stopped"):
        pids = [read_pid(tmp_path / "child"), read_pid(tmp_path / "grandchild")]
        assert all(map(is_alive, pids))
    wait_until(lambda: not any(map(is_alive, pids)), "all processes have ended")


def test_a_child_whose_parent_ends_at_once_ends_too(tmp_path: Path) -> None:
    for _ in range(5):
        with started_parent(tmp_path, "running"):
            child = read_pid(tmp_path / "child")  # the child is still importing, or has not even started
        wait_until(lambda child=child: not is_alive(child), "the child has ended")  # type: ignore[misc]
        (tmp_path / "ready").unlink()


def test_the_descendants_of_a_killed_child_are_ended(tmp_path: Path) -> None:
    with Children(tmp_path) as children:
        child = children.start_python("child", ["-c", CHILD, str(tmp_path / "grandchild")])
        grandchild = read_pid(tmp_path / "grandchild")
        os.kill(child.pid, signal.SIGKILL)
        wait_until(lambda: child.exit_code == -signal.SIGKILL, "the child's exit code is known")
        wait_until(lambda: not is_alive(grandchild), "the grandchild has ended")


def test_the_end_of_a_childs_log_can_be_shown(tmp_path: Path) -> None:
    with Children(tmp_path) as children:
        child = children.start_python("child", ["-c", "import sys; print(*range(100), sep='\\n'); sys.exit(3)"])
        assert child.wait(30)
        assert child.exit_code == 3
        assert child.log_tail().splitlines()[-1] == "99"
        assert len(child.log_tail().splitlines()) == 15


def test_a_child_that_ignores_sigterm_is_killed_after_the_grace_time(tmp_path: Path) -> None:
    ignores_sigterm = (
        "import pathlib, signal, sys, time; signal.signal(15, 1); pathlib.Path(sys.argv[1]).touch(); time.sleep(600)"
    )
    with Children(tmp_path) as children:
        child = children.start_python("child", ["-c", ignores_sigterm, str(tmp_path / "ignores_sigterm")])
        wait_until((tmp_path / "ignores_sigterm").exists, "the child ignores SIGTERM")
        children.end_gracefully([child], grace_s=0.1)
        assert child.exit_code == -signal.SIGKILL


@pytest.mark.parametrize("how", ["killed", "ended"])
def test_a_process_group_is_unregistered_before_its_pid_can_be_reused(tmp_path: Path, how: str) -> None:
    existed_when_forgotten: list[bool] = []
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], process_group=0)

    def forget(group: int) -> None:
        assert group == process.pid
        existed_when_forgotten.append(Path(f"/proc/{group}").exists())

    child = Child("child", process, tmp_path / "log", before_reaping=forget)
    if how == "ended":
        process.send_signal(signal.SIGKILL)
        assert child.wait(30)
    else:
        child.kill()
    assert child.exit_code == -signal.SIGKILL
    assert existed_when_forgotten == [True]
