"""The incremental cooperative assignor: the leader's rounds of KIP-415, with KIP-987's claims and a balanced target.

A round never moves a job directly from one worker to another. First, one round revokes the job from its owner. The
owner stops the job and joins again without it. The next round finds the job without an owner and assigns it. All other
jobs keep running.

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
    resolve_duplicates,
    return_to_static_members,
    union,
    usable_state,
)
from coterie.assignors.claims import Eligibility
from coterie.assignors.delay import current_deferrals, tie_break_order, update_candidates
from coterie.assignors.job_selection import select_jobs
from coterie.assignors.members import MemberSpec, RebalancePolicy
from coterie.assignors.moves import RevocationReason, Revocations, count_jobs, limit_revocations
from coterie.assignors.target import fewest_moves_bound
from coterie.nouns.ids import Generation, MemberId
from coterie.nouns.jobs import NO_JOBS, Job, Jobs

IMMEDIATE_ROUND_DELAY_MS = 1
"""Delay of another round that no member would start: a member starts a round by joining after it released jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOutcome:
    """The result of one round that the leader computed."""

    state: AssignorState
    """The state that this leader needs in its next round. It contains the result of this round for each member."""
    eligibility: Eligibility
    """Which member may run which job in this round."""
    delay_ms: int
    """Time from this round to the earliest deadline of waiting jobs (scheduled rebalance delay), sent to all members;
    0 when no jobs wait."""
    next_moves_in_ms: int
    """Time until the leader must request another round because the limit of moves per round postponed moves.

    0 when no moves are left, or when a member that releases jobs starts the next round anyway. Other members do not
    receive this time: the next leader has no interval to wait for and may continue at once.
    """
    unassigned: Mapping[Job, str]
    """The configured jobs that no member runs and that this round assigns to no member, each with the reason."""
    moves_to_target: int
    """Number of jobs that must move, for claims, drains and balance, from the ownership that the members reported to
    the target.

    This round revokes these jobs, with two exceptions: none for balance while jobs wait, and for drains and balance
    only as many as the limit of moves per round allows.
    """
    moves_lower_bound: int
    """Lower bound of ``moves_to_target`` for any target: the moves for claims and drains, plus
    :func:`.fewest_moves_bound` for the jobs that no static worker claims. Not always reachable.
    """

    @property
    def assignments(self) -> Mapping[MemberId, MemberOutcome]:
        """The result of the round for each member."""
        return self.state.members

    @property
    def next_round_in_ms(self) -> int:
        """Time until the next round that a timer starts: at the end of the delay, or to continue postponed moves.

        0 when no timer is needed: no round follows, or a member that releases jobs starts the next round.
        """
        return min((due_ms for due_ms in (self.delay_ms, self.next_moves_in_ms) if due_ms), default=0)


