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

To distinguish these situations the leader needs its :class:`Memory` of its last round. A new leader has no memory and
assigns all jobs without an owner at once. There is one exception: if the new leader's own last assignment contained a
delay that has not ended, all these jobs wait (KIP-415, "Leader leaves the group").

Each concern has a module: the state that the leader keeps between rounds (`memory`), the delay (`delay`), which member
may run which job (`claims`), how many jobs each member gains or releases (`target`), which jobs these are (`dealing`)
and how many jobs move in one round (`moves`). Claims and drains change nothing in a group that has neither.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coterie.assignors.claims import Places
from coterie.assignors.dealing import toward_balance
from coterie.assignors.delay import candidates, in_turn, waiting_now
from coterie.assignors.members import MemberView, Policy
from coterie.assignors.memory import MemberRound, Memory, Waiting, believed, one_owner_each, returned, union
from coterie.assignors.moves import Moves, Why, count, paced
from coterie.assignors.target import fewest_moves_bound
from coterie.nouns.ids import Generation, MemberId
from coterie.nouns.jobs import NO_JOBS, Job, Jobs

AGAIN_MS = 1
"""Delay of another round when no member has a job to release and so no member would start the round by joining."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOutcome:
    """The result of one round that the leader computed."""

    memory: Memory
    places: Places
    delay_ms: int
    """Rest of the scheduled rebalance delay, sent to all members; 0 when no jobs wait."""
    moves_in_ms: int
    """Time until the leader must request another round because the limit of moves per round postponed moves.

    0 when no moves are left, or when a member that releases jobs starts the next round anyway. Other members do not
    receive this time: the next leader has no interval to wait for and may continue at once.
    """
    unassigned: Mapping[Job, str]
    """The configured jobs that no member runs and that this round assigns to no member, each with the reason."""
    optimum: int
    """Number of jobs that must move from the ownership that the members reported to the target.

    This round makes all these moves, or as many as the limit of moves per round allows.
    """
    bound: int
    """Lower bound of ``optimum`` for any target: the moves for claims and drains, plus M* for the others.

    Not always reachable.
    """

    @property
    def assignments(self) -> Mapping[MemberId, MemberRound]:
        """The result of the round for each member."""
        return self.memory.members

    @property
    def next_in_ms(self) -> int:
        """Time until the next round is due, for the delay or for postponed moves; 0 when no round is due."""
        return min((due_ms for due_ms in (self.delay_ms, self.moves_in_ms) if due_ms), default=0)


def assign(
    memory: Memory,
    *,
    configured: Jobs,
    members: Mapping[MemberId, MemberView],
    generation: Generation,
    last_completed_generation: Generation,
    now_ms: int,
    policy: Policy,
    known_delay_ms: int = 0,
) -> RoundOutcome:
    """Compute the round of ``generation``.

    :param last_completed_generation: the last generation whose assignment this worker received; -1 if it has received
        none since it became a member of the group.
    :param known_delay_ms: rest of the delay that this worker's own last assignment contained.
    """
    trusted = believed(memory, members, generation=generation, last_completed_generation=last_completed_generation)
    places = Places.of(members, configured)
    held = _held(configured, members, trusted, places)
    waiting = waiting_now(
        trusted,
        held.by_nobody,
        members,
        now_ms=now_ms,
        max_delay_ms=policy.max_delay_ms,
        known_delay_ms=known_delay_ms,
    )
    arrived = [m for m in places.wildcard if waiting and not held.by_member[m] and m not in trusted.members]
    came_first = candidates(trusted.candidates, arrived, members) if waiting else trusted.candidates
    departed = [one for member, one in trusted.members.items() if member not in members]
    lost = union(one.assigned for one in departed)
    moved = (trusted.moved | lost | union(one.kept for one in departed)) & configured
    handed_back = trusted.handed_back - lost
    aim = _aim(
        held,
        places,
        members,
        waiting,
        moved=moved,
        handed_back=handed_back,
        order=in_turn(came_first, places.wildcard),
    )

    # While jobs wait, no job moves for balance. Jobs that this round returns to a static member do not run yet: if they
    # are too many, the next round revokes the surplus.
    to_balance = {member: jobs & members[member].owned for member, jobs in aim.balance.items() if not waiting}
    drains, balance = paced(aim.drains, to_balance, policy=policy, now_ms=now_ms, next_moves_ms=trusted.next_moves_ms)
    taken = _by_member(
        {
            Why.DELETED: held.deleted,
            Why.DUPLICATE: held.twice,
            Why.CLAIM: aim.claims,
            Why.DRAIN: drains,
            Why.BALANCE: balance,
        }
    )
    added = {**aim.given, **{member: jobs | aim.given.get(member, NO_JOBS) for member, jobs in held.returned.items()}}
    assignments = {}
    for member in sorted(members):
        view, why = members[member], taken.get(member, {})
        assignments[member] = MemberRound(
            kept=view.owned - union(why.values()) if why else view.owned,
            assigned=added.get(member, NO_JOBS),
            why=why,
            draining=view.draining,
            instance_id=view.instance_id,
        )
    moves_now = count(drains) + count(balance)
    next_moves_ms = now_ms + policy.round_interval_ms if moves_now else trusted.next_moves_ms
    moves_left = count(aim.drains) + (0 if waiting else count(aim.balance)) - moves_now
    # A member that releases jobs joins again and so starts the next round, except for deleted jobs: no round waits for
    # their release.
    asks_for_moves = moves_left and not any(why.keys() - {Why.DELETED} for why in taken.values())
    return RoundOutcome(
        memory=Memory(
            generation=generation,
            members=assignments,
            waiting=waiting,
            candidates=came_first if waiting else (),
            moved=moved | (union(jobs for why in taken.values() for jobs in why.values()) & configured),
            handed_back=(handed_back & held.by_nobody) | union(drains.values()),
            next_moves_ms=next_moves_ms,
        ),
        places=places,
        delay_ms=waiting[0].deadline_ms - now_ms if waiting else 0,
        moves_in_ms=max(next_moves_ms - now_ms, AGAIN_MS) if asks_for_moves else 0,
        unassigned=_unassigned(aim, waiting, places, members, now_ms),
        optimum=count(aim.claims) + count(aim.drains) + count(aim.balance),
        bound=count(aim.claims) + count(aim.drains) + aim.bound,
    )


# -- the steps of a round ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """Which member runs which configured job, each job once."""

    by_member: Mapping[MemberId, Jobs]
    """Each member's jobs, including the jobs that this round returns to it."""
    by_nobody: Jobs
    returned: Mapping[MemberId, Jobs]
    """Jobs that a static member had in its previous process and that this round returns to it."""
    twice: Moves
    """Jobs that the member must stop because another member also runs them and keeps them."""
    deleted: Moves
    """Jobs that the member runs and that are no longer configured."""


