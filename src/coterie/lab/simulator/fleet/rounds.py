"""The invariant checks of one round, by its members' reports and their assignments."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, islice, product

from coterie.assignors.members import Policy
from coterie.assignors.memory import union
from coterie.lab.simulator.fleet.fewest import fewest_stops
from coterie.lab.simulator.identities import MemberIdentity
from coterie.lab.simulator.invariants import Invariant, Violation
from coterie.nouns.ids import Generation, MemberId
from coterie.nouns.jobs import NO_JOBS, ConnectorTaskId, Job, Jobs
from coterie.nouns.membership import MemberAssignment, MemberReport
from coterie.wire.connect import ConnectProtocol, WorkerAssignment, WorkerMetadata

TRIES_MAX = 64
"""Limit of the number of ways to attribute jobs with two owners that `_check_stops` tries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One member's part in a round: what it reported, and what it is assigned."""

    place: MemberIdentity
    """A static member's instance id; the member id of any other member."""
    runs: Jobs
    claims: Jobs | None
    draining: bool
    assigned: Jobs
    revoked: Jobs

    @property
    def ends(self) -> Jobs:
        return (self.runs - self.revoked) | self.assigned

    @classmethod
    def of(cls, place: MemberIdentity, metadata: WorkerMetadata, assignment: WorkerAssignment) -> "Part":
        claims = None
        if metadata.static_connectors is not None or metadata.static_tasks is not None:
            claims = Jobs(metadata.static_connectors or frozenset(), metadata.static_tasks or frozenset())
        return cls(
            place=place,
            runs=metadata.allocation.assigned if metadata.allocation is not None else NO_JOBS,
            claims=claims,
            draining=metadata.draining,
            assigned=assignment.assigned,
            revoked=assignment.revoked,
        )

    @classmethod
    def reported(cls, place: MemberIdentity, report: MemberReport, assignment: MemberAssignment) -> "Part":
        """From the report and the assignment as the leader has them."""
        return cls(
            place=place,
            runs=report.owned,
            claims=report.claims,
            draining=report.draining,
            assigned=assignment.assigned,
            revoked=assignment.revoked,
        )


@dataclass(frozen=True, kw_only=True)
class CheckedRound:
    """One round without an assignment error: all its members, and the leader's state."""

    generation: Generation
    protocol: ConnectProtocol
    parts: Mapping[MemberId, Part]
    configured: Jobs
    """The configured jobs at the config offset that the leader had read."""
    delay_ms: int
    handed_back: Jobs = NO_JOBS
    """Jobs that draining members have released and that no member has run since."""

    @cached_property
    def claimed(self) -> Jobs:
        """The jobs that members claim that do not drain."""
        return union([part.claims for part in self.parts.values() if part.claims is not None and not part.draining])

    @cached_property
    def wildcard(self) -> Sequence[Part]:
        """The members that may run any unclaimed job."""
        return [part for part in self.parts.values() if part.claims is None and not part.draining]

    @cached_property
    def placeable(self) -> Jobs:
        """The configured jobs that some member may run."""
        return self.configured if self.wildcard else self.configured & self.claimed

    @cached_property
    def running(self) -> Jobs:
        return union([part.runs for part in self.parts.values()])

    @cached_property
    def missing(self) -> Jobs:
        """The jobs that some member may run, and that no member owns or is assigned."""
        return self.placeable - self.running - union([part.assigned for part in self.parts.values()])

    def may_run(self, part: Part, jobs: Jobs) -> Jobs:
        if part.draining:
            again = (jobs & (part.runs | self.handed_back)) - self.placeable
            return again if part.claims is None else again & (part.runs | part.claims)
        return jobs - self.claimed if part.claims is None else jobs & part.claims


def check_round(round_: CheckedRound, policy: Policy) -> None:
    """Check all invariants of one round.

    :raises Violation: of the first broken invariant.
    """
    _check_releases(round_)
    for (one, its), (other, others) in combinations(sorted(round_.parts.items()), 2):
        if both := its.ends & others.ends:
            raise _broken(Invariant.DISJOINT, round_, f"{one}, {other} both own {names_of_jobs(both)} after it")
    ends = union([part.ends for part in round_.parts.values()])
    if surplus := ends - round_.configured:
        raise _broken(Invariant.ACCOUNTED, round_, f"keeps deleted jobs: {names_of_jobs(surplus)}")
    if round_.protocol is ConnectProtocol.EAGER:
        _check_eager(round_, ends)
        return
    if round_.missing and round_.delay_ms == 0:
        raise _broken(Invariant.ACCOUNTED, round_, f"does not assign {names_of_jobs(round_.missing)}")
    for member, part in sorted(round_.parts.items()):
        _check_claims(round_, policy, member, part)
        _check_share(round_, member, part)
    _check_stops(round_, policy)


def _check_releases(round_: CheckedRound) -> None:
    for member, part in sorted(round_.parts.items()):
        for other, its in sorted(round_.parts.items()):
            if member != other and (both := part.assigned & its.runs):
                raise _broken(
                    Invariant.RELEASED_FIRST, round_, f"assigns {member} {names_of_jobs(both)}, which {other} owns"
                )


def _check_eager(round_: CheckedRound, ends: Jobs) -> None:
    """An eager round assigns all configured jobs; or none, while members may still run their former jobs (KIP-415,
    downgrades)."""
    if ends and (missing := round_.configured - ends):
        raise _broken(Invariant.ACCOUNTED, round_, f"does not assign {names_of_jobs(missing)}")


