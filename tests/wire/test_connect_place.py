"""The handover of a membership from a process to its successor."""

import pytest

from coterie.nouns.errors import WireError
from coterie.wire.connect_place import decode_place, encode_place
from tests.wire.place import PLACE


def test_a_handover_of_a_membership_is_decoded_as_it_was_encoded() -> None:
    assert decode_place(encode_place(PLACE)) == PLACE


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"null", b'{"member_id": 1}', encode_place(PLACE)[:-1]])
def test_bytes_that_are_no_handover_are_refused(data: bytes) -> None:
    with pytest.raises(WireError, match="cannot be decoded"):
        decode_place(data)
