"""The eager assignor: every worker stops all jobs before the round, which assigns them from scratch.

See KIP-987, "Motivation".
"""

from collections.abc import Iterable, Mapping
from itertools import cycle

from coterie.nouns.ids import MemberId
from coterie.nouns.jobs import Job, Jobs


def assign(configured: Jobs, members: Iterable[MemberId]) -> Mapping[MemberId, Jobs]:
    """Assign the jobs round-robin to the members in order of their ids; connectors first, then tasks."""
    jobs_by_member: dict[MemberId, list[Job]] = {member: [] for member in sorted(members)}
    for job, member in zip(configured, cycle(jobs_by_member), strict=False):
        jobs_by_member[member].append(job)
    return {member: Jobs.of(jobs) for member, jobs in jobs_by_member.items()}
