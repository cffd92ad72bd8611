"""Which topics consumers read, from the bytes of their metadata."""

from hypothesis import given
from hypothesis import strategies as st

from coterie.groups.classic.subscriptions import subscribed_topics

VERSION_0 = bytes.fromhex("0000 00000002 0001 61 0001 62 00000000")
VERSION_3 = bytes.fromhex("0003 00000001 0001 63 ffffffff 00000000 00000005 0001 72")


def test_topics_of_all_members_are_included_for_any_version() -> None:
    assert subscribed_topics([VERSION_0, VERSION_3]) == frozenset("abc")
    assert subscribed_topics([]) == frozenset()


def test_one_unreadable_member_makes_the_groups_topics_unknown() -> None:
    for malformed in (
        b"",
        b"\0",
        bytes.fromhex("0000 7fffffff"),
        bytes.fromhex("8000 00000000"),
        b"\0\0" + b"\xff" * 9,
    ):
        assert subscribed_topics([VERSION_0, malformed]) is None


@given(st.lists(st.binary(max_size=60), max_size=4))
def test_any_bytes_are_decoded_without_an_exception(metadata: list[bytes]) -> None:
    subscribed_topics(metadata)
