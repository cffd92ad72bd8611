"""The command `coterie` as a process: its exit code and what it printed."""

import os
import subprocess
import sys

ENVIRONMENT = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}


def coterie(*arguments: str, check: int | None = 0) -> "subprocess.CompletedProcess[str]":
    run = subprocess.run(
        [sys.executable, "-m", "coterie", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **ENVIRONMENT},
    )
    assert check is None or run.returncode == check, run.stderr
    return run
