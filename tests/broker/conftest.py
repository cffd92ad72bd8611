"""Brokers for tests: one on a thread of its own for clients that block, and raw connections that speak frames."""

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from coterie.broker.node import Node
from coterie.broker.server import Broker, running
from coterie.broker.settings import BrokerSettings
from coterie.groups.classic.state import Limits
from coterie.wire.frames import RequestHeader, decode_response, encode_request, framed
from coterie.wire.shapes import build_request
from tests.ports import free_port

QUICK = Limits(initial_rebalance_delay_ms=50, session_timeout_min_ms=500)
DEADLINE_S = 60

T = TypeVar("T")


def awaited(what: Callable[[], bool]) -> None:
    """Waits until it is so."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not what():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


class ThreadedBroker:
    """A broker on a loop of its own, stopped and started again on the same port and data at will."""

    def __init__(self, settings: BrokerSettings) -> None:
        self.settings = settings
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

    def run(self, call: Callable[[Node], Awaitable[T]]) -> T:
        """What ``call`` gives, made and awaited on the broker's event loop."""

        async def called() -> T:
            return await call(self.broker.node)

        return asyncio.run_coroutine_threadsafe(called(), self._loop).result(DEADLINE_S)

    def start(self) -> None:
        is_up = threading.Event()
        failures: list[BaseException] = []

        async def main() -> None:
            self._loop = asyncio.get_running_loop()
            self._stop = asyncio.Event()
            async with running(self.settings) as broker:
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
    return BrokerSettings(data_path=tmp_path / "broker", port=free_port(), limits=QUICK)


@pytest.fixture
def broker(settings: BrokerSettings) -> Iterator[ThreadedBroker]:
    """A broker that answers on a free port."""
    threaded = ThreadedBroker(settings)
    threaded.start()
    try:
        yield threaded
    finally:
        threaded.stop()


class RawClient:
    """One connection that asks with kio's entities, one request at a time or several before the first answer."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
        self._count = 0

    def send(self, api_key: int, version: int, /, **values: Any) -> RequestHeader:
        self._count += 1
        header, frame = encode_request(
            build_request(api_key, version, values), correlation_id=self._count, client_id="raw"
        )
        self.socket.sendall(framed(frame))
        return header

    def receive(self, header: RequestHeader) -> Any:
        return decode_response(self.receive_frame(), header)

    def ask(self, api_key: int, version: int, /, **values: Any) -> Any:
        return self.receive(self.send(api_key, version, **values))

    def receive_frame(self) -> bytes:
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def is_closed(self) -> bool:
        """Waits until the broker has closed the connection."""
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
    """Opens raw connections to the broker; all are closed at the end."""
    clients: list[RawClient] = []

    def open_one() -> RawClient:
        clients.append(RawClient(broker.port))
        return clients[-1]

    yield open_one
    for client in clients:
        client.socket.close()
