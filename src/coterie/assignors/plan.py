"""Predicts which jobs would move if a group changed, and why: runs the leader's rounds ahead until no job moves.

This module makes no decisions. A plan is the result of :func:`coterie.assignors.cooperative.assign` for members that
apply each assignment at once. So a plan differs from the real rounds only if the group behaves differently: another
change comes in between, a worker does not stop its jobs in time, or a worker that has not joined yet receives a member
id that breaks a tie in another way.
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
    """A group's jobs, members and waiting jobs at one time. Its deadlines are relative to that time."""

    configured: Jobs
    members: Mapping[MemberId, MemberView]
    waiting: tuple[Waiting, ...] = ()
    policy: Policy = field(default_factory=Policy)
    leader: MemberId | None = None
    """The leader, whose memory is lost if it leaves; None to plan without that effect."""


# -- changes ----------------------------------------------------------------------------------------------------------


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
    """``member`` may now run only ``jobs``; None makes it a wildcard worker."""

    member: MemberId
    jobs: Jobs | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Created:
    connector: ConnectorName
    tasks: int
    """The connector's number of tasks; for an existing connector the new number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted:
    connector: ConnectorName


GroupChange: TypeAlias = MemberJoins | MemberLeaves | MemberDrains | MemberClaims | Created | Deleted


def changed(picture: Picture, change: GroupChange) -> Picture:
    """Return ``picture`` after ``change``, before any job moves.

    A member that left is no longer in ``members``, but its jobs stay in ``configured``.
    """
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


# -- the plan ---------------------------------------------------------------------------------------------------------


class Reason(StrEnum):
    """Why a job starts that was not stopped; :class:`Why` has the reasons for stopped jobs."""

    NEW = "new"
    """No worker ran the job."""
    LOST = "lost"
    """The job's worker has left the group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One job that is stopped, or started where it did not run."""

    job: Job
    came_from: MemberId | None
    """The member that runs the job now, or ran it until the member left; None when no member runs it."""
    goes_to: MemberId | None
    """The member that runs the job in the end; None when no member will."""
    why: Why | Reason
    stops_in: int | None
    """The round that stops the job, counted from 1; None when the job does not run."""
    starts_in: int | None
    """The round that starts the job; None when no round does."""
    waits_ms: int
    """Time in which no member runs the job, without the time that stopping and starting take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The moves and rounds until the group has settled."""

    moves: tuple[Move, ...]
    """Sorted by job."""
    rounds: int
    lasts_ms: int
    """Waiting time until the group has settled: delays, and intervals between rounds."""
    unassigned: Mapping[Job, str]
    """The jobs that no member runs in the end, each with the reason."""
    after: Mapping[MemberId, Jobs]
    """The jobs of each member in the end."""

    @property
    def stopped(self) -> int:
        """The number of running jobs that are stopped."""
        return sum(move.stops_in is not None for move in self.moves)


def plan(picture: Picture, changes: Sequence[GroupChange]) -> Plan:
    """Compute the plan for ``changes`` that all happen at the same time."""
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
        # The new leader has only the jobs that the members report, and the delay in its own last assignment.
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
    """The effects of the rounds on one job so far."""

    came_from: MemberId | None
    why: Why | Reason
    free_ms: int
    """Since when no member runs the job."""
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
