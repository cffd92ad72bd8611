"""The startup status of a fleet's workers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from coterie.cli.fleet import Fleet, FleetSettings
from coterie.cli.processes import Children
from tests.cli.waiting import wait_until
from tests.ports import free_port

pytestmark = pytest.mark.processes


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Children]:
    with Children(tmp_path / "logs") as children:
        yield children


def test_a_worker_whose_process_has_ended_is_not_shown_as_starting(tmp_path: Path, children: Children) -> None:
    lines: list[str] = []
    fleet = Fleet(
        FleetSettings(data_folder=tmp_path, broker_port=free_port(), rest_port=free_port()),
        children,
        print_line=lines.append,
    )
    worker = children.start_python("worker-0", ["-c", "input()"])
    fleet.workers[0] = children.start_python("worker-0", ["-c", "import time; time.sleep(600)"])
    assert fleet.startup_status(0) == "its process is starting"
    fleet.workers[0] = worker
    wait_until(lambda: not worker.is_running, "the worker has ended")
    assert fleet.startup_status(0) == "its process has ended (exit code 1)"
    assert not fleet.is_ready(0)
    fleet.check_children()
    assert fleet.startup_status(0) == "its process has ended"
    fleet.close()
