"""Rebalances with static members (KIP-345), which a leader identifies by their instance ids."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.assignors.cooperative import IMMEDIATE_ROUND_DELAY_MS
from coterie.assignors.members import RebalancePolicy
from coterie.lab.scenario.notation import parse_jobs
from coterie.nouns.ids import InstanceId, MemberId
from coterie.nouns.jobs import NO_JOBS, Jobs
from tests.assignors.leader import Leader

W1, W2, W3, W4 = (MemberId(name) for name in ("W1", "W2", "W3", "W4"))
RETURNED = MemberId("W2-back")
FIVE = "AC0 AT1 AT2 BC0 BT1"


@pytest.fixture
def leader() -> Leader:
    """Three static workers that run five jobs."""
    leader = Leader(FIVE)
    leader.instance_ids = {member: InstanceId(f"instance-{member}") for member in (W1, W2, W3)}
    leader.instance_ids[RETURNED] = leader.instance_ids[W2]
    leader.round(W1="AC0 AT1", W2="AT2 BC0", W3="BT1")
    return leader


def test_a_member_that_returns_within_its_session_gets_its_own_jobs_in_one_rebalance(leader: Leader) -> None:
    outcome = leader.compute_round({W1: parse_jobs("AC0 AT1"), RETURNED: NO_JOBS, W3: parse_jobs("BT1")})
    assert outcome.assignments[RETURNED].assigned == parse_jobs("AT2 BC0")
    assert all(not assignment.revoked for assignment in outcome.assignments.values())
    assert all(not outcome.assignments[other].assigned for other in (W1, W3))
    assert outcome.delay_ms == 0


def test_a_returning_member_is_not_assigned_jobs_that_it_already_runs(leader: Leader) -> None:
    outcome = leader.compute_round({W1: parse_jobs("AC0 AT1"), RETURNED: parse_jobs("AT2"), W3: parse_jobs("BT1")})
    assert outcome.assignments[RETURNED].assigned == parse_jobs("BC0")


def test_a_member_that_returns_within_the_delay_gets_its_own_jobs_at_once(leader: Leader) -> None:
    others = {W1: parse_jobs("AC0 AT1"), W3: parse_jobs("BT1")}
    assert leader.compute_round(others).delay_ms == 300
    outcome = leader.compute_round({**others, W4: NO_JOBS}, now_ms=100)
    assert outcome.assignments[W4].assigned == NO_JOBS, "a candidate gets nothing before the delay ends"
    outcome = leader.compute_round({**others, W4: NO_JOBS, RETURNED: NO_JOBS}, now_ms=200)
    assert outcome.assignments[RETURNED].assigned == parse_jobs("AT2 BC0")
    assert outcome.assignments[W4].assigned == NO_JOBS


def test_a_member_that_returns_after_the_delay_gets_jobs_only_for_balance(leader: Leader) -> None:
    leader.compute_round({W1: parse_jobs("AC0 AT1"), W3: parse_jobs("BT1")})
    outcome = leader.compute_round({W1: parse_jobs("AC0 AT1"), W3: parse_jobs("BT1")}, now_ms=300)
    members = {member: assignment.owned_after for member, assignment in outcome.assignments.items()}
    settled, stopped, _ = leader.run_until_settled({**members, RETURNED: NO_JOBS}, now_ms=400)
    assert stopped == 1
    assert len(settled[RETURNED]) == 1


def test_jobs_of_two_absent_members_are_deferred_separately(leader: Leader) -> None:
    leader.compute_round({W1: parse_jobs("AC0 AT1")})
    outcome = leader.compute_round({W1: parse_jobs("AC0 AT1"), RETURNED: NO_JOBS}, now_ms=100)
    assert outcome.assignments[RETURNED].assigned == parse_jobs("AT2 BC0")
    assert outcome.delay_ms == 200, "the jobs of the other absent member stay deferred"


def test_a_returning_members_excess_jobs_are_revoked_in_the_next_rebalance() -> None:
    leader = Leader("AT1 AT2 AT3")
    leader.instance_ids = {W2: InstanceId("two"), RETURNED: InstanceId("two")}
    leader.round(W1="AT1", W2="AT2 AT3")
    leader.round(W1="AT1", W3="")
    outcome = leader.compute_round({W1: parse_jobs("AT1"), W3: NO_JOBS, RETURNED: NO_JOBS})
    assert outcome.assignments[RETURNED].assigned == parse_jobs("AT2 AT3")
    assert not any(assignment.revoked for assignment in outcome.assignments.values())
    assert (outcome.delay_ms, outcome.next_moves_timer_ms) == (0, IMMEDIATE_ROUND_DELAY_MS)
    outcome = leader.compute_round(
        {W1: parse_jobs("AT1"), W3: NO_JOBS, RETURNED: parse_jobs("AT2 AT3")}, now_ms=IMMEDIATE_ROUND_DELAY_MS
    )
    assert outcome.assignments[RETURNED].revoked == parse_jobs("AT3")
    assert outcome.delay_ms == 0


def test_a_deleted_job_is_not_assigned_to_a_returning_member(leader: Leader) -> None:
    leader.configured = parse_jobs("AC0 AT1 AT2 BT1")
    outcome = leader.compute_round({W1: parse_jobs("AC0 AT1"), RETURNED: NO_JOBS, W3: parse_jobs("BT1")})
    assert outcome.assignments[RETURNED].assigned == parse_jobs("AT2")


def test_a_dynamic_member_with_the_member_id_of_a_static_one_gets_none_of_its_jobs(leader: Leader) -> None:
    del leader.instance_ids[RETURNED]
    outcome = leader.compute_round({W1: parse_jobs("AC0 AT1"), RETURNED: NO_JOBS, W3: parse_jobs("BT1")})
    assert outcome.assignments[RETURNED].assigned == NO_JOBS
    assert outcome.delay_ms == 300


JOBS = [f"{connector}T{number}" for connector in "AB" for number in range(4)] + ["AC0", "BC0"]


@settings(max_examples=300)
@given(
    owners=st.lists(st.integers(0, 3), min_size=len(JOBS), max_size=len(JOBS)),
    absent=st.integers(0, 3),
    absent_rounds=st.integers(0, 2),
    delay_ms=st.sampled_from([0, 300]),
)
def test_a_returning_member_gets_all_its_unowned_jobs_and_the_group_ends_balanced(
    owners: list[int], absent: int, absent_rounds: int, delay_ms: int
) -> None:
    """For any jobs of the other members; the rebalances without the absent member are within its delay."""
    members = [W1, W2, W3, W4]
    leader = Leader(" ".join(JOBS), RebalancePolicy(max_delay_ms=delay_ms))
    back = MemberId("back")
    leader.instance_ids = {member: InstanceId(member) for member in members}
    leader.instance_ids[back] = InstanceId(members[absent])
    runs = dict.fromkeys(members, NO_JOBS)
    for job, owner in zip(JOBS, owners, strict=True):
        runs[members[owner]] |= parse_jobs(job)
    outcome = leader.compute_round(runs)
    runs = {member: assignment.owned_after for member, assignment in outcome.assignments.items()}
    had = runs.pop(members[absent])
    for _ in range(absent_rounds):
        outcome = leader.compute_round(runs)
        runs = {member: assignment.owned_after for member, assignment in outcome.assignments.items()}
    elsewhere = Jobs.of(job for jobs in runs.values() for job in jobs)
    outcome = leader.compute_round({**runs, back: NO_JOBS})
    assert had - elsewhere <= outcome.assignments[back].assigned
    if delay_ms:
        assert not had & elsewhere, "they were not assigned to another member meanwhile"
    again = (
        any(assignment.revoked for assignment in outcome.assignments.values())
        or 0 < outcome.next_moves_timer_ms <= IMMEDIATE_ROUND_DELAY_MS
    )
    runs = {member: assignment.owned_after for member, assignment in outcome.assignments.items()}
    loads = sorted(len(jobs.tasks) for jobs in runs.values())
    assert again or loads[-1] - loads[0] <= 1, "it is balanced, or another rebalance follows"
    settled, _, _ = leader.run_until_settled(runs, now_ms=IMMEDIATE_ROUND_DELAY_MS)
    loads = sorted(len(jobs.tasks) for jobs in settled.values())
    assert loads[-1] - loads[0] <= 1
