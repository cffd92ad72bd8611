"""The reasons to revoke jobs, and the limit on revocations in one round (``rebalance.max.moves.per.round``).

The limit applies to moves for drains and for balance, in this order. A job that is deleted, that two members run, or
that the member may not run because of claims is revoked at once: letting it run on that member has no benefit. A
repeated revocation was counted in an earlier round.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeAlias

from coterie.assignors.members import RebalancePolicy
from coterie.nouns.ids import MemberId
from coterie.nouns.jobs import Job, Jobs


class RevocationReason(StrEnum):
    """Why a job is revoked from a member."""

    DELETED = "deleted"
    """The job is no longer configured."""
    DUPLICATE = "duplicate"
    """Another member also runs the job and keeps it."""
    CLAIM = "claim"
    """Other members claim the job, or this member is static and does not claim it."""
    DRAIN = "drain"
    """The member drains, and a member that does not drain may run the job."""
    BALANCE = "balance"
    """The member has more jobs than its quota."""
    REPEATED = "repeated"
    """The last round revoked the job, and the member has not stopped it yet."""


Revocations: TypeAlias = Mapping[MemberId, Jobs]
"""The jobs that each member must release. A member without such jobs is missing, or has an empty set."""


def count_revoked_jobs(revocations: Revocations) -> int:
    """Return the number of jobs that all members together must release."""
    return sum(map(len, revocations.values()))


def limit_revocations(
    drains: Revocations, balance: Revocations, *, policy: RebalancePolicy, now_ms: int, moves_allowed_at_ms: int
) -> tuple[Revocations, Revocations]:
    """Return those of ``drains`` and those of ``balance`` that may be revoked at ``now_ms``.

    These are all if the policy has no limit of moves per round. With a limit, none may be revoked before
    ``moves_allowed_at_ms``, and then together at most as many as the limit, ``drains`` first.
    """
    if policy.moves_per_round_max is None:
        return drains, balance
    revocations_max = policy.moves_per_round_max if now_ms >= moves_allowed_at_ms else 0
    drains = _select_revocations_up_to_max(drains, revocations_max)
    return drains, _select_revocations_up_to_max(balance, revocations_max - count_revoked_jobs(drains))


def _select_revocations_up_to_max(revocations: Revocations, revocations_max: int) -> Revocations:
    """Return at most ``revocations_max`` jobs of ``revocations``, chosen one by one, each from the member with the most
    jobs in ``revocations`` that are not chosen yet.

    Among equals the first member by id comes first. Members of which no job is chosen are left out.
    """
    if count_revoked_jobs(revocations) <= revocations_max:
        return revocations
    ranked_revocations: list[tuple[int, MemberId, Job]] = []
    for member, jobs in sorted(revocations.items()):
        ranked_revocations += [(position - len(jobs), member, job) for position, job in enumerate(jobs)]
    ranked_revocations.sort(key=lambda sort_entry: sort_entry[:2])
    jobs_by_member: dict[MemberId, list[Job]] = {}
    for _, member, job in ranked_revocations[:revocations_max]:
        jobs_by_member.setdefault(member, []).append(job)
    return {member: Jobs.of(jobs) for member, jobs in jobs_by_member.items()}
