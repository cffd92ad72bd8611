"""Selects a group's protocol: counts which protocols are offered by all members, and lets the members vote among
these."""

from collections import Counter
from collections.abc import Collection, Iterable

from coterie.groups.classic.messages import MemberProtocol


class ProtocolSupport:
    """How many members offer each protocol, and the total size of what they offer. With these counts a JoinGroup need
    not be compared with every member of a large group."""

    def __init__(self) -> None:
        self._members = 0
        """The number of members whose protocols are known."""
        self._by_name: Counter[str] = Counter()
        self.size_bytes = 0
        """The size in bytes of the names and metadata that all members offer."""

    def add(self, offered: tuple[MemberProtocol, ...]) -> None:
        """Count the protocols that a member offers. No protocols: they are unknown, and the member is not counted."""
        if offered:
            self._members += 1
            self._by_name.update(_names(offered))
            self.size_bytes += protocols_size_bytes(offered)

    def remove(self, offered: tuple[MemberProtocol, ...]) -> None:
        """Undo `add` with the same protocols."""
        if offered:
            self._members -= 1
            self.size_bytes -= protocols_size_bytes(offered)
            for name in _names(offered):
                self._by_name[name] -= 1
                if not self._by_name[name]:
                    del self._by_name[name]  # clients choose the names, so unused ones could accumulate

    def any_supported_by_all(self, offered: Iterable[MemberProtocol]) -> bool:
        """Whether at least one protocol of ``offered`` is offered by all members. Members whose protocols are unknown
        are disregarded."""
        return any(self._by_name[protocol.name] == self._members for protocol in offered)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProtocolSupport) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


def protocols_size_bytes(offered: Iterable[MemberProtocol]) -> int:
    """The total size in bytes of the names and the metadata of ``offered``."""
    return sum(len(protocol.name.encode()) + len(protocol.metadata) for protocol in offered)


def vote(members: Collection[tuple[MemberProtocol, ...]]) -> str:
    """The protocol that is selected for a generation. Of the protocols that all members offer, each member votes for
    the one that it offers first; the protocol with most votes is selected. ``members`` has the protocols of each
    member.

    When two protocols have equally many votes, the one that the first of ``members`` prefers is selected. In Kafka the
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
    """The names of the protocols."""
    return frozenset(protocol.name for protocol in offered)
