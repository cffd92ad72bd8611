"""Principals: the authenticated names of clients."""

from dataclasses import dataclass
from typing import Any

_SHORT_NAMES = {
    "commonName": "CN", "organizationalUnitName": "OU", "organizationName": "O", "localityName": "L",
    "stateOrProvinceName": "ST", "countryName": "C", "streetAddress": "STREET", "domainComponent": "DC",
    "userId": "UID",
}  # fmt: skip
"""RFC 2253's short names of the attribute names that OpenSSL writes in full."""


@dataclass(frozen=True, slots=True)
class Principal:
    """The name under which a client is authenticated, written ``User:name`` as in Kafka."""

    name: str
    kind: str = "User"
    """The type of the principal; always "User"."""

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS = Principal("ANONYMOUS")
"""Kafka's principal of a client without authentication."""


def principal_of_certificate(certificate: Any) -> Principal:
    """The principal of a client certificate: its distinguished name in Kafka's format (RFC 2253: the last part first).
    Without a certificate it is :data:`ANONYMOUS`.

    ``certificate`` is the result of :meth:`ssl.SSLSocket.getpeercert`, empty or None without a client certificate.
    """
    if not certificate:
        return ANONYMOUS
    parts = [
        "+".join(f"{_SHORT_NAMES.get(key, key)}={_escape_value(value)}" for key, value in part)
        for part in reversed(certificate["subject"])
    ]
    return Principal(",".join(parts))


def _escape_value(value: str) -> str:
    """A part of a distinguished name with RFC 2253's escapes."""
    escaped = "".join(f"\\{letter}" if letter in ',+"\\<>;' else letter for letter in value)
    return f"\\{escaped}" if escaped.startswith(("#", " ")) else escaped
