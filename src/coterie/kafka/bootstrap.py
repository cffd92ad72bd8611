"""Sends requests to the brokers in bootstrap.servers: to all in turn until one responds, or to a given one."""

import asyncio
from collections.abc import Sequence
from typing import Any

from coterie.config.security import KafkaSecurity
from coterie.kafka.connection import Address, ApiVersionRange, BrokerConnection
from coterie.nouns.errors import WorldError
from coterie.wire.kio_entities import Values


class BootstrapClient:
    """Sends requests to the brokers in a client's bootstrap.servers. A server that does not respond to
    :meth:`ask_any_server` moves to the end of the list, so that later calls try the others first. Only
    :meth:`ask_any_server` has a time limit, for each server."""

    def __init__(self, servers: Sequence[str], client_id: str, security: KafkaSecurity) -> None:
        """``servers`` are the entries of bootstrap.servers, each as ``host:port``."""
        self._client_id = client_id
        self._security = security
        self._servers = [Address.parse(server) for server in servers]

    async def ask_any_server(self, api: ApiVersionRange, values: Values, timeout_per_server_s: float) -> Any:
        """Send a request with ``values`` to one server after the other, each on a new connection and for at most
        ``timeout_per_server_s``, until one responds. Returns kio's response entity, which may contain an error code.

        :raises WorldError: when every server fails: it cannot be reached, does not respond in time, rejects this client
            or does not support ``api``. The message contains the reason for each server.
        """
        reasons: list[str] = []
        for server in list(self._servers):
            try:
                async with asyncio.timeout(timeout_per_server_s):
                    return await self.ask_server(server, api, values)
            except TimeoutError:
                reasons.append(f"the broker at {server} did not respond within {timeout_per_server_s:g} s")
            except WorldError as error:
                reasons.append(str(error))
            # Try the other brokers first next time. A concurrent call may have moved this server from its place.
            self._servers.remove(server)
            self._servers.append(server)
        raise WorldError("; ".join(reasons))

    async def ask_server(self, server: Address, api: ApiVersionRange, values: Values) -> Any:
        """Send a request to ``server`` on a new connection, wait for the response without a time limit, and close the
        connection. Returns kio's response entity.

        :raises WorldError: as :meth:`open_connection` and :meth:`.BrokerConnection.ask`.
        """
        connection = await self.open_connection(server)
        try:
            return await connection.ask(api, values)
        finally:
            connection.close()

    async def open_connection(self, server: Address) -> BrokerConnection:
        """Open a connection to the broker at ``server``.

        :raises WorldError: when the broker cannot be reached, sends no valid response, or rejects this client.
        """
        return await BrokerConnection.open(server, client_id=self._client_id, security=self._security)
