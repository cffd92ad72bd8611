"""What would move if a group changed, and why: the leader's own rounds, played ahead until nothing moves any more.

Nothing here decides: a plan is what :func:`coterie.assignors.cooperative.assign` would do, with members that do at once
what they are told. So it can differ from what comes only where the group does: another change comes in between, a
worker does not stop in time, or a worker that is still to join gets an id that settles a tie between equals otherwise.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeAlias

from coterie.assignors.cooperative import RoundOutcome, assign
from coterie.assignors.members import MemberView, Policy
from coterie.assignors.memory import MemberRound, Memory, Waiting, union
from coterie.assignors.moves import Why
from coterie.nouns.ids import Generation, MemberId
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId, Job, Jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A group as its leader knows it; times count from now."""

    configured: Jobs
    members: Mapping[MemberId, MemberView]
    waiting: tuple[Waiting, ...] = ()
    policy: Policy = field(default_factory=Policy)
    leader: MemberId | None = None
    """Whose picture it is. If it leaves, what it remembers goes with it; None when that is not to be thought of."""


# -- what may change --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberJoins:
    member: MemberId
    claims: Jobs | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberLeaves:
    member: MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDrains:
    member: MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberClaims:
    """From now on ``member`` takes only ``jobs``; None makes it a wildcard worker."""

    member: MemberId
    jobs: Jobs | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Created:
    connector: ConnectorName
    tasks: int
    """How many it is split into; of one that is there already the number changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted:
    connector: ConnectorName


GroupChange: TypeAlias = MemberJoins | MemberLeaves | MemberDrains | MemberClaims | Created | Deleted


def changed(picture: Picture, change: GroupChange) -> Picture:
    """``picture`` after ``change``, before anything has moved. A member that left is missing, what it ran is not."""
    members, configured = picture.members, picture.configured
    match change:
        case MemberJoins(member=member, claims=claims):
            return replace(picture, members={**members, member: MemberView(claims=claims)})
        case MemberLeaves(member=member):
            return replace(picture, members={other: view for other, view in members.items() if other != member})
        case MemberDrains(member=member):
            return replace(picture, members={**members, member: replace(members[member], draining=True)})
        case MemberClaims(member=member, jobs=jobs):
            return replace(picture, members={**members, member: replace(members[member], claims=jobs)})
        case Created(connector=connector, tasks=tasks):
            created: list[Job] = [connector, *(ConnectorTaskId(connector, number) for number in range(tasks))]
            return replace(picture, configured=(configured - _all_of(connector, configured)) | Jobs.of(created))
        case Deleted(connector=connector):
            return replace(picture, configured=configured - _all_of(connector, configured))


# -- what would come of it --------------------------------------------------------------------------------------------


class Reason(StrEnum):
    """Why a job comes to be where it will be; those of a job that is stopped are :class:`Why`."""

    NEW = "new"
    """Nobody ran it."""
    LOST = "lost"
    """Its worker has left the group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One job that is stopped, or started where it did not run."""

    job: Job
    came_from: MemberId | None
    """Who runs it now, or ran it until it left; None when nobody does."""
    goes_to: MemberId | None
    """Who runs it in the end; None when nobody will."""
    why: Why | Reason
    stops_in: int | None
    """The round that stops it, from 1 on; None when it does not run."""
    starts_in: int | None
    """The round that starts it; None when none does."""
    waits_ms: int
    """How long nobody runs it, but for the time that stopping and starting take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that would happen until the group has settled."""

    moves: tuple[Move, ...]
    """In the order of jobs."""
    rounds: int
    lasts_ms: int
    """How much of the time until it has settled is waiting: delays, and intervals between rounds."""
    unassigned: Mapping[Job, str]
    """Who has nobody in the end, and why."""
    after: Mapping[MemberId, Jobs]

    @property
    def stopped(self) -> int:
        """How many running jobs are stopped."""
        return sum(move.stops_in is not None for move in self.moves)


def plan(picture: Picture, changes: Sequence[GroupChange]) -> Plan:
    """What comes of ``changes``, all at once."""
    target = picture
    for change in changes:
        target = changed(target, change)
    members = target.members
    memory = Memory(
        generation=Generation(0),
        members={
            member: MemberRound(kept=view.owned, draining=view.draining, instance_id=view.instance_id)
            for member, view in picture.members.items()
        },
        waiting=picture.waiting,
    )
    known_delay_ms = 0
    if picture.leader in picture.members and picture.leader not in members:
        # Whoever leads then knows of the others only what they say, and of the delay what it was last told.
        memory = Memory()
        known_delay_ms = min((one.deadline_ms for one in picture.waiting), default=0)
    ran_by = {job: member for member, view in sorted(picture.members.items()) for job in view.owned}
    tracks: dict[Job, _Track] = {
        job: _Track(came_from=member, why=Reason.LOST, free_ms=0)
        for job, member in ran_by.items()
        if member not in members and job in target.configured
    }
    waiting = union(one.jobs for one in picture.waiting) & target.configured
    tracks |= {job: _Track(came_from=None, why=Reason.LOST, free_ms=0) for job in waiting}
    rounds, now_ms = 0, 0
    while members:
        outcome = assign(
            memory,
            configured=target.configured,
            members=members,
            generation=Generation(rounds + 1),
            last_completed_generation=Generation(rounds),
            now_ms=now_ms,
            policy=target.policy,
            known_delay_ms=known_delay_ms,
        )
        dealt = any(one.assigned or one.revoked for one in outcome.assignments.values())
        if not dealt and not outcome.next_in_ms:
            unassigned = outcome.unassigned
            break
        rounds += 1
        _follow(tracks, outcome, number=rounds, now_ms=now_ms)
        memory = outcome.memory
        members = {member: replace(members[member], owned=one.whole) for member, one in outcome.assignments.items()}
        if not any(one.revoked for one in outcome.assignments.values()):
            now_ms += outcome.next_in_ms
    else:
        unassigned = dict.fromkeys(target.configured, "the group has no workers")
    return Plan(
        moves=tuple(tracks[job].move(job) for job in Jobs.of(tracks)),
        rounds=rounds,
        lasts_ms=now_ms,
        unassigned=unassigned,
        after={member: view.owned for member, view in sorted(members.items())},
    )


@dataclass(slots=True, kw_only=True)
class _Track:
    """What has happened to one job so far."""

    came_from: MemberId | None
    why: Why | Reason
    free_ms: int
    """Since when nobody runs it."""
    goes_to: MemberId | None = None
    stops_in: int | None = None
    starts_in: int | None = None
    waits_ms: int = 0

    def move(self, job: Job) -> Move:
        return Move(
            job=job,
            came_from=self.came_from,
            goes_to=self.goes_to,
            why=self.why,
            stops_in=self.stops_in,
            starts_in=self.starts_in,
            waits_ms=self.waits_ms,
        )


def _follow(tracks: dict[Job, _Track], outcome: RoundOutcome, *, number: int, now_ms: int) -> None:
    for member, one in outcome.assignments.items():
        for why, jobs in one.why.items():
            for job in jobs:
                track = tracks.setdefault(job, _Track(came_from=member, why=why, free_ms=now_ms))
                track.stops_in, track.free_ms = track.stops_in or number, now_ms
                if why is Why.DUPLICATE:
                    track.goes_to = next(m for m, o in outcome.assignments.items() if job in o.whole)
    for member, one in outcome.assignments.items():
        for job in one.assigned:
            track = tracks.setdefault(job, _Track(came_from=None, why=Reason.NEW, free_ms=now_ms))
            track.goes_to, track.starts_in = member, number
            track.waits_ms += now_ms - track.free_ms


def _all_of(connector: ConnectorName, jobs: Jobs) -> Jobs:
    return Jobs(jobs.connectors & {connector}, frozenset(task for task in jobs.tasks if task.connector == connector))
