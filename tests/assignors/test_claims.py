"""Rounds with static workers: K987's eight steps, and the rulings where it is silent."""

from collections.abc import Mapping

import pytest

from coterie.assignors.cooperative import RoundOutcome
from coterie.assignors.moves import Why
from coterie.lab.scenario.notation import parse_jobs
from coterie.nouns.ids import InstanceId, MemberId
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Jobs
from tests.assignors.leader import Leader

W1, W2, W3, S1, S2 = (MemberId(name) for name in ("W1", "W2", "W3", "S1", "S2"))
TEN = "AC0 AT0 AT1 AT2 BC0 BT0 BT1 CC0 CT0 CT1"
B0 = ConnectorTaskId(ConnectorName("B"), 0)


def runs(outcome: RoundOutcome) -> dict[MemberId, Jobs]:
    return {member: one.whole for member, one in outcome.assignments.items()}


def why(outcome: RoundOutcome, member: MemberId) -> Mapping[Why, Jobs]:
    return outcome.assignments[member].why


def settled_two(configured: str = TEN) -> tuple[Leader, Mapping[MemberId, Jobs]]:
    """Two wildcard workers that run everything."""
    leader = Leader(configured)
    members, _, _ = leader.settle({W1: NO_JOBS, W2: NO_JOBS})
    return leader, members


# -- the steps --------------------------------------------------------------------------------------------------------


def test_steps_3_and_6_a_claimed_job_leaves_a_wildcard_worker_and_then_goes_to_its_claimant() -> None:
    leader, members = settled_two()
    leader.claims[S1] = parse_jobs("BC0 BT0")
    first = leader.play({**members, S1: NO_JOBS})
    taken = {member: one.why[Why.CLAIM] for member, one in first.assignments.items() if Why.CLAIM in one.why}
    assert taken == {member: jobs & leader.claims[S1] for member, jobs in members.items() if jobs & leader.claims[S1]}
    assert not first.assignments[S1].assigned, "its former owner still runs it"
    settled, _, _ = leader.settle(runs(first))
    assert settled[S1] == leader.claims[S1]


def test_step_4_a_static_job_leaves_a_static_worker_that_does_not_claim_it() -> None:
    leader = Leader("AT0 AT1")
    leader.claims = {S1: parse_jobs("AT0"), S2: parse_jobs("AT1")}
    outcome = leader.round(S1="AT0 AT1", S2="")
    assert why(outcome, S1) == {Why.CLAIM: parse_jobs("AT1")}
    assert leader.settle(runs(outcome))[0] == {S1: parse_jobs("AT0"), S2: parse_jobs("AT1")}


def test_step_5_a_wildcard_job_leaves_a_static_worker() -> None:
    leader = Leader("AT0 AT1")
    leader.claims = {S1: parse_jobs("AT0")}
    outcome = leader.round(S1="AT0 AT1", W1="")
    assert why(outcome, S1) == {Why.CLAIM: parse_jobs("AT1")}
    assert leader.settle(runs(outcome))[0] == {S1: parse_jobs("AT0"), W1: parse_jobs("AT1")}


def test_steps_7_and_8_wildcard_jobs_are_level_over_the_wildcard_workers_alone() -> None:
    leader = Leader(TEN)
    leader.claims[S1] = parse_jobs("AC0 AT0 AT1 AT2")
    members = {W1: parse_jobs("AC0 AT0 BC0 BT0 CT0"), W2: parse_jobs("AT1 AT2 BT1 CC0 CT1")}
    settled, stopped, rounds = leader.settle({**members, S1: NO_JOBS})
    assert settled[S1] == leader.claims[S1]
    assert sorted(len(settled[member]) for member in (W1, W2)) == [3, 3]
    assert rounds == 2
    assert stopped == 4, "what is claimed moves, and what remains is level as it is"


def test_one_round_revokes_for_claims_and_balance_together() -> None:
    leader = Leader("AT0 AT1 AT2 AT3 AT4 AT5")
    leader.claims = {S1: parse_jobs("AT0 AT1")}
    outcome = leader.round(W1="AT2 AT3 AT4 AT5", W2="AT0 AT1", S1="")
    assert why(outcome, W1) == {Why.BALANCE: parse_jobs("AT4 AT5")}
    assert why(outcome, W2) == {Why.CLAIM: parse_jobs("AT0 AT1")}
    assert (outcome.optimum, outcome.bound) == (4, 4)
    assert leader.settle(runs(outcome))[2] == 1, "one more round gives it all"


# -- null against empty, absent jobs, overlapping claims --------------------------------------------------------------


def test_a_worker_that_claims_nothing_takes_nothing_and_one_without_claims_takes_anything() -> None:
    leader = Leader(TEN)
    leader.claims[S1] = NO_JOBS
    settled, _, _ = leader.settle({W1: NO_JOBS, S1: NO_JOBS})
    assert settled == {W1: parse_jobs(TEN), S1: NO_JOBS}


