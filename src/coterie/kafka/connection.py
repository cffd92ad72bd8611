"""One connection to one broker, for the APIs that no Kafka library offers: versions agreed, one request at a time."""

import asyncio
import socket
from typing import Any, NamedTuple, Self

from coterie.nouns.errors import WireError, WorldError
from coterie.wire.errors import ErrorCode
from coterie.wire.frames import LENGTH_SIZE, decode_response, encode_request, framed
from coterie.wire.shapes import Values, build_request

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


class Connection:
    """Made by :meth:`open`. After an error, or an answer that was no longer awaited, only good to be closed."""

    def __init__(self, address: Address, client_id: str, streams: tuple[asyncio.StreamReader, asyncio.StreamWriter]):
        self._address = address
        self._client_id = client_id
        self._reader, self._writer = streams
        self._correlation_id = 0
        self._versions: dict[int, tuple[int, int]] = {}

    @classmethod
    async def open(cls, address: Address, *, client_id: str) -> Self:
        """Connect and learn which versions the broker speaks.

        :raises WorldError: when it cannot be reached, or does not answer as a broker does.
        """
        try:
            streams = await _connect(address)
        except OSError as error:
            raise WorldError(f"cannot reach the broker at {address}: {error}; see whether it is up") from None
        connection = cls(address, client_id, streams)
        try:
            offered = await connection._exchange(API_VERSIONS, 0, {})
            if offered.error_code != ErrorCode.none:
                raise WorldError(f"the broker at {address} refuses to say its versions: {offered.error_code.name}")
            connection._versions = {one.api_key: (one.min_version, one.max_version) for one in offered.api_keys}
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
            raise WorldError(f"the connection to the broker at {self._address} broke: {error}") from None
        except WireError as error:
            raise WorldError(f"{self._address} does not answer {api.name} as a Kafka broker does: {error}") from error


async def _connect(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """The one place where a connection begins, and so where it is secured."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    # A parked join has nothing to send for a minute: the system finds out whether the other side is still there.
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return reader, writer
