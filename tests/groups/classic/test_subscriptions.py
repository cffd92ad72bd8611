"""Which topics consumers read, from bytes that are theirs."""

from hypothesis import given
from hypothesis import strategies as st

from coterie.groups.classic.subscriptions import subscribed_topics

VERSION_0 = bytes.fromhex("0000 00000002 0001 61 0001 62 00000000")
VERSION_3 = bytes.fromhex("0003 00000001 0001 63 ffffffff 00000000 00000005 0001 72")


def test_topics_of_all_members_count_whatever_their_version() -> None:
    assert subscribed_topics([VERSION_0, VERSION_3]) == frozenset("abc")
    assert subscribed_topics([]) == frozenset()


def test_one_member_that_cannot_be_read_hides_what_the_group_reads() -> None:
    for nonsense in (b"", b"\0", bytes.fromhex("0000 7fffffff"), bytes.fromhex("8000 00000000"), b"\0\0" + b"\xff" * 9):
        assert subscribed_topics([VERSION_0, nonsense]) is None


@given(st.lists(st.binary(max_size=60), max_size=4))
def test_any_bytes_are_read_or_not(metadata: list[bytes]) -> None:
    subscribed_topics(metadata)
