"""Where each job is to run: the rules of the classic cooperative assignor, with all its rounds in one computation.

The classic leader revokes in one round and assigns in the next. A target assignment needs no rounds, so the jobs that
the first round would revoke are placed at once. The rules are in modules of `coterie.assignors`: `claims` (which member
may run which job), `target` and `job_selection` (how many jobs each member gains and releases, and which), `moves` (the
limit of moves).
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from coterie.assignors.assignor_state import union_of_jobs
from coterie.assignors.claims import Eligibility
from coterie.assignors.connect.ownership import Ownership
from coterie.assignors.job_selection import jobs_to_receive_and_release
from coterie.assignors.members import MemberSpec, RebalancePolicy
from coterie.assignors.moves import Revocations, count_revoked_jobs, limit_revocations
from coterie.nouns.ids import MemberId
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Job, Jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The jobs of each member, and the jobs that no member may receive now. Jobs that are deferred for a departed
    member are in neither."""

    jobs_by_member: Mapping[MemberId, Jobs]
    """The jobs of every member; a member without jobs has an empty value."""
    unplaceable_jobs: Jobs
    """The jobs that are in ``jobs_by_member`` of no member and are not deferred for a departed member: no member may
    receive them now."""
    postponed_move_count: int
    """The number of moves that the limit of moves per round has postponed: these jobs stay on their present members."""
    depends_on_briefly_left_members: bool
    """Whether the placement would differ if the static members that have left for a short time were present: then
    it is computed again later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementEligibility:
    """Which members may receive which jobs, with and without the static members that have left for a short time."""

    eligibility_with_briefly_left: Eligibility
    """Which members may receive which jobs if static members that have left for a short time count as present."""
    eligibility_without_briefly_left: Eligibility
    """The same without the static members that have left for a short time."""
    jobs_claimed_only_by_briefly_left: Jobs
    """The jobs that are claimed only by static members that have left for a short time: these jobs stay where they are,
    or wait."""

    @classmethod
    def from_eligibility(
        cls, eligibility_of_all: Eligibility, briefly_left: frozenset[MemberId]
    ) -> "PlacementEligibility":
        """The object for the given eligibility, which counts all members of the group as present and becomes
        ``eligibility_with_briefly_left``. ``briefly_left`` are the static members that have left for a short time;
        without them it computes ``eligibility_without_briefly_left``."""
        if not briefly_left:
            return cls(
                eligibility_with_briefly_left=eligibility_of_all,
                eligibility_without_briefly_left=eligibility_of_all,
                jobs_claimed_only_by_briefly_left=NO_JOBS,
            )
        claims = {
            member: jobs for member, jobs in eligibility_of_all.claims_by_worker.items() if member not in briefly_left
        }
        present = replace(
            eligibility_of_all,
            wildcard_workers=tuple(
                member for member in eligibility_of_all.wildcard_workers if member not in briefly_left
            ),
            claims_by_worker=claims,
            draining_workers=eligibility_of_all.draining_workers - briefly_left,
        )
        return cls(
            eligibility_with_briefly_left=eligibility_of_all,
            eligibility_without_briefly_left=present,
            jobs_claimed_only_by_briefly_left=eligibility_of_all.static_jobs - union_of_jobs(claims.values()),
        )

    def owned_jobs_to_release(self, owned: Mapping[MemberId, Jobs]) -> Revocations:
        """The ``owned`` jobs that each member must release because of claims and drains. A job that only members that
        have left for a short time could receive stays with its owner. There is one exception: an owner with claims
        releases each job that it does not claim, also if no present member can run the job then."""
        ineligible = self.eligibility_with_briefly_left.owned_jobs_to_release(owned)
        if self.eligibility_without_briefly_left is self.eligibility_with_briefly_left:
            return ineligible
        found = {
            member: (
                self.eligibility_without_briefly_left.assignable_jobs(jobs)
                if member in self.eligibility_with_briefly_left.draining_workers
                else jobs
            )
            - (
                NO_JOBS
                if member in self.eligibility_with_briefly_left.claims_by_worker
                else self.jobs_claimed_only_by_briefly_left
            )
            for member, jobs in ineligible.items()
        }
        return {member: jobs for member, jobs in found.items() if jobs}

    def unplaceable_jobs(self, jobs: Jobs) -> Jobs:
        """Those of ``jobs`` that no member may receive now. Members that drain, and static members that have left for a
        short time, do not count as receivers."""
        return self.eligibility_without_briefly_left.unassignable_jobs(jobs) | (
            jobs & self.jobs_claimed_only_by_briefly_left
        )


def compute_placement(
    ownership: Ownership,
    members: Mapping[MemberId, MemberSpec],
    placement_eligibility: PlacementEligibility,
    *,
    deferred: Jobs,
    order: Sequence[MemberId],
    policy: RebalancePolicy,
) -> Placement:
    """The placement of all jobs except the ``deferred`` ones.

    While jobs are deferred, or a static member that has left for a short time (is away) owns jobs, no job moves for
    balance. ``order`` contains the wildcard workers that are not away; among equals, an earlier one is preferred.
    """
    draining = placement_eligibility.eligibility_with_briefly_left.draining_workers
    ineligible = placement_eligibility.owned_jobs_to_release(ownership.owned_jobs_by_member)
    drains = {member: jobs for member, jobs in ineligible.items() if member in draining}
    stays = {member: jobs - ineligible.get(member, NO_JOBS) for member, jobs in ownership.owned_jobs_by_member.items()}
    static = placement_eligibility.eligibility_with_briefly_left.static_jobs
    to_place = (ownership.unowned | union_of_jobs(ineligible.values())) - static
    given: Mapping[MemberId, Jobs] = {}
    surplus: Revocations = {}
    moved = ownership.owned_jobs_targeted_elsewhere
    if order:
        given, surplus = jobs_to_receive_and_release(
            stays, to_assign=to_place, assignable_now=to_place - deferred, moved_before=moved, order=order
        )
    is_held_back = bool(deferred) or any(
        ownership.owned_jobs_by_member[member] for member in ownership.briefly_left_members
    )
    to_balance = {} if is_held_back else surplus
    drains_now, balance_now = _limit_new_moves(drains, to_balance, ownership, policy)
    postponed = {member: jobs - drains_now.get(member, NO_JOBS) for member, jobs in drains.items()}
    stay_there = union_of_jobs(postponed.values())
    if order and (balance_now or stay_there):
        released = union_of_jobs(surplus.values())
        kept = released - union_of_jobs(balance_now.values())
        every = to_place | released
        given, _ = jobs_to_receive_and_release(
            {member: stays[member] - surplus.get(member, NO_JOBS) for member in order},
            to_assign=every,
            assignable_now=every - (deferred | stay_there | kept),
            moved_before=moved,
            order=order,
        )
    given = swap_toward_present_targets(given, ownership.present_targets)
    unowned, moving = ownership.unowned - deferred, union_of_jobs(ineligible.values()) - stay_there
    unplaceable = placement_eligibility.unplaceable_jobs(unowned | moving)
    load = {member: len(jobs) for member, jobs in stays.items()}
    parts = [given]
    for claimed in ((unowned & static) - unplaceable, (moving & static) - unplaceable):
        # In two steps, like the classic rounds: first the jobs without an owner, then the jobs that members release.
        parts.append(placement_eligibility.eligibility_without_briefly_left.assign_static_jobs(claimed, load))
        load = {member: count + len(parts[-1].get(member, NO_JOBS)) for member, count in load.items()}
    back = placement_eligibility.eligibility_without_briefly_left.assign_back_to_draining(
        unplaceable & _targeted_or_unreleased_jobs(ownership, draining), members, load
    )
    parts += [postponed, back]
    placed = {
        member: union_of_jobs(
            [jobs - balance_now.get(member, NO_JOBS), *(part[member] for part in parts if member in part)]
        )
        for member, jobs in stays.items()
    }
    return Placement(
        jobs_by_member=placed,
        unplaceable_jobs=unplaceable - union_of_jobs(back.values()),
        postponed_move_count=len(stay_there) + count_revoked_jobs(to_balance) - count_revoked_jobs(balance_now),
        depends_on_briefly_left_members=bool(ownership.briefly_left_members)
        and _depends_on_briefly_left_members(placed, unplaceable, placement_eligibility),
    )


def swap_toward_present_targets(
    given: Mapping[MemberId, Jobs], present_targets: Mapping[MemberId, Jobs]
) -> Mapping[MemberId, Jobs]:
    """The placement ``given`` with the same numbers of connectors, and of tasks of each connector, for each member; but
    a job goes to the member that has it in ``present_targets``, as far as these numbers allow it."""
    every = union_of_jobs(given.values())
    former_jobs = {member: jobs for member in given if (jobs := present_targets[member] & every)}
    if not former_jobs:
        return given
    room = {member: Counter(map(_connector_of_task_or_none, jobs)) for member, jobs in given.items()}
    found: defaultdict[MemberId, list[Job]] = defaultdict(list)
    for member, jobs in sorted(former_jobs.items()):
        for job in jobs:
            if room[member][_connector_of_task_or_none(job)]:
                room[member][_connector_of_task_or_none(job)] -= 1
                found[member].append(job)
    left: defaultdict[ConnectorName | None, list[Job]] = defaultdict(list)
    for job in every - Jobs.of(job for jobs in found.values() for job in jobs):
        left[_connector_of_task_or_none(job)].append(job)
    for member in given:
        for kind, count in room[member].items():
            found[member] += [left[kind].pop() for _ in range(count)]
    return {member: Jobs.of(jobs) for member, jobs in found.items()}


def _connector_of_task_or_none(job: Job) -> ConnectorName | None:
    """What two jobs must have in common to be exchanged: the connector of a task; None for connectors, which are all of
    one kind."""
    return job.connector if isinstance(job, ConnectorTaskId) else None


def _limit_new_moves(
    drains: Revocations, balance: Revocations, ownership: Ownership, policy: RebalancePolicy
) -> tuple[Revocations, Revocations]:
    """The revocations of ``drains`` and of ``balance`` that ``rebalance.max.moves.per.round`` allows now.

    Moves that an earlier target has ordered continue. They count against the limit, and so do the revoked jobs that
    members have not given back: at most as many jobs as the limit move at the same time.
    """
    if policy.moves_per_round_max is None:
        return drains, balance
    ordered = ownership.owned_jobs_targeted_elsewhere
    going = [{member: jobs & ordered for member, jobs in part.items()} for part in (drains, balance)]
    fresh = [{member: jobs - ordered for member, jobs in part.items()} for part in (drains, balance)]
    on_their_way = sum(map(count_revoked_jobs, going)) + count_revoked_jobs(ownership.unreleased_jobs_by_member)
    left = replace(policy, moves_per_round_max=max(0, policy.moves_per_round_max - on_their_way))
    more = limit_revocations(fresh[0], fresh[1], policy=left, now_ms=0, moves_allowed_at_ms=0)
    drains_now, balance_now = (
        {member: union_of_jobs([part[member], also.get(member, NO_JOBS)]) for member in part}
        for part, also in zip(going, more, strict=True)
    )
    return drains_now, balance_now


def _targeted_or_unreleased_jobs(ownership: Ownership, draining: frozenset[MemberId]) -> Jobs:
    """The jobs that draining members had or have: those that were revoked and not given back, and those of the present
    targets."""
    return union_of_jobs(
        [
            jobs
            for member in sorted(draining)
            for jobs in (ownership.unreleased_jobs_by_member[member], ownership.present_targets[member])
        ]
    )


def _depends_on_briefly_left_members(
    placed: Mapping[MemberId, Jobs], unplaceable: Jobs, placement_eligibility: PlacementEligibility
) -> bool:
    """Whether a static member that has left for a short time could run a job that is unplaceable or must move, or would
    gain or release a job for balance."""
    eligibility_of_all = placement_eligibility.eligibility_with_briefly_left
    if eligibility_of_all.assignable_jobs(unplaceable) or eligibility_of_all.owned_jobs_to_release(placed):
        return True
    _, surplus = jobs_to_receive_and_release(
        placed,
        to_assign=NO_JOBS,
        assignable_now=NO_JOBS,
        moved_before=NO_JOBS,
        order=eligibility_of_all.wildcard_workers,
    )
    return bool(surplus)
