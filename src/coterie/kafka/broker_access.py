"""Checks, before any other Kafka client is started, whether the brokers accept this worker: with a wrong password or
security.protocol librdkafka would retry without end."""

import asyncio
import logging
from collections.abc import Sequence

from coterie.config.security import KafkaSecurity
from coterie.kafka.connection import (
    DESCRIBE_GROUPS,
    FIND_COORDINATOR,
    Address,
    BrokerAccessError,
    BrokerConnection,
    NoValidResponseError,
)
from coterie.kafka.coordinator_finder import TRANSACTION_KEY, coordinator_in_response
from coterie.kafka.leader_log import missing_write_permission_message
from coterie.kafka.security import cached_tls_context
from coterie.nouns.errors import WorldError
from coterie.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

_RETRY_DELAY_S = 1.0
"""The pause before a broker that closed the connection is asked again."""


async def check_broker_access_if_reachable(
    bootstrap_servers: Sequence[str],
    *,
    client_id: str,
    security: KafkaSecurity,
    transactional_id: str | None = None,
    timeout_ms: int = 10_000,
) -> None:
    """Log in once, at the first of the servers that responds to a request. A server that cannot be reached, or does not
    respond within ``timeout_ms``, is skipped with a log message. If all are skipped, nothing is checked and no error is
    raised: this worker's later requests wait until a server responds. With ``transactional_id``, also check the right
    to describe this transactional id; the right to write with it is not checked.

    :raises BrokerAccessError: when a broker is not trusted, rejects the user or the transactional id, or for
        ``timeout_ms`` closes each connection without a response, as a broker does if its listener has another
        security.protocol.
    :raises WorldError: when a file with certificates is missing or invalid.
    """
    await cached_tls_context(security)
    for number, server in enumerate(bootstrap_servers, 1):
        try:
            await _check_access_with_retries_or_raise(
                Address.parse(server), client_id, security, transactional_id, timeout_s=timeout_ms / 1000
            )
        except BrokerAccessError:
            raise
        except (WorldError, TimeoutError) as error:
            logger.info(
                "cannot check whether the broker at %s accepts this client: %s; %s",
                server,
                str(error) or "no response in time",
                "the worker starts without this check, and waits for a broker"
                if number == len(bootstrap_servers)
                else "the next of bootstrap.servers is asked",
            )
        else:
            return


async def _check_access_with_retries_or_raise(
    address: Address, client_id: str, security: KafkaSecurity, transactional_id: str | None, *, timeout_s: float
) -> None:
    """Return when the broker has accepted this client. While the broker closes connections without a response, or sends
    responses that are not valid, try again, for at most ``timeout_s``.

    :raises BrokerAccessError: when the broker is not trusted, rejects this client, or sends no valid response for
        ``timeout_s``.
    :raises WorldError: when the broker cannot be reached, or supports no version that Coterie supports.
    :raises TimeoutError: when the broker leaves one connection open without a response for ``timeout_s``.
    """
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    while True:
        try:
            async with asyncio.timeout(timeout_s):
                return await _check_access_once_or_raise(address, client_id, security, transactional_id)
        except NoValidResponseError:
            # The broker may be stopping, or may be starting behind a proxy.
            if asyncio.get_running_loop().time() + _RETRY_DELAY_S > deadline_s:
                raise BrokerAccessError(
                    f"the broker at {address} has sent no valid response for {timeout_s:g} s on any connection that "
                    f"this worker opened with security.protocol={security.protocol}: set security.protocol to that of "
                    "the broker's listener; if a proxy listens there, check whether the broker behind it runs"
                ) from None
        await asyncio.sleep(_RETRY_DELAY_S)


async def _check_access_once_or_raise(
    address: Address, client_id: str, security: KafkaSecurity, transactional_id: str | None
) -> None:
    """Open a connection, send one request that needs a login, and one that needs the right to ``transactional_id`` if
    there is one, and close the connection after the responses.

    :raises BrokerAccessError: when the broker is not trusted, or rejects this client or its transactional id.
    :raises WorldError: when the broker cannot be reached, or sends no valid response (`NoValidResponseError`).
    """
    connection = await BrokerConnection.open(address, client_id=client_id, security=security)
    try:
        # A listener with SASL sends its API versions to any client. Only the response to another request shows whether
        # it requires a login.
        await connection.ask(DESCRIBE_GROUPS, {"groups": (), "include_authorized_operations": False})
        if transactional_id is not None:
            await _check_transactional_id_describable(connection, transactional_id)
    finally:
        connection.close()


async def _check_transactional_id_describable(connection: BrokerConnection, transactional_id: str) -> None:
    """Check that the broker allows this client to describe ``transactional_id``, by a lookup of its coordinator.

    The leader needs Write, which implies Describe. Write itself is not checked here: a worker whose user has only
    Describe starts, and gets the same error message when it becomes the leader. Any other error code is ignored: a
    later request gets it again.

    :raises BrokerAccessError: when the user has neither Describe nor Write for the transactional id.
    :raises WorldError: as :meth:`.BrokerConnection.ask`.
    """
    values = {"key": transactional_id, "key_type": TRANSACTION_KEY, "coordinator_keys": (transactional_id,)}
    if coordinator_in_response(await connection.ask(FIND_COORDINATOR, values)).error_code == (
        ErrorCode.transactional_id_authorization_failed
    ):
        raise BrokerAccessError(missing_write_permission_message(transactional_id))
