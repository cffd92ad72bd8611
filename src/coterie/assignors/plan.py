"""Predicts which jobs would move if a group changed, and why: runs the leader's rounds ahead until no job moves.

This module makes no decisions. A plan is the result of :func:`coterie.assignors.cooperative.assign` for members that
apply each assignment at once. So a plan differs from the real rounds only if the group behaves differently: another
change comes in between, a worker does not stop its jobs in time, or a worker that has not joined yet receives a member
id that breaks a tie in another way.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeAlias

from coterie.assignors.assignor_state import AssignorState, Deferral, MemberOutcome, union_of_jobs
from coterie.assignors.cooperative import RoundOutcome, assign
from coterie.assignors.members import MemberSpec, RebalancePolicy
from coterie.assignors.moves import RevocationReason
from coterie.nouns.ids import GenerationId, MemberId
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId, Job, Jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSnapshot:
    """A group's configured jobs, its members, and the jobs that wait for departed members, at one time.

    The deadlines in ``deferrals`` are the milliseconds from that time on.
    """

    configured_jobs: Jobs
    members: Mapping[MemberId, MemberSpec]
    deferrals: tuple[Deferral, ...] = ()
    policy: RebalancePolicy = field(default_factory=RebalancePolicy)
    leader_id: MemberId | None = None
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
class MemberChangesClaims:
    """``member`` may now run only ``jobs``; None makes ``member`` a wildcard worker."""

    member: MemberId
    jobs: Jobs | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorGetsTaskCount:
    """A connector is created, or an existing connector gets another number of tasks. The existing tasks of such a
    connector stop and start again (:attr:`RestartReason.RESPLIT`), because each of them gets another part of the
    source."""

    connector: ConnectorName
    task_count: int
    """The connector's (new) number of tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorIsDeleted:
    """The connector and all its tasks are no longer configured."""

    connector: ConnectorName


GroupChange: TypeAlias = (
    MemberJoins | MemberLeaves | MemberDrains | MemberChangesClaims | ConnectorGetsTaskCount | ConnectorIsDeleted
)


def apply_change(snapshot: GroupSnapshot, change: GroupChange) -> GroupSnapshot:
    """Return ``snapshot`` after ``change``, before any job moves.

    A member that left is no longer in ``members``, but its jobs stay in ``configured_jobs``.
    """
    members, configured = snapshot.members, snapshot.configured_jobs
    match change:
        case MemberJoins(member=member, claims=claims):
            return replace(snapshot, members={**members, member: MemberSpec(claims=claims)})
        case MemberLeaves(member=member):
            return replace(snapshot, members={other: spec for other, spec in members.items() if other != member})
        case MemberDrains(member=member):
            return replace(snapshot, members={**members, member: replace(members[member], is_draining=True)})
        case MemberChangesClaims(member=member, jobs=jobs):
            return replace(snapshot, members={**members, member: replace(members[member], claims=jobs)})
        case ConnectorGetsTaskCount(connector=connector, task_count=tasks):
            created_jobs: list[Job] = [connector, *(ConnectorTaskId(connector, number) for number in range(tasks))]
            return replace(
                snapshot,
                configured_jobs=(configured - _jobs_of_connector(connector, configured)) | Jobs.of(created_jobs),
            )
        case ConnectorIsDeleted(connector=connector):
            return replace(snapshot, configured_jobs=configured - _jobs_of_connector(connector, configured))


# -- the plan ---------------------------------------------------------------------------------------------------------


class StartReason(StrEnum):
    """Why a job starts that was not stopped; :class:`RevocationReason` has the reasons for stopped jobs."""

    NEW = "new"
    """No worker ran the job."""
    LOST = "lost"
    """The worker that ran the job leaves the group, or has left it already and the job waits."""


