"""Waits for conditions, and finds remaining processes."""

import os
import time
from collections.abc import Callable
from pathlib import Path


def wait_until(condition: Callable[[], bool], what: str, within_s: float = 60) -> None:
    """Call ``condition`` until it is true. The interval between two calls grows to a tenth of the time waited so far,
    and to 0.2 s at most: a call may read the command lines of all processes."""
    began_s = time.monotonic()
    while not condition():
        waited_s = time.monotonic() - began_s
        assert waited_s < within_s, f"still not: {what}"
        time.sleep(min(max(0.02, waited_s / 10), 0.2))


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
