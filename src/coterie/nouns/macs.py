"""The MAC algorithms with which workers sign requests (KIP-507), by their names in Java. Worker configs, session keys
and signed requests contain these names."""

from collections.abc import Mapping

HASHES: Mapping[str, str] = {
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
"""The name in :mod:`hashlib` of the hash of each algorithm."""

_KEY_SIZES_BITS: Mapping[str, int] = {"HmacMD5": 512, "HmacSHA1": 512}
"""The algorithms for which the size of Java's default key is not the size of the hash."""
_BY_LOWER_CASE: Mapping[str, str] = {name.lower(): name for name in HASHES}


def canonical(name: str) -> str | None:
    """``name`` in Java's spelling (Java ignores the case of these names). None when Coterie has no such algorithm."""
    return _BY_LOWER_CASE.get(name.lower())


def key_size_bits(name: str) -> int:
    """The size of the key that Java generates by default for the algorithm of this canonical ``name``."""
    return _KEY_SIZES_BITS.get(name) or int(name[-3:])
