"""The assignor of connect groups: KIP-415's stories, claims, drains, members that are away, limited moves."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from coterie.assignors.connect.cooperative import POSTPONED_MOVES_INTERVAL_MIN_MS, CooperativeAssignor
from coterie.assignors.connect.interface import AssignorMetadata, ConnectAssignor
from coterie.assignors.connect.placement import swap_toward_present_targets
from coterie.assignors.connect.waiting import BRIEFLY_LEFT_CHECK_INTERVAL_MS
from coterie.assignors.members import RebalancePolicy
from coterie.lab.scenario.notation import parse_jobs
from coterie.nouns.ids import MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Jobs
from coterie.nouns.target_assignments import SnapshotDeparted, TargetOfMember
from tests.assignors.connect.fleet import DELAY_MS, Fleet, member

FIVE = parse_jobs("AC0 AT1 AT2 BC0 BT1")
W1, W2, W3 = (MemberId(name) for name in ("W1", "W2", "W3"))


def fleet_of_three(*, instance_ids: bool = False, policy: RebalancePolicy | None = None) -> Fleet:
    """KIP-415's usual start: three workers that run five jobs."""
    fleet = Fleet(FIVE, policy)
    for name in ("W1", "W2", "W3"):
        fleet.join(name, instance_id=f"i-{name}" if instance_ids else None)
    fleet.settle()
    assert sorted(map(len, fleet.owned().values())) == [1, 2, 2]
    return fleet


def running(fleet: Fleet, *, but: str = "") -> dict[str, Jobs]:
    return {name: jobs for name, jobs in fleet.owned().items() if name != but}


# -- KIP-415's stories ------------------------------------------------------------------------------------------------


def test_first_new_member_joins() -> None:
    fleet = Fleet(FIVE)
    fleet.join("W1")
    assert fleet.settle() == {"W1": FIVE}
    assert fleet.last is not None
    assert fleet.last.next_in_ms is None


def test_non_first_new_member_joins() -> None:
    fleet = Fleet(FIVE)
    fleet.join("W1")
    fleet.settle()
    fleet.join("W2")
    fleet.join("W3")
    target = fleet.compute()
    assert sorted(len(one.jobs) for one in target.members.values()) == [1, 2, 2]
    assert target.members[W1].jobs <= FIVE
    fleet.reconcile()
    assert fleet.stopped == 3


@pytest.mark.parametrize("gone", ["W1", "W2", "W3"])
def test_worker_leaves(gone: str) -> None:
    """Its jobs wait for the delay and nothing else moves; then they go to the others, and nothing is stopped."""
    fleet = fleet_of_three()
    lost, others = fleet.owned()[gone], running(fleet, but=gone)
    fleet.lose(gone)
    assert fleet.settle() == others
    assert fleet.last is not None
    assert fleet.last.deferred[MemberId(gone)].jobs == lost
    assert fleet.last.deferred[MemberId(gone)].delay_ms == DELAY_MS
    assert fleet.settle(after_ms=DELAY_MS - 1) == others
    assert fleet.last.deferred[MemberId(gone)].delay_ms == 1
    after = fleet.settle(after_ms=1)
    assert fleet.stopped == 0
    assert all(others[name] <= jobs for name, jobs in after.items())
    assert Jobs.of(job for jobs in after.values() for job in jobs) == FIVE


@pytest.mark.parametrize("gone", ["W1", "W2", "W3"])
@pytest.mark.parametrize("identity", ["member id", "instance id", "url"])
def test_worker_bounces(gone: str, identity: str) -> None:
    """It gets exactly its jobs back, before the delay ends, and nothing is stopped."""
    fleet = fleet_of_three(instance_ids=identity == "instance id")
    before = fleet.owned()
    fleet.lose(gone)
    fleet.settle()
    match identity:
        case "member id":
            fleet.join(gone)
        case "instance id":
            fleet.join("back", instance_id=f"i-{gone}")
        case _:
            fleet.join("back", url=f"http://{gone}")
    after = fleet.settle(after_ms=100)
    assert fleet.last is not None
    assert not fleet.last.deferred
    assert {after["back" if name == "back" else name] for name in after} == set(before.values())
    assert after.get("back", after.get(gone)) == before[gone]
    assert fleet.stopped == 0


