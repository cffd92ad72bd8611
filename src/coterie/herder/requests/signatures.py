"""Requests to sign or to verify what workers send to each other, with the group's session key (KIP-507), and a
signed request that is always refused. Answered at once.
"""

from dataclasses import dataclass, field
from typing import TypeAlias

from coterie.herder.session_keys import Signature
from coterie.nouns.jobs import ConnectorName


@dataclass(frozen=True, slots=True, kw_only=True)
class SignContent:
    """Sign ``content``; answered with :class:`ContentSignature`."""

    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifySignature:
    """Verify ``signature``; answered with :class:`SignatureCheckResult`."""

    signature: Signature


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceTasks:
    """Fence the producers of a connector's tasks: what a worker of Connect asks its leader for before it starts an
    exactly-once source (KIP-618). Answered with :class:`RequestRefused` always: in Coterie the start of a task fences
    its earlier runs."""

    connector: ConnectorName
    signature: Signature | None


SignatureRequest: TypeAlias = SignContent | VerifySignature | FenceTasks


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentSignature:
    """The answer to :class:`SignContent`. ``signature`` is None if the group's protocol does not sign requests, or if
    this worker has not read a session key yet."""

    signature: Signature | None
    """None when the group's protocol has no session keys, or this worker has not read a key yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignatureCheckResult:
    """The answer to :class:`VerifySignature`."""

    reason_not_valid: str | None
    """None: the signature is valid. When the group's protocol has no session keys, no signature is."""
