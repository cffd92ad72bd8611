"""Which protocol a group speaks: what all members have in common, and their vote among that."""

from collections import Counter
from collections.abc import Collection, Iterable

from coterie.groups.classic.messages import MemberProtocol


class Offers:
    """How many members offer each protocol, and how many bytes of it: a join is not to be compared with every member of
    a large group."""

    def __init__(self) -> None:
        self._members = 0
        """Those that are known to offer anything."""
        self._by_name: Counter[str] = Counter()
        self.size = 0
        """Bytes of names and metadata, of all members together."""

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
                    del self._by_name[name]  # a name may be anything, and a group old

    def all_offer_one_of(self, offered: Iterable[MemberProtocol]) -> bool:
        """Whether one of ``offered`` is offered by all. Who offers nothing is not known yet, and is not asked."""
        return any(self._by_name[protocol.name] == self._members for protocol in offered)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Offers) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


def offer_size(offered: Iterable[MemberProtocol]) -> int:
    """In bytes."""
    return sum(len(protocol.name.encode()) + len(protocol.metadata) for protocol in offered)


def vote(members: Collection[tuple[MemberProtocol, ...]]) -> str:
    """The protocol of a generation: each member votes for the one it prefers among those that all offer.

    With as many votes for two, the one that the first of ``members`` prefers: Kafka leaves that to a hash's order.
    """
    common = frozenset.intersection(*(_names(offered) for offered in members))
    assert common, "members without a common protocol were let in"
    votes: Counter[str] = Counter()
    for offered in members:
        votes[next(protocol.name for protocol in offered if protocol.name in common)] += 1
    preferred = [protocol.name for protocol in next(iter(members))]
    return max(votes, key=lambda name: (votes[name], -preferred.index(name)))


def _names(offered: tuple[MemberProtocol, ...]) -> frozenset[str]:
    return frozenset(protocol.name for protocol in offered)
