"""Rebalances with static workers: KIP-987's eight steps, and the cases that it does not define."""

from collections.abc import Mapping

import pytest

from coterie.assignors.cooperative import RoundOutcome
from coterie.assignors.moves import RevocationReason
from coterie.lab.scenario.notation import parse_jobs
from coterie.nouns.ids import InstanceId, MemberId
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Jobs
from tests.assignors.leader import Leader

W1, W2, W3, S1, S2 = (MemberId(name) for name in ("W1", "W2", "W3", "S1", "S2"))
TEN = "AC0 AT0 AT1 AT2 BC0 BT0 BT1 CC0 CT0 CT1"
B0 = ConnectorTaskId(ConnectorName("B"), 0)


def owned_by_member(outcome: RoundOutcome) -> dict[MemberId, Jobs]:
    return {member: assignment.owned_after for member, assignment in outcome.assignments.items()}


def revocations(outcome: RoundOutcome, member: MemberId) -> Mapping[RevocationReason, Jobs]:
    return outcome.assignments[member].revoked_by_reason


def leader_with_two_workers(configured: str = TEN) -> tuple[Leader, Mapping[MemberId, Jobs]]:
    """Two wildcard workers that run everything."""
    leader = Leader(configured)
    members, _, _ = leader.run_until_settled({W1: NO_JOBS, W2: NO_JOBS})
    return leader, members


# -- the eight steps --------------------------------------------------------------------------------------------------


def test_steps_3_and_6_a_claimed_job_leaves_a_wildcard_worker_and_then_goes_to_its_claimant() -> None:
    leader, members = leader_with_two_workers()
    leader.claims[S1] = parse_jobs("BC0 BT0")
    first = leader.compute_round({**members, S1: NO_JOBS})
    taken = {
        member: assignment.revoked_by_reason[RevocationReason.CLAIM]
        for member, assignment in first.assignments.items()
        if RevocationReason.CLAIM in assignment.revoked_by_reason
    }
    assert taken == {member: jobs & leader.claims[S1] for member, jobs in members.items() if jobs & leader.claims[S1]}
    assert not first.assignments[S1].assigned, "its former owner still runs it"
    settled, _, _ = leader.run_until_settled(owned_by_member(first))
    assert settled[S1] == leader.claims[S1]


def test_step_4_a_static_job_leaves_a_static_worker_that_does_not_claim_it() -> None:
    leader = Leader("AT0 AT1")
    leader.claims = {S1: parse_jobs("AT0"), S2: parse_jobs("AT1")}
    outcome = leader.round(S1="AT0 AT1", S2="")
    assert revocations(outcome, S1) == {RevocationReason.CLAIM: parse_jobs("AT1")}
    assert leader.run_until_settled(owned_by_member(outcome))[0] == {S1: parse_jobs("AT0"), S2: parse_jobs("AT1")}


def test_step_5_a_wildcard_job_leaves_a_static_worker() -> None:
    leader = Leader("AT0 AT1")
    leader.claims = {S1: parse_jobs("AT0")}
    outcome = leader.round(S1="AT0 AT1", W1="")
    assert revocations(outcome, S1) == {RevocationReason.CLAIM: parse_jobs("AT1")}
    assert leader.run_until_settled(owned_by_member(outcome))[0] == {S1: parse_jobs("AT0"), W1: parse_jobs("AT1")}


def test_steps_7_and_8_wildcard_jobs_are_balanced_over_the_wildcard_workers_only() -> None:
    leader = Leader(TEN)
    leader.claims[S1] = parse_jobs("AC0 AT0 AT1 AT2")
    members = {W1: parse_jobs("AC0 AT0 BC0 BT0 CT0"), W2: parse_jobs("AT1 AT2 BT1 CC0 CT1")}
    settled, stopped, rounds = leader.run_until_settled({**members, S1: NO_JOBS})
    assert settled[S1] == leader.claims[S1]
    assert sorted(len(settled[member]) for member in (W1, W2)) == [3, 3]
    assert rounds == 2
    assert stopped == 4, "only the claimed jobs move: the others are already balanced"


