"""The jobs that wait: for departed members (the scheduled rebalance delay), and for members that are away."""

from collections.abc import Mapping, Sequence

from coterie.assignors.assignor_state import union
from coterie.assignors.connect.ownership import Ownership
from coterie.nouns.ids import MemberId
from coterie.nouns.jobs import Jobs
from coterie.nouns.target_assignments import DeferredJobs, GroupSnapshot

LOOK_AGAIN_MS = 5_000
"""The time until the next computation while jobs wait for a member that is away. The return of such a member does not
request a new target, and neither does the release of a job."""


def deferrals(snapshot: GroupSnapshot, unowned: Jobs, max_delay_ms: int) -> Mapping[MemberId, DeferredJobs]:
    """The jobs in ``unowned`` that wait for departed members, by departed member (KIP-415).

    Each departed member has its own delay: the group's, or ``max_delay_ms`` if the group has none. A delay that has
    begun is never made longer. A job in the target of a member does not wait again: it was assigned to that member
    after an earlier delay. The jobs of a departed member that has returned are not in ``unowned``.
    """
    limit_ms = max_delay_ms if snapshot.max_delay_ms is None else snapshot.max_delay_ms
    left = unowned
    if left and snapshot.departed:
        left -= union([jobs for member in snapshot.members for jobs in (member.target, member.pending)])
    found: dict[MemberId, DeferredJobs] = {}
    for one in sorted(snapshot.departed, key=lambda one: one.member_id):
        jobs = one.jobs & left
        delay_ms = limit_ms if one.delay_left_ms is None else min(one.delay_left_ms, limit_ms)
        if jobs and delay_ms > 0:
            found[one.member_id] = DeferredJobs(jobs=jobs, delay_ms=delay_ms)
            left -= jobs
    return found


def candidates(snapshot: GroupSnapshot, ownership: Ownership) -> Sequence[MemberId]:
    """The members without jobs while there are jobs of departed members, in the order in which they joined. Each may be
    a departed member that has returned under another name, so among equals they receive these jobs first (KIP-415)."""
    if not snapshot.departed:
        return ()
    return [
        one.member_id
        for one in snapshot.members
        if not (ownership.owned[one.member_id] or ownership.standing[one.member_id])
    ]