def test_a_bounced_worker_that_cannot_be_recognized_is_a_candidate_and_waits() -> None:
    fleet = fleet_of_three()
    before = fleet.owned()
    fleet.lose("W2")
    fleet.settle()
    fleet.join("new")
    assert fleet.settle(after_ms=100)["new"] == NO_JOBS
    after = fleet.settle(after_ms=DELAY_MS - 100)
    assert len(after["new"]) == len(before["W2"])
    assert after["new"] == before["W2"]
    assert fleet.stopped == 0


def test_leader_leaves_and_leader_bounces_are_as_for_any_other_member() -> None:
    """The delay is the coordinator's, so a new computing member continues it."""
    fleet = fleet_of_three()
    others = running(fleet, but="W1")
    fleet.lose("W1")
    fleet.settle()
    fleet.assignor = CooperativeAssignor(RebalancePolicy(max_delay_ms=DELAY_MS))  # another worker's
    fleet.join("back", url="http://W1")
    after = fleet.settle(after_ms=10)
    assert {**others, "back": after["back"]} == after
    assert fleet.stopped == 0


def test_candidates_receive_jobs_in_the_order_of_joining_each_at_most_its_fair_share() -> None:
    fleet = Fleet(parse_jobs("AT0 AT1 AT2 AT3 AT4 AT5 AT6 AT7"))
    for name in ("W1", "W2", "W3"):
        fleet.join(name)
    first = fleet.settle()
    fleet.lose("W2")
    fleet.lose("W3")
    fleet.settle()
    fleet.join("W9")
    fleet.join("W8")
    fleet.settle(after_ms=10)
    after = fleet.settle(after_ms=DELAY_MS)
    assert after["W1"] == first["W1"]
    assert {name: len(jobs) for name, jobs in after.items()} == {"W1": 3, "W9": 3, "W8": 2}


def test_during_a_delay_nothing_moves_for_balance_but_new_jobs_are_assigned() -> None:
    fleet = Fleet(parse_jobs("AC0 AT0 AT1 AT2 AT3"))
    fleet.join("W1")
    fleet.join("W2")
    before = fleet.settle()
    fleet.lose("W2")
    fleet.join("W3")
    fleet.configured |= parse_jobs("BC0 BT0")
    after = fleet.settle()
    assert before["W1"] <= after["W1"]
    assert (after["W1"] | after["W3"]) - before["W1"] == parse_jobs("BC0 BT0")
    assert ConnectorName("B") in after["W3"]
    assert fleet.stopped == 0
    fleet.settle(after_ms=DELAY_MS)
    assert sorted(map(len, fleet.owned().values())) == [3, 4]


def test_a_delay_of_zero_defers_nothing_and_the_groups_delay_replaces_the_assignors() -> None:
    fleet = fleet_of_three()
    lost = fleet.owned()["W2"]
    fleet.lose("W2")
    snapshot = fleet.snapshot()
    assert not fleet.assignor.assign(replace(snapshot, max_delay_ms=0)).deferred
    for limit_ms, left_ms, delay_ms in ((7, None, 7), (7, 5, 5), (7, 9, 7), (None, 9, 9), (None, None, DELAY_MS)):
        departed = replace(snapshot.departed[0], delay_left_ms=left_ms)
        target = fleet.assignor.assign(replace(snapshot, departed=(departed,), max_delay_ms=limit_ms))
        assert target.deferred[W2].delay_ms == delay_ms
        assert target.deferred[W2].jobs == lost


