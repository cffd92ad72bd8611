"""The guarantees of the connect groups' assignor, for any state of a group: random groups, and random histories."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from coterie.assignors.assignor_state import AssignorState, union_of_jobs
from coterie.assignors.connect.cooperative import CooperativeAssignor
from coterie.assignors.cooperative import assign
from coterie.assignors.members import MemberSpec, RebalancePolicy
from coterie.assignors.target import Load
from coterie.groups.connect.target_check import target_error
from coterie.nouns.ids import ConfigOffset, GenerationId, GroupEpoch, InstanceId, MemberEpoch, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Job, Jobs
from coterie.nouns.target_assignments import ComputedTarget, GroupSnapshot, SnapshotDeparted, SnapshotMember
from tests.assignors.connect.fleet import DELAY_MS, Fleet, member
from tests.assignors.oracle import optimum

NAMES = [ConnectorName(name) for name in "abc"]
JOBS: list[Job] = [*NAMES, *(ConnectorTaskId(name, number) for name in NAMES for number in range(4))]
SETS = st.sets(st.sampled_from(JOBS)).map(Jobs.of)
ALMOST_ALL = st.sets(st.sampled_from(JOBS), max_size=3).map(lambda few: Jobs.of(set(JOBS) - few))
CLAIMS = st.one_of(st.none(), st.none(), st.none(), st.sets(st.sampled_from(JOBS), max_size=4).map(Jobs.of))
LIMITS = st.sampled_from([None, None, 0, 1, 2])
NAMED = [MemberId(f"m{number}") for number in range(5)]


def wildcard_members(members: Sequence[SnapshotMember]) -> list[SnapshotMember]:
    return [one for one in members if one.claims is None and not one.draining and one.member_epoch >= 0]


def loads(members: Sequence[SnapshotMember], jobs: Mapping[MemberId, Jobs], static: Jobs) -> list[Load]:
    """The loads of the wildcard members, without static jobs."""
    owned_jobs = [jobs[one.member_id] - static for one in wildcard_members(members)]
    return [
        Load(connector_count=len(one.connectors), task_count_by_connector=Counter(task.connector for task in one.tasks))
        for one in owned_jobs
    ]


def static_jobs(snapshot: GroupSnapshot) -> Jobs:
    return union_of_jobs(one.claims or NO_JOBS for one in snapshot.members if not one.draining) & snapshot.configured


def moves(target: ComputedTarget, owned: Mapping[MemberId, Jobs]) -> int:
    """The jobs that their owners have to release."""
    return sum(len(jobs - target.members[name].jobs) for name, jobs in owned.items())


def fewest_moves(snapshot: GroupSnapshot, owned: Mapping[MemberId, Jobs]) -> int:
    """From the oracle for wildcard jobs; every other job on a member that may not run it is one move."""
    static, wildcard = static_jobs(snapshot), wildcard_members(snapshot.members)
    forced = 0
    for one in snapshot.members:
        owned_jobs = owned[one.member_id]
        if one.draining:
            forced += len(owned_jobs if wildcard else owned_jobs & static)
        elif one.claims is not None:
            forced += len(owned_jobs - one.claims)
        else:
            forced += len(owned_jobs & static)
    if not wildcard:
        return forced
    others = snapshot.configured - static - union_of_jobs(owned[one.member_id] - static for one in wildcard)
    tasks = Counter(task.connector for task in others.tasks)
    return (
        forced + optimum(loads(snapshot.members, owned, static), connectors=len(others.connectors), tasks=tasks).moves
    )


# -- groups without departures, beside the classic assignor -----------------------------------------------------------


@st.composite
def groups(draw: st.DrawFn) -> GroupSnapshot:
    """Members that run any of the configured jobs, some with claims, some that drain."""
    configured = draw(ALMOST_ALL)
    names = NAMED[: draw(st.integers(1, 5))]
    owners = {job: draw(st.sampled_from([None, *names])) for job in configured}
    members = tuple(
        replace(
            member(name, Jobs.of(job for job, owner in owners.items() if owner == name)),
            claims=draw(CLAIMS),
            draining=draw(st.sampled_from([True, False, False, False])),
        )
        for name in names
    )
    return GroupSnapshot(
        group_epoch=GroupEpoch(9),
        assignor="cooperative",
        members=members,
        config_offset=ConfigOffset(1),
        configured=configured,
    )


def settled_classic(snapshot: GroupSnapshot) -> tuple[Mapping[MemberId, Jobs], int]:
    """The jobs of each member after the classic assignor's rounds, and the number of jobs that these stopped."""
    state, policy = AssignorState(), RebalancePolicy(max_delay_ms=0)
    members = {
        one.member_id: MemberSpec(owned=one.current, claims=one.claims, is_draining=one.draining)
        for one in snapshot.members
    }
    stopped = 0
    for generation in range(1, 9):
        outcome = assign(
            state,
            configured=snapshot.configured,
            members=members,
            generation=GenerationId(generation),
            last_completed_generation=GenerationId(generation - 1),
            now_ms=generation,
            policy=policy,
        )
        given = outcome.assignments
        if not any(one.assigned or one.revoked for one in given.values()):
            return {name: view.owned for name, view in members.items()}, stopped
        stopped += sum(len(one.revoked) for one in given.values())
        state = outcome.assignor_state
        members = {name: replace(view, owned=given[name].owned_after) for name, view in members.items()}
    raise AssertionError("the classic group does not settle")


