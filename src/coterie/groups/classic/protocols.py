"""Selects a group's protocol: counts which protocols are offered by all members, and lets the members vote among
these."""

from collections import Counter
from collections.abc import Collection, Iterable

from coterie.groups.classic.messages import MemberProtocol


class ProtocolSupportCounts:
    """How many members offer each protocol, and the total size of what they offer. With these counts a JoinGroup need
    not be compared with every member of a large group."""

    def __init__(self) -> None:
        self._member_count = 0
        """The number of members whose protocols are known."""
        self._member_count_by_protocol: Counter[str] = Counter()
        self.offered_size_bytes = 0
        """The size in bytes of the names and metadata that all members offer."""

    def add_member_protocols(self, offered: tuple[MemberProtocol, ...]) -> None:
        """Count the protocols that a member offers. Empty: its protocols are unknown, and the member is not counted."""
        if offered:
            self._member_count += 1
            self._member_count_by_protocol.update(_protocol_names(offered))
            self.offered_size_bytes += protocols_size_bytes(offered)

    def remove_member_protocols(self, offered: tuple[MemberProtocol, ...]) -> None:
        """No longer count the protocols ``offered`` of a member, which `add_member_protocols` has counted."""
        if offered:
            self._member_count -= 1
            self.offered_size_bytes -= protocols_size_bytes(offered)
            for name in _protocol_names(offered):
                self._member_count_by_protocol[name] -= 1
                if not self._member_count_by_protocol[name]:
                    del self._member_count_by_protocol[
                        name
                    ]  # clients choose the names, so unused ones could accumulate

    def any_supported_by_all(self, offered: Iterable[MemberProtocol]) -> bool:
        """Whether at least one protocol of ``offered`` is offered by every member whose protocols are known. If the
        client that offers them is itself a member, it is counted with the protocols that it offered before. If no
        member is counted, every protocol counts as offered by all. False if ``offered`` is empty."""
        return any(self._member_count_by_protocol[protocol.name] == self._member_count for protocol in offered)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProtocolSupportCounts) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


def protocols_size_bytes(offered: Iterable[MemberProtocol]) -> int:
    """The total size in bytes of the names and the metadata of ``offered``."""
    return sum(len(protocol.name.encode()) + len(protocol.metadata) for protocol in offered)


def select_protocol_by_vote(offered_by_member: Collection[tuple[MemberProtocol, ...]]) -> str:
    """The protocol that is selected for a generation. Of the protocols that all members offer, each member votes for
    the one that it offers first; the protocol with most votes is selected. ``offered_by_member`` has the protocols of
    each member.

    When two protocols have equally many votes, the one that the first of ``offered_by_member`` prefers is selected. In
    Kafka the order of a hash map decides.
    """
    common_names = frozenset.intersection(*(_protocol_names(offered) for offered in offered_by_member))
    assert common_names, "all members of a group have a protocol in common"
    votes_by_name: Counter[str] = Counter()
    for offered in offered_by_member:
        votes_by_name[next(protocol.name for protocol in offered if protocol.name in common_names)] += 1
    names_of_first_member = [protocol.name for protocol in next(iter(offered_by_member))]
    return max(votes_by_name, key=lambda name: (votes_by_name[name], -names_of_first_member.index(name)))


def _protocol_names(offered: tuple[MemberProtocol, ...]) -> frozenset[str]:
    """The names of the protocols."""
    return frozenset(protocol.name for protocol in offered)