def test_each_departed_member_has_its_own_delay() -> None:
    fleet = fleet_of_three()
    fleet.lose("W2")
    fleet.settle()
    fleet.lose("W3")
    fleet.settle(after_ms=100)
    assert fleet.last is not None
    assert {name: one.delay_ms for name, one in fleet.last.deferred.items()} == {W2: 200, W3: 300}


def test_a_deleted_job_vanishes_wherever_it_is() -> None:
    fleet = fleet_of_three()
    fleet.lose("W2")
    fleet.settle()
    fleet.configured = parse_jobs("AC0")
    fleet.members[W1] = replace(fleet.members[W1], pending=parse_jobs("BT1"))
    target = fleet.compute()
    everywhere = [one.jobs for one in target.members.values()] + [one.jobs for one in target.deferred.values()]
    assert Jobs.of(job for jobs in everywhere for job in jobs) == parse_jobs("AC0")


def test_a_member_that_departed_while_its_jobs_may_still_run_is_recognized_by_the_assignor() -> None:
    """The coordinator does not give such a member its former jobs until they have stopped; the target does."""
    fleet = fleet_of_three()
    lost = fleet.owned()["W2"]
    fleet.lose("W2")
    fleet.members[MemberId("back")] = replace(member("back", epoch=0), url=WorkerUrl("http://W2"))
    assert fleet.settle()["back"] == lost
    assert fleet.stopped == 0


def test_no_member_is_recognized_by_an_empty_url() -> None:
    fleet = fleet_of_three()
    gone = SnapshotDeparted(member_id=MemberId("gone"), url=WorkerUrl(""), jobs=parse_jobs("CT0"), delay_left_ms=None)
    fleet.change("W1", url=WorkerUrl(""))
    fleet.configured |= parse_jobs("CT0")
    target = fleet.assignor.assign(replace(fleet.snapshot(), departed=(gone,)))
    assert target.deferred[MemberId("gone")].jobs == parse_jobs("CT0")


# -- members that join again or are away ------------------------------------------------------------------------------


def test_a_member_that_joins_again_gets_its_own_jobs_without_a_delay() -> None:
    fleet = fleet_of_three()
    before = fleet.owned()
    fleet.rejoin("W2")
    assert fleet.settle() == before
    assert fleet.stopped == 0


def test_during_a_delay_a_member_that_joins_again_gets_its_own_jobs_though_they_are_many() -> None:
    fleet = Fleet(parse_jobs("AT0 AT1 AT2 AT3 BT0"))
    fleet.members = {
        W1: member("W1", parse_jobs("AT0")),
        W2: member("W2", parse_jobs("AT1 AT2 AT3")),
        W3: member("W3", parse_jobs("BT0")),
    }
    fleet.lose("W3")
    fleet.rejoin("W2")
    fleet.configured |= parse_jobs("CT0")
    assert fleet.settle()["W2"] == parse_jobs("AT1 AT2 AT3")


def test_a_static_member_that_is_away_keeps_its_target_and_receives_nothing() -> None:
    fleet = fleet_of_three(instance_ids=True)
    before = fleet.owned()
    fleet.leave_briefly("W2")
    fleet.configured |= parse_jobs("CC0 CT0 CT1 CT2")
    target = fleet.compute()
    assert target.members[W2].jobs == before["W2"]
    assert parse_jobs("CC0 CT0 CT1 CT2") <= target.members[W1].jobs | target.members[W3].jobs
    fleet.rejoin("W2")
    fleet.settle()
    assert sorted(map(len, fleet.owned().values())) == [3, 3, 3]


