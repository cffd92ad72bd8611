"""A connection to one broker, for the APIs that no Kafka library offers. It logs in as the settings require, sends each
request in the newest version that both sides support, and may have several requests outstanding.

A broker responds to the requests of one connection in their order. So a parked request, one whose response the broker
delays until other members have sent theirs, delays the responses to all requests that were sent after it on the same
connection. Responses are matched by correlation id: if the caller of a request is cancelled, the request stays
outstanding, and its response is dropped.
"""

import asyncio
import socket
import ssl
from typing import Any, NamedTuple, Self

from coterie.config.security import KafkaSecurity
from coterie.kafka.security import PLAINTEXT, SaslLogin, cached_tls_context
from coterie.nouns.errors import WireError, WorldError
from coterie.wire.errors import ErrorCode
from coterie.wire.frames import LENGTH_SIZE, decode_response, encode_request, with_length
from coterie.wire.kio_entities import Values, build_request, to_milliseconds
from coterie.wire.primitives import Reader
from coterie.wire.scram import AuthenticationFailedError

RESPONSE_SIZE_MAX = 64 * 1024 * 1024
"""The maximum size of a response. No group's metadata comes near this size; a peer that announces more is not a Kafka
broker."""


class Address(NamedTuple):
    """The address of a broker."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, server: str) -> Self:
        """The address in ``host:port``, an entry of bootstrap.servers; an IPv6 address is in brackets.

        :raises ValueError: when the port is no number.
        """
        host, _, port = server.rpartition(":")
        return cls(host.strip("[]"), int(port))


class ApiVersionRange(NamedTuple):
    """An API and the range of its versions that Coterie supports. Every broker of Kafka 2.4 or newer supports at least
    one of them, except for the APIs of connect groups, which only Coterie's brokers have."""

    name: str
    api_key: int
    """Kafka's number of the API."""
    oldest_version: int
    newest_version: int


API_VERSIONS = ApiVersionRange("ApiVersions", 18, 0, 0)
"""Only version 0, which every broker supports: this request is sent before the broker's versions are known."""
METADATA = ApiVersionRange("Metadata", 3, 8, 9)
FIND_COORDINATOR = ApiVersionRange("FindCoordinator", 10, 3, 6)
JOIN_GROUP = ApiVersionRange("JoinGroup", 11, 5, 9)
HEARTBEAT = ApiVersionRange("Heartbeat", 12, 3, 4)
LEAVE_GROUP = ApiVersionRange("LeaveGroup", 13, 3, 5)
SYNC_GROUP = ApiVersionRange("SyncGroup", 14, 3, 5)
DESCRIBE_GROUPS = ApiVersionRange("DescribeGroups", 15, 5, 5)
LIST_GROUPS = ApiVersionRange("ListGroups", 16, 3, 5)
SASL_HANDSHAKE = ApiVersionRange("SaslHandshake", 17, 1, 1)
DESCRIBE_CONFIGS = ApiVersionRange("DescribeConfigs", 32, 2, 4)
SASL_AUTHENTICATE = ApiVersionRange("SaslAuthenticate", 36, 0, 2)
INCREMENTAL_ALTER_CONFIGS = ApiVersionRange("IncrementalAlterConfigs", 44, 0, 1)
CONNECT_GROUP_HEARTBEAT = ApiVersionRange("ConnectGroupHeartbeat", 10000, 0, 0)
CONNECT_GROUP_PREPARE_ASSIGNMENT = ApiVersionRange("ConnectGroupPrepareAssignment", 10001, 0, 0)
CONNECT_GROUP_INSTALL_ASSIGNMENT = ApiVersionRange("ConnectGroupInstallAssignment", 10002, 0, 0)
CONNECT_GROUP_DESCRIBE = ApiVersionRange("ConnectGroupDescribe", 10003, 0, 0)

_LOGIN_LIFETIME_USED_FRACTION = 0.85
"""The part of a login's lifetime (KIP-368) after which the connection is stale, as in Kafka's clients."""


