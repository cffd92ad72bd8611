"""Whether the brokers let us in, asked before anything else: librdkafka would try a wrong password, or a wrong
security.protocol, on and on."""

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
    """Log in once, at the first broker that answers. Brokers that are away prove nothing; they are waited for later.

    :raises WorldError: when a broker is not trusted, refuses the user, or closes each connection instead of answering,
        as a broker does whose listener has another security.protocol; when a file of certificates is no good.
    """
    await tls_context(security)
    for server in bootstrap_servers:
        try:
            await _check_broker(Address.parse(server), client_id, security, timeout_s=timeout_ms / 1000)
        except NotAdmittedError:
            raise
        except (WorldError, TimeoutError) as error:
            logger.info("it is not known yet whether %s lets us in: %s", server, str(error) or "no answer in time")
        else:
            return


async def _check_broker(server: Address, client_id: str, security: KafkaSecurity, *, timeout_s: float) -> None:
    """Ask until the broker answers, or refuses connections as one does that is away.

    :raises NotAdmittedError: when it does not let us in, or closes each connection for ``timeout_s``.
    :raises WorldError, TimeoutError: when it is away.
    """
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    while True:
        try:
            async with asyncio.timeout(timeout_s):
                return await _ask_once(server, client_id, security)
        except NoAnswerError:
            # It may be a broker that is just ending, or a proxy before one that starts.
            if asyncio.get_running_loop().time() + _RETRY_S > deadline_s:
                raise NotAdmittedError(
                    f"the broker at {server} has closed each connection for {timeout_s:g} s that this worker opened "
                    f"with security.protocol={security.protocol}: set security.protocol to that of the broker's "
                    "listener; if a proxy listens there, see whether the broker is up"
                ) from None
        await asyncio.sleep(_RETRY_S)


async def _ask_once(server: Address, client_id: str, security: KafkaSecurity) -> None:
    connection = await BrokerConnection.open(server, client_id=client_id, security=security)
    try:
        # A listener with SASL tells its versions to anyone: only another request shows that it wants a log-in.
        await connection.ask(DESCRIBE_GROUPS, {"groups": (), "include_authorized_operations": False})
    finally:
        connection.close()
