"""`coterie up` as a real cluster: the broker is restarted, and no process remains after an interrupt at any time."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from coterie.cli.fleet import GROUP_ID
from coterie.kafka.coordinator import KafkaClassicCoordinatorClient
from coterie.member.classic.messages import JoinRequest, JoinResponse, LeaveRequest
from coterie.member.classic.state import NO_MEMBER
from coterie.wire.connect import PROTOCOL_TYPE
from tests.cli.command import coterie
from tests.cli.waiting import processes_of, wait_until
from tests.ports import free_port, free_ports

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]


class Up:
    """A running ``coterie up`` with one worker, and its output."""

    def __init__(self, folder: Path, group_protocol: str = "classic") -> None:
        self.data = folder / "data"
        self.group_protocol = group_protocol
        self.broker_port, self.rest_port = free_port(), free_port()
        self._output_path = folder / "output"
        ports = ["--broker-port", str(self.broker_port), "--rest-port", str(self.rest_port)]
        protocol = ["--group-protocol", group_protocol]
        with self._output_path.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "coterie", "up", "--workers", "1", "--data", str(self.data), *ports, *protocol],
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
            )

    def output(self) -> str:
        return self._output_path.read_text()

    def wait_for_output(self, text: str) -> None:
        wait_until(lambda: text in self.output(), f"up prints {text!r}; its output is {self.output()}", within_s=90)

    def broker(self) -> int | None:
        """The pid of the broker."""
        for pid in processes_of(self.data):
            try:
                if b"\0broker\0--listen" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return pid
            except OSError:
                continue
        return None

    def assert_nothing_is_left(self) -> None:
        wait_until(lambda: not processes_of(self.data), f"all processes of {self.data} have ended")


@contextmanager
def running_up(folder: Path, group_protocol: str) -> Iterator[Up]:
    up = Up(folder, group_protocol)
    try:
        yield up
    finally:
        up.process.kill()
        up.process.wait()
    up.assert_nothing_is_left()


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    with running_up(tmp_path, "classic") as up:
        yield up


@pytest.fixture(params=["classic", pytest.param("connect", marks=pytest.mark.soak)])
def up_of_each_protocol(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Up]:
    with running_up(tmp_path, request.param) as up:
        yield up


def test_a_killed_broker_is_restarted_and_ctrl_c_ends_all_processes(up_of_each_protocol: Up) -> None:
    up = up_of_each_protocol
    up.wait_for_output("The broker is up")
    first = up.broker()
    assert first is not None
    os.kill(first, signal.SIGKILL)
    up.wait_for_output("The broker ended unexpectedly (signal 9); restarting it on the same port and data.")
    wait_until(lambda: up.broker() not in (None, first), "another broker runs")
    up.wait_for_output("All workers are up.")
    listed = coterie("groups", "list", "--bootstrap-servers", f"127.0.0.1:{up.broker_port}", "--json")
    assert [(one["group_id"], one["type"], one["protocol_type"]) for one in json.loads(listed.stdout)] == [
        (GROUP_ID, up.group_protocol, "connect")
    ]
    os.kill(up.process.pid, signal.SIGINT)
    assert up.process.wait(60) == 0
    assert re.search(r"Stopping", up.output())
    up.assert_nothing_is_left()


def test_a_killed_worker_is_reported_and_not_restarted(up: Up) -> None:
    up.wait_for_output("The broker is up")
    wait_until(lambda: len(processes_of(up.data)) > 1, "the worker runs")
    (worker,) = [pid for pid in processes_of(up.data) if pid not in (up.process.pid, up.broker())][:1]
    os.kill(worker, signal.SIGKILL)
    assert up.process.wait(60) == 1
    output = up.output()
    assert "worker-0 ended unexpectedly (signal 9).\nIts log is " in output
    assert "To restart it" not in output, "the broker ends, so a worker could not be restarted"
    assert up.output().endswith(
        f"coterie: All workers of the group have ended; their logs are in {up.data / 'logs'}.\n"
    )
    up.assert_nothing_is_left()


def test_the_broker_runs_while_the_group_has_a_member_that_up_did_not_start(up: Up) -> None:
    up.wait_for_output("The broker is up")
    wait_until(lambda: len(processes_of(up.data)) > 1, "the worker runs")
    asyncio.run(_kill_the_only_worker_beside_a_member(up))
    assert up.process.wait(60) == 1
    assert up.output().endswith(
        f"coterie: All workers of the group have ended; their logs are in {up.data / 'logs'}.\n"
    )
    up.assert_nothing_is_left()


async def _kill_the_only_worker_beside_a_member(up: Up) -> None:
    coordinator = KafkaClassicCoordinatorClient(
        [f"127.0.0.1:{up.broker_port}"], client_id="other", request_timeout_ms=20_000, parked_timeout_ms=40_000
    )
    join = JoinRequest(
        group_id=GROUP_ID,
        member_id=NO_MEMBER,
        session_timeout_ms=30_000,
        rebalance_timeout_ms=30_000,
        protocol_type=PROTOCOL_TYPE,
        protocols=(("compatible", b""),),
    )
    id_response = await coordinator.ask(join)
    assert isinstance(id_response, JoinResponse)
    join_with_id = replace(join, member_id=id_response.member_id)
    worker = next(pid for pid in processes_of(up.data) if pid not in (up.process.pid, up.broker()))
    parked = asyncio.create_task(coordinator.ask(join_with_id))
    os.kill(worker, signal.SIGKILL)
    await asyncio.to_thread(up.wait_for_output, "The broker runs until the group has no member")
    assert up.broker() is not None
    joined = await parked
    assert isinstance(joined, JoinResponse)
    await coordinator.ask(LeaveRequest(group_id=GROUP_ID, member_id=joined.member_id))
    await coordinator.close()


@pytest.mark.parametrize("moment", ["", "Starting the broker", "The broker is up"], ids=["at once", "early", "later"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_an_interrupt_during_the_start_leaves_no_processes(up: Up, moment: str, number: signal.Signals) -> None:
    up.wait_for_output(moment)
    os.kill(up.process.pid, number)
    up.process.wait(60)
    up.assert_nothing_is_left()


def test_a_used_port_is_reported_with_the_option_to_change_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        arguments = ["--workers", "1", "--data", str(tmp_path / "data")]
        for option, other in (("--broker-port", "--rest-port"), ("--rest-port", "--broker-port")):
            run = subprocess.run(
                [sys.executable, "-m", "coterie", "up", *arguments, option, str(port), other, str(free_port())],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert run.returncode == 1
            assert f"Port {port}, which " in run.stderr
            assert f"is in use: choose another with {option}." in run.stderr
    assert processes_of(tmp_path) == []


def test_a_port_needed_twice_is_refused_before_any_process_starts(tmp_path: Path) -> None:
    rest_port, port = free_ports(2)
    ports = ["--broker-port", str(port), "--rest-port", str(rest_port)]
    command = [sys.executable, "-m", "coterie", "up", "--workers", "2", "--data", str(tmp_path / "data"), *ports]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 1
    output = f"worker-1's REST needs port {port}, which is the port of the broker: choose another with --rest-port."
    assert ended.stderr == f"coterie: {output}\n"
    assert not list(tmp_path.glob("data/workers/*"))


def test_an_unusable_data_folder_prints_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ports = ["--broker-port", str(free_port()), "--rest-port", str(free_port())]
    command = [sys.executable, "-m", "coterie", "up", "--workers", "1", "--data", str(tmp_path / "file"), *ports]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 1
    assert "cannot be used" in ended.stderr
    assert "Traceback" not in ended.stderr + ended.stdout
