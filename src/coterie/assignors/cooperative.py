"""The incremental cooperative assignor: the leader's rounds of KIP-415, with KIP-987's claims and a balanced target.

A round never moves a job directly from one worker to another. First, one round revokes the job from its owner. The
owner stops the job and joins again without it. The next round finds the job without an owner and assigns it. All other
jobs keep running.

A member may join again before it has stopped all its revoked jobs, because the jobs that it has released should not
wait for the others. It then still reports the others. The leader knows them from its last round: it counts them no
longer as the member's jobs, assigns them to no other member, and revokes them again.

A job that no member runs is in one of three situations:

- *waiting*: the worker that ran the job has left the group. The worker may soon return (a bounce), so its jobs wait for
  the scheduled rebalance delay, which is counted separately for each departure. While jobs wait, no job is revoked for
  balance.
- *undelivered*: the job was assigned to a worker that is still in the group, but the assignment was lost. The job is
  assigned at once.
- *new*, or released after the previous round: the job is assigned at once.

A *static member* (KIP-345) keeps its instance id when its process restarts, so the leader recognizes the member when it
returns. It immediately receives all jobs that it had and that no member runs now, whatever the delay and its quota. If
these are more jobs than its quota, a round for balance follows.

To distinguish these situations the leader needs the :class:`AssignorState` of its last round. A new leader has no such
state and assigns all jobs without an owner at once. There is one exception: if the new leader's own last assignment
contained a delay that has not ended, all these jobs wait (KIP-415, "Leader leaves the group").

Each concern has a module: the state that the leader keeps between rounds (`assignor_state`), the delay (`delay`), which
member may run which job (`claims`), how many jobs each member gains or releases (`target`), which jobs these are
(`job_selection`) and how many jobs move in one round (`moves`). In a group without claims and drains, `claims` has no
effect.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coterie.assignors.assignor_state import (
    AssignorState,
    Deferral,
    MemberOutcome,
    choose_kept_jobs_and_duplicates,
    former_jobs_of_static_members,
    union_of_jobs,
    unreleased_revocations,
    usable_state,
)
from coterie.assignors.claims import Eligibility
from coterie.assignors.delay import current_deferrals, next_possibly_returned_members, tie_break_order
from coterie.assignors.job_selection import jobs_to_receive_and_release
from coterie.assignors.members import MemberSpec, RebalancePolicy
from coterie.assignors.moves import RevocationReason, Revocations, count_revoked_jobs, limit_revocations
from coterie.assignors.target import fewest_moves_bound
from coterie.nouns.ids import GenerationId, MemberId
from coterie.nouns.jobs import NO_JOBS, Job, Jobs

IMMEDIATE_ROUND_DELAY_MS = 1
"""The shortest time until a round that a timer must start. A timer is needed if no member releases jobs: a member that
has released jobs joins again, which starts a round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOutcome:
    """The result of one round that the leader computed."""

    assignor_state: AssignorState
    """The state that this leader needs in its next round. It contains the result of this round for each member."""
    eligibility: Eligibility
    """Which member may run which job in this round."""
    delay_ms: int
    """Time from this round to the earliest deadline of waiting jobs (scheduled rebalance delay), sent to all members;
    0 when no jobs wait."""
    next_moves_timer_ms: int
    """Time until the leader must request another round because the limit of moves per round postponed moves.

    0 when no moves are left, or when a member that releases jobs starts the next round anyway. Other members do not
    receive this time: the next leader has no interval to wait for and may continue at once.
    """
    reason_by_unassigned_job: Mapping[Job, str]
    """The configured jobs that no member runs and that this round assigns to no member, each with the reason."""
    move_count_to_target: int
    """Number of jobs that must move, for claims, drains and balance, from the ownership that the members reported to
    the target; without the jobs that the last round revoked already.

    This round revokes these jobs, with two exceptions: none for balance while jobs wait, and for drains and balance
    only as many as the limit of moves per round allows.
    """
    move_count_lower_bound: int
    """Lower bound of ``move_count_to_target`` for any target: the moves for claims and drains, plus
    :func:`.fewest_moves_bound` for the jobs that no static worker claims. Not always reachable.
    """

    @property
    def assignments(self) -> Mapping[MemberId, MemberOutcome]:
        """The result of the round for each member."""
        return self.assignor_state.outcome_by_member

    @property
    def next_round_timer_ms(self) -> int:
        """Time until the next round that a timer starts: at the end of the delay, or to continue postponed moves.

        0 when no timer is needed: no round follows, or a member that releases jobs starts the next round.
        """
        return min((due_ms for due_ms in (self.delay_ms, self.next_moves_timer_ms) if due_ms), default=0)


