"""Which member may run which job: static and wildcard workers and jobs (KIP-987), and draining members.

A *static* worker runs only the jobs that it claims. A *wildcard* worker runs any job that no worker claims. A job is
static while a member of the group that is not draining claims it. When the last such member leaves or drains, the job
is a wildcard job again and so "migrates back" (KIP-987, "Compatibility"). Claims on jobs that are not configured have
no effect.

A draining worker receives no other jobs and releases the jobs that another worker may run. It keeps the jobs that no
other worker may run. It may have released a job before the last worker that could run the job began to drain: then
the job is assigned back to a draining worker. So a drain stops a job only if another worker can run the job.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from coterie.assignors.assignor_state import union_of_jobs
from coterie.assignors.members import MemberSpec
from coterie.nouns.ids import MemberId
from coterie.nouns.jobs import NO_JOBS, Job, Jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Eligibility:
    """Which member may receive which job in one round (KIP-987, steps 1 and 2). A *static* worker may receive only the
    jobs that it claims, a *wildcard* worker any job that no static worker claims. A draining worker may receive no job,
    and is neither static nor wildcard: its claims make no job static. A job that only draining workers can run is
    unassignable; only `assign_back_to_draining` assigns it."""

    wildcard_workers: tuple[MemberId, ...]
    """The workers that have no claims and do not drain, sorted by id. Each may run any job that no worker claims."""
    claims_by_worker: Mapping[MemberId, Jobs]
    """The configured jobs that each static worker claims. Draining workers are left out."""
    static_jobs: Jobs
    """All jobs of ``claims_by_worker``. A job that only draining workers claim is not static."""
    draining_workers: frozenset[MemberId]
    """The draining workers, with or without claims."""

    @classmethod
    def from_members(cls, members: Mapping[MemberId, MemberSpec], configured: Jobs) -> "Eligibility":
        """Return which of ``members`` may receive which of the ``configured`` jobs, by the members' claims and drains
        (see the class)."""
        staying_members = {member: spec for member, spec in sorted(members.items()) if not spec.is_draining}
        claims_by_worker = {
            member: spec.claims & configured for member, spec in staying_members.items() if spec.claims is not None
        }
        return cls(
            wildcard_workers=tuple(member for member, spec in staying_members.items() if spec.claims is None),
            claims_by_worker=claims_by_worker,
            static_jobs=union_of_jobs(claims_by_worker.values()),
            draining_workers=frozenset(members.keys() - staying_members.keys()),
        )

    def eligible_jobs(self, member: MemberId, jobs: Jobs) -> Jobs:
        """Return those of ``jobs`` that ``member`` may receive: none if it drains."""
        if member in self.draining_workers:
            return NO_JOBS
        if member in self.claims_by_worker:
            return jobs & self.claims_by_worker[member]
        return jobs - self.static_jobs if self.static_jobs else jobs

    def is_eligible(self, member: MemberId, job: Job) -> bool:
        """Whether ``member`` may receive ``job``: a draining member may not; a static worker may if it claims the job;
        any other member may if no static worker claims it."""
        if member in self.draining_workers:
            return False
        return job in self.claims_by_worker[member] if member in self.claims_by_worker else job not in self.static_jobs

    def assignable_jobs(self, jobs: Jobs) -> Jobs:
        """Return those of ``jobs`` that at least one member may run, not counting draining members."""
        return jobs if self.wildcard_workers else jobs & self.static_jobs

    def unassignable_jobs(self, jobs: Jobs) -> Jobs:
        """Return those of ``jobs`` that no member may run, not counting draining members."""
        return NO_JOBS if self.wildcard_workers else jobs - self.static_jobs

    def owned_jobs_to_release(self, owned: Mapping[MemberId, Jobs]) -> dict[MemberId, Jobs]:
        """Return the ``owned`` jobs that each member must release because of claims and drains (KIP-987, steps 3 to 5).

        A static member releases the jobs that it does not claim, a wildcard member the jobs that static members claim,
        and a draining member the jobs that another member may run. Members without such jobs are left out.
        """
        if not self.claims_by_worker and not self.draining_workers:
            return {}  # most groups have neither claims nor drains
        ineligible_by_member = {member: self._jobs_to_release_of(member, jobs) for member, jobs in owned.items()}
        return {member: jobs for member, jobs in ineligible_by_member.items() if jobs}

    def _jobs_to_release_of(self, member: MemberId, jobs: Jobs) -> Jobs:
        """Return those of ``jobs``, which ``member`` owns, that it must release."""
        if member in self.draining_workers:
            return self.assignable_jobs(jobs)
        if member in self.claims_by_worker:
            return jobs - self.claims_by_worker[member]
        return jobs & self.static_jobs if self.static_jobs else NO_JOBS

    def assign_static_jobs(self, jobs: Jobs, job_counts: Mapping[MemberId, int]) -> dict[MemberId, Jobs]:
        """Assign each of ``jobs``, which must all be static, to one of the static workers that claim it.

        KIP-987 (step 6) allows any of these workers. Here it is the one that has the fewest jobs of all kinds at that
        time; among equals, the first by id.
        ``job_counts`` is the number of jobs that each static worker already has. Workers that receive no job are left
        out.
        """
        return _assign_to_least_loaded(jobs, self.claims_by_worker, job_counts)

    def assign_back_to_draining(
        self, jobs: Jobs, members: Mapping[MemberId, MemberSpec], job_counts: Mapping[MemberId, int]
    ) -> dict[MemberId, Jobs]:
        """Assign each of ``jobs``, which only draining members can run, to the draining member with the fewest jobs
        among those that can run it.

        A draining member can run the jobs that it claims, or any job if it has no claims. Jobs that no draining member
        can run are left out, and so are members that receive no job. ``job_counts`` is the number of jobs that each
        draining member already has.
        """
        if not jobs:
            return {}
        claims = {member: members[member].claims for member in sorted(self.draining_workers)}
        eligible_by_member = {member: jobs if claimed is None else jobs & claimed for member, claimed in claims.items()}
        return _assign_to_least_loaded(union_of_jobs(eligible_by_member.values()), eligible_by_member, job_counts)

    def unassignable_reason(self, job: Job, members: Mapping[MemberId, MemberSpec]) -> str:
        """Return, as text for operators, the reason why no member may run ``job``. Only for an unassignable job."""
        if not members:
            return "the group has no workers"
        if not self.claims_by_worker:
            return "every worker is draining"
        draining_specs = [(member, members[member]) for member in sorted(self.draining_workers)]
        draining_claimants = [
            member for member, spec in draining_specs if spec.claims is not None and job in spec.claims
        ]
        claimants_text = (
            f"only draining workers claim it ({', '.join(draining_claimants)})"
            if draining_claimants
            else "no worker claims it"
        )
        return f"{claimants_text}, and every worker that is not draining runs only the jobs that it claims"


def _assign_to_least_loaded(
    jobs: Jobs, eligible_by_member: Mapping[MemberId, Jobs], job_counts: Mapping[MemberId, int]
) -> dict[MemberId, Jobs]:
    """Assign each of ``jobs`` to the eligible member with the fewest jobs; among equals the first by id.

    Every job must be in ``eligible_by_member``. ``job_counts`` is the number of jobs that each member already has.
    """
    eligible_members_by_job: dict[Job, list[MemberId]] = {}
    for member, eligible in eligible_by_member.items() if jobs else ():
        for job in eligible & jobs:
            eligible_members_by_job.setdefault(job, []).append(member)
    jobs_by_member: dict[MemberId, list[Job]] = {}
    current_job_counts = dict(job_counts)
    for job in jobs:
        receiver = min(eligible_members_by_job[job], key=lambda member: (current_job_counts[member], member))
        jobs_by_member.setdefault(receiver, []).append(job)
        current_job_counts[receiver] += 1
    return {member: Jobs.of(jobs) for member, jobs in jobs_by_member.items()}
