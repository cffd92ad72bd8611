"""The eager assignor: everything was stopped before the round, and is dealt out anew (K987, "Motivation")."""

from collections.abc import Iterable, Mapping
from itertools import cycle

from coterie.nouns.ids import MemberId
from coterie.nouns.jobs import Job, Jobs


def assign(configured: Jobs, members: Iterable[MemberId]) -> Mapping[MemberId, Jobs]:
    """The k-th job goes to the k-th of the members by id, round and round; connectors first, then their tasks."""
    hands: dict[MemberId, list[Job]] = {member: [] for member in sorted(members)}
    for job, member in zip(configured, cycle(hands), strict=False):
        hands[member].append(job)
    return {member: Jobs.of(jobs) for member, jobs in hands.items()}
