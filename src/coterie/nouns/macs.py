"""The MACs that workers sign with (KIP-507), by Java's names for them: these stand in worker files, in session keys and
in signed requests."""

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
"""What :mod:`hashlib` calls the hash of each."""

_KEY_SIZES_BITS: Mapping[str, int] = {"HmacMD5": 512, "HmacSHA1": 512}
"""Where Java's own size is not the hash's."""
_BY_LOWER_CASE: Mapping[str, str] = {name.lower(): name for name in HASHES}


def canonical(name: str) -> str | None:
    """``name`` as Java writes it; it looks names up whatever their case. None when there is no such MAC here."""
    return _BY_LOWER_CASE.get(name.lower())


def key_size_bits(name: str) -> int:
    """How long a key Java makes for the MAC of this canonical ``name`` when nobody says."""
    return _KEY_SIZES_BITS.get(name) or int(name[-3:])
