"""Whether the present target assignment is as good as the computed one, and stays.

Several targets can be equally good. A computation during a reconciliation starts from another ownership than the
previous one, and can arrive at another of these targets. It would stop no further job, but jobs in motion would go to
other members. So the present target is replaced only by a better one.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coterie.assignors.assignor_state import union_of_jobs
from coterie.assignors.connect.ownership import Ownership
from coterie.assignors.connect.placement import Placement, PlacementEligibility
from coterie.nouns.ids import MemberId
from coterie.nouns.jobs import Jobs


def is_present_target_as_good(
    ownership: Ownership, placement: Placement, placement_eligibility: PlacementEligibility
) -> bool:
    """Whether the present target places the same jobs as ``placement``, each on a member that may run it, with as few
    moves, the same loads and as even a spread. False while ``placement`` postpones moves, unless the two are equal."""
    standing, placed = ownership.present_targets, placement.jobs_by_member
    if standing == placed:
        return True
    if placement.postponed_move_count or union_of_jobs(standing.values()) != union_of_jobs(placed.values()):
        return False
    for member, jobs in standing.items():
        others = jobs - placed[member]
        if others and (
            member in ownership.briefly_left_members
            or placement_eligibility.eligibility_with_briefly_left.eligible_jobs(member, others) != others
        ):
            return False
    wildcard, static = (
        placement_eligibility.eligibility_without_briefly_left.wildcard_workers,
        sorted(placement_eligibility.eligibility_without_briefly_left.claims_by_worker),
    )
    was, would_be = (
        _PlacementQuality.from_placement(jobs, ownership.owned_jobs_by_member, wildcard, static)
        for jobs in (standing, placed)
    )
    return (
        was.sorted_wildcard_worker_loads == would_be.sorted_wildcard_worker_loads
        and was.move_count <= would_be.move_count
        and was.static_load_square_sum <= would_be.static_load_square_sum
        and was.connector_spread_square_sum <= would_be.connector_spread_square_sum
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlacementQuality:
    """The values by which two placements of the same jobs are compared."""

    move_count: int
    """The number of jobs that their owners must release."""
    sorted_wildcard_worker_loads: Sequence[Sequence[int]]
    """The numbers of connectors, of tasks and of both on the wildcard workers: three sorted sequences."""
    static_load_square_sum: int
    """The sum of the squares of the numbers of jobs on the static workers; it is lowest when these numbers are even."""
    connector_spread_square_sum: int
    """The sum of the squares of the numbers of each connector's tasks on each wildcard worker; it is lowest when each
    connector's tasks are spread evenly."""

    @classmethod
    def from_placement(
        cls,
        placed: Mapping[MemberId, Jobs],
        owned: Mapping[MemberId, Jobs],
        wildcard: Sequence[MemberId],
        static: Sequence[MemberId],
    ) -> "_PlacementQuality":
        jobs = [placed[member] for member in wildcard]
        cells = (Counter(task.connector for task in one.tasks) for one in jobs)
        return cls(
            move_count=sum(len(jobs - placed[member]) for member, jobs in owned.items()),
            sorted_wildcard_worker_loads=(
                sorted(len(one.connectors) for one in jobs),
                sorted(len(one.tasks) for one in jobs),
                sorted(map(len, jobs)),
            ),
            static_load_square_sum=sum(len(placed[member]) ** 2 for member in static),
            connector_spread_square_sum=sum(count * count for counts in cells for count in counts.values()),
        )
