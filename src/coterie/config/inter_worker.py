"""A worker's settings for requests between workers: session keys and signatures (KIP-507)."""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from coterie.config import defaults
from coterie.config.definition import split_list
from coterie.nouns import signature_algorithms
from coterie.nouns.errors import invalid_value_message

KEY_SIZE_MIN_BITS = 40
"""The smallest size of a session key, in bits: Java's minimum."""
KEY_SIZE_MAX_BITS = 2**16
"""The greatest size of a session key, in bits. A longer key does not make a better MAC, and every session key is
written to a record and kept in memory."""


class InterWorkerSettings(BaseModel):
    """The settings with the ``inter.worker.…`` keys; part of `worker.WorkerSettings`."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    inter_worker_key_ttl_ms: Annotated[int, Field(ge=0, le=2**31 - 1)] = defaults.INTER_WORKER_KEY_TTL_MS
    """The time after which the leader replaces the session key, with which workers sign their requests to the leader;
    0: the leader never replaces the key. Only the leader's setting has an effect."""
    inter_worker_key_generation_algorithm: str = defaults.INTER_WORKER_ALGORITHM
    """The MAC algorithm for which the leader makes the session key."""
    inter_worker_key_size: Annotated[int, Field(ge=KEY_SIZE_MIN_BITS, le=KEY_SIZE_MAX_BITS)] | None = None
    """The size of the session key in bits; by default the size that Java gives a key of its algorithm."""
    inter_worker_signature_algorithm: str = defaults.INTER_WORKER_ALGORITHM
    """The MAC algorithm with which this worker signs its requests."""
    inter_worker_verification_algorithms: Annotated[
        tuple[str, ...], BeforeValidator(split_list), Field(min_length=1)
    ] = (defaults.INTER_WORKER_ALGORITHM,)
    """The MAC algorithms that this worker accepts in requests from other workers while it is the leader."""

    @property
    def inter_worker_key_size_bytes(self) -> int:
        """The size of the session key in bytes, rounded up."""
        bits = self.inter_worker_key_size or signature_algorithms.default_key_size_bits(
            self.inter_worker_key_generation_algorithm
        )
        return (bits + 7) // 8

    @field_validator("inter_worker_key_generation_algorithm")
    @classmethod
    def _canonical_key_generation_algorithm(cls, algorithm: str) -> str:
        """The canonical name of ``algorithm``. The name in the config topic, which Java writes in canonical form, is
        compared with it.

        :raises ValueError: when the algorithm is unknown.
        """
        return _canonical_algorithm(algorithm)

    @field_validator("inter_worker_signature_algorithm")
    @classmethod
    def _check_signature_algorithm(cls, algorithm: str) -> str:
        """Return ``algorithm`` unchanged if it is known.

        :raises ValueError: when it is unknown.
        """
        _canonical_algorithm(algorithm)
        return algorithm  # Requests contain this spelling, and the verification list must contain it too.

    @field_validator("inter_worker_verification_algorithms")
    @classmethod
    def _check_verification_algorithms(cls, algorithms: tuple[str, ...]) -> tuple[str, ...]:
        """Return ``algorithms`` unchanged if all of them are known.

        :raises ValueError: when one is unknown.
        """
        for algorithm in algorithms:
            _canonical_algorithm(algorithm)
        return algorithms

    def signature_algorithm_errors(self) -> dict[str, list[str]]:
        """The error, by key, if this worker does not accept the algorithm with which it signs; else empty."""
        signing, accepted = self.inter_worker_signature_algorithm, self.inter_worker_verification_algorithms
        if signing in accepted:
            return {}
        key, accepted_key = "inter.worker.signature.algorithm", "inter.worker.verification.algorithms"
        return {key: [invalid_value_message(key, signing, f"it must be in {accepted_key} ({','.join(accepted)})")]}


def _canonical_algorithm(algorithm: str) -> str:
    """The canonical name of the MAC algorithm ``algorithm``.

    :raises ValueError: when the algorithm is unknown.
    """
    canonical = signature_algorithms.canonical_algorithm_name(algorithm)
    if canonical is None:
        raise ValueError(
            f"{algorithm or chr(39) * 2} is not one of {', '.join(signature_algorithms.HASH_BY_ALGORITHM)}"
        )
    return canonical
