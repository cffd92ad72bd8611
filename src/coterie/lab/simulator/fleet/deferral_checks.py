"""The checks of the scheduled rebalance delay. To defer a job is to leave it unassigned, in case the worker that owned
it and has left returns. A leader that also computed the group's previous round, and has not lost its membership since,
must defer the jobs of a worker that has left since that round. Under every leader, jobs may be deferred for the delay
and a tolerance at most."""

from collections.abc import Mapping
from dataclasses import dataclass

from coterie.lab.simulator.fleet.process import ClassicWorkerProcess
from coterie.lab.simulator.fleet.rounds import CheckedRound
from coterie.lab.simulator.identities import MemberIdentity
from coterie.lab.simulator.invariants import Invariant, Violation, job_list_text
from coterie.nouns.ids import GenerationId
from coterie.nouns.jobs import Job, Jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedDeferral:
    """The deferral of one job of a departed member: before the end of the deferral, the job must not be assigned to any
    other member."""

    deferred_until_ms: int
    """Before this time the job must not be assigned to another member."""
    departed_identity: MemberIdentity
    """The member that owned the job and has left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRoundOfLeader:
    """The last round that one leader has computed: what the check of the next round of this leader needs."""

    generation: GenerationId
    owned_after: Mapping[MemberIdentity, Jobs]
    """By member, the jobs that it owned after the round."""
    draining_members: frozenset[MemberIdentity]
    """The members that drained in the round. When they leave, their jobs are not deferred."""
    deferrals: Mapping[Job, ExpectedDeferral]
    """The jobs that the leader had to leave unassigned in the round because of the delay."""


class DeferralChecker:
    """Checks the scheduled rebalance delay in each computed round. Before the delay has passed, a leader that also
    computed the previous round must assign no job of a departed member to another member
    (:attr:`.Invariant.LOST_WAITS`). No job that a member may run may stay unassigned for longer than the delay and a
    tolerance (:attr:`.Invariant.DELAY_ENDS`)."""

    def __init__(self, *, max_delay_ms: int, slack_ms: int) -> None:
        """``max_delay_ms`` is the scheduled rebalance delay. ``slack_ms`` is added to it, because a worker that becomes
        the leader measures the delay from the time at which it received an assignment with this delay, which is later
        than the computation: jobs may stay unassigned for ``max_delay_ms + slack_ms``."""
        self._max_delay_ms = max_delay_ms
        self._slack_ms = slack_ms
        self._last_round_by_leader: dict[ClassicWorkerProcess, LastRoundOfLeader] = {}
        self._unassigned_since_ms: dict[Job, int] = {}
        self._latest_generation = GenerationId(-1)

    def check_deferrals_in_round(
        self,
        leader: ClassicWorkerProcess,
        round_: CheckedRound,
        *,
        received_generation: GenerationId | None,
        now_ms: int,
    ) -> None:
        """Check a cooperative round that the process ``leader`` has computed. ``received_generation`` is the last
        generation whose assignment this process has received in its present membership; None if there is none.

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
                        f"which must stay unassigned for {first_deferral.deferred_until_ms - now_ms} ms more, in case "
                        f"{first_deferral.departed_identity} returns",
                    )
        self._last_round_by_leader[leader] = LastRoundOfLeader(
            generation=round_.generation,
            owned_after={part.identity: part.owned_after for part in round_.members.values()},
            draining_members=frozenset(part.identity for part in round_.members.values() if part.is_draining),
            deferrals=expected_deferrals,
        )
        if round_.generation > self._latest_generation:
            self._latest_generation = round_.generation
            self._check_unassigned_time(round_, now_ms)

    def forget_last_cooperative_round(self, leader: ClassicWorkerProcess) -> None:
        """Forget the last cooperative round of the process ``leader``, because ``leader`` has now computed an eager
        round: for an eager round all members stop all jobs, and no job is deferred."""
        self._last_round_by_leader.pop(leader, None)

    def forget_last_computed_round(self, leader: ClassicWorkerProcess) -> None:
        """Forget the last round of the process ``leader``, whose herder has forgotten this round, too. A comparison of
        the generations would not notice the loss: a static member may rejoin in the generation of its last round, if
        the coordinator crashed before the next generation was durable."""
        self._last_round_by_leader.pop(leader, None)

    def _expected_deferrals(
        self, previous_round: LastRoundOfLeader, round_: CheckedRound, now_ms: int
    ) -> Mapping[Job, ExpectedDeferral]:
        """The jobs that ``round_`` must not assign to other members: their owner has left since ``previous_round``, the
        previous round of the same leader, or before it, and the delay has not passed at ``now_ms``."""
        present = {member.identity for member in round_.members.values()}
        if not self._max_delay_ms:
            return {}
        deferral_by_job = dict(previous_round.deferrals)
        for identity in sorted(previous_round.owned_after.keys() - present - previous_round.draining_members):
            new_deferral = ExpectedDeferral(deferred_until_ms=now_ms + self._max_delay_ms, departed_identity=identity)
            deferral_by_job.update(
                {job: new_deferral for job in previous_round.owned_after[identity] if job not in deferral_by_job}
            )
        return {
            job: deferral
            for job, deferral in deferral_by_job.items()
            if deferral.deferred_until_ms > now_ms
            and deferral.departed_identity not in present
            and job in round_.configured_jobs
            and job not in round_.owned_jobs
        }

    def _check_unassigned_time(self, round_: CheckedRound, now_ms: int) -> None:
        """Check that no job that a member may run has stayed unassigned, in every round, for as long as the delay plus
        the tolerance.

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
                    f"generation {round_.generation} does not assign {job}, which has been unassigned for "
                    f"{now_ms - since_ms} ms",
                )
