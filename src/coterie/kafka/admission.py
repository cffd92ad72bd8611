"""Checks first of all whether the brokers accept this client: with a wrong password or security.protocol librdkafka
would retry without end."""

import asyncio
import logging
from collections.abc import Sequence

from coterie.config.security import KafkaSecurity
from coterie.kafka.connection import DESCRIBE_GROUPS, Address, BrokerConnection, NoAnswerError, NotAdmittedError
from coterie.kafka.security import tls_context
from coterie.nouns.errors import WorldError

logger = logging.getLogger(__name__)

_RETRY_S = 1.0


async def check_admission(
    bootstrap_servers: Sequence[str], *, client_id: str, security: KafkaSecurity, timeout_ms: int = 10_000
) -> None:
    """Log in once, at the first broker that responds. Brokers that cannot be reached are skipped; later requests wait
    for them.

    :raises WorldError: when a broker is not trusted, rejects the user, or closes each connection without a response, as
        a broker does if its listener has another security.protocol; when a file with certificates is invalid.
    """
    await tls_context(security)
    for server in bootstrap_servers:
        try:
            await _check_broker(Address.parse(server), client_id, security, timeout_s=timeout_ms / 1000)
        except NotAdmittedError:
            raise
        except (WorldError, TimeoutError) as error:
            logger.info(
                "cannot check yet whether %s accepts this client: %s", server, str(error) or "no response in time"
            )
        else:
            return


async def _check_broker(server: Address, client_id: str, security: KafkaSecurity, *, timeout_s: float) -> None:
    """Retry until the broker responds or cannot be reached.

    :raises NotAdmittedError: when the broker rejects this client, or closes each connection for ``timeout_s``.
    :raises WorldError, TimeoutError: when the broker cannot be reached.
    """
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    while True:
        try:
            async with asyncio.timeout(timeout_s):
                return await _ask_once(server, client_id, security)
        except NoAnswerError:
            # The broker may be stopping, or may be starting behind a proxy.
            if asyncio.get_running_loop().time() + _RETRY_S > deadline_s:
                raise NotAdmittedError(
                    f"the broker at {server} has closed each connection for {timeout_s:g} s that this worker opened "
                    f"with security.protocol={security.protocol}: set security.protocol to that of the broker's "
                    "listener; if a proxy listens there, check whether the broker behind it runs"
                ) from None
        await asyncio.sleep(_RETRY_S)


async def _ask_once(server: Address, client_id: str, security: KafkaSecurity) -> None:
    connection = await BrokerConnection.open(server, client_id=client_id, security=security)
    try:
        # A listener with SASL sends its API versions to any client. Only the response to another request shows whether
        # it requires a login.
        await connection.ask(DESCRIBE_GROUPS, {"groups": (), "include_authorized_operations": False})
    finally:
        connection.close()
