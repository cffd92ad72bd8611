"""The incremental cooperative assignor: K415's rounds on the leader, on top of the balanced target.

A round never hands a job from one worker to another. First its owner is told to give it back; the owner stops it and
joins again without it, and the next round finds that nobody runs it and assigns it. Everything else keeps running.

A job that nobody runs is one of three:

- *waiting*: the worker that ran it has left the group. It may be back soon (a bounce), so its jobs wait for the
  scheduled rebalance delay, counted for each departure by itself. Meanwhile nobody gives anything back for balance;
- *undelivered*: the worker that should run it is still here but does not: its assignment got lost. Assigned at once;
- *new* (or given back in the round before): assigned at once.

A *static* member (KIP-345) is known by its instance id over all of its lives, so one that is back is no riddle:
whatever it had when it was last heard of and nobody runs now is given back to it at once, delay or not, share or not.
If that is more than its share, a round for balance follows.

Telling them apart takes the leader's :class:`Memory` of its last round, so a new leader, who has none, assigns all at
once; unless its own last assignment told it of a delay that still runs, in which case all of them wait (K415, "Leader
leaves the group").
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from coterie.assignors.members import MemberView, Policy
from coterie.assignors.target import Change, Load, balance
from coterie.nouns.ids import Generation, InstanceId, MemberId
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Job, Jobs

AGAIN_MS = 1
"""When another round is to follow, though nobody has anything to give back that would bring it about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """One member, as the leader saw it in its last round."""

    kept: Jobs
    """What it said that it runs, without what it was told to give back."""
    given: Jobs
    """What it was assigned in that round: sent, perhaps never received."""
    instance_id: InstanceId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What a departed member ran, and until when it may come back for it."""

    jobs: Jobs
    deadline_ms: int
    instance_id: InstanceId | None = None
    """Who ran them, if it was a static member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What a leader remembers from one round to the next. One that was lost to its group starts with an empty one."""

    generation: Generation = Generation(-1)
    """The generation of the last round computed here; -1 before the first."""
    members: Mapping[MemberId, Remembered] = field(default_factory=dict)
    waiting: tuple[Waiting, ...] = ()
    candidates: tuple[MemberId, ...] = ()
    """Members that joined without jobs while jobs were waiting, in order of arrival: perhaps departed ones, back."""
    moved: Jobs = NO_JOBS
    """What has been lost or given back before: among equals these move again, and the others are left in peace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRound:
    """What a round means to one member."""

    assigned: Jobs
    """What is new to it."""
    revoked: Jobs
    """What it has to stop and give back, then to join again."""
    whole: Jobs
    """What it runs when it has done both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The leader's answer to one rebalance."""

    memory: Memory
    assignments: Mapping[MemberId, MemberRound]
    delay_ms: int
    """When everybody is to join again, because jobs are waiting or balance is; 0 when nothing is."""
    unassigned: Mapping[Job, str]
    """Who gets nobody in this round though it is configured and nobody runs it, and why."""


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
) -> Round:
    """Compute the round of ``generation``.

    :param last_completed_generation: the last one whose assignment this worker received; -1 when there is none in its
        present life in the group.
    :param known_delay_ms: what is left of the delay that this worker's own last assignment told it of.
    """
    instance_ids = {member: view.instance_id for member, view in members.items() if view.instance_id is not None}
    said = {member: view.owned for member, view in members.items()}
    max_delay_ms = policy.max_delay_ms
    trusted = _still_true(memory, generation=generation, last_completed_generation=last_completed_generation)
    trusted = _under_present_ids(trusted, instance_ids)
    newcomer = trusted.generation < 0
    owned, duplicates = _owned(configured, said, trusted)
    unaccounted = configured - _all(owned.values())
    returned = _returned(trusted, unaccounted, instance_ids)
    owned = {member: jobs | returned.get(member, NO_JOBS) for member, jobs in owned.items()}
    unaccounted -= _all(returned.values())
    departed = [held for member, held in sorted(trusted.members.items()) if member not in members]
    lost = _all(part for held in departed for part in (held.kept, held.given))
    moved = (trusted.moved | lost) & configured
    if max_delay_ms <= 0:
        waiting: tuple[Waiting, ...] = ()
    elif newcomer:
        deadline_ms = now_ms + min(known_delay_ms, max_delay_ms)
        waiting = _awaited([Waiting(jobs=unaccounted, deadline_ms=deadline_ms)], unaccounted, now_ms)
    else:
        fresh = [
            Waiting(jobs=held.kept | held.given, deadline_ms=now_ms + max_delay_ms, instance_id=held.instance_id)
            for held in departed
        ]
        waiting = _awaited([*trusted.waiting, *fresh], unaccounted, now_ms)
    arrived = [member for member in sorted(members) if not owned[member] and member not in trusted.members]
    candidates = _candidates(trusted.candidates, arrived if waiting else (), said)
    withheld = _all(one.jobs for one in waiting)

    given, released = _toward_balance(owned, unaccounted, withheld, moved, order=_in_turn(candidates, said))
    assignments = {}
    for member in sorted(members):
        assigned = given[member] | returned.get(member, NO_JOBS)
        revoked = (said[member] - configured) | duplicates[member]
        if not waiting:
            revoked |= released[member] & said[member]
        whole = (said[member] - revoked) | assigned
        assignments[member] = MemberRound(assigned=assigned, revoked=revoked, whole=whole)
    delay_ms = min((one.deadline_ms - now_ms for one in waiting), default=0)
    if not waiting and any(released[member] & jobs for member, jobs in returned.items()):
        delay_ms = AGAIN_MS
    return Round(
        memory=Memory(
            generation=generation,
            members={
                member: Remembered(
                    kept=said[member] - one.revoked, given=one.assigned, instance_id=instance_ids.get(member)
                )
                for member, one in assignments.items()
            },
            waiting=waiting,
            candidates=candidates if waiting else (),
            moved=moved | (_all(one.revoked for one in assignments.values()) & configured),
        ),
        assignments=assignments,
        delay_ms=delay_ms,
        unassigned={
            job: f"its worker has left the group and may be back; it waits {one.deadline_ms - now_ms} ms more"
            for one in waiting
            for job in one.jobs
        },
    )