def assign(
    state: AssignorState,
    *,
    configured: Jobs,
    members: Mapping[MemberId, MemberSpec],
    generation: GenerationId,
    last_completed_generation: GenerationId,
    now_ms: int,
    policy: RebalancePolicy,
    received_delay_ms: int = 0,
) -> RoundOutcome:
    """Compute the round of ``generation``: which jobs each member keeps, receives and must release.

    :param state: the state of this leader's last round; the default if it has computed none.
    :param last_completed_generation: the last generation whose assignment this worker received; -1 if it has received
        none since it became a member of the group.
    :param received_delay_ms: rest, at ``now_ms``, of the delay that this worker's own last assignment contained.
    """
    usable = usable_state(state, members, generation=generation, last_completed_generation=last_completed_generation)
    eligibility = Eligibility.from_members(members, configured)
    ownership = _compute_ownership(configured, members, usable, eligibility)
    deferrals = current_deferrals(
        usable,
        ownership.unowned,
        members,
        now_ms=now_ms,
        max_delay_ms=policy.max_delay_ms,
        received_delay_ms=received_delay_ms,
    )
    new_candidates = [
        member
        for member in eligibility.wildcard_workers
        if deferrals and not ownership.owned_jobs_by_member[member] and member not in usable.outcome_by_member
    ]
    reassignment_candidates = (
        next_possibly_returned_members(usable.possibly_returned_members, new_candidates, members)
        if deferrals
        else usable.possibly_returned_members
    )
    departed_outcomes = [outcome for member, outcome in usable.outcome_by_member.items() if member not in members]
    lost_assigned = union_of_jobs(outcome.assigned for outcome in departed_outcomes)
    moved_before = (
        usable.jobs_moved_before | lost_assigned | union_of_jobs(outcome.kept for outcome in departed_outcomes)
    ) & configured
    released_by_draining = usable.released_by_draining - lost_assigned
    target_diff = _compute_target_diff(
        ownership,
        eligibility,
        members,
        deferrals,
        moved_before=moved_before,
        released_by_draining=released_by_draining,
        order=tie_break_order(reassignment_candidates, eligibility.wildcard_workers),
    )

    # While jobs wait, no job moves for balance. Jobs that this round returns to a static member do not run yet: if they
    # are too many, the next round revokes the surplus.
    balance_revocations = {
        member: jobs & members[member].owned
        for member, jobs in target_diff.revocations_for_balance.items()
        if not deferrals
    }
    drains, balance = limit_revocations(
        target_diff.revocations_for_drains,
        balance_revocations,
        policy=policy,
        now_ms=now_ms,
        moves_allowed_at_ms=usable.moves_allowed_at_ms,
    )
    revoked_by_member = _group_revocations_by_member(
        {
            RevocationReason.DELETED: ownership.deleted_jobs_by_member,
            RevocationReason.DUPLICATE: ownership.duplicate_jobs_by_member,
            RevocationReason.REPEATED: ownership.unreleased_jobs_by_member,
            RevocationReason.CLAIM: target_diff.revocations_for_claims,
            RevocationReason.DRAIN: drains,
            RevocationReason.BALANCE: balance,
        }
    )
    assigned_jobs_by_member = {
        **target_diff.assigned_jobs_by_member,
        **{
            member: jobs | target_diff.assigned_jobs_by_member.get(member, NO_JOBS)
            for member, jobs in ownership.regained_jobs_by_static_member.items()
        },
    }
    assignments = {}
    for member in sorted(members):
        spec, jobs_by_reason = members[member], revoked_by_member.get(member, {})
        assignments[member] = MemberOutcome(
            kept=spec.owned - union_of_jobs(jobs_by_reason.values()) if jobs_by_reason else spec.owned,
            assigned=assigned_jobs_by_member.get(member, NO_JOBS),
            revoked_by_reason=jobs_by_reason,
            is_draining=spec.is_draining,
            instance_id=spec.instance_id,
        )
    revoked_move_count = count_revoked_jobs(drains) + count_revoked_jobs(balance)
    moves_allowed_at_ms = now_ms + policy.round_interval_ms if revoked_move_count else usable.moves_allowed_at_ms
    postponed_move_count = (
        count_revoked_jobs(target_diff.revocations_for_drains)
        + (0 if deferrals else count_revoked_jobs(target_diff.revocations_for_balance))
        - revoked_move_count
    )
    # A member that releases jobs joins again and so starts the next round, except for deleted jobs: no round waits for
    # their release.
    needs_timer = postponed_move_count and not any(
        jobs_by_reason.keys() - {RevocationReason.DELETED} for jobs_by_reason in revoked_by_member.values()
    )
    return RoundOutcome(
        assignor_state=AssignorState(
            generation=generation,
            outcome_by_member=assignments,
            deferrals=deferrals,
            possibly_returned_members=reassignment_candidates if deferrals else (),
            jobs_moved_before=moved_before
            | (
                union_of_jobs(jobs for jobs_by_reason in revoked_by_member.values() for jobs in jobs_by_reason.values())
                & configured
            ),
            released_by_draining=(released_by_draining & (ownership.unowned | ownership.jobs_unowned_once_released))
            | union_of_jobs(drains.values()),
            moves_allowed_at_ms=moves_allowed_at_ms,
        ),
        eligibility=eligibility,
        delay_ms=deferrals[0].deadline_ms - now_ms if deferrals else 0,
        next_moves_timer_ms=max(moves_allowed_at_ms - now_ms, IMMEDIATE_ROUND_DELAY_MS) if needs_timer else 0,
        reason_by_unassigned_job=_unassigned_reasons(target_diff, deferrals, eligibility, members, now_ms),
        move_count_to_target=count_revoked_jobs(target_diff.revocations_for_claims)
        + count_revoked_jobs(target_diff.revocations_for_drains)
        + count_revoked_jobs(target_diff.revocations_for_balance),
        move_count_lower_bound=count_revoked_jobs(target_diff.revocations_for_claims)
        + count_revoked_jobs(target_diff.revocations_for_drains)
        + target_diff.move_count_lower_bound,
    )


