"""Whether the target that stands may stay.

Several targets can be equally good. A computation in the middle of a reconciliation starts from another ownership than
the previous one, and could choose another of them. No further job would stop, but jobs that are on their way would be
sent elsewhere. So a target that is as good as the computed one is not replaced.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coterie.assignors.assignor_state import union
from coterie.assignors.connect.ownership import Ownership
from coterie.assignors.connect.placement import Placement, Takers
from coterie.nouns.ids import MemberId
from coterie.nouns.jobs import Jobs


def is_as_good(ownership: Ownership, placement: Placement, takers: Takers) -> bool:
    """Whether the present target (``ownership.standing``) is as good as ``placement``, so that it can stay: it places
    the same jobs, each on a member that may run it, with the same loads, and with at most as many moves and at least as
    good a spread."""
    standing, placed = ownership.standing, placement.jobs
    if standing == placed:
        return True
    if placement.postponed or union(standing.values()) != union(placed.values()):
        return False
    for member, jobs in standing.items():
        others = jobs - placed[member]
        if others and (member in ownership.away or takers.in_group.eligible_jobs(member, others) != others):
            return False
    wildcard, static = takers.present.wildcard_workers, sorted(takers.present.claims_by_worker)
    was, would_be = (_Quality.of(jobs, ownership.owned, wildcard, static) for jobs in (standing, placed))
    return (
        was.loads == would_be.loads
        and was.moves <= would_be.moves
        and was.static_squares <= would_be.static_squares
        and was.cell_squares <= would_be.cell_squares
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Quality:
    """The properties by which two placements of the same jobs are compared."""

    moves: int
    """The jobs that their owners must release."""
    loads: Sequence[Sequence[int]]
    """The sorted numbers of connectors, of tasks and of both, of the wildcard workers."""
    static_squares: int
    """The sum of squares of the static workers' numbers of jobs: the least, if these are even."""
    cell_squares: int
    """The sum of squares of the numbers of one connector's tasks on one wildcard worker: the spread."""

    @classmethod
    def of(
        cls,
        placed: Mapping[MemberId, Jobs],
        owned: Mapping[MemberId, Jobs],
        wildcard: Sequence[MemberId],
        static: Sequence[MemberId],
    ) -> "_Quality":
        jobs = [placed[member] for member in wildcard]
        cells = (Counter(task.connector for task in one.tasks) for one in jobs)
        return cls(
            moves=sum(len(mine - placed[member]) for member, mine in owned.items()),
            loads=(
                sorted(len(one.connectors) for one in jobs),
                sorted(len(one.tasks) for one in jobs),
                sorted(map(len, jobs)),
            ),
            static_squares=sum(len(placed[member]) ** 2 for member in static),
            cell_squares=sum(count * count for counts in cells for count in counts.values()),
        )
