"""What has to be given back and why, and how much of it at a time: ARTICLE's design III.

What is limited is what moves for a drain and for balance, in this order. A job that is deleted, that runs twice, or
that others claim is given back at once: nothing is gained by letting it run on in the wrong place.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeAlias

from coterie.assignors.members import Policy
from coterie.nouns.ids import MemberId
from coterie.nouns.jobs import Job, Jobs


class Why(StrEnum):
    """Why a member has to give a job back."""

    DELETED = "deleted"
    """It is not configured any more."""
    DUPLICATE = "duplicate"
    """Another member runs it, too, and goes on."""
    CLAIM = "claim"
    """Others claim it, or this member takes only what it claims."""
    DRAIN = "drain"
    BALANCE = "balance"


Moves: TypeAlias = Mapping[MemberId, Jobs]
"""What members have to give back; who gives nothing is not in it."""


def count(moves: Moves) -> int:
    return sum(map(len, moves.values()))


def paced(drains: Moves, balance: Moves, *, policy: Policy, now_ms: int, next_moves_ms: int) -> tuple[Moves, Moves]:
    """What of both may be given back at ``now_ms``; ``next_moves_ms`` says from when on anything may."""
    if policy.moves_per_round_max is None:
        return drains, balance
    at_most = policy.moves_per_round_max if now_ms >= next_moves_ms else 0
    drains = _within(drains, at_most)
    return drains, _within(balance, at_most - count(drains))


def _within(moves: Moves, at_most: int) -> Moves:
    """``at_most`` of ``moves``: of those first who have most to give."""
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