# -- the steps of a round ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ownership:
    """Which member owns which configured job: at most one member, which reported the job, or is the static member to
    which this round returns it. If several members report a job, one of them keeps it. A report of a job that the last
    round revoked from the member (unreleased) does not count. A job that no member owns is in ``unowned`` or in
    ``unreleased_jobs_by_member``."""

    owned_jobs_by_member: Mapping[MemberId, Jobs]
    """The jobs that each member reported and keeps, and the jobs that this round returns to the member."""
    unowned: Jobs
    """The configured jobs that no member runs and that this round returns to no static member."""
    regained_jobs_by_static_member: Mapping[MemberId, Jobs]
    """Jobs that a static member had before, that no member runs, and that this round returns to the static member. They
    are also in ``owned_jobs_by_member``."""
    duplicate_jobs_by_member: Revocations
    """Jobs that the member must stop because another member also runs them and keeps them. They are in
    ``owned_jobs_by_member`` of the other member only."""
    deleted_jobs_by_member: Revocations
    """Jobs that the member runs and that are no longer configured."""
    unreleased_jobs_by_member: Revocations
    """Jobs that the last round revoked from the member and that the member is still stopping
    (:func:`.unreleased_revocations`). They are not in ``owned_jobs_by_member``."""
    jobs_unowned_once_released: Jobs
    """The jobs of ``unreleased_jobs_by_member`` that no member keeps: a later round assigns them."""


