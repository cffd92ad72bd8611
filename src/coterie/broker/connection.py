"""One client connection: authenticates the peer (TLS, SASL), then reads requests in order, handles a limited number of
requests concurrently, and writes the responses in the order of the requests.

A request is in flight from when it is read until its response is written.
"""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.table import api_versions_values, served_apis
from coterie.broker.context import ApiRequest, BrokerContext
from coterie.broker.groups.member_connection import MemberConnection
from coterie.broker.loop_yield import ELEMENTS_WITHOUT_YIELD_MAX, has_many_elements
from coterie.broker.security.budget import ByteBudget, PrincipalByteBudget, RequestBudgetShare
from coterie.broker.security.principals import ANONYMOUS, Principal
from coterie.broker.security.sasl import TOKEN_SIZE_MAX, SaslExchange
from coterie.broker.settings import BrokerSettings
from coterie.config.certificate_names import peer_distinguished_name
from coterie.nouns.errors import WireError, WorldError
from coterie.nouns.log_rate_limit import kind_of_error
from coterie.wire.empty_values import response_with_empty_values
from coterie.wire.errors import ErrorCode
from coterie.wire.frames import (
    LENGTH_SIZE,
    RequestHeader,
    decode_request_body,
    decode_request_header,
    encode_response_frame,
    encode_response_frame_from_values,
    with_length,
)
from coterie.wire.kio_entities import Values, build_response
from coterie.wire.message_check import TooManyElementsError
from coterie.wire.schemas import API_VERSIONS
from coterie.wire.scram import AuthenticationFailedError

logger = logging.getLogger(__name__)

_DISCONNECT_CHECK_INTERVAL_S = 1.0
"""The interval between checks whether the peer has disconnected, while the connection is not read."""


class _DecodedRequest(NamedTuple):
    """One decoded request. ``api`` is None if the broker does not support the API in this version. ``error`` is set if
    the request has too many array elements, and must be refused with INVALID_REQUEST. In both cases the body is not
    decoded. ``number`` is the request's number on its connection."""

    header: RequestHeader
    api: KafkaApi | None
    """None: the broker does not support this API in this version; then the body is not decoded."""
    body: Any = None
    """kio's request entity."""
    has_many_elements: bool = False
    """Whether the body has more than `ELEMENTS_WITHOUT_YIELD_MAX` array elements."""
    number: int = 0
    """The number of the request on its connection (`MemberConnection.count_request_and_release_holds`)."""
    error: str | None = None
    """Why the request is refused with INVALID_REQUEST: it has too many array elements; then the body is not decoded."""


