"""Principals: who stands behind a connection."""

from dataclasses import dataclass
from typing import Any

_SHORT_NAMES = {
    "commonName": "CN", "organizationalUnitName": "OU", "organizationName": "O", "localityName": "L",
    "stateOrProvinceName": "ST", "countryName": "C", "streetAddress": "STREET", "domainComponent": "DC",
    "userId": "UID",
}  # fmt: skip
"""What RFC 2253 calls what OpenSSL spells out."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Written ``User:name``, as in Kafka."""

    name: str
    kind: str = "User"

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS = Principal("ANONYMOUS")
"""Whoever comes without a name, as Kafka calls it."""


def of_certificate(certificate: Any) -> Principal:
    """Who a client certificate speaks for: its distinguished name, as Kafka writes it (RFC 2253: the last part first).

    ``certificate`` is what :meth:`ssl.SSLSocket.getpeercert` gives, nothing when the peer brought none.
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
