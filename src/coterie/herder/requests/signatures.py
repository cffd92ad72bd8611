"""Requests to sign or to verify what workers send to each other, with the group's session key (KIP-507). Answered at
once.
"""

from dataclasses import dataclass, field
from typing import TypeAlias

from coterie.herder.session_keys import Signature


@dataclass(frozen=True, slots=True, kw_only=True)
class SignContent:
    """Sign ``content``; answered with :class:`SignedContent`."""

    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifySignature:
    """Verify ``signature``; answered with :class:`SignatureCheck`."""

    signature: Signature


SignatureRequest: TypeAlias = SignContent | VerifySignature


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedContent:
    """The signature of a content."""

    signature: Signature | None
    """None when the group's protocol has no session keys, or this worker has not read a key yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignatureCheck:
    """The result of the verification of a signature."""

    is_valid: bool
    """False also when the group's protocol has no session keys: nothing that such workers send is trusted."""