def test_while_a_member_is_away_nothing_moves_for_balance_and_another_computation_follows() -> None:
    fleet = fleet_of_three(instance_ids=True)
    before = fleet.owned()
    fleet.leave_briefly("W2")
    assert fleet.compute().next_in_ms is None, "all is as it would be with the member"
    fleet.configured |= parse_jobs("CT0 CT1 CT2 CT3")
    fleet.settle()
    fleet.join("W4")
    target = fleet.compute()
    assert target.members[W2].jobs == before["W2"]
    assert target.members[MemberId("W4")].jobs == NO_JOBS
    assert target.next_in_ms == BRIEFLY_LEFT_CHECK_INTERVAL_MS
    fleet.rejoin("W2")
    fleet.settle()
    assert sorted(map(len, fleet.owned().values())) == [2, 2, 2, 3]
    assert fleet.compute().next_in_ms is None


def test_a_job_that_only_an_away_member_claims_waits_for_it_and_a_running_one_goes_on() -> None:
    fleet = Fleet(parse_jobs("AT0 AT1 BT0"))
    fleet.join("W1")
    fleet.settle()
    fleet.join("S1", claims=parse_jobs("BT0 CT0"), instance_id="s")
    fleet.leave_briefly("S1")
    fleet.configured |= parse_jobs("CT0")
    target = fleet.compute()
    assert target.members[W1].jobs == parse_jobs("AT0 AT1 BT0"), "stopping BT0 would help no worker"
    assert [(one.jobs, one.reason) for one in target.unplaceable] == [
        (parse_jobs("CT0"), "each worker that may run it has left for a short time (S1)")
    ]
    assert target.next_in_ms == BRIEFLY_LEFT_CHECK_INTERVAL_MS
    fleet.rejoin("S1")
    assert fleet.settle() == {"W1": parse_jobs("AT0 AT1"), "S1": parse_jobs("BT0 CT0")}


def test_a_worker_whose_new_claims_forbid_a_job_gives_it_back_also_if_its_only_claimant_is_away() -> None:
    fleet = Fleet(parse_jobs("AT0 BT0"))
    fleet.join("S1", claims=parse_jobs("AT0 BT0"))
    fleet.settle()
    fleet.join("S2", claims=parse_jobs("BT0"), instance_id="s")
    fleet.leave_briefly("S2")
    fleet.change("S1", claims=parse_jobs("AT0"))
    target = fleet.compute()
    assert target.members[MemberId("S1")].jobs == parse_jobs("AT0")
    assert [one.jobs for one in target.unplaceable] == [parse_jobs("BT0")]


def test_a_draining_worker_keeps_its_jobs_while_the_only_others_are_away() -> None:
    fleet = fleet_of_three(instance_ids=True)
    before = fleet.owned()
    fleet.leave_briefly("W2")
    fleet.leave_briefly("W3")
    fleet.change("W1", draining=True)
    target = fleet.compute()
    assert {str(name): one.jobs for name, one in target.members.items()} == before
    assert target.next_in_ms == BRIEFLY_LEFT_CHECK_INTERVAL_MS
    fleet.rejoin("W2")
    fleet.settle()
    assert fleet.owned()["W1"] == NO_JOBS


def test_a_job_on_its_way_to_a_member_that_is_away_goes_to_another_claimant() -> None:
    fleet = Fleet(parse_jobs("AT0"))
    claimed = parse_jobs("AT0")
    fleet.members = {
        W1: replace(member("W1"), pending=claimed),
        W2: replace(member("W2", target=claimed, epoch=-2), current=NO_JOBS, claims=claimed),
        W3: replace(member("W3"), claims=claimed),
    }
    assert fleet.compute().members[W3].jobs == claimed


# -- in the middle of a reconciliation --------------------------------------------------------------------------------


def test_jobs_on_their_way_go_on_to_the_same_member() -> None:
    fleet = Fleet(parse_jobs("AT0 AT1 AT2 AT3 AT4 AT5"))
    fleet.join("W1")
    fleet.settle()
    fleet.join("W2")
    target = fleet.compute()
    assert fleet.compute().members == target.members, "W1 was not told yet"
    fleet.beat("W1")
    assert fleet.compute().members == target.members, "W1 stops the jobs"
    fleet.beat("W1")
    assert fleet.compute().members == target.members, "no member has them"
    fleet.reconcile()
    assert fleet.compute().members == target.members
    assert fleet.stopped == 3


