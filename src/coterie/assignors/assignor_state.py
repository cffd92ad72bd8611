"""The state that a leader keeps between rounds, and the part of that state that still applies in the next round."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

from coterie.assignors.members import MemberSpec
from coterie.assignors.moves import RevocationReason
from coterie.nouns.ids import GenerationId, InstanceId, MemberId
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Job, Jobs


class MemberOutcome(NamedTuple):
    """The result of one round for one member: of the jobs that it reported, those that it keeps and those that it must
    stop, and the jobs that it receives in addition. The leader's next round uses it as the member's previous state.

    It is a tuple because a round creates one for each member, and a frozen dataclass takes twice as long to create.
    """

    kept: Jobs
    """The jobs that the member reported as running and keeps."""
    assigned: Jobs = NO_JOBS
    """The jobs that the round assigns to the member in addition to ``kept``. The member may never receive the
    assignment that contains these jobs, and then has not run them."""
    revoked_by_reason: Mapping[RevocationReason, Jobs] = MappingProxyType({})
    """The revoked jobs, grouped by their reason; each job has one reason."""
    is_draining: bool = False
    """Whether the member drains: it will leave permanently, so its jobs do not wait for its return."""
    instance_id: InstanceId | None = None

    @property
    def revoked(self) -> Jobs:
        """All jobs that the member must stop and release, whatever the reason."""
        return union_of_jobs(self.revoked_by_reason.values())

    @property
    def owned_after(self) -> Jobs:
        """The jobs that the member owns once it has applied the round: ``kept`` and ``assigned``."""
        return self.kept | self.assigned


@dataclass(frozen=True, slots=True, kw_only=True)
class Deferral:
    """The jobs of one departed member, which stay unassigned until a deadline in case the member returns. The deadline
    is on the clock of the rounds' ``now_ms``."""

    jobs: Jobs
    deadline_ms: int
    """Time at which the jobs stop waiting, on the clock of the rounds' ``now_ms``."""
    instance_id: InstanceId | None = None
    """The departed member's instance id, if that member was a static member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignorState:
    """The state that a leader keeps from one round to the next: the results of the last round that it computed, and
    what its next round needs. ``generation`` is the generation of that last round, -1 before the first.

    A leader that has computed no round since it joined the group starts with the default values.
    """

    generation: GenerationId = GenerationId(-1)
    """The generation of the last round that this leader computed; -1 before the first."""
    outcome_by_member: Mapping[MemberId, MemberOutcome] = field(default_factory=dict)
    """The result of the round of ``generation`` for each member."""
    deferrals: tuple[Deferral, ...] = ()
    """The jobs that wait for departed members after that round, the earliest deadline first."""
    possibly_returned_members: tuple[MemberId, ...] = ()
    """Members that joined without jobs while jobs of departed members waited, in order of arrival. Each may be a
    departed member that has returned under a new id."""
    jobs_moved_before: Jobs = NO_JOBS
    """Jobs that were lost or revoked in an earlier round. Where the choice is free, these jobs move again, so that
    other jobs are not stopped."""
    released_by_draining: Jobs = NO_JOBS
    """Jobs that were revoked from a draining member and that no member has run since."""
    moves_allowed_at_ms: int = 0
    """Time before which no job is revoked for balance or for a drain, if the number of moves per round is limited
    (``rebalance.round.interval.ms``)."""


def usable_state(
    state: AssignorState,
    members: Mapping[MemberId, MemberSpec],
    *,
    generation: GenerationId,
    last_completed_generation: GenerationId,
) -> AssignorState:
    """Return the part of ``state`` that still applies to the group, with every static member under its present id.

    ``generation`` is the generation of the round to compute. ``last_completed_generation`` is the last generation whose
    assignment this worker received; -1 if it has received none since it joined the group.

    - If this worker received the assignment of the round in ``state``, all of ``state`` applies.
    - If this worker did not receive that assignment, but the round was the one directly before ``generation``, the
      state applies without the jobs that the round newly assigned, and without those that it revoked. No member has run
      the assigned jobs, so they do not wait for the return of a departed member. The members may never have received
      the revocations, so this round decides on them again.
    - Otherwise the result is an empty state: this worker has computed no round or received no assignment since it
      joined, or another member may have led rounds since (KAFKA-7026, KAFKA-9848).
    """
    if last_completed_generation < 0 or state.generation < 0:
        return AssignorState()
    if state.generation == last_completed_generation:
        return _with_present_member_ids(state, members)
    if state.generation == generation - 1:
        members_without_changes = {
            member: outcome._replace(assigned=NO_JOBS, revoked_by_reason={})
            for member, outcome in state.outcome_by_member.items()
        }
        return _with_present_member_ids(replace(state, outcome_by_member=members_without_changes), members)
    return AssignorState()


def unreleased_revocations(
    state: AssignorState, members: Mapping[MemberId, MemberSpec], configured: Jobs
) -> Mapping[MemberId, Jobs]:
    """Return the ``configured`` jobs that the last round in ``state`` revoked from a member and that the member still
    reports: it is stopping them. Members without such jobs are left out."""
    unreleased: dict[MemberId, Jobs] = {}
    for member, outcome in state.outcome_by_member.items():
        if outcome.revoked_by_reason and member in members:
            jobs = outcome.revoked & members[member].owned & configured
            if jobs:
                unreleased[member] = jobs
    return unreleased


def choose_kept_jobs_and_duplicates(
    owned: Mapping[MemberId, Jobs], state: AssignorState, is_eligible: Callable[[MemberId, Job], bool]
) -> tuple[Mapping[MemberId, Jobs], Mapping[MemberId, Jobs]]:
    """Choose one owner for each of the ``owned`` jobs, of which several members may report the same job.

    Preferred is an owner that may run the job; then the owner that has the job in ``state``; then the owner that keeps
    the fewest jobs so far; then the first by id.

    Returns two mappings, each with all members of ``owned``: the jobs that the member keeps, and the jobs that the
    member must stop because another member keeps them (often no jobs).
    """
    report_counts: Counter[Job] = Counter()
    for jobs in owned.values():
        report_counts.update(jobs.connectors)
        report_counts.update(jobs.tasks)
    duplicated = Jobs.of(job for job, count in report_counts.items() if count > 1)
    job_counts = {member: len(jobs - duplicated) for member, jobs in owned.items()}
    kept_duplicates: dict[MemberId, list[Job]] = {member: [] for member in owned}
    for job in duplicated:

        def preferred_owner_first_key(member: MemberId, job: Job = job) -> tuple[bool, bool, int, MemberId]:
            previous = state.outcome_by_member.get(member)
            is_new_to_member = previous is None or (job not in previous.kept and job not in previous.assigned)
            return (not is_eligible(member, job), is_new_to_member, job_counts[member], member)

        keeper = min((member for member, jobs in owned.items() if job in jobs), key=preferred_owner_first_key)
        kept_duplicates[keeper].append(job)
        job_counts[keeper] += 1
    duplicates = {member: (jobs & duplicated) - Jobs.of(kept_duplicates[member]) for member, jobs in owned.items()}
    return {member: jobs - duplicates[member] for member, jobs in owned.items()}, duplicates


def former_jobs_of_static_members(
    state: AssignorState,
    unowned: Jobs,
    members: Mapping[MemberId, MemberSpec],
    eligible_jobs: Callable[[MemberId, Jobs], Jobs],
) -> Mapping[MemberId, Jobs]:
    """Return, for each static member, those jobs of ``unowned`` that it had and that it may still run.

    Its jobs are those of the last round in ``state`` and those that wait for its instance id. A static member without
    such jobs is left out. A job of several static members goes to the first of them by id.
    """
    if not unowned:
        return {}
    remaining = unowned
    returned_by_member: dict[MemberId, Jobs] = {}
    for member in sorted(member for member, spec in members.items() if spec.instance_id is not None):
        previous = state.outcome_by_member.get(member)
        former_jobs = previous.owned_after if previous is not None else NO_JOBS
        former_jobs |= union_of_jobs(
            deferral.jobs for deferral in state.deferrals if deferral.instance_id == members[member].instance_id
        )
        returned = eligible_jobs(member, former_jobs & remaining)
        if returned:
            returned_by_member[member] = returned
            remaining -= returned
    return returned_by_member


def union_of_jobs(job_sets: Iterable[Jobs]) -> Jobs:
    """Return all jobs of all ``job_sets``."""
    job_sets = list(job_sets)
    if len(job_sets) < 2:
        return job_sets[0] if job_sets else NO_JOBS
    return Jobs(
        frozenset[ConnectorName]().union(*[jobs.connectors for jobs in job_sets]),
        frozenset[ConnectorTaskId]().union(*[jobs.tasks for jobs in job_sets]),
    )


def _with_present_member_ids(state: AssignorState, members: Mapping[MemberId, MemberSpec]) -> AssignorState:
    """Return ``state`` with each static member under its id in ``members``: a restart gives it a new member id."""
    present_id_by_instance = {
        spec.instance_id: member for member, spec in members.items() if spec.instance_id is not None
    }
    if not present_id_by_instance:
        return state
    present_id_by_former = {
        former: present_id_by_instance[outcome.instance_id]
        for former, outcome in state.outcome_by_member.items()
        if outcome.instance_id is not None and outcome.instance_id in present_id_by_instance
    }
    return replace(
        state,
        outcome_by_member={
            present_id_by_former.get(member, member): outcome for member, outcome in state.outcome_by_member.items()
        },
        possibly_returned_members=tuple(
            present_id_by_former.get(member, member) for member in state.possibly_returned_members
        ),
    )