@settings(max_examples=400)
@given(snapshot=groups())
def test_the_totals_are_those_of_the_classic_assignor_and_the_moves_are_the_optimum(snapshot: GroupSnapshot) -> None:
    target = CooperativeAssignor(RebalancePolicy()).assign(snapshot)
    assert target_error(target, snapshot, frozenset(), NO_JOBS) is None
    classic, stopped = settled_classic(snapshot)
    owned = {one.member_id: one.current for one in snapshot.members}
    assert moves(target, owned) == fewest_moves(snapshot, owned) == stopped
    owned_jobs = {name: one.jobs for name, one in target.members.items()}
    wildcard = [one.member_id for one in wildcard_members(snapshot.members)]
    for counted in (len, lambda jobs: len(jobs.connectors), lambda jobs: len(jobs.tasks)):
        assert sorted(counted(owned_jobs[name]) for name in wildcard) == sorted(
            counted(classic[name]) for name in wildcard
        )
    others = owned_jobs.keys() - set(wildcard)
    assert sorted(len(owned_jobs[name]) for name in others) == sorted(len(classic[name]) for name in others)
    assert union_of_jobs(one.jobs for one in target.unplaceable) == snapshot.configured - union_of_jobs(
        classic.values()
    )


@settings(max_examples=300)
@given(snapshot=groups())
def test_among_the_targets_with_the_fewest_moves_the_connectors_are_spread_most_evenly(snapshot: GroupSnapshot) -> None:
    snapshot = replace(snapshot, members=tuple(replace(one, claims=None, draining=False) for one in snapshot.members))
    target = CooperativeAssignor(RebalancePolicy()).assign(snapshot)
    free = snapshot.configured - union_of_jobs(one.current for one in snapshot.members)
    best = optimum(
        loads(snapshot.members, {one.member_id: one.current for one in snapshot.members}, NO_JOBS),
        connectors=len(free.connectors),
        tasks=Counter(task.connector for task in free.tasks),
    )
    after = loads(snapshot.members, {name: one.jobs for name, one in target.members.items()}, NO_JOBS)
    assert sum(count * count for load in after for count in load.task_count_by_connector.values()) == best.squares


# -- hostile snapshots ------------------------------------------------------------------------------------------------