class BrokerAccessError(WorldError):
    """The broker rejects this client, this client does not trust the broker, or the broker sent no valid response for
    the whole time limit, as with a wrong security.protocol. Not retried: usually a setting has to be corrected."""


class NoValidResponseError(WorldError):
    """The connection broke before the response to a request, or the broker sent bytes that are not a valid response."""


class UnsupportedApiError(WorldError):
    """The broker does not support the API, or no version of it that Coterie supports."""


class BrokerConnection:
    """A connection to one broker; created by :meth:`open`. After a `WorldError` the caller must close it."""

    def __init__(
        self, address: Address, client_id: str, transport: asyncio.Transport, router: "_ResponseRouter"
    ) -> None:
        self._address = address
        self._client_id = client_id
        self._transport = transport
        self._router = router
        self._correlation_id = 0
        self._broker_versions: dict[int, tuple[int, int]] = {}
        """The oldest and the newest version that the broker supports, by API key."""
        self._stale_at_s: float | None = None
        """When the connection becomes stale, on the event loop's clock; None: never."""

    @property
    def is_login_expiring(self) -> bool:
        """Whether the login on this connection has nearly expired, or has expired: the broker then rejects requests
        (KIP-368), and a new connection must be opened."""
        return self._stale_at_s is not None and asyncio.get_running_loop().time() >= self._stale_at_s

    @property
    def has_outstanding_requests(self) -> bool:
        """Whether the broker still has to respond to a request of this connection, including a request whose caller was
        cancelled."""
        return bool(self._router.pending_responses)

    @classmethod
    async def open(cls, address: Address, *, client_id: str, security: KafkaSecurity = PLAINTEXT) -> Self:
        """Connect, request the versions that the broker supports, and log in if the settings require it.

        :raises BrokerAccessError: when the TLS handshake or the login fails.
        :raises NoValidResponseError: when the broker closes the connection without a response, or sends no valid
        response.
        :raises WorldError: when the broker cannot be reached, refuses ApiVersions, or supports no version that Coterie
            supports; when a file with certificates is missing or invalid.
        """
        try:
            transport, router = await _open_transport(address, security)
        except ssl.SSLCertVerificationError as error:
            raise BrokerAccessError(
                f"the certificate of the broker at {address} is not accepted: {error.verify_message}; check "
                "ssl.ca.location, the name in the certificate, and its end date"
            ) from None
        except ssl.SSLError as error:
            raise BrokerAccessError(
                f"the TLS handshake with the broker at {address} failed: {error.reason}; check security.protocol"
            ) from None
        except OSError as error:
            reason = str(error) or "the connection broke"
            hint = " and supports TLS" if security.has_tls else ""
            raise WorldError(f"cannot reach the broker at {address}: {reason}; check that it runs{hint}") from None
        connection = cls(address, client_id, transport, router)
        try:
            response = await connection._send_and_receive(API_VERSIONS, 0, {})
            if response.error_code != ErrorCode.none:
                raise WorldError(
                    f"the broker at {address} refuses ApiVersions, the first request: {response.error_code.name}; "
                    "check that it is a Kafka broker of version 2.4 or newer"
                )
            connection._broker_versions = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
            if security.has_sasl:
                await connection._log_in(security)
        except BaseException:
            connection.close()
            raise
        return connection

    async def ask(self, api: ApiVersionRange, values: Values) -> Any:
        """Send a request with ``values`` in the newest version that both sides support, and wait without a time limit
        for the response. Returns kio's response entity.

        :raises NoValidResponseError: when the connection breaks before the response, or the response is not valid.
        :raises UnsupportedApiError: when the broker and Coterie have no version of the API in common. Nothing is sent.
        """
        broker_oldest, broker_newest = self._broker_versions.get(api.api_key, (0, -1))
        version = min(broker_newest, api.newest_version)
        if version < max(broker_oldest, api.oldest_version):
            broker_versions_text = f"{broker_oldest} to {broker_newest}" if broker_newest >= 0 else "none"
            raise UnsupportedApiError(
                f"the broker at {self._address} supports these versions of {api.name}: {broker_versions_text}; "
                f"Coterie supports {api.oldest_version} to {api.newest_version}: {_supporting_broker_advice(api)}"
            )
        return await self._send_and_receive(api, version, values)

    def close(self) -> None:
        """Close the connection at once; outstanding requests raise NoValidResponseError. Safe to call twice."""
        self._transport.abort()

    async def _log_in(self, security: KafkaSecurity) -> None:
        """Log in with SASL. If the broker limits the lifetime of the login (KIP-368), set the time when this connection
        becomes stale.

        :raises BrokerAccessError: when the broker rejects the mechanism, the user or the password, sends a malformed
            token, or cannot prove its identity.
        :raises WorldError: as :meth:`ask`.
        """
        handshake = await self.ask(SASL_HANDSHAKE, {"mechanism": security.mechanism})
        if handshake.error_code != ErrorCode.none:
            offered_mechanisms = ", ".join(handshake.mechanisms) or "none"
            raise BrokerAccessError(
                f"the broker at {self._address} refuses sasl.mechanism {security.mechanism}"
                f" ({handshake.error_code.name}); the broker offers: {offered_mechanisms}"
            )
        login = SaslLogin(security)
        token: bytes | None = login.first_token()
        sent_token_count = 0
        try:
            while token is not None:
                sent_token_count += 1
                response = await self.ask(SASL_AUTHENTICATE, {"auth_bytes": token})
                if response.error_code != ErrorCode.none:
                    raise AuthenticationFailedError(response.error_message or response.error_code.name)
                token = login.next_token(response.auth_bytes, sent_token_count)
        except (AuthenticationFailedError, WireError) as error:
            raise BrokerAccessError(
                f"the broker at {self._address} rejects the user {security.username}: {str(error).rstrip('.')};"
                " check sasl.username and sasl.password"
            ) from None
        if hasattr(response, "session_lifetime") and (lifetime_ms := to_milliseconds(response.session_lifetime)):
            self._stale_at_s = asyncio.get_running_loop().time() + lifetime_ms / 1000 * _LOGIN_LIFETIME_USED_FRACTION

    async def _send_and_receive(self, api: ApiVersionRange, version: int, values: Values) -> Any:
        """Send a request of this version and wait for the response; return kio's response entity.

        :raises NoValidResponseError: when the connection breaks before the response, or the response is not valid.
        """
        self._correlation_id += 1
        header, frame = encode_request(
            build_request(api.api_key, version, values), correlation_id=self._correlation_id, client_id=self._client_id
        )
        try:
            response_future = self._router.expect_response_or_error(self._correlation_id)
            self._transport.write(with_length(frame))
            match await response_future:
                case bytes(data):
                    return decode_response(data, header)
                case error:
                    raise error
        except OSError as error:
            raise NoValidResponseError(
                f"the connection to the broker at {self._address} broke: {error}{_security_protocol_hint(api)}"
            ) from None
        except WireError as error:
            raise NoValidResponseError(
                f"the response of {self._address} to {api.name} is not that of a Kafka broker: "
                f"{error}{_security_protocol_hint(api)}"
            ) from error


