"""Converts a worker's security settings for each of its Kafka clients: librdkafka, Coterie's own, and Java's."""

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
"""No TLS and no login."""


def librdkafka_settings(security: KafkaSecurity) -> Mapping[str, Any]:
    """``security`` as settings for a handle of librdkafka."""
    settings = {"security.protocol": security.protocol.lower()}
    if security.has_sasl:
        settings |= {
            "sasl.mechanism": security.mechanism,
            "sasl.username": security.username,
            "sasl.password": security.password,
        }
    if security.has_tls:
        paths = {
            "ssl.ca.location": security.trusted_ca_location,
            "ssl.certificate.location": security.certificate_location,
            "ssl.key.location": security.key_location,
            "ssl.key.password": security.key_password,
        }
        settings |= {key: value for key, value in paths.items() if value is not None}
        settings["ssl.endpoint.identification.algorithm"] = "https" if security.verifies_hostname else "none"
    return settings


def prepare_java_settings(security: KafkaSecurity, folder: Path) -> dict[str, str]:
    """``security`` as settings for the Java clients in Spark. Java requires the client's certificate and its key in one
    PEM file: two separate files are copied into one new file in ``folder``.

    :raises WorldError: when one of these files cannot be read, or the new file cannot be written.
    """
    settings = {"security.protocol": security.protocol}
    if security.has_sasl:
        login_module = "plain.Plain" if security.mechanism == "PLAIN" else "scram.Scram"
        user, password = _jaas_quoted(security.username), _jaas_quoted(security.password)
        settings |= {
            "sasl.mechanism": security.mechanism,
            "sasl.jaas.config": (
                f"org.apache.kafka.common.security.{login_module}LoginModule required username={user} "
                f"password={password};"
            ),
        }
    if security.has_tls:
        settings["ssl.endpoint.identification.algorithm"] = "https" if security.verifies_hostname else ""
        if security.trusted_ca_location is not None:
            settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": security.trusted_ca_location}
        if security.certificate_location is not None and security.key_location is not None:
            keystore_path = _write_combined_pem_if_needed(security.certificate_location, security.key_location, folder)
            settings |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": keystore_path}
            if security.key_password is not None:
                settings["ssl.key.password"] = security.key_password
    return settings


def _jaas_quoted(value: str) -> str:
    """``value`` as a quoted string of a JAAS configuration."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _write_combined_pem_if_needed(certificate: str, key: str, folder: Path) -> str:
    """The path of a PEM file with the certificate and the key: the given file if both are in it, else a new file in
    ``folder`` that only this user can read.

    :raises WorldError: when a file cannot be read or written.
    """
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


async def cached_tls_context(security: KafkaSecurity) -> ssl.SSLContext | None:
    """The TLS context for Coterie's own connections; None if ``security`` requires no TLS. Cached: a later change of a
    file has an effect only after a restart of this process, as in librdkafka.

    :raises WorldError: when a file is missing or invalid; the message contains its path.
    """
    return await asyncio.to_thread(_tls_context, security) if security.has_tls else None


@lru_cache(maxsize=8)
def _tls_context(security: KafkaSecurity) -> ssl.SSLContext:
    """The TLS context of ``security``. Cached, because reading the system's authorities takes 0.2 s. A reconnect must
    not wait so long: meanwhile this worker receives no heartbeat response, and after some time without one it stops its
    tasks.

    :raises WorldError: when a file is missing or invalid; the message contains its path.
    """
    try:
        context = ssl.create_default_context(cafile=security.trusted_ca_location)
    except OSError as error:
        raise _make_unusable_file_error("CA certificates", str(security.trusted_ca_location), error) from error
    context.check_hostname = security.verifies_hostname
    if security.certificate_location is not None:
        try:
            # Without a password callback OpenSSL would prompt for the password at the terminal.
            context.load_cert_chain(
                security.certificate_location, security.key_location, password=lambda: security.key_password or ""
            )
        except OSError as error:
            raise _make_unusable_file_error("certificate or key", security.certificate_location, error) from error
    return context


class SaslLogin:
    """The client's side of one SASL login: makes the tokens to send, for any mechanism."""

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

    def first_token(self) -> bytes:
        """The first token to send."""
        if self._scram is not None:
            return self._scram.first_message()
        return f"\0{self._security.username}\0{self._security.password}".encode()

    def next_token(self, broker_token: bytes, sent_token_count: int) -> bytes | None:
        """The token to send after ``broker_token``, the broker's response to token number ``sent_token_count`` (the
        first is 1); None if the login is complete.

        :raises WireError: when the response is malformed.
        :raises AuthenticationFailedError: when the broker rejects the login, or cannot prove its identity.
        """
        if self._scram is None:
            return None
        if sent_token_count == 1:
            return self._scram.final_message(broker_token)
        self._scram.verify_server_final(broker_token)
        return None


def _make_unusable_file_error(file_kind: str, path: str, error: OSError) -> WorldError:
    """The error for a file of this kind that is missing or invalid."""
    reason = (error.reason if isinstance(error, ssl.SSLError) else error.strerror) or str(error)
    return WorldError(f"the {file_kind} in {path} cannot be used: {reason}")
