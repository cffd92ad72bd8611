"""The checks of the invariants of one round, from what its members have reported and what they are assigned."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, islice, product

from coterie.assignors.assignor_state import union
from coterie.assignors.members import RebalancePolicy
from coterie.lab.simulator.fleet.fewest import fewest_stops
from coterie.lab.simulator.identities import MemberIdentity
from coterie.lab.simulator.invariants import Invariant, Violation
from coterie.nouns.ids import Generation, MemberId
from coterie.nouns.jobs import NO_JOBS, ConnectorTaskId, Job, Jobs
from coterie.nouns.membership import AssignmentChange, MemberReport
from coterie.wire.connect import ConnectProtocol, WorkerAssignment, WorkerMetadata

TRIES_MAX = 64
"""The greatest number of ways to attribute jobs with two owners to one of them that `_check_stops` tries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One member in a round: what it has reported, and what the round assigns and revokes."""

    identity: MemberIdentity
    """A static member's instance id; the member id of any other member."""
    owned: Jobs
    """The jobs that the member owned before the round."""
    claims: Jobs | None
    """None: the member may run all jobs that no member claims."""
    draining: bool
    assigned: Jobs
    revoked: Jobs
    """The jobs that the member must release in this round."""

    @property
    def owned_after(self) -> Jobs:
        """The jobs that the member owns after the round."""
        return (self.owned - self.revoked) | self.assigned

    @classmethod
    def of(cls, identity: MemberIdentity, metadata: WorkerMetadata, assignment: WorkerAssignment) -> "Part":
        """The member with its metadata and its assignment as decoded from their bytes."""
        claims = None
        if metadata.static_connectors is not None or metadata.static_tasks is not None:
            claims = Jobs(metadata.static_connectors or frozenset(), metadata.static_tasks or frozenset())
        return cls(
            identity=identity,
            owned=metadata.allocation.assigned if metadata.allocation is not None else NO_JOBS,
            claims=claims,
            draining=metadata.draining,
            assigned=assignment.assigned,
            revoked=assignment.revoked,
        )

    @classmethod
    def reported(cls, identity: MemberIdentity, report: MemberReport, assignment: AssignmentChange) -> "Part":
        """The member with its report and its assignment as the leader has them."""
        return cls(
            identity=identity,
            owned=report.owned,
            claims=report.claims,
            draining=report.draining,
            assigned=assignment.assigned,
            revoked=assignment.revoked,
        )


@dataclass(frozen=True, kw_only=True)
class CheckedRound:
    """One round without an assignment error: all its members, and what the leader computed it from."""

    generation: Generation
    protocol: ConnectProtocol
    parts: Mapping[MemberId, Part]
    """The members by member id."""
    configured: Jobs
    """The jobs that were configured at the config offset up to which the leader had read."""
    delay_ms: int
    """The scheduled rebalance delay that the round announces; 0 if no jobs are deferred."""
    released_by_draining: Jobs = NO_JOBS
    """Jobs that draining members have released and that no member has owned since."""

    @cached_property
    def claimed(self) -> Jobs:
        """The jobs that members claim. The claims of draining members do not count."""
        return union([part.claims for part in self.parts.values() if part.claims is not None and not part.draining])

    @cached_property
    def wildcard_members(self) -> Sequence[Part]:
        """The members that claim no jobs and do not drain: each may run all jobs that no member claims."""
        return [part for part in self.parts.values() if part.claims is None and not part.draining]

    @cached_property
    def assignable(self) -> Jobs:
        """The configured jobs that some member may run. Draining members do not count."""
        return self.configured if self.wildcard_members else self.configured & self.claimed

    @cached_property
    def owned(self) -> Jobs:
        """The jobs that the members owned before the round."""
        return union([part.owned for part in self.parts.values()])

    @cached_property
    def unassigned(self) -> Jobs:
        """The jobs that some member may run, and that no member owned before the round or is assigned."""
        return self.assignable - self.owned - union([part.assigned for part in self.parts.values()])

    def eligible_jobs(self, part: Part, jobs: Jobs) -> Jobs:
        """Those of ``jobs`` that the member ``part`` may run. A draining member may run only jobs that no other member
        may run, and that it owns or that a draining member has released."""
        if part.draining:
            again = (jobs & (part.owned | self.released_by_draining)) - self.assignable
            return again if part.claims is None else again & (part.owned | part.claims)
        return jobs - self.claimed if part.claims is None else jobs & part.claims