# -- what the leader may believe --------------------------------------------------------------------------------------


def _still_true(memory: Memory, *, generation: Generation, last_completed_generation: Generation) -> Memory:
    """What of ``memory`` still says something about the group.

    All of it when its round was received here. When that round was not, but no other came between, then what members
    said of themselves in it: what it would have given them was never run, and so cannot have been lost. Nothing when
    other rounds were led by somebody else meanwhile (KAFKA-7026, KAFKA-9848).
    """
    if last_completed_generation < 0 or memory.generation < 0:
        return Memory()
    if memory.generation == last_completed_generation:
        return memory
    if memory.generation == generation - 1:
        spoken = {member: replace(held, given=NO_JOBS) for member, held in memory.members.items()}
        return replace(memory, members=spoken)
    return Memory()


def _owned(
    configured: Jobs, members: Mapping[MemberId, Jobs], memory: Memory
) -> tuple[dict[MemberId, Jobs], dict[MemberId, Jobs]]:
    """Who runs which configured job, each job once; and what members have to stop because another one runs it, too.

    One owner goes on: the one that the leader remembers, else the one that runs least, else the first by id.
    """
    owned = {member: jobs & configured for member, jobs in members.items()}
    claims: Counter[Job] = Counter()
    for jobs in owned.values():
        claims.update(jobs.connectors)
        claims.update(jobs.tasks)
    twice = Jobs.of(job for job, count in claims.items() if count > 1)
    duplicates = dict.fromkeys(members, NO_JOBS)
    if not twice:
        return owned, duplicates
    load = {member: len(jobs - twice) for member, jobs in owned.items()}
    goes_on: dict[MemberId, list[Job]] = {member: [] for member in members}
    for job in twice:

        def preference(member: MemberId, job: Job = job) -> tuple[bool, int, MemberId]:
            held = memory.members.get(member)
            return (held is None or (job not in held.kept and job not in held.given), load[member], member)

        keeper = min((member for member, jobs in owned.items() if job in jobs), key=preference)
        goes_on[keeper].append(job)
        load[keeper] += 1
    for member, jobs in owned.items():
        duplicates[member] = (jobs & twice) - Jobs.of(goes_on[member])
        owned[member] = jobs - duplicates[member]
    return owned, duplicates


def _under_present_ids(memory: Memory, instance_ids: Mapping[MemberId, InstanceId]) -> Memory:
    """``memory`` with every static member under the id of its present life."""
    present = {instance: member for member, instance in instance_ids.items()}
    now = {
        former: present[held.instance_id]
        for former, held in memory.members.items()
        if held.instance_id is not None and held.instance_id in present
    }
    return replace(
        memory,
        members={now.get(member, member): held for member, held in memory.members.items()},
        candidates=tuple(now.get(member, member) for member in memory.candidates),
    )


