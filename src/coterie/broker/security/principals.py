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
    """A principal, written ``User:name`` as in Kafka."""

    name: str
    kind: str = "User"

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS = Principal("ANONYMOUS")
"""Kafka's principal of a client without authentication."""


def of_certificate(certificate: Any) -> Principal:
    """The principal of a client certificate: its distinguished name in Kafka's format (RFC 2253: the last part first).

    ``certificate`` is the result of :meth:`ssl.SSLSocket.getpeercert`, empty or None without a client certificate.
    """
    if not certificate:
        return ANONYMOUS
    parts = [
        "+".join(f"{_SHORT_NAMES.get(key, key)}={_escaped(value)}" for key, value in part)
        for part in reversed(certificate["subject"])
    ]
    return Principal(",".join(parts))


def _escaped(value: str) -> str:
    escaped = "".join(f"\\{letter}" if letter in ',+"\\<>;' else letter for letter in value)
    return f"\\{escaped}" if escaped.startswith(("#", " ")) else escaped
