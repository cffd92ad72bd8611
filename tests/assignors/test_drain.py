"""Rebalances with draining members: their jobs move to other members while the draining members still run."""

from coterie.assignors.assignor_state import union_of_jobs
from coterie.assignors.cooperative import RoundOutcome
from coterie.assignors.members import RebalancePolicy
from coterie.assignors.moves import RevocationReason
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
    return {member: assignment.revoked for member, assignment in outcome.assignments.items() if assignment.revoked}


def test_d13_a_draining_workers_jobs_are_revoked_and_then_assigned_without_a_delay() -> None:
    leader = draining(W3)
    first = leader.round(W1="AT0 AT1", W2="AT2 AT3", W3="AT4 AT5")
    assert first.delay_ms == 0
    assert first.assignments[W3].revoked_by_reason == {RevocationReason.DRAIN: parse_jobs("AT4 AT5")}
    assert revoked(first) == {W3: parse_jobs("AT4 AT5")}
    second = leader.round(W1="AT0 AT1", W2="AT2 AT3", W3="")
    assert second.delay_ms == 0
    assert sorted(len(second.assignments[member].assigned) for member in (W1, W2)) == [1, 1]
    third = leader.compute_round({member: second.assignments[member].owned_after for member in (W1, W2)})
    assert third.delay_ms == 0, "it left without jobs, so none is lost"
    assert not revoked(third)


def test_a_draining_worker_gets_no_new_jobs() -> None:
    leader = draining(W2)
    outcome = leader.round(W1="AT0 AT1 AT2", W2="")
    assert outcome.assignments[W1].assigned == parse_jobs("AT3 AT4 AT5")


def test_a_draining_worker_is_excluded_from_balancing() -> None:
    leader = draining(W3)
    settled, stopped, _ = leader.run_until_settled({W1: parse_jobs(SIX), W2: NO_JOBS, W3: NO_JOBS})
    assert sorted(map(len, settled.values())) == [0, 3, 3]
    assert stopped == 3


def test_moves_for_balance_and_for_a_drain_happen_in_one_rebalance() -> None:
    leader = draining(W3)
    outcome = leader.round(W1="AT0 AT1 AT2 AT3", W2="", W3="AT4 AT5")
    assert revoked(outcome) == {W1: parse_jobs("AT3"), W3: parse_jobs("AT4 AT5")}
    assert (outcome.move_count_to_target, outcome.move_count_lower_bound) == (3, 3)


def test_a_drain_continues_during_a_delay() -> None:
    leader = Leader(SIX)
    leader.round(W1="AT0 AT1", W2="AT2 AT3", W3="AT4 AT5")
    leader.draining = {W2}
    outcome = leader.round(1_000, W1="AT0 AT1", W2="AT2 AT3")
    assert outcome.delay_ms == 300
    assert outcome.assignments[W2].revoked_by_reason == {RevocationReason.DRAIN: parse_jobs("AT2 AT3")}
    outcome = leader.round(1_010, W1="AT0 AT1", W2="")
    assert outcome.assignments[W1].assigned == parse_jobs("AT2 AT3")
    assert outcome.delay_ms == 290


def test_a_worker_lost_during_its_drain_causes_no_delay() -> None:
    """A draining worker leaves permanently, so its return for the jobs is not awaited."""
    leader = draining(W3)
    leader.round(W1="AT0 AT1", W2="AT2 AT3", W3="AT4 AT5")
    outcome = leader.round(W1="AT0 AT1", W2="AT2 AT3")
    assert outcome.delay_ms == 0
    assert outcome.assignments[W1].assigned | outcome.assignments[W2].assigned == parse_jobs("AT4 AT5")


def test_when_all_workers_drain_their_jobs_stay_and_an_unowned_job_is_unassigned() -> None:
    leader = draining(W1, W2, configured="AT0 AT1 AT2")
    outcome = leader.round(W1="AT0", W2="AT1")
    assert not revoked(outcome)
    assert outcome.reason_by_unassigned_job == {ConnectorTaskId(ConnectorName("A"), 2): "every worker is draining"}
    assert outcome.delay_ms == 0


def test_a_job_released_for_a_drain_is_restarted_if_all_other_workers_begin_to_drain() -> None:
    for present in ({W1: "AT0 AT1", W2: "AT2 AT3"}, {W1: "AT0 AT1", W2: "AT2 AT3", W3: ""}):
        leader = draining(W3)
        leader.round(W1="AT0 AT1", W2="AT2 AT3", W3="AT4 AT5")
        leader.draining = {W1, W2, W3}
        settled, stopped, _ = leader.run_until_settled({member: parse_jobs(jobs) for member, jobs in present.items()})
        assert stopped == 0
        assert union_of_jobs(settled.values()) == leader.configured, (
            "a drain stops no job that no other worker can take"
        )
        settled, stopped, _ = leader.run_until_settled({**settled, MemberId("W4"): NO_JOBS})
        assert settled[MemberId("W4")] == leader.configured
        assert stopped == len(leader.configured)


def test_a_lost_job_is_not_assigned_to_a_draining_worker() -> None:
    leader = Leader("AT0 BT0 CT0")
    leader.claims = {W1: parse_jobs("AT0"), W2: parse_jobs("BT0")}
    leader.draining = {W3}
    leader.round(W1="AT0", W2="BT0", W3="CT0")
    for now_ms in (0, leader.policy.max_delay_ms):  # the claimant has left: during the delay and after it
        outcome = leader.round(now_ms, W2="BT0", W3="CT0")
        assert outcome.assignments[W3].owned_after == parse_jobs("CT0")
        assert outcome.reason_by_unassigned_job.keys() == {ConnectorTaskId(ConnectorName("A"), 0)}
    leader.claims[W2] = parse_jobs("")
    leader.round(leader.policy.max_delay_ms, W2="BT0", W3="CT0")
    outcome = leader.round(leader.policy.max_delay_ms, W2="", W3="CT0")
    assert outcome.assignments[W3].owned_after == parse_jobs("CT0"), "nor a job that is no longer claimed"


