"""Selects a group's protocol: the protocols that all members offer, and the members' vote among them."""

from collections import Counter
from collections.abc import Collection, Iterable

from coterie.groups.classic.messages import MemberProtocol


class Offers:
    """How many members offer each protocol, and the size of all offered protocols. With these counts a join need not be
    compared with every member of a large group."""

    def __init__(self) -> None:
        self._members = 0
        """The number of members whose protocols are known."""
        self._by_name: Counter[str] = Counter()
        self.size = 0
        """The size in bytes of the names and metadata that all members offer."""

    def add(self, offered: tuple[MemberProtocol, ...]) -> None:
        if offered:
            self._members += 1
            self._by_name.update(_names(offered))
            self.size += offer_size(offered)

    def remove(self, offered: tuple[MemberProtocol, ...]) -> None:
        if offered:
            self._members -= 1
            self.size -= offer_size(offered)
            for name in _names(offered):
                self._by_name[name] -= 1
                if not self._by_name[name]:
                    del self._by_name[name]  # clients choose the names, so unused ones could accumulate

    def all_offer_one_of(self, offered: Iterable[MemberProtocol]) -> bool:
        """Whether all members offer one of ``offered``. Members whose protocols are not known yet are left out."""
        return any(self._by_name[protocol.name] == self._members for protocol in offered)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Offers) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


def offer_size(offered: Iterable[MemberProtocol]) -> int:
    """The size in bytes of the names and metadata."""
    return sum(len(protocol.name.encode()) + len(protocol.metadata) for protocol in offered)


def vote(members: Collection[tuple[MemberProtocol, ...]]) -> str:
    """The protocol of a generation: each member votes for the protocol that it prefers among those that all offer.

    When two protocols have the same number of votes, the preference of the first of ``members`` decides. In Kafka the
    order of a hash map decides.
    """
    common = frozenset.intersection(*(_names(offered) for offered in members))
    assert common, "all members of a group have a protocol in common"
    votes: Counter[str] = Counter()
    for offered in members:
        votes[next(protocol.name for protocol in offered if protocol.name in common)] += 1
    preferred = [protocol.name for protocol in next(iter(members))]
    return max(votes, key=lambda name: (votes[name], -preferred.index(name)))


def _names(offered: tuple[MemberProtocol, ...]) -> frozenset[str]:
    return frozenset(protocol.name for protocol in offered)