def test_one_rebalance_revokes_for_claims_and_balance_together() -> None:
    leader = Leader("AT0 AT1 AT2 AT3 AT4 AT5")
    leader.claims = {S1: parse_jobs("AT0 AT1")}
    outcome = leader.round(W1="AT2 AT3 AT4 AT5", W2="AT0 AT1", S1="")
    assert revocations(outcome, W1) == {RevocationReason.BALANCE: parse_jobs("AT4 AT5")}
    assert revocations(outcome, W2) == {RevocationReason.CLAIM: parse_jobs("AT0 AT1")}
    assert (outcome.move_count_to_target, outcome.move_count_lower_bound) == (4, 4)
    assert leader.run_until_settled(owned_by_member(outcome))[2] == 1, "one more rebalance assigns all jobs"


# -- no claim and an empty claim, absent jobs, overlapping claims -----------------------------------------------------


def test_a_worker_with_an_empty_claim_takes_nothing_and_one_without_claims_takes_anything() -> None:
    leader = Leader(TEN)
    leader.claims[S1] = NO_JOBS
    settled, _, _ = leader.run_until_settled({W1: NO_JOBS, S1: NO_JOBS})
    assert settled == {W1: parse_jobs(TEN), S1: NO_JOBS}


def test_claims_on_jobs_that_do_not_exist_have_no_effect_until_the_jobs_are_created() -> None:
    leader, members = leader_with_two_workers()
    leader.claims[S1] = parse_jobs("DC0 DT7 BT0")
    settled, _, _ = leader.run_until_settled({**members, S1: NO_JOBS})
    assert settled[S1] == parse_jobs("BT0")
    leader.configured |= parse_jobs("DC0 DT7")
    outcome = leader.compute_round(settled)
    assert outcome.assignments[S1].assigned == parse_jobs("DC0 DT7")
    assert not any(assignment.revoked for assignment in outcome.assignments.values())


def test_d12_a_job_can_be_tied_to_a_worker_and_tasks_without_their_connector() -> None:
    leader, members = leader_with_two_workers()
    leader.claims[S1] = parse_jobs("BT0 BT1")
    settled, _, _ = leader.run_until_settled({**members, S1: NO_JOBS})
    assert settled[S1] == parse_jobs("BT0 BT1")
    assert ConnectorName("B") in settled[W1] | settled[W2]


def test_a_job_stays_with_a_valid_claimant_at_any_load() -> None:
    leader = Leader("AT0 AT1 AT2 AT3")
    leader.claims = {S1: leader.configured, S2: leader.configured}
    outcome = leader.round(S1="AT0 AT1 AT2 AT3", S2="")
    assert not any(assignment.revoked for assignment in outcome.assignments.values())


def test_of_several_claimants_the_least_loaded_takes_a_job_and_of_equals_the_first_by_name() -> None:
    leader = Leader("AT0 AT1 AT2 AT3")
    leader.claims = {S1: parse_jobs("AT0 AT1 AT2 AT3"), S2: parse_jobs("AT1 AT2 AT3")}
    outcome = leader.round(S1="AT0", S2="")
    assert owned_by_member(outcome) == {S1: parse_jobs("AT0 AT2"), S2: parse_jobs("AT1 AT3")}


def test_of_two_workers_that_run_a_claimed_job_the_claimant_keeps_it() -> None:
    leader = Leader("AT0")
    leader.round(W1="AT0")
    leader.claims[S1] = parse_jobs("AT0")
    outcome = leader.round(W1="AT0", S1="AT0")
    assert revocations(outcome, W1) == {RevocationReason.DUPLICATE: parse_jobs("AT0")}
    assert not revocations(outcome, S1)


# -- a connector created before, while and after its static workers join ----------------------------------------------


