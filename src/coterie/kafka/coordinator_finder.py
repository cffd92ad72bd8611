"""Finds the coordinator of a group, of either group protocol, among the brokers."""

import asyncio
from collections.abc import Sequence

from coterie.config.security import KafkaSecurity
from coterie.kafka.connection import FIND_COORDINATOR, Address, BrokerConnection
from coterie.nouns.errors import WorldError
from coterie.nouns.ids import GroupId
from coterie.wire.errors import ErrorCode

_GROUP_KEY = 0
"""FindCoordinator's key type for groups."""
MOVED = (ErrorCode.not_coordinator, ErrorCode.coordinator_not_available)
"""The error codes of a broker that is no longer the coordinator: the next request searches for the coordinator."""


class CoordinatorFinder:
    """Finds the coordinator of a group by asking the bootstrap servers."""

    def __init__(self, bootstrap_servers: Sequence[str], client_id: str, security: KafkaSecurity) -> None:
        self._client_id = client_id
        self._security = security
        self._servers = [Address.parse(server) for server in bootstrap_servers]

    async def find(self, group_id: GroupId, timeout_s: float) -> Address | ErrorCode:
        """The address of the group's coordinator; or the error code of FindCoordinator when there is no coordinator
        yet, or this client may not use the group. Asks one server after the other, each for ``timeout_s``, until one
        responds.

        :raises WorldError: when no server responds; the message contains the reason for each server.
        """
        reasons: list[str] = []
        for server in list(self._servers):
            try:
                async with asyncio.timeout(timeout_s):
                    return await self._ask(server, group_id)
            except TimeoutError:
                reasons.append(f"the broker at {server} did not respond within {timeout_s:g} s")
            except WorldError as error:
                reasons.append(str(error))
            # Try the other brokers first next time.
            self._servers.append(self._servers.pop(0))
        raise WorldError("; ".join(reasons))

    async def open(self, server: Address) -> BrokerConnection:
        """Open a connection to the broker at ``server``.

        :raises WorldError: when the broker cannot be reached, sends no valid response, or rejects this client.
        """
        return await BrokerConnection.open(server, client_id=self._client_id, security=self._security)

    async def _ask(self, server: Address, group_id: GroupId) -> Address | ErrorCode:
        """Ask one server for the coordinator, on a separate connection.

        :raises WorldError: as :meth:`open`, or when the connection breaks.
        """
        connection = await self.open(server)
        try:
            # Up to version 3 request and response have fields for one key; from version 4 on they have a list of keys.
            values = {"key": group_id, "key_type": _GROUP_KEY, "coordinator_keys": (group_id,)}
            answer = await connection.ask(FIND_COORDINATOR, values)
        finally:
            connection.close()
        found = answer.coordinators[0] if getattr(answer, "coordinators", ()) else answer
        error: ErrorCode = found.error_code
        return Address(found.host, found.port) if error == ErrorCode.none else error
