"""Finds the coordinator of a group, of either group protocol, among the brokers."""

from collections.abc import Sequence
from typing import Any

from coterie.config.security import KafkaSecurity
from coterie.kafka.bootstrap import BootstrapClient
from coterie.kafka.connection import FIND_COORDINATOR, Address, BrokerConnection
from coterie.nouns.ids import GroupId
from coterie.wire.errors import ErrorCode

GROUP_KEY, TRANSACTION_KEY = 0, 1
"""FindCoordinator's key types for groups and for transactional ids."""
MOVED = (ErrorCode.not_coordinator, ErrorCode.coordinator_not_available)
"""The error codes of a broker that is no longer the coordinator: the next request searches for the coordinator."""


class CoordinatorFinder:
    """Finds the coordinator of a group by asking the bootstrap servers."""

    def __init__(self, bootstrap_servers: Sequence[str], client_id: str, security: KafkaSecurity) -> None:
        self._servers = BootstrapClient(bootstrap_servers, client_id, security)

    async def find(self, group_id: GroupId, timeout_per_server_s: float) -> Address | ErrorCode:
        """The address of the group's coordinator; or the error code of FindCoordinator when there is no coordinator
        yet, or this client may not use the group. Each call asks one server after the other, each for at most
        ``timeout_per_server_s``, until one responds; no address is cached.

        :raises WorldError: when no server responds; the message contains the reason for each server.
        """
        # Up to version 3 request and response have fields for one key; from version 4 on they have a list of keys.
        values = {"key": group_id, "key_type": GROUP_KEY, "coordinator_keys": (group_id,)}
        answer = await self._servers.ask_any_server(FIND_COORDINATOR, values, timeout_per_server_s)
        found = coordinator_in_response(answer)
        error: ErrorCode = found.error_code
        return Address(found.host, found.port) if error == ErrorCode.none else error

    async def open_connection(self, server: Address) -> BrokerConnection:
        """Open a connection to the broker at ``server``.

        :raises WorldError: when the broker cannot be reached, sends no valid response, or rejects this client.
        """
        return await self._servers.open_connection(server)


def coordinator_in_response(answer: Any) -> Any:
    """The struct with the error code, host and port of the requested coordinator: the response to FindCoordinator
    itself up to version 3, from version 4 on the first entry of its list."""
    return answer.coordinators[0] if getattr(answer, "coordinators", ()) else answer