def check_round(round_: CheckedRound, policy: RebalancePolicy) -> None:
    """Check all invariants of one round.

    :raises Violation: of the first invariant that is found broken.
    """
    _check_releases(round_)
    for (one, its), (other, others) in combinations(sorted(round_.parts.items()), 2):
        if both := its.owned_after & others.owned_after:
            raise _violation(Invariant.DISJOINT, round_, f"{one}, {other} both own {job_list_text(both)} after it")
    ends = union([part.owned_after for part in round_.parts.values()])
    if surplus := ends - round_.configured:
        raise _violation(Invariant.ACCOUNTED, round_, f"keeps deleted jobs: {job_list_text(surplus)}")
    if round_.protocol is ConnectProtocol.EAGER:
        _check_eager(round_, ends)
        return
    if round_.unassigned and round_.delay_ms == 0:
        raise _violation(Invariant.ACCOUNTED, round_, f"does not assign {job_list_text(round_.unassigned)}")
    for member, part in sorted(round_.parts.items()):
        _check_claims(round_, policy, member, part)
        _check_quota(round_, member, part)
    _check_stops(round_, policy)


def _check_releases(round_: CheckedRound) -> None:
    """No job is assigned to a member while another member owns it.

    :raises Violation: RELEASED_FIRST.
    """
    for member, part in sorted(round_.parts.items()):
        for other, its in sorted(round_.parts.items()):
            if member != other and (both := part.assigned & its.owned):
                raise _violation(
                    Invariant.RELEASED_FIRST, round_, f"assigns {member} {job_list_text(both)}, which {other} owns"
                )


def _check_eager(round_: CheckedRound, owned_after: Jobs) -> None:
    """An eager round assigns all configured jobs or, while members may still run the jobs of their former cooperative
    group, none (KIP-415, downgrades).

    :raises Violation: ACCOUNTED.
    """
    if owned_after and (missing := round_.configured - owned_after):
        raise _violation(Invariant.ACCOUNTED, round_, f"does not assign {job_list_text(missing)}")


def _check_claims(round_: CheckedRound, policy: RebalancePolicy, member: MemberId, part: Part) -> None:
    """The member is assigned only jobs that it may run, and must release those that it may not run. While jobs are
    deferred or moves are limited, a draining member may keep jobs.

    :raises Violation: DRAINED, CLAIMED_ONLY.
    """
    if wrong := part.assigned - round_.eligible_jobs(part, part.assigned):
        which = Invariant.DRAINED if part.draining else Invariant.CLAIMED_ONLY
        raise _violation(which, round_, f"assigns {member} {job_list_text(wrong)}, which it may not run")
    ineligible = (part.owned & round_.configured) - part.revoked - round_.eligible_jobs(part, part.owned)
    if part.draining:
        ineligible &= round_.assignable
    if ineligible and part.draining and policy.moves_per_round_max is None and not _has_deferred_jobs(round_):
        raise _violation(
            Invariant.DRAINED, round_, f"leaves {job_list_text(ineligible)} with {member}, which is draining"
        )
    if ineligible and not part.draining:
        raise _violation(
            Invariant.CLAIMED_ONLY, round_, f"leaves {job_list_text(ineligible)} with {member}, which may not run it"
        )


