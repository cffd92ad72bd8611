"""One client connection: authenticates the peer (TLS, SASL), then reads requests in order, handles a limited number of
them concurrently, and writes the responses in the order of the requests."""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.table import APIS, supported_versions
from coterie.broker.node import ApiRequest, Node
from coterie.broker.security.budget import Budget, RequestBudget, SharedBudget
from coterie.broker.security.principals import ANONYMOUS, of_certificate
from coterie.broker.security.sasl import TOKEN_SIZE_MAX, Conversation
from coterie.broker.turns import ELEMENTS_AT_ONCE, is_long
from coterie.nouns.errors import WireError, WorldError
from coterie.wire.blank import filled_response
from coterie.wire.errors import ErrorCode
from coterie.wire.frames import LENGTH_SIZE, RequestHeader, decode_header, decode_request, encode_response, framed
from coterie.wire.guard import TooManyElementsError
from coterie.wire.schemas import API_VERSIONS
from coterie.wire.scram import DeniedError
from coterie.wire.shapes import Values, build_response

logger = logging.getLogger(__name__)

_LOOK_S = 1.0
"""How often to check for a disconnected peer while the connection is not read."""


class _DecodedRequest(NamedTuple):
    """One decoded request."""

    header: RequestHeader
    api: KafkaApi | None
    """None: the broker does not support this API in this version."""
    body: Any = None
    is_long: bool = False