@st.composite
def hostile_members(draw: st.DrawFn) -> tuple[SnapshotMember, ...]:
    """Members whose jobs overlap in any way."""
    return tuple(
        SnapshotMember(
            member_id=name,
            member_epoch=MemberEpoch(draw(st.sampled_from([-2, 0, 5, 5]))),
            instance_id=draw(st.sampled_from([None, InstanceId("i"), InstanceId("j")])),
            url=WorkerUrl(draw(st.sampled_from(["", "http://a", "http://b"]))),
            config_offset=ConfigOffset(1),
            claims=draw(CLAIMS),
            draining=draw(st.booleans()),
            target=draw(SETS),
            current=draw(SETS),
            pending=draw(SETS),
            former_jobs=draw(SETS),
        )
        for name in draw(st.permutations(NAMED))[: draw(st.integers(0, 5))]
    )


@st.composite
def hostile_departed(draw: st.DrawFn) -> tuple[SnapshotDeparted, ...]:
    return tuple(
        SnapshotDeparted(
            member_id=MemberId(name),
            instance_id=draw(st.sampled_from([None, InstanceId("i"), InstanceId("k")])),
            url=WorkerUrl(draw(st.sampled_from(["", "http://a", "http://c"]))),
            jobs=draw(SETS),
            delay_left_ms=draw(st.sampled_from([None, 0, 100])),
        )
        for name in ("gone", "lost")[: draw(st.integers(0, 2))]
    )


@settings(max_examples=500)
@given(
    configured=ALMOST_ALL,
    members=hostile_members(),
    departed=hostile_departed(),
    limit=LIMITS,
    delay_ms=st.sampled_from([None, 0, 50]),
)
def test_any_snapshot_has_a_valid_target(
    configured: Jobs,
    members: tuple[SnapshotMember, ...],
    departed: tuple[SnapshotDeparted, ...],
    limit: int | None,
    delay_ms: int | None,
) -> None:
    snapshot = GroupSnapshot(
        group_epoch=GroupEpoch(9),
        assignor="cooperative",
        members=members,
        departed=departed,
        config_offset=ConfigOffset(1),
        configured=configured,
        max_delay_ms=delay_ms,
    )
    target = CooperativeAssignor(RebalancePolicy(moves_per_round_max=limit)).assign(snapshot)
    assert target_error(target, snapshot, frozenset(), NO_JOBS) is None
    assert target.members.keys() == {one.member_id for one in members}
    turned = replace(snapshot, departed=departed[::-1])
    assert CooperativeAssignor(RebalancePolicy(moves_per_round_max=limit)).assign(turned) == target


# -- histories --------------------------------------------------------------------------------------------------------