def test_jobs_that_have_to_stop_anyway_move_before_others() -> None:
    fleet = Fleet(parse_jobs("AT0 AT1 AT2 AT3 AT4 AT5"))
    fleet.join("W1")
    fleet.settle()
    fleet.join("W2")
    fleet.compute()
    fleet.beat("W1")
    fleet.join("W3")
    fleet.settle()
    assert sorted(map(len, fleet.owned().values())) == [2, 2, 2]
    assert fleet.stopped == 4, "three for W2, one more for W3"


def test_an_ordered_move_is_given_up_if_it_is_no_longer_needed() -> None:
    fleet = Fleet(parse_jobs("AT0 AT1"))
    fleet.join("W1")
    fleet.settle()
    fleet.join("W2")
    fleet.compute()
    fleet.configured |= parse_jobs("AT2 AT3")
    fleet.settle()
    assert sorted(map(len, fleet.owned().values())) == [2, 2]
    assert fleet.stopped == 0, "W1 had not been told"


def test_a_job_that_has_to_stop_anyway_is_not_the_new_owners_yet() -> None:
    """The new owner comes first by id, so of equals it would keep its jobs."""
    fleet = Fleet(parse_jobs("AT0 AT1 AT2 AT3"))
    fleet.join("W1")
    fleet.settle()
    fleet.join("A1")
    fleet.compute()
    fleet.beat("W1")
    fleet.join("W2")
    fleet.settle()
    assert {name: len(jobs) for name, jobs in fleet.owned().items()} == {"W1": 2, "A1": 1, "W2": 1}
    assert fleet.stopped == 2


def test_as_many_jobs_of_each_kind_are_given_but_those_on_their_way_go_on() -> None:
    given = {W1: parse_jobs("AC0 AT0 AT1 BT0"), W2: parse_jobs("BC0 AT2 AT3"), W3: parse_jobs("BT1")}
    standing = {W1: parse_jobs("BC0 AT2 CT0"), W2: parse_jobs("AT0 BT0"), W3: NO_JOBS}
    after = swap_toward_present_targets(given, standing)
    assert parse_jobs("BC0 AT2") <= after[W1]
    assert parse_jobs("AT0") <= after[W2]
    assert not parse_jobs("BT0") <= after[W2], "it gets no task of B"
    for name, jobs in given.items():
        assert len(after[name].connectors) == len(jobs.connectors)
        assert sorted(task.connector for task in after[name].tasks) == sorted(task.connector for task in jobs.tasks)
    assert Jobs.of(job for jobs in after.values() for job in jobs) == Jobs.of(
        job for jobs in given.values() for job in jobs
    )


def test_jobs_on_their_way_go_on_though_another_job_is_new() -> None:
    fleet = Fleet(parse_jobs("AT0 AT1 AT2 BT0"))
    fleet.members = {
        W1: replace(member("W1", parse_jobs("AT0")), pending=parse_jobs("AT1 AT2")),
        W2: member("W2", target=parse_jobs("AT2")),
        W3: member("W3", target=parse_jobs("AT1")),
    }
    target = fleet.compute()
    assert parse_jobs("AT2") <= target.members[W2].jobs
    assert parse_jobs("AT1") <= target.members[W3].jobs


def test_a_job_that_was_given_to_a_member_does_not_wait_for_its_former_owner() -> None:
    fleet = Fleet(parse_jobs("AT0 AT1"))
    fleet.members = {W1: member("W1", NO_JOBS, target=parse_jobs("AT0"))}
    gone = SnapshotDeparted(member_id=W2, url=WorkerUrl("http://W2"), jobs=parse_jobs("AT0 AT1"), delay_left_ms=None)
    target = fleet.assignor.assign(replace(fleet.snapshot(), departed=(gone,)))
    assert target.deferred[W2].jobs == parse_jobs("AT1")
    assert target.members[W1].jobs == parse_jobs("AT0")


