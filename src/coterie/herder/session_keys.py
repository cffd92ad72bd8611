"""The session key that the workers of a group share (KIP-507), and the signatures that are made with it.

The key is stored in the config topic, so every client that may read this topic has the key, and no other client. Keys
and values derived from them are left out of every ``repr``, because events and effects are traced.
"""

import base64
import hmac
import re
from dataclasses import dataclass, field
from typing import TypeAlias

from coterie.config import defaults
from coterie.nouns import signature_algorithms
from coterie.nouns.ids import LogPosition

_BASE64_PATTERN = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}(?:==)?|[A-Za-z0-9+/]{3}=?)?")
"""The base64 text that Java's basic decoder accepts: the padding may be missing as a whole, but not in part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionKeySettings:
    """``inter.worker.…``: the keys that a leader makes, and the algorithms with which this worker signs and
    verifies."""

    ttl_ms: int = defaults.INTER_WORKER_KEY_TTL_MS
    """The age at which the leader replaces a key; 0 means never."""
    key_algorithm: str = defaults.INTER_WORKER_ALGORITHM
    """The MAC algorithm for which a leader makes a key."""
    key_size_bytes: int = signature_algorithms.default_key_size_bits(defaults.INTER_WORKER_ALGORITHM) // 8
    """The size of the keys that a leader makes."""
    signature_algorithm: str = defaults.INTER_WORKER_ALGORITHM
    """The MAC algorithm with which this worker signs."""
    verification_algorithms: tuple[str, ...] = (defaults.INTER_WORKER_ALGORITHM,)
    """The MAC algorithms that this worker accepts in the signatures of other workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionKey:
    """A session key, as the config log contains it."""

    key: bytes = field(repr=False)
    algorithm: str
    """The MAC algorithm for which the key was made. Requests may also be signed with this key by another algorithm."""
    created_at_ms: int
    """When the key was made, in milliseconds since the Unix epoch, by the wall clock of the leader that made it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningKey:
    """A session key, and the MAC algorithm with which this worker signs a request."""

    key: bytes = field(repr=False)
    algorithm: str

    def signature(self, body: bytes) -> "Signature":
        """The signature of a request with this ``body``."""
        return Signature(algorithm=self.algorithm, mac=_mac(self.key, self.algorithm, body), body=body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """The signature of a request. ``algorithm`` is a name in
    :data:`~coterie.nouns.signature_algorithms.HASH_BY_ALGORITHM`, in upper or lower case."""

    algorithm: str
    mac: bytes = field(repr=False)
    body: bytes = field(repr=False)
    """Exactly the signed bytes: the body of the request; for a request that a worker forwards for a user, a text made
    of the request's line, headers and body (:mod:`coterie.rest.callers`)."""

    def is_valid(self, key: SessionKey) -> bool:
        """Whether the signature was made with ``key``. The time of the comparison does not depend on how many bytes are
        right."""
        return hmac.compare_digest(_mac(key.key, self.algorithm, self.body), self.mac)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoKeyUnderWay:
    """This worker is neither making nor writing a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MakingKey:
    """A new key was ordered (``MakeSessionKey``) and has not been made yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendingKey:
    """A key that this worker, the leader, has made is being appended to the config log."""

    key_number: int
    """The number of this key among the keys that this worker has made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingKeyBack:
    """The key was appended to the config log; it is valid when this worker has read the log up to ``end_offset``."""

    end_offset: LogPosition


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRetryPending:
    """A key could not be written; this worker may make another key from ``retry_at_ms`` on."""

    retry_at_ms: int


RotationState: TypeAlias = NoKeyUnderWay | MakingKey | AppendingKey | ReadingKeyBack | KeyRetryPending


class SessionKeyRotation:
    """The state of the rotation of the session key, for which the leader is responsible. It is lost at a restart."""

    def __init__(self) -> None:
        self.wall_clock_offset_ms: int | None = None
        """The wall clock's time at 0 of the monotonic clock, whose times the machines receive; None before the runtime
        is open. It is set again with every key that is made here, so each key has the current time of the wall
        clock."""
        self.current_key: SessionKey | None = None
        """The current key: the last key that was read from the config log."""
        self.current_key_read_at_ms = 0
        """When the current key was first read here, on the monotonic clock. The key's age counts at the latest from
        this time: a key whose creation time lies in the future is not used for longer than a new key."""
        self.state: RotationState = NoKeyUnderWay()
        self.keys_made = 0
        """How many keys this worker has made and ordered to be appended; the last one has this number."""
        self.timer_at_ms: int | None = None
        """The time for which the rotation's timer is set; None when it is not set."""

    @property
    def is_under_way(self) -> bool:
        """Whether a key is being made, is being written, or has not been read back yet."""
        return isinstance(self.state, MakingKey | AppendingKey | ReadingKeyBack)


def decode_base64_or_raise(text: str) -> bytes:
    """The bytes that ``text`` encodes. The padding may be missing.

    :raises ValueError: when Java's basic decoder would not accept ``text``.
    """
    if _BASE64_PATTERN.fullmatch(text) is None:
        raise ValueError("the text is not base64")
    return base64.b64decode(text + "=" * (-len(text) % 4))


def _mac(key: bytes, algorithm: str, body: bytes) -> bytes:
    """The MAC (message authentication code) of ``body``. ``algorithm`` may be in upper or lower case."""
    name = signature_algorithms.canonical_algorithm_name(algorithm)
    assert name is not None, f"{algorithm} was not checked when the request was parsed"
    return hmac.digest(key, body, signature_algorithms.HASH_BY_ALGORITHM[name])
