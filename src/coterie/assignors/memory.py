"""What a leader remembers of its rounds, and what of that it may believe in the next one."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

from coterie.assignors.members import MemberView
from coterie.assignors.moves import Why
from coterie.nouns.ids import Generation, InstanceId, MemberId
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Job, Jobs


class MemberRound(NamedTuple):
    """One member in one round: what the round means to it, and how the leader remembers it in the next one.

    (A tuple, as there is one for each member: a frozen dataclass takes twice as long to make.)
    """

    kept: Jobs
    """What it said that it runs and goes on with."""
    assigned: Jobs = NO_JOBS
    """What is new to it: sent, perhaps never received."""
    why: Mapping[Why, Jobs] = MappingProxyType({})
    """What is revoked, each job under its one reason."""
    draining: bool = False
    """It is about to go for good: nobody waits for it."""
    instance_id: InstanceId | None = None

    @property
    def revoked(self) -> Jobs:
        """What it has to stop and give back, then to join again."""
        return union(self.why.values())

    @property
    def whole(self) -> Jobs:
        """What it runs when it has done both."""
        return self.kept | self.assigned


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
    members: Mapping[MemberId, MemberRound] = field(default_factory=dict)
    """What that round meant to each."""
    waiting: tuple[Waiting, ...] = ()
    candidates: tuple[MemberId, ...] = ()
    """Members that joined without jobs while jobs were waiting, in order of arrival: perhaps departed ones, back."""
    moved: Jobs = NO_JOBS
    """What has been lost or given back before: among equals these move again, and the others are left in peace."""
    handed_back: Jobs = NO_JOBS
    """What a draining member has given back and nobody has run since."""
    next_moves_ms: int = 0
    """Before this nothing is revoked for balance or a drain (design III)."""


def believed(
    memory: Memory,
    members: Mapping[MemberId, MemberView],
    *,
    generation: Generation,
    last_completed_generation: Generation,
) -> Memory:
    """What of ``memory`` still says something about the group, every static member under its present id.

    All of it when its round was received here. When that round was not, but no other came between, then what members
    said of themselves in it: what it would have given them was never run, and so cannot have been lost. Nothing when
    other rounds were led by somebody else meanwhile (KAFKA-7026, KAFKA-9848).
    """
    if last_completed_generation < 0 or memory.generation < 0:
        return Memory()
    if memory.generation == last_completed_generation:
        return _under_present_ids(memory, members)
    if memory.generation == generation - 1:
        spoken = {member: held._replace(assigned=NO_JOBS) for member, held in memory.members.items()}
        return _under_present_ids(replace(memory, members=spoken), members)
    return Memory()


def one_owner_each(
    owned: Mapping[MemberId, Jobs], memory: Memory, may_run: Callable[[MemberId, Job], bool]
) -> tuple[Mapping[MemberId, Jobs], Mapping[MemberId, Jobs]]:
    """Who goes on with which of the jobs that are ``owned``, each job once; and who has to stop what another one runs.

    One owner goes on: one that may run it, if there is such a one; of those the one that the leader remembers, else
    the one that runs least, else the first by id.
    """
    times: Counter[Job] = Counter()
    for jobs in owned.values():
        times.update(jobs.connectors)
        times.update(jobs.tasks)
    twice = Jobs.of(job for job, count in times.items() if count > 1)
    load = {member: len(jobs - twice) for member, jobs in owned.items()}
    goes_on: dict[MemberId, list[Job]] = {member: [] for member in owned}
    for job in twice:

        def preference(member: MemberId, job: Job = job) -> tuple[bool, bool, int, MemberId]:
            held = memory.members.get(member)
            unknown = held is None or (job not in held.kept and job not in held.assigned)
            return (not may_run(member, job), unknown, load[member], member)

        keeper = min((member for member, jobs in owned.items() if job in jobs), key=preference)
        goes_on[keeper].append(job)
        load[keeper] += 1
    duplicates = {member: (jobs & twice) - Jobs.of(goes_on[member]) for member, jobs in owned.items()}
    return {member: jobs - duplicates[member] for member, jobs in owned.items()}, duplicates


def returned(
    memory: Memory,
    unaccounted: Jobs,
    members: Mapping[MemberId, MemberView],
    may_run: Callable[[MemberId, Jobs], Jobs],
) -> Mapping[MemberId, Jobs]:
    """What each static member had when it was last heard of, nobody runs now, and it may run still."""
    if not unaccounted:
        return {}
    left = unaccounted
    found: dict[MemberId, Jobs] = {}
    for member in sorted(member for member, view in members.items() if view.instance_id is not None):
        held = memory.members.get(member)
        had = held.whole if held is not None else NO_JOBS
        had |= union(one.jobs for one in memory.waiting if one.instance_id == members[member].instance_id)
        again = may_run(member, had & left)
        if again:
            found[member] = again
            left -= again
    return found


def union(parts: Iterable[Jobs]) -> Jobs:
    parts = list(parts)
    if len(parts) < 2:
        return parts[0] if parts else NO_JOBS
    return Jobs(
        frozenset[ConnectorName]().union(*[jobs.connectors for jobs in parts]),
        frozenset[ConnectorTaskId]().union(*[jobs.tasks for jobs in parts]),
    )


def _under_present_ids(memory: Memory, members: Mapping[MemberId, MemberView]) -> Memory:
    present = {view.instance_id: member for member, view in members.items() if view.instance_id is not None}
    if not present:
        return memory
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