def test_of_two_members_that_run_a_job_the_one_with_fewer_jobs_keeps_it() -> None:
    fleet = Fleet(parse_jobs("AT0 AT1"))
    fleet.members = {W1: member("W1", parse_jobs("AT0 AT1")), W2: member("W2", parse_jobs("AT0"))}
    target = fleet.compute()
    assert (target.members[W1].jobs, target.members[W2].jobs) == (parse_jobs("AT1"), parse_jobs("AT0"))


# -- the target that stands is replaced by a better one ---------------------------------------------------------------


def test_a_better_balance_replaces_the_target() -> None:
    fleet = Fleet(parse_jobs("AC0 BC0"))
    fleet.join("W1")
    fleet.settle()
    fleet.join("W2")
    assert sorted(map(len, fleet.settle().values())) == [1, 1]


def test_fewer_moves_replace_the_target() -> None:
    fleet = Fleet(parse_jobs("AT0 BT0"))
    for name in ("W1", "W2", "W3"):
        fleet.join(name)
    before = fleet.settle()
    fleet.change("W2", draining=True)
    fleet.compute()
    fleet.change("W2", draining=False)
    assert fleet.settle() == before, "W2 had not been told"
    assert fleet.stopped == 0


def test_a_better_spread_replaces_the_target() -> None:
    fleet = Fleet(parse_jobs("AT0 AT1 BT0 BT1"))
    fleet.members = {
        W1: member("W1", parse_jobs("AT0"), target=parse_jobs("AT0 AT1")),
        W2: member("W2", parse_jobs("BT0"), target=parse_jobs("BT0 BT1")),
    }
    assert fleet.settle() == {"W1": parse_jobs("AT0 BT1"), "W2": parse_jobs("BT0 AT1")}


def test_more_even_static_workers_replace_the_target() -> None:
    fleet = Fleet(parse_jobs("AT0 AT1"))
    fleet.members = {
        W1: replace(member("W1", target=parse_jobs("AT0 AT1")), claims=parse_jobs("AT0 AT1")),
        W2: replace(member("W2"), claims=parse_jobs("AT0 AT1")),
    }
    assert sorted(map(len, fleet.settle().values())) == [1, 1]


def test_of_two_members_that_run_a_job_one_that_may_run_it_keeps_it() -> None:
    fleet = Fleet(parse_jobs("AT0 AT1"))
    fleet.members = {
        W1: member("W1", parse_jobs("AT0 AT1")),
        W2: replace(member("W2", parse_jobs("AT0")), claims=parse_jobs("AT0")),
    }
    target = fleet.compute()
    assert target.members[W1].jobs == parse_jobs("AT1")
    assert target.members[W2].jobs == parse_jobs("AT0")


# -- claims and drains ------------------------------------------------------------------------------------------------


def test_claims_hold_and_an_unclaimed_job_without_a_wildcard_worker_is_unplaceable() -> None:
    fleet = Fleet(parse_jobs("AC0 AT0 AT1"))
    fleet.join("S1", claims=parse_jobs("AT0"))
    fleet.join("S2", claims=parse_jobs("AT0 AT1"))
    target = fleet.compute()
    assert target.members[MemberId("S1")].jobs == parse_jobs("AT0")
    assert target.members[MemberId("S2")].jobs == parse_jobs("AT1")
    assert [(one.jobs, one.reason) for one in target.unplaceable] == [
        (
            parse_jobs("AC0"),
            "no worker claims it, and every worker that is not draining runs only the jobs that it claims",
        )
    ]


