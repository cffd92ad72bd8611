"""One connection: frames in, requests taken in order and at most a few at once, answers out in the same order."""

import asyncio
import logging
from collections.abc import Mapping

from coterie.broker.apis.table import APIS, Api, supported_versions
from coterie.broker.node import Node, Request
from coterie.nouns.errors import WireError
from coterie.wire.errors import ErrorCode
from coterie.wire.frames import (
    API_VERSIONS,
    LENGTH_SIZE,
    RequestHeader,
    decode_header,
    decode_request,
    encode_response,
    framed,
)
from coterie.wire.shapes import Values, build_response

logger = logging.getLogger(__name__)


class Connection:
    """Serves one peer until it goes, is idle for too long, or sends what means nothing."""

    def __init__(self, node: Node, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._node = node
        self._reader = reader
        self._writer = writer
        self._room = asyncio.Semaphore(node.settings.in_flight_max)
        self._in_flight = 0
        peer = writer.get_extra_info("peername")
        self._peer_host = str(peer[0]) if peer else "unknown"
        self.peer = f"{peer[0]}:{peer[1]}" if peer else "unknown"

    async def run(self) -> None:
        """Whatever goes wrong with this peer ends here, with one line of the log. The caller aborts afterwards."""
        try:
            await self._serve()
        except* WireError as errors:
            logger.warning("connection of %s closed: %s", self.peer, errors.exceptions[0])
        except* (ConnectionError, TimeoutError) as errors:
            logger.debug("connection of %s ended: %s", self.peer, errors.exceptions[0])
        except* Exception:
            logger.exception("our own bug: connection of %s closed", self.peer)

    def abort(self) -> None:
        """Close the socket now. What was answered is in it; a peer that does not read may not hold us."""
        self._writer.transport.abort()

    async def _serve(self) -> None:
        answers: asyncio.Queue[asyncio.Task[bytes | None]] = asyncio.Queue()
        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(self._write(answers))
            parked: set[asyncio.Task[bytes | None]] = set()
            # With as many requests in flight as may be, the peer is not read until one is answered.
            while await self._room.acquire() and (frame := await self._read_frame()) is not None:
                self._in_flight += 1
                answer = tasks.create_task(self._answer(frame))
                parked.add(answer)
                answer.add_done_callback(parked.discard)
                answers.put_nowait(answer)
            # The peer has closed its side: it hears no answer and waits for none. But what it sent counts, so every
            # request gets one turn of the loop, in which a Produce is queued for the log.
            await asyncio.sleep(0)
            for answer in (*parked, writing):
                answer.cancel()

    # -- in ---------------------------------------------------------------------------------------------------------

    async def _read_frame(self) -> bytes | None:
        """The next frame; None when the peer has gone."""
        try:
            size = int.from_bytes(await self._read_in_time(LENGTH_SIZE), signed=True)
            if not 0 < size <= self._node.settings.frame_size_max:
                raise WireError(f"a frame of {size} bytes; allowed are {self._node.settings.frame_size_max}")
            return await self._read_in_time(size)
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise WireError(f"the peer went in the middle of a frame, after {len(error.partial)} bytes") from error
            return None

    async def _read_in_time(self, size: int) -> bytes:
        while True:
            try:
                # What has come stays in the reader's buffer when the time is up, so reading can begin again.
                async with asyncio.timeout(self._node.settings.idle_timeout_ms / 1000):
                    return await self._reader.readexactly(size)
            except TimeoutError:
                if not self._in_flight:
                    raise

    # -- out --------------------------------------------------------------------------------------------------------

    async def _write(self, answers: "asyncio.Queue[asyncio.Task[bytes | None]]") -> None:
        while True:
            frame = await (await answers.get())
            if frame is not None:
                self._writer.write(framed(frame))
                await self._writer.drain()
            self._in_flight -= 1
            self._room.release()

    async def _answer(self, frame: bytes) -> bytes | None:
        """The answer's frame; None where none is awaited."""
        header = decode_header(frame)
        api = APIS.get(header.api_key)
        if api is None or header.api_version not in api.versions:
            return _unsupported(header)
        _, body = decode_request(frame)
        values = await api.handle(self._node, Request(header=header, body=body, peer_host=self._peer_host))
        return None if values is None else _encoded(header, api, values)


def _encoded(header: RequestHeader, api: Api, values: Values) -> bytes:
    return encode_response(header, build_response(api.key, header.api_version, values))


def _unsupported(header: RequestHeader) -> bytes:
    """KIP-511: who asks for too new an ApiVersions learns in version 0 what there is. Anything else has no answer
    that the peer could read: as in Kafka, its connection is closed."""
    if header.api_key == API_VERSIONS:
        values: Mapping[str, object] = supported_versions(ErrorCode.unsupported_version)
        return encode_response(header, build_response(API_VERSIONS, 0, values))
    raise WireError(f"API {header.api_key} of version {header.api_version} is not served here")
