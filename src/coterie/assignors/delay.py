"""The scheduled rebalance delay (KIP-415): which jobs wait, until when, and which new members may have returned."""

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import replace

from coterie.assignors.members import MemberView
from coterie.assignors.memory import Memory, Waiting
from coterie.nouns.ids import InstanceId, MemberId
from coterie.nouns.jobs import Jobs


def waiting_now(
    trusted: Memory,
    unaccounted: Jobs,
    members: Mapping[MemberId, MemberView],
    *,
    now_ms: int,
    max_delay_ms: int,
    known_delay_ms: int,
) -> tuple[Waiting, ...]:
    """Return the jobs of ``unaccounted`` that wait, grouped by departed member, the earliest deadline first.

    Each departure has its own delay. No job waits for a static member that has returned (it has already received all
    jobs that it may run), nor for a member that drained. A leader without a memory lets all ``unaccounted`` jobs wait
    for the delay in its own last assignment (KIP-415, "Leader leaves the group").
    """
    if max_delay_ms <= 0 or not unaccounted:
        return ()
    if trusted.generation < 0:
        told = Waiting(jobs=unaccounted, deadline_ms=now_ms + min(known_delay_ms, max_delay_ms))
        return _awaited([told], unaccounted, now_ms, present=frozenset())
    present = {view.instance_id for view in members.values() if view.instance_id is not None}
    fresh = [
        Waiting(jobs=held.whole, deadline_ms=now_ms + max_delay_ms, instance_id=held.instance_id)
        for member, held in sorted(trusted.members.items())
        if member not in members and not held.draining
    ]
    return _awaited([*trusted.waiting, *fresh], unaccounted, now_ms, present=present)


def _awaited(
    waiting: Iterable[Waiting], unaccounted: Jobs, now_ms: int, *, present: Set[InstanceId]
) -> tuple[Waiting, ...]:
    left = unaccounted
    still: list[Waiting] = []
    for one in sorted(waiting, key=lambda one: one.deadline_ms):
        jobs = one.jobs & left
        left -= jobs
        if jobs and one.deadline_ms > now_ms and one.instance_id not in present:
            still.append(replace(one, jobs=jobs))
    return tuple(still)


def candidates(
    known: Sequence[MemberId], arrived: Iterable[MemberId], members: Collection[MemberId]
) -> tuple[MemberId, ...]:
    """Return the members that joined without jobs while jobs waited, in order of arrival."""
    here = (member for member in known if member in members)
    return tuple(dict.fromkeys((*here, *arrived)))


def in_turn(first: Sequence[MemberId], wildcard: Collection[MemberId]) -> Sequence[MemberId]:
    """Return the order in which equally loaded members receive jobs: candidates by arrival, then the others by id."""
    takers = set(wildcard)
    served = dict.fromkeys(member for member in first if member in takers)
    return (*served, *sorted(member for member in wildcard if member not in served))