def test_a_drain_moves_all_jobs_at_once_and_nothing_else_moves() -> None:
    fleet = fleet_of_three()
    before = fleet.owned()
    fleet.change("W1", draining=True)
    after = fleet.settle()
    assert after["W1"] == NO_JOBS
    assert all(before[name] <= after[name] for name in ("W2", "W3"))
    assert fleet.stopped == len(before["W1"])


def test_when_all_workers_drain_running_jobs_stay_and_new_ones_are_unplaceable() -> None:
    fleet = fleet_of_three()
    before = fleet.owned()
    for name in before:
        fleet.change(name, draining=True)
    fleet.configured |= parse_jobs("CT0")
    assert fleet.settle() == before
    assert fleet.last is not None
    assert [(one.jobs, one.reason) for one in fleet.last.unplaceable] == [
        (parse_jobs("CT0"), "every worker is draining")
    ]


def test_a_job_revoked_from_a_draining_worker_returns_if_all_others_drain_too() -> None:
    fleet = Fleet(parse_jobs("AT0 AT1 AT2"))
    fleet.join("W1")
    fleet.join("W2")
    fleet.settle()
    fleet.change("W2", draining=True)
    fleet.compute()
    fleet.beat("W2")
    fleet.change("W1", draining=True)
    after = fleet.settle()
    assert Jobs.of(job for jobs in after.values() for job in jobs) == fleet.configured


def test_jobs_on_their_way_between_two_workers_that_drain_may_go_to_either_of_them() -> None:
    fleet = Fleet(parse_jobs("AT0 AT1 AT2 AT3"))
    fleet.members = {
        W1: replace(member("W1", parse_jobs("AT0"), target=NO_JOBS), draining=True),
        W2: replace(member("W2", parse_jobs("AT1 AT2"), target=fleet.configured), draining=True),
        W3: replace(member("W3"), claims=NO_JOBS),
    }
    target = fleet.compute()
    jobs = {name: one.jobs for name, one in target.members.items()}
    assert jobs == {W1: parse_jobs("AT0 AT3"), W2: parse_jobs("AT1 AT2"), W3: NO_JOBS}, "no running job moves"
    assert not target.unplaceable


def test_the_jobs_that_only_a_draining_member_claims_stay_with_it_with_their_reason_if_it_has_not_run_them() -> None:
    fleet = Fleet(parse_jobs("AT0 BT0"))
    fleet.join("S1", claims=parse_jobs("AT0"))
    fleet.settle()
    fleet.join("S2", claims=NO_JOBS)
    fleet.change("S1", draining=True, claims=parse_jobs("AT0 BT0"))
    target = fleet.compute()
    assert target.members[MemberId("S1")].jobs == parse_jobs("AT0")
    assert [one.reason.split(",")[0] for one in target.unplaceable] == ["only draining workers claim it (S1)"]


def test_a_group_without_members_has_only_deferred_and_unplaceable_jobs() -> None:
    fleet = fleet_of_three()
    lost = fleet.owned()["W1"]
    fleet.lose("W1")
    fleet.leave("W2")
    fleet.leave("W3")
    target = fleet.compute()
    assert target.deferred[W1].jobs == lost
    assert [(one.jobs, one.reason) for one in target.unplaceable] == [(FIVE - lost, "the group has no workers")]


# -- a limited number of moves per round ------------------------------------------------------------------------------


def test_moves_come_in_portions_and_together_they_are_the_fewest() -> None:
    fleet = Fleet(
        parse_jobs(" ".join(f"AT{n}" for n in range(12))), RebalancePolicy(moves_per_round_max=2, round_interval_ms=0)
    )
    fleet.join("W1")
    fleet.settle()
    fleet.join("W2")
    portions = []
    for _ in range(9):
        before = fleet.stopped
        target = fleet.compute()
        fleet.reconcile()
        portions.append(fleet.stopped - before)
        if target.next_in_ms is None:
            break
        assert target.next_in_ms == POSTPONED_MOVES_INTERVAL_MIN_MS
    assert portions == [2, 2, 2]
    assert sorted(map(len, fleet.owned().values())) == [6, 6]