def assign(
    state: AssignorState,
    *,
    configured: Jobs,
    members: Mapping[MemberId, MemberSpec],
    generation: Generation,
    last_completed_generation: Generation,
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
    eligibility = Eligibility.of(members, configured)
    ownership = _ownership(configured, members, usable, eligibility)
    deferrals = current_deferrals(
        usable,
        ownership.unowned,
        members,
        now_ms=now_ms,
        max_delay_ms=policy.max_delay_ms,
        received_delay_ms=received_delay_ms,
    )
    arrived = [
        m for m in eligibility.wildcard_workers if deferrals and not ownership.by_member[m] and m not in usable.members
    ]
    reassignment_candidates = (
        update_candidates(usable.reassignment_candidates, arrived, members)
        if deferrals
        else usable.reassignment_candidates
    )
    departed = [one for member, one in usable.members.items() if member not in members]
    lost = union(one.assigned for one in departed)
    moved_before = (usable.moved_before | lost | union(one.kept for one in departed)) & configured
    released_by_draining = usable.released_by_draining - lost
    diff = _target_diff(
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
    to_balance = {member: jobs & members[member].owned for member, jobs in diff.balance.items() if not deferrals}
    drains, balance = limit_revocations(
        diff.drains, to_balance, policy=policy, now_ms=now_ms, moves_allowed_at_ms=usable.moves_allowed_at_ms
    )
    revoked = _by_member(
        {
            RevocationReason.DELETED: ownership.deleted,
            RevocationReason.DUPLICATE: ownership.duplicates,
            RevocationReason.CLAIM: diff.claims,
            RevocationReason.DRAIN: drains,
            RevocationReason.BALANCE: balance,
        }
    )
    added = {
        **diff.assigned_now,
        **{
            member: jobs | diff.assigned_now.get(member, NO_JOBS)
            for member, jobs in ownership.returned_to_static.items()
        },
    }
    assignments = {}
    for member in sorted(members):
        view, why = members[member], revoked.get(member, {})
        assignments[member] = MemberOutcome(
            kept=view.owned - union(why.values()) if why else view.owned,
            assigned=added.get(member, NO_JOBS),
            revoked_by_reason=why,
            draining=view.draining,
            instance_id=view.instance_id,
        )
    moves_now = count_jobs(drains) + count_jobs(balance)
    next_moves_ms = now_ms + policy.round_interval_ms if moves_now else usable.moves_allowed_at_ms
    moves_left = count_jobs(diff.drains) + (0 if deferrals else count_jobs(diff.balance)) - moves_now
    # A member that releases jobs joins again and so starts the next round, except for deleted jobs: no round waits for
    # their release.
    asks_for_moves = moves_left and not any(why.keys() - {RevocationReason.DELETED} for why in revoked.values())
    return RoundOutcome(
        state=AssignorState(
            generation=generation,
            members=assignments,
            deferrals=deferrals,
            reassignment_candidates=reassignment_candidates if deferrals else (),
            moved_before=moved_before | (union(jobs for why in revoked.values() for jobs in why.values()) & configured),
            released_by_draining=(released_by_draining & ownership.unowned) | union(drains.values()),
            moves_allowed_at_ms=next_moves_ms,
        ),
        eligibility=eligibility,
        delay_ms=deferrals[0].deadline_ms - now_ms if deferrals else 0,
        next_moves_in_ms=max(next_moves_ms - now_ms, IMMEDIATE_ROUND_DELAY_MS) if asks_for_moves else 0,
        unassigned=_unassigned(diff, deferrals, eligibility, members, now_ms),
        moves_to_target=count_jobs(diff.claims) + count_jobs(diff.drains) + count_jobs(diff.balance),
        moves_lower_bound=count_jobs(diff.claims) + count_jobs(diff.drains) + diff.moves_lower_bound,
    )


# -- the steps of a round ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ownership:
    """Which member owns which configured job, each job once."""

    by_member: Mapping[MemberId, Jobs]
    """The jobs that each member reported and keeps, and the jobs that this round returns to the member."""
    unowned: Jobs
    """The configured jobs that no member runs and that this round returns to no static member."""
    returned_to_static: Mapping[MemberId, Jobs]
    """Jobs that a static member had before, that no member runs, and that this round returns to the static member."""
    duplicates: Revocations
    """Jobs that the member must stop because another member also runs them and keeps them."""
    deleted: Revocations
    """Jobs that the member runs and that are no longer configured."""


def _ownership(
    configured: Jobs, members: Mapping[MemberId, MemberSpec], state: AssignorState, eligibility: Eligibility
) -> _Ownership:
    """Return the owner of each configured job: from the members' reports, with returned jobs and one owner for each."""
    owned: Mapping[MemberId, Jobs] = {member: view.owned for member, view in members.items()}
    running = union(owned.values())
    unaccounted = configured - running
    accounted = len(configured) - len(unaccounted)
    # Compare numbers first: in most rounds no member runs a deleted job, and no two members run the same job.
    deleted: Revocations = {}
    if len(running) > accounted:
        deleted = {member: jobs - configured for member, jobs in owned.items() if not jobs <= configured}
        owned = {**owned, **{member: owned[member] & configured for member in deleted}}
    twice: Revocations = {}
    if sum(map(len, owned.values())) > accounted:
        owned, twice = resolve_duplicates(owned, state, eligibility.is_eligible)
    back = return_to_static_members(state, unaccounted, members, eligibility.eligible_jobs)
    return _Ownership(
        by_member={**owned, **{member: owned[member] | jobs for member, jobs in back.items()}},
        unowned=unaccounted - union(back.values()),
        returned_to_static=back,
        duplicates=twice,
        deleted=deleted,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _TargetDiff:
    """The difference between the jobs that the members own now and the target, without a limit of moves."""

    assigned_now: Mapping[MemberId, Jobs]
    """Jobs that no member runs and that need not wait, by the member that receives them now."""
    unassignable: Jobs
    """Jobs that no member runs, that need not wait, and that no member may run."""
    claims: Revocations
    """Jobs that the member may not run because of claims."""
    drains: Revocations
    """Jobs of a draining member that another member may run."""
    balance: Revocations
    """Jobs by which the member is above its quota."""
    moves_lower_bound: int
    """M* (:func:`.fewest_moves_bound`) of the jobs that any wildcard worker may run."""


def _target_diff(
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
    strays = eligibility.ineligible_jobs(ownership.by_member)
    stays = {**ownership.by_member, **{member: ownership.by_member[member] - jobs for member, jobs in strays.items()}}
    free = ownership.unowned - union(one.jobs for one in deferrals)
    given = eligibility.assign_static_jobs(
        free & eligibility.static_jobs, {member: len(stays[member]) for member in eligibility.claims_by_worker}
    )
    to_place = (ownership.unowned | union(strays.values())) - eligibility.static_jobs
    on_wildcards: Mapping[MemberId, Jobs] = {}
    balance: Revocations = {}
    if order:
        on_wildcards, balance = select_jobs(
            stays, to_assign=to_place, free=free - eligibility.static_jobs, moved_before=moved_before, order=order
        )
    loads = [len(stays[member]) for member in order]
    unplaceable = eligibility.unassignable(free)
    left_over = eligibility.assign_back_to_draining(
        unplaceable & released_by_draining, members, {member: len(stays[member]) for member in eligibility.draining}
    )
    return _TargetDiff(
        assigned_now={**given, **on_wildcards, **left_over},
        unassignable=unplaceable - union(left_over.values()),
        claims={member: jobs for member, jobs in strays.items() if member not in eligibility.draining},
        drains={member: jobs for member, jobs in strays.items() if member in eligibility.draining},
        balance=balance,
        moves_lower_bound=fewest_moves_bound(loads, sum(loads) + len(to_place)),
    )


def _by_member(made: Mapping[RevocationReason, Revocations]) -> Mapping[MemberId, Mapping[RevocationReason, Jobs]]:
    """Return, for each member that must release jobs, these jobs grouped by the reason.

    Members without such jobs, and reasons without jobs, are left out.
    """
    found: dict[MemberId, dict[RevocationReason, Jobs]] = {}
    for why, moves in made.items():
        for member, jobs in moves.items():
            if jobs:
                found.setdefault(member, {})[why] = jobs
    return found


def _unassigned(
    target_diff: _TargetDiff,
    deferrals: Sequence[Deferral],
    eligibility: Eligibility,
    members: Mapping[MemberId, MemberSpec],
    now_ms: int,
) -> Mapping[Job, str]:
    """Return the jobs that stay unassigned after this round, each with the reason as text for operators."""
    unassignable = {job: eligibility.unassigned_reason(job, members) for job in target_diff.unassignable}
    later = {
        job: f"its worker has left the group and may return; the job waits {one.deadline_ms - now_ms} ms more"
        for one in deferrals
        for job in one.jobs
    }
    return {**unassignable, **later}
