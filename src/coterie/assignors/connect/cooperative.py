"""The built-in assignor ``cooperative`` of connect groups.

It moves as few jobs as possible. Wildcard workers get the floor or the ceiling of the average number of connectors, of
tasks and of both; claims (KIP-987) and drains are respected; jobs of departed members are deferred for the scheduled
rebalance delay (KIP-415), and a member that returns gets exactly its jobs back. The target is the one that the classic
cooperative assignor reaches after all its rounds.

The assignor keeps no state between calls, since another worker may compute the next target. The state that a classic
leader keeps between rounds is in the snapshot: the present targets, the departed members with their delays, and the
order of joining. Each module has one part of the work: `ownership` (which member has which job), `waiting` (which jobs
are deferred), `placement` (where each job is to run), and `standing` (whether the present target is as good).
"""

from collections import defaultdict
from collections.abc import Mapping

from coterie.assignors.assignor_state import union_of_jobs
from coterie.assignors.claims import Eligibility
from coterie.assignors.connect.interface import AssignorMetadata
from coterie.assignors.connect.ownership import Ownership, compute_ownership, member_specs
from coterie.assignors.connect.placement import Placement, PlacementEligibility, compute_placement
from coterie.assignors.connect.standing import is_present_target_as_good
from coterie.assignors.connect.waiting import (
    BRIEFLY_LEFT_CHECK_INTERVAL_MS,
    compute_deferrals,
    possibly_returned_members,
)
from coterie.assignors.delay import tie_break_order
from coterie.assignors.members import MemberSpec, RebalancePolicy
from coterie.nouns.ids import MemberId
from coterie.nouns.jobs import NO_JOBS, Job, Jobs
from coterie.nouns.target_assignments import ComputedTarget, GroupSnapshot, TargetOfMember, UnplaceableJobs

POSTPONED_MOVES_INTERVAL_MIN_MS = 1_000
"""The minimum time from one target to the next while ``rebalance.max.moves.per.round`` postpones moves. An interval is
needed because the end of a move does not request a new target."""


class CooperativeAssignor:
    """The built-in `ConnectAssignor`: it balances the jobs with as few moves as possible, respects claims and drains,
    and defers the jobs of departed members. It sends no metadata and no messages. ``policy`` contains the delay for
    groups without a delay config, and the maximum number of moves per round."""

    name = "cooperative"
    minimum_version = 0
    maximum_version = 3
    """All versions of Connect's embedded metadata: this assignor reads no metadata, since the snapshot contains all
    that it needs."""

    def __init__(self, policy: RebalancePolicy) -> None:
        self._policy = policy

    def metadata(self) -> AssignorMetadata:
        """No metadata: the coordinator reports claims and drains."""
        return AssignorMetadata(version=self.maximum_version)

    def assign(self, group: GroupSnapshot) -> ComputedTarget:
        """The target assignment for ``group`` (:func:`cooperative_target`)."""
        return cooperative_target(group, self._policy)

    def on_assignment(self, assignment: TargetOfMember) -> None:
        """Nothing to do: this assignor sends no message to the members."""


def cooperative_target(snapshot: GroupSnapshot, policy: RebalancePolicy) -> ComputedTarget:
    """The target assignment for ``snapshot`` by the rules of the assignor ``cooperative``. The members keep their
    present targets if these are as good as a new placement of the jobs."""
    members = member_specs(snapshot)
    eligibility = Eligibility.from_members(members, snapshot.configured)
    owned = compute_ownership(snapshot, eligibility.is_eligible)
    deferred = compute_deferrals(snapshot, owned.unowned, policy.max_delay_ms)
    placement_eligibility = PlacementEligibility.from_eligibility(eligibility, owned.briefly_left_members)
    placement = compute_placement(
        owned,
        members,
        placement_eligibility,
        deferred=union_of_jobs(one.jobs for one in deferred.values()),
        order=tie_break_order(
            possibly_returned_members(snapshot, owned),
            placement_eligibility.eligibility_without_briefly_left.wildcard_workers,
        ),
        policy=policy,
    )
    jobs = (
        owned.present_targets
        if is_present_target_as_good(owned, placement, placement_eligibility)
        else placement.jobs_by_member
    )
    return ComputedTarget(
        members={member: TargetOfMember(jobs=jobs[member]) for member in sorted(members)},
        deferred=deferred,
        unplaceable=_group_unplaceable_jobs_by_reason(
            placement.unplaceable_jobs, members, placement_eligibility, owned
        ),
        next_in_ms=_next_non_deferral_target_in_ms(placement, policy),
    )


def _next_non_deferral_target_in_ms(placement: Placement, policy: RebalancePolicy) -> int | None:
    """The time, in ms, until the next target has to be computed although no event requests it: because the limit of
    moves has postponed some, or because jobs wait for static members that have left for a short time. The smaller time
    if both apply; None if neither does. The delays of deferred jobs are not included."""
    due = []
    if placement.postponed_move_count:
        due.append(max(policy.round_interval_ms, POSTPONED_MOVES_INTERVAL_MIN_MS))
    if placement.depends_on_briefly_left_members:
        due.append(BRIEFLY_LEFT_CHECK_INTERVAL_MS)
    return min(due, default=None)


def _group_unplaceable_jobs_by_reason(
    jobs: Jobs, members: Mapping[MemberId, MemberSpec], placement_eligibility: PlacementEligibility, owned: Ownership
) -> tuple[UnplaceableJobs, ...]:
    """The unplaceable ``jobs``, grouped by the reason, which is a text for operators."""
    if not jobs:
        return ()
    waiting = (
        placement_eligibility.eligibility_with_briefly_left.assignable_jobs(jobs)
        if owned.briefly_left_members
        else NO_JOBS
    )
    found: defaultdict[str, list[Job]] = defaultdict(list)
    for job in waiting:
        may = [
            member
            for member in sorted(owned.briefly_left_members)
            if placement_eligibility.eligibility_with_briefly_left.is_eligible(member, job)
        ]
        found[f"each worker that may run it has left for a short time ({', '.join(may)})"].append(job)
    others = jobs - waiting
    claimed = union_of_jobs(spec.claims or NO_JOBS for spec in members.values() if spec.is_draining) & others
    for job in claimed:
        found[placement_eligibility.eligibility_with_briefly_left.unassignable_reason(job, members)].append(job)
    unclaimed = others - claimed
    if unclaimed:  # all of these have the same reason
        found[
            placement_eligibility.eligibility_with_briefly_left.unassignable_reason(next(iter(unclaimed)), members)
        ] += unclaimed
    return tuple(UnplaceableJobs(jobs=Jobs.of(there), reason=reason) for reason, there in sorted(found.items()))