def _check_claims(round_: CheckedRound, policy: Policy, member: MemberId, part: Part) -> None:
    if wrong := part.assigned - round_.may_run(part, part.assigned):
        which = Invariant.DRAINED if part.draining else Invariant.CLAIMED_ONLY
        raise _broken(which, round_, f"assigns {member} {names_of_jobs(wrong)}, which it may not run")
    strays = (part.runs & round_.configured) - part.revoked - round_.may_run(part, part.runs)
    if part.draining:
        strays &= round_.placeable
    if strays and part.draining and policy.moves_per_round_max is None and not _waits(round_):
        raise _broken(Invariant.DRAINED, round_, f"leaves {names_of_jobs(strays)} with {member}, which is draining")
    if strays and not part.draining:
        raise _broken(
            Invariant.CLAIMED_ONLY, round_, f"leaves {names_of_jobs(strays)} with {member}, which may not run it"
        )


def _check_share(round_: CheckedRound, member: MemberId, part: Part) -> None:
    """No member is assigned more than its quota, except static members, members with claims and draining members."""
    if part.claims is not None or part.draining or part.place != member:
        return
    wildcard, ends = round_.configured - round_.claimed, part.ends - round_.claimed
    for kind, new, has, all_ in (
        ("connectors", part.assigned.connectors, ends.connectors, wildcard.connectors),
        ("tasks", part.assigned.tasks, ends.tasks, wildcard.tasks),
    ):
        share = -(-len(all_) // len(round_.wildcard))
        if new and len(has) > share:
            raise _broken(Invariant.FAIR_SHARE, round_, f"assigns {member} {kind} up to {len(has)}, quota {share}")


def _check_stops(round_: CheckedRound, policy: Policy) -> None:
    """The configured jobs that all their owners must release in this round have to move, and are as few as possible."""
    runners: dict[Job, list[Part]] = {}
    for part in round_.parts.values():
        for job in part.runs & round_.configured:
            runners.setdefault(job, []).append(part)
    stopped = {job: parts for job, parts in runners.items() if all(job in part.revoked for part in parts)}
    must_go = {
        job for job, parts in stopped.items() if all(job not in round_.may_run(part, part.runs) for part in parts)
    }
    free = {job: parts for job, parts in stopped.items() if job not in must_go}
    if away := [job for job in free if job in round_.claimed]:
        raise _broken(
            Invariant.ONLY_WHAT_MUST_MOVE,
            round_,
            f"revokes {names_of_jobs(Jobs.of(away))} from a member that claims it",
        )
    if free and _waits(round_):
        raise _broken(
            Invariant.ONLY_WHAT_MUST_MOVE, round_, f"stops {names_of_jobs(Jobs.of(free))} while jobs are deferred"
        )
    drained = [job for job in must_go if all(part.draining for part in stopped[job])]
    if policy.moves_per_round_max is not None and len(free) + len(drained) > policy.moves_per_round_max:
        raise _broken(
            Invariant.MOVES_PER_ROUND, round_, f"stops {len(free) + len(drained)}, limit {policy.moves_per_round_max}"
        )
    if free:
        fewest = max(_fewest(round_, runners, free, counted) for counted in _ways(round_, free))
        if len(free) > fewest:
            raise _broken(
                Invariant.ONLY_WHAT_MUST_MOVE, round_, f"stops {names_of_jobs(Jobs.of(free))}, {fewest} are enough"
            )


def _ways(round_: CheckedRound, free: Mapping[Job, Sequence[Part]]) -> Sequence[Mapping[Job, Part]]:
    """The ways in which the assignor may have attributed each of ``free`` to one owner: a job with two owners may count
    for either."""
    of_each = [[part for part in parts if job in round_.may_run(part, part.runs)] for job, parts in free.items()]
    return [dict(zip(free, way, strict=True)) for way in islice(product(*of_each), TRIES_MAX)]


def _fewest(
    round_: CheckedRound,
    runners: Mapping[Job, Sequence[Part]],
    free: Mapping[Job, object],
    counted: Mapping[Job, Part],
) -> int:
    connectors, tasks = Counter[MemberIdentity](), Counter[MemberIdentity]()
    has: dict[Job, Part] = {}
    for job, parts in runners.items():
        stays = next((part for part in parts if job not in part.revoked), None)
        if stays is not None or job in counted:
            has[job] = stays or counted[job]
    has.update({job: part for part in round_.parts.values() for job in part.assigned})
    for job, part in has.items():
        if job not in round_.claimed:
            (tasks if isinstance(job, ConnectorTaskId) else connectors)[part.place] += 1
    wildcard = round_.configured - round_.claimed
    return fewest_stops(
        [(connectors[part.place], tasks[part.place]) for part in round_.wildcard],
        connectors=len(wildcard.connectors),
        tasks=len(wildcard.tasks),
    )


# -- helpers ----------------------------------------------------------------------------------------------------------


def _waits(round_: CheckedRound) -> bool:
    """Whether jobs are deferred for a member that has left."""
    return bool(round_.missing) and round_.delay_ms > 0


def _broken(invariant: Invariant, round_: CheckedRound, what: str) -> Violation:
    return Violation(invariant, f"generation {round_.generation} {what}")


def names_of_jobs(jobs: Jobs) -> str:
    return ", ".join(map(str, jobs)) or "nothing"
