"""Rounds with members that are draining: their jobs move away while they still run them."""

from coterie.assignors.cooperative import RoundOutcome
from coterie.assignors.memory import union
from coterie.assignors.moves import Why
from coterie.lab.scenario.notation import parse_jobs
from coterie.nouns.ids import InstanceId, MemberId
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Jobs
from tests.assignors.leader import Leader

W1, W2, W3, S1 = (MemberId(name) for name in ("W1", "W2", "W3", "S1"))
SIX = "AT0 AT1 AT2 AT3 AT4 AT5"


def draining(*members: MemberId, configured: str = SIX) -> Leader:
    leader = Leader(configured)
    leader.draining = set(members)
    return leader


def revoked(outcome: RoundOutcome) -> dict[MemberId, Jobs]:
    return {member: one.revoked for member, one in outcome.assignments.items() if one.revoked}


def test_d13_a_draining_workers_jobs_are_revoked_and_then_assigned_with_no_delay() -> None:
    leader = draining(W3)
    first = leader.round(W1="AT0 AT1", W2="AT2 AT3", W3="AT4 AT5")
    assert first.delay_ms == 0
    assert first.assignments[W3].why == {Why.DRAIN: parse_jobs("AT4 AT5")}
    assert revoked(first) == {W3: parse_jobs("AT4 AT5")}
    second = leader.round(W1="AT0 AT1", W2="AT2 AT3", W3="")
    assert second.delay_ms == 0
    assert sorted(len(second.assignments[member].assigned) for member in (W1, W2)) == [1, 1]
    third = leader.play({member: second.assignments[member].whole for member in (W1, W2)})
    assert third.delay_ms == 0, "it left with nothing that could be lost"
    assert not revoked(third)


def test_a_draining_worker_takes_nothing_new() -> None:
    leader = draining(W2)
    outcome = leader.round(W1="AT0 AT1 AT2", W2="")
    assert outcome.assignments[W1].assigned == parse_jobs("AT3 AT4 AT5")


def test_draining_is_not_balanced_over() -> None:
    leader = draining(W3)
    settled, stopped, _ = leader.settle({W1: parse_jobs(SIX), W2: NO_JOBS, W3: NO_JOBS})
    assert sorted(map(len, settled.values())) == [0, 3, 3]
    assert stopped == 3


def test_what_balance_moves_and_what_a_drain_moves_go_in_one_round() -> None:
    leader = draining(W3)
    outcome = leader.round(W1="AT0 AT1 AT2 AT3", W2="", W3="AT4 AT5")
    assert revoked(outcome) == {W1: parse_jobs("AT3"), W3: parse_jobs("AT4 AT5")}
    assert (outcome.optimum, outcome.bound) == (3, 3)


def test_a_drain_goes_on_while_a_delay_runs() -> None:
    leader = Leader(SIX)
    leader.round(W1="AT0 AT1", W2="AT2 AT3", W3="AT4 AT5")
    leader.draining = {W2}
    outcome = leader.round(1_000, W1="AT0 AT1", W2="AT2 AT3")
    assert outcome.delay_ms == 300
    assert outcome.assignments[W2].why == {Why.DRAIN: parse_jobs("AT2 AT3")}
    outcome = leader.round(1_010, W1="AT0 AT1", W2="")
    assert outcome.assignments[W1].assigned == parse_jobs("AT2 AT3")
    assert outcome.delay_ms == 290


def test_one_that_dies_in_the_middle_of_its_drain_is_not_waited_for() -> None:
    """It was to go for good, so it will not come back for them."""
    leader = draining(W3)
    leader.round(W1="AT0 AT1", W2="AT2 AT3", W3="AT4 AT5")
    outcome = leader.round(W1="AT0 AT1", W2="AT2 AT3")
    assert outcome.delay_ms == 0
    assert outcome.assignments[W1].assigned | outcome.assignments[W2].assigned == parse_jobs("AT4 AT5")


def test_when_all_drain_jobs_stay_where_they_are_and_one_that_nobody_runs_is_unassigned() -> None:
    leader = draining(W1, W2, configured="AT0 AT1 AT2")
    outcome = leader.round(W1="AT0", W2="AT1")
    assert not revoked(outcome)
    assert outcome.unassigned == {ConnectorTaskId(ConnectorName("A"), 2): "every worker is draining"}
    assert outcome.delay_ms == 0


def test_what_was_given_back_for_a_drain_runs_on_when_all_others_come_to_drain_meanwhile() -> None:
    for here in ({W1: "AT0 AT1", W2: "AT2 AT3"}, {W1: "AT0 AT1", W2: "AT2 AT3", W3: ""}):
        leader = draining(W3)
        leader.round(W1="AT0 AT1", W2="AT2 AT3", W3="AT4 AT5")
        leader.draining = {W1, W2, W3}
        settled, stopped, _ = leader.settle({member: parse_jobs(jobs) for member, jobs in here.items()})
        assert stopped == 0
        assert union(settled.values()) == leader.configured, "a drain stops nothing for nothing"
        settled, stopped, _ = leader.settle({**settled, MemberId("W4"): NO_JOBS})
        assert settled[MemberId("W4")] == leader.configured
        assert stopped == len(leader.configured)


