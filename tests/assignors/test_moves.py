"""Design III: an imbalance is resolved a few moves at a time, in the fewest rebalances and moves possible."""

from collections.abc import Mapping, Sequence
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.assignors.cooperative import RoundOutcome
from coterie.assignors.members import RebalancePolicy
from coterie.assignors.moves import RevocationReason
from coterie.assignors.target import fewest_moves_bound
from coterie.lab.scenario.notation import parse_jobs
from coterie.nouns.ids import MemberId
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Jobs
from tests.assignors.leader import Leader

W1, W2, W3 = (MemberId(name) for name in ("W1", "W2", "W3"))
EIGHT = "AT0 AT1 AT2 AT3 AT4 AT5 AT6 AT7"


def policy_with_limit(moves: int, interval_ms: int = 0, max_delay_ms: int = 300) -> RebalancePolicy:
    return RebalancePolicy(max_delay_ms=max_delay_ms, moves_per_round_max=moves, round_interval_ms=interval_ms)


def stopped(outcome: RoundOutcome) -> int:
    return sum(len(assignment.revoked) for assignment in outcome.assignments.values())


def run_all_rounds(
    leader: Leader, members: Mapping[MemberId, Jobs], now_ms: int = 0
) -> tuple[list[tuple[int, int]], int]:
    """Rebalance, each when it is due, until nothing changes; returns (time, stopped jobs) pairs, and the rebalances."""
    stops, rounds = [], 0
    while True:
        outcome = leader.compute_round(members, now_ms)
        rounds += 1
        members = {member: assignment.owned_after for member, assignment in outcome.assignments.items()}
        if stopped(outcome):
            stops.append((now_ms, stopped(outcome)))
        elif outcome.next_round_timer_ms:
            now_ms += outcome.next_round_timer_ms
        elif not any(assignment.assigned for assignment in outcome.assignments.values()):
            loads = [len(jobs.tasks) for member, jobs in members.items() if member not in leader.draining]
            assert not loads or max(loads) - min(loads) <= 1
            return stops, rounds


def test_at_most_the_limit_is_revoked_and_the_next_rebalance_follows_after_the_interval() -> None:
    leader = Leader(EIGHT, policy_with_limit(2, interval_ms=1_000))
    first = leader.round(W1=EIGHT, W2="")
    assert stopped(first) == 2
    assert (first.move_count_to_target, first.next_round_timer_ms) == (4, 0), (
        "the workers rejoin after their revocations"
    )
    kept = {member: assignment.owned_after for member, assignment in first.assignments.items()}
    second = leader.compute_round(kept, 10)
    assert len(second.assignments[W2].assigned) == 2
    assert not stopped(second)
    assert (second.move_count_to_target, second.delay_ms, second.next_moves_timer_ms) == (2, 0, 990)
    third = leader.compute_round(
        {member: assignment.owned_after for member, assignment in second.assignments.items()}, 1_000
    )
    assert stopped(third) == 2
    last = leader.compute_round(
        {member: assignment.owned_after for member, assignment in third.assignments.items()}, 1_010
    )
    assert (last.move_count_to_target, last.next_round_timer_ms) == (0, 0)


def test_remaining_moves_are_scheduled_also_when_only_deleted_jobs_are_revoked() -> None:
    leader = Leader("AT0 AT1 AT2 AT3", policy_with_limit(1, interval_ms=1_000))
    leader.round(W1="AT0 AT1 AT2 AT3 BT0", W2="")
    outcome = leader.round(10, W1="AT0 AT1 AT3 BT0", W2="")
    assert outcome.assignments[W1].revoked == parse_jobs("BT0")
    assert outcome.next_moves_timer_ms == 990


def test_without_an_interval_a_rebalance_assigns_the_last_moves_and_revokes_the_next() -> None:
    stops, rounds = run_all_rounds(Leader(EIGHT, policy_with_limit(2)), {W1: parse_jobs(EIGHT), W2: NO_JOBS})
    assert stops == [(0, 2), (0, 2)]
    assert rounds == 4, "two that revoke, one that assigns the last jobs, one without changes"


def test_a_rejoin_before_the_end_of_the_interval_moves_nothing_and_reports_the_remaining_time() -> None:
    leader = Leader(EIGHT, policy_with_limit(2, interval_ms=1_000))
    leader.round(W1=EIGHT, W2="")
    members = {member: held.kept for member, held in leader.state.outcome_by_member.items()}
    for now_ms in (100, 400, 700):
        outcome = leader.compute_round(members, now_ms)
        assert not stopped(outcome)
        assert (outcome.delay_ms, outcome.next_moves_timer_ms) == (0, 1_000 - now_ms)
        members = {member: assignment.owned_after for member, assignment in outcome.assignments.items()}