def test_no_more_jobs_than_the_limit_are_on_their_way_at_once() -> None:
    fleet = Fleet(
        parse_jobs(" ".join(f"AT{n}" for n in range(12))),
        RebalancePolicy(moves_per_round_max=2, round_interval_ms=9_000),
    )
    fleet.join("W1")
    fleet.settle()
    fleet.join("W2")
    target = fleet.compute()
    assert target.next_in_ms == 9_000
    assert fleet.compute().members == target.members, "W1 was not told yet"
    fleet.beat("W1")
    assert fleet.compute().members == target.members, "W1 has not stopped them"
    fleet.reconcile()
    assert len(fleet.compute().members[W2].jobs) == 4


def test_a_limit_applies_to_drains_first_and_not_to_claims() -> None:
    fleet = Fleet(parse_jobs("AT0 AT1 AT2 AT3 BT0 BT1 BT2 BT3"), RebalancePolicy(moves_per_round_max=1))
    fleet.members = {
        W1: member("W1", parse_jobs("AT0 AT1")),
        W2: member("W2", parse_jobs("AT2 AT3 BT0 BT1 BT2 BT3")),
        W3: member("W3"),
    }
    fleet.change("W1", draining=True)
    fleet.join("S1", claims=parse_jobs("BT0 BT1"))
    target = fleet.compute()
    assert target.members[MemberId("S1")].jobs == parse_jobs("BT0 BT1")
    assert len(target.members[W1].jobs) == 1
    assert len(target.members[W2].jobs) == 4, "none moves for balance yet"
    for _ in range(5):
        fleet.settle()
    assert fleet.owned()["W1"] == NO_JOBS


# -- the interface ----------------------------------------------------------------------------------------------------


def test_the_built_in_assignor_is_a_connect_assignor() -> None:
    assignor: ConnectAssignor = CooperativeAssignor(RebalancePolicy())
    assert (assignor.name, assignor.minimum_version, assignor.maximum_version) == ("cooperative", 0, 3)
    assert assignor.metadata() == AssignorMetadata(version=3)
    assignor.on_assignment(TargetOfMember(jobs=FIVE))
    assert assignor.metadata() == AssignorMetadata(version=3), "its metadata do not depend on what is assigned"


HASHED = """
from tests.assignors.connect.fleet import Fleet
from coterie.assignors.members import RebalancePolicy
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId, Jobs
names = [ConnectorName(f"c{n}") for n in range(9)]
fleet = Fleet(Jobs.of([*names, *(ConnectorTaskId(name, task) for name in names for task in range(7))]))
for name in ("ab", "ba", "cd", "dc", "ef"):
    fleet.join(name)
fleet.settle()
fleet.join("gh")
fleet.lose("ba")
fleet.compute()
fleet.beat("ab")
fleet.now_ms += 300
fleet.change("cd", draining=True)
fleet.change("dc", claims=Jobs.of([names[0], ConnectorTaskId(names[1], 1)]))
target = fleet.compute()
print([(name, list(one.jobs)) for name, one in target.members.items()], [list(one.jobs) for one in target.unplaceable])
"""


def test_the_target_does_not_depend_on_the_order_of_hashes() -> None:
    printed = {
        subprocess.run(
            [sys.executable, "-c", HASHED],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("0", "1", "7")
    }
    assert len(printed) == 1
    assert "c8" in printed.pop()


def test_a_hundred_thousand_tasks_are_placed_evenly_on_a_hundred_members() -> None:
    names = [ConnectorName(f"c{number}") for number in range(100)]
    fleet = Fleet(Jobs.of(ConnectorTaskId(name, task) for name in names for task in range(1_000)))
    for number in range(100):
        fleet.join(f"w{number}")
    assert {len(one.jobs) for one in fleet.compute().members.values()} == {1_000}
