"""Design III: an imbalance that is resolved a few moves at a time, in as few rounds and moves as that allows."""

from collections.abc import Mapping, Sequence
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.assignors.cooperative import RoundOutcome
from coterie.assignors.members import Policy
from coterie.assignors.moves import Why
from coterie.assignors.target import fewest_moves_bound
from coterie.lab.scenario.notation import parse_jobs
from coterie.nouns.ids import MemberId
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Jobs
from tests.assignors.leader import Leader

W1, W2, W3 = (MemberId(name) for name in ("W1", "W2", "W3"))
EIGHT = "AT0 AT1 AT2 AT3 AT4 AT5 AT6 AT7"


def paced(moves: int, interval_ms: int = 0, max_delay_ms: int = 300) -> Policy:
    return Policy(max_delay_ms=max_delay_ms, moves_per_round_max=moves, round_interval_ms=interval_ms)


def stopped(outcome: RoundOutcome) -> int:
    return sum(len(one.revoked) for one in outcome.assignments.values())


def play_out(leader: Leader, members: Mapping[MemberId, Jobs], now_ms: int = 0) -> tuple[list[tuple[int, int]], int]:
    """Rounds until nothing is left to do, each when it is due: when jobs were stopped, and how many; and all rounds."""
    stops, rounds = [], 0
    while True:
        outcome = leader.play(members, now_ms)
        rounds += 1
        members = {member: one.whole for member, one in outcome.assignments.items()}
        if stopped(outcome):
            stops.append((now_ms, stopped(outcome)))
        elif outcome.next_in_ms:
            now_ms += outcome.next_in_ms
        elif not any(one.assigned for one in outcome.assignments.values()):
            loads = [len(jobs.tasks) for member, jobs in members.items() if member not in leader.draining]
            assert not loads or max(loads) - min(loads) <= 1
            return stops, rounds


def test_at_most_so_many_are_revoked_in_a_round_and_the_next_follows_after_the_interval() -> None:
    leader = Leader(EIGHT, paced(2, interval_ms=1_000))
    first = leader.round(W1=EIGHT, W2="")
    assert stopped(first) == 2
    assert (first.optimum, first.next_in_ms) == (4, 0), "whoever gives back joins again by itself"
    kept = {member: one.whole for member, one in first.assignments.items()}
    second = leader.play(kept, 10)
    assert len(second.assignments[W2].assigned) == 2
    assert not stopped(second)
    assert (second.optimum, second.delay_ms, second.moves_in_ms) == (2, 0, 990)
    third = leader.play({member: one.whole for member, one in second.assignments.items()}, 1_000)
    assert stopped(third) == 2
    last = leader.play({member: one.whole for member, one in third.assignments.items()}, 1_010)
    assert (last.optimum, last.next_in_ms) == (0, 0)


def test_moves_that_are_left_are_asked_for_where_only_what_is_deleted_is_given_back() -> None:
    leader = Leader("AT0 AT1 AT2 AT3", paced(1, interval_ms=1_000))
    leader.round(W1="AT0 AT1 AT2 AT3 BT0", W2="")
    outcome = leader.round(10, W1="AT0 AT1 AT2 AT3 BT0", W2="")
    assert outcome.assignments[W1].revoked == parse_jobs("BT0")
    assert outcome.moves_in_ms == 990


def test_without_an_interval_a_round_gives_what_the_one_before_took_and_takes_the_next() -> None:
    stops, rounds = play_out(Leader(EIGHT, paced(2)), {W1: parse_jobs(EIGHT), W2: NO_JOBS})
    assert stops == [(0, 2), (0, 2)]
    assert rounds == 4, "two that revoke, one that gives the last, one that finds nothing to do"


def test_a_rejoin_before_the_interval_is_over_moves_nothing_and_the_leader_waits_for_the_rest_of_it() -> None:
    leader = Leader(EIGHT, paced(2, interval_ms=1_000))
    leader.round(W1=EIGHT, W2="")
    members = {member: held.kept for member, held in leader.memory.members.items()}
    for now_ms in (100, 400, 700):
        outcome = leader.play(members, now_ms)
        assert not stopped(outcome)
        assert (outcome.delay_ms, outcome.moves_in_ms) == (0, 1_000 - now_ms)
        members = {member: one.whole for member, one in outcome.assignments.items()}


