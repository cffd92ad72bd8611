"""Processes that a test starts do not outlive it."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes.cluster import until

pytestmark = pytest.mark.processes

STARTS = """
import sys, time
from pathlib import Path
from tests.processes.cluster import Cluster

print(Cluster(folder=Path(sys.argv[1])).start_broker().popen.pid, flush=True)
time.sleep(600)
"""


def test_processes_end_when_the_test_that_started_them_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STARTS, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as test:
        assert test.stdout is not None
        broker = Path("/proc", test.stdout.readline().strip())
        assert broker.is_dir()
        test.send_signal(signal.SIGKILL)
    until(lambda: not broker.exists(), within_s=30, what="the broker has ended")
