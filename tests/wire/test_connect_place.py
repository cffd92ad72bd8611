"""A place, from one life of a process to the next."""

import pytest

from coterie.nouns.errors import WireError
from coterie.nouns.ids import ConfigOffset, Generation, MemberId, WorkerUrl
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId, Jobs
from coterie.nouns.membership import PlaceHandover
from coterie.wire.connect_place import decode_place, encode_place

ODD = ConnectorName('or-der\\"s é')
PLACE = PlaceHandover(
    member_id=MemberId("worker-1-uuid"),
    generation=Generation(7),
    protocol="sessioned",
    leader=MemberId("worker-0-uuid"),
    leader_url=WorkerUrl("http://there:8083/"),
    config_offset=ConfigOffset(42),
    jobs=Jobs(frozenset({ODD}), frozenset(ConnectorTaskId(ODD, number) for number in range(1_000))),
    deferred_until_ms=12_345,
    unheard=True,
    owes_round=True,
)


def test_a_place_is_handed_on_whole() -> None:
    assert decode_place(encode_place(PLACE)) == PLACE


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"null", b'{"member_id": 1}', encode_place(PLACE)[:-1]])
def test_bytes_that_are_no_place_are_refused(data: bytes) -> None:
    with pytest.raises(WireError, match="no place"):
        decode_place(data)