class RestartReason(StrEnum):
    """Why a task stops that no round revokes, and starts again on the same worker."""

    RESPLIT = "resplit"
    """The task's connector gets another number of tasks, so its source is divided between the tasks again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One job that moves: a round stops it or starts it, its member leaves the group, or it waits for a departed member
    in the snapshot. In the last two cases the job is a move also if no round starts it again. The two members are those
    that run the job in the snapshot and in the end; the two rounds are the first that stops it and the last that starts
    it. Each of them is None if there is no such member or round. A task that only restarts (:class:`RestartReason`)
    is a move from its member to the same member, without rounds."""

    job: Job
    from_member: MemberId | None
    """The member that runs the job in the snapshot; None when no member runs it there."""
    to_member: MemberId | None
    """The member that runs the job in the end; None when no member will."""
    reason: RevocationReason | StartReason | RestartReason
    """Why the job stops or, if no member runs it or its member leaves the group, why it starts."""
    stop_round: int | None
    """The first round that stops the job, counted from 1; None when no round stops it, because no member runs it, its
    member leaves the group, or the job only restarts."""
    start_round: int | None
    """The last round that starts the job, counted from 1; None when no round does."""
    unassigned_ms: int
    """Time in which no member runs the job, from the snapshot or the stop to the start, without the time that stopping
    and starting take. 0 for a job that no round starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The moves and rounds until no job moves or waits any more."""

    moves: tuple[Move, ...]
    """Sorted by job."""
    round_count: int
    """The number of rounds until no job moves or waits; rounds that only wait count too."""
    waiting_ms: int
    """Time from the snapshot until no job moves or waits: the sum of delays and of intervals between rounds."""
    reason_by_unassigned_job: Mapping[Job, str]
    """The jobs that no member runs in the end, each with the reason."""
    owned_after: Mapping[MemberId, Jobs]
    """The jobs of each member in the end."""

    @property
    def stopped_job_count(self) -> int:
        """The number of running jobs that a round or a re-split stops; jobs of a member that leaves the group are not
        counted."""
        return sum(move.stop_round is not None or isinstance(move.reason, RestartReason) for move in self.moves)


def compute_plan(snapshot: GroupSnapshot, changes: Sequence[GroupChange]) -> Plan:
    """Compute the plan for ``changes`` that all happen at the time of ``snapshot``, applied in their order."""
    changed_snapshot = snapshot
    for change in changes:
        changed_snapshot = apply_change(changed_snapshot, change)
    members = changed_snapshot.members
    state = AssignorState(
        generation=GenerationId(0),
        outcome_by_member={
            member: MemberOutcome(kept=spec.owned, is_draining=spec.is_draining, instance_id=spec.instance_id)
            for member, spec in snapshot.members.items()
        },
        deferrals=snapshot.deferrals,
    )
    received_delay_ms = 0
    if snapshot.leader_id in snapshot.members and snapshot.leader_id not in members:
        # The new leader has only the jobs that the members report, and the delay in its own last assignment.
        state = AssignorState()
        received_delay_ms = min((deferral.deadline_ms for deferral in snapshot.deferrals), default=0)
    owner_by_job = {job: member for member, spec in sorted(snapshot.members.items()) for job in spec.owned}
    progress_by_job: dict[Job, _JobProgress] = {
        job: _JobProgress(from_member=member, reason=StartReason.LOST, unowned_since_ms=0)
        for job, member in owner_by_job.items()
        if member not in members and job in changed_snapshot.configured_jobs
    }
    deferred_jobs = union_of_jobs(deferral.jobs for deferral in snapshot.deferrals) & changed_snapshot.configured_jobs
    progress_by_job |= {
        job: _JobProgress(from_member=None, reason=StartReason.LOST, unowned_since_ms=0) for job in deferred_jobs
    }
    rounds, now_ms = 0, 0
    while members:
        outcome = assign(
            state,
            configured=changed_snapshot.configured_jobs,
            members=members,
            generation=GenerationId(rounds + 1),
            last_completed_generation=GenerationId(rounds),
            now_ms=now_ms,
            policy=changed_snapshot.policy,
            received_delay_ms=received_delay_ms,
        )
        has_changes = any(
            member_outcome.assigned or member_outcome.revoked for member_outcome in outcome.assignments.values()
        )
        if not has_changes and not outcome.next_round_timer_ms:
            unassigned = outcome.reason_by_unassigned_job
            break
        rounds += 1
        _note_moves_of_round(progress_by_job, outcome, round_number=rounds, now_ms=now_ms)
        state = outcome.assignor_state
        members = {
            member: replace(members[member], owned=member_outcome.owned_after)
            for member, member_outcome in outcome.assignments.items()
        }
        if not any(member_outcome.revoked for member_outcome in outcome.assignments.values()):
            now_ms += outcome.next_round_timer_ms
    else:
        unassigned = dict.fromkeys(changed_snapshot.configured_jobs, "the group has no workers")
    for task in _restarting_tasks(snapshot.configured_jobs, changes):
        if (owner := owner_by_job.get(task)) in members and task in changed_snapshot.configured_jobs:
            # A task that a round stops or starts is not counted twice.
            progress_by_job.setdefault(
                task,
                _JobProgress(from_member=owner, to_member=owner, reason=RestartReason.RESPLIT, unowned_since_ms=0),
            )
    return Plan(
        moves=tuple(progress_by_job[job].as_move(job) for job in Jobs.of(progress_by_job)),
        round_count=rounds,
        waiting_ms=now_ms,
        reason_by_unassigned_job=unassigned,
        owned_after={member: spec.owned for member, spec in sorted(members.items())},
    )