def _compute_ownership(
    configured: Jobs, members: Mapping[MemberId, MemberSpec], state: AssignorState, eligibility: Eligibility
) -> _Ownership:
    """Return the owner of each configured job by the members' reports: if several members report a job, one of them is
    chosen, and jobs are returned to static members that had them before."""
    owned: Mapping[MemberId, Jobs] = {member: spec.owned for member, spec in members.items()}
    unreleased = unreleased_revocations(state, members, configured)
    if unreleased:
        owned = {**owned, **{member: owned[member] - jobs for member, jobs in unreleased.items()}}
    running_jobs = union_of_jobs(owned.values())
    only_unreleased = union_of_jobs(unreleased.values()) - running_jobs
    unowned = configured - running_jobs - only_unreleased
    owned_count = len(configured) - len(unowned) - len(only_unreleased)
    # Compare numbers first: in most rounds no member runs a deleted job, and no two members run the same job.
    deleted: Revocations = {}
    if len(running_jobs) > owned_count:
        deleted = {member: jobs - configured for member, jobs in owned.items() if not jobs <= configured}
        owned = {**owned, **{member: owned[member] & configured for member in deleted}}
    duplicates: Revocations = {}
    if sum(map(len, owned.values())) > owned_count:
        owned, duplicates = choose_kept_jobs_and_duplicates(owned, state, eligibility.is_eligible)
    regained_jobs_by_static_member = former_jobs_of_static_members(state, unowned, members, eligibility.eligible_jobs)
    return _Ownership(
        owned_jobs_by_member={
            **owned,
            **{member: owned[member] | jobs for member, jobs in regained_jobs_by_static_member.items()},
        },
        unowned=unowned - union_of_jobs(regained_jobs_by_static_member.values()),
        regained_jobs_by_static_member=regained_jobs_by_static_member,
        duplicate_jobs_by_member=duplicates,
        deleted_jobs_by_member=deleted,
        unreleased_jobs_by_member=unreleased,
        jobs_unowned_once_released=only_unreleased,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _TargetDiff:
    """The difference between the jobs that the members own now and the target, without a limit of moves. The lower
    bound is for the jobs that any wildcard worker may run; it contains no moves for claims and drains."""

    assigned_jobs_by_member: Mapping[MemberId, Jobs]
    """Jobs that no member runs and that need not wait, by the member that receives them now."""
    unassignable_jobs: Jobs
    """Jobs that no member runs, that need not wait, and that no member may run."""
    revocations_for_claims: Revocations
    """Jobs that the member may not run because of claims."""
    revocations_for_drains: Revocations
    """Jobs of a draining member that another member may run."""
    revocations_for_balance: Revocations
    """Jobs by which the member is above its quota."""
    move_count_lower_bound: int
    """M* (:func:`.fewest_moves_bound`) of the jobs that any wildcard worker may run."""


def _compute_target_diff(
    ownership: _Ownership,
    eligibility: Eligibility,
    members: Mapping[MemberId, MemberSpec],
    deferrals: Sequence[Deferral],
    *,
    moved_before: Jobs,
    released_by_draining: Jobs,
    order: Sequence[MemberId],
) -> _TargetDiff:
    """Compute the target and compare it with ``ownership``. ``order`` are all wildcard workers, in tie-break order."""
    ineligible_by_member = eligibility.owned_jobs_to_release(ownership.owned_jobs_by_member)
    kept_by_member = {
        **ownership.owned_jobs_by_member,
        **{member: ownership.owned_jobs_by_member[member] - jobs for member, jobs in ineligible_by_member.items()},
    }
    assignable_now = ownership.unowned - union_of_jobs(deferral.jobs for deferral in deferrals)
    static_assigned = eligibility.assign_static_jobs(
        assignable_now & eligibility.static_jobs,
        {member: len(kept_by_member[member]) for member in eligibility.claims_by_worker},
    )
    jobs_to_distribute = (
        ownership.unowned | ownership.jobs_unowned_once_released | union_of_jobs(ineligible_by_member.values())
    ) - eligibility.static_jobs
    wildcard_assigned: Mapping[MemberId, Jobs] = {}
    balance: Revocations = {}
    if order:
        wildcard_assigned, balance = jobs_to_receive_and_release(
            kept_by_member,
            to_assign=jobs_to_distribute,
            assignable_now=assignable_now - eligibility.static_jobs,
            moved_before=moved_before,
            order=order,
        )
    job_counts = [len(kept_by_member[member]) for member in order]
    unassignable = eligibility.unassignable_jobs(assignable_now)
    assigned_back = eligibility.assign_back_to_draining(
        unassignable & released_by_draining,
        members,
        {member: len(kept_by_member[member]) for member in eligibility.draining_workers},
    )
    return _TargetDiff(
        assigned_jobs_by_member={**static_assigned, **wildcard_assigned, **assigned_back},
        unassignable_jobs=unassignable - union_of_jobs(assigned_back.values()),
        revocations_for_claims={
            member: jobs for member, jobs in ineligible_by_member.items() if member not in eligibility.draining_workers
        },
        revocations_for_drains={
            member: jobs for member, jobs in ineligible_by_member.items() if member in eligibility.draining_workers
        },
        revocations_for_balance=balance,
        move_count_lower_bound=fewest_moves_bound(job_counts, sum(job_counts) + len(jobs_to_distribute)),
    )


def _group_revocations_by_member(
    revocations_by_reason: Mapping[RevocationReason, Revocations],
) -> Mapping[MemberId, Mapping[RevocationReason, Jobs]]:
    """Return, for each member that must release jobs, these jobs grouped by the reason.

    Members without such jobs, and reasons without jobs, are left out.
    """
    jobs_by_reason_by_member: dict[MemberId, dict[RevocationReason, Jobs]] = {}
    for reason, revocations in revocations_by_reason.items():
        for member, jobs in revocations.items():
            if jobs:
                jobs_by_reason_by_member.setdefault(member, {})[reason] = jobs
    return jobs_by_reason_by_member


def _unassigned_reasons(
    target_diff: _TargetDiff,
    deferrals: Sequence[Deferral],
    eligibility: Eligibility,
    members: Mapping[MemberId, MemberSpec],
    now_ms: int,
) -> Mapping[Job, str]:
    """Return the jobs that stay unassigned after this round, each with the reason as text for operators."""
    unassignable = {job: eligibility.unassignable_reason(job, members) for job in target_diff.unassignable_jobs}
    deferred = {
        job: f"a worker that has left the group may return; the job waits {deferral.deadline_ms - now_ms} ms more"
        for deferral in deferrals
        for job in deferral.jobs
    }
    return {**unassignable, **deferred}
