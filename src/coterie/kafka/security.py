"""A worker's security settings, as each of its two Kafka clients understands them."""

import asyncio
import secrets
import ssl
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from coterie.config.security import KafkaSecurity
from coterie.nouns.errors import WorldError
from coterie.wire.scram import ScramClient

PLAINTEXT = KafkaSecurity()


def librdkafka_settings(security: KafkaSecurity) -> Mapping[str, Any]:
    """Into the settings of every handle of librdkafka."""
    settings = {"security.protocol": security.protocol.lower()}
    if security.has_sasl:
        settings |= {
            "sasl.mechanism": security.mechanism,
            "sasl.username": security.username,
            "sasl.password": security.password,
        }
    if security.has_tls:
        files = {
            "ssl.ca.location": security.ca_location,
            "ssl.certificate.location": security.certificate_location,
            "ssl.key.location": security.key_location,
            "ssl.key.password": security.key_password,
        }
        settings |= {key: value for key, value in files.items() if value is not None}
        settings["ssl.endpoint.identification.algorithm"] = "https" if security.checks_host else "none"
    return settings


async def tls_context(security: KafkaSecurity) -> ssl.SSLContext | None:
    """What our own connections are secured with; None: they are not. Files that change later are read by the next
    process, as in librdkafka.

    :raises WorldError: names the file that is missing or no good.
    """
    return await asyncio.to_thread(_tls_context, security) if security.has_tls else None


@lru_cache(maxsize=8)
def _tls_context(security: KafkaSecurity) -> ssl.SSLContext:
    """Made once: the system's authorities take 0.2 s to read, and every reconnect comes out of the lease."""
    try:
        context = ssl.create_default_context(cafile=security.ca_location)
    except OSError as error:
        raise _unusable("CA certificates", str(security.ca_location), error) from error
    context.check_hostname = security.checks_host
    if security.certificate_location is not None:
        try:
            # OpenSSL would ask at the terminal for a password that is not given.
            context.load_cert_chain(
                security.certificate_location, security.key_location, password=lambda: security.key_password or ""
            )
        except OSError as error:
            raise _unusable("certificate or key", security.certificate_location, error) from error
    return context


class Login:
    """The tokens of one log-in, whatever the mechanism."""

    def __init__(self, security: KafkaSecurity) -> None:
        self._security = security
        self._scram: ScramClient | None = None
        if security.mechanism != "PLAIN":
            self._scram = ScramClient(
                security.mechanism,
                user=security.username,
                password=security.password,
                nonce=secrets.token_urlsafe(24),
            )

    def first(self) -> bytes:
        if self._scram is not None:
            return self._scram.first()
        return f"\0{self._security.username}\0{self._security.password}".encode()

    def next(self, answer: bytes, step: int) -> bytes | None:
        """The token after the ``step``-th answer (from 1); None: that was the last.

        :raises WireError: when the answer is malformed.
        :raises DeniedError: when the broker cannot prove that it knows the password.
        """
        if self._scram is None:
            return None
        if step == 1:
            return self._scram.final(answer)
        self._scram.check(answer)
        return None


def _unusable(what: str, path: str, error: OSError) -> WorldError:
    reason = (error.reason if isinstance(error, ssl.SSLError) else error.strerror) or str(error)
    return WorldError(f"the {what} in {path} cannot be used: {reason}")
