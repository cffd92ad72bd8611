"""The reasons to revoke jobs, and the limit on revocations in one round (``rebalance.max.moves.per.round``).

The limit applies to moves for drains and for balance, in this order. A job that is deleted, that two members run, or
that the member may not run because of claims is revoked at once: letting it run on that member has no benefit.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeAlias

from coterie.assignors.members import Policy
from coterie.nouns.ids import MemberId
from coterie.nouns.jobs import Job, Jobs


class Why(StrEnum):
    """Why a job is revoked from a member."""

    DELETED = "deleted"
    """The job is no longer configured."""
    DUPLICATE = "duplicate"
    """Another member also runs the job and keeps it."""
    CLAIM = "claim"
    """Other members claim the job, or this member is static and does not claim it."""
    DRAIN = "drain"
    BALANCE = "balance"


Moves: TypeAlias = Mapping[MemberId, Jobs]
"""The jobs that each member must release; members without such jobs are left out."""


def count(moves: Moves) -> int:
    return sum(map(len, moves.values()))


def paced(drains: Moves, balance: Moves, *, policy: Policy, now_ms: int, next_moves_ms: int) -> tuple[Moves, Moves]:
    """Return those of ``drains`` and ``balance`` that may be revoked at ``now_ms``: none before ``next_moves_ms``."""
    if policy.moves_per_round_max is None:
        return drains, balance
    at_most = policy.moves_per_round_max if now_ms >= next_moves_ms else 0
    drains = _within(drains, at_most)
    return drains, _within(balance, at_most - count(drains))


def _within(moves: Moves, at_most: int) -> Moves:
    """Return ``at_most`` jobs of ``moves``, first from the members that must release most."""
    if count(moves) <= at_most:
        return moves
    ranked: list[tuple[int, MemberId, Job]] = []
    for member, jobs in sorted(moves.items()):
        ranked += [(nth - len(jobs), member, job) for nth, job in enumerate(jobs)]
    ranked.sort(key=lambda one: one[:2])
    hands: dict[MemberId, list[Job]] = {}
    for _, member, job in ranked[:at_most]:
        hands.setdefault(member, []).append(job)
    return {member: Jobs.of(jobs) for member, jobs in hands.items()}
