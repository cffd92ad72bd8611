"""The key that the workers of a group share (KIP-507), and the signatures that are made with it.

It stands in the config topic, so whoever may read that topic has it, and nobody else. Nothing here shows it: keys and
what is derived of them are left out of every ``repr``, for events and orders are traced.
"""

import base64
import hmac
import re
from dataclasses import dataclass, field
from typing import TypeAlias

from coterie.config import defaults
from coterie.nouns import macs
from coterie.nouns.ids import ConfigOffset

_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}(?:==)?|[A-Za-z0-9+/]{3}=?)?")
"""As Java's basic decoder takes it: padding may be left out, but not in part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionKeySettings:
    """``inter.worker.…``: what keys a leader makes, and what this worker signs with and takes."""

    ttl_ms: int = defaults.INTER_WORKER_KEY_TTL_MS
    """How old a key may become; 0 is any age."""
    algorithm: str = defaults.INTER_WORKER_ALGORITHM
    size_bytes: int = macs.key_size_bits(defaults.INTER_WORKER_ALGORITHM) // 8
    signature_algorithm: str = defaults.INTER_WORKER_ALGORITHM
    verification_algorithms: tuple[str, ...] = (defaults.INTER_WORKER_ALGORITHM,)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionKey:
    key: bytes = field(repr=False)
    algorithm: str
    """What it was made for; requests may be signed with it by another."""
    created_at_ms: int
    """By the wall clock of the leader that made it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signing:
    """With what a request is signed."""

    key: bytes = field(repr=False)
    algorithm: str

    def signature(self, body: bytes) -> "Signature":
        return Signature(algorithm=self.algorithm, mac=_mac(self.key, self.algorithm, body), body=body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """How a request came signed; by a MAC that is one of :data:`macs.HASHES`, in any case."""

    algorithm: str
    mac: bytes = field(repr=False)
    body: bytes = field(repr=False)
    """Exactly the bytes that are signed."""

    def is_valid(self, key: SessionKey) -> bool:
        """Takes as long for a wrong MAC as for the right one."""
        return hmac.compare_digest(_mac(key.key, self.algorithm, self.body), self.mac)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoKeyUnderWay:
    """No key is being made or written here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyOrdered:
    """The shell makes a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendsKey:
    """A key is on its way to the config log."""

    number: int
    """Which of the keys that were made here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadsKeyBack:
    """The log has the key; it counts when the log is read up to ``end``."""

    end: ConfigOffset


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitsAfterFailure:
    """The key could not be written; another one may be made from ``until_ms`` on."""

    until_ms: int


RotationState: TypeAlias = NoKeyUnderWay | KeyOrdered | AppendsKey | ReadsKeyBack | WaitsAfterFailure


class Rotation:
    """What a leader is about to do about the key; gone after a restart."""

    def __init__(self) -> None:
        self.epoch_ms: int | None = None
        """The wall clock's time at 0 of the steady one, by which machines are stepped; None before that is told. Told
        again with every key that is made here, so each is dated by the clock as it is then set."""
        self.known: SessionKey | None = None
        self.known_since_ms = 0
        """When the known key was first known here, on the steady clock. Its age counts from no later than that: one
        that another clock has dated ahead is used no longer than a fresh one."""
        self.state: RotationState = NoKeyUnderWay()
        self.made = 0
        """How many keys were made here and appended."""
        self.wakes_at_ms: int | None = None
        """When a timer is set."""

    @property
    def is_under_way(self) -> bool:
        return isinstance(self.state, KeyOrdered | AppendsKey | ReadsKeyBack)


def decode_base64(text: str) -> bytes:
    """:raises ValueError: when Java's decoder would not take ``text``."""
    if _BASE64.fullmatch(text) is None:
        raise ValueError("it is no base64")
    return base64.b64decode(text + "=" * (-len(text) % 4))


def _mac(key: bytes, algorithm: str, body: bytes) -> bytes:
    name = macs.canonical(algorithm)
    assert name is not None, f"{algorithm} was not checked where it came in"
    return hmac.digest(key, body, macs.HASHES[name])
