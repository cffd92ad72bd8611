"""The MAC algorithms with which workers sign requests (KIP-507), by their names in Java. Worker configs, session keys
and signed requests contain these names."""

from collections.abc import Mapping

HASH_BY_ALGORITHM: Mapping[str, str] = {
    "HmacMD5": "md5",
    "HmacSHA1": "sha1",
    "HmacSHA224": "sha224",
    "HmacSHA256": "sha256",
    "HmacSHA384": "sha384",
    "HmacSHA512": "sha512",
    "HmacSHA3-224": "sha3_224",
    "HmacSHA3-256": "sha3_256",
    "HmacSHA3-384": "sha3_384",
    "HmacSHA3-512": "sha3_512",
}
"""The hash of each algorithm, by its name in :mod:`hashlib`."""

_KEY_SIZE_BITS_IF_NOT_HASH_SIZE: Mapping[str, int] = {"HmacMD5": 512, "HmacSHA1": 512}
"""The default key size in Java, in bits, of each algorithm for which it differs from the size of the hash."""
_ALGORITHM_BY_LOWER_CASE_NAME: Mapping[str, str] = {name.lower(): name for name in HASH_BY_ALGORITHM}


def canonical_algorithm_name(name: str) -> str | None:
    """``name`` in Java's spelling (Java ignores the case of these names); None when Coterie does not support the
    algorithm."""
    return _ALGORITHM_BY_LOWER_CASE_NAME.get(name.lower())


def default_key_size_bits(name: str) -> int:
    """The size in bits of the key that Java generates by default for the algorithm ``name``, which must be in Java's
    spelling."""
    return _KEY_SIZE_BITS_IF_NOT_HASH_SIZE.get(name) or int(name[-3:])
