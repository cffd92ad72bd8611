"""Which protocols all members support, and how one of them is selected."""

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from coterie.groups.classic.messages import MemberProtocol
from coterie.groups.classic.protocols import ProtocolSupportCounts, select_protocol_by_vote


def protocols(names: str) -> tuple[MemberProtocol, ...]:
    return tuple(MemberProtocol(name=name, metadata=b"") for name in names)


def support_of(*members: str) -> ProtocolSupportCounts:
    group = ProtocolSupportCounts()
    for names in members:
        group.add_member_protocols(protocols(names))
    return group


def test_a_protocol_that_all_members_support_is_selected() -> None:
    assert select_protocol_by_vote([protocols("cba"), protocols("a"), protocols("ba")]) == "a"


def test_the_majoritys_preference_is_selected() -> None:
    assert select_protocol_by_vote([protocols("ab"), protocols("ba"), protocols("ba")]) == "b"


def test_a_tie_is_decided_by_the_first_member() -> None:
    assert select_protocol_by_vote([protocols("ab"), protocols("ba")]) == "a"
    assert select_protocol_by_vote([protocols("ba"), protocols("ab")]) == "b"


def test_a_protocol_that_no_member_supports_any_more_is_removed() -> None:
    group = support_of("ab", "ab")
    group.add_member_protocols(protocols("a" + "z"))
    group.remove_member_protocols(protocols("a" + "z"))
    assert group == support_of("ab", "ab")
    assert group.offered_size_bytes == 4


def test_a_member_whose_protocols_are_unknown_is_not_counted() -> None:
    assert support_of("", "ab").any_supported_by_all(protocols("a"))
    assert not support_of("", "b").any_supported_by_all(protocols("a"))
    assert support_of("").any_supported_by_all(protocols("a"))
    assert not support_of("").any_supported_by_all(())


def test_a_member_that_leaves_is_no_longer_counted() -> None:
    group = support_of("ab", "b")
    assert not group.any_supported_by_all(protocols("a"))
    group.remove_member_protocols(protocols("b"))
    assert group.any_supported_by_all(protocols("a"))
    assert group == support_of("ab")


@given(st.lists(st.permutations("abc").map("".join), min_size=1, max_size=4))
def test_the_selected_protocol_has_as_many_votes_as_any_other(members: list[str]) -> None:
    winner = select_protocol_by_vote([protocols(names) for names in members])
    votes = {name: sum(names[0] == name for names in members) for name in "abc"}
    assert votes[winner] == max(votes.values())


def test_without_a_tie_the_order_of_the_members_does_not_matter() -> None:
    members = [protocols("ab"), protocols("ba"), protocols("abc")]
    assert {select_protocol_by_vote(list(order)) for order in permutations(members)} == {"a"}
