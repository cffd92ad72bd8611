"""The worker that changes a connector's positions is killed by SIGKILL before and after each step."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.generations.changes_killed import POINTS, SUCCESSORS

ROOT = Path(__file__).parents[3]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("times", [4, pytest.param(40, marks=pytest.mark.soak)])
def test_the_positions_are_the_old_or_the_new_ones_wherever_the_worker_is_killed(tmp_path: Path, times: int) -> None:
    """Runs in a process of one thread, which can fork. Each play raises if a row is lost, or if other rows are doubled
    than those that the change names."""
    command = [sys.executable, "-m", "tests.spark.generations.changes_killed", str(tmp_path), str(times)]
    plays = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert plays.returncode == 0, plays.stderr
    assert plays.stdout.splitlines() == [
        f"{point}, {successor}: {times}" for point in POINTS for successor in SUCCESSORS
    ]
