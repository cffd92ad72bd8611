"""The checks of the scheduled rebalance delay. A leader that also computed the group's previous round, and has not lost
its membership since, must defer the jobs of a worker that has left since. Under every leader, jobs may be deferred for
the delay at most."""

from collections.abc import Mapping
from dataclasses import dataclass

from coterie.lab.simulator.fleet.process import FleetProcess
from coterie.lab.simulator.fleet.rounds import CheckedRound
from coterie.lab.simulator.identities import MemberIdentity
from coterie.lab.simulator.invariants import Invariant, Violation, job_list_text
from coterie.nouns.ids import Generation
from coterie.nouns.jobs import Job, Jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedDeferral:
    """Until when one job must be deferred, and for which member."""

    deadline_ms: int
    """Before this time no other member may be assigned the job."""
    departed_identity: MemberIdentity
    """The member that has left and owned the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderRound:
    """The last round that one leader has computed, as far as the check of its next round needs it."""

    generation: Generation
    owned_after: Mapping[MemberIdentity, Jobs]
    """The jobs that each member owned after the round."""
    draining_members: frozenset[MemberIdentity]
    """The members that drained: their jobs are not deferred."""
    deferrals: Mapping[Job, ExpectedDeferral]
    """The jobs that the leader had to defer in the round."""


class DeferralChecker:
    """Checks the scheduled rebalance delay in each computed round: before it has passed, a leader that also computed
    the previous round assigns no job of a departed member to another member (:attr:`.Invariant.LOST_WAITS`); no job
    that a member may run stays unassigned longer (:attr:`.Invariant.DELAY_ENDS`)."""

    def __init__(self, *, max_delay_ms: int, slack_ms: int) -> None:
        """``slack_ms`` is how much later than the leader a worker may receive a delay: it measures the delay from then
        on, so jobs may be deferred for ``max_delay_ms + slack_ms``."""
        self._max_delay_ms = max_delay_ms
        self._slack_ms = slack_ms
        self._last_round_by_leader: dict[FleetProcess, LeaderRound] = {}
        self._unassigned_since_ms: dict[Job, int] = {}
        self._latest_generation = Generation(-1)

    def on_round_computed(
        self, leader: FleetProcess, round_: CheckedRound, *, received_generation: Generation | None, now_ms: int
    ) -> None:
        """Check the round that the process ``leader`` has computed. ``received_generation`` is the last generation
        whose assignment this process has received in its present membership.

        :raises Violation: LOST_WAITS, DELAY_ENDS.
        """
        previous_round = self._last_round_by_leader.get(leader)
        expected_deferrals: Mapping[Job, ExpectedDeferral] = {}
        if previous_round is not None and previous_round.generation == received_generation:
            expected_deferrals = self._expected_deferrals(previous_round, round_, now_ms)
            for member_id, member in sorted(round_.members.items()):
                early_jobs = [
                    job
                    for job in member.assigned
                    if job in expected_deferrals and expected_deferrals[job].departed_identity != member.identity
                ]
                if early_jobs:
                    first_deferral = expected_deferrals[early_jobs[0]]
                    raise Violation(
                        Invariant.LOST_WAITS,
                        f"generation {round_.generation} assigns {member_id} {job_list_text(Jobs.of(early_jobs))}, "
                        f"deferred for {first_deferral.departed_identity} for "
                        f"{first_deferral.deadline_ms - now_ms} ms more",
                    )
        self._last_round_by_leader[leader] = LeaderRound(
            generation=round_.generation,
            owned_after={part.identity: part.owned_after for part in round_.members.values()},
            draining_members=frozenset(part.identity for part in round_.members.values() if part.is_draining),
            deferrals=expected_deferrals,
        )
        if round_.generation > self._latest_generation:
            self._latest_generation = round_.generation
            self._check_unassigned_time(round_, now_ms)

    def on_eager_round_computed(self, leader: FleetProcess) -> None:
        """Forget the last round of ``leader``: it has computed an eager round, for which all members stop all jobs and
        no job is deferred."""
        self._last_round_by_leader.pop(leader, None)

    def on_membership_lost(self, leader: FleetProcess) -> None:
        """Forget the last round of ``leader``, which forgets it, too. A static member may then rejoin in the generation
        of that round: a coordinator that crashed while it prepared the next round has not stored that round."""
        self._last_round_by_leader.pop(leader, None)

    def _expected_deferrals(
        self, previous_round: LeaderRound, round_: CheckedRound, now_ms: int
    ) -> Mapping[Job, ExpectedDeferral]:
        """The jobs that ``round_`` must not assign to other members, because their owner has left after
        ``previous_round``, the leader's previous round, and their delay has not passed."""
        present = {member.identity for member in round_.members.values()}
        if not self._max_delay_ms:
            return {}
        deferral_by_job = dict(previous_round.deferrals)
        for identity in sorted(previous_round.owned_after.keys() - present - previous_round.draining_members):
            new_deferral = ExpectedDeferral(deadline_ms=now_ms + self._max_delay_ms, departed_identity=identity)
            deferral_by_job.update(
                {job: new_deferral for job in previous_round.owned_after[identity] if job not in deferral_by_job}
            )
        return {
            job: deferral
            for job, deferral in deferral_by_job.items()
            if deferral.deadline_ms > now_ms
            and deferral.departed_identity not in present
            and job in round_.configured_jobs
            and job not in round_.owned_jobs
        }

    def _check_unassigned_time(self, round_: CheckedRound, now_ms: int) -> None:
        """Check that no job that a member may run has been unassigned for the longest delay and the slack.

        :raises Violation: DELAY_ENDS.
        """
        unassigned = set(round_.unassigned_jobs)
        self._unassigned_since_ms = {
            job: self._unassigned_since_ms.get(job, now_ms)
            for job in sorted(unassigned, key=str)
            if job in round_.assignable_jobs
        }
        for job, since_ms in self._unassigned_since_ms.items():
            if now_ms - since_ms >= self._max_delay_ms + self._slack_ms:
                raise Violation(
                    Invariant.DELAY_ENDS,
                    f"generation {round_.generation} defers {job}, which is unowned for {now_ms - since_ms} ms",
                )
