"""The incremental cooperative assignor: K415's rounds on the leader, on top of K987's claims and the balanced target.

A round never hands a job from one worker to another. First its owner is told to give it back; the owner stops it and
joins again without it, and the next round finds that nobody runs it and assigns it. Everything else keeps running.

A job that nobody runs is one of three:

- *waiting*: the worker that ran it has left the group. It may be back soon (a bounce), so its jobs wait for the
  scheduled rebalance delay, counted for each departure by itself. Meanwhile nobody gives anything back for balance;
- *undelivered*: the worker that should run it is still here but does not: its assignment got lost. Assigned at once;
- *new* (or given back in the round before): assigned at once.

A *static member* (KIP-345) is known by its instance id over all of its lives, so one that is back is no riddle:
whatever it had when it was last heard of and nobody runs now is given back to it at once, delay or not, share or not.
If that is more than its share, a round for balance follows.

Telling them apart takes the leader's :class:`Memory` of its last round, so a new leader, who has none, assigns all at
once; unless its own last assignment told it of a delay that still runs, in which case all of them wait (K415, "Leader
leaves the group").

Each idea has a module: what the leader believes (`memory`), the delay (`delay`), who may run what (`claims`), how many
jobs go where (`target`) and which ones (`dealing`), how many move at a time (`moves`). A group in which nobody claims
anything and nobody drains moves as if there were neither.
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
"""When another round is to follow, though nobody has anything to give back that would bring it about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOutcome:
    """The leader's answer to one rebalance."""

    memory: Memory
    places: Places
    delay_ms: int
    """What is left of the scheduled rebalance delay, for everybody to know; 0 when no jobs wait."""
    moves_in_ms: int
    """When the leader is to ask for the next round because moves are left (design III); 0 when none are, or when
    somebody asks anyway. Nobody else is told: whoever leads next has no interval to wait for, and may just go on."""
    unassigned: Mapping[Job, str]
    """Who gets nobody in this round though it is configured and nobody runs it, and why."""
    optimum: int
    """The moves between the group as it joined and its target. This round makes all of them, or as many as it may."""
    bound: int
    """What no target can beat: the moves for claims and drains, and M* for the others. Not always reachable."""

    @property
    def assignments(self) -> Mapping[MemberId, MemberRound]:
        """What the round means to its members: what the leader remembers of it."""
        return self.memory.members

    @property
    def next_in_ms(self) -> int:
        """When the next round is due, for either reason; 0 when none is."""
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

    :param last_completed_generation: the last one whose assignment this worker received; -1 when there is none in its
        present life in the group.
    :param known_delay_ms: what is left of the delay that this worker's own last assignment told it of.
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

    # While jobs wait nothing moves for balance. What was returned in this very round does not run yet: if it is too
    # much, it is given back in the next one.
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
    # (Whoever gives something back joins again by itself, unless it is deleted: nobody waits for that.)
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


# -- its parts --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """Who runs what of what is configured, each job once."""

    by_member: Mapping[MemberId, Jobs]
    """With what is returned to it in this round."""
    by_nobody: Jobs
    returned: Mapping[MemberId, Jobs]
    """What a static member had in its former life."""
    twice: Moves
    """What another one runs, too, and goes on with."""
    deleted: Moves
    """What is run and is not configured any more."""


def _held(configured: Jobs, members: Mapping[MemberId, MemberView], trusted: Memory, places: Places) -> _Held:
    owned: Mapping[MemberId, Jobs] = {member: view.owned for member, view in members.items()}
    running = union(owned.values())
    unaccounted = configured - running
    accounted = len(configured) - len(unaccounted)
    # By numbers: in most rounds nobody runs what is deleted, or what another one runs, too.
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
    """What lies between the group as it is and its target."""

    given: Mapping[MemberId, Jobs]
    """What nobody runs and need not wait, and who gets it now."""
    unplaceable: Jobs
    claims: Moves
    drains: Moves
    balance: Moves
    bound: int
    """M* of what may run anywhere."""


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
    """Of each member that has to give something back, what of it and why."""
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
        job: f"its worker has left the group and may be back; it waits {one.deadline_ms - now_ms} ms more"
        for one in waiting
        for job in one.jobs
    }
    return {**nobody, **later}
