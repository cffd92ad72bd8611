"""The checks of the invariants of one round in a classic group: they compare the reports of its members with their
assignments."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, islice, product

from coterie.assignors.assignor_state import union_of_jobs
from coterie.assignors.members import RebalancePolicy
from coterie.lab.simulator.fleet.fewest import fewest_job_stops
from coterie.lab.simulator.identities import MemberIdentity
from coterie.lab.simulator.invariants import Invariant, Violation, job_list_text
from coterie.nouns.ids import GenerationId, MemberId
from coterie.nouns.jobs import NO_JOBS, ConnectorTaskId, Job, Jobs
from coterie.nouns.membership import AssignmentChange, MemberReport
from coterie.wire.connect import ConnectProtocol, WorkerAssignment, WorkerMetadata

OWNER_CHOICES_MAX = 64
"""The greatest number of combinations that `_check_stops` tries: of the one owner to which each job with two owners
counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundMember:
    """One member in a round: its report, the jobs that the round assigns to it in addition to those that it keeps, and
    the jobs that the round revokes from it."""

    identity: MemberIdentity
    """A static member's instance id; the member id of any other member."""
    owned: Jobs
    """The jobs that the member owned before the round, by its report."""
    claims: Jobs | None
    """The only jobs that the member may run; None: it may run all jobs that no member claims."""
    is_draining: bool
    """Whether the member has reported that it drains."""
    assigned: Jobs
    """The jobs that the round assigns to the member in addition to those that it keeps."""
    revoked: Jobs
    """The jobs that the round revokes from the member: it must release them."""
    revoked_in_last_round: Jobs = NO_JOBS
    """The jobs that the previous checked round revoked from the member."""

    @property
    def owned_jobs_revoked_again(self) -> Jobs:
        """The jobs that the previous round and this round revoke, and that the member still reports: the member is
        still stopping them."""
        return self.revoked & self.revoked_in_last_round & self.owned

    @property
    def owned_after(self) -> Jobs:
        """The jobs that the member owns when it has applied the round."""
        return (self.owned - self.revoked) | self.assigned

    @classmethod
    def from_decoded_messages(
        cls,
        identity: MemberIdentity,
        metadata: WorkerMetadata,
        assignment: WorkerAssignment,
        *,
        revoked_in_last_round: Jobs,
    ) -> "RoundMember":
        """A member from its JoinGroup metadata and its assignment, both decoded. ``revoked_in_last_round``: the jobs
        that the previous checked round revoked from the member."""
        claims = None
        if metadata.static_connectors is not None or metadata.static_tasks is not None:
            claims = Jobs(metadata.static_connectors or frozenset(), metadata.static_tasks or frozenset())
        return cls(
            identity=identity,
            owned=metadata.allocation.assigned if metadata.allocation is not None else NO_JOBS,
            claims=claims,
            is_draining=metadata.draining,
            assigned=assignment.assigned,
            revoked=assignment.revoked,
            revoked_in_last_round=revoked_in_last_round,
        )

    @classmethod
    def from_report(cls, identity: MemberIdentity, report: MemberReport, assignment: AssignmentChange) -> "RoundMember":
        """A member from its report and its assignment in the leader's herder, where they are not encoded. Its
        ``revoked_in_last_round`` is empty."""
        return cls(
            identity=identity,
            owned=report.owned,
            claims=report.claims,
            is_draining=report.draining,
            assigned=assignment.assigned,
            revoked=assignment.revoked,
        )


