"""The state that a leader keeps between rounds, and the part of that state that still applies in the next round."""

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
    """The result of one round for one member; the leader's next round uses it as the member's previous state.

    It is a tuple because a round creates one for each member, and a frozen dataclass takes twice as long to create.
    """

    kept: Jobs
    """The jobs that the member reported as running and keeps."""
    assigned: Jobs = NO_JOBS
    """The jobs that the member receives in this round. It may never receive the assignment that contains them."""
    why: Mapping[Why, Jobs] = MappingProxyType({})
    """The revoked jobs, grouped by their reason; each job has one reason."""
    draining: bool = False
    """Whether the member will leave permanently, so that its jobs do not wait for it."""
    instance_id: InstanceId | None = None

    @property
    def revoked(self) -> Jobs:
        """The jobs that the member must stop and release before it joins again."""
        return union(self.why.values())

    @property
    def whole(self) -> Jobs:
        """The jobs that the member owns once it has applied the round."""
        return self.kept | self.assigned


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """The jobs of one departed member, which stay unassigned until a deadline in case the member returns."""

    jobs: Jobs
    deadline_ms: int
    instance_id: InstanceId | None = None
    """The departed member's instance id, if it was a static member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The state that a leader keeps from one round to the next. A worker that lost its membership starts with none."""

    generation: Generation = Generation(-1)
    """The generation of the last round that this leader computed; -1 before the first."""
    members: Mapping[MemberId, MemberRound] = field(default_factory=dict)
    """The result of that round for each member."""
    waiting: tuple[Waiting, ...] = ()
    candidates: tuple[MemberId, ...] = ()
    """Members that joined without jobs while jobs waited, in order of arrival. They may be departed members that have
    returned."""
    moved: Jobs = NO_JOBS
    """Jobs that were lost or revoked in an earlier round. Where the choice is free, these jobs move again, so that
    other jobs are not stopped."""
    handed_back: Jobs = NO_JOBS
    """Jobs that a draining member released and that no member has run since."""
    next_moves_ms: int = 0
    """Time before which no job is revoked for balance or for a drain (``rebalance.round.interval.ms``)."""


def believed(
    memory: Memory,
    members: Mapping[MemberId, MemberView],
    *,
    generation: Generation,
    last_completed_generation: Generation,
) -> Memory:
    """Return the part of ``memory`` that still applies to the group, with every static member under its present id.

    - If this worker received the assignment of the remembered round, all of the memory applies.
    - If it did not, but no other round came between, only the jobs that members reported in that round apply. The jobs
      that the round newly assigned were never run, so they cannot have been lost.
    - If another member has led rounds since, nothing applies (KAFKA-7026, KAFKA-9848).
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
    """Choose one owner for each of the ``owned`` jobs.

    Preferred is an owner that may run the job; then the owner that the leader's memory contains; then the owner with
    the fewest jobs; then the first by id.

    Returns the jobs that each member keeps, and the jobs that each member must stop because another member keeps them.
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
    """Return, for each static member, the jobs of ``unaccounted`` that it had last and that it may still run."""
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