class Connection:
    """Serves one peer until the peer disconnects, fails to authenticate itself, violates the protocol, or is idle or
    reads no responses for too long."""

    def __init__(self, broker: BrokerContext, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._broker = broker
        self._apis = served_apis(broker.settings)
        self._member_connection = MemberConnection(broker.connect_groups)
        self._reader = reader
        self._writer = writer
        self._in_flight_slots = asyncio.Semaphore(broker.settings.connection_requests_in_flight_max)
        self._connection_budget = ByteBudget(broker.settings.connection_in_flight_size_max)
        self._in_flight_task_count = 0
        """The number of requests in flight that are handled by asyncio tasks."""
        self._request_count = 0
        """The number of requests that were read."""
        self._response_count = 0
        """The number of requests whose responses are written, or that need none."""
        self._reads_since_s: float | None = None
        """When the connection began to wait for the current frame, on the event loop's clock; None while it does not
        read."""
        self._principal = ANONYMOUS
        self._principal_budget = PrincipalByteBudget(
            "unauthenticated peer", broker.settings.principal_in_flight_size_max
        )
        """The byte budget of the principal; until the peer is authenticated, a budget for this connection only."""
        peer = writer.get_extra_info("peername")
        self.peer_host = str(peer[0]) if peer else "unknown"
        """The peer's IP address; "unknown" if the peer has disconnected already."""
        self.peer = f"{peer[0]}:{peer[1]}" if peer else "unknown"
        """The peer's IP address and port, for log messages."""

    async def run(self) -> None:
        """Authenticate the peer, then serve its requests until the connection is to be closed. The caller must then
        call :meth:`abort`. Errors are logged here and not raised."""
        try:
            if await self._try_authenticate():
                await self._serve_requests()
        except* WireError as errors:
            self._log_protocol_error(errors.exceptions[0])
        except* WorldError as errors:
            logger.error("Connection %s closed, because a request failed: %s", self.peer, errors.exceptions[0])
        except* (ConnectionError, TimeoutError, ssl.SSLError) as errors:
            logger.debug("Connection %s ended: %s", self.peer, errors.exceptions[0])
        except* Exception:
            logger.exception("Bug in Coterie: connection %s closed; the client may connect again", self.peer)

    def abort(self) -> None:
        """Close the socket at once, without waiting for a peer that reads nothing. Responses that the operating system
        has not accepted yet are lost."""
        self._writer.transport.abort()

    # -- authentication -----------------------------------------------------------------------------------------------

    async def _try_authenticate(self) -> bool:
        """Perform the TLS and SASL handshakes that the settings require. Returns whether the peer may send requests:
        False if the peer has disconnected before the end of SASL, or SASL failed.

        :raises WireError: when TLS fails, the peer violates the protocol, or the handshakes last longer than
            ``handshake_timeout_ms``.
        """
        settings = self._broker.settings
        try:
            async with asyncio.timeout(settings.handshake_timeout_ms / 1000):
                if (tls := self._broker.security.tls) is not None:
                    await self._start_tls_and_set_principal(tls)
                return not settings.security.protocol.has_sasl or await self._try_authenticate_with_sasl()
        except TimeoutError:
            raise WireError(f"the peer was not authenticated within {settings.handshake_timeout_ms} ms") from None

    async def _start_tls_and_set_principal(self, context: ssl.SSLContext) -> None:
        """Perform the TLS handshake. The connection's principal becomes the subject of the client's certificate;
        `ANONYMOUS` if the client sent no certificate.

        :raises WireError: when the handshake fails, or the certificate is malformed.
        """
        try:
            await self._writer.start_tls(context)
        except ssl.SSLError as error:
            raise WireError(f"the TLS handshake failed: {error.reason or error}") from error
        name = peer_distinguished_name(self._writer.get_extra_info("ssl_object"))
        self._principal = ANONYMOUS if name is None else Principal(name)

    async def _try_authenticate_with_sasl(self) -> bool:
        """Handle the requests of the SASL exchange, and send their responses, one by one: the principal is unknown
        until the last token. Returns whether the peer is authenticated: False if the peer has disconnected before, or
        authentication failed, which is logged.

        :raises WireError: when the peer violates the protocol.
        """
        exchange = SaslExchange(
            self._broker.security.users,
            failed_authentication_delay_ms=self._broker.settings.failed_authentication_delay_ms,
        )
        while exchange.principal is None:
            frame = await self._take_budget_and_read_frame(min(TOKEN_SIZE_MAX, self._broker.settings.frame_size_max))
            if frame is None:
                return False
            share = self._count_request_and_make_budget_share(len(frame))
            answer = await self._handle_sasl_or_must_close(exchange, frame, share)
            if answer is not None:
                await self._send_response(answer)
                self._response_count += 1
            share.replace_with_response_bytes(0)
            if exchange.has_failed:
                self._log_authentication_failure(exchange)
                return False
        self._principal = exchange.principal
        return True

    def _log_authentication_failure(self, exchange: SaslExchange) -> None:
        """Log the failed login as a warning, unless such messages are too frequent."""
        now_s = asyncio.get_running_loop().time()
        failures = self._broker.security.authentication_failures
        message = failures.message_to_log(
            self.peer_host, exchange.claimed_user, exchange.requested_mechanism, now_s=now_s
        )
        if message is not None:
            logger.warning("Connection %s closed: %s", self.peer, message)

    def _log_protocol_error(self, error: BaseException) -> None:
        """Log that the connection is closed because of ``error``, a violation of the protocol or an exceeded time
        limit: as a warning at most once a minute for each peer address and kind of error, else at debug level. A client
        may retry in a loop, for instance a client that does not log in."""
        self.warn_limited_by_address_and_kind(f"Connection {self.peer} closed: {error}", kind=kind_of_error(error))

    def warn_limited_by_address_and_kind(self, message: str, *, kind: str) -> None:
        """Log ``message`` as a warning at most once a minute for each peer address and ``kind``, else at debug
        level."""
        self._broker.security.protocol_error_rate_limit.warn_or_debug(
            logger,
            f"{self.peer_host} {kind}",
            message,
            more=f"more from {self.peer_host}",
            now_s=asyncio.get_running_loop().time(),
        )

    async def _handle_sasl_or_must_close(
        self, exchange: SaslExchange, frame: bytes, budget_share: RequestBudgetShare
    ) -> bytes | None:
        """The encoded response to one frame of the SASL exchange: a request, or a token without a header (after
        SaslHandshake v0). A request instead of the expected token gets ILLEGAL_SASL_STATE, and the exchange has failed.
        None if the connection is to be closed without a response, after an invalid token without a header.

        :raises WireError: when a request before SaslHandshake is neither SaslHandshake nor the first ApiVersions, its
            version is not supported, or the frame is malformed.
        """
        if exchange.has_raw_tokens:
            try:
                return await exchange.evaluate_token(frame)
            except AuthenticationFailedError:
                # The exchange of raw tokens has no error response, as in Kafka.
                return None
        header = decode_request_header(frame)
        api = self._apis.get(header.api_key)
        is_served = api is not None and header.api_version in api.versions
        if not exchange.accept_request_else_fail_or_raise(header, is_served=is_served):
            if is_served:
                return _illegal_sasl_state_response(header)
            return _unsupported_version_response_or_raise(header, self._broker.settings)
        answer = await self._handle_and_encode(await self._decode_request_or_raise(frame, 0), budget_share, exchange)
        assert answer is not None, "every request of the SASL exchange has a response"
        return answer

    # -- requests -----------------------------------------------------------------------------------------------------

    async def _serve_requests(self) -> None:
        """Serve the requests of the peer, within the byte budget of its principal (for an anonymous peer: of its IP
        address), until the peer disconnects."""
        name = str(self._principal) if self._principal != ANONYMOUS else f"{ANONYMOUS}@{self.peer_host}"
        budget_shares: set[RequestBudgetShare] = set()
        self._principal_budget = self._broker.security.budgets.acquire(name)
        try:
            with self._idle_timeout():
                await self._serve_until_disconnect_then_cancel(self._principal_budget, budget_shares)
        finally:
            for share in budget_shares:
                share.release()
            self._broker.security.budgets.release(name)

    async def _serve_until_disconnect_then_cancel(
        self, principal_budget: PrincipalByteBudget, budget_shares: set[RequestBudgetShare]
    ) -> None:
        """Read and handle requests until the peer disconnects; then cancel the requests that have no response yet.

        If all of these are heartbeats of connect groups whose responses the broker delays on purpose, the client ends;
        it did not give up waiting for a late response. The groups of the connection's members are then notified, before
        the requests are cancelled, that the client has closed its connection.

        ``budget_shares`` is filled here with the budgets of the requests whose responses are not written yet: the
        caller must release those that are left.
        """
        answers: asyncio.Queue[tuple[asyncio.Task[bytes | None], RequestBudgetShare]] = asyncio.Queue()
        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(self._write_responses_and_release_budgets(answers, budget_shares))
            parked: set[asyncio.Task[bytes | None]] = set()
            has_ended = False
            try:
                # At the limit of requests in flight, the socket is not read until one request has its response.
                while await self._in_flight_slots.acquire():
                    frame = await self._take_budget_and_read_frame(self._broker.settings.frame_size_max)
                    if frame is None:
                        has_ended = True
                        break
                    number = self._member_connection.count_request_and_release_holds()
                    await self._take_budget_or_overdraw_at_eof(principal_budget, len(frame))
                    asked = await self._decode_request_or_raise(frame, number)
                    share = self._count_request_and_make_budget_share(len(frame))
                    self._broker.young_object_collector.count_request_and_collect_if_due()
                    # Most requests are heartbeats, one at a time, and need no asyncio task. A request behind others in
                    # flight runs as an asyncio task.
                    begun = (
                        self._handle_and_encode(asked, share)
                        if self._in_flight_task_count
                        else self._begin_handling(asked, share)
                    )
                    if isinstance(begun, bytes):
                        principal_budget.release(len(frame))
                        share.replace_with_response_bytes(0)
                        self._in_flight_slots.release()
                        await self._send_response(begun)
                        self._response_count += 1
                        if self._response_count % self._broker.settings.connection_requests_in_flight_max == 0:
                            await asyncio.sleep(
                                0
                            )  # yield to other connections while this one has more requests buffered
                        continue
                    self._in_flight_task_count += 1
                    answer = tasks.create_task(begun)
                    parked.add(answer)
                    budget_shares.add(share)
                    answer.add_done_callback(partial(_switch_budgets_to_response, principal_budget, len(frame), share))
                    answer.add_done_callback(parked.discard)
                    answers.put_nowait((answer, share))
                    while asked.has_many_elements and not (answer.done() or self._reader.at_eof()):
                        # This request yields to the event loop while it runs, and later requests must not overtake it.
                        # A connection may have only one request of this size in flight.
                        await asyncio.wait([answer], timeout=_DISCONNECT_CHECK_INTERVAL_S)
            finally:
                # Reading may end because the peer closed its side or sent malformed bytes. Earlier requests still
                # count: every request gets one iteration of the event loop, in which a Produce is queued for the log,
                # and no task is cancelled before it has begun to await its handler's coroutine.
                await asyncio.sleep(0)
            # The peer has closed its side (FIN); any other end of the connection raises an exception. If all requests
            # in flight are held heartbeats, the client has not closed the connection because a response is late, but
            # because the client ends: report this to the groups of its members.
            if has_ended and self._in_flight_task_count == self._member_connection.held_heartbeat_count():
                self._member_connection.notify_groups_of_close()
            for answer in (*parked, writing):
                answer.cancel()

    async def _take_budget_or_overdraw_at_eof(self, principal_budget: PrincipalByteBudget, size: int) -> None:
        """Take ``size`` bytes of the principal's budget. If they do not fit, log this and wait until they fit; if the
        peer disconnects meanwhile, take them although they do not fit."""
        if principal_budget.has_capacity(size):
            principal_budget.take_unchecked(size)
            return
        principal_budget.log_delayed_request(self.peer)
        while True:
            try:
                async with asyncio.timeout(_DISCONNECT_CHECK_INTERVAL_S):
                    await principal_budget.take(size)
                    return
            except TimeoutError:
                # A disconnected peer may itself occupy the bytes that this request waits for. What it sent counts:
                # handle the request, then close the connection with everything that it has in flight.
                if self._reader.at_eof():
                    principal_budget.take_unchecked(size)
                    return

    def _count_request_and_make_budget_share(self, size: int) -> RequestBudgetShare:
        """Count the request that was just read, and return the share of the budgets of the connection and of the
        principal that it has taken: ``size`` bytes."""
        number = self._request_count
        self._request_count += 1
        return RequestBudgetShare(
            self._connection_budget,
            self._principal_budget,
            size,
            is_next_response=lambda: number == self._response_count,
        )

    # -- reading ----------------------------------------------------------------------------------------------------

    async def _take_budget_and_read_frame(self, size_max: int) -> bytes | None:
        """The next frame without its length, after its bytes are taken from the connection's budget; None if the peer
        has disconnected between two frames.

        :raises WireError: when the frame is empty or larger than ``size_max`` bytes, or the peer disconnects within it.
        """
        self._reads_since_s = asyncio.get_running_loop().time()
        try:
            size = int.from_bytes(await self._reader.readexactly(LENGTH_SIZE), signed=True)
            if not 0 < size <= size_max:
                raise WireError(f"the peer announced a frame of {size} bytes; a frame has 1 to {size_max} bytes")
            await self._connection_budget.take(size)
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
    def _idle_timeout(self) -> Iterator[None]:
        """In the block, let reads fail with TimeoutError when no whole frame has arrived for ``idle_timeout_ms``,
        counted from the start of the current read, and no request is in flight.

        There is one timer, which checks again when the timeout may have passed: a timer for each read would cost as
        much as the response to a heartbeat.
        """
        loop = asyncio.get_running_loop()
        idle_timeout_ms = self._broker.settings.idle_timeout_ms
        idle_timeout_s = idle_timeout_ms / 1000

        timer: asyncio.TimerHandle

        def fail_read_if_idle() -> None:
            nonlocal timer
            now_s = loop.time()
            since_s = now_s if self._reads_since_s is None or self._in_flight_task_count else self._reads_since_s
            if since_s + idle_timeout_s <= now_s:
                self._reader.set_exception(TimeoutError(f"the peer has sent no whole request for {idle_timeout_ms} ms"))
            else:
                timer = loop.call_at(since_s + idle_timeout_s, fail_read_if_idle)

        timer = loop.call_later(idle_timeout_s, fail_read_if_idle)
        try:
            yield
        finally:
            timer.cancel()

    # -- writing ----------------------------------------------------------------------------------------------------

    async def _write_responses_and_release_budgets(
        self,
        answers: "asyncio.Queue[tuple[asyncio.Task[bytes | None], RequestBudgetShare]]",
        budget_shares: set[RequestBudgetShare],
    ) -> None:
        """Write the responses in the order of ``answers``, the requests' asyncio tasks, and release their budgets. Runs
        until it is cancelled."""
        while True:
            answer, share = await answers.get()
            frame = await answer
            if frame is not None:
                await self._send_response(frame)
            self._response_count += 1
            self._connection_budget.release(len(frame or b""))
            budget_shares.discard(share)
            share.release()
            self._in_flight_task_count -= 1
            self._in_flight_slots.release()

    async def _send_response(self, frame: bytes) -> None:
        """Write one response. Returns when asyncio's write buffer for the socket is no longer full, which may be before
        the peer has read the response.

        :raises WireError: when the buffer is full and the peer has read nothing for ``unread_response_timeout_ms``: the
            unread bytes occupy the principal's budget, which responses on other connections need.
        """
        self._writer.write(with_length(frame))
        transport, timeout_ms = self._writer.transport, self._broker.settings.unread_response_timeout_ms
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

    async def _decode_request_or_raise(self, frame: bytes, number: int) -> _DecodedRequest:
        """The request in ``frame``; ``number`` is the request's number on the connection. A request with many array
        elements is decoded on a thread. A request whose API or version the broker does not support is returned without
        an API and a body.

        :raises WireError: when the frame is malformed, or has too many array elements and is not of an API with
            ``has_error_message``.
        """
        header = decode_request_header(frame)
        api = self._apis.get(header.api_key)
        if api is None or header.api_version not in api.versions:
            return _DecodedRequest(header, None)
        try:
            body = decode_request_body(frame, header, elements_max=ELEMENTS_WITHOUT_YIELD_MAX)
            return _DecodedRequest(header, api, body, number=number)
        except TooManyElementsError:
            return await self._decode_large_request_or_raise(frame, header, api, number)

    async def _decode_large_request_or_raise(
        self, frame: bytes, header: RequestHeader, api: KafkaApi, number: int
    ) -> _DecodedRequest:
        """The request in ``frame``, which has many array elements, decoded on a thread. If it has more than its API
        allows, it is returned without a body and with an error, provided that the API has ``has_error_message``.

        :raises WireError: when the frame is malformed, or has too many elements and no response for that.
        """
        try:
            body = await self._broker.codec_thread.run(decode_request_body, frame, header)
        except TooManyElementsError as error:
            if not api.has_error_message:
                raise
            return _DecodedRequest(header, api, number=number, error=str(error))
        return _DecodedRequest(header, api, body, has_many_elements=True, number=number)

    async def _handle_and_encode(
        self, decoded: _DecodedRequest, budget_share: RequestBudgetShare, exchange: SaslExchange | None = None
    ) -> bytes | None:
        """Handle the request. Returns the encoded response without its length; None if the request has no response.

        :raises WireError: as :meth:`_begin_handling`, or when a handler closes the connection.
        """
        answer = self._begin_handling(decoded, budget_share, exchange)
        return answer if isinstance(answer, bytes) else await answer

    def _begin_handling(
        self, decoded: _DecodedRequest, budget_share: RequestBudgetShare, exchange: SaslExchange | None = None
    ) -> "_ResponseOrCoroutine":
        """Begin to handle the request. Returns the encoded response, without its length, if the handler finishes at
        once; else a coroutine for it. The coroutine returns None if the request has no response.

        :raises WireError: when the API or its version is not supported; but a request ApiVersions of an unsupported
            version gets a response.
        """
        header, api = decoded.header, decoded.api
        if api is None:
            return _unsupported_version_response_or_raise(header, self._broker.settings)
        if decoded.error is not None:
            return _invalid_request_response(header, decoded.error)
        request = ApiRequest(
            header=header,
            body=decoded.body,
            peer_host=self.peer_host,
            connection=self._member_connection,
            number=decoded.number,
            has_many_elements=decoded.has_many_elements,
            reserve_response_bytes=budget_share.reserve_response_bytes,
            principal=self._principal,
            sasl_exchange=exchange,
        )
        values = api.authorize_and_handle(self._broker, request)
        return (
            self._await_and_encode_values(header, values)
            if isinstance(values, Awaitable)
            else _encode_values(header, values)
        )

    async def _await_and_encode_values(self, header: RequestHeader, values: Awaitable[Values | None]) -> bytes | None:
        """The encoded response with the awaited ``values``, encoded on a thread if it has many elements; None if the
        request has no response."""
        values_to_send = await values
        if values_to_send is None:
            return None
        return (
            await self._broker.codec_thread.run(_encode_values, header, values_to_send)
            if has_many_elements(values_to_send)
            else _encode_values(header, values_to_send)
        )


_ResponseOrCoroutine: TypeAlias = bytes | Coroutine[None, None, bytes | None]
"""An encoded response, or a coroutine that returns it (None: the request has no response)."""


def _switch_budgets_to_response(
    principal_budget: ByteBudget, size: int, budget_share: RequestBudgetShare, response: asyncio.Task[bytes | None]
) -> None:
    """Called when the request's asyncio task has ended, with or without a response: release the request's ``size``
    bytes in the budgets of the principal and the connection, and take the bytes of the response in the connection's
    budget. In the principal's budget, the bytes that the handler reserved for the response stay taken until
    `RequestBudgetShare.release`."""
    principal_budget.release(size)
    is_answered = not response.cancelled() and response.exception() is None
    budget_share.replace_with_response_bytes(len(response.result() or b"") if is_answered else 0)


def _encode_values(header: RequestHeader, values: Values) -> bytes:
    """The encoded response with ``values``, in the version of the request's ``header``."""
    # The broker has no quotas and throttles no request.
    return encode_response_frame_from_values(header, {"throttle_time": 0, **values})


def _illegal_sasl_state_response(header: RequestHeader) -> bytes:
    """The encoded response with ILLEGAL_SASL_STATE, to a request that is not allowed at this step of the SASL
    exchange."""
    return _error_response(header, {"error_code": ErrorCode.illegal_sasl_state})


def _invalid_request_response(header: RequestHeader, message: str) -> bytes:
    """The encoded response with INVALID_REQUEST and ``message``."""
    return _error_response(header, {"error_code": ErrorCode.invalid_request, "error_message": message})


def _error_response(header: RequestHeader, error_values: Values) -> bytes:
    """The encoded response with ``error_values``, and with empty values in all other fields."""
    values = response_with_empty_values(header.api_key, header.api_version, error_values)
    return encode_response_frame(header, build_response(header.api_key, header.api_version, values))


def _unsupported_version_response_or_raise(header: RequestHeader, settings: BrokerSettings) -> bytes:
    """The encoded response to an ApiVersions request of an unsupported version: of version 0, with the supported
    versions (KIP-511).

    :raises WireError: for every other API. The peer could decode no response, so the connection is closed, as in Kafka.
    """
    if header.api_key == API_VERSIONS:
        values: Mapping[str, object] = api_versions_values(ErrorCode.unsupported_version, settings)
        return encode_response_frame(header, build_response(API_VERSIONS, 0, values))
    raise WireError(
        f"the peer sent a request of API {header.api_key} in version {header.api_version},"
        " which this broker does not support"
    )
