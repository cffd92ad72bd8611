"""The design's guarantees for every rebalance (section 4), over random histories of a group."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from coterie.assignors.assignor_state import AssignorState
from coterie.assignors.cooperative import RoundOutcome, assign
from coterie.assignors.members import MemberSpec, RebalancePolicy
from coterie.assignors.moves import RevocationReason
from coterie.assignors.target import Load
from coterie.nouns.ids import GenerationId, InstanceId, MemberId
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Job, Jobs
from tests.assignors.oracle import optimum

NAMES = [ConnectorName(name) for name in "abc"]
JOBS: list[Job] = [*NAMES, *(ConnectorTaskId(name, number) for name in NAMES for number in range(4))]
SETS = st.sets(st.sampled_from(JOBS)).map(Jobs.of)
ALMOST_ALL = st.sets(st.sampled_from(JOBS), max_size=3).map(lambda few: Jobs.of(set(JOBS) - few))
MOSTLY_NONE = st.one_of(st.just(NO_JOBS), st.just(NO_JOBS), st.just(NO_JOBS), SETS)
CLAIMS = st.one_of(st.none(), st.none(), st.sets(st.sampled_from(JOBS), max_size=4).map(Jobs.of))
POLICIES = st.sampled_from(
    [
        RebalancePolicy(max_delay_ms=300),
        RebalancePolicy(max_delay_ms=0),
        RebalancePolicy(max_delay_ms=300, moves_per_round_max=2),
        RebalancePolicy(max_delay_ms=300, moves_per_round_max=1, round_interval_ms=50),
    ]
)


def union(parts: Iterable[Jobs]) -> Jobs:
    return Jobs.of(job for part in parts for job in part)


class Histories(RuleBasedStateMachine):
    """A group with random events; after each event its leader computes a rebalance.

    The model does not depend on the assignor's method. A worker applies its assignment and reports at its next join the
    jobs that it then runs, unless the assignment was not delivered.
    """

    @initialize(configured=ALMOST_ALL, policy=POLICIES)
    def begin(self, configured: Jobs, policy: RebalancePolicy) -> None:
        self.configured = configured
        self.policy = policy
        self.members: dict[MemberId, MemberSpec] = {MemberId(f"m{number}"): MemberSpec() for number in range(3)}
        self.gone: list[MemberSpec] = []
        self.state = AssignorState()
        self.generation, self.completed, self.received_delay_ms, self.now_ms = 0, -1, 0, 0
        self.member_count = 1
        self.released_by_draining = self.drained = NO_JOBS
        """Jobs that were released for a drain and have not run since; and jobs that are being revoked for a drain."""
        self.last: RoundOutcome | None = None
        self.compute()

    # -- events -------------------------------------------------------------------------------------------------------

    @rule(claims=CLAIMS, owned=MOSTLY_NONE, named=st.booleans())
    def a_member_joins(self, claims: Jobs | None, owned: Jobs, named: bool) -> None:
        """Usually a new member without jobs; sometimes one that reports owned jobs."""
        if len(self.members) < 5:
            name = self.new_member_id()
            instance_id = InstanceId(name) if named else None
            self.members[name] = MemberSpec(owned=owned, claims=claims, instance_id=instance_id)
            self.compute()

    @rule(data=st.data())
    def a_member_leaves(self, data: st.DataObject) -> None:
        if len(self.members) > 1:
            self.gone.append(self.members.pop(self.any(data)))
            self.compute()

    @rule(data=st.data())
    def a_static_member_returns(self, data: st.DataObject) -> None:
        back = [view for view in self.gone if view.instance_id is not None]
        if back and len(self.members) < 5:
            view = data.draw(st.sampled_from(back))
            self.gone.remove(view)
            self.members[self.new_member_id()] = replace(
                view, owned=NO_JOBS, claims=data.draw(st.sampled_from([view.claims, None]))
            )
            self.compute()

    @rule(data=st.data(), draining=st.sampled_from([True, False, False]))
    def a_member_starts_or_cancels_a_drain(self, data: st.DataObject, draining: bool) -> None:
        member = self.any(data)
        self.members[member] = replace(self.members[member], is_draining=draining)
        self.compute()

    @rule(data=st.data())
    def a_member_is_still_stopping_revoked_jobs(self, data: st.DataObject) -> None:
        revoked = {member: one.revoked for member, one in self.last.assignments.items()} if self.last else {}
        slow = sorted(member for member in self.members if revoked.get(member))
        if slow:
            member = data.draw(st.sampled_from(slow))
            still_runs = Jobs.of(data.draw(st.sets(st.sampled_from(sorted(revoked[member], key=str)), min_size=1)))
            self.members[member] = replace(self.members[member], owned=self.members[member].owned | still_runs)
        self.compute()

    @rule(data=st.data(), owned=SETS)
    def member_reports_other_jobs(self, data: st.DataObject, owned: Jobs) -> None:
        member = self.any(data)
        self.members[member] = replace(self.members[member], owned=owned)
        self.compute()

    @rule(configured=ALMOST_ALL)
    def configured_jobs_change(self, configured: Jobs) -> None:
        self.configured = configured
        self.compute()

    @rule(ms=st.sampled_from([1, 40, 120, 300]), twice=st.booleans())
    def time_passes(self, ms: int, twice: bool) -> None:
        for _ in range(1 + twice):
            self.now_ms += ms
            self.received_delay_ms = max(0, self.received_delay_ms - ms)
            self.compute()

    @rule()
    def assignment_is_lost(self) -> None:
        self.compute(delivered=False)

    @rule()
    def leader_changes(self) -> None:
        """The new leader has only the delay that its own last assignment contained."""
        self.state = AssignorState()
        self.compute()

    # -- invariants ---------------------------------------------------------------------------------------------------

    @invariant()
    def every_job_is_owned_revoked_or_unassigned_with_a_reason(self) -> None:
        if self.last is None:
            return
        outcome, reported = self.last, {member: view.owned for member, view in self.before.items()}
        runs = Counter(job for one in outcome.assignments.values() for job in one.owned_after)
        given_back = union(one.revoked for one in outcome.assignments.values()) & self.configured
        assert all(count == 1 for count in runs.values()), "disjoint"
        assert Jobs.of(runs) <= self.configured
        unassigned = Jobs.of(outcome.reason_by_unassigned_job)
        assert unassigned == self.configured - union(reported.values()) - Jobs.of(runs)
        assert self.configured == Jobs.of(runs) | given_back | unassigned, "complete"
        assert all(len(reason) > 10 for reason in outcome.reason_by_unassigned_job.values())
        for member, one in outcome.assignments.items():
            assert one.revoked <= reported[member]
            assert not one.assigned & union(reported.values()), "never directly from one worker to another"
            assert one.owned_after == (reported[member] - one.revoked) | one.assigned
            assert Counter(job for jobs in one.revoked_by_reason.values() for job in jobs) == Counter(one.revoked), (
                "one reason each"
            )

    @invariant()
    def claims_drains_and_delays_are_respected(self) -> None:
        if self.last is None:
            return
        waiting = union(one.jobs for one in self.last.assignor_state.deferrals)
        assert waiting <= Jobs.of(self.last.reason_by_unassigned_job)
        present_instance_ids = {view.instance_id for view in self.before.values() if view.instance_id is not None}
        assert not any(one.instance_id in present_instance_ids for one in self.last.assignor_state.deferrals), (
            "jobs of a present member are not deferred"
        )
        static = self.static()
        wildcard = any(not view.is_draining and view.claims is None for view in self.before.values())
        for member, one in self.last.assignments.items():
            view = self.before[member]
            if view.is_draining:  # it keeps the jobs that no remaining worker may run
                assert not one.assigned & static, "a claimant gets it"
                assert not (one.assigned and wildcard), "a wildcard worker gets it"
                assert one.assigned <= self.released_by_draining, "it gets only jobs that were released for a drain"
                assert view.claims is None or one.assigned <= view.claims
            elif view.claims is not None:
                assert one.owned_after <= view.claims
            else:
                assert not one.owned_after & static
            assert not (waiting and RevocationReason.BALANCE in one.revoked_by_reason)
            assert one.revoked_by_reason.get(RevocationReason.REPEATED, NO_JOBS) == self.still_stopping(member)
        not_deferred = Jobs.of(self.last.reason_by_unassigned_job) - waiting
        assert not not_deferred & static, "a claimant gets it"
        assert not (not_deferred and wildcard), "a wildcard worker gets it"

    @invariant()
    def no_balanced_outcome_takes_fewer_moves(self) -> None:
        if self.last is None:
            return
        assert self.last.move_count_to_target == self.fewest()
        assert self.last.move_count_lower_bound <= self.last.move_count_to_target
        made = [
            jobs
            for one in self.last.assignments.values()
            for why, jobs in one.revoked_by_reason.items()
            if why not in UNCOUNTED
        ]
        assert sum(map(len, made)) <= self.last.move_count_to_target
        limited = [
            one.revoked_by_reason.get(why, NO_JOBS)
            for one in self.last.assignments.values()
            for why in (RevocationReason.DRAIN, RevocationReason.BALANCE)
        ]
        if self.policy.moves_per_round_max is not None:
            assert sum(map(len, limited)) <= self.policy.moves_per_round_max
        elif not self.last.delay_ms:
            # A job that this rebalance returned to its owner does not run yet: its move follows in the next rebalance.
            postponed = self.last.move_count_to_target - sum(map(len, made))
            assert postponed <= sum(len(self.returned(member)) for member in self.before), "nothing else is postponed"
            assert self.next_round().move_count_to_target == postponed, "the next rebalance makes the postponed moves"

    @invariant()
    def the_order_of_members_does_not_matter(self) -> None:
        if self.last is not None:
            turned = dict(reversed(list(self.before.items())))
            memory = replace(
                self.state_before, outcome_by_member=dict(reversed(list(self.state_before.outcome_by_member.items())))
            )
            assert self.outcome_for(memory, turned) == self.last

    def teardown(self) -> None:
        """Without further events the group settles: balanced, complete, and without moves."""
        if not hasattr(self, "members"):
            return
        for _ in range(60):
            self.compute()
            assert self.last is not None
            if self.last.next_round_timer_ms:
                self.now_ms += self.last.next_round_timer_ms
                self.received_delay_ms = 0
            elif not any(one.assigned or one.revoked for one in self.last.assignments.values()):
                break
        else:
            raise AssertionError("the group does not settle")
        assert self.last.move_count_to_target == 0
        stay = {m: view.owned for m, view in self.members.items() if not view.is_draining and view.claims is None}
        if stay:
            left = union(view.owned for member, view in self.members.items() if member not in stay)
            wildcard = self.configured - self.static()
            assert wildcard == union(stay.values()), "wildcard jobs are on wildcard workers"
            assert not left & wildcard
            for counts in (
                [len(jobs.connectors) for jobs in stay.values()],
                [len(jobs.tasks) for jobs in stay.values()],
                [len(jobs) for jobs in stay.values()],
            ):
                assert max(counts) - min(counts) <= 1
        assert not self.last.reason_by_unassigned_job or not stay

    # -- helpers ------------------------------------------------------------------------------------------------------

    def new_member_id(self) -> MemberId:
        self.member_count += 1
        return MemberId(f"m{self.member_count * 7 % 10}-{self.member_count}")

    def any(self, data: st.DataObject) -> MemberId:
        return data.draw(st.sampled_from(sorted(self.members)))

    def outcome_for(self, state: AssignorState, members: Mapping[MemberId, MemberSpec]) -> RoundOutcome:
        return assign(
            state,
            configured=self.configured,
            members=members,
            generation=GenerationId(self.generation),
            last_completed_generation=GenerationId(self.completed_before),
            now_ms=self.now_ms,
            policy=self.policy,
            received_delay_ms=self.received_delay_before_ms,
        )

    def next_round(self) -> RoundOutcome:
        """The rebalance that follows the last one if nothing else happens."""
        assert self.last is not None
        return assign(
            self.last.assignor_state,
            configured=self.configured,
            members={m: replace(view, owned=self.last.assignments[m].owned_after) for m, view in self.before.items()},
            generation=GenerationId(self.generation + 1),
            last_completed_generation=GenerationId(self.generation),
            now_ms=self.now_ms,
            policy=self.policy,
        )

    def compute(self, *, delivered: bool = True) -> None:
        self.generation += 1
        self.before, self.state_before = dict(self.members), self.state
        self.completed_before, self.received_delay_before_ms = self.completed, self.received_delay_ms
        self.released_by_draining = (self.released_by_draining | self.drained) - union(
            view.owned for view in self.before.values()
        )
        if self.last is not None and self.completed == self.last.assignor_state.generation:
            departed = self.last.assignments.keys() - self.before.keys()
            self.released_by_draining -= union(self.last.assignments[member].assigned for member in departed)
        self.last = self.outcome_for(self.state, self.members)
        revoked_for_drain, repeated = (
            union(one.revoked_by_reason.get(reason, NO_JOBS) for one in self.last.assignments.values())
            for reason in (RevocationReason.DRAIN, RevocationReason.REPEATED)
        )
        # A member that still reports a job which was revoked for a drain has it revoked again.
        self.drained = revoked_for_drain | (self.drained & repeated)
        self.state = self.last.assignor_state
        if delivered:
            self.completed, self.received_delay_ms = self.generation, self.last.delay_ms
            self.members = {
                member: replace(view, owned=self.last.assignments[member].owned_after)
                for member, view in self.members.items()
            }

    def static(self) -> Jobs:
        claims = [view.claims or NO_JOBS for view in self.before.values() if not view.is_draining]
        return union(claims) & self.configured

    def fewest(self) -> int:
        """From the oracle for wildcard jobs; every other job on a worker that may not run it is one move."""
        assert self.last is not None
        static, forced = self.static(), 0
        wildcard = sorted(m for m, view in self.before.items() if not view.is_draining and view.claims is None)
        runs = {
            member: (view.owned & self.configured)
            - self.last.assignments[member].revoked_by_reason.get(RevocationReason.DUPLICATE, NO_JOBS)
            - self.still_stopping(member)
            for member, view in self.before.items()
        }
        runs = {member: jobs | (self.returned(member)) for member, jobs in runs.items()}
        loads = []
        for member, view in sorted(self.before.items()):
            if member in wildcard:
                forced += len(runs[member] & static)
                stays = runs[member] - static
                loads.append(
                    Load(
                        connector_count=len(stays.connectors),
                        task_count_by_connector=Counter(task.connector for task in stays.tasks),
                    )
                )
            elif view.is_draining:
                forced += len(runs[member] if wildcard else runs[member] & static)
            else:
                assert view.claims is not None
                forced += len(runs[member] - view.claims)
        if not wildcard:
            return forced
        placed = union(runs[member] - static for member in wildcard)
        others = self.configured - static - placed
        tasks = Counter(task.connector for task in others.tasks)
        return forced + optimum(loads, connectors=len(others.connectors), tasks=tasks).moves

    def still_stopping(self, member: MemberId) -> Jobs:
        """The jobs that the leader's last rebalance revoked from the member, if the members have received it, and that
        the member still reports."""
        view, before = self.before[member], self.state_before
        if before.generation < 0 or self.completed_before != before.generation:
            return NO_JOBS
        revoked = [
            one.revoked
            for former, one in before.outcome_by_member.items()
            if former == member or (view.instance_id is not None and one.instance_id == view.instance_id)
        ]
        return union(revoked) & view.owned & self.configured

    def returned(self, member: MemberId) -> Jobs:
        """The jobs just returned to a static member: they count as owned, and may put others above their share."""
        view = self.before[member]
        if view.instance_id is None:
            return NO_JOBS
        assert self.last is not None
        held = [one for one in self.state_before.outcome_by_member.values() if one.instance_id == view.instance_id]
        deferred = [one.jobs for one in self.state_before.deferrals if one.instance_id == view.instance_id]
        had = union([*(one.owned_after for one in held), *deferred])
        return had & self.last.assignments[member].assigned


UNCOUNTED = (RevocationReason.DELETED, RevocationReason.DUPLICATE, RevocationReason.REPEATED)
"""A job that is deleted, or that another member keeps running, is not a move; and a job whose member is still stopping
it was counted before."""

TestHistories = Histories.TestCase
# Six seconds without a failure. Shrinking a failing example takes minutes, and the usual limit would hide it.
TestHistories.pytestmark = [pytest.mark.timeout(600)]  # type: ignore[attr-defined]
TestHistories.settings = settings(max_examples=40, stateful_step_count=50, suppress_health_check=[HealthCheck.too_slow])
