"""A worker's security settings in the form of each of its Kafka clients: librdkafka, Coterie's own, and Java's."""

import asyncio
import os
import secrets
import ssl
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from coterie.config.security import KafkaSecurity
from coterie.nouns.errors import WorldError
from coterie.wire.scram import ScramClient

PLAINTEXT = KafkaSecurity()


def librdkafka_settings(security: KafkaSecurity) -> Mapping[str, Any]:
    """The security settings for every handle of librdkafka."""
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


def java_settings(security: KafkaSecurity, folder: Path) -> dict[str, str]:
    """The security settings for the Java clients in Spark. Java requires certificate and key in one PEM file; two
    separate files are joined into one in ``folder``.

    :raises WorldError: when a file cannot be read or written; the message names the file.
    """
    settings = {"security.protocol": security.protocol}
    if security.has_sasl:
        package = "plain.Plain" if security.mechanism == "PLAIN" else "scram.Scram"
        user, password = _jaas_quoted(security.username), _jaas_quoted(security.password)
        settings |= {
            "sasl.mechanism": security.mechanism,
            "sasl.jaas.config": (
                f"org.apache.kafka.common.security.{package}LoginModule required username={user} password={password};"
            ),
        }
    if security.has_tls:
        settings["ssl.endpoint.identification.algorithm"] = "https" if security.checks_host else ""
        if security.ca_location is not None:
            settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": security.ca_location}
        if security.certificate_location is not None and security.key_location is not None:
            both = _in_one_file(security.certificate_location, security.key_location, folder)
            settings |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": both}
            if security.key_password is not None:
                settings["ssl.key.password"] = security.key_password
    return settings


def _jaas_quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _in_one_file(certificate: str, key: str, folder: Path) -> str:
    if certificate == key:
        return certificate
    try:
        text = Path(key).read_text() + Path(certificate).read_text()
        path = folder / "kafka-client.pem"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
    except OSError as error:
        raise WorldError(f"the certificate in {certificate} or the key in {key} cannot be used: {error}") from error
    return str(path)


async def tls_context(security: KafkaSecurity) -> ssl.SSLContext | None:
    """The TLS context of Coterie's own connections; None without TLS. Later changes of the files take effect in the
    next process, as in librdkafka.

    :raises WorldError: when a file is missing or invalid; the message names the file.
    """
    return await asyncio.to_thread(_tls_context, security) if security.has_tls else None


@lru_cache(maxsize=8)
def _tls_context(security: KafkaSecurity) -> ssl.SSLContext:
    """Created once: reading the system's authorities takes 0.2 s, and the lease continues to run during a reconnect."""
    try:
        context = ssl.create_default_context(cafile=security.ca_location)
    except OSError as error:
        raise _unusable("CA certificates", str(security.ca_location), error) from error
    context.check_hostname = security.checks_host
    if security.certificate_location is not None:
        try:
            # Without a password callback OpenSSL would prompt for the password at the terminal.
            context.load_cert_chain(
                security.certificate_location, security.key_location, password=lambda: security.key_password or ""
            )
        except OSError as error:
            raise _unusable("certificate or key", security.certificate_location, error) from error
    return context


class Login:
    """The SASL tokens of one login, for any mechanism."""

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
        """The token to send after the ``step``-th response (from 1); None: the login is complete.

        :raises WireError: when the response is malformed.
        :raises DeniedError: when the broker cannot prove its identity.
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
