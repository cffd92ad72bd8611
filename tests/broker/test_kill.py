"""The broker as a process, killed -9 while it is written to, and started again on the same port and data."""

import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from coterie.wire.errors import ErrorCode
from tests.broker.conftest import raw_client
from tests.broker.groups.member import Member
from tests.ports import free_port

pytestmark = [pytest.mark.processes, pytest.mark.interop]

UNPRIVILEGED_PORT_START = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")
"""Contains the first port on which every process may listen."""
PROGRAM = """
import asyncio, sys
from pathlib import Path
from coterie.broker.server import serve
from coterie.broker.settings import BrokerSettings
from coterie.groups.classic.state import ClassicGroupSettings
settings = BrokerSettings(
    data_path=Path(sys.argv[1]), port=int(sys.argv[2]), group_limits=ClassicGroupSettings(initial_rebalance_delay_ms=20)
)
asyncio.run(serve(settings, ready=lambda host, port: print(port, flush=True)))
"""


@contextmanager
def broker_process(data: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    """A running broker; it is killed at the end."""
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(data), str(port)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == str(port)
        yield process
    finally:
        process.kill()
        process.wait(30)
        if process.stdout is not None:
            process.stdout.close()


def test_a_kill_loses_no_acknowledged_record(tmp_path: Path) -> None:
    port = free_port()
    acknowledged: queue.SimpleQueue[tuple[int, bytes]] = queue.SimpleQueue()
    stop = threading.Event()

    def delivered(error: Any, message: Any) -> None:
        if error is None:
            acknowledged.put((message.offset(), message.value()))

    def write() -> None:
        producer = Producer({"bootstrap.servers": f"127.0.0.1:{port}", "linger.ms": 1, "acks": "all"})
        number = 0
        while not stop.is_set():
            producer.produce("t", b"%d" % number, on_delivery=delivered)
            producer.poll(0)
            number += 1
            time.sleep(0.0005)  # slow enough for the producer's queue while the broker restarts
        assert producer.flush(60) == 0

    writer = threading.Thread(target=write)
    try:
        for round_ in range(3):
            with broker_process(tmp_path, port) as process:
                if round_ == 0:
                    writer.start()
                wait_for_more(acknowledged, acknowledged.qsize() + 300)
                process.send_signal(signal.SIGKILL)
                process.wait(30)
        with broker_process(tmp_path, port):
            stop.set()
            writer.join(90)
            assert not writer.is_alive()
            check_all_there(port, acknowledged)
    finally:
        stop.set()
        writer.join(90)


def check_all_there(port: int, acknowledged: "queue.SimpleQueue[tuple[int, bytes]]") -> None:
    expected: dict[int, bytes] = {}
    while not acknowledged.empty():
        offset, value = acknowledged.get()
        assert offset not in expected, "an offset was acknowledged twice"
        expected[offset] = value
    reader = Consumer({"bootstrap.servers": f"127.0.0.1:{port}", "group.id": "unused", "enable.auto.commit": False})
    try:
        reader.assign([TopicPartition("t", 0, 0)])
        found: dict[int, bytes] = {}
        while len(found) <= max(expected):
            message = reader.poll(30)
            assert message is not None, f"{len(found)} of {max(expected) + 1} messages came"
            assert message.error() is None
            at, read = message.offset(), message.value()
            assert at is not None
            assert read is not None
            found[at] = read
    finally:
        reader.close()
    lost = {offset for offset, value in expected.items() if found.get(offset) != value}
    assert not lost, f"{len(lost)} of {len(expected)} acknowledged messages are lost"


def test_members_continue_after_their_coordinator_was_killed(tmp_path: Path) -> None:
    port = free_port()
    with broker_process(tmp_path, port), raw_client(port) as client:
        member = Member(client)
        member.join()
        member.sync((member.member_id, b"work"))
    with broker_process(tmp_path, port), raw_client(port) as client:
        member.client = client
        assert member.beat() is ErrorCode.none
        assert member.sync().assignment == b"work"


def test_a_taken_port_is_reported_in_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path), str(port)],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode != 0
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr


@pytest.mark.skipif(
    not UNPRIVILEGED_PORT_START.exists()
    or int(UNPRIVILEGED_PORT_START.read_text()) <= 1
    or not shutil.which("setpriv"),
    reason="needs Linux, where port 1 needs a privilege that setpriv can drop",
)
def test_a_port_that_needs_a_privilege_is_not_reported_as_a_taken_port(tmp_path: Path) -> None:
    drop = ["setpriv", "--inh-caps=-net_bind_service", "--bounding-set=-net_bind_service"] if os.geteuid() == 0 else []
    done = subprocess.run(
        [*drop, sys.executable, "-c", PROGRAM, str(tmp_path), "1"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "cannot listen on 127.0.0.1:1: " in done.stderr
    assert "choose a port from 1024 on, or give the broker the right to use this one" in done.stderr


def wait_for_more(acknowledged: "queue.SimpleQueue[tuple[int, bytes]]", than: int) -> None:
    deadline = time.monotonic() + 60
    while acknowledged.qsize() <= than:
        assert time.monotonic() < deadline
        time.sleep(0.01)
