"""The order in which the servers of bootstrap.servers are asked."""

import asyncio

import pytest

from coterie.config.security import KafkaSecurity
from coterie.kafka.bootstrap import BootstrapClient
from coterie.kafka.connection import FIND_COORDINATOR
from coterie.kafka.coordinator_finder import GROUP_KEY
from coterie.nouns.errors import WorldError

VALUES = {"key": "g", "key_type": GROUP_KEY, "coordinator_keys": ("g",)}


class ClosingServer:
    """A server that closes each connection when the test lets it."""

    def __init__(self) -> None:
        self.connected = asyncio.Event()
        self.may_close = asyncio.Event()
        self.connections = 0

    async def start(self) -> asyncio.Server:
        return await asyncio.start_server(self._on_connected, "127.0.0.1", 0)

    async def _on_connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.connected.set()
        await self.may_close.wait()
        writer.close()


@pytest.mark.timeout(60)
async def test_the_server_that_failed_moves_to_the_end_also_when_calls_are_concurrent() -> None:
    first, second = ClosingServer(), ClosingServer()
    async with await first.start() as first_server, await second.start() as second_server:
        addresses = [f"127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in (first_server, second_server)]
        client = BootstrapClient(addresses, "tests", KafkaSecurity())
        calls = [asyncio.create_task(client.ask_any_server(FIND_COORDINATOR, VALUES, 30)) for _ in range(2)]
        while first.connections < 2:
            first.connected.clear()
            await first.connected.wait()
        first.may_close.set()
        while second.connections < 2:
            second.connected.clear()
            await second.connected.wait()
        # Both calls have failed at the first server, so that the next call asks the second one first.
        first.connections = second.connections = 0
        second.connected.clear()
        next_call = asyncio.create_task(client.ask_any_server(FIND_COORDINATOR, VALUES, 30))
        await second.connected.wait()
        assert (first.connections, second.connections) == (0, 1)
        second.may_close.set()
        for result in await asyncio.gather(*calls, next_call, return_exceptions=True):
            assert isinstance(result, WorldError)
