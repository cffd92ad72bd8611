"""The owner of a re-split is killed by SIGKILL, or stopped for two generations, before and after each step."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.generations.killed import FAULTS, POINTS

ROOT = Path(__file__).parents[3]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("times", [1, pytest.param(20, marks=pytest.mark.soak)])
def test_no_row_is_lost_or_doubled_wherever_the_owner_is_killed_or_frozen(tmp_path: Path, times: int) -> None:
    """Runs in a process of one thread, which can fork. Each play raises if a row is lost or doubled."""
    command = [sys.executable, "-m", "tests.spark.generations.killed", str(tmp_path), str(times)]
    plays = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert plays.returncode == 0, plays.stderr
    assert plays.stdout.splitlines() == [f"{point}, {fault}: {times}" for point in POINTS for fault in FAULTS]
