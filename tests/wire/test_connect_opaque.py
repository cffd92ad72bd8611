"""Worker names in the opaque field: shown if they can be decoded, and never a reason to fail."""

import pytest

from coterie.wire.connect_opaque import OPAQUE_SIZE_MAX_BYTES, decode_worker_name, encode_worker_name


@pytest.mark.parametrize("name", ["worker-2", "Zoë's", "127.0.0.1:8083", '"'])
def test_a_worker_name_is_decoded_as_it_was_encoded(name: str) -> None:
    assert decode_worker_name(encode_worker_name(name=name)) == name


def test_unknown_keys_are_ignored() -> None:
    assert decode_worker_name(b'{"name": "anna", "standbys": [1, 2]}') == "anna"


@pytest.mark.parametrize(
    "opaque",
    [
        None,
        b"",
        b"{",
        b"\xff",
        b"[]",
        b'"anna"',
        b"{}",
        b'{"name": 7}',
        b'{"name": ""}',
        b'{"name": "a\\u0007"}',
        b"[" * 3_000,
        b'{"name": "' + b"a" * OPAQUE_SIZE_MAX_BYTES + b'"}',
    ],
)
def test_undecodable_opaque_bytes_contain_no_name(opaque: bytes | None) -> None:
    assert decode_worker_name(opaque) is None
