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
    """Return the jobs of ``unowned`` that wait for the return of a departed member, grouped by this member, the
    earliest deadline first.

    Each departed member has its own delay: ``max_delay_ms`` from the ``now_ms`` of the first round without the member.
    No job waits for a static member that has returned (the member has already received all jobs that it may run), nor
    for a member that drained. A leader whose ``state`` is empty lets all ``unowned`` jobs wait for
    ``received_delay_ms``, the rest of the delay in its own last assignment, but not longer than ``max_delay_ms``
    (KIP-415, "Leader leaves the group"). If ``max_delay_ms`` is 0, no job waits.
    """
    if max_delay_ms <= 0 or not unowned:
        return ()
    if state.generation < 0:
        received = Deferral(jobs=unowned, deadline_ms=now_ms + min(received_delay_ms, max_delay_ms))
        return _unexpired_deferrals([received], unowned, now_ms, present_instances=frozenset())
    present = {spec.instance_id for spec in members.values() if spec.instance_id is not None}
    new_deferrals = [
        Deferral(jobs=outcome.owned_after, deadline_ms=now_ms + max_delay_ms, instance_id=outcome.instance_id)
        for member, outcome in sorted(state.outcome_by_member.items())
        if member not in members and not outcome.is_draining
    ]
    return _unexpired_deferrals([*state.deferrals, *new_deferrals], unowned, now_ms, present_instances=present)


def _unexpired_deferrals(
    deferrals: Iterable[Deferral], unowned: Jobs, now_ms: int, *, present_instances: Set[InstanceId]
) -> tuple[Deferral, ...]:
    """Return ``deferrals`` with only their ``unowned`` jobs, the earliest deadline first; a job is in one of them only.

    Deferrals without such jobs, deferrals whose deadline has passed, and deferrals for a static member that is in the
    group (``present_instances``) are left out.
    """
    remaining = unowned
    unexpired: list[Deferral] = []
    for deferral in sorted(deferrals, key=lambda deferral: deferral.deadline_ms):
        jobs = deferral.jobs & remaining
        remaining -= jobs
        if jobs and deferral.deadline_ms > now_ms and deferral.instance_id not in present_instances:
            unexpired.append(replace(deferral, jobs=jobs))
    return tuple(unexpired)


def next_possibly_returned_members(
    previous_candidates: Sequence[MemberId], new_candidates: Iterable[MemberId], members: Collection[MemberId]
) -> tuple[MemberId, ...]:
    """Return ``previous_candidates`` without the members that are not in ``members`` any more, then ``new_candidates``,
    each once.

    ``new_candidates`` are the members that joined this round without jobs while jobs of departed members wait.
    """
    remaining_candidates = (member for member in previous_candidates if member in members)
    return tuple(dict.fromkeys((*remaining_candidates, *new_candidates)))


def tie_break_order(first_members: Sequence[MemberId], wildcard_workers: Collection[MemberId]) -> Sequence[MemberId]:
    """Return the order in which equally loaded members receive jobs.

    These are all ``wildcard_workers``: those in ``first_members`` in the order of ``first_members``, then the others by
    id.
    """
    wildcard_set = set(wildcard_workers)
    preferred_members = dict.fromkeys(member for member in first_members if member in wildcard_set)
    return (*preferred_members, *sorted(member for member in wildcard_workers if member not in preferred_members))
