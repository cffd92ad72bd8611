"""`coterie demo` when somebody has seen enough."""

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.cli.demo import script
from tests.cli.waiting import processes_of, wait_until
from tests.ports import free_port, free_ports

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]


def test_ports_that_are_taken_are_passed_over() -> None:
    first, taken, *others = free_ports(4)
    with socket.create_server(("127.0.0.1", taken)):
        assert script._free_ports(2, preferred=first) == others[0]
        assert script._free_ports(1, preferred=first) == first


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
