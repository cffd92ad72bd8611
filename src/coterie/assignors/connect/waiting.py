"""The jobs that are deferred for departed members (the scheduled rebalance delay), or wait for static members that have
left for a short time."""

from collections.abc import Mapping, Sequence

from coterie.assignors.assignor_state import union_of_jobs
from coterie.assignors.connect.ownership import Ownership
from coterie.nouns.ids import MemberId
from coterie.nouns.jobs import Jobs
from coterie.nouns.target_assignments import DeferredJobs, GroupSnapshot

BRIEFLY_LEFT_CHECK_INTERVAL_MS = 5_000
"""The time until the next computation while jobs wait for a static member that has left for a short time. An interval
is needed because neither the return of such a member nor the release of a job requests a new target."""


def compute_deferrals(snapshot: GroupSnapshot, unowned: Jobs, max_delay_ms: int) -> Mapping[MemberId, DeferredJobs]:
    """The ``unowned`` jobs that are deferred, by departed member (KIP-415).

    Each departed member has its own delay: the group's or, if the group has none, ``max_delay_ms``. A delay that has
    begun never becomes longer. A job in the present target of a member was assigned after an earlier delay, so it is
    not deferred again, nor is a job that was revoked from a member. ``unowned`` contains no jobs of a departed member
    that has returned.
    """
    limit_ms = max_delay_ms if snapshot.max_delay_ms is None else snapshot.max_delay_ms
    left = unowned
    if left and snapshot.departed:
        left -= union_of_jobs([jobs for member in snapshot.members for jobs in (member.target, member.pending)])
    found: dict[MemberId, DeferredJobs] = {}
    for one in sorted(snapshot.departed, key=lambda one: one.member_id):
        jobs = one.jobs & left
        delay_ms = limit_ms if one.delay_left_ms is None else min(one.delay_left_ms, limit_ms)
        if jobs and delay_ms > 0:
            found[one.member_id] = DeferredJobs(jobs=jobs, delay_ms=delay_ms)
            left -= jobs
    return found


def possibly_returned_members(snapshot: GroupSnapshot, ownership: Ownership) -> Sequence[MemberId]:
    """The members that own no job and have none in their present target, in the order in which they joined; none if no
    member has departed. Each may be a departed member that has returned under another member id, so among equals they
    receive jobs first (KIP-415)."""
    if not snapshot.departed:
        return ()
    return [
        one.member_id
        for one in snapshot.members
        if not (ownership.owned_jobs_by_member[one.member_id] or ownership.present_targets[one.member_id])
    ]
