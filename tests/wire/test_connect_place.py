"""A place, from one life of a process to the next."""

import pytest

from coterie.nouns.errors import WireError
from coterie.wire.connect_place import decode_place, encode_place
from tests.wire.place import PLACE


def test_a_place_is_handed_on_whole() -> None:
    assert decode_place(encode_place(PLACE)) == PLACE


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"null", b'{"member_id": 1}', encode_place(PLACE)[:-1]])
def test_bytes_that_are_no_place_are_refused(data: bytes) -> None:
    with pytest.raises(WireError, match="cannot be decoded"):
        decode_place(data)
