"""Waits for conditions, and finds remaining processes."""

import os
import time
from collections.abc import Callable
from pathlib import Path


def wait_until(condition: Callable[[], bool], what: str, within_s: float = 60) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"still not: {what}"
        time.sleep(0.02)


def processes_of(data: Path) -> list[int]:
    """The pids of all processes with this data folder on their command line: broker, workers, JVMs."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(data) in line and int(entry.name) != os.getpid():
            found.append(int(entry.name))
    return found
