"""The handover of a membership from a process to its successor."""

import pytest

from coterie.nouns.errors import WireError
from coterie.nouns.membership import Handover
from coterie.wire.connect_place import decode_membership_handover, encode_membership_handover
from tests.wire.place import CONNECT_PLACE, PLACE


@pytest.mark.parametrize("place", [PLACE, CONNECT_PLACE], ids=["classic", "connect"])
def test_a_handover_of_a_membership_is_decoded_as_it_was_encoded(place: Handover) -> None:
    assert decode_membership_handover(encode_membership_handover(place)) == place


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"[]", b"null", b'{"member_id": 1}', encode_membership_handover(PLACE)[:-1], b'{"member_epoch": 1}'],
)
def test_bytes_that_are_no_handover_are_refused(data: bytes) -> None:
    with pytest.raises(WireError, match="cannot be decoded"):
        decode_membership_handover(data)
