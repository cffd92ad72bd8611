"""One connection to one broker, for the APIs that no Kafka library offers: secured, versions agreed, pipelined.

A broker answers the requests of one connection in their order, so a request that the broker parks holds up all that
were sent after it on the same connection. Answers are matched by correlation id: a request whose caller was cancelled
stays outstanding, and its answer is dropped.
"""

import asyncio
import socket
import ssl
from typing import Any, NamedTuple, Self

from coterie.config.security import KafkaSecurity
from coterie.kafka.security import PLAINTEXT, Login, tls_context
from coterie.nouns.errors import WireError, WorldError
from coterie.wire.errors import ErrorCode
from coterie.wire.frames import LENGTH_SIZE, decode_response, encode_request, framed
from coterie.wire.primitives import Reader
from coterie.wire.scram import DeniedError
from coterie.wire.shapes import Values, build_request, milliseconds

RESPONSE_SIZE_MAX = 64 * 1024 * 1024
"""No group's metadata comes near; whoever announces more is no broker."""


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, server: str) -> Self:
        host, _, port = server.rpartition(":")
        return cls(host.strip("[]"), int(port))


class ApiRange(NamedTuple):
    """An API and the versions of it that are spoken here: all that Kafka has had since 2.4."""

    name: str
    key: int
    oldest: int
    newest: int


API_VERSIONS = ApiRange("ApiVersions", 18, 0, 0)
"""Version 0 alone: every broker answers it, so asking for the versions needs no version to be agreed."""
FIND_COORDINATOR = ApiRange("FindCoordinator", 10, 3, 6)
JOIN_GROUP = ApiRange("JoinGroup", 11, 5, 9)
HEARTBEAT = ApiRange("Heartbeat", 12, 3, 4)
LEAVE_GROUP = ApiRange("LeaveGroup", 13, 3, 5)
SYNC_GROUP = ApiRange("SyncGroup", 14, 3, 5)
DESCRIBE_GROUPS = ApiRange("DescribeGroups", 15, 5, 5)
SASL_HANDSHAKE = ApiRange("SaslHandshake", 17, 1, 1)
SASL_AUTHENTICATE = ApiRange("SaslAuthenticate", 36, 0, 2)

_LIFETIME_USED = 0.85
"""How much of a session's lifetime (KIP-368) is used before a new connection is made, as in Kafka's clients."""


class NotAdmittedError(WorldError):
    """The broker does not let this client in, or this client does not trust it: asking again changes nothing."""


class NoAnswerError(WorldError):
    """The broker closed the connection instead of answering, or sent what is no answer of Kafka's protocol."""


class BrokerConnection:
    """Made by :meth:`open`. After a `WorldError` it must be closed."""

    def __init__(self, address: Address, client_id: str, transport: asyncio.Transport, answers: "_Answers") -> None:
        self._address = address
        self._client_id = client_id
        self._transport = transport
        self._answers = answers
        self._correlation_id = 0
        self._versions: dict[int, tuple[int, int]] = {}
        self._ends_s: float | None = None

    @property
    def is_stale(self) -> bool:
        """Whether the broker would soon take no more requests, as its sessions have an end (KIP-368)."""
        return self._ends_s is not None and asyncio.get_running_loop().time() >= self._ends_s

    @property
    def is_busy(self) -> bool:
        """Whether a request is not answered yet, cancelled ones included."""
        return bool(self._answers.awaited)

    @classmethod
    async def open(cls, address: Address, *, client_id: str, security: KafkaSecurity = PLAINTEXT) -> Self:
        """Connect, learn which versions the broker speaks, and log in.

        :raises NotAdmittedError: when the broker is not trusted, or does not let us in.
        :raises WorldError: when it cannot be reached, or does not answer as a broker does.
        """
        try:
            transport, answers = await _connect(address, security)
        except ssl.SSLCertVerificationError as error:
            raise NotAdmittedError(
                f"the broker at {address} shows a certificate not to be trusted: {error.verify_message};"
                " see ssl.ca.location"
            ) from None
        except ssl.SSLError as error:
            raise NotAdmittedError(
                f"no TLS with the broker at {address}: {error.reason}; see security.protocol"
            ) from None
        except OSError as error:
            reason = str(error) or "the connection broke"
            hint = " and speaks TLS" if security.has_tls else ""
            raise WorldError(f"cannot reach the broker at {address}: {reason}; see whether it is up{hint}") from None
        connection = cls(address, client_id, transport, answers)
        try:
            offered = await connection._exchange(API_VERSIONS, 0, {})
            if offered.error_code != ErrorCode.none:
                raise WorldError(f"the broker at {address} refuses to say its versions: {offered.error_code.name}")
            connection._versions = {one.api_key: (one.min_version, one.max_version) for one in offered.api_keys}
            if security.has_sasl:
                await connection._log_in(security)
        except BaseException:
            connection.close()
            raise
        return connection

    async def ask(self, api: ApiRange, values: Values) -> Any:
        """Kio's response entity to the request of ``values``, in the newest version that both sides speak.

        :raises WorldError: when the connection broke, or the two have no version in common.
        """
        oldest, newest = self._versions.get(api.key, (0, -1))
        version = min(newest, api.newest)
        if version < max(oldest, api.oldest):
            offer = f"{oldest} to {newest}" if newest >= 0 else "none"
            raise WorldError(
                f"the broker at {self._address} speaks versions of {api.name}: {offer}; "
                f"{api.oldest} to {api.newest} would do: use a broker of Kafka 2.4 or newer"
            )
        return await self._exchange(api, version, values)

    def close(self) -> None:
        """Drop the connection at once; outstanding requests fail. Safe to call twice."""
        self._transport.abort()

    async def _log_in(self, security: KafkaSecurity) -> None:
        """:raises NotAdmittedError: when the broker does not let us in."""
        chosen = await self.ask(SASL_HANDSHAKE, {"mechanism": security.mechanism})
        if chosen.error_code != ErrorCode.none:
            offer = ", ".join(chosen.mechanisms) or "none"
            raise NotAdmittedError(
                f"the broker at {self._address} refuses sasl.mechanism {security.mechanism}"
                f" ({chosen.error_code.name}); it offers: {offer}"
            )
        login = Login(security)
        token: bytes | None = login.first()
        step = 0
        try:
            while token is not None:
                step += 1
                answer = await self.ask(SASL_AUTHENTICATE, {"auth_bytes": token})
                if answer.error_code != ErrorCode.none:
                    raise DeniedError(answer.error_message or answer.error_code.name)
                token = login.next(answer.auth_bytes, step)
        except (DeniedError, WireError) as error:
            raise NotAdmittedError(
                f"the broker at {self._address} does not let {security.username} in: {str(error).rstrip('.')};"
                " see sasl.username and sasl.password"
            ) from None
        if hasattr(answer, "session_lifetime") and (lifetime_ms := milliseconds(answer.session_lifetime)):
            self._ends_s = asyncio.get_running_loop().time() + lifetime_ms / 1000 * _LIFETIME_USED

    async def _exchange(self, api: ApiRange, version: int, values: Values) -> Any:
        self._correlation_id += 1
        header, frame = encode_request(
            build_request(api.key, version, values), correlation_id=self._correlation_id, client_id=self._client_id
        )
        try:
            answer = self._answers.of(self._correlation_id)
            self._transport.write(framed(frame))
            match await answer:
                case bytes(data):
                    return decode_response(data, header)
                case error:
                    raise error
        except OSError as error:
            raise NoAnswerError(f"the connection to the broker at {self._address} broke: {error}{_hint(api)}") from None
        except WireError as error:
            raise NoAnswerError(
                f"{self._address} does not answer {api.name} as a Kafka broker does: {error}{_hint(api)}"
            ) from error


