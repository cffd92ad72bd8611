"""Processes that own a sink's task and stop at named points of a batch: the side of the test, and of the process."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.spark.task_process import print_line

REPOSITORY = Path(__file__).parents[3]


class OwnerProcess:
    """One run of the module ``tests.spark.sinks.<name>``, in its own process group. The last argument of the module is
    the id of this process."""

    def __init__(self, name: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"tests.spark.sinks.{name}", *arguments, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            bufsize=1,
            cwd=REPOSITORY,
        )

    def wait_for_word(self, word: str) -> None:
        """Read the next line, which must be ``word``."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == word

    def go_on(self) -> None:
        """Let the process continue from the point at which it waits."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")

    def signal(self, number: int) -> None:
        """Send a signal to the process group."""
        os.killpg(self.process.pid, number)

    def end(self) -> None:
        """Kill the process group, if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def wait_at(point: str) -> None:
    """In the process: print ``point``, and wait until the test lets the process continue."""
    print_line(point)
    sys.stdin.readline()
