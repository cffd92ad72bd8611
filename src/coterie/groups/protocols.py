"""Which protocol a group speaks: what all members have in common, and their vote among that."""

from collections import Counter
from collections.abc import Collection, Iterable

from coterie.groups.messages import MemberProtocol


def have_one_in_common(offered: Iterable[MemberProtocol], others: Collection[tuple[MemberProtocol, ...]]) -> bool:
    """Whether all ``others`` offer one of ``offered``, too. Who offers nothing is not known yet, and is not asked."""
    known = [_names(other) for other in others if other]
    return any(all(protocol.name in names for names in known) for protocol in offered)


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
