"""TLS for the listener: certificate and key from files; client certificates are required if a CA for them is
configured.
"""

import ssl
from pathlib import Path

from coterie.broker.settings import SecuritySettings
from coterie.nouns.errors import WorldError


def server_context(security: SecuritySettings) -> ssl.SSLContext:
    """Read the files and create the TLS context for new connections.

    :raises WorldError: a file is missing or invalid, and the message names it; or the certificate or the key is not
        set.
    """
    certificate, key = security.certificate_path, security.key_path
    if certificate is None or key is None:
        raise WorldError("TLS needs a certificate and its key: set both --tls-certificate and --tls-key")
    for path in (certificate, key):
        try:
            path.read_bytes()
        except OSError as error:
            raise _make_unusable_file_error("certificate or key", path, error) from error
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        # Without it, OpenSSL would prompt on the terminal for the password of an encrypted key.
        context.load_cert_chain(certificate, key, password=lambda: b"")
    except OSError as error:  # SSLError is an OSError; the file may also have been deleted since.
        raise WorldError(
            f"the certificate {certificate} and the key {key} cannot be used: {_error_reason(error)};"
            " both must be PEM, belong together, and the key must not be encrypted"
        ) from error
    if security.client_ca_path is not None:
        try:
            context.load_verify_locations(cafile=security.client_ca_path)
        except OSError as error:
            raise _make_unusable_file_error("clients' CA certificates", security.client_ca_path, error) from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _make_unusable_file_error(what: str, path: Path, error: OSError) -> WorldError:
    """Build the error for the file ``path``, which contains ``what``."""
    return WorldError(f"the {what} in {path} cannot be used: {_error_reason(error)}")


def _error_reason(error: OSError) -> str:
    """The reason in ``error``, without its numbers and paths where possible."""
    return (error.reason if isinstance(error, ssl.SSLError) else error.strerror) or str(error)