def _held(configured: Jobs, members: Mapping[MemberId, MemberView], trusted: Memory, places: Places) -> _Held:
    owned: Mapping[MemberId, Jobs] = {member: view.owned for member, view in members.items()}
    running = union(owned.values())
    unaccounted = configured - running
    accounted = len(configured) - len(unaccounted)
    # Compare numbers first: in most rounds no member runs a deleted job, and no two members run the same job.
    deleted: Moves = {}
    if len(running) > accounted:
        deleted = {member: jobs - configured for member, jobs in owned.items() if not jobs <= configured}
        owned = {**owned, **{member: owned[member] & configured for member in deleted}}
    twice: Moves = {}
    if sum(map(len, owned.values())) > accounted:
        owned, twice = one_owner_each(owned, trusted, places.may_run_one)
    back = returned(trusted, unaccounted, members, places.may_run)
    return _Held(
        by_member={**owned, **{member: owned[member] | jobs for member, jobs in back.items()}},
        by_nobody=unaccounted - union(back.values()),
        returned=back,
        twice=twice,
        deleted=deleted,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Aim:
    """The difference between the jobs that the members run now and the target."""

    given: Mapping[MemberId, Jobs]
    """Jobs that no member runs and that need not wait, by the member that receives them now."""
    unplaceable: Jobs
    claims: Moves
    drains: Moves
    balance: Moves
    bound: int
    """M* of the jobs that any wildcard worker may run."""


def _aim(
    held: _Held,
    places: Places,
    members: Mapping[MemberId, MemberView],
    waiting: Sequence[Waiting],
    *,
    moved: Jobs,
    handed_back: Jobs,
    order: Sequence[MemberId],
) -> _Aim:
    strays = places.strays(held.by_member)
    stays = {**held.by_member, **{member: held.by_member[member] - jobs for member, jobs in strays.items()}}
    free = held.by_nobody - union(one.jobs for one in waiting)
    given = places.dealt(free & places.static, {member: len(stays[member]) for member in places.claimed})
    to_place = (held.by_nobody | union(strays.values())) - places.static
    on_wildcards: Mapping[MemberId, Jobs] = {}
    balance: Moves = {}
    if order:
        on_wildcards, balance = toward_balance(
            stays, to_place=to_place, free=free - places.static, moved=moved, order=order
        )
    loads = [len(stays[member]) for member in order]
    unplaceable = places.unplaceable(free)
    left_over = places.left_over(
        unplaceable & handed_back, members, {member: len(stays[member]) for member in places.draining}
    )
    return _Aim(
        given={**given, **on_wildcards, **left_over},
        unplaceable=unplaceable - union(left_over.values()),
        claims={member: jobs for member, jobs in strays.items() if member not in places.draining},
        drains={member: jobs for member, jobs in strays.items() if member in places.draining},
        balance=balance,
        bound=fewest_moves_bound(loads, sum(loads) + len(to_place)),
    )


def _by_member(made: Mapping[Why, Moves]) -> Mapping[MemberId, Mapping[Why, Jobs]]:
    """Return, for each member that must release jobs, these jobs grouped by the reason."""
    found: dict[MemberId, dict[Why, Jobs]] = {}
    for why, moves in made.items():
        for member, jobs in moves.items():
            if jobs:
                found.setdefault(member, {})[why] = jobs
    return found


def _unassigned(
    aim: _Aim, waiting: Sequence[Waiting], places: Places, members: Mapping[MemberId, MemberView], now_ms: int
) -> Mapping[Job, str]:
    nobody = {job: places.why_nobody(job, members) for job in aim.unplaceable}
    later = {
        job: f"its worker has left the group and may return; the job waits {one.deadline_ms - now_ms} ms more"
        for one in waiting
        for job in one.jobs
    }
    return {**nobody, **later}