def _returned(
    memory: Memory, unaccounted: Jobs, instance_ids: Mapping[MemberId, InstanceId]
) -> Mapping[MemberId, Jobs]:
    """What each static member had when it was last heard of and nobody runs now."""
    left = unaccounted
    returned: dict[MemberId, Jobs] = {}
    for member, instance_id in sorted(instance_ids.items()):
        held = memory.members.get(member)
        had = held.kept | held.given if held is not None else NO_JOBS
        had |= _all(one.jobs for one in memory.waiting if one.instance_id == instance_id)
        returned[member] = had & left
        left -= returned[member]
    return returned


# -- the delay --------------------------------------------------------------------------------------------------------


def _awaited(waiting: Iterable[Waiting], unaccounted: Jobs, now_ms: int) -> tuple[Waiting, ...]:
    """What still has to wait: jobs that exist, that nobody runs and whose deadline is ahead, the earliest first."""
    left = unaccounted
    still: list[Waiting] = []
    for one in sorted(waiting, key=lambda one: one.deadline_ms):
        jobs = one.jobs & left
        left -= jobs
        if jobs and one.deadline_ms > now_ms:
            still.append(replace(one, jobs=jobs))
    return tuple(still)


def _candidates(
    known: Sequence[MemberId], arrived: Iterable[MemberId], members: Mapping[MemberId, Jobs]
) -> tuple[MemberId, ...]:
    here = [member for member in known if member in members]
    return (*here, *(member for member in arrived if member not in here))


def _in_turn(candidates: Sequence[MemberId], members: Mapping[MemberId, Jobs]) -> Sequence[MemberId]:
    """The order in which equals are served: candidates as they came, then the others by id."""
    return (*candidates, *sorted(set(members) - set(candidates)))


# -- from counts to jobs ----------------------------------------------------------------------------------------------


def _toward_balance(
    owned: Mapping[MemberId, Jobs], unaccounted: Jobs, withheld: Jobs, moved: Jobs, *, order: Sequence[MemberId]
) -> tuple[dict[MemberId, Jobs], dict[MemberId, Jobs]]:
    """What each member gets now, and what it has to release, on the way to the balanced target.

    Of what a target lets a member gain, some is waiting or still runs elsewhere: it comes in a later round.
    """
    changes = balance(
        [
            Load(connectors=len(owned[m].connectors), tasks=Counter(task.connector for task in owned[m].tasks))
            for m in order
        ],
        connectors=len(unaccounted.connectors),
        tasks=Counter(task.connector for task in unaccounted.tasks),
    )
    free = unaccounted - withheld
    free_connectors = sorted(free.connectors, reverse=True)
    free_tasks = _by_connector(free.tasks, reverse=True)
    given: dict[MemberId, Jobs] = {}
    released: dict[MemberId, Jobs] = {}
    for member, change in zip(order, changes, strict=True):
        gains: list[Job] = [free_connectors.pop() for _ in range(min(change.connectors, len(free_connectors)))]
        for connector, count in change.tasks.items():
            there = free_tasks.get(connector, [])
            gains += [there.pop() for _ in range(min(count, len(there)))]
        given[member] = Jobs.of(gains)
        released[member] = _surplus(owned[member], change, moved)
    return given, released


def _surplus(owned: Jobs, change: Change, moved: Jobs) -> Jobs:
    """As many as ``change`` takes away: those that have moved before, then the last ones by name and number."""
    gives = {connector: -count for connector, count in change.tasks.items() if count < 0}
    tasks = _by_connector(task for task in owned.tasks if task.connector in gives)
    connectors = sorted(owned.connectors, key=lambda connector: (connector in moved, connector))
    return Jobs(
        frozenset(connectors[change.connectors :] if change.connectors < 0 else ()),
        frozenset(
            task
            for connector, count in gives.items()
            for task in sorted(tasks[connector], key=lambda task: (task in moved, task))[-count:]
        ),
    )


def _all(parts: Iterable[Jobs]) -> Jobs:
    connectors: set[ConnectorName] = set()
    tasks: set[ConnectorTaskId] = set()
    for jobs in parts:
        connectors |= jobs.connectors
        tasks |= jobs.tasks
    return Jobs(frozenset(connectors), frozenset(tasks))


def _by_connector(
    tasks: Iterable[ConnectorTaskId], *, reverse: bool = False
) -> dict[ConnectorName, list[ConnectorTaskId]]:
    found: dict[ConnectorName, list[ConnectorTaskId]] = {}
    for task in sorted(tasks, reverse=reverse):
        found.setdefault(task.connector, []).append(task)
    return found