def test_a_connector_may_be_created_before_its_static_workers_join() -> None:
    leader, members = leader_with_two_workers("AC0 AT0")
    leader.configured |= parse_jobs("BC0 BT0")
    members = leader.run_until_settled(members)[0]
    assert parse_jobs("BC0 BT0") <= members[W1] | members[W2]
    leader.claims[S1] = parse_jobs("BC0 BT0")
    settled, stopped, _ = leader.run_until_settled({**members, S1: NO_JOBS})
    assert settled[S1] == parse_jobs("BC0 BT0")
    assert stopped == 2


def test_a_connector_may_be_created_while_its_static_workers_join() -> None:
    leader, members = leader_with_two_workers("AC0 AT0")
    leader.claims = {S1: parse_jobs("BC0"), S2: parse_jobs("BT0")}
    members = leader.run_until_settled({**members, S1: NO_JOBS})[0]
    leader.configured |= parse_jobs("BC0 BT0")
    settled, stopped, _ = leader.run_until_settled({**members, S2: NO_JOBS})
    assert (settled[S1], settled[S2]) == (parse_jobs("BC0"), parse_jobs("BT0"))
    assert not stopped


def test_a_connector_may_be_created_after_its_static_workers_joined() -> None:
    leader, members = leader_with_two_workers("AC0 AT0")
    leader.claims[S1] = parse_jobs("BC0 BT0")
    members = leader.run_until_settled({**members, S1: NO_JOBS})[0]
    leader.configured |= parse_jobs("BC0 BT0")
    settled, stopped, rounds = leader.run_until_settled(members)
    assert settled[S1] == parse_jobs("BC0 BT0")
    assert (stopped, rounds) == (0, 1)


# -- a claimant is lost -----------------------------------------------------------------------------------------------


def test_the_jobs_of_a_lost_claimant_are_deferred_and_then_assigned_to_another_claimant() -> None:
    leader = Leader("AT0 AT1 BT0")
    leader.claims = {S1: parse_jobs("BT0"), S2: parse_jobs("BT0")}
    leader.round(W1="AT0 AT1", S1="BT0", S2="")
    outcome = leader.round(1_000, W1="AT0 AT1", S2="")
    assert outcome.delay_ms == 300
    assert not any(assignment.assigned for assignment in outcome.assignments.values())
    assert "waits 300 ms" in outcome.reason_by_unassigned_job[B0]
    assert leader.round(1_300, W1="AT0 AT1", S2="").assignments[S2].assigned == parse_jobs("BT0")


def test_without_another_claimant_the_jobs_return_to_the_wildcard_workers() -> None:
    leader = Leader("AT0 AT1 BT0")
    leader.claims = {S1: parse_jobs("BT0")}
    leader.round(W1="AT0", W2="AT1", S1="BT0")
    assert leader.round(1_000, W1="AT0", W2="AT1").delay_ms == 300
    outcome = leader.round(1_300, W1="AT0", W2="AT1")
    assert outcome.assignments[W1].assigned == parse_jobs("BT0")
    leader.round(2_000, W1="AT0 BT0", W2="AT1", S1="")
    outcome = leader.round(2_000, W1="AT0", W2="AT1", S1="")
    assert outcome.assignments[S1].assigned == parse_jobs("BT0"), "and to the claimant again"


def test_without_any_eligible_worker_the_jobs_are_unassigned_with_a_reason() -> None:
    leader = Leader("AT0 BT0")
    leader.claims = {S1: parse_jobs("AT0"), S2: parse_jobs("BT0")}
    leader.round(S1="AT0", S2="BT0")
    leader.round(1_000, S1="AT0")
    outcome = leader.round(1_300, S1="AT0")
    assert outcome.reason_by_unassigned_job == {
        B0: "no worker claims it, and every worker that is not draining runs only the jobs that it claims"
    }
    assert outcome.delay_ms == 0
    assert leader.round(1_400, S1="AT0").reason_by_unassigned_job == outcome.reason_by_unassigned_job, (
        "an allowed state: the job is not lost"
    )
    outcome = leader.round(9_000, S1="AT0", S2="")
    assert outcome.assignments[S2].assigned == parse_jobs("BT0")


