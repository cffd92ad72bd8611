"""TLS contexts of the servers (the embedded broker, a worker's REST API) and of the clients of the REST API."""

import functools
import ssl
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self

from coterie.config.reloaded_files import ReloadedFiles
from coterie.config.security import TlsFiles
from coterie.nouns.errors import WorldError


def server_context(
    certificate: Path,
    key: Path,
    *,
    key_password: str = "",
    client_ca: Path | None = None,
    requires_client_certificate: bool = True,
) -> ssl.SSLContext:
    """Read the PEM files and create the TLS context for new connections of a server.

    ``certificate``: the server's certificate, followed by its intermediate CA certificates. ``key``: the key of that
    certificate, possibly the same file. ``client_ca``: CA certificates; a client's certificate must be issued by one of
    these CAs. None: clients are not asked for certificates. With ``client_ca``, a client without a certificate is
    refused if ``requires_client_certificate`` is True.

    :raises WorldError: when a file is missing or invalid; the message names the file.
    """
    for path in (certificate, key):
        try:
            path.read_bytes()
        except OSError as error:
            raise _make_unusable_file_error("certificate or key", path, error) from error
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        # Without a password function, OpenSSL would prompt on the terminal for the password of an encrypted key.
        context.load_cert_chain(certificate, key, password=lambda: key_password)
    except OSError as error:  # SSLError is an OSError; the file may also have been deleted since.
        password_hint = "its password must be right" if key_password else "the key must not be encrypted"
        raise WorldError(
            f"the certificate {certificate} and the key {key} cannot be used: {_error_reason(error)};"
            f" both must be PEM, belong together, and {password_hint}"
        ) from error
    if client_ca is not None:
        try:
            context.load_verify_locations(cafile=client_ca)
        except OSError as error:
            raise _make_unusable_file_error("clients' CA certificates", client_ca, error) from error
        context.verify_mode = ssl.CERT_REQUIRED if requires_client_certificate else ssl.CERT_OPTIONAL
    return context


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """The TLS context for requests to servers: the trusted certificates, and this client's own, if there is one.

    :raises WorldError: when a file is missing or invalid; the message names the file.
    """
    try:
        context = ssl.create_default_context(cafile=files.ca_location)
    except OSError as error:
        raise _make_unusable_file_error("trusted CA certificates", Path(files.ca_location or ""), error) from error
    if files.certificate_location is not None:
        try:
            password = files.key_password or ""
            context.load_cert_chain(files.certificate_location, files.key_location, password=lambda: password)
        except OSError as error:
            path = Path(files.certificate_location)
            raise _make_unusable_file_error("client certificate or its key", path, error) from error
    return context


def reloaded_client_context(files: TlsFiles) -> ReloadedFiles[ssl.SSLContext]:
    """The context of :func:`client_context` for a worker's requests to other workers. While
    :meth:`ReloadedFiles.run` runs, the context is created again when one of ``files`` changes.

    :raises WorldError: when a file is missing or invalid; the message names the file.
    """
    paths = [Path(path) for path in (files.ca_location, files.certificate_location, files.key_location) if path]
    return ReloadedFiles("certificates for requests to other workers", paths, lambda: client_context(files))


class DeferredClientContext(ssl.SSLContext):
    """A TLS context for a client that keeps its context for its whole life, such as an HTTP client: each new connection
    with TLS uses the context that ``get_context`` returns then. Without TLS ``get_context`` is not called: to read the
    certificates that the system trusts takes 50 ms of CPU."""

    def __new__(cls, get_context: Callable[[], ssl.SSLContext]) -> Self:
        return super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)

    def __init__(self, get_context: Callable[[], ssl.SSLContext]) -> None:
        self._get_context = get_context

    @classmethod
    def trusting_system_certificates(cls) -> Self:
        """A context that trusts the certificates that the system trusts, and reads them for the first connection."""
        return cls(functools.cache(ssl.create_default_context))

    def set_alpn_protocols(self, alpn_protocols: Iterable[str]) -> None:
        self._get_context().set_alpn_protocols(alpn_protocols)

    def wrap_socket(self, *arguments: Any, **options: Any) -> ssl.SSLSocket:
        """Begin a connection of a blocking client."""
        return self._get_context().wrap_socket(*arguments, **options)

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """Begin a connection of an asynchronous client. asyncio and httpx call only this method for it."""
        return self._get_context().wrap_bio(incoming, outgoing, server_side, server_hostname, session)


def _make_unusable_file_error(what: str, path: Path, error: OSError) -> WorldError:
    """Build the error for the file ``path``, which contains ``what``."""
    return WorldError(f"the {what} in {path} cannot be used: {_error_reason(error)}")


def _error_reason(error: OSError) -> str:
    """The reason in ``error`` as text, without error numbers and paths where possible."""
    return (error.reason if isinstance(error, ssl.SSLError) else error.strerror) or str(error)
