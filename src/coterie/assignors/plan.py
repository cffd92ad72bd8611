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

from coterie.assignors.assignor_state import AssignorState, Deferral, MemberOutcome, union
from coterie.assignors.cooperative import RoundOutcome, assign
from coterie.assignors.members import MemberSpec, RebalancePolicy
from coterie.assignors.moves import RevocationReason
from coterie.nouns.ids import Generation, MemberId
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId, Job, Jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSnapshot:
    """A group's configured jobs, its members, and the jobs that wait for departed members, at one time.

    The deadlines in ``deferrals`` are the milliseconds from that time on.
    """

    configured: Jobs
    members: Mapping[MemberId, MemberSpec]
    deferrals: tuple[Deferral, ...] = ()
    policy: RebalancePolicy = field(default_factory=RebalancePolicy)
    leader: MemberId | None = None
    """The leader. If the leader leaves, its assignor state is lost. None to plan as if the state were never lost."""


# -- changes ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberJoins:
    """A new member joins without jobs. With ``claims`` None it is a wildcard worker, else a static worker."""

    member: MemberId
    claims: Jobs | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberLeaves:
    """``member`` stops or is killed, and does not return."""

    member: MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDrains:
    """``member`` begins to drain."""

    member: MemberId


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberClaims:
    """``member`` may now run only ``jobs``; None makes ``member`` a wildcard worker."""

    member: MemberId
    jobs: Jobs | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorCreated:
    """A connector is created, or an existing connector gets another number of tasks."""

    connector: ConnectorName
    tasks: int
    """The connector's (new) number of tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorDeleted:
    """The connector and all its tasks are no longer configured."""

    connector: ConnectorName


GroupChange: TypeAlias = MemberJoins | MemberLeaves | MemberDrains | MemberClaims | ConnectorCreated | ConnectorDeleted


def apply_change(snapshot: GroupSnapshot, change: GroupChange) -> GroupSnapshot:
    """Return ``snapshot`` after ``change``, before any job moves.

    A member that left is no longer in ``members``, but its jobs stay in ``configured``.
    """
    members, configured = snapshot.members, snapshot.configured
    match change:
        case MemberJoins(member=member, claims=claims):
            return replace(snapshot, members={**members, member: MemberSpec(claims=claims)})
        case MemberLeaves(member=member):
            return replace(snapshot, members={other: view for other, view in members.items() if other != member})
        case MemberDrains(member=member):
            return replace(snapshot, members={**members, member: replace(members[member], draining=True)})
        case MemberClaims(member=member, jobs=jobs):
            return replace(snapshot, members={**members, member: replace(members[member], claims=jobs)})
        case ConnectorCreated(connector=connector, tasks=tasks):
            created: list[Job] = [connector, *(ConnectorTaskId(connector, number) for number in range(tasks))]
            return replace(snapshot, configured=(configured - _jobs_of(connector, configured)) | Jobs.of(created))
        case ConnectorDeleted(connector=connector):
            return replace(snapshot, configured=configured - _jobs_of(connector, configured))


# -- the plan ---------------------------------------------------------------------------------------------------------


class StartReason(StrEnum):
    """Why a job starts that was not stopped; :class:`RevocationReason` has the reasons for stopped jobs."""

    NEW = "new"
    """No worker ran the job."""
    LOST = "lost"
    """The worker that ran the job leaves the group, or has left it already and the job waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One job that a round stops, that starts on a member on which it did not run, or that a departed member loses."""

    job: Job
    from_member: MemberId | None
    """The member that runs the job in the snapshot; None when no member runs it there."""
    to_member: MemberId | None
    """The member that runs the job in the end; None when no member will."""
    why: RevocationReason | StartReason
    """Why the job stops or, if no member runs it or its member leaves the group, why it starts."""
    stop_round: int | None
    """The first round that stops the job, counted from 1; None when no round stops it, because no member runs it or
    its member leaves the group."""
    start_round: int | None
    """The last round that starts the job, counted from 1; None when no round does."""
    unassigned_ms: int
    """Time in which no member runs the job, from the snapshot or the stop to the start, without the time that stopping
    and starting take. 0 for a job that no round starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The moves and rounds until the group has settled."""

    moves: tuple[Move, ...]
    """Sorted by job."""
    rounds: int
    """The number of rounds until no job moves or waits; rounds that only wait count too."""
    waiting_ms: int
    """Time from the snapshot until no job moves or waits: the sum of delays and of intervals between rounds."""
    unassigned: Mapping[Job, str]
    """The jobs that no member runs in the end, each with the reason."""
    owned_after: Mapping[MemberId, Jobs]
    """The jobs of each member in the end."""

    @property
    def stopped_jobs_count(self) -> int:
        """The number of running jobs that a round stops; jobs of a member that leaves the group are not counted."""
        return sum(move.stop_round is not None for move in self.moves)


def plan(snapshot: GroupSnapshot, changes: Sequence[GroupChange]) -> Plan:
    """Compute the plan for ``changes`` that all happen at the time of ``snapshot``, applied in their order."""
    target = snapshot
    for change in changes:
        target = apply_change(target, change)
    members = target.members
    memory = AssignorState(
        generation=Generation(0),
        members={
            member: MemberOutcome(kept=view.owned, draining=view.draining, instance_id=view.instance_id)
            for member, view in snapshot.members.items()
        },
        deferrals=snapshot.deferrals,
    )
    known_delay_ms = 0
    if snapshot.leader in snapshot.members and snapshot.leader not in members:
        # The new leader has only the jobs that the members report, and the delay in its own last assignment.
        memory = AssignorState()
        known_delay_ms = min((one.deadline_ms for one in snapshot.deferrals), default=0)
    ran_by = {job: member for member, view in sorted(snapshot.members.items()) for job in view.owned}
    progress_by_job: dict[Job, _JobProgress] = {
        job: _JobProgress(from_member=member, why=StartReason.LOST, unowned_since_ms=0)
        for job, member in ran_by.items()
        if member not in members and job in target.configured
    }
    deferrals = union(one.jobs for one in snapshot.deferrals) & target.configured
    progress_by_job |= {
        job: _JobProgress(from_member=None, why=StartReason.LOST, unowned_since_ms=0) for job in deferrals
    }
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
            received_delay_ms=known_delay_ms,
        )
        dealt = any(one.assigned or one.revoked for one in outcome.assignments.values())
        if not dealt and not outcome.next_round_in_ms:
            unassigned = outcome.unassigned
            break
        rounds += 1
        _apply_round(progress_by_job, outcome, number=rounds, now_ms=now_ms)
        memory = outcome.state
        members = {
            member: replace(members[member], owned=one.owned_after) for member, one in outcome.assignments.items()
        }
        if not any(one.revoked for one in outcome.assignments.values()):
            now_ms += outcome.next_round_in_ms
    else:
        unassigned = dict.fromkeys(target.configured, "the group has no workers")
    return Plan(
        moves=tuple(progress_by_job[job].move(job) for job in Jobs.of(progress_by_job)),
        rounds=rounds,
        waiting_ms=now_ms,
        unassigned=unassigned,
        owned_after={member: view.owned for member, view in sorted(members.items())},
    )


@dataclass(slots=True, kw_only=True)
class _JobProgress:
    """The effects of the rounds on one job so far."""

    from_member: MemberId | None
    why: RevocationReason | StartReason
    unowned_since_ms: int
    """Since when no member runs the job, in ms after the snapshot."""
    to_member: MemberId | None = None
    stop_round: int | None = None
    start_round: int | None = None
    unassigned_ms: int = 0

    def move(self, job: Job) -> Move:
        """Return the move of ``job``, of which these are the effects."""
        return Move(
            job=job,
            from_member=self.from_member,
            to_member=self.to_member,
            why=self.why,
            stop_round=self.stop_round,
            start_round=self.start_round,
            unassigned_ms=self.unassigned_ms,
        )


def _apply_round(progress_by_job: dict[Job, _JobProgress], outcome: RoundOutcome, *, number: int, now_ms: int) -> None:
    """Add the jobs that round ``number`` revokes and assigns, ``now_ms`` after the snapshot, to ``progress_by_job``."""
    for member, one in outcome.assignments.items():
        for why, jobs in one.revoked_by_reason.items():
            for job in jobs:
                progress = progress_by_job.setdefault(
                    job, _JobProgress(from_member=member, why=why, unowned_since_ms=now_ms)
                )
                progress.stop_round, progress.unowned_since_ms = progress.stop_round or number, now_ms
                if why is RevocationReason.DUPLICATE:
                    progress.to_member = next(m for m, o in outcome.assignments.items() if job in o.owned_after)
    for member, one in outcome.assignments.items():
        for job in one.assigned:
            progress = progress_by_job.setdefault(
                job, _JobProgress(from_member=None, why=StartReason.NEW, unowned_since_ms=now_ms)
            )
            progress.to_member, progress.start_round = member, number
            progress.unassigned_ms += now_ms - progress.unowned_since_ms


def _jobs_of(connector: ConnectorName, jobs: Jobs) -> Jobs:
    """Return those of ``jobs`` that are ``connector`` or its tasks."""
    return Jobs(jobs.connectors & {connector}, frozenset(task for task in jobs.tasks if task.connector == connector))