@dataclass(frozen=True, kw_only=True)
class CheckedRound:
    """One round without an assignment error: all its members with their assignments, and the input of the leader's
    computation. Draining members do not count as claimants or wildcard members, and a job that only they may run is not
    assignable. An unassigned job is an assignable one that no member owned before the round and that the round assigns
    to no member."""

    generation: GenerationId
    """The number of the generation."""
    protocol: ConnectProtocol
    """The group's protocol in the round."""
    members: Mapping[MemberId, RoundMember]
    """The members by member id."""
    configured_jobs: Jobs
    """The configured jobs by the part of the config log that the leader had read."""
    delay_ms: int
    """The rest of the scheduled rebalance delay in the assignments; 0 if no job stays unassigned because of it."""
    released_by_draining: Jobs = NO_JOBS
    """The jobs that earlier rounds have revoked from draining members and that no member has owned since."""

    @cached_property
    def claimed_jobs(self) -> Jobs:
        """The jobs that non-draining members claim."""
        return union_of_jobs(
            [member.claims for member in self.members.values() if member.claims is not None and not member.is_draining]
        )

    @cached_property
    def wildcard_members(self) -> Sequence[RoundMember]:
        """The members that report no claims and do not drain: each may run all jobs that no member claims. A member
        with an empty set of claims may run no job and is not one of them."""
        return [member for member in self.members.values() if member.claims is None and not member.is_draining]

    @cached_property
    def assignable_jobs(self) -> Jobs:
        """The configured jobs that some non-draining member may run."""
        return self.configured_jobs if self.wildcard_members else self.configured_jobs & self.claimed_jobs

    @cached_property
    def owned_jobs(self) -> Jobs:
        """The jobs that the members owned before the round, by their reports."""
        return union_of_jobs([member.owned for member in self.members.values()])

    @cached_property
    def unassigned_jobs(self) -> Jobs:
        """The configured jobs that some non-draining member may run, that no member owned before the round, and that
        the round assigns to no member."""
        return (
            self.assignable_jobs
            - self.owned_jobs
            - union_of_jobs([member.assigned for member in self.members.values()])
        )

    def eligible_jobs(self, member: RoundMember, jobs: Jobs) -> Jobs:
        """Those of ``jobs`` that ``member`` may run. A draining member may run only jobs that no non-draining
        member may run. Of these it may run two kinds: the jobs that it owns, and the jobs that draining members have
        released; with claims, it may run a released job only if it claims the job."""
        if member.is_draining:
            keepable = (jobs & (member.owned | self.released_by_draining)) - self.assignable_jobs
            return keepable if member.claims is None else keepable & (member.owned | member.claims)
        return jobs - self.claimed_jobs if member.claims is None else jobs & member.claims


def check_round(round_: CheckedRound, policy: RebalancePolicy) -> None:
    """Check the invariants of one round: its releases, that no job gets two owners, that all jobs are accounted for,
    and, unless the group is eager, claims, quotas and stops.

    :raises Violation: of the first invariant that is found broken.
    """
    _check_released_first(round_)
    for (member_id, member), (other_id, other_member) in combinations(sorted(round_.members.items()), 2):
        if shared_jobs := member.owned_after & other_member.owned_after:
            raise _make_round_violation(
                Invariant.DISJOINT, round_, f"lets {member_id} and {other_id} both own {job_list_text(shared_jobs)}"
            )
    owned_after = union_of_jobs([member.owned_after for member in round_.members.values()])
    if surplus := owned_after - round_.configured_jobs:
        raise _make_round_violation(
            Invariant.ACCOUNTED, round_, f"keeps jobs that are not configured: {job_list_text(surplus)}"
        )
    if round_.protocol is ConnectProtocol.EAGER:
        _check_eager_assigns_all_or_none(round_, owned_after)
        return
    if round_.unassigned_jobs and round_.delay_ms == 0:
        raise _make_round_violation(
            Invariant.ACCOUNTED,
            round_,
            f"assigns to no member {job_list_text(round_.unassigned_jobs)}, without a delay",
        )
    for member_id, member in sorted(round_.members.items()):
        _check_eligible_jobs_only(round_, policy, member_id, member)
        _check_quota_if_assigned(round_, member_id, member)
    _check_stops(round_, policy)


def _check_released_first(round_: CheckedRound) -> None:
    """Check that no job is assigned to a member while another member reports that it owns the job.

    :raises Violation: RELEASED_FIRST.
    """
    for member_id, member in sorted(round_.members.items()):
        for other_id, other_member in sorted(round_.members.items()):
            if member_id != other_id and (shared_jobs := member.assigned & other_member.owned):
                raise _make_round_violation(
                    Invariant.RELEASED_FIRST,
                    round_,
                    f"assigns {member_id} {job_list_text(shared_jobs)}, which {other_id} still owns",
                )


def _check_eager_assigns_all_or_none(round_: CheckedRound, owned_after: Jobs) -> None:
    """Check that an eager round assigns all configured jobs, or none: it assigns none while members may still run jobs
    from an earlier round with a cooperative protocol (KIP-415, downgrades). ``owned_after``: all jobs that members own
    after the round.

    :raises Violation: ACCOUNTED.
    """
    if owned_after and (unassigned := round_.configured_jobs - owned_after):
        raise _make_round_violation(
            Invariant.ACCOUNTED, round_, f"assigns some jobs, but not {job_list_text(unassigned)}"
        )