def test_drains_go_before_balance() -> None:
    leader = Leader(EIGHT, paced(3, interval_ms=1_000))
    leader.draining = {W3}
    outcome = leader.round(W1="AT0 AT1 AT2 AT3 AT4 AT5", W2="", W3="AT6 AT7")
    assert outcome.assignments[W3].why == {Why.DRAIN: parse_jobs("AT6 AT7")}
    assert {why: len(jobs) for why, jobs in outcome.assignments[W1].why.items()} == {Why.BALANCE: 1}


def test_what_is_deleted_claimed_by_others_or_run_twice_is_not_held_back() -> None:
    leader = Leader("AT0 AT1 AT2 AT3", paced(1, interval_ms=1_000))
    leader.claims = {W3: parse_jobs("AT0 AT1")}
    leader.round(W1="AT0 AT1 AT2", W2="AT3", W3="")
    outcome = leader.round(W1="AT0 AT1 AT2 BT0", W2="AT3 AT2", W3="")
    assert outcome.assignments[W1].why == {Why.DELETED: parse_jobs("BT0"), Why.CLAIM: parse_jobs("AT0 AT1")}
    assert outcome.assignments[W2].why == {Why.DUPLICATE: parse_jobs("AT2")}


def test_those_who_have_most_to_give_give_first() -> None:
    leader = Leader("", paced(3))
    names = [ConnectorName(name) for name in "ABC"]
    members = {
        W1: Jobs.of(ConnectorTaskId(names[0], number) for number in range(7)),
        W2: Jobs.of(ConnectorTaskId(names[1], number) for number in range(5)),
        W3: NO_JOBS,
    }
    leader.configured = members[W1] | members[W2]
    outcome = leader.play(members)
    assert [len(outcome.assignments[member].revoked) for member in (W1, W2)] == [3, 0]


def test_while_jobs_wait_for_a_worker_only_a_drain_moves_any() -> None:
    leader = Leader("AT0 AT1 AT2 AT3 AT4", paced(1, interval_ms=50))
    leader.round(W1="AT0 AT1 AT2", W2="AT3", W3="AT4")
    leader.draining = {W2}
    first = leader.round(1_000, W1="AT0 AT1 AT2", W2="AT3", W9="")
    assert first.assignments[W2].why == {Why.DRAIN: parse_jobs("AT3")}
    assert not first.assignments[W1].revoked
    second = leader.round(1_010, W1="AT0 AT1 AT2", W2="", W9="")
    assert (second.delay_ms, second.moves_in_ms) == (290, 0), "nothing may move before the wait is over"


def test_a_drain_that_is_spread_over_rounds_goes_on_while_jobs_wait_and_the_wait_is_told_whole() -> None:
    leader = Leader("AT0 AT1 AT2 AT3 AT4", paced(1, interval_ms=50))
    leader.round(W1="AT0 AT1", W2="AT2 AT3", W3="AT4")
    leader.draining = {W2}
    leader.round(1_000, W1="AT0 AT1", W2="AT2 AT3")
    outcome = leader.round(1_010, W1="AT0 AT1", W2="AT2")
    assert (outcome.delay_ms, outcome.moves_in_ms, outcome.next_in_ms) == (290, 40, 40)
    assert stopped(leader.round(1_050, W1="AT0 AT1 AT3", W2="AT2")) == 1


def test_a_new_leader_goes_on_within_the_interval_and_keeps_the_wait() -> None:
    """It knows what its last assignment told it: that is the wait alone."""
    former = Leader("AT0 AT1 AT2 AT3 AT4 AT5", paced(1, interval_ms=50))
    former.draining = {W2}
    former.round(W1="AT0 AT1", W2="AT2 AT3", W3="AT4 AT5")
    former.round(1_000, W1="AT0 AT1", W2="AT2")
    outcome = former.round(1_010, W1="AT0 AT1 AT3", W2="AT2")
    leader = Leader("AT0 AT1 AT2 AT3 AT4 AT5", former.policy)
    leader.draining, leader.known_delay_ms = {W2}, outcome.delay_ms - 20
    taken = leader.round(1_030, W2="AT2", W1="AT0 AT1 AT3")
    assert taken.assignments[W2].why == {Why.DRAIN: parse_jobs("AT2")}
    assert (taken.delay_ms, set(taken.unassigned)) == (270, set(parse_jobs("AT4 AT5")))


