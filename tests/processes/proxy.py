"""A TCP proxy that can be cut, as the only connection of one worker to its broker.

Kafka's clients connect to the address that the broker advertises, so the proxy puts its own address into Metadata and
FindCoordinator responses. It forwards all other bytes unchanged.
"""

import asyncio
import io
import struct
import threading
from dataclasses import replace
from typing import Any

from kio.index import load_response_schema
from kio.serial import entity_reader, entity_writer

METADATA, FIND_COORDINATOR = 3, 10
_LENGTH_SIZE = 4


class Proxy:
    """Runs in its own thread between :meth:`start` and :meth:`stop`."""

    def __init__(self, broker_port: int) -> None:
        self.port = 0
        self._broker_port = broker_port
        self._open = True
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)

    def start(self) -> None:
        self._thread.start()
        assert self._started.wait(10)

    def cut(self) -> None:
        """Break every connection, and refuse new ones until :meth:`heal`."""
        asyncio.run_coroutine_threadsafe(self._cut(), self._loop).result(10)

    def heal(self) -> None:
        self._open = True

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def on_request(self, key: int, size: int) -> None:
        """Called with each forwarded request: its API key, and its size in bytes with the length. Runs in the proxy's
        thread."""

    def on_response(self, key: int, size: int) -> None:
        """Called with each forwarded response: the API key of its request, and its size in bytes with the length. Runs
        in the proxy's thread."""

    def _run(self) -> None:
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        self._loop.run_forever()
        server.close()
        self._loop.run_until_complete(self._cut())
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))

    async def _cut(self) -> None:
        self._open = False
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        if not self._open:
            to_client.transport.abort()
            return
        try:
            broker, to_broker = await asyncio.open_connection("127.0.0.1", self._broker_port)
        except OSError:
            to_client.transport.abort()
            return
        self._writers |= {to_client, to_broker}
        pending_requests: dict[int, tuple[int, int]] = {}
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_requests(client, to_broker, pending_requests))
                group.create_task(self._pass_responses(broker, to_client, pending_requests))
        except* (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            for writer in (to_client, to_broker):
                writer.transport.abort()
                self._writers.discard(writer)

    async def _pass_requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pending_requests: dict[int, tuple[int, int]]
    ) -> None:
        while True:
            frame = await _frame(reader)
            key, version, correlation = struct.unpack_from(">hhi", frame)
            pending_requests[correlation] = (key, version)
            self.on_request(key, _LENGTH_SIZE + len(frame))
            writer.write(struct.pack(">i", len(frame)) + frame)
            await writer.drain()

    async def _pass_responses(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pending_requests: dict[int, tuple[int, int]]
    ) -> None:
        while True:
            frame = await _frame(reader)
            (correlation,) = struct.unpack_from(">i", frame)
            # Responses are matched by their correlation ids: a held heartbeat is answered after later requests.
            if (request := pending_requests.pop(correlation, None)) is not None:
                key, version = request
                if key in (METADATA, FIND_COORDINATOR):
                    frame = self._with_our_address(frame, key, version)
                self.on_response(key, _LENGTH_SIZE + len(frame))
            writer.write(struct.pack(">i", len(frame)) + frame)
            await writer.drain()

    def _with_our_address(self, frame: bytes, key: int, version: int) -> bytes:
        schema: Any = load_response_schema(key, version)
        header, size = entity_reader(schema.__header_schema__)(frame, 0)
        payload: Any = entity_reader(schema)(frame, size)[0]
        here = {"host": "127.0.0.1", "port": self.port}
        if key == METADATA:
            payload = replace(payload, brokers=tuple(replace(broker, **here) for broker in payload.brokers))
        elif hasattr(payload, "coordinators"):
            payload = replace(payload, coordinators=tuple(replace(one, **here) for one in payload.coordinators))
        else:
            payload = replace(payload, **here)
        return b"".join(_written(entity) for entity in (header, payload))


def _written(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await reader.readexactly(_LENGTH_SIZE))
    return await reader.readexactly(size)