class Histories(RuleBasedStateMachine):
    """A group with random events and members that take single steps; after each event a target is computed."""

    @initialize(configured=ALMOST_ALL, limit=LIMITS)
    def begin(self, configured: Jobs, limit: int | None) -> None:
        self.limit = limit or None
        self.fleet = Fleet(configured, RebalancePolicy(max_delay_ms=DELAY_MS, moves_per_round_max=self.limit))
        self.count = 0
        self.gone: list[SnapshotMember] = []
        for _ in range(3):
            self.new_member(None, None)
        self.snapshot = self.fleet.snapshot()
        self.fleet.compute()

    # -- events -------------------------------------------------------------------------------------------------------

    @rule(claims=CLAIMS, is_static=st.booleans())
    def a_member_joins(self, claims: Jobs | None, is_static: bool) -> None:
        if len(self.fleet.members) < 5:
            self.new_member(claims, f"i{self.count}" if is_static else None)
            self.compute()

    @rule(data=st.data(), how=st.sampled_from(["member id", "instance id", "url"]))
    def a_member_returns(self, data: st.DataObject, how: str) -> None:
        if not self.gone or len(self.fleet.members) > 4:
            return
        back = data.draw(st.sampled_from(self.gone))
        self.gone.remove(back)
        self.count += 1
        self.fleet.join(
            str(back.member_id) if how == "member id" else f"back{self.count}",
            claims=back.claims,
            instance_id=None if back.instance_id is None else str(back.instance_id),
            url=str(back.url) if how == "url" else None,
        )
        self.compute()

    @rule(data=st.data())
    def a_member_is_lost(self, data: st.DataObject) -> None:
        if len(self.fleet.members) > 1:
            name = self.any(data)
            self.gone.append(self.fleet.members[name])
            self.fleet.lose(name)
            self.compute()

    @rule(data=st.data())
    def a_static_member_leaves_briefly_or_is_back(self, data: st.DataObject) -> None:
        name = self.any(data)
        one = self.fleet.members[name]
        if one.member_epoch < 0:
            self.fleet.rejoin(name)
        elif one.instance_id is not None:
            self.fleet.leave_briefly(name)
        self.compute()

    @rule(data=st.data())
    def a_member_joins_again(self, data: st.DataObject) -> None:
        self.fleet.rejoin(self.any(data))
        self.compute()

    @rule(data=st.data(), draining=st.sampled_from([True, False, False]))
    def a_member_starts_or_cancels_a_drain(self, data: st.DataObject, draining: bool) -> None:
        self.fleet.change(self.any(data), draining=draining)
        self.compute()

    @rule(data=st.data(), claims=CLAIMS)
    def the_claims_of_a_member_change(self, data: st.DataObject, claims: Jobs | None) -> None:
        self.fleet.change(self.any(data), claims=claims)
        self.compute()

    @rule(configured=ALMOST_ALL)
    def configured_jobs_change(self, configured: Jobs) -> None:
        self.fleet.configured = configured
        self.compute()

    @rule(ms=st.sampled_from([1, 120, DELAY_MS]))
    def time_passes(self, ms: int) -> None:
        self.fleet.now_ms += ms
        self.compute()

    @rule(data=st.data(), times=st.integers(1, 4))
    def members_take_steps(self, data: st.DataObject, times: int) -> None:
        for _ in range(times):
            self.fleet.beat(self.any(data))

    @rule()
    def members_reach_the_target(self) -> None:
        self.fleet.reconcile()

    # -- invariants ---------------------------------------------------------------------------------------------------

    @invariant()
    def the_target_that_stands_is_computed_again_at_any_step(self) -> None:
        if not hasattr(self, "fleet"):
            return
        assert self.fleet.last is not None
        again = self.fleet.assignor.assign(self.fleet.snapshot())
        if self.fleet.last.next_in_ms is None and not self.fleet.last.deferred:
            assert again.members == self.fleet.last.members
            assert again.unplaceable == self.fleet.last.unplaceable

    @invariant()
    def claims_drains_and_absence_hold(self) -> None:
        if not hasattr(self, "fleet"):
            return
        target, snapshot = self.fleet.last, self.snapshot
        assert target is not None
        static, wildcard = static_jobs(snapshot), wildcard_members(snapshot.members)
        away = [one for one in snapshot.members if one.member_epoch < 0]
        for one in snapshot.members:
            jobs = target.members[one.member_id].jobs
            if one.member_epoch < 0:
                assert jobs <= one.target, "an away member receives nothing"
            elif one.draining and self.limit is None and not away:
                assert not (jobs if wildcard else jobs & static), "another member may run it"
            elif one.draining:
                received = jobs - (one.target | one.current | one.former_jobs | one.pending)
                # If only draining members are left, one of them may receive what another one has released, or was to
                # receive. (That no job moves which runs where it may run is `the_moves_are_the_fewest`.)
                draining = [other for other in snapshot.members if other.draining]
                theirs = union_of_jobs(
                    other.target | other.current | other.former_jobs | other.pending for other in draining
                )
                assert not received or (not wildcard and received <= theirs)
            elif one.claims is not None:
                assert jobs <= one.claims
            elif not away:
                assert not jobs & static
        if not away and wildcard:
            assert not target.unplaceable
        waiting = union_of_jobs(one.jobs for one in target.deferred.values())
        assert not waiting & union_of_jobs(one.current | one.pending for one in snapshot.members)

    @invariant()
    def the_moves_are_the_fewest(self) -> None:
        if not hasattr(self, "fleet"):
            return
        target, snapshot = self.fleet.last, self.snapshot
        assert target is not None
        running = {one.member_id: one.current & snapshot.configured for one in snapshot.members}
        if any(one.member_epoch < 0 for one in snapshot.members):
            return
        if target.deferred:
            assert moves(target, running) <= self.forced(snapshot, running), "nothing moves for balance"
        elif self.limit is None and not self.has_unstarted_owners(snapshot):
            assert moves(target, running) == fewest_moves(snapshot, running)

    @invariant()
    def at_most_the_limit_is_on_its_way(self) -> None:
        if not hasattr(self, "fleet") or self.limit is None:
            return
        target, snapshot = self.fleet.last, self.snapshot
        assert target is not None
        running = {one.member_id: one.current & snapshot.configured for one in snapshot.members}
        fresh = [
            job
            for one in snapshot.members
            if one.claims is None
            for job in (running[one.member_id] & one.target)
            - target.members[one.member_id].jobs
            - static_jobs(snapshot)
        ]
        assert len(fresh) <= self.limit

    def teardown(self) -> None:
        """Without further events the group settles: balanced, complete and without moves."""
        if not hasattr(self, "fleet"):
            return
        for name, one in list(self.fleet.members.items()):
            if one.member_epoch < 0:
                self.fleet.rejoin(name)
        for _ in range(60):
            self.fleet.settle(after_ms=DELAY_MS)
            assert self.fleet.last is not None
            if self.fleet.last.next_in_ms is None and not self.fleet.last.deferred:
                break
        else:
            raise AssertionError("the group does not settle")
        stopped, owned = self.fleet.stopped, self.fleet.owned()
        assert self.fleet.settle() == owned
        assert self.fleet.stopped == stopped
        snapshot = self.fleet.snapshot()
        wildcard = wildcard_members(snapshot.members)
        if wildcard:
            assert union_of_jobs(owned.values()) == self.fleet.configured
            for counts in (
                [len(one.current.connectors) for one in wildcard],
                [len(one.current.tasks) for one in wildcard],
                [len(one.current) for one in wildcard],
            ):
                assert max(counts) - min(counts) <= 1

    # -- helpers ------------------------------------------------------------------------------------------------------

    def new_member(self, claims: Jobs | None, instance_id: str | None) -> None:
        self.count += 1
        self.fleet.join(f"m{self.count * 7 % 10}-{self.count}", claims=claims, instance_id=instance_id)

    def any(self, data: st.DataObject) -> MemberId:
        return data.draw(st.sampled_from(sorted(self.fleet.members)))

    def compute(self) -> None:
        self.snapshot = self.fleet.snapshot()
        self.fleet.compute()

    def forced(self, snapshot: GroupSnapshot, owned: Mapping[MemberId, Jobs]) -> int:
        """The moves for claims and drains."""
        unbalanced = replace(snapshot, departed=())
        free = loads(snapshot.members, owned, static_jobs(snapshot))
        if not free:
            return fewest_moves(unbalanced, owned)
        others = (
            unbalanced.configured
            - static_jobs(snapshot)
            - union_of_jobs(owned[one.member_id] for one in wildcard_members(snapshot.members))
        )
        tasks = Counter(task.connector for task in others.tasks)
        return fewest_moves(unbalanced, owned) - optimum(free, connectors=len(others.connectors), tasks=tasks).moves

    def has_unstarted_owners(self, snapshot: GroupSnapshot) -> bool:
        """Whether a member has jobs that it will start again: these count as moves, too, if they go elsewhere."""
        pending = union_of_jobs(one.pending for one in snapshot.members)
        return any(
            one.former_jobs or (one.member_epoch == 0 and one.target - one.current - pending)
            for one in snapshot.members
        )


TestHistories = Histories.TestCase
# Seconds without a failure. Shrinking a failing example takes minutes, and the usual limit would hide it.
TestHistories.pytestmark = [pytest.mark.timeout(600)]  # type: ignore[attr-defined]
TestHistories.settings = settings(max_examples=60, stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow])
