"""Rounds with static members (KIP-345), whom a leader knows again by their instance ids."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.assignors.cooperative import AGAIN_MS
from coterie.assignors.members import Policy
from coterie.lab.scenario.notation import parse_jobs
from coterie.nouns.ids import InstanceId, MemberId
from coterie.nouns.jobs import NO_JOBS, Jobs
from tests.assignors.leader import Leader

W1, W2, W3, W4 = (MemberId(name) for name in ("W1", "W2", "W3", "W4"))
BACK = MemberId("W2-back")
FIVE = "AC0 AT1 AT2 BC0 BT1"


@pytest.fixture
def leader() -> Leader:
    """Three static workers that run five jobs."""
    leader = Leader(FIVE)
    leader.instance_ids = {member: InstanceId(f"instance-{member}") for member in (W1, W2, W3)}
    leader.instance_ids[BACK] = leader.instance_ids[W2]
    leader.round(W1="AC0 AT1", W2="AT2 BC0", W3="BT1")
    return leader


def test_one_that_is_back_within_its_session_gets_its_own_jobs_in_one_round(leader: Leader) -> None:
    outcome = leader.play({W1: parse_jobs("AC0 AT1"), BACK: NO_JOBS, W3: parse_jobs("BT1")})
    assert outcome.assignments[BACK].assigned == parse_jobs("AT2 BC0")
    assert all(not one.revoked for one in outcome.assignments.values())
    assert all(not outcome.assignments[other].assigned for other in (W1, W3))
    assert outcome.delay_ms == 0


def test_of_its_jobs_those_that_it_runs_already_are_not_given_again(leader: Leader) -> None:
    outcome = leader.play({W1: parse_jobs("AC0 AT1"), BACK: parse_jobs("AT2"), W3: parse_jobs("BT1")})
    assert outcome.assignments[BACK].assigned == parse_jobs("BC0")


def test_one_that_is_back_within_the_delay_gets_its_own_jobs_at_once(leader: Leader) -> None:
    others = {W1: parse_jobs("AC0 AT1"), W3: parse_jobs("BT1")}
    assert leader.play(others).delay_ms == 300
    outcome = leader.play({**others, W4: NO_JOBS}, now_ms=100)
    assert outcome.assignments[W4].assigned == NO_JOBS, "a candidate gets nothing before the delay ends"
    outcome = leader.play({**others, W4: NO_JOBS, BACK: NO_JOBS}, now_ms=200)
    assert outcome.assignments[BACK].assigned == parse_jobs("AT2 BC0")
    assert outcome.assignments[W4].assigned == NO_JOBS


def test_after_the_delay_others_have_its_jobs_and_nobody_stops_one_for_it_but_for_balance(leader: Leader) -> None:
    leader.play({W1: parse_jobs("AC0 AT1"), W3: parse_jobs("BT1")})
    outcome = leader.play({W1: parse_jobs("AC0 AT1"), W3: parse_jobs("BT1")}, now_ms=300)
    members = {member: one.whole for member, one in outcome.assignments.items()}
    settled, stopped, _ = leader.settle({**members, BACK: NO_JOBS}, now_ms=400)
    assert stopped == 1
    assert len(settled[BACK]) == 1


def test_jobs_of_two_that_are_away_wait_for_each_by_itself(leader: Leader) -> None:
    leader.play({W1: parse_jobs("AC0 AT1")})
    outcome = leader.play({W1: parse_jobs("AC0 AT1"), BACK: NO_JOBS}, now_ms=100)
    assert outcome.assignments[BACK].assigned == parse_jobs("AT2 BC0")
    assert outcome.delay_ms == 200, "the other one's job waits on"


def test_what_is_more_than_its_share_is_taken_in_the_round_after() -> None:
    leader = Leader("AT1 AT2 AT3")
    leader.instance_ids = {W2: InstanceId("two"), BACK: InstanceId("two")}
    leader.round(W1="AT1", W2="AT2 AT3")
    leader.round(W1="AT1", W3="")
    outcome = leader.play({W1: parse_jobs("AT1"), W3: NO_JOBS, BACK: NO_JOBS})
    assert outcome.assignments[BACK].assigned == parse_jobs("AT2 AT3")
    assert not any(one.revoked for one in outcome.assignments.values())
    assert (outcome.delay_ms, outcome.moves_in_ms) == (0, AGAIN_MS)
    outcome = leader.play({W1: parse_jobs("AT1"), W3: NO_JOBS, BACK: parse_jobs("AT2 AT3")}, now_ms=AGAIN_MS)
    assert outcome.assignments[BACK].revoked == parse_jobs("AT3")
    assert outcome.delay_ms == 0


def test_a_deleted_job_does_not_come_back(leader: Leader) -> None:
    leader.configured = parse_jobs("AC0 AT1 AT2 BT1")
    outcome = leader.play({W1: parse_jobs("AC0 AT1"), BACK: NO_JOBS, W3: parse_jobs("BT1")})
    assert outcome.assignments[BACK].assigned == parse_jobs("AT2")


def test_a_dynamic_member_with_a_static_ones_former_id_is_somebody_else(leader: Leader) -> None:
    del leader.instance_ids[BACK]
    outcome = leader.play({W1: parse_jobs("AC0 AT1"), BACK: NO_JOBS, W3: parse_jobs("BT1")})
    assert outcome.assignments[BACK].assigned == NO_JOBS
    assert outcome.delay_ms == 300


JOBS = [f"{connector}T{number}" for connector in "AB" for number in range(4)] + ["AC0", "BC0"]


@settings(max_examples=300)
@given(
    owners=st.lists(st.integers(0, 3), min_size=len(JOBS), max_size=len(JOBS)),
    away=st.integers(0, 3),
    away_rounds=st.integers(0, 2),
    delay_ms=st.sampled_from([0, 300]),
)
def test_whoever_is_back_gets_all_that_nobody_runs_and_the_group_is_level_in_the_end(
    owners: list[int], away: int, away_rounds: int, delay_ms: int
) -> None:
    """Whatever the others look like; the rounds in which it is away are within its delay."""
    members = [W1, W2, W3, W4]
    leader = Leader(" ".join(JOBS), Policy(max_delay_ms=delay_ms))
    back = MemberId("back")
    leader.instance_ids = {member: InstanceId(member) for member in members}
    leader.instance_ids[back] = InstanceId(members[away])
    runs = dict.fromkeys(members, NO_JOBS)
    for job, owner in zip(JOBS, owners, strict=True):
        runs[members[owner]] |= parse_jobs(job)
    outcome = leader.play(runs)
    runs = {member: one.whole for member, one in outcome.assignments.items()}
    had = runs.pop(members[away])
    for _ in range(away_rounds):
        outcome = leader.play(runs)
        runs = {member: one.whole for member, one in outcome.assignments.items()}
    elsewhere = Jobs.of(job for jobs in runs.values() for job in jobs)
    outcome = leader.play({**runs, back: NO_JOBS})
    assert had - elsewhere <= outcome.assignments[back].assigned
    if delay_ms:
        assert not had & elsewhere, "nobody was given them meanwhile"
    again = any(one.revoked for one in outcome.assignments.values()) or 0 < outcome.moves_in_ms <= AGAIN_MS
    runs = {member: one.whole for member, one in outcome.assignments.items()}
    loads = sorted(len(jobs.tasks) for jobs in runs.values())
    assert again or loads[-1] - loads[0] <= 1, "it is level, or a round for balance follows"
    settled, _, _ = leader.settle(runs, now_ms=AGAIN_MS)
    loads = sorted(len(jobs.tasks) for jobs in settled.values())
    assert loads[-1] - loads[0] <= 1
