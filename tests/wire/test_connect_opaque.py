"""What workers call themselves: shown where it can be, and never a reason to fail."""

import pytest

from coterie.wire.connect_opaque import SIZE_MAX_BYTES, encode_opaque, name_in


@pytest.mark.parametrize("name", ["worker-2", "Zoë's", "127.0.0.1:8083", '"'])
def test_a_name_is_read_as_it_was_written(name: str) -> None:
    assert name_in(encode_opaque(name=name)) == name


def test_keys_that_nobody_knows_are_ignored() -> None:
    assert name_in(b'{"name": "anna", "standbys": [1, 2]}') == "anna"


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
        b'{"name": "' + b"a" * SIZE_MAX_BYTES + b'"}',
    ],
)
def test_what_cannot_be_understood_is_no_name(opaque: bytes | None) -> None:
    assert name_in(opaque) is None
