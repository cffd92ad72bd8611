"""Principals: the authenticated names of clients."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Principal:
    """The name under which a client is authenticated, written ``User:name`` as in Kafka."""

    name: str
    """The name of the user, or the subject of the client's certificate."""
    kind: str = "User"
    """The type of the principal; always "User"."""

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS = Principal("ANONYMOUS")
"""Kafka's principal of a client without authentication."""
