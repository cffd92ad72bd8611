"""A worker's settings for what workers say to each other: session keys and signatures (KIP-507)."""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from coterie.config import defaults
from coterie.config.definition import as_list
from coterie.nouns import macs

KEY_SIZE_MIN_BITS = 40
"""Java's."""
KEY_SIZE_MAX_BITS = 2**16
"""A longer one makes no better MAC, and it travels in a record and stays in memory."""


class InterWorkerSettings(BaseModel):
    """The ``inter.worker.…`` keys; part of `worker.WorkerSettings`."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    inter_worker_key_ttl_ms: Annotated[int, Field(ge=0, le=2**31 - 1)] = defaults.INTER_WORKER_KEY_TTL_MS
    """How old the key may become with which workers sign what they ask of their leader; 0 is any age. The leader's
    counts."""
    inter_worker_key_generation_algorithm: str = defaults.INTER_WORKER_ALGORITHM
    """For which MAC the leader makes the key."""
    inter_worker_key_size: Annotated[int, Field(ge=KEY_SIZE_MIN_BITS, le=KEY_SIZE_MAX_BITS)] | None = None
    """The key's bits; by default as many as Java gives a key of its algorithm."""
    inter_worker_signature_algorithm: str = defaults.INTER_WORKER_ALGORITHM
    """The MAC that this worker signs with."""
    inter_worker_verification_algorithms: Annotated[tuple[str, ...], BeforeValidator(as_list), Field(min_length=1)] = (
        defaults.INTER_WORKER_ALGORITHM,
    )
    """The MACs that this worker takes from others when it leads."""

    @property
    def inter_worker_key_size_bytes(self) -> int:
        bits = self.inter_worker_key_size or macs.key_size_bits(self.inter_worker_key_generation_algorithm)
        return (bits + 7) // 8

    @field_validator("inter_worker_key_generation_algorithm")
    @classmethod
    def _is_canonical(cls, algorithm: str) -> str:
        """It is compared with what stands in the config topic, where Java writes it so."""
        return _known(algorithm)

    @field_validator("inter_worker_signature_algorithm")
    @classmethod
    def _is_known(cls, algorithm: str) -> str:
        _known(algorithm)
        return algorithm  # As it stands here it goes out, and is looked for in the other list.

    @field_validator("inter_worker_verification_algorithms")
    @classmethod
    def _are_known(cls, algorithms: tuple[str, ...]) -> tuple[str, ...]:
        for algorithm in algorithms:
            _known(algorithm)
        return algorithms

    def signature_errors(self) -> dict[str, list[str]]:
        """What is wrong between these keys: a worker has to take what it signs itself."""
        mine, taken = self.inter_worker_signature_algorithm, self.inter_worker_verification_algorithms
        if mine in taken:
            return {}
        key, other = "inter.worker.signature.algorithm", "inter.worker.verification.algorithms"
        sentence = f"Invalid value {mine} for configuration {key}: it must be in {other} ({','.join(taken)})"
        return {key: [sentence]}


def _known(algorithm: str) -> str:
    canonical = macs.canonical(algorithm)
    if canonical is None:
        raise ValueError(f"{algorithm or chr(39) * 2} is none of {', '.join(macs.HASHES)}")
    return canonical