@dataclass(slots=True, kw_only=True)
class _JobProgress:
    """The effects of the rounds on one job so far."""

    from_member: MemberId | None
    reason: RevocationReason | StartReason | RestartReason
    unowned_since_ms: int
    """Since when no member runs the job, in ms after the snapshot."""
    to_member: MemberId | None = None
    stop_round: int | None = None
    start_round: int | None = None
    unassigned_ms: int = 0

    def as_move(self, job: Job) -> Move:
        """Return these effects as the `Move` of ``job``."""
        return Move(
            job=job,
            from_member=self.from_member,
            to_member=self.to_member,
            reason=self.reason,
            stop_round=self.stop_round,
            start_round=self.start_round,
            unassigned_ms=self.unassigned_ms,
        )


def _note_moves_of_round(
    progress_by_job: dict[Job, _JobProgress], outcome: RoundOutcome, *, round_number: int, now_ms: int
) -> None:
    """Enter the effects of round ``round_number`` in ``progress_by_job``: for each job that it revokes or assigns, the
    first round that stops the job, the last one that starts it, and the time without an owner. ``now_ms`` is the time
    of the round in ms after the snapshot."""
    for member, member_outcome in outcome.assignments.items():
        for reason, jobs in member_outcome.revoked_by_reason.items():
            for job in jobs:
                progress = progress_by_job.setdefault(
                    job, _JobProgress(from_member=member, reason=reason, unowned_since_ms=now_ms)
                )
                progress.stop_round, progress.unowned_since_ms = progress.stop_round or round_number, now_ms
                if reason is RevocationReason.DUPLICATE:
                    progress.to_member = next(
                        candidate
                        for candidate, other_outcome in outcome.assignments.items()
                        if job in other_outcome.owned_after
                    )
    for member, member_outcome in outcome.assignments.items():
        for job in member_outcome.assigned:
            progress = progress_by_job.setdefault(
                job, _JobProgress(from_member=None, reason=StartReason.NEW, unowned_since_ms=now_ms)
            )
            progress.to_member, progress.start_round = member, round_number
            progress.unassigned_ms += now_ms - progress.unowned_since_ms


def _restarting_tasks(configured: Jobs, changes: Sequence[GroupChange]) -> Iterator[ConnectorTaskId]:
    """Yield the tasks in ``configured`` of each connector whose number of tasks ``changes`` change."""
    for change in changes:
        if isinstance(change, ConnectorGetsTaskCount):
            tasks = _jobs_of_connector(change.connector, configured).tasks
            if len(tasks) != change.task_count:
                yield from tasks


def _jobs_of_connector(connector: ConnectorName, jobs: Jobs) -> Jobs:
    """Return those of ``jobs`` that are ``connector`` or its tasks."""
    return Jobs(jobs.connectors & {connector}, frozenset(task for task in jobs.tasks if task.connector == connector))