class Connection:
    """Serves one peer until the peer disconnects, is idle for too long, or sends malformed bytes."""

    def __init__(self, node: Node, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._node = node
        self._reader = reader
        self._writer = writer
        self._room = asyncio.Semaphore(node.settings.in_flight_max)
        self._budget = Budget(node.settings.in_flight_size_max)
        self._in_flight = 0
        self._requests = 0
        self._answers = 0
        self._reads_since_s: float | None = None
        self._principal = ANONYMOUS
        self._shared = SharedBudget("unauthenticated peer", node.settings.principal_in_flight_size_max)
        """Until the peer is authenticated, a budget of this connection only."""
        peer = writer.get_extra_info("peername")
        self.peer_host = str(peer[0]) if peer else "unknown"
        self.peer = f"{peer[0]}:{peer[1]}" if peer else "unknown"

    async def run(self) -> None:
        """Every error of this connection ends here with at most one log message. The caller aborts afterwards."""
        try:
            if await self._is_admitted():
                await self._serve()
        except* WireError as errors:
            self._log_fault(str(errors.exceptions[0]))
        except* WorldError as errors:
            logger.error("Connection %s closed: %s", self.peer, errors.exceptions[0])
        except* (ConnectionError, TimeoutError, ssl.SSLError) as errors:
            logger.debug("Connection %s ended: %s", self.peer, errors.exceptions[0])
        except* Exception:
            logger.exception("Bug in Coterie: connection %s closed", self.peer)

    def abort(self) -> None:
        """Close the socket now. Responses were already written to it; this does not wait for a peer that reads none."""
        self._writer.transport.abort()

    # -- authentication -----------------------------------------------------------------------------------------------

    async def _is_admitted(self) -> bool:
        """Do the TLS and SASL handshakes; return False if the peer disconnects before they end."""
        settings = self._node.settings
        try:
            async with asyncio.timeout(settings.handshake_timeout_ms / 1000):
                if (tls := self._node.admission.tls) is not None:
                    await self._secure(tls)
                return not settings.security.protocol.has_sasl or await self._is_authenticated()
        except TimeoutError:
            raise WireError(f"the peer was not authenticated within {settings.handshake_timeout_ms} ms") from None

    async def _secure(self, context: ssl.SSLContext) -> None:
        try:
            await self._writer.start_tls(context)
        except ssl.SSLError as error:
            raise WireError(f"the TLS handshake failed: {error.reason or error}") from error
        self._principal = of_certificate(self._writer.get_extra_info("peercert"))

    async def _is_authenticated(self) -> bool:
        """Handle requests one by one: the principal is unknown until the last token."""
        conversation = Conversation(self._node.admission.users, refusal_delay_ms=self._node.settings.refusal_delay_ms)
        while conversation.principal is None:
            frame = await self._read_frame(min(TOKEN_SIZE_MAX, self._node.settings.frame_size_max))
            if frame is None:
                return False
            share = self._share(len(frame))
            answer = await self._next_in(conversation, frame, share)
            if answer is not None:
                await self._send(answer)
                self._answers += 1
            share.settle(0)
            if conversation.has_failed:
                self._tell_denial(conversation)
                return False
        self._principal = conversation.principal
        return True

    def _tell_denial(self, conversation: Conversation) -> None:
        now_s = asyncio.get_running_loop().time()
        denials = self._node.admission.denials
        line = denials.line(self.peer_host, conversation.user, conversation.mechanism, now_s=now_s)
        if line is not None:
            logger.warning("Connection %s closed: %s", self.peer, line)

    def _log_fault(self, fault: str) -> None:
        """Log a protocol error: for each peer address and error at most one warning a minute, the others at debug
        level. A client may retry in a loop, for instance without a login."""
        now_s = asyncio.get_running_loop().time()
        left_out = self._node.admission.faults.left_out(f"{self.peer_host} {fault}", now_s=now_s)
        if left_out is None:
            logger.debug("Connection %s closed: %s", self.peer, fault)
            return
        more = f"; {left_out} more from {self.peer_host} since the last such message" if left_out else ""
        logger.warning("Connection %s closed: %s%s", self.peer, fault, more)

    async def _next_in(self, conversation: Conversation, frame: bytes, share: RequestBudget) -> bytes | None:
        """The response to one frame of the SASL exchange; None if the connection is closed without a response."""
        if conversation.has_raw_tokens:
            try:
                return await conversation.take(frame)
            except DeniedError:
                # The exchange of raw tokens has no error response, as in Kafka.
                return None
        header = decode_header(frame)
        api = APIS.get(header.api_key)
        is_served = api is not None and header.api_version in api.versions
        if not conversation.is_due(header, is_served=is_served):
            return _out_of_turn(header) if is_served else _unsupported(header)
        answer = await self._answer(await self._decoded(frame), share, conversation)
        assert answer is not None, "every request of the SASL exchange has a response"
        return answer

    # -- requests -----------------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        name = str(self._principal) if self._principal != ANONYMOUS else f"{ANONYMOUS}@{self.peer_host}"
        shares: set[RequestBudget] = set()
        self._shared = self._node.admission.budgets.join(name)
        try:
            with self._watched():
                await self._serve_within(self._shared, shares)
        finally:
            for share in shares:
                share.end()
            self._node.admission.budgets.leave(name)

    async def _serve_within(self, shared: SharedBudget, shares: set[RequestBudget]) -> None:
        """``shares`` are the budgets of the requests whose responses are not written yet."""
        answers: asyncio.Queue[tuple[asyncio.Task[bytes | None], RequestBudget]] = asyncio.Queue()
        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(self._write(answers, shares))
            parked: set[asyncio.Task[bytes | None]] = set()
            try:
                # At the limit of requests in flight, the socket is not read until one request has its response.
                while await self._room.acquire():
                    frame = await self._read_frame(self._node.settings.frame_size_max)
                    if frame is None:
                        break
                    await self._wait_for_room(shared, len(frame))
                    asked = await self._decoded(frame)
                    share = self._share(len(frame))
                    # Most requests are heartbeats, one at a time, and need no asyncio task. A request behind others in
                    # flight runs as an asyncio task.
                    begun = self._answer(asked, share) if self._in_flight else self._begin(asked, share)
                    if isinstance(begun, bytes):
                        shared.give_back(len(frame))
                        share.settle(0)
                        self._room.release()
                        await self._send(begun)
                        self._answers += 1
                        if self._answers % self._node.settings.in_flight_max == 0:
                            await asyncio.sleep(
                                0
                            )  # yield to other connections while this one has more requests buffered
                        continue
                    self._in_flight += 1
                    answer = tasks.create_task(begun)
                    parked.add(answer)
                    shares.add(share)
                    answer.add_done_callback(partial(_settle, shared, len(frame), share))
                    answer.add_done_callback(parked.discard)
                    answers.put_nowait((answer, share))
                    while asked.is_long and not (answer.done() or self._reader.at_eof()):
                        # This request yields to the event loop while it runs, and later requests must not overtake it.
                        # A connection may have only one request of this size in flight.
                        await asyncio.wait([answer], timeout=_LOOK_S)
            finally:
                # Reading may end because the peer closed its side or sent malformed bytes. Earlier requests still
                # count: every request gets one iteration of the event loop, in which a Produce is queued for the log,
                # and no task is cancelled before it has begun to await its handler's coroutine.
                await asyncio.sleep(0)
            for answer in (*parked, writing):
                answer.cancel()

    async def _wait_for_room(self, shared: Budget, size: int) -> None:
        if shared.has_room(size):
            shared.take_anyway(size)
            return
        logger.warning("Connection %s paused: its principal has %d bytes in flight", self.peer, shared.taken)
        while True:
            try:
                async with asyncio.timeout(_LOOK_S):
                    await shared.take(size)
                    return
            except TimeoutError:
                # A disconnected peer may itself occupy the bytes that this request waits for. What it sent counts:
                # handle the request, then close the connection with everything that it has in flight.
                if self._reader.at_eof():
                    shared.take_anyway(size)
                    return

    def _share(self, size: int) -> RequestBudget:
        """The budget of the next request, whose ``size`` bytes are already taken."""
        number = self._requests
        self._requests += 1
        return RequestBudget(self._budget, self._shared, size, is_next=lambda: number == self._answers)

    # -- reading ----------------------------------------------------------------------------------------------------

    async def _read_frame(self, size_max: int) -> bytes | None:
        """The next frame; None if the peer has disconnected."""
        self._reads_since_s = asyncio.get_running_loop().time()
        try:
            size = int.from_bytes(await self._reader.readexactly(LENGTH_SIZE), signed=True)
            if not 0 < size <= size_max:
                raise WireError(f"the peer announced a frame of {size} bytes; the maximum is {size_max}")
            await self._budget.take(size)
            return await self._reader.readexactly(size)
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise WireError(
                    f"the peer disconnected in the middle of a frame, after {len(error.partial)} bytes"
                ) from error
            return None
        finally:
            self._reads_since_s = None

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Stop reading when no request is in flight and no whole frame has arrived within the idle timeout.

        One timer that rechecks when the timeout may have passed: a timer for each read would cost as much as a
        heartbeat's response.
        """
        loop = asyncio.get_running_loop()
        idle_timeout_s = self._node.settings.idle_timeout_ms / 1000

        timer: asyncio.TimerHandle

        def look() -> None:
            nonlocal timer
            now_s = loop.time()
            since_s = now_s if self._reads_since_s is None or self._in_flight else self._reads_since_s
            if since_s + idle_timeout_s <= now_s:
                self._reader.set_exception(TimeoutError())
            else:
                timer = loop.call_at(since_s + idle_timeout_s, look)

        timer = loop.call_later(idle_timeout_s, look)
        try:
            yield
        finally:
            timer.cancel()

    # -- writing ----------------------------------------------------------------------------------------------------

    async def _write(
        self, answers: "asyncio.Queue[tuple[asyncio.Task[bytes | None], RequestBudget]]", shares: set[RequestBudget]
    ) -> None:
        while True:
            answer, share = await answers.get()
            frame = await answer
            if frame is not None:
                await self._send(frame)
            self._answers += 1
            self._budget.give_back(len(frame or b""))
            shares.discard(share)
            share.end()
            self._in_flight -= 1
            self._room.release()

    async def _send(self, frame: bytes) -> None:
        """Return when the peer has read enough of what was written. A peer that reads nothing for too long occupies
        the budget that the responses of other connections need.

        :raises WireError: the peer has read nothing within the timeout.
        """
        self._writer.write(framed(frame))
        transport, timeout_ms = self._writer.transport, self._node.settings.deaf_timeout_ms
        while left := transport.get_write_buffer_size():
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    await self._writer.drain()
            except TimeoutError:
                if transport.get_write_buffer_size() >= left:
                    raise WireError(f"the peer has read none of its responses for {timeout_ms} ms") from None
            else:
                return
        await self._writer.drain()

    # -- handling -----------------------------------------------------------------------------------------------------

    async def _decoded(self, frame: bytes) -> _DecodedRequest:
        try:
            header = decode_header(frame)
            api = APIS.get(header.api_key)
            if api is None or header.api_version not in api.versions:
                return _DecodedRequest(header, None)
            return _DecodedRequest(header, api, decode_request(frame, elements_max=ELEMENTS_AT_ONCE)[1])
        except TooManyElementsError:
            _, body = await self._node.aside.run(decode_request, frame)
            return _DecodedRequest(header, api, body, is_long=True)

    async def _answer(
        self, asked: _DecodedRequest, share: RequestBudget, conversation: Conversation | None = None
    ) -> bytes | None:
        """The response frame; None if the request has no response."""
        answer = self._begin(asked, share, conversation)
        return answer if isinstance(answer, bytes) else await answer

    def _begin(
        self, asked: _DecodedRequest, share: RequestBudget, conversation: Conversation | None = None
    ) -> "_Answer":
        """The response frame if the handler finishes at once, else a coroutine that returns the frame."""
        header, api = asked.header, asked.api
        if api is None:
            return _unsupported(header)
        request = ApiRequest(
            header=header,
            body=asked.body,
            peer_host=self.peer_host,
            reserve=share.reserve,
            principal=self._principal,
            conversation=conversation,
        )
        values = api.answer(self._node, request)
        return self._finished(header, api, values) if isinstance(values, Awaitable) else _encoded(header, api, values)

    async def _finished(self, header: RequestHeader, api: KafkaApi, values: Awaitable[Values | None]) -> bytes | None:
        told = await values
        if told is None:
            return None
        return await self._node.aside.run(_encoded, header, api, told) if is_long(told) else _encoded(header, api, told)


_Answer: TypeAlias = bytes | Coroutine[None, None, bytes | None]


def _settle(shared: Budget, size: int, share: RequestBudget, answer: asyncio.Task[bytes | None]) -> None:
    shared.give_back(size)
    is_answered = not answer.cancelled() and answer.exception() is None
    share.settle(len(answer.result() or b"") if is_answered else 0)


def _encoded(header: RequestHeader, api: KafkaApi, values: Values) -> bytes:
    # The broker has no quotas and throttles no request.
    return encode_response(header, build_response(api.key, header.api_version, {"throttle_time": 0, **values}))


def _out_of_turn(header: RequestHeader) -> bytes:
    refused = filled_response(header.api_key, header.api_version, {"error_code": ErrorCode.illegal_sasl_state})
    return encode_response(header, build_response(header.api_key, header.api_version, refused))


def _unsupported(header: RequestHeader) -> bytes:
    """KIP-511: an ApiVersions request of an unsupported version gets a version 0 response with the supported versions.
    Any other unsupported request has no response that the peer could decode: as in Kafka, its connection is closed."""
    if header.api_key == API_VERSIONS:
        values: Mapping[str, object] = supported_versions(ErrorCode.unsupported_version)
        return encode_response(header, build_response(API_VERSIONS, 0, values))
    raise WireError(f"API {header.api_key} in version {header.api_version} is not supported")