def _hint(api: ApiRange) -> str:
    """A broker that wants TLS closes, or answers with an alert, when it is spoken to without."""
    return "; see whether security.protocol is the broker's" if api is API_VERSIONS else ""


class _Answers(asyncio.Protocol):
    """Cuts what arrives into frames and gives each to the request of its correlation id."""

    def __init__(self) -> None:
        self.awaited: dict[int, asyncio.Future[bytes | OSError | WireError]] = {}
        """By correlation id. A cancelled future stays until its answer arrives."""
        self._received = bytearray()
        self._error: OSError | WireError | None = None

    def of(self, correlation_id: int) -> "asyncio.Future[bytes | OSError | WireError]":
        """The frame that answers this request, or why none will.

        :raises OSError, WireError: when the connection broke before.
        """
        if self._error is not None:
            raise self._error
        answer = self.awaited[correlation_id] = asyncio.get_running_loop().create_future()
        return answer

    def data_received(self, data: bytes) -> None:
        if self._error is not None:
            return
        self._received += data
        try:
            while (frame := self._next_frame()) is not None:
                self._take(frame)
        except WireError as error:
            self._break(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._break(exc if isinstance(exc, OSError) else ConnectionError("it was closed"))

    def _next_frame(self) -> bytes | None:
        if len(self._received) < LENGTH_SIZE:
            return None
        size_bytes = int.from_bytes(self._received[:LENGTH_SIZE], signed=True)
        if not 0 <= size_bytes <= RESPONSE_SIZE_MAX:
            raise WireError(f"an answer of {size_bytes} bytes")
        end = LENGTH_SIZE + size_bytes
        if len(self._received) < end:
            return None
        frame = bytes(self._received[LENGTH_SIZE:end])
        del self._received[:end]
        return frame

    def _take(self, frame: bytes) -> None:
        correlation_id = Reader(frame).int32()
        answer = self.awaited.pop(correlation_id, None)
        if answer is None:
            raise WireError(f"an answer to {correlation_id}, which was not asked")
        if not answer.cancelled():
            answer.set_result(frame)

    def _break(self, error: OSError | WireError) -> None:
        """All outstanding requests fail, and all that follow."""
        if self._error is None:
            self._error = error
        for answer in self.awaited.values():
            if not answer.cancelled():
                answer.set_result(error)
        self.awaited.clear()


async def _connect(address: Address, security: KafkaSecurity) -> tuple[asyncio.Transport, _Answers]:
    """The one place where a connection begins, and so where it is secured."""
    context = await tls_context(security)
    loop = asyncio.get_running_loop()
    transport, answers = await loop.create_connection(_Answers, address.host, address.port, ssl=context)
    # No byte travels while a join is parked: keep-alive lets the system notice that the peer is gone.
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return transport, answers
