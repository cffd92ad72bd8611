"""Counts the members of a classic group."""

import asyncio

from coterie.kafka.connection import DESCRIBE_GROUPS, Address, BrokerConnection
from coterie.nouns.errors import WorldError
from coterie.nouns.ids import GroupId


async def count_members(coordinator: Address, group_id: GroupId, *, client_id: str, timeout_ms: int = 5_000) -> int:
    """The number of members of the classic group ``group_id``; 0 for a group that does not exist. ``coordinator`` must
    be the group's coordinator, and must accept connections without TLS and login.

    :raises WorldError: when the broker cannot be reached, sends no valid response, or does not respond within
        ``timeout_ms``.
    """
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            connection = await BrokerConnection.open(coordinator, client_id=client_id)
            try:
                response = await connection.ask(
                    DESCRIBE_GROUPS, {"groups": (group_id,), "include_authorized_operations": False}
                )
            finally:
                connection.close()
    except TimeoutError:
        raise WorldError(f"the broker at {coordinator} did not respond within {timeout_ms / 1000:g} s") from None
    return sum(len(group.members) for group in response.groups)