def _check_eligible_jobs_only(
    round_: CheckedRound, policy: RebalancePolicy, member_id: MemberId, member: RoundMember
) -> None:
    """Check that ``member`` is assigned only jobs that it may run, and must release the configured jobs that it may not
    run. A draining member may keep such jobs while jobs stay unassigned because of the delay, and if the policy limits
    moves.

    :raises Violation: DRAINED, CLAIMED_ONLY.
    """
    if ineligible_assigned := member.assigned - round_.eligible_jobs(member, member.assigned):
        invariant = Invariant.DRAINED if member.is_draining else Invariant.CLAIMED_ONLY
        raise _make_round_violation(
            invariant, round_, f"assigns {member_id} {job_list_text(ineligible_assigned)}, which it may not run"
        )
    ineligible_kept = (
        (member.owned & round_.configured_jobs) - member.revoked - round_.eligible_jobs(member, member.owned)
    )
    if member.is_draining:
        ineligible_kept &= round_.assignable_jobs
    if ineligible_kept and member.is_draining and policy.moves_per_round_max is None and not _has_deferred_jobs(round_):
        raise _make_round_violation(
            Invariant.DRAINED, round_, f"leaves {job_list_text(ineligible_kept)} with {member_id}, which drains"
        )
    if ineligible_kept and not member.is_draining:
        raise _make_round_violation(
            Invariant.CLAIMED_ONLY,
            round_,
            f"leaves {job_list_text(ineligible_kept)} with {member_id}, which may not run these jobs",
        )