def test_moves_for_drains_come_before_moves_for_balance() -> None:
    leader = Leader(EIGHT, policy_with_limit(3, interval_ms=1_000))
    leader.draining = {W3}
    outcome = leader.round(W1="AT0 AT1 AT2 AT3 AT4 AT5", W2="", W3="AT6 AT7")
    assert outcome.assignments[W3].revoked_by_reason == {RevocationReason.DRAIN: parse_jobs("AT6 AT7")}
    assert {why: len(jobs) for why, jobs in outcome.assignments[W1].revoked_by_reason.items()} == {
        RevocationReason.BALANCE: 1
    }


def test_revocations_of_deleted_claimed_or_duplicated_jobs_are_not_limited() -> None:
    leader = Leader("AT0 AT1 AT2 AT3 AT4", policy_with_limit(1, interval_ms=1_000))
    leader.claims = {W3: parse_jobs("AT0 AT1")}
    leader.round(W1="AT0 AT1 AT2", W2="AT3 AT4")
    outcome = leader.round(W1="AT0 AT1 AT2 BT0", W2="AT3 AT4 AT2", W3="")
    assert outcome.assignments[W1].revoked_by_reason == {
        RevocationReason.DELETED: parse_jobs("BT0"),
        RevocationReason.CLAIM: parse_jobs("AT0 AT1"),
    }
    assert outcome.assignments[W2].revoked_by_reason == {RevocationReason.DUPLICATE: parse_jobs("AT2")}


def test_the_most_loaded_worker_gives_up_jobs_first() -> None:
    leader = Leader("", policy_with_limit(3))
    names = [ConnectorName(name) for name in "ABC"]
    members = {
        W1: Jobs.of(ConnectorTaskId(names[0], number) for number in range(7)),
        W2: Jobs.of(ConnectorTaskId(names[1], number) for number in range(5)),
        W3: NO_JOBS,
    }
    leader.configured = members[W1] | members[W2]
    outcome = leader.compute_round(members)
    assert [len(outcome.assignments[member].revoked) for member in (W1, W2)] == [3, 0]


def test_while_jobs_are_deferred_only_a_drain_moves_jobs() -> None:
    leader = Leader("AT0 AT1 AT2 AT3 AT4", policy_with_limit(1, interval_ms=50))
    leader.round(W1="AT0 AT1", W2="AT3", W3="AT2 AT4")
    leader.draining = {W2}
    first = leader.round(1_000, W1="AT0 AT1", W2="AT3", W6="", W7="", W8="", W9="")
    assert first.assignments[W2].revoked_by_reason == {RevocationReason.DRAIN: parse_jobs("AT3")}
    assert not first.assignments[W1].revoked
    second = leader.round(1_010, W1="AT0 AT1", W2="", W6="", W7="", W8="", W9="")
    assert (second.delay_ms, second.next_moves_timer_ms) == (290, 0), "no job may move before the delay is over"


def test_a_limited_drain_continues_during_a_delay_and_the_remaining_delay_is_reported() -> None:
    leader = Leader("AT0 AT1 AT2 AT3 AT4", policy_with_limit(1, interval_ms=50))
    leader.round(W1="AT0 AT1", W2="AT2 AT3", W3="AT4")
    leader.draining = {W2}
    leader.round(1_000, W1="AT0 AT1", W2="AT2 AT3")
    outcome = leader.round(1_010, W1="AT0 AT1", W2="AT3")
    assert (outcome.delay_ms, outcome.next_moves_timer_ms, outcome.next_round_timer_ms) == (290, 40, 40)
    assert stopped(leader.round(1_050, W1="AT0 AT1 AT2", W2="AT3")) == 1


