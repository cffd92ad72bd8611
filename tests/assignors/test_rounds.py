"""What the design promises of every round (section 4), over histories in which anything may happen to a group."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from coterie.assignors.cooperative import RoundOutcome, assign
from coterie.assignors.members import MemberView, Policy
from coterie.assignors.memory import Memory
from coterie.assignors.moves import Why
from coterie.assignors.target import Load
from coterie.nouns.ids import Generation, InstanceId, MemberId
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
        Policy(max_delay_ms=300),
        Policy(max_delay_ms=0),
        Policy(max_delay_ms=300, moves_per_round_max=2),
        Policy(max_delay_ms=300, moves_per_round_max=1, round_interval_ms=50),
    ]
)


def union(parts: Iterable[Jobs]) -> Jobs:
    return Jobs.of(job for part in parts for job in part)


class Histories(RuleBasedStateMachine):
    """A group to which everything happens; after each thing that happens its leader computes a round.

    The model knows nothing of how a round is made. A worker does what it is told, and says at its next join what it
    then runs, unless the round was lost on the way to it.
    """

    @initialize(configured=ALMOST_ALL, policy=POLICIES)
    def begin(self, configured: Jobs, policy: Policy) -> None:
        self.configured = configured
        self.policy = policy
        self.members: dict[MemberId, MemberView] = {MemberId(f"m{number}"): MemberView() for number in range(3)}
        self.gone: list[MemberView] = []
        self.memory = Memory()
        self.generation, self.completed, self.known_delay_ms, self.now_ms = 0, -1, 0, 0
        self.lives = 1
        self.handed_back = self.drained = NO_JOBS
        """What was given back for a drain and did not run since; and what is being given back so."""
        self.last: RoundOutcome | None = None
        self.compute()

    # -- what happens -------------------------------------------------------------------------------------------------

    @rule(claims=CLAIMS, owned=MOSTLY_NONE, named=st.booleans())
    def one_joins(self, claims: Jobs | None, owned: Jobs, named: bool) -> None:
        """Mostly an honest newcomer; at times one that says it runs things."""
        if len(self.members) < 5:
            name = self.fresh()
            instance_id = InstanceId(name) if named else None
            self.members[name] = MemberView(owned=owned, claims=claims, instance_id=instance_id)
            self.compute()

    @rule(data=st.data())
    def one_leaves(self, data: st.DataObject) -> None:
        if len(self.members) > 1:
            self.gone.append(self.members.pop(self.any(data)))
            self.compute()

    @rule(data=st.data())
    def one_that_left_is_back(self, data: st.DataObject) -> None:
        back = [view for view in self.gone if view.instance_id is not None]
        if back and len(self.members) < 5:
            view = data.draw(st.sampled_from(back))
            self.gone.remove(view)
            self.members[self.fresh()] = replace(
                view, owned=NO_JOBS, claims=data.draw(st.sampled_from([view.claims, None]))
            )
            self.compute()

    @rule(data=st.data(), draining=st.sampled_from([True, False, False]))
    def one_drains_or_is_called_back(self, data: st.DataObject, draining: bool) -> None:
        member = self.any(data)
        self.members[member] = replace(self.members[member], draining=draining)
        self.compute()

    @rule(data=st.data(), owned=SETS)
    def one_says_that_it_runs_other_things(self, data: st.DataObject, owned: Jobs) -> None:
        member = self.any(data)
        self.members[member] = replace(self.members[member], owned=owned)
        self.compute()

    @rule(configured=ALMOST_ALL)
    def the_jobs_are_others(self, configured: Jobs) -> None:
        self.configured = configured
        self.compute()

    @rule(ms=st.sampled_from([1, 40, 120, 300]), twice=st.booleans())
    def time_passes(self, ms: int, twice: bool) -> None:
        for _ in range(1 + twice):
            self.now_ms += ms
            self.known_delay_ms = max(0, self.known_delay_ms - ms)
            self.compute()

    @rule()
    def a_round_is_lost(self) -> None:
        self.compute(delivered=False)

    @rule()
    def another_leads(self) -> None:
        """It knows the delay that its own last assignment told it of, and nothing else."""
        self.memory = Memory()
        self.compute()

    # -- what has to be true ------------------------------------------------------------------------------------------

    @invariant()
    def every_job_is_run_by_one_or_is_given_back_or_is_unassigned_with_a_reason(self) -> None:
        if self.last is None:
            return
        outcome, said = self.last, {member: view.owned for member, view in self.before.items()}
        runs = Counter(job for one in outcome.assignments.values() for job in one.whole)
        given_back = union(one.revoked for one in outcome.assignments.values()) & self.configured
        assert all(count == 1 for count in runs.values()), "disjoint"
        assert Jobs.of(runs) <= self.configured
        unassigned = Jobs.of(outcome.unassigned)
        assert unassigned == self.configured - union(said.values()) - Jobs.of(runs)
        assert self.configured == Jobs.of(runs) | given_back | unassigned, "complete"
        assert all(len(reason) > 10 for reason in outcome.unassigned.values())
        for member, one in outcome.assignments.items():
            assert one.revoked <= said[member]
            assert not one.assigned & union(said.values()), "never from one worker to another"
            assert one.whole == (said[member] - one.revoked) | one.assigned
            assert Counter(job for jobs in one.why.values() for job in jobs) == Counter(one.revoked), "one reason each"

    @invariant()
    def claims_drains_and_delays_are_honoured(self) -> None:
        if self.last is None:
            return
        waiting = union(one.jobs for one in self.last.memory.waiting)
        assert waiting <= Jobs.of(self.last.unassigned)
        here = {view.instance_id for view in self.before.values() if view.instance_id is not None}
        assert not any(one.instance_id in here for one in self.last.memory.waiting), "whom nobody awaits"
        static = self.static()
        wildcard = any(not view.draining and view.claims is None for view in self.before.values())
        for member, one in self.last.assignments.items():
            view = self.before[member]
            if view.draining:  # it goes on with what nobody who stays may run
                assert not one.assigned & static, "a claimant takes it"
                assert not (one.assigned and wildcard), "a wildcard worker takes it"
                assert one.assigned <= self.handed_back, "it takes nothing that was not given back for a drain"
                assert view.claims is None or one.assigned <= view.claims
            elif view.claims is not None:
                assert one.whole <= view.claims
            else:
                assert not one.whole & static
            assert not (waiting and Why.BALANCE in one.why)
        nobody = Jobs.of(self.last.unassigned) - waiting
        assert not nobody & static, "a claimant takes it"
        assert not (nobody and wildcard), "a wildcard worker takes it"

    @invariant()
    def no_outcome_with_level_totals_takes_fewer_moves(self) -> None:
        if self.last is None:
            return
        assert self.last.optimum == self.fewest()
        assert self.last.bound <= self.last.optimum
        made = [jobs for one in self.last.assignments.values() for why, jobs in one.why.items() if why not in UNCOUNTED]
        assert sum(map(len, made)) <= self.last.optimum
        paced = [
            one.why.get(why, NO_JOBS) for one in self.last.assignments.values() for why in (Why.DRAIN, Why.BALANCE)
        ]
        if self.policy.moves_per_round_max is not None:
            assert sum(map(len, paced)) <= self.policy.moves_per_round_max
        elif not self.last.delay_ms:
            # A job that was returned in this very round does not run yet, so its move follows in the next round.
            put_off = self.last.optimum - sum(map(len, made))
            assert put_off <= sum(len(self.returned(member)) for member in self.before), "nothing else is put off"
            assert self.next_round().optimum == put_off, "the next round moves what was put off"

    @invariant()
    def the_order_of_members_does_not_matter(self) -> None:
        if self.last is not None:
            turned = dict(reversed(list(self.before.items())))
            memory = replace(self.memory_before, members=dict(reversed(list(self.memory_before.members.items()))))
            assert self.computed(memory, turned) == self.last

    def teardown(self) -> None:
        """Once nothing more happens the group comes to rest: level, complete, and nothing moves any more."""
        if not hasattr(self, "members"):
            return
        for _ in range(60):
            self.compute()
            assert self.last is not None
            if self.last.next_in_ms:
                self.now_ms += self.last.next_in_ms
                self.known_delay_ms = 0
            elif not any(one.assigned or one.revoked for one in self.last.assignments.values()):
                break
        else:
            raise AssertionError("the group does not settle")
        assert self.last.optimum == 0
        stay = {m: view.owned for m, view in self.members.items() if not view.draining and view.claims is None}
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
        assert not self.last.unassigned or not stay

    # -- small hands --------------------------------------------------------------------------------------------------

    def fresh(self) -> MemberId:
        self.lives += 1
        return MemberId(f"m{self.lives * 7 % 10}-{self.lives}")

    def any(self, data: st.DataObject) -> MemberId:
        return data.draw(st.sampled_from(sorted(self.members)))

    def computed(self, memory: Memory, members: Mapping[MemberId, MemberView]) -> RoundOutcome:
        return assign(
            memory,
            configured=self.configured,
            members=members,
            generation=Generation(self.generation),
            last_completed_generation=Generation(self.completed_before),
            now_ms=self.now_ms,
            policy=self.policy,
            known_delay_ms=self.known_before_ms,
        )

    def next_round(self) -> RoundOutcome:
        """The round that follows this one if nothing else happens."""
        assert self.last is not None
        return assign(
            self.last.memory,
            configured=self.configured,
            members={m: replace(view, owned=self.last.assignments[m].whole) for m, view in self.before.items()},
            generation=Generation(self.generation + 1),
            last_completed_generation=Generation(self.generation),
            now_ms=self.now_ms,
            policy=self.policy,
        )

    def compute(self, *, delivered: bool = True) -> None:
        self.generation += 1
        self.before, self.memory_before = dict(self.members), self.memory
        self.completed_before, self.known_before_ms = self.completed, self.known_delay_ms
        self.handed_back = (self.handed_back | self.drained) - union(view.owned for view in self.before.values())
        if self.last is not None and self.completed == self.last.memory.generation:
            departed = self.last.assignments.keys() - self.before.keys()
            self.handed_back -= union(self.last.assignments[member].assigned for member in departed)
        self.last = self.computed(self.memory, self.members)
        self.drained = union(one.why.get(Why.DRAIN, NO_JOBS) for one in self.last.assignments.values())
        self.memory = self.last.memory
        if delivered:
            self.completed, self.known_delay_ms = self.generation, self.last.delay_ms
            self.members = {
                member: replace(view, owned=self.last.assignments[member].whole)
                for member, view in self.members.items()
            }

    def static(self) -> Jobs:
        claims = [view.claims or NO_JOBS for view in self.before.values() if not view.draining]
        return union(claims) & self.configured

    def fewest(self) -> int:
        """By the flow, over what may run anywhere; whatever else is in the wrong place is one move each."""
        assert self.last is not None
        static, forced = self.static(), 0
        wildcard = sorted(m for m, view in self.before.items() if not view.draining and view.claims is None)
        runs = {
            member: (view.owned & self.configured) - self.last.assignments[member].why.get(Why.DUPLICATE, NO_JOBS)
            for member, view in self.before.items()
        }
        runs = {member: jobs | (self.returned(member)) for member, jobs in runs.items()}
        loads = []
        for member, view in sorted(self.before.items()):
            if member in wildcard:
                forced += len(runs[member] & static)
                stays = runs[member] - static
                loads.append(
                    Load(connectors=len(stays.connectors), tasks=Counter(task.connector for task in stays.tasks))
                )
            elif view.draining:
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

    def returned(self, member: MemberId) -> Jobs:
        """What a static member has just been given back counts as its own, which may put others above their share."""
        view = self.before[member]
        if view.instance_id is None:
            return NO_JOBS
        assert self.last is not None
        held = [one for one in self.memory_before.members.values() if one.instance_id == view.instance_id]
        waited = [one.jobs for one in self.memory_before.waiting if one.instance_id == view.instance_id]
        had = union([*(one.whole for one in held), *waited])
        return had & self.last.assignments[member].assigned


UNCOUNTED = (Why.DELETED, Why.DUPLICATE)
"""A job that is deleted, or goes on elsewhere, is no move."""

TestHistories = Histories.TestCase
# Six seconds when nothing is found. To shrink what was found takes minutes, and the usual limit would hide it.
TestHistories.pytestmark = [pytest.mark.timeout(600)]  # type: ignore[attr-defined]
TestHistories.settings = settings(max_examples=40, stateful_step_count=50, suppress_health_check=[HealthCheck.too_slow])
