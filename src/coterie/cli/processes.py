"""Child processes that end with their parent. Each one leads a separate process group.

A child ends itself when the parent's pipe closes (`parent`). The guard ends the groups of children that cannot notice
the closed pipe (`guard`). A group is ended before its leader is reaped (``wait``), because until then no other group
can get its number.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from coterie.cli import guard
from coterie.cli.parent import PIPE_DESCRIPTOR_VARIABLE

_LOG_TAIL_LINES_MAX = 15
"""The number of lines that :meth:`Child.log_tail` returns at most."""


class Child:
    """One child process and the log file for its output. The child leads a new process group, which also contains the
    processes that the child starts. A suspended child counts as running. The first read of ``exit_code`` or
    ``is_running`` after the child has ended also kills the other processes of the group."""

    def __init__(
        self, name: str, process: "subprocess.Popen[bytes]", log_path: Path, *, before_reaping: Callable[[int], None]
    ) -> None:
        """``before_reaping`` is called with the group's number after the group was killed and before the process is
        reaped. No other group can have this number yet."""
        self.name = name
        self.log_path = log_path
        self._started_at_s = time.monotonic()
        self._process = process
        self._before_reaping = before_reaping

    @property
    def pid(self) -> int:
        """The number of the process, and of its group."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code of the process; the negative number of the signal that ended it; None while it runs.

        The first call after the end of the process kills the rest of its group and reaps the process.
        """
        if self._process.returncode is not None:
            return self._process.returncode
        # WNOWAIT: check without reaping, so that the rest of the group can still receive a signal.
        ended_process = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended_process is None:
            return None
        return self._kill_group_and_reap()

    @property
    def is_running(self) -> bool:
        """Whether the process runs or is suspended; like :attr:`exit_code`, this ends the group of an ended process."""
        return self.exit_code is None

    @property
    def age_s(self) -> float:
        """Seconds from the start of the process until now, even if the process has ended meanwhile."""
        return time.monotonic() - self._started_at_s

    def terminate(self) -> None:
        """Send SIGTERM to the process itself, if it runs; the process then ends the other processes of its group. Does
        not wait for that."""
        if self.is_running:
            os.kill(self.pid, signal.SIGTERM)

    def suspend(self) -> None:
        """Send SIGSTOP to the whole group, if the process runs; does not wait until the group is stopped."""
        if self.is_running:
            self._signal_group(signal.SIGSTOP)

    def resume(self) -> None:
        """Send SIGCONT to the whole group, if the process runs."""
        if self.is_running:
            self._signal_group(signal.SIGCONT)

    def kill(self) -> None:
        """Send SIGKILL to the whole group, the JVM included; returns when the process itself is reaped.

        Other processes of the group may end a moment later.
        """
        if self.is_running:
            self._kill_group_and_reap()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the process has ended, for ``timeout_s`` at most; returns whether it has ended."""
        deadline = time.monotonic() + timeout_s
        while self.is_running:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)
        return True

    def log_tail(self) -> str:
        """The last lines of the log, at most :data:`_LOG_TAIL_LINES_MAX`; empty if there is no log."""
        if not self.log_path.exists():
            return ""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES_MAX:])

    def _kill_group_and_reap(self) -> int:
        """Kill the whole group, reap the process, and return its exit code."""
        self._signal_group(signal.SIGKILL)
        self._before_reaping(self.pid)
        return self._process.wait()

    def _signal_group(self, signal_number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal_number)


class Children:
    """Starts and ends the children of this process. As a context manager, it kills the remaining children on exit. The
    guard, a further process, kills them if this process is killed itself."""

    def __init__(self, log_folder: Path) -> None:
        """``log_folder`` is the folder of the children's log files."""
        self._log_folder = log_folder
        self._children: list[Child] = []
        self._pipe_read_end, self._pipe_write_end = os.pipe()
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(guard.__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            process_group=0,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start_python(
        self, name: str, arguments: Sequence[str], *, extra_environment: Mapping[str, str] | None = None
    ) -> Child:
        """Start ``python`` with ``arguments`` as a child; its output is appended to ``<logs>/<name>.log``.

        ``extra_environment`` is added to the variables of this process.
        """
        self._log_folder.mkdir(parents=True, exist_ok=True)
        log_path = self._log_folder / f"{name}.log"
        with log_path.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    **(extra_environment or {}),
                    PIPE_DESCRIPTOR_VARIABLE: str(self._pipe_read_end),
                    "PYTHONUNBUFFERED": "1",
                },
                pass_fds=(self._pipe_read_end,),
                process_group=0,
            )
        child = Child(name, process, log_path, before_reaping=lambda group: self._send_to_guard(f"-{group}"))
        self._children.append(child)
        self._send_to_guard(f"+{child.pid}")
        return child

    def end_gracefully(self, children: Sequence[Child], *, grace_s: float) -> None:
        """Send SIGTERM to each of ``children``, and SIGKILL to the groups of those that run ``grace_s`` later.

        Returns when all have ended.
        """
        for child in children:
            child.terminate()
        deadline = time.monotonic() + grace_s
        while any(child.is_running for child in children) and time.monotonic() < deadline:
            time.sleep(0.02)
        for child in children:
            child.kill()
            if child in self._children:
                self._children.remove(child)

    def close(self) -> None:
        """Kill the remaining children at once, and end the guard.

        If a second Ctrl-C interrupts this, the children end all the same: the pipe that they watch is closed in any
        case (`parent`).
        """
        try:
            self.end_gracefully(list(self._children), grace_s=0.0)
        finally:
            for descriptor in (self._pipe_read_end, self._pipe_write_end):
                with contextlib.suppress(OSError):
                    os.close(descriptor)
            if self._guard.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    self._guard.stdin.close()
            self._guard.wait()

    def _send_to_guard(self, line: str) -> None:
        """Send ``line``, ``+<group>`` or ``-<group>``, to the guard; do nothing if the guard has ended."""
        assert self._guard.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            print(line, file=self._guard.stdin, flush=True)
