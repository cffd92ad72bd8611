"""Keys and MACs, compared with Java's, which Kafka Connect uses to sign."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from coterie.herder.session_keys import SessionKey, Signature, SigningKey, decode_base64_or_raise
from coterie.nouns import signature_algorithms

VECTORS: dict[str, Any] = json.loads((Path(__file__).parent / "vectors" / "session-keys.json").read_text())
KEY = SessionKey(key=b"0123456789abcdef" * 2, algorithm="HmacSHA256", created_at_ms=1_795_228_766_406)


@pytest.mark.parametrize("vector", VECTORS["signatures"], ids=lambda vector: f"{vector['algorithm']}-{vector['body']}")
def test_javas_signatures_are_reproduced_and_accepted(vector: dict[str, str]) -> None:
    key, mac, body = (
        decode_base64_or_raise(vector["key"]),
        decode_base64_or_raise(vector["mac"]),
        vector["body"].encode(),
    )
    signature_of_body = SigningKey(key=key, algorithm=vector["algorithm"]).signature(body)
    assert base64.b64encode(signature_of_body.mac).decode() == vector["mac"]
    session_key = SessionKey(key=key, algorithm=vector["algorithm"], created_at_ms=0)
    assert Signature(algorithm=vector["algorithm"].upper(), mac=mac, body=body).is_valid(session_key)
    assert not Signature(algorithm=vector["algorithm"], mac=mac, body=body + b" ").is_valid(session_key)


def test_all_algorithms_are_supported_with_javas_key_sizes() -> None:
    assert {
        name: signature_algorithms.default_key_size_bits(name) // 8 for name in signature_algorithms.HASH_BY_ALGORITHM
    } == VECTORS["key_size_bytes"]
    assert {
        signature_algorithms.canonical_algorithm_name(name.upper()) for name in signature_algorithms.HASH_BY_ALGORITHM
    } == signature_algorithms.HASH_BY_ALGORITHM.keys()
    assert (
        signature_algorithms.canonical_algorithm_name("HmacSHA-256")
        is signature_algorithms.canonical_algorithm_name("")
        is None
    )


@pytest.mark.parametrize(("text", "java"), VECTORS["base64"].items())
def test_base64_is_accepted_and_refused_as_by_java(text: str, java: str) -> None:
    if java.startswith("hex:"):
        assert decode_base64_or_raise(text).hex() == java.removeprefix("hex:")
    else:
        with pytest.raises(ValueError, match="not base64"):
            decode_base64_or_raise(text)


def test_a_mac_of_another_key_body_or_length_is_invalid() -> None:
    signature = SigningKey(key=KEY.key, algorithm="HmacSHA256").signature(b"[]")
    other = SessionKey(key=b"x" * 32, algorithm="HmacSHA256", created_at_ms=0)
    assert signature.is_valid(KEY)
    assert not signature.is_valid(other)
    for mac in (b"", signature.mac[:-1], signature.mac + b"\0", bytes(32)):
        assert not Signature(algorithm="HmacSHA256", mac=mac, body=b"[]").is_valid(KEY)


def test_the_repr_of_a_key_and_a_signature_contains_no_secret() -> None:
    signing = SigningKey(key=KEY.key, algorithm="HmacSHA256")
    shown = f"{KEY} {signing} {signing.signature(b'secret body')}"
    for secret in ("0123456789", "secret", base64.b64encode(KEY.key).decode(), repr(signing.signature(b"").mac)):
        assert secret not in shown
