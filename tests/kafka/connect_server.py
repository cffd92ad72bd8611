"""A broker of a few lines that serves connect groups: over TCP with the real messages, answered by a function."""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from coterie.broker.apis.connect_groups.events import (
    heartbeat_event,
    install_assignment_event,
    prepare_assignment_event,
)
from coterie.nouns.ids import ReplyTo
from coterie.wire.errors import ErrorCode
from coterie.wire.frames import RequestHeader, decode_request, encode_response_frame, with_length
from coterie.wire.kio_entities import Values, build_response

API_VERSIONS, FIND_COORDINATOR = 18, 10
CONNECT_KEYS = (10000, 10001, 10002, 10003)
Answer: TypeAlias = Callable[[Any], Values | bytes | None]
"""From the event of a request, or the entity of ConnectGroupDescribe, to the values of the response; the bytes of a
malformed one; or None, for a response that is held until the next request on the connection."""


class ConnectServer:
    """Counts the connections, and answers their requests in order."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.api_keys: tuple[int, ...] = CONNECT_KEYS
        self.find_error = ErrorCode.none
        self.hold_values: Values = {}
        """The values of a response that was held."""
        self.connections = 0
        """The number of connections on which a request of a connect group has arrived."""
        self.searches = 0
        """The number of FindCoordinator requests."""
        self.received: asyncio.Queue[Any] = asyncio.Queue()
        """The requests of connect groups, as the coordinator's events."""
        self.port = 0
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        held: RequestHeader | None = None
        is_counted = False
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                header, body = decode_request(await reader.readexactly(size))
                if held is not None:
                    self._write(writer, held, self.hold_values)
                    held = None
                match header.api_key:
                    case 18:
                        self._write(writer, header, self._versions())
                    case 10:
                        self.searches += 1
                        self._write(writer, header, self._found())
                    case _:
                        self.connections += not is_counted
                        is_counted = True
                        event = event_of(header, body)
                        self.received.put_nowait(event)
                        match self.answer(event):
                            case None:
                                held = header
                            case bytes(data):
                                writer.write(with_length(header.correlation_id.to_bytes(4) + data))
                            case values:
                                self._write(writer, header, values)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def hang_up(self) -> None:
        for writer in self._writers:
            writer.close()

    def _write(self, writer: asyncio.StreamWriter, header: RequestHeader, values: Values) -> None:
        response = build_response(header.api_key, header.api_version, values)
        writer.write(with_length(encode_response_frame(header, response)))

    def _versions(self) -> Values:
        keys = [{"api_key": key, "min_version": 0, "max_version": 0} for key in self.api_keys]
        keys.append({"api_key": FIND_COORDINATOR, "min_version": 0, "max_version": 4})
        return {"error_code": ErrorCode.none, "api_keys": keys}

    def _found(self) -> Values:
        found: Mapping[str, Any] = {
            "key": "", "node_id": 1, "host": "127.0.0.1", "port": self.port, "error_code": self.find_error,
            "error_message": None,
        }  # fmt: skip
        return {"throttle_time": 0, "coordinators": [found]}


def event_of(header: RequestHeader, body: Any) -> Any:
    """The coordinator's event of a request; the entity of ConnectGroupDescribe."""
    match header.api_key:
        case 10000:
            return heartbeat_event(
                body, reply_to=ReplyTo(1), connection=1, client_id=header.client_id or "", client_host=""
            )
        case 10001:
            return prepare_assignment_event(body, reply_to=ReplyTo(1))
        case 10002:
            return install_assignment_event(body, reply_to=ReplyTo(1))
        case _:
            return body


@asynccontextmanager
async def connect_server(answer: Answer) -> AsyncIterator[ConnectServer]:
    """The server, while it listens."""
    server = ConnectServer(answer)
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listener:
        server.port = listener.sockets[0].getsockname()[1]
        yield server
        server.hang_up()
        await asyncio.sleep(0)