def test_claims_on_jobs_that_do_not_exist_mean_nothing_until_they_do() -> None:
    leader, members = settled_two()
    leader.claims[S1] = parse_jobs("DC0 DT7 BT0")
    settled, _, _ = leader.settle({**members, S1: NO_JOBS})
    assert settled[S1] == parse_jobs("BT0")
    leader.configured |= parse_jobs("DC0 DT7")
    outcome = leader.play(settled)
    assert outcome.assignments[S1].assigned == parse_jobs("DC0 DT7")
    assert not any(one.revoked for one in outcome.assignments.values())


def test_d12_a_job_can_be_tied_to_a_worker_and_tasks_without_their_connector() -> None:
    leader, members = settled_two()
    leader.claims[S1] = parse_jobs("BT0 BT1")
    settled, _, _ = leader.settle({**members, S1: NO_JOBS})
    assert settled[S1] == parse_jobs("BT0 BT1")
    assert ConnectorName("B") in settled[W1] | settled[W2]


def test_a_job_stays_with_a_valid_claimant_however_loaded_it_is() -> None:
    leader = Leader("AT0 AT1 AT2 AT3")
    leader.claims = {S1: leader.configured, S2: leader.configured}
    outcome = leader.round(S1="AT0 AT1 AT2 AT3", S2="")
    assert not any(one.revoked for one in outcome.assignments.values())


def test_of_several_claimants_the_least_loaded_takes_it_and_of_equals_the_first_by_name() -> None:
    leader = Leader("AT0 AT1 AT2 AT3")
    leader.claims = {S1: parse_jobs("AT0 AT1 AT2 AT3"), S2: parse_jobs("AT1 AT2 AT3")}
    outcome = leader.round(S1="AT0", S2="")
    assert runs(outcome) == {S1: parse_jobs("AT0 AT2"), S2: parse_jobs("AT1 AT3")}


def test_of_two_that_run_a_claimed_job_its_claimant_goes_on() -> None:
    leader = Leader("AT0")
    leader.round(W1="AT0")
    leader.claims[S1] = parse_jobs("AT0")
    outcome = leader.round(W1="AT0", S1="AT0")
    assert why(outcome, W1) == {Why.DUPLICATE: parse_jobs("AT0")}
    assert not why(outcome, S1)


# -- before, while and after ------------------------------------------------------------------------------------------


def test_a_connector_may_be_created_before_its_static_workers_come() -> None:
    leader, members = settled_two("AC0 AT0")
    leader.configured |= parse_jobs("BC0 BT0")
    members = leader.settle(members)[0]
    assert parse_jobs("BC0 BT0") <= members[W1] | members[W2]
    leader.claims[S1] = parse_jobs("BC0 BT0")
    settled, stopped, _ = leader.settle({**members, S1: NO_JOBS})
    assert settled[S1] == parse_jobs("BC0 BT0")
    assert stopped == 2


def test_a_connector_may_be_created_while_its_static_workers_come() -> None:
    leader, members = settled_two("AC0 AT0")
    leader.claims = {S1: parse_jobs("BC0"), S2: parse_jobs("BT0")}
    members = leader.settle({**members, S1: NO_JOBS})[0]
    leader.configured |= parse_jobs("BC0 BT0")
    settled, stopped, _ = leader.settle({**members, S2: NO_JOBS})
    assert (settled[S1], settled[S2]) == (parse_jobs("BC0"), parse_jobs("BT0"))
    assert not stopped


def test_a_connector_may_be_created_after_its_static_workers_have_come() -> None:
    leader, members = settled_two("AC0 AT0")
    leader.claims[S1] = parse_jobs("BC0 BT0")
    members = leader.settle({**members, S1: NO_JOBS})[0]
    leader.configured |= parse_jobs("BC0 BT0")
    settled, stopped, rounds = leader.settle(members)
    assert settled[S1] == parse_jobs("BC0 BT0")
    assert (stopped, rounds) == (0, 1)


# -- a claimant dies --------------------------------------------------------------------------------------------------


def test_a_dead_claimants_jobs_wait_then_another_claimant_takes_them() -> None:
    leader = Leader("AT0 AT1 BT0")
    leader.claims = {S1: parse_jobs("BT0"), S2: parse_jobs("BT0")}
    leader.round(W1="AT0 AT1", S1="BT0", S2="")
    outcome = leader.round(1_000, W1="AT0 AT1", S2="")
    assert outcome.delay_ms == 300
    assert not any(one.assigned for one in outcome.assignments.values())
    assert "waits 300 ms" in outcome.unassigned[B0]
    assert leader.round(1_300, W1="AT0 AT1", S2="").assignments[S2].assigned == parse_jobs("BT0")


