"""The scheduled rebalance delay (KIP-415): which jobs of departed members wait, until when, and which new members may
be departed members that have returned.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import replace

from coterie.assignors.assignor_state import AssignorState, Deferral
from coterie.assignors.members import MemberSpec
from coterie.nouns.ids import InstanceId, MemberId
from coterie.nouns.jobs import Jobs


def current_deferrals(
    state: AssignorState,
    unowned: Jobs,
    members: Mapping[MemberId, MemberSpec],
    *,
    now_ms: int,
    max_delay_ms: int,
    received_delay_ms: int,
) -> tuple[Deferral, ...]:
    """Return the jobs of ``unowned`` that wait, grouped by departed member, the earliest deadline first.

    Each departed member has its own delay: ``max_delay_ms`` from the ``now_ms`` of the first round without the member.
    No job waits for a static member that has returned (the member has already received all jobs that it may run), nor
    for a member that drained. A leader whose ``state`` is empty lets all ``unowned`` jobs wait for
    ``received_delay_ms``, the rest of the delay in its own last assignment, but not longer than ``max_delay_ms``
    (KIP-415, "Leader leaves the group"). If ``max_delay_ms`` is 0, no job waits.
    """
    if max_delay_ms <= 0 or not unowned:
        return ()
    if state.generation < 0:
        told = Deferral(jobs=unowned, deadline_ms=now_ms + min(received_delay_ms, max_delay_ms))
        return _unexpired([told], unowned, now_ms, present=frozenset())
    present = {view.instance_id for view in members.values() if view.instance_id is not None}
    fresh = [
        Deferral(jobs=held.owned_after, deadline_ms=now_ms + max_delay_ms, instance_id=held.instance_id)
        for member, held in sorted(state.members.items())
        if member not in members and not held.draining
    ]
    return _unexpired([*state.deferrals, *fresh], unowned, now_ms, present=present)


def _unexpired(
    deferrals: Iterable[Deferral], unowned: Jobs, now_ms: int, *, present: Set[InstanceId]
) -> tuple[Deferral, ...]:
    """Return ``deferrals`` with only their ``unowned`` jobs, the earliest deadline first; a job is in one of them only.

    Those without such jobs, those whose deadline has passed, and those of ``present`` static members are left out.
    """
    left = unowned
    still: list[Deferral] = []
    for one in sorted(deferrals, key=lambda one: one.deadline_ms):
        jobs = one.jobs & left
        left -= jobs
        if jobs and one.deadline_ms > now_ms and one.instance_id not in present:
            still.append(replace(one, jobs=jobs))
    return tuple(still)


def update_candidates(
    previous: Sequence[MemberId], arrived: Iterable[MemberId], members: Collection[MemberId]
) -> tuple[MemberId, ...]:
    """Return ``previous`` without the members that are not in ``members`` any more, then ``arrived``, each once.

    ``arrived`` are the members that joined this round without jobs while jobs of departed members wait.
    """
    here = (member for member in previous if member in members)
    return tuple(dict.fromkeys((*here, *arrived)))


def tie_break_order(first: Sequence[MemberId], wildcard_workers: Collection[MemberId]) -> Sequence[MemberId]:
    """Return the order in which equally loaded members receive jobs.

    These are all ``wildcard_workers``: those in ``first`` in the order of ``first``, then the others by id.
    """
    takers = set(wildcard_workers)
    served = dict.fromkeys(member for member in first if member in takers)
    return (*served, *sorted(member for member in wildcard_workers if member not in served))