def test_a_wildcard_job_on_the_last_static_worker_stops_even_if_no_other_worker_may_run_it() -> None:
    """KIP-987's step 5 has no exception: a static worker runs only the jobs that it claims."""
    leader = Leader("AT0 BT0")
    leader.claims = {S1: parse_jobs("AT0")}
    outcome = leader.round(S1="AT0 BT0")
    assert revocations(outcome, S1) == {RevocationReason.CLAIM: parse_jobs("BT0")}
    assert set(leader.compute_round(owned_by_member(outcome)).reason_by_unassigned_job) == {B0}


def test_a_worker_that_claims_a_deferred_job_gets_it_only_after_the_delay() -> None:
    leader = Leader("AT0 BT0")
    leader.claims = {S1: parse_jobs("BT0"), S2: parse_jobs("BT0")}
    leader.round(W1="AT0", S1="BT0")
    leader.round(1_000, W1="AT0")
    outcome = leader.round(1_100, W1="AT0", S2="")
    assert outcome.delay_ms == 200
    assert not outcome.assignments[S2].assigned
    assert leader.round(1_300, W1="AT0", S2="").assignments[S2].assigned == parse_jobs("BT0")


def test_during_a_delay_claims_move_jobs_and_balance_does_not() -> None:
    leader = Leader("AT0 AT1 AT2 AT3 BT0")
    leader.round(W1="AT0 AT1", W2="AT2 AT3", W3="BT0")
    leader.claims = {S1: parse_jobs("AT0")}
    outcome = leader.round(1_000, W1="AT0 AT1", W2="AT2 AT3", W4="", W5="", S1="")
    assert outcome.delay_ms == 300
    assert revocations(outcome, W1) == {RevocationReason.CLAIM: parse_jobs("AT0")}
    outcome = leader.round(1_010, W1="AT1", W2="AT2 AT3", W4="", W5="", S1="")
    assert outcome.assignments[S1].assigned == parse_jobs("AT0"), "it was revoked, not lost"
    assert not revocations(outcome, W2)


def test_a_returning_static_worker_gets_back_only_the_jobs_that_it_still_claims() -> None:
    leader = Leader("AT0 AT1 AT2")
    leader.instance_ids = {S1: InstanceId("one"), S2: InstanceId("one")}
    leader.claims = {S1: parse_jobs("AT0 AT1"), S2: parse_jobs("AT1")}
    leader.round(W1="AT2", S1="AT0 AT1")
    leader.round(1_000, W1="AT2")
    outcome = leader.round(1_100, W1="AT2", S2="")
    assert outcome.assignments[S2].assigned == parse_jobs("AT1")
    assert outcome.assignments[W1].assigned == parse_jobs("AT0"), (
        "its deferral ended: the returned member no longer claims it"
    )
    assert outcome.delay_ms == 0


@pytest.mark.parametrize("claims", ["", "XC0 XT0 YT7"])
def test_a_worker_that_claims_no_existing_job_changes_nothing_for_the_others(claims: str) -> None:
    with_it, without_it = Leader(TEN), Leader(TEN)
    with_it.claims[S1] = parse_jobs(claims)
    members: Mapping[MemberId, Jobs] = {W1: parse_jobs("AC0 AT0 AT1 AT2 BC0"), W2: parse_jobs("BT0 BT1"), W3: NO_JOBS}
    for now_ms in (0, 10, 20):
        outcome_without = without_it.compute_round(members, now_ms)
        outcome_with = with_it.compute_round({**members, S1: NO_JOBS}, now_ms)
        assert {
            m: assignment for m, assignment in outcome_with.assignments.items() if m != S1
        } == outcome_without.assignments
        members = owned_by_member(outcome_without)
