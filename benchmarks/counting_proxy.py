"""A proxy between workers and their broker, which counts the requests and bytes of the group's APIs.

All systems are counted alike, whatever their clients and the broker count themselves. The proxy runs as a separate
process (``python -m benchmarks.counting_proxy BROKER_PORT``), so that the benchmark's own work does not delay it.
"""

import json
import re
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from benchmarks.task_log import now_ms
from coterie.cli import parent
from coterie.cli.processes import Children
from tests.processes.proxy import FIND_COORDINATOR, Proxy

JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP = 11, 12, 13, 14
CONNECT_GROUP_HEARTBEAT, PREPARE_ASSIGNMENT, INSTALL_ASSIGNMENT = 10000, 10001, 10002
GROUP_APIS = frozenset(
    {
        *(FIND_COORDINATOR, JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP),
        *(CONNECT_GROUP_HEARTBEAT, PREPARE_ASSIGNMENT, INSTALL_ASSIGNMENT),
    }
)
_START_TIMEOUT_S = 60


class Frame(NamedTuple):
    """A request or a response of one of the group's APIs, as it passed the proxy."""

    at_ms: int
    """Milliseconds since 1970, as in a task log."""
    key: int
    """The API key."""
    is_request: bool
    size: int
    """Bytes, with the frame's length."""


class CountingProxy(Proxy):
    """Notes all frames of the group's APIs, in the order in which they pass."""

    def __init__(self, broker_port: int) -> None:
        super().__init__(broker_port)
        self.frames: list[Frame] = []

    def on_request(self, key: int, size: int) -> None:
        self._note(key, True, size)

    def on_response(self, key: int, size: int) -> None:
        self._note(key, False, size)

    def _note(self, key: int, is_request: bool, size: int) -> None:
        if key in GROUP_APIS:
            self.frames.append(Frame(at_ms=now_ms(), key=key, is_request=is_request, size=size))


class GroupTraffic:
    """The frames that a proxy process has noted."""

    def __init__(self, port: int, report_port: int) -> None:
        """``port`` is the port to which workers connect."""
        self.port = port
        self._report_port = report_port

    def frames(self, since_ms: int) -> Sequence[Frame]:
        """The frames that passed at ``since_ms`` or later."""
        with socket.create_connection(("127.0.0.1", self._report_port), timeout=_START_TIMEOUT_S) as connection:
            connection.sendall(f"{since_ms}\n".encode())
            with connection.makefile("rb") as answer:
                return [Frame(*one) for one in json.load(answer)]


def cost(frames: Sequence[Frame], since_ms: int, until_ms: int) -> dict[str, int]:
    """The number of requests from ``since_ms`` to ``until_ms``, and the bytes of requests and responses in that time.
    The request of a response, and the response to a request, can lie outside of it."""
    within = [frame for frame in frames if since_ms <= frame.at_ms <= until_ms]
    return {"requests": sum(frame.is_request for frame in within), "bytes": sum(frame.size for frame in within)}


def first_join_ms(frames: Sequence[Frame]) -> int | None:
    """When the first request passed with which a new member begins: it finds its coordinator, then it joins. None if
    there is none."""
    return next((one.at_ms for one in frames if one.is_request and one.key in (FIND_COORDINATOR, JOIN_GROUP)), None)


@contextmanager
def counted(name: str, broker_port: int, children: Children) -> Iterator[GroupTraffic]:
    """Run a proxy process before the broker in the block."""
    child = children.start_python(f"{name}-proxy", ["-m", "benchmarks.counting_proxy", str(broker_port)])
    deadline_s = time.monotonic() + _START_TIMEOUT_S
    while not (told := re.findall(r"proxy at (\d+), report at (\d+)\n", child.log_path.read_text())):
        if not child.is_running or time.monotonic() > deadline_s:
            raise AssertionError(f"the proxy does not start: {child.log_tail()}")
        time.sleep(0.05)
    try:
        yield GroupTraffic(int(told[0][0]), int(told[0][1]))
    finally:
        child.kill()


def main(broker_port: str) -> None:
    """Forward connections to the broker, and report the frames to each connection to a second port, which sends the
    time since when; until the process is ended."""
    parent.exit_with_parent()
    proxy = CountingProxy(int(broker_port))
    proxy.start()
    with socket.create_server(("127.0.0.1", 0)) as server:
        sys.stdout.write(f"proxy at {proxy.port}, report at {server.getsockname()[1]}\n")
        sys.stdout.flush()
        while True:
            connection, _ = server.accept()
            with connection, connection.makefile("rw") as stream:
                since_ms = int(stream.readline())
                json.dump([frame for frame in proxy.frames if frame.at_ms >= since_ms], stream)


if __name__ == "__main__":
    main(*sys.argv[1:])
