import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from coterie.kafka.connection import API_VERSIONS, HEARTBEAT, Address, BrokerConnection
from coterie.nouns.errors import WorldError
from coterie.wire.errors import ErrorCode

DEADLINE_S = 30


@asynccontextmanager
async def peer(answer: Callable[[bytes], bytes]) -> AsyncIterator[Address]:
    """A server that responds to the first request with ``answer`` of its frame, and closes the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            writer.write(answer(await reader.readexactly(size)))
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client closed the connection first
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()[:2]
        yield Address(host, port)


def answered(body: bytes) -> Callable[[bytes], bytes]:
    """A function that returns a frame with the request's correlation id."""
    return lambda frame: struct.pack(">i", 4 + len(body)) + frame[4:8] + body


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(lambda _: b"", id="nothing"),
        pytest.param(lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n", id="a web server"),
        pytest.param(lambda _: struct.pack(">i", -1), id="a negative length"),
        pytest.param(lambda _: struct.pack(">i", 2**31 - 1), id="a huge length"),
        pytest.param(lambda _: struct.pack(">iih", 6, 4711, 0), id="another's correlation id"),
        pytest.param(answered(struct.pack(">hi", 0, 2**31 - 1)), id="a huge array"),
        pytest.param(answered(struct.pack(">hi", 0, 3)), id="a truncated array"),
        pytest.param(answered(struct.pack(">hi", 77, 0)), id="an unknown error"),
    ],
)
async def test_the_error_for_a_peer_that_is_no_broker_names_its_address(answer: Callable[[bytes], bytes]) -> None:
    async with asyncio.timeout(DEADLINE_S), peer(answer) as address:
        with pytest.raises(WorldError, match=str(address)):
            await BrokerConnection.open(address, client_id="tests")


async def test_the_error_for_a_broker_that_is_too_old_names_the_supported_versions() -> None:
    heartbeat_up_to_2 = answered(struct.pack(">hihhh", 0, 1, HEARTBEAT.api_key, 0, 2))
    async with asyncio.timeout(DEADLINE_S), peer(heartbeat_up_to_2) as address:
        connection = await BrokerConnection.open(address, client_id="tests")
        with pytest.raises(WorldError, match=r"Heartbeat: 0 to 2; Coterie supports 3 to 4: use a broker of Kafka 2\.4"):
            await connection.ask(HEARTBEAT, {})
        connection.close()
        await asyncio.sleep(0)


class Peer:
    """A broker with Heartbeat 4 that responds when the test calls `answer`."""

    def __init__(self) -> None:
        self.requests: asyncio.Queue[bytes] = asyncio.Queue()
        self._writer: asyncio.StreamWriter | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                frame = await reader.readexactly(size)
                if frame[:2] == struct.pack(">h", API_VERSIONS.api_key):
                    writer.write(answered(struct.pack(">hihhh", 0, 1, HEARTBEAT.api_key, 0, 4))(frame))
                else:
                    self.requests.put_nowait(frame)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def answer(self, frame: bytes, error: ErrorCode) -> None:
        assert self._writer is not None
        self._writer.write(answered(struct.pack(">bihb", 0, 0, error, 0))(frame))

    def hang_up(self) -> None:
        assert self._writer is not None
        self._writer.close()


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Peer, BrokerConnection]]:
    peer = Peer()
    async with asyncio.timeout(DEADLINE_S), await asyncio.start_server(peer.serve, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()[:2]
        connection = await BrokerConnection.open(Address(host, port), client_id="tests")
        yield peer, connection
        connection.close()
        peer.hang_up()
        await asyncio.sleep(0)


def beat(connection: BrokerConnection, generation: int) -> "asyncio.Task[Any]":
    values = {"group_id": "g", "generation_id": generation, "member_id": "m", "group_instance_id": None}
    return asyncio.ensure_future(connection.ask(HEARTBEAT, values))


async def test_each_pipelined_request_gets_the_response_with_its_correlation_id() -> None:
    async with connected() as (peer, connection):
        first, second = beat(connection, 1), beat(connection, 2)
        frames = [await peer.requests.get(), await peer.requests.get()]
        peer.answer(frames[1], ErrorCode.illegal_generation)
        assert (await second).error_code is ErrorCode.illegal_generation
        assert not first.done()
        peer.answer(frames[0], ErrorCode.none)
        assert (await first).error_code is ErrorCode.none
        assert not connection.has_outstanding_requests


async def test_the_response_to_a_cancelled_request_is_dropped_and_the_connection_stays_usable() -> None:
    async with connected() as (peer, connection):
        given_up, second = beat(connection, 1), beat(connection, 2)
        frames = [await peer.requests.get(), await peer.requests.get()]
        given_up.cancel()
        for frame, error in zip(frames, (ErrorCode.illegal_generation, ErrorCode.none), strict=True):
            peer.answer(frame, error)
        assert (await second).error_code is ErrorCode.none
        assert given_up.cancelled()
        assert not connection.has_outstanding_requests


async def test_a_broken_connection_fails_all_pending_and_later_requests() -> None:
    async with connected() as (peer, connection):
        outstanding = [beat(connection, 1), beat(connection, 2)]
        await peer.requests.get()
        peer.hang_up()
        for request in [*outstanding, beat(connection, 3)]:
            with pytest.raises(WorldError, match="broke"):
                await request
