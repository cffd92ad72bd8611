"""Processes of ``task_process.py``, which get commands over stdin."""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from coterie.spark.checkpoint import find_batch_id_in_flight, last_batch_id_in_log

DEADLINE_S = 180


class TaskProcess:
    """One process of ``task_process.py``, in its own process group."""

    def __init__(self, folder: Path, name: str, ended_by: contextlib.ExitStack, jars: Path | None = None) -> None:
        command = [
            sys.executable,
            str(Path(__file__).with_name("task_process.py")),
            str(folder / "checkpoints"),
            str(folder / name),
            str(os.getpid()),
            *(() if jars is None else (str(jars),)),
        ]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True, bufsize=1
        )
        self._lines: queue.Queue[str] = queue.Queue()
        # A daemon thread: pytest can end, and the process with it, even if end() was not called.
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        ended_by.callback(self.end)
        self.jvm = 0
        self.checkpoints = folder / "checkpoints"
        self.start = ""
        """The command that starts the task of the current test."""

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.strip())

    def send_command(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")

    def wait_for_line(self, first: str) -> str:
        """Wait for a line that begins with ``first``; any other line before it is a failure."""
        line = self._lines.get(timeout=DEADLINE_S)
        assert line.startswith(first), line
        return line

    def wait_for_answer(self, *answers: str) -> str:
        """Wait for one of these answers; the line ``taken`` may come before it."""
        while (line := self._lines.get(timeout=DEADLINE_S)) == "taken":
            pass
        assert line.startswith(answers), line
        return line

    def ask(self, command: str, *answers: str) -> str:
        self.send_command(command)
        return self.wait_for_answer(*answers)

    def remaining_lines(self) -> list[str]:
        lines = []
        while not self._lines.empty():
            lines.append(self._lines.get())
        return lines

    @contextlib.contextmanager
    def stopped(self, *, jvm_too: bool) -> Iterator[None]:
        pids = [self.process.pid, self.jvm] if jvm_too else [self.process.pid]
        try:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            yield
        finally:
            for pid in reversed(pids):
                os.kill(pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process and its JVM."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        if self.process.poll() is None:
            self.kill()
        self._reader.join()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"timed out waiting until {what}"
        time.sleep(0.02)


def directories(holder: TaskProcess, folder: Path) -> list[Path]:
    """The checkpoints of the test's task; there should be one."""
    task = holder.checkpoints / f"fight-{folder.name}" / "gen-1" / "0"
    return [path for path in task.iterdir() if path.is_dir() and not path.name.startswith(".")]


def last_committed_batch(holder: TaskProcess, folder: Path) -> int:
    """The number of the last committed batch of the test's task; 0 if there is none."""
    return max((last_batch_id_in_log(path / "commits") or 0 for path in directories(holder, folder)), default=0)


def has_batch_in_flight(holder: TaskProcess, folder: Path) -> bool:
    """Whether a batch of the test's task is planned and not committed."""
    return any(find_batch_id_in_flight(path) is not None for path in directories(holder, folder))


def wait_for_commits(holder: TaskProcess, folder: Path, count: int) -> None:
    """Wait until the test's task has committed ``count`` further batches."""
    end = last_committed_batch(holder, folder) + count
    wait_until(lambda: last_committed_batch(holder, folder) >= end, f"{count} batches were committed")