def test_a_released_job_lost_with_its_next_owner_is_not_assigned_to_a_draining_worker() -> None:
    leader = Leader("AT0 AT1")
    leader.draining = {W3}
    assert revoked(leader.round(W1="AT0", W3="AT1")) == {W3: parse_jobs("AT1")}
    assert leader.round(W1="AT0", W3="").assignments[W1].assigned == parse_jobs("AT1")
    for now_ms in (0, leader.policy.max_delay_ms):  # W1 is lost with both jobs: during the delay and after it
        outcome = leader.round(now_ms, W3="")
        assert not outcome.assignments[W3].owned_after
        assert outcome.reason_by_unassigned_job.keys() == parse_jobs("AT0 AT1").tasks


def test_when_all_claimants_drain_they_keep_their_jobs_and_a_released_job_is_restarted() -> None:
    leader = Leader("AT0 AT1 BT0")
    leader.claims = dict.fromkeys((W1, W2), parse_jobs("AT0 AT1")) | {W3: parse_jobs("BT0")}
    leader.draining = {W1}
    first = leader.round(W1="AT0", W2="AT1", W3="BT0")
    assert revoked(first) == {W1: parse_jobs("AT0")}
    leader.draining = {W1, W2}
    settled, stopped, _ = leader.run_until_settled({W1: NO_JOBS, W2: parse_jobs("AT1"), W3: parse_jobs("BT0")})
    assert (settled, stopped) == ({W1: parse_jobs("AT0"), W2: parse_jobs("AT1"), W3: parse_jobs("BT0")}, 0)


def test_a_cancelled_drain_stops_no_more_jobs() -> None:
    leader = draining(W2)
    leader.policy = RebalancePolicy(moves_per_round_max=1)
    assert revoked(leader.round(W1="AT0 AT1 AT2", W2="AT3 AT4 AT5")) == {W2: parse_jobs("AT3")}
    leader.draining = set()
    settled, stopped, _ = leader.run_until_settled({W1: parse_jobs("AT0 AT1 AT2"), W2: parse_jobs("AT4 AT5")})
    assert (len(settled[W1]), len(settled[W2]), stopped) == (3, 3, 0)


def test_of_two_workers_that_run_a_job_the_one_that_does_not_drain_keeps_it() -> None:
    leader = Leader("AT0")
    leader.round(W2="AT0")
    leader.draining = {W2}
    outcome = leader.round(W1="AT0", W2="AT0")
    assert outcome.assignments[W2].revoked_by_reason == {RevocationReason.DUPLICATE: parse_jobs("AT0")}


def test_a_draining_claimants_jobs_go_to_another_claimant_or_to_a_wildcard_worker() -> None:
    leader = draining(W1, configured="AT0 BT0")
    leader.claims = {W1: parse_jobs("AT0 BT0"), W2: parse_jobs("AT0")}
    settled, _, _ = leader.run_until_settled({W1: parse_jobs("AT0 BT0"), W2: NO_JOBS, W3: NO_JOBS})
    assert settled == {W1: NO_JOBS, W2: parse_jobs("AT0"), W3: parse_jobs("BT0")}


def test_a_draining_worker_keeps_the_jobs_that_no_other_worker_may_run() -> None:
    leader = draining(W1, configured="AT0 BT0 BT1")
    leader.claims = {W1: parse_jobs("BT0 BT1"), S1: parse_jobs("AT0")}
    outcome = leader.round(W1="BT0", S1="AT0")
    assert not revoked(outcome)
    reason = (
        "only draining workers claim it (W1), and every worker that is not draining runs only the jobs that it claims"
    )
    assert outcome.reason_by_unassigned_job == {ConnectorTaskId(ConnectorName("B"), 1): reason}


def test_a_static_member_that_returns_draining_gets_no_jobs_back_and_causes_no_delay() -> None:
    leader = Leader("AT0 AT1")
    back = MemberId("back")
    leader.instance_ids = {W2: InstanceId("two"), back: InstanceId("two")}
    leader.round(W1="AT0", W2="AT1")
    assert leader.round(100, W1="AT0").delay_ms == 300
    leader.draining = {back}
    outcome = leader.compute_round({W1: parse_jobs("AT0"), back: NO_JOBS}, 200)
    assert outcome.assignments[W1].assigned == parse_jobs("AT1")
    assert outcome.delay_ms == 0


def test_in_a_rolling_drain_of_a_whole_group_no_job_moves_twice_in_a_step() -> None:
    """Each worker in turn drains and leaves after a replacement has joined."""
    leader = Leader("")
    leader.configured = Jobs.of(ConnectorTaskId(ConnectorName("A"), number) for number in range(30))
    members = leader.run_until_settled({MemberId(f"old{n}"): NO_JOBS for n in range(3)})[0]
    for n in range(3):
        leaving = MemberId(f"old{n}")
        members, stopped, _ = leader.run_until_settled({**members, MemberId(f"new{n}"): NO_JOBS})
        leader.draining = {leaving}
        had = len(members[leaving])
        members, stopped, rounds = leader.run_until_settled(members)
        assert (stopped, rounds) == (had, 2)
        members = {member: jobs for member, jobs in members.items() if member != leaving}
        assert leader.compute_round(members).delay_ms == 0
    assert sorted(map(len, members.values())) == [10, 10, 10]
