"""What members have in common, and how they vote among it."""

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from coterie.groups.classic.messages import MemberProtocol
from coterie.groups.classic.protocols import Offers, vote


def offers(names: str) -> tuple[MemberProtocol, ...]:
    return tuple(MemberProtocol(name=name, metadata=b"") for name in names)


def counted(*members: str) -> Offers:
    group = Offers()
    for names in members:
        group.add(offers(names))
    return group


def test_the_vote_goes_to_what_all_offer() -> None:
    assert vote([offers("cba"), offers("a"), offers("ba")]) == "a"


def test_the_majoritys_preference_wins() -> None:
    assert vote([offers("ab"), offers("ba"), offers("ba")]) == "b"


def test_a_tie_is_decided_by_the_first_member() -> None:
    assert vote([offers("ab"), offers("ba")]) == "a"
    assert vote([offers("ba"), offers("ab")]) == "b"


def test_what_nobody_offers_any_longer_is_forgotten() -> None:
    group = counted("ab", "ab")
    group.add(offers("a" + "z"))
    group.remove(offers("a" + "z"))
    assert group == counted("ab", "ab")
    assert group.size == 4


def test_who_is_not_known_yet_is_not_asked() -> None:
    assert counted("", "ab").all_offer_one_of(offers("a"))
    assert not counted("", "b").all_offer_one_of(offers("a"))
    assert counted("").all_offer_one_of(offers("a"))
    assert not counted("").all_offer_one_of(())


def test_who_leaves_is_not_counted_any_more() -> None:
    group = counted("ab", "b")
    assert not group.all_offer_one_of(offers("a"))
    group.remove(offers("b"))
    assert group.all_offer_one_of(offers("a"))
    assert group == counted("ab")


@given(st.lists(st.permutations("abc").map("".join), min_size=1, max_size=4))
def test_the_winner_has_as_many_votes_as_any(members: list[str]) -> None:
    winner = vote([offers(names) for names in members])
    votes = {name: sum(names[0] == name for names in members) for name in "abc"}
    assert votes[winner] == max(votes.values())


def test_without_a_tie_the_order_of_the_members_does_not_matter() -> None:
    members = [offers("ab"), offers("ba"), offers("abc")]
    assert {vote(list(order)) for order in permutations(members)} == {"a"}
