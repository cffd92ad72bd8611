"""`coterie demo` when somebody has seen enough."""

import json
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
from tests.cli.answers import serving
from tests.cli.waiting import processes_of, wait_until
from tests.ports import free_port, free_ports

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]


def test_ports_that_are_taken_are_passed_over() -> None:
    first, taken, *others = free_ports(4)
    with socket.create_server(("127.0.0.1", taken)):
        assert script._free_ports(2, preferred=first) == others[0]
        assert script._free_ports(1, preferred=first) == first


class Stages:
    """Workers' answers to GET /health while they start, each for one request."""

    def __init__(self, *stages: str) -> None:
        self._stages = [*stages]

    def answer(self, method: str, path: str) -> tuple[int, bytes]:
        message = self._stages.pop(0) if len(self._stages) > 1 else self._stages[0]
        return (503 if message else 200), json.dumps({"message": message}).encode()


@pytest.fixture
def script_of(tmp_path: Path) -> Iterator[Callable[[str], script.Script]]:
    """The demo with one worker, a process that does nothing and whose REST is at the given URL."""
    with Children(tmp_path / "logs") as children, Display({script.FED: 1}) as display:

        def make(url: str) -> script.Script:
            settings = FleetSettings(data=tmp_path, broker_port=free_port(), rest_port=int(url.rpartition(":")[2]))
            demo = script.Script(settings, children, display, tmp_path, {})
            demo._fleet.workers[0] = children.start("worker-0", ["-c", "import time; time.sleep(60)"])
            return demo

        yield make


def test_what_workers_do_while_they_start_is_shown(
    script_of: Callable[[str], script.Script], capsys: pytest.CaptureFixture[str]
) -> None:
    starting = "Worker is still starting up. starting the task runtime"
    with serving(Stages(starting, starting, "").answer) as url:
        script_of(url)._await_started({0})
    lines = [line.partition(" s  ")[2] for line in capsys.readouterr().out.splitlines()]
    assert [line for line in lines if line.startswith("worker-0")] == ["worker-0: Spark is starting", "worker-0: ready"]


def test_workers_that_do_not_start_are_named_with_cause_and_remedy(
    script_of: Callable[[str], script.Script], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "START_S", 0.3)
    with (
        serving(Stages("Worker is still starting up. starting the task runtime").answer) as url,
        pytest.raises(WorldError, match=r"have not started \(worker-0: Spark is starting\)\. .*End other programs"),
    ):
        script_of(url)._await_started({0})


def test_a_worker_that_dies_while_it_starts_ends_the_wait(script_of: Callable[[str], script.Script]) -> None:
    with serving(Stages("Worker is still starting up. awaiting startup").answer) as url:
        demo = script_of(url)
        demo._fleet.workers[1] = demo._children.start("worker-1", ["-c", "raise SystemExit(3)"])
        with pytest.raises(WorldError, match="worker-1 ended during startup"):
            demo._await_started({0, 1})


def test_ctrl_c_is_answered_at_once_and_nothing_stays(tmp_path: Path) -> None:
    data, said = tmp_path / "data", tmp_path / "said"
    ports = ["--broker-port", str(free_port()), "--rest-port", str(free_ports(script.WORKERS)[0])]
    with said.open("wb") as file:
        demo = subprocess.Popen(
            [sys.executable, "-m", "coterie", "demo", "--data", str(data), *ports],
            stdout=file,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
    try:
        wait_until(lambda: bool(said.read_text()) or demo.poll() is not None, "the demo says anything", within_s=120)
        assert "Starting the broker" in said.read_text()
        demo.send_signal(signal.SIGINT)
        wait_until(lambda: "Interrupted" in said.read_text(), "the demo says that it heard")
        assert demo.wait(90) == 130
    finally:
        demo.kill()
        demo.wait()
    wait_until(lambda: not processes_of(data), f"all of {data} is gone")
