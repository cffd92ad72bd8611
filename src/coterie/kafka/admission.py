"""Whether the brokers let us in, asked before anything else: librdkafka would try a wrong password on and on."""

import asyncio
import logging
from collections.abc import Sequence

from coterie.config.security import KafkaSecurity
from coterie.kafka.connection import Address, BrokerConnection, NotAdmittedError
from coterie.kafka.security import tls_context
from coterie.nouns.errors import WorldError

logger = logging.getLogger(__name__)


async def check_admission(
    bootstrap_servers: Sequence[str], *, client_id: str, security: KafkaSecurity, timeout_ms: int = 10_000
) -> None:
    """Log in once, at the first broker that answers. Brokers that are away prove nothing; they are waited for later.

    :raises WorldError: when a broker is not trusted, or refuses the user; when a file of certificates is no good.
    """
    await tls_context(security)
    for server in bootstrap_servers:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                connection = await BrokerConnection.open(Address.parse(server), client_id=client_id, security=security)
        except NotAdmittedError:
            raise
        except (WorldError, TimeoutError) as error:
            logger.info("it is not known yet whether %s lets us in: %s", server, str(error) or "no answer in time")
        else:
            connection.close()
            return