def _check_quota(round_: CheckedRound, member: MemberId, part: Part) -> None:
    """A member that is assigned connectors or tasks has no more of these than its quota, the ceiling of the average.
    Not checked for static members, members with claims and draining members.

    :raises Violation: FAIR_SHARE.
    """
    if part.claims is not None or part.draining or part.identity != member:
        return
    wildcard, ends = round_.configured - round_.claimed, part.owned_after - round_.claimed
    for kind, new, has, all_ in (
        ("connectors", part.assigned.connectors, ends.connectors, wildcard.connectors),
        ("tasks", part.assigned.tasks, ends.tasks, wildcard.tasks),
    ):
        share = -(-len(all_) // len(round_.wildcard_members))
        if new and len(has) > share:
            raise _violation(Invariant.FAIR_SHARE, round_, f"assigns {member} {kind} up to {len(has)}, quota {share}")


def _check_stops(round_: CheckedRound, policy: RebalancePolicy) -> None:
    """Configured jobs that all their owners must release in this round either may not stay with these owners, or are as
    few as balance requires.

    :raises Violation: ONLY_WHAT_MUST_MOVE, MOVES_PER_ROUND.
    """
    runners: dict[Job, list[Part]] = {}
    for part in round_.parts.values():
        for job in part.owned & round_.configured:
            runners.setdefault(job, []).append(part)
    stopped = {job: parts for job, parts in runners.items() if all(job in part.revoked for part in parts)}
    must_go = {
        job
        for job, parts in stopped.items()
        if all(job not in round_.eligible_jobs(part, part.owned) for part in parts)
    }
    free = {job: parts for job, parts in stopped.items() if job not in must_go}
    if away := [job for job in free if job in round_.claimed]:
        raise _violation(
            Invariant.ONLY_WHAT_MUST_MOVE,
            round_,
            f"revokes {job_list_text(Jobs.of(away))} from a member that claims it",
        )
    if free and _has_deferred_jobs(round_):
        raise _violation(
            Invariant.ONLY_WHAT_MUST_MOVE, round_, f"stops {job_list_text(Jobs.of(free))} while jobs are deferred"
        )
    drained = [job for job in must_go if all(part.draining for part in stopped[job])]
    if policy.moves_per_round_max is not None and len(free) + len(drained) > policy.moves_per_round_max:
        raise _violation(
            Invariant.MOVES_PER_ROUND, round_, f"stops {len(free) + len(drained)}, limit {policy.moves_per_round_max}"
        )
    if free:
        fewest = max(_fewest(round_, runners, free, counted) for counted in _owner_choices(round_, free))
        if len(free) > fewest:
            raise _violation(
                Invariant.ONLY_WHAT_MUST_MOVE, round_, f"stops {job_list_text(Jobs.of(free))}, {fewest} are enough"
            )


def _owner_choices(round_: CheckedRound, free: Mapping[Job, Sequence[Part]]) -> Sequence[Mapping[Job, Part]]:
    """The ways, `TRIES_MAX` at most, in which the assignor may have attributed each job of ``free`` to one owner: a job
    with two owners may count for either of them."""
    of_each = [[part for part in parts if job in round_.eligible_jobs(part, part.owned)] for job, parts in free.items()]
    return [dict(zip(free, way, strict=True)) for way in islice(product(*of_each), TRIES_MAX)]


def _fewest(
    round_: CheckedRound,
    runners: Mapping[Job, Sequence[Part]],
    free: Mapping[Job, object],
    counted: Mapping[Job, Part],
) -> int:
    """The fewest jobs that must stop for balance, if each stopped job counts for its owner in ``counted``. ``runners``
    has the owners of each configured job before the round."""
    connectors, tasks = Counter[MemberIdentity](), Counter[MemberIdentity]()
    has: dict[Job, Part] = {}
    for job, parts in runners.items():
        stays = next((part for part in parts if job not in part.revoked), None)
        if stays is not None or job in counted:
            has[job] = stays or counted[job]
    has.update({job: part for part in round_.parts.values() for job in part.assigned})
    for job, part in has.items():
        if job not in round_.claimed:
            (tasks if isinstance(job, ConnectorTaskId) else connectors)[part.identity] += 1
    wildcard = round_.configured - round_.claimed
    return fewest_stops(
        [(connectors[part.identity], tasks[part.identity]) for part in round_.wildcard_members],
        connectors=len(wildcard.connectors),
        tasks=len(wildcard.tasks),
    )


# -- helpers ----------------------------------------------------------------------------------------------------------


def _has_deferred_jobs(round_: CheckedRound) -> bool:
    """Whether jobs are deferred because a member has left."""
    return bool(round_.unassigned) and round_.delay_ms > 0


def _violation(invariant: Invariant, round_: CheckedRound, what: str) -> Violation:
    """The violation of ``invariant``; ``what`` follows the round's generation in its text."""
    return Violation(invariant, f"generation {round_.generation} {what}")


def job_list_text(jobs: Jobs) -> str:
    """The jobs, separated by commas; ``nothing`` if there are none."""
    return ", ".join(map(str, jobs)) or "nothing"
