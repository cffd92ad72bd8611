"""`coterie demo`: its startup, its end by Ctrl-C, and a whole run with a connect group."""

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coterie.cli.demo import script
from coterie.cli.demo.display import Display
from coterie.cli.fleet import FleetSettings
from coterie.cli.processes import Children
from coterie.nouns.errors import WorldError
from tests.cli.answers import http_server
from tests.cli.waiting import processes_of, wait_until
from tests.ports import free_port, free_ports

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]


def test_used_ports_are_skipped() -> None:
    first, taken, *others = free_ports(4)
    with socket.create_server(("127.0.0.1", taken)):
        assert script._first_of_consecutive_free_ports(2, preferred=first) == others[0]
        assert script._first_of_consecutive_free_ports(1, preferred=first) == first


class StartupSteps:
    """A worker's responses to GET /health while it starts, each for one request; it has no connectors."""

    def __init__(self, *messages: str) -> None:
        self._messages = [*messages]

    def answer(self, method: str, path: str) -> tuple[int, bytes]:
        if path != "/health":  # the display asks for the connectors, too, as often as the time allows
            return 200, b"{}"
        message = self._messages.pop(0) if len(self._messages) > 1 else self._messages[0]
        return (503 if message else 200), json.dumps({"message": message}).encode()


@pytest.fixture
def script_of(tmp_path: Path) -> Iterator[Callable[[str], script.DemoRun]]:
    """The demo with one worker: a process that does nothing, with its REST API at the given URL."""
    with Children(tmp_path / "logs") as children, Display({script.FED_FILES_BAR: 1}) as display:

        def make(url: str) -> script.DemoRun:
            settings = FleetSettings(
                data_folder=tmp_path, broker_port=free_port(), first_rest_port=int(url.rpartition(":")[2])
            )
            demo = script.DemoRun(settings, children, display, tmp_path, {})
            demo._fleet.workers[0] = children.start_python("worker-0", ["-c", "import time; time.sleep(60)"])
            return demo

        yield make


def test_the_startup_steps_of_the_workers_are_printed(
    script_of: Callable[[str], script.DemoRun], capsys: pytest.CaptureFixture[str]
) -> None:
    starting = "Worker is still starting up. It is starting the task runtime"
    with http_server(StartupSteps(starting, starting, "").answer) as url:
        script_of(url)._wait_until_workers_started({0})
    lines = [line.partition(" s  ")[2] for line in capsys.readouterr().out.splitlines()]
    assert [line for line in lines if line.startswith("worker-0")] == ["worker-0: Spark is starting", "worker-0: ready"]


def test_workers_that_do_not_start_are_reported_with_cause_and_remedy(
    script_of: Callable[[str], script.DemoRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "START_TIMEOUT_S", 0.3)
    with (
        http_server(StartupSteps("Worker is still starting up. It is starting the task runtime").answer) as url,
        pytest.raises(WorldError, match=r"have not started \(worker-0: Spark is starting\)\. .*End other programs"),
    ):
        script_of(url)._wait_until_workers_started({0})


def test_a_worker_that_ends_during_its_start_ends_the_wait(script_of: Callable[[str], script.DemoRun]) -> None:
    with http_server(StartupSteps("Worker is still starting up. It is awaiting startup").answer) as url:
        demo = script_of(url)
        demo._fleet.workers[1] = demo._children.start_python("worker-1", ["-c", "raise SystemExit(3)"])
        with pytest.raises(WorldError, match="worker-1 ended during startup"):
            demo._wait_until_workers_started({0, 1})


def demo_command(data: Path, group_protocol: str) -> list[str]:
    ports = ["--broker-port", str(free_port()), "--rest-port", str(free_ports(script.WORKER_COUNT)[0])]
    return [sys.executable, "-m", "coterie", "demo", "--data", str(data), *ports, "--group-protocol", group_protocol]


@pytest.mark.soak  # CI runs the demo itself, with a classic group.
@pytest.mark.spark
@pytest.mark.timeout(1_800)
def test_a_whole_demo_with_a_connect_group_loses_and_doubles_no_row(tmp_path: Path) -> None:
    data = tmp_path / "data"
    ended = subprocess.run(demo_command(data, "connect"), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "No row was lost, no row was duplicated." in ended.stdout
    assert processes_of(data) == []


@pytest.mark.parametrize("group_protocol", ["classic", "connect"])
def test_ctrl_c_ends_the_demo_and_all_its_processes(tmp_path: Path, group_protocol: str) -> None:
    data, output = tmp_path / "data", tmp_path / "output"
    with output.open("wb") as file:
        demo = subprocess.Popen(
            demo_command(data, group_protocol),
            stdout=file,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
    try:
        wait_until(
            lambda: bool(output.read_text()) or demo.poll() is not None, "the demo prints something", within_s=120
        )
        assert re.search(rf"Starting the broker .* of a {group_protocol} group", output.read_text())
        demo.send_signal(signal.SIGINT)
        wait_until(lambda: "Interrupted" in output.read_text(), "the demo prints that it was interrupted")
        assert demo.wait(90) == 130
    finally:
        demo.kill()
        demo.wait()
    wait_until(lambda: not processes_of(data), f"all processes of {data} have ended")
