"""An assignor for tests of the coordinator: each member keeps what it has up to an even share, and jobs of departed
members wait."""

from coterie.nouns.ids import MemberId
from coterie.nouns.jobs import NO_JOBS, Job, Jobs
from coterie.nouns.target_assignments import (
    ComputedTarget,
    DeferredJobs,
    GroupSnapshot,
    TargetOfMember,
    UnplaceableJobs,
)

DELAY_MS = 20_000
"""How long the jobs of a departed member wait."""


def compute(snapshot: GroupSnapshot, *, delay_ms: int = DELAY_MS) -> ComputedTarget:
    """The target for ``snapshot``: complete, disjoint and even over the members that do not drain."""
    left = snapshot.configured
    deferred: dict[MemberId, DeferredJobs] = {}
    held = Jobs.of(job for member in snapshot.members for job in member.current | member.former_jobs)
    for departed in snapshot.departed:
        remaining_ms = delay_ms if departed.delay_left_ms is None else departed.delay_left_ms
        jobs = (departed.jobs & left) - held
        if jobs and remaining_ms > 0:
            deferred[departed.member_id] = DeferredJobs(jobs=jobs, delay_ms=remaining_ms)
            left -= jobs
    takers = [member for member in snapshot.members if not member.draining]
    if not takers:
        why = "every worker is being drained"
        rest = (UnplaceableJobs(jobs=left, reason=why),) if left else ()
        members = {member.member_id: TargetOfMember(jobs=NO_JOBS) for member in snapshot.members}
        return ComputedTarget(members=members, deferred=deferred, unplaceable=rest)
    share, extras = divmod(len(left), len(takers))
    given: dict[MemberId, list[Job]] = {member.member_id: [] for member in takers}
    for member in takers:
        wanted = (member.target | member.current | member.former_jobs) & left
        for job in wanted:
            if len(given[member.member_id]) < share + (extras > 0 and len(given[member.member_id]) == share):
                given[member.member_id].append(job)
        extras -= len(given[member.member_id]) > share
        left -= Jobs.of(given[member.member_id])
    for job in left:
        least = min(takers, key=lambda member: len(given[member.member_id]))
        given[least.member_id].append(job)
    members = {member.member_id: TargetOfMember(jobs=NO_JOBS) for member in snapshot.members}
    members |= {member_id: TargetOfMember(jobs=Jobs.of(jobs)) for member_id, jobs in given.items()}
    return ComputedTarget(members=members, deferred=deferred)
