"""Brokers for tests: one on its own thread, for clients that block, and raw connections that exchange frames."""

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from coterie.broker.context import BrokerContext
from coterie.broker.server import Broker, running_broker
from coterie.broker.settings import BrokerSettings
from coterie.groups.classic.state import ClassicGroupSettings
from coterie.nouns.target_assignments import AssignFunction
from coterie.wire.frames import RequestHeader, decode_response, encode_request, with_length
from coterie.wire.kio_entities import build_request
from tests.ports import free_port

QUICK = ClassicGroupSettings(initial_rebalance_delay_ms=50, session_timeout_min_ms=500)
DEADLINE_S = 60

T = TypeVar("T")


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until ``condition`` is true."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


class ThreadedBroker:
    """A broker on its own event loop; tests stop it and restart it on the same port and data. ``assignors`` compute
    target assignments of connect groups in it."""

    def __init__(self, settings: BrokerSettings, assignors: Mapping[str, AssignFunction] | None = None) -> None:
        self.settings = settings
        self.assignors = assignors
        self.broker: Broker
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        return self.broker.port

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def run(self, call: Callable[[BrokerContext], Awaitable[T]]) -> T:
        """The result of ``call``, which runs on the broker's event loop."""

        async def called() -> T:
            return await call(self.broker.context)

        return asyncio.run_coroutine_threadsafe(called(), self._loop).result(DEADLINE_S)

    def start(self) -> None:
        is_up = threading.Event()
        failures: list[BaseException] = []

        async def main() -> None:
            self._loop = asyncio.get_running_loop()
            self._stop = asyncio.Event()
            async with running_broker(self.settings, assignors=self.assignors) as broker:
                self.broker = broker
                is_up.set()
                await self._stop.wait()

        def run() -> None:
            try:
                asyncio.run(main())
            except BaseException as error:
                failures.append(error)
                raise
            finally:
                is_up.set()

        self._thread = threading.Thread(target=run, name="broker under test")
        self._thread.start()
        assert is_up.wait(DEADLINE_S)
        assert not failures, failures

    def stop(self) -> None:
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(DEADLINE_S)
            assert not self._thread.is_alive()
            self._thread = None


@pytest.fixture
def settings(tmp_path: Path) -> BrokerSettings:
    return BrokerSettings(data_path=tmp_path / "broker", port=free_port(), group_limits=QUICK)


@pytest.fixture
def broker(settings: BrokerSettings) -> Iterator[ThreadedBroker]:
    """A running broker on a free port."""
    threaded = ThreadedBroker(settings)
    threaded.start()
    try:
        yield threaded
    finally:
        threaded.stop()


class RawClient:
    """One connection that sends kio's entities, one request at a time or several before the first response."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
        self._count = 0

    def send(self, api_key: int, version: int, /, **values: Any) -> RequestHeader:
        self._count += 1
        header, frame = encode_request(
            build_request(api_key, version, values), correlation_id=self._count, client_id="raw"
        )
        self.socket.sendall(with_length(frame))
        return header

    def receive(self, header: RequestHeader) -> Any:
        return decode_response(self.receive_frame(), header)

    def ask(self, api_key: int, version: int, /, **values: Any) -> Any:
        return self.receive(self.send(api_key, version, **values))

    def receive_frame(self) -> bytes:
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def is_closed(self) -> bool:
        """Wait until the broker has closed the connection; False if it sends data instead."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            if not more:
                raise ConnectionError("the broker closed the connection")
            data += more
        return data


Connect = Callable[[], RawClient]


@contextmanager
def raw_client(port: int) -> Iterator[RawClient]:
    client = RawClient(port)
    try:
        yield client
    finally:
        client.socket.close()


@pytest.fixture
def connect(broker: ThreadedBroker) -> Iterator[Connect]:
    """A function that opens raw connections to the broker; all are closed at the end."""
    clients: list[RawClient] = []

    def open_one() -> RawClient:
        clients.append(RawClient(broker.port))
        return clients[-1]

    yield open_one
    for client in clients:
        client.socket.close()