def test_what_was_lost_otherwise_is_not_given_to_one_that_drains() -> None:
    leader = Leader("AT0 BT0 CT0")
    leader.claims = {W1: parse_jobs("AT0"), W2: parse_jobs("BT0")}
    leader.draining = {W3}
    leader.round(W1="AT0", W2="BT0", W3="CT0")
    for now_ms in (0, leader.policy.max_delay_ms):  # its claimant is gone, and then not expected any more
        outcome = leader.round(now_ms, W2="BT0", W3="CT0")
        assert outcome.assignments[W3].whole == parse_jobs("CT0")
        assert outcome.unassigned.keys() == {ConnectorTaskId(ConnectorName("A"), 0)}
    leader.claims[W2] = parse_jobs("")
    leader.round(leader.policy.max_delay_ms, W2="BT0", W3="CT0")
    outcome = leader.round(leader.policy.max_delay_ms, W2="", W3="CT0")
    assert outcome.assignments[W3].whole == parse_jobs("CT0"), "nor what somebody claims no more"


def test_what_was_given_back_and_then_lost_with_its_next_owner_is_not_given_to_one_that_drains() -> None:
    leader = Leader("AT0 AT1")
    leader.draining = {W3}
    assert revoked(leader.round(W1="AT0", W3="AT1")) == {W3: parse_jobs("AT1")}
    assert leader.round(W1="AT0", W3="").assignments[W1].assigned == parse_jobs("AT1")
    for now_ms in (0, leader.policy.max_delay_ms):  # it dies with both, is waited for, and then not any more
        outcome = leader.round(now_ms, W3="")
        assert not outcome.assignments[W3].whole
        assert outcome.unassigned.keys() == parse_jobs("AT0 AT1").tasks


def test_of_claimants_that_all_drain_those_that_have_jobs_keep_them_and_what_was_given_back_runs_on() -> None:
    leader = Leader("AT0 AT1 BT0")
    leader.claims = dict.fromkeys((W1, W2), parse_jobs("AT0 AT1")) | {W3: parse_jobs("BT0")}
    leader.draining = {W1}
    first = leader.round(W1="AT0", W2="AT1", W3="BT0")
    assert revoked(first) == {W1: parse_jobs("AT0")}
    leader.draining = {W1, W2}
    settled, stopped, _ = leader.settle({W1: NO_JOBS, W2: parse_jobs("AT1"), W3: parse_jobs("BT0")})
    assert (settled, stopped) == ({W1: parse_jobs("AT0"), W2: parse_jobs("AT1"), W3: parse_jobs("BT0")}, 0)


def test_a_drain_that_is_called_off_is_over() -> None:
    leader = draining(W2)
    leader.round(W1="AT0 AT1 AT2", W2="AT3 AT4 AT5")
    leader.draining = set()
    settled, stopped, _ = leader.settle({W1: parse_jobs("AT0 AT1 AT2"), W2: parse_jobs("AT3 AT4 AT5")})
    assert (len(settled[W1]), len(settled[W2]), stopped) == (3, 3, 0)


def test_of_two_that_run_a_job_the_one_that_stays_goes_on() -> None:
    leader = Leader("AT0")
    leader.round(W2="AT0")
    leader.draining = {W2}
    outcome = leader.round(W1="AT0", W2="AT0")
    assert outcome.assignments[W2].why == {Why.DUPLICATE: parse_jobs("AT0")}


def test_a_draining_claimants_jobs_go_to_another_claimant_or_to_a_wildcard_worker() -> None:
    leader = draining(W1, configured="AT0 BT0")
    leader.claims = {W1: parse_jobs("AT0 BT0"), W2: parse_jobs("AT0")}
    settled, _, _ = leader.settle({W1: parse_jobs("AT0 BT0"), W2: NO_JOBS, W3: NO_JOBS})
    assert settled == {W1: NO_JOBS, W2: parse_jobs("AT0"), W3: parse_jobs("BT0")}


def test_what_nobody_else_may_take_a_draining_worker_goes_on_with() -> None:
    leader = draining(W1, configured="AT0 BT0 BT1")
    leader.claims = {W1: parse_jobs("BT0 BT1"), S1: parse_jobs("AT0")}
    outcome = leader.round(W1="BT0", S1="AT0")
    assert not revoked(outcome)
    reason = (
        "only draining workers claim it (W1), and every worker that is not draining runs only the jobs that it claims"
    )
    assert outcome.unassigned == {ConnectorTaskId(ConnectorName("B"), 1): reason}


def test_a_static_member_that_is_back_and_draining_gets_nothing_back_and_nobody_waits_for_it() -> None:
    leader = Leader("AT0 AT1")
    back = MemberId("back")
    leader.instance_ids = {W2: InstanceId("two"), back: InstanceId("two")}
    leader.round(W1="AT0", W2="AT1")
    assert leader.round(100, W1="AT0").delay_ms == 300
    leader.draining = {back}
    outcome = leader.play({W1: parse_jobs("AT0"), back: NO_JOBS}, 200)
    assert outcome.assignments[W1].assigned == parse_jobs("AT1")
    assert outcome.delay_ms == 0


def test_a_rolling_drain_of_a_whole_group_moves_no_job_twice_in_a_step() -> None:
    """Each worker in turn drains, leaves, and is replaced by another before the next one goes."""
    leader = Leader("")
    leader.configured = Jobs.of(ConnectorTaskId(ConnectorName("A"), number) for number in range(30))
    members = leader.settle({MemberId(f"old{n}"): NO_JOBS for n in range(3)})[0]
    for n in range(3):
        goes = MemberId(f"old{n}")
        members, stopped, _ = leader.settle({**members, MemberId(f"new{n}"): NO_JOBS})
        leader.draining = {goes}
        had = len(members[goes])
        members, stopped, rounds = leader.settle(members)
        assert (stopped, rounds) == (had, 2)
        members = {member: jobs for member, jobs in members.items() if member != goes}
        assert leader.play(members).delay_ms == 0
    assert sorted(map(len, members.values())) == [10, 10, 10]
