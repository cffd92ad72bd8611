"""The order in which the servers of bootstrap.servers are asked."""

import asyncio

from coterie.config.security import KafkaSecurity
from coterie.kafka.bootstrap import BootstrapClient
from coterie.kafka.connection import FIND_COORDINATOR

VALUES = {"key": "group", "key_type": 0, "coordinator_keys": ("group",)}
TIMEOUT_S = 30


async def test_a_server_that_does_not_respond_to_two_calls_at_once_is_asked_last_from_then_on(bootstrap: str) -> None:
    connections = 0
    are_both_connected = asyncio.Event()

    async def close_when_both_are_connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        if connections == 2:
            are_both_connected.set()
        await are_both_connected.wait()
        writer.close()

    async with await asyncio.start_server(close_when_both_are_connected, "127.0.0.1", 0) as silent:
        port = silent.sockets[0].getsockname()[1]
        client = BootstrapClient([f"127.0.0.1:{port}", bootstrap], "tests", KafkaSecurity())
        ask = (client.ask_any_server(FIND_COORDINATOR, VALUES, TIMEOUT_S) for _ in range(2))
        await asyncio.gather(*ask)
        await client.ask_any_server(FIND_COORDINATOR, VALUES, TIMEOUT_S)
        assert connections == 2, "the third call does not ask the silent server"