def test_without_another_claimant_they_migrate_back_to_the_wildcard_workers() -> None:
    leader = Leader("AT0 AT1 BT0")
    leader.claims = {S1: parse_jobs("BT0")}
    leader.round(W1="AT0", W2="AT1", S1="BT0")
    assert leader.round(1_000, W1="AT0", W2="AT1").delay_ms == 300
    outcome = leader.round(1_300, W1="AT0", W2="AT1")
    assert outcome.assignments[W1].assigned == parse_jobs("BT0")
    leader.round(2_000, W1="AT0 BT0", W2="AT1", S1="")
    outcome = leader.round(2_000, W1="AT0", W2="AT1", S1="")
    assert outcome.assignments[S1].assigned == parse_jobs("BT0"), "and forth again"


def test_without_anybody_they_are_unassigned_and_the_reason_is_told() -> None:
    leader = Leader("AT0 BT0")
    leader.claims = {S1: parse_jobs("AT0"), S2: parse_jobs("BT0")}
    leader.round(S1="AT0", S2="BT0")
    leader.round(1_000, S1="AT0")
    outcome = leader.round(1_300, S1="AT0")
    assert outcome.unassigned == {
        B0: "no worker claims it, and every worker that is not draining runs only the jobs that it claims"
    }
    assert outcome.delay_ms == 0
    assert leader.round(1_400, S1="AT0").unassigned == outcome.unassigned, "a lawful state, and no lost job"
    outcome = leader.round(9_000, S1="AT0", S2="")
    assert outcome.assignments[S2].assigned == parse_jobs("BT0")


def test_a_wildcard_job_on_the_last_static_worker_stops_rather_than_break_its_claim() -> None:
    """K987's step 5 knows no exception: a worker takes only what it names."""
    leader = Leader("AT0 BT0")
    leader.claims = {S1: parse_jobs("AT0")}
    outcome = leader.round(S1="AT0 BT0")
    assert why(outcome, S1) == {Why.CLAIM: parse_jobs("BT0")}
    assert set(leader.play(runs(outcome)).unassigned) == {B0}


def test_a_worker_that_claims_what_waits_is_a_candidate_like_others_and_waits() -> None:
    leader = Leader("AT0 BT0")
    leader.claims = {S1: parse_jobs("BT0"), S2: parse_jobs("BT0")}
    leader.round(W1="AT0", S1="BT0")
    leader.round(1_000, W1="AT0")
    outcome = leader.round(1_100, W1="AT0", S2="")
    assert outcome.delay_ms == 200
    assert not outcome.assignments[S2].assigned
    assert leader.round(1_300, W1="AT0", S2="").assignments[S2].assigned == parse_jobs("BT0")


def test_claims_move_jobs_while_a_delay_runs_and_balance_does_not() -> None:
    leader = Leader("AT0 AT1 AT2 AT3 BT0")
    leader.round(W1="AT0 AT1 AT2 AT3", W2="", W3="BT0")
    leader.claims = {S1: parse_jobs("AT0")}
    outcome = leader.round(1_000, W1="AT0 AT1 AT2 AT3", W2="", S1="")
    assert outcome.delay_ms == 300
    assert why(outcome, W1) == {Why.CLAIM: parse_jobs("AT0")}
    outcome = leader.round(1_010, W1="AT1 AT2 AT3", W2="", S1="")
    assert outcome.assignments[S1].assigned == parse_jobs("AT0"), "it was given back, not lost"
    assert not why(outcome, W1)


def test_a_static_worker_with_an_instance_id_gets_back_what_it_still_may_run() -> None:
    leader = Leader("AT0 AT1 AT2")
    leader.instance_ids = {S1: InstanceId("one"), S2: InstanceId("one")}
    leader.claims = {S1: parse_jobs("AT0 AT1"), S2: parse_jobs("AT1")}
    leader.round(W1="AT2", S1="AT0 AT1")
    leader.round(1_000, W1="AT2")
    outcome = leader.round(1_100, W1="AT2", S2="")
    assert outcome.assignments[S2].assigned == parse_jobs("AT1")
    assert outcome.assignments[W1].assigned == parse_jobs("AT0"), "whoever it waited for is back and claims it no more"
    assert outcome.delay_ms == 0


@pytest.mark.parametrize("claims", ["", "XC0 XT0 YT7"])
def test_a_worker_that_claims_nothing_that_exists_changes_nothing_for_the_others(claims: str) -> None:
    with_it, without_it = Leader(TEN), Leader(TEN)
    with_it.claims[S1] = parse_jobs(claims)
    members: Mapping[MemberId, Jobs] = {W1: parse_jobs("AC0 AT0 AT1 AT2 BC0"), W2: parse_jobs("BT0 BT1"), W3: NO_JOBS}
    for now_ms in (0, 10, 20):
        theirs = without_it.play(members, now_ms)
        ours = with_it.play({**members, S1: NO_JOBS}, now_ms)
        assert {m: one for m, one in ours.assignments.items() if m != S1} == theirs.assignments
        members = runs(theirs)