def _check_quota_if_assigned(round_: CheckedRound, member_id: MemberId, member: RoundMember) -> None:
    """Check that a member that is assigned connectors then owns no more connectors than its quota, the ceiling of the
    average; the same for tasks. Claimed jobs do not count. Not checked for static members, members with claims and
    draining members.

    :raises Violation: FAIR_SHARE.
    """
    if member.claims is not None or member.is_draining or member.identity != member_id:
        return
    wildcard, owned_after = round_.configured_jobs - round_.claimed_jobs, member.owned_after - round_.claimed_jobs
    for kind, assigned, owned, configured in (
        ("connectors", member.assigned.connectors, owned_after.connectors, wildcard.connectors),
        ("tasks", member.assigned.tasks, owned_after.tasks, wildcard.tasks),
    ):
        quota = -(-len(configured) // len(round_.wildcard_members))
        if assigned and len(owned) > quota:
            raise _make_round_violation(
                Invariant.FAIR_SHARE,
                round_,
                f"assigns {kind} to {member_id}, which then owns {len(owned)}; its quota is {quota}",
            )


def _check_stops(round_: CheckedRound, policy: RebalancePolicy) -> None:
    """Check the stops of the round: the configured jobs that all their owners must release. An owner that has been
    stopping a job since the previous round does not count as its owner.

    A job may be stopped because none of its owners may run the job. Every other stop is for balance, and is allowed
    only if no member claims the job, no jobs stay unassigned because of the delay, and no more jobs are stopped for
    balance than needed. The stops for balance and for drains together must not exceed the policy's limit of moves.

    :raises Violation: ONLY_WHAT_MUST_MOVE, MOVES_PER_ROUND.
    """
    owners_by_job: dict[Job, list[RoundMember]] = {}
    for owner in round_.members.values():
        for job in (owner.owned - owner.owned_jobs_revoked_again) & round_.configured_jobs:
            owners_by_job.setdefault(job, []).append(owner)
    owners_by_stopped_job = {
        job: owners for job, owners in owners_by_job.items() if all(job in part.revoked for part in owners)
    }
    ineligible_stops = {
        job
        for job, parts in owners_by_stopped_job.items()
        if all(job not in round_.eligible_jobs(part, part.owned) for part in parts)
    }
    stopped_for_balance = {job: parts for job, parts in owners_by_stopped_job.items() if job not in ineligible_stops}
    if claimed_stops := [job for job in stopped_for_balance if job in round_.claimed_jobs]:
        raise _make_round_violation(
            Invariant.ONLY_WHAT_MUST_MOVE,
            round_,
            f"revokes {job_list_text(Jobs.of(claimed_stops))} from members that claim these jobs",
        )
    if stopped_for_balance and _has_deferred_jobs(round_):
        raise _make_round_violation(
            Invariant.ONLY_WHAT_MUST_MOVE,
            round_,
            f"stops {job_list_text(Jobs.of(stopped_for_balance))} for balance, while the delay keeps jobs unassigned",
        )
    drained_stops = [job for job in ineligible_stops if all(part.is_draining for part in owners_by_stopped_job[job])]
    if (
        policy.moves_per_round_max is not None
        and len(stopped_for_balance) + len(drained_stops) > policy.moves_per_round_max
    ):
        raise _make_round_violation(
            Invariant.MOVES_PER_ROUND,
            round_,
            f"stops {len(stopped_for_balance) + len(drained_stops)} jobs for balance and drains, the limit is "
            f"{policy.moves_per_round_max}",
        )
    if stopped_for_balance:
        fewest = max(
            _fewest_balance_stops(round_, owners_by_job, stopped_for_balance, owner_by_job)
            for owner_by_job in _owner_choices_up_to_max(round_, stopped_for_balance)
        )
        if len(stopped_for_balance) > fewest:
            raise _make_round_violation(
                Invariant.ONLY_WHAT_MUST_MOVE,
                round_,
                f"stops {job_list_text(Jobs.of(stopped_for_balance))} for balance, but {fewest} stops are enough",
            )


def _owner_choices_up_to_max(
    round_: CheckedRound, stopped_for_balance: Mapping[Job, Sequence[RoundMember]]
) -> Sequence[Mapping[Job, RoundMember]]:
    """The possible choices of one owner for each job of ``stopped_for_balance``, at most `OWNER_CHOICES_MAX` of them.
    The assignor lets a job with two owners count for one of them; this check does not know for which."""
    possible_owners = [
        [owner for owner in owners if job in round_.eligible_jobs(owner, owner.owned)]
        for job, owners in stopped_for_balance.items()
    ]
    return [
        dict(zip(stopped_for_balance, choice, strict=True))
        for choice in islice(product(*possible_owners), OWNER_CHOICES_MAX)
    ]


def _fewest_balance_stops(
    round_: CheckedRound,
    owners_by_job: Mapping[Job, Sequence[RoundMember]],
    stopped_for_balance: Mapping[Job, object],
    chosen_owner_by_job: Mapping[Job, RoundMember],
) -> int:
    """The smallest number of jobs that must stop for balance, if each job of ``stopped_for_balance`` counts for its
    owner in ``chosen_owner_by_job``. ``owners_by_job`` has the owners of each configured job before the round."""
    connectors, tasks = Counter[MemberIdentity](), Counter[MemberIdentity]()
    owner_by_job: dict[Job, RoundMember] = {}
    for job, owners in owners_by_job.items():
        keeping_owner = next((owner for owner in owners if job not in owner.revoked), None)
        if keeping_owner is not None or job in chosen_owner_by_job:
            owner_by_job[job] = keeping_owner or chosen_owner_by_job[job]
    owner_by_job.update({job: part for part in round_.members.values() for job in part.assigned})
    for job, part in owner_by_job.items():
        if job not in round_.claimed_jobs:
            (tasks if isinstance(job, ConnectorTaskId) else connectors)[part.identity] += 1
    wildcard = round_.configured_jobs - round_.claimed_jobs
    return fewest_job_stops(
        [(connectors[part.identity], tasks[part.identity]) for part in round_.wildcard_members],
        connector_count=len(wildcard.connectors),
        task_count=len(wildcard.tasks),
    )


# -- helpers ----------------------------------------------------------------------------------------------------------


def _has_deferred_jobs(round_: CheckedRound) -> bool:
    """Whether the round leaves jobs unassigned because of the scheduled rebalance delay."""
    return bool(round_.unassigned_jobs) and round_.delay_ms > 0


def _make_round_violation(invariant: Invariant, round_: CheckedRound, description: str) -> Violation:
    """A violation of ``invariant``, for the caller to raise. Its text is the round's generation and ``description``,
    the predicate of this subject."""
    return Violation(invariant, f"generation {round_.generation} {description}")
