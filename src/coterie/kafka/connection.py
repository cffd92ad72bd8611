"""One connection to one broker, for the APIs that no Kafka library offers: secured, versions agreed, one request at a
time."""

import asyncio
import socket
import ssl
from typing import Any, NamedTuple, Self

from coterie.config.security import KafkaSecurity
from coterie.kafka.security import PLAINTEXT, Login, tls_context
from coterie.nouns.errors import WireError, WorldError
from coterie.wire.errors import ErrorCode
from coterie.wire.frames import LENGTH_SIZE, decode_response, encode_request, framed
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


class Api(NamedTuple):
    """An API and the versions of it that are spoken here: all that Kafka has had since 2.4."""

    name: str
    key: int
    oldest: int
    newest: int


API_VERSIONS = Api("ApiVersions", 18, 0, 0)
"""Version 0 alone: every broker answers it, so asking for the versions needs no version to be agreed."""
FIND_COORDINATOR = Api("FindCoordinator", 10, 3, 6)
JOIN_GROUP = Api("JoinGroup", 11, 5, 9)
HEARTBEAT = Api("Heartbeat", 12, 3, 4)
LEAVE_GROUP = Api("LeaveGroup", 13, 3, 5)
SYNC_GROUP = Api("SyncGroup", 14, 3, 5)
SASL_HANDSHAKE = Api("SaslHandshake", 17, 1, 1)
SASL_AUTHENTICATE = Api("SaslAuthenticate", 36, 0, 2)

_LIFETIME_USED = 0.85
"""How much of a session's lifetime (KIP-368) is used before a new connection is made, as in Kafka's clients."""


class RefusedError(WorldError):
    """The broker knows us not, or we not it: asking again changes nothing."""


class Connection:
    """Made by :meth:`open`. After an error, or an answer that was no longer awaited, only good to be closed."""

    def __init__(self, address: Address, client_id: str, streams: tuple[asyncio.StreamReader, asyncio.StreamWriter]):
        self._address = address
        self._client_id = client_id
        self._reader, self._writer = streams
        self._correlation_id = 0
        self._versions: dict[int, tuple[int, int]] = {}
        self._ends_s: float | None = None

    @property
    def is_stale(self) -> bool:
        """Whether the broker would soon take no more requests, as its sessions have an end (KIP-368)."""
        return self._ends_s is not None and asyncio.get_running_loop().time() >= self._ends_s

    @classmethod
    async def open(cls, address: Address, *, client_id: str, security: KafkaSecurity = PLAINTEXT) -> Self:
        """Connect, learn which versions the broker speaks, and log in.

        :raises RefusedError: when the broker is not trusted, or does not let us in.
        :raises WorldError: when it cannot be reached, or does not answer as a broker does.
        """
        try:
            streams = await _connect(address, security)
        except ssl.SSLCertVerificationError as error:
            raise RefusedError(
                f"the broker at {address} shows a certificate not to be trusted: {error.verify_message};"
                " see ssl.ca.location"
            ) from None
        except ssl.SSLError as error:
            raise RefusedError(f"no TLS with the broker at {address}: {error.reason}; see security.protocol") from None
        except OSError as error:
            reason = str(error) or "the connection broke"
            hint = " and speaks TLS" if security.has_tls else ""
            raise WorldError(f"cannot reach the broker at {address}: {reason}; see whether it is up{hint}") from None
        connection = cls(address, client_id, streams)
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

    async def ask(self, api: Api, values: Values) -> Any:
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
        """Drop the connection at once; safe to call twice."""
        self._writer.transport.abort()

    async def _log_in(self, security: KafkaSecurity) -> None:
        """:raises RefusedError: when the broker does not let us in."""
        chosen = await self.ask(SASL_HANDSHAKE, {"mechanism": security.mechanism})
        if chosen.error_code != ErrorCode.none:
            offer = ", ".join(chosen.mechanisms) or "none"
            raise RefusedError(
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
            raise RefusedError(
                f"the broker at {self._address} does not let {security.username} in: {str(error).rstrip('.')};"
                " see sasl.username and sasl.password"
            ) from None
        if hasattr(answer, "session_lifetime") and (lifetime_ms := milliseconds(answer.session_lifetime)):
            self._ends_s = asyncio.get_running_loop().time() + lifetime_ms / 1000 * _LIFETIME_USED

    async def _exchange(self, api: Api, version: int, values: Values) -> Any:
        self._correlation_id += 1
        header, frame = encode_request(
            build_request(api.key, version, values), correlation_id=self._correlation_id, client_id=self._client_id
        )
        try:
            self._writer.write(framed(frame))
            await self._writer.drain()
            size_bytes = int.from_bytes(await self._reader.readexactly(LENGTH_SIZE), signed=True)
            if not 0 <= size_bytes <= RESPONSE_SIZE_MAX:
                raise WireError(f"an answer of {size_bytes} bytes")
            return decode_response(await self._reader.readexactly(size_bytes), header)
        except (OSError, asyncio.IncompleteReadError) as error:
            raise WorldError(f"the connection to the broker at {self._address} broke: {error}{_hint(api)}") from None
        except WireError as error:
            raise WorldError(
                f"{self._address} does not answer {api.name} as a Kafka broker does: {error}{_hint(api)}"
            ) from error


def _hint(api: Api) -> str:
    """A broker that wants TLS closes, or answers with an alert, when it is spoken to without."""
    return "; see whether security.protocol is the broker's" if api is API_VERSIONS else ""


async def _connect(address: Address, security: KafkaSecurity) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """The one place where a connection begins, and so where it is secured."""
    context = await tls_context(security)
    reader, writer = await asyncio.open_connection(address.host, address.port, ssl=context)
    # A parked join has nothing to send for a minute: the system finds out whether the other side is still there.
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return reader, writer
