"""The built-in assignor ``cooperative`` of connect groups.

It moves as few jobs as possible. Wildcard workers end with the floor or the ceiling of the average number of
connectors, of tasks and of both; claims (KIP-987) and drains hold; jobs of departed members wait for the scheduled
rebalance delay (KIP-415), and a member that returns gets exactly its jobs back. In all this it equals the classic
cooperative assignor after its rounds.

It keeps no state between calls, since the next target may be computed on another worker. What the classic leader
remembers is in the snapshot: the targets that stand, the departed members with their delays, and the order of joining.

The work is divided by ideas: who has which job (`ownership`), which jobs wait (`waiting`), where each job is to be
(`placement`), and whether the target that stands is as good (`standing`).
"""

from collections import defaultdict
from collections.abc import Mapping

from coterie.assignors.assignor_state import union
from coterie.assignors.claims import Eligibility
from coterie.assignors.connect.interface import AssignorMetadata
from coterie.assignors.connect.ownership import Ownership, member_specs, ownership
from coterie.assignors.connect.placement import Placement, Takers, place
from coterie.assignors.connect.standing import is_as_good
from coterie.assignors.connect.waiting import LOOK_AGAIN_MS, candidates, deferrals
from coterie.assignors.delay import tie_break_order
from coterie.assignors.members import MemberSpec, RebalancePolicy
from coterie.nouns.ids import MemberId
from coterie.nouns.jobs import NO_JOBS, Job, Jobs
from coterie.nouns.target_assignments import ComputedTarget, GroupSnapshot, TargetOfMember, UnplaceableJobs

PORTION_INTERVAL_MIN_MS = 1_000
"""The least time from one portion of moves to the next: the end of a move requests no new target."""


class CooperativeAssignor:
    """`ConnectAssignor` with the rules of this module. ``policy`` has the delay of groups that have none, and the limit
    of moves per round."""

    name = "cooperative"
    minimum_version = 0
    maximum_version = 3
    """The versions of Connect's embedded metadata. What this assignor needs to know of a member is in the snapshot."""

    def __init__(self, policy: RebalancePolicy) -> None:
        self._policy = policy

    def metadata(self) -> AssignorMetadata:
        """No metadata: the coordinator reports claims and drains."""
        return AssignorMetadata(version=self.maximum_version)

    def assign(self, group: GroupSnapshot) -> ComputedTarget:
        """The target assignment for ``group``."""
        return cooperative_target(group, self._policy)

    def on_assignment(self, assignment: TargetOfMember) -> None:
        """Nothing to do: this assignor sends no message to the members."""


def cooperative_target(snapshot: GroupSnapshot, policy: RebalancePolicy) -> ComputedTarget:
    """The target assignment for ``snapshot``."""
    members = member_specs(snapshot)
    eligibility = Eligibility.from_members(members, snapshot.configured)
    owned = ownership(snapshot, eligibility.is_eligible)
    deferred = deferrals(snapshot, owned.unowned, policy.max_delay_ms)
    takers = Takers.of(eligibility, owned.away)
    placement = place(
        owned,
        members,
        takers,
        deferred=union(one.jobs for one in deferred.values()),
        order=tie_break_order(candidates(snapshot, owned), takers.present.wildcard_workers),
        policy=policy,
    )
    jobs = owned.standing if is_as_good(owned, placement, takers) else placement.jobs
    return ComputedTarget(
        members={member: TargetOfMember(jobs=jobs[member]) for member in sorted(members)},
        deferred=deferred,
        unplaceable=_with_reasons(placement.unplaceable, members, takers, owned),
        next_in_ms=_next_in_ms(placement, policy),
    )


def _next_in_ms(placement: Placement, policy: RebalancePolicy) -> int | None:
    """The time until the target must be computed again although no member, job or setting has changed; None if that is
    not needed."""
    due = []
    if placement.postponed:
        due.append(max(policy.round_interval_ms, PORTION_INTERVAL_MIN_MS))
    if placement.waits_for_away:
        due.append(LOOK_AGAIN_MS)
    return min(due, default=None)


def _with_reasons(
    jobs: Jobs, members: Mapping[MemberId, MemberSpec], takers: Takers, owned: Ownership
) -> tuple[UnplaceableJobs, ...]:
    """The jobs in ``jobs``, which no present member may run, grouped by the reason. A reason is a text for
    operators."""
    if not jobs:
        return ()
    waiting = takers.in_group.assignable(jobs) if owned.away else NO_JOBS
    found: defaultdict[str, list[Job]] = defaultdict(list)
    for job in waiting:
        may = [member for member in sorted(owned.away) if takers.in_group.is_eligible(member, job)]
        found[f"each worker that may run it has left for a short time ({', '.join(may)})"].append(job)
    others = jobs - waiting
    claimed = union(view.claims or NO_JOBS for view in members.values() if view.draining) & others
    for job in claimed:
        found[takers.in_group.unassigned_reason(job, members)].append(job)
    unclaimed = others - claimed
    if unclaimed:  # all of these have the same reason
        found[takers.in_group.unassigned_reason(next(iter(unclaimed)), members)] += unclaimed
    return tuple(UnplaceableJobs(jobs=Jobs.of(there), reason=reason) for reason, there in sorted(found.items()))
