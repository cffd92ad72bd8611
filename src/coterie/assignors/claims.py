"""Which member may run which job: static and wildcard workers and jobs (KIP-987), and draining members.

A *static* worker runs only the jobs that it claims. A *wildcard* worker runs any job that no worker claims. A job is
static while a member of the group that is not draining claims it. When the last such member leaves or drains, the job
is a wildcard job again and so "migrates back" (KIP-987, "Compatibility"). Claims on jobs that are not configured have
no effect.

A draining worker receives no other jobs and releases the jobs that another worker may run. It keeps the jobs that no
other worker may run. It may have released a job before the last worker that could run the job began to drain: then
the job is assigned back to it. So a drain stops a job only if another worker can run the job.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from coterie.assignors.members import MemberView
from coterie.assignors.memory import union
from coterie.nouns.ids import MemberId
from coterie.nouns.jobs import NO_JOBS, Job, Jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The static and wildcard workers and jobs of one round (KIP-987, steps 1 and 2), and its draining members."""

    wildcard: tuple[MemberId, ...]
    """The workers without claims, which may run any unclaimed job; sorted by id."""
    claimed: Mapping[MemberId, Jobs]
    """The configured jobs that each static worker claims."""
    static: Jobs
    """All claimed jobs."""
    draining: frozenset[MemberId]

    @classmethod
    def of(cls, members: Mapping[MemberId, MemberView], configured: Jobs) -> "Places":
        stays = {member: view for member, view in sorted(members.items()) if not view.draining}
        claimed = {member: view.claims & configured for member, view in stays.items() if view.claims is not None}
        return cls(
            wildcard=tuple(member for member, view in stays.items() if view.claims is None),
            claimed=claimed,
            static=union(claimed.values()),
            draining=frozenset(members.keys() - stays.keys()),
        )

    def may_run(self, member: MemberId, jobs: Jobs) -> Jobs:
        """Return those of ``jobs`` that ``member`` may run."""
        if member in self.draining:
            return NO_JOBS
        if member in self.claimed:
            return jobs & self.claimed[member]
        return jobs - self.static if self.static else jobs

    def may_run_one(self, member: MemberId, job: Job) -> bool:
        if member in self.draining:
            return False
        return job in self.claimed[member] if member in self.claimed else job not in self.static

    def placeable(self, jobs: Jobs) -> Jobs:
        """Return those of ``jobs`` that some member may run."""
        return jobs if self.wildcard else jobs & self.static

    def unplaceable(self, jobs: Jobs) -> Jobs:
        """Return those of ``jobs`` that no member may run."""
        return NO_JOBS if self.wildcard else jobs - self.static

    def strays(self, held: Mapping[MemberId, Jobs]) -> dict[MemberId, Jobs]:
        """Return the ``held`` jobs that each member must release whatever the loads are (KIP-987, steps 3 to 5).

        Members without such jobs are left out.
        """
        if not self.claimed and not self.draining:
            return {}  # most groups have neither claims nor drains
        found = {member: self._strays_of(member, jobs) for member, jobs in held.items()}
        return {member: jobs for member, jobs in found.items() if jobs}

    def _strays_of(self, member: MemberId, jobs: Jobs) -> Jobs:
        if member in self.draining:
            return self.placeable(jobs)
        if member in self.claimed:
            return jobs - self.claimed[member]
        return jobs & self.static if self.static else NO_JOBS

    def dealt(self, jobs: Jobs, load: Mapping[MemberId, int]) -> dict[MemberId, Jobs]:
        """Assign each of ``jobs``, which must all be static, to its least loaded claimant; ties go to the first id.

        KIP-987 (step 6) allows any claimant. ``load`` is the number of jobs that each static worker already has.
        """
        return _dealt(jobs, self.claimed, load)

    def left_over(
        self, jobs: Jobs, members: Mapping[MemberId, MemberView], load: Mapping[MemberId, int]
    ) -> dict[MemberId, Jobs]:
        """Assign ``jobs``, which only draining members can run, each to the least loaded draining member that can.

        A draining member can run the jobs that it claims, or any job if it has no claims. Jobs that no draining member
        can run are left out. ``load`` is the number of jobs that each draining member already has.
        """
        if not jobs:
            return {}
        claims = {member: members[member].claims for member in sorted(self.draining)}
        could = {member: jobs if of_one is None else jobs & of_one for member, of_one in claims.items()}
        return _dealt(union(could.values()), could, load)

    def why_nobody(self, job: Job, members: Mapping[MemberId, MemberView]) -> str:
        """Return, as text for operators, the reason why no member may run ``job``."""
        if not members:
            return "the group has no workers"
        if not self.claimed:
            return "every worker is draining"
        views = [(member, members[member]) for member in sorted(self.draining)]
        leaving = [member for member, view in views if view.claims is not None and job in view.claims]
        claimant = f"only draining workers claim it ({', '.join(leaving)})" if leaving else "no worker claims it"
        return f"{claimant}, and every worker that is not draining runs only the jobs that it claims"


def _dealt(jobs: Jobs, takes: Mapping[MemberId, Jobs], load: Mapping[MemberId, int]) -> dict[MemberId, Jobs]:
    takers: dict[Job, list[MemberId]] = {}
    for member, its in takes.items() if jobs else ():
        for job in its & jobs:
            takers.setdefault(job, []).append(member)
    hands: dict[MemberId, list[Job]] = {}
    now = dict(load)
    for job in jobs:
        taker = min(takers[job], key=lambda member: (now[member], member))
        hands.setdefault(taker, []).append(job)
        now[taker] += 1
    return {member: Jobs.of(of_member) for member, of_member in hands.items()}
