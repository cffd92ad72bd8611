import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from coterie.kafka.connection import HEARTBEAT, Address, Connection
from coterie.nouns.errors import WorldError

DEADLINE_S = 30


@asynccontextmanager
async def peer(answer: Callable[[bytes], bytes]) -> AsyncIterator[Address]:
    """Somebody who answers the first request with ``answer`` of its frame, and hangs up."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            writer.write(answer(await reader.readexactly(size)))
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client went first
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()[:2]
        yield Address(host, port)


def answered(body: bytes) -> Callable[[bytes], bytes]:
    """A frame that repeats the request's correlation id."""
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
async def test_whoever_is_no_broker_is_told_by_address(answer: Callable[[bytes], bytes]) -> None:
    async with asyncio.timeout(DEADLINE_S), peer(answer) as address:
        with pytest.raises(WorldError, match=str(address)):
            await Connection.open(address, client_id="tests")


async def test_a_broker_too_old_is_told_with_the_versions_that_would_do() -> None:
    heartbeat_up_to_2 = answered(struct.pack(">hihhh", 0, 1, HEARTBEAT.key, 0, 2))
    async with asyncio.timeout(DEADLINE_S), peer(heartbeat_up_to_2) as address:
        connection = await Connection.open(address, client_id="tests")
        with pytest.raises(WorldError, match=r"Heartbeat: 0 to 2; 3 to 4 would do: use a broker of Kafka 2\.4"):
            await connection.ask(HEARTBEAT, {})
        connection.close()
        await asyncio.sleep(0)
