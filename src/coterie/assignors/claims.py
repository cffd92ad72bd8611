"""Who may run what: K987's static and wildcard workers and jobs, and members that are draining.

A *static* worker takes only the jobs that it claims, a *wildcard* worker any that nobody claims. A job is static while
a worker that is here, and not draining, claims it; when its last claimant is gone it is a wildcard job again, which is
how it "migrates back" (K987, "Compatibility"). Claims on jobs that do not exist mean nothing.

A draining worker takes nothing, and gives what it runs to those that may take it. What nobody may take it goes on with,
also when it has given it back already and only then the last ones that could have had it drain, too: a drain stops
nothing for nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from coterie.assignors.members import MemberView
from coterie.assignors.memory import union
from coterie.nouns.ids import MemberId
from coterie.nouns.jobs import NO_JOBS, Job, Jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """K987's categories (its steps 1 and 2), in one round."""

    wildcard: tuple[MemberId, ...]
    """Who takes any job that nobody claims, by id."""
    claimed: Mapping[MemberId, Jobs]
    """What each static worker claims of what is configured."""
    static: Jobs
    """All that is claimed."""
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
        """Which of ``jobs`` are for ``member`` to run."""
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
        """Those that somebody may run."""
        return jobs if self.wildcard else jobs & self.static

    def unplaceable(self, jobs: Jobs) -> Jobs:
        """Those that nobody may run."""
        return NO_JOBS if self.wildcard else jobs - self.static

    def strays(self, held: Mapping[MemberId, Jobs]) -> dict[MemberId, Jobs]:
        """What members run of what they have ``held`` and have to give back, whatever the loads (K987's steps 3 to 5).

        Who has no such job is not in it.
        """
        if not self.claimed and not self.draining:
            return {}  # as in most groups
        found = {member: self._strays_of(member, jobs) for member, jobs in held.items()}
        return {member: jobs for member, jobs in found.items() if jobs}

    def _strays_of(self, member: MemberId, jobs: Jobs) -> Jobs:
        if member in self.draining:
            return self.placeable(jobs)
        if member in self.claimed:
            return jobs - self.claimed[member]
        return jobs & self.static if self.static else NO_JOBS

    def dealt(self, jobs: Jobs, load: Mapping[MemberId, int]) -> dict[MemberId, Jobs]:
        """``jobs``, all of them static, each to one of its claimants: the least loaded, then the first by id.

        K987's step 6, which lets us choose. ``load`` is how many jobs each static worker has already.
        """
        return _dealt(jobs, self.claimed, load)

    def left_over(
        self, jobs: Jobs, members: Mapping[MemberId, MemberView], load: Mapping[MemberId, int]
    ) -> dict[MemberId, Jobs]:
        """Those of ``jobs``, which nobody may run, that one that drains could: each to the least loaded of these."""
        if not jobs:
            return {}
        claims = {member: members[member].claims for member in sorted(self.draining)}
        could = {member: jobs if of_one is None else jobs & of_one for member, of_one in claims.items()}
        return _dealt(union(could.values()), could, load)

    def why_nobody(self, job: Job, members: Mapping[MemberId, MemberView]) -> str:
        """Why nobody may run ``job``, in words for a person."""
        if not members:
            return "the group has no workers"
        if not self.claimed:
            return "every worker is draining"
        views = [(member, members[member]) for member in sorted(self.draining)]
        leaving = [member for member, view in views if view.claims is not None and job in view.claims]
        claimant = f"{' and '.join(leaving)} claimed it and will leave" if leaving else "no worker claims it"
        return f"{claimant}, and every worker that stays takes only what it claims"


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