def test_a_new_leader_continues_a_drain_within_the_interval_and_keeps_the_delay() -> None:
    """A new leader has only the data of its last assignment: the delay."""
    previous_leader = Leader("AT0 AT1 AT2 AT3 AT4 AT5", policy_with_limit(1, interval_ms=50))
    previous_leader.draining = {W2}
    previous_leader.round(W1="AT0 AT1", W2="AT2 AT3", W3="AT4 AT5")
    previous_leader.round(1_000, W1="AT0 AT1", W2="AT2")
    outcome = previous_leader.round(1_010, W1="AT0 AT1 AT3", W2="AT2")
    leader = Leader("AT0 AT1 AT2 AT3 AT4 AT5", previous_leader.policy)
    leader.draining, leader.received_delay_ms = {W2}, outcome.delay_ms - 20
    taken = leader.round(1_030, W2="AT2", W1="AT0 AT1 AT3")
    assert taken.assignments[W2].revoked_by_reason == {RevocationReason.DRAIN: parse_jobs("AT2")}
    assert (taken.delay_ms, set(taken.reason_by_unassigned_job)) == (270, set(parse_jobs("AT4 AT5")))


def test_a_new_leader_of_a_group_without_deferred_jobs_defers_nothing() -> None:
    previous_leader = Leader(EIGHT, policy_with_limit(2, interval_ms=1_000))
    kept = {
        member: assignment.owned_after
        for member, assignment in previous_leader.round(W1=EIGHT, W2="").assignments.items()
    }
    last_outcome = previous_leader.compute_round(kept, 10)
    leader = Leader(f"{EIGHT} BT0", previous_leader.policy)
    leader.received_delay_ms = last_outcome.delay_ms
    outcome = leader.compute_round(
        {member: assignment.owned_after for member, assignment in last_outcome.assignments.items()}, 20
    )
    assert parse_jobs("BT0") in [assignment.assigned for assignment in outcome.assignments.values()]
    assert (stopped(outcome), outcome.delay_ms, outcome.reason_by_unassigned_job) == (1, 0, {})


LOADS = st.lists(st.integers(0, 12), min_size=1, max_size=6)


def fleet(loads: Sequence[int]) -> dict[MemberId, Jobs]:
    jobs = iter(ConnectorTaskId(ConnectorName("abc"[number % 3]), number) for number in range(sum(loads)))
    return {MemberId(f"w{at}"): Jobs.of(next(jobs) for _ in range(load)) for at, load in enumerate(loads)}


@settings(max_examples=100)
@given(loads=LOADS, moves=st.integers(1, 7), interval_ms=st.sampled_from([0, 1_000]))
def test_the_moves_add_up_to_the_lower_bound_in_the_fewest_rebalances(
    loads: list[int], moves: int, interval_ms: int
) -> None:
    members = fleet(loads)
    leader = Leader("", policy_with_limit(moves, interval_ms))
    leader.configured = Jobs.of(job for jobs in members.values() for job in jobs)
    bound = fewest_moves_bound(loads, sum(loads))
    stops, _ = run_all_rounds(leader, members)
    assert sum(count for _, count in stops) == bound
    assert len(stops) == ceil(bound / moves)
    assert all(count == moves for _, count in stops[:-1])
    assert [at_ms for at_ms, _ in stops] == [nth * interval_ms for nth in range(len(stops))]


@settings(max_examples=100)
@given(loads=LOADS.filter(lambda loads: len(loads) > 1), moves=st.integers(1, 7), data=st.data())
def test_a_drain_is_split_over_rebalances_like_other_moves(loads: list[int], moves: int, data: st.DataObject) -> None:
    members = fleet(loads)
    leader = Leader("", policy_with_limit(moves))
    leader.configured = Jobs.of(job for jobs in members.values() for job in jobs)
    leader.draining = {data.draw(st.sampled_from(sorted(members)))}
    stay = [len(jobs) for member, jobs in members.items() if member not in leader.draining]
    due = sum(loads) - sum(stay) + fewest_moves_bound(stay, sum(loads))
    stops, _ = run_all_rounds(leader, members)
    assert sum(count for _, count in stops) == due
    assert len(stops) == ceil(due / moves)


@pytest.mark.parametrize("moves", [1, 5, 30])
def test_connectors_and_tasks_together_reach_the_optimal_number_of_moves(moves: int) -> None:
    names = [ConnectorName(f"c{number}") for number in range(10)]
    everything = Jobs.of([*names, *(ConnectorTaskId(name, number) for name in names for number in range(6))])
    leader = Leader("", policy_with_limit(moves))
    leader.configured = everything
    members = {MemberId(f"w{number}"): NO_JOBS for number in range(4)}
    members[MemberId("w0")] = everything
    optimum = Leader("")
    optimum.configured = everything
    fewest = optimum.compute_round(members).move_count_to_target
    stops, _ = run_all_rounds(leader, members)
    assert sum(count for _, count in stops) == fewest
    assert len(stops) == ceil(fewest / moves)