def _supporting_broker_advice(api: ApiVersionRange) -> str:
    """The advice to use a broker that supports the API, for the end of an error message."""
    if api.api_key >= CONNECT_GROUP_HEARTBEAT.api_key:
        return "use a Coterie broker that serves connect groups"
    return "use a broker of Kafka 2.4 or newer"


def _security_protocol_hint(api: ApiVersionRange) -> str:
    """The advice to check security.protocol, for the end of an error message, if the failed request is ApiVersions, the
    first of a connection: a broker that requires TLS closes a connection without TLS, or sends a TLS alert on it. Empty
    for every other API."""
    return "; check that security.protocol is that of the broker's listener" if api is API_VERSIONS else ""


class _ResponseRouter(asyncio.Protocol):
    """Splits the received bytes into frames, one for each response, and completes the future of the request with the
    frame's correlation id."""

    def __init__(self) -> None:
        self.pending_responses: dict[int, asyncio.Future[bytes | OSError | WireError]] = {}
        """The futures of the outstanding requests, by correlation id. The future of a cancelled request stays until its
        response arrives."""
        self._unprocessed_bytes = bytearray()
        self._connection_error: OSError | WireError | None = None
        """The first error of the connection, None without an error. Later requests fail with it."""

    def expect_response_or_error(self, correlation_id: int) -> "asyncio.Future[bytes | OSError | WireError]":
        """A future for the response to the request with this correlation id. Its result is the frame without its
        length. If the connection breaks before, or invalid bytes arrive, its result is the error: to await the
        future returns the error and does not raise it.

        :raises OSError: when the connection has already broken.
        :raises WireError: when the broker has already sent invalid bytes.
        """
        if self._connection_error is not None:
            raise self._connection_error
        response_future = self.pending_responses[correlation_id] = asyncio.get_running_loop().create_future()
        return response_future

    def data_received(self, data: bytes) -> None:
        """asyncio calls this with received bytes. Completes the requests whose response is now complete; invalid bytes
        fail all outstanding and all later requests."""
        if self._connection_error is not None:
            return
        self._unprocessed_bytes += data
        try:
            while (frame := self._next_frame()) is not None:
                self._complete_request(frame)
        except WireError as error:
            self._fail_present_and_later_requests(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio calls this when the connection is closed, by either side: all outstanding and all later requests
        fail."""
        self._fail_present_and_later_requests(exc if isinstance(exc, OSError) else ConnectionError("it was closed"))

    def _next_frame(self) -> bytes | None:
        """Remove the next frame from the received bytes and return it without its length; None if it is not complete.

        :raises WireError: when the frame's length is negative or above ``RESPONSE_SIZE_MAX``.
        """
        if len(self._unprocessed_bytes) < LENGTH_SIZE:
            return None
        size_bytes = int.from_bytes(self._unprocessed_bytes[:LENGTH_SIZE], signed=True)
        if not 0 <= size_bytes <= RESPONSE_SIZE_MAX:
            raise WireError(f"a response announces an invalid length of {size_bytes} bytes")
        end = LENGTH_SIZE + size_bytes
        if len(self._unprocessed_bytes) < end:
            return None
        frame = bytes(self._unprocessed_bytes[LENGTH_SIZE:end])
        del self._unprocessed_bytes[:end]
        return frame

    def _complete_request(self, frame: bytes) -> None:
        """Complete the future of the request to which ``frame`` is the response.

        :raises WireError: when there is no such request.
        """
        correlation_id = Reader(frame).int32()
        response_future = self.pending_responses.pop(correlation_id, None)
        if response_future is None:
            raise WireError(f"a response has the correlation id {correlation_id}, which no outstanding request has")
        if not response_future.cancelled():
            response_future.set_result(frame)

    def _fail_present_and_later_requests(self, error: OSError | WireError) -> None:
        """Complete all outstanding requests with ``error``. Later requests fail with the error of the first call of
        this method."""
        if self._connection_error is None:
            self._connection_error = error
        for response_future in self.pending_responses.values():
            if not response_future.cancelled():
                response_future.set_result(error)
        self.pending_responses.clear()


async def _open_transport(address: Address, security: KafkaSecurity) -> tuple[asyncio.Transport, _ResponseRouter]:
    """Open a TCP connection, with TLS if the settings require it. All connections of this module are opened here.

    :raises OSError: when the broker cannot be reached, or the TLS handshake fails.
    :raises WorldError: when a file with certificates is missing or invalid.
    """
    context = await cached_tls_context(security)
    loop = asyncio.get_running_loop()
    transport, router = await loop.create_connection(_ResponseRouter, address.host, address.port, ssl=context)
    # No bytes are sent while a join is parked: with keep-alive the system notices that the peer cannot be reached.
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return transport, router