def test_a_new_leader_of_a_group_in_which_nothing_waits_makes_nothing_wait() -> None:
    former = Leader(EIGHT, paced(2, interval_ms=1_000))
    kept = {member: one.whole for member, one in former.round(W1=EIGHT, W2="").assignments.items()}
    told = former.play(kept, 10)
    leader = Leader(f"{EIGHT} BT0", former.policy)
    leader.known_delay_ms = told.delay_ms
    outcome = leader.play({member: one.whole for member, one in told.assignments.items()}, 20)
    assert parse_jobs("BT0") in [one.assigned for one in outcome.assignments.values()]
    assert (stopped(outcome), outcome.delay_ms, outcome.unassigned) == (1, 0, {})


LOADS = st.lists(st.integers(0, 12), min_size=1, max_size=6)


def fleet(loads: Sequence[int]) -> dict[MemberId, Jobs]:
    jobs = iter(ConnectorTaskId(ConnectorName("abc"[number % 3]), number) for number in range(sum(loads)))
    return {MemberId(f"w{at}"): Jobs.of(next(jobs) for _ in range(load)) for at, load in enumerate(loads)}


@settings(max_examples=100)
@given(loads=LOADS, moves=st.integers(1, 7), interval_ms=st.sampled_from([0, 1_000]))
def test_the_rounds_add_up_to_the_bound_and_are_as_few_as_can_be(
    loads: list[int], moves: int, interval_ms: int
) -> None:
    members = fleet(loads)
    leader = Leader("", paced(moves, interval_ms))
    leader.configured = Jobs.of(job for jobs in members.values() for job in jobs)
    bound = fewest_moves_bound(loads, sum(loads))
    stops, _ = play_out(leader, members)
    assert sum(count for _, count in stops) == bound
    assert len(stops) == ceil(bound / moves)
    assert all(count == moves for _, count in stops[:-1])
    assert [at_ms for at_ms, _ in stops] == [nth * interval_ms for nth in range(len(stops))]


@settings(max_examples=100)
@given(loads=LOADS.filter(lambda loads: len(loads) > 1), moves=st.integers(1, 7), data=st.data())
def test_a_drain_is_spread_over_rounds_like_any_other_moves(loads: list[int], moves: int, data: st.DataObject) -> None:
    members = fleet(loads)
    leader = Leader("", paced(moves))
    leader.configured = Jobs.of(job for jobs in members.values() for job in jobs)
    leader.draining = {data.draw(st.sampled_from(sorted(members)))}
    stay = [len(jobs) for member, jobs in members.items() if member not in leader.draining]
    due = sum(loads) - sum(stay) + fewest_moves_bound(stay, sum(loads))
    stops, _ = play_out(leader, members)
    assert sum(count for _, count in stops) == due
    assert len(stops) == ceil(due / moves)


@pytest.mark.parametrize("moves", [1, 5, 30])
def test_connectors_and_tasks_together_reach_their_optimum_too(moves: int) -> None:
    names = [ConnectorName(f"c{number}") for number in range(10)]
    everything = Jobs.of([*names, *(ConnectorTaskId(name, number) for name in names for number in range(6))])
    leader = Leader("", paced(moves))
    leader.configured = everything
    members = {MemberId(f"w{number}"): NO_JOBS for number in range(4)}
    members[MemberId("w0")] = everything
    optimum = Leader("")
    optimum.configured = everything
    fewest = optimum.play(members).optimum
    stops, _ = play_out(leader, members)
    assert sum(count for _, count in stops) == fewest
    assert len(stops) == ceil(fewest / moves)
