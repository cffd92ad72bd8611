"""The group's protocol decides how a herder leads, and which jobs it stops: eager, and changes to and from eager.

Cases of KIP-415's "Compatibility, Deprecation, and Migration Plan", with the leader and one follower driven by hand.
"""

import pytest

from coterie.herder.messages import AppendStatusLines, StartTask, StatusAppendEnded, StopTask
from coterie.herder.seams import TaskProgressed
from coterie.nouns.ids import ConfigOffset, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.membership import MemberReport, MembershipLost, Rejoin, SetWorkerState, StopAllBeforeJoin
from coterie.wire.connect import ConnectProtocol
from tests.herder.builders import (
    ALL_JOBS,
    COMPATIBLE,
    EAGER,
    SESSIONED,
    STATIC,
    TASKS,
    assigned_jobs,
    compute_round,
    configured_herder,
    jobs_of,
    lead_round,
)
from tests.herder.herder_driver import ME, OTHER, ROUND, HerderDriver, assignments_requested

COOPERATIVE = pytest.mark.parametrize("protocol", [COMPATIBLE, SESSIONED, STATIC])


# -- a group that uses eager ------------------------------------------------------------------------------------------


def test_an_eager_rebalance_assigns_every_job() -> None:
    herder = configured_herder()
    computed = lead_round(herder, EAGER, {ME: NO_JOBS, OTHER: NO_JOBS})
    assert assigned_jobs(computed) == ALL_JOBS
    assert not (computed.assignments[ME].assigned & computed.assignments[OTHER].assigned)
    assert {assignment.revoked for assignment in computed.assignments.values()} == {NO_JOBS}
    assert computed.delay_ms == 0


def test_an_undecodable_member_prevents_the_assumption_that_all_jobs_have_stopped() -> None:
    """An undecodable member is excluded only by the response to its sync, and runs its jobs until then."""
    for undecodable_members in (frozenset({OTHER}), frozenset[MemberId]()):
        herder = configured_herder()
        herder.assign(leader=ME, protocol=STATIC)
        members = {ME: MemberReport(url=WorkerUrl("http://me/"), config_offset=ConfigOffset(len(herder.config)))}
        herder.feed(ROUND)
        herder.feed(
            assignments_requested(members, generation=2, protocol=EAGER, undecodable_members=undecodable_members)
        )
        assert assigned_jobs(herder.computed()) == (NO_JOBS if undecodable_members else ALL_JOBS)


def test_before_an_eager_rebalance_all_tasks_stop_and_their_statuses_are_written() -> None:
    herder = configured_herder()
    herder.assign(assigned=jobs_of(*TASKS), protocol=EAGER)
    herder.run_all_chores()
    herder.feed(TaskProgressed(task=TASKS[0], batch_id=0, input_rows=1))
    herder.run_all_chores()
    herder.pop_effects(SetWorkerState)
    herder.feed(StopAllBeforeJoin())
    stops = herder.pop_effects(StopTask)
    assert {stop.task for stop in stops} == set(TASKS)
    herder.run_chore(stops[0])
    assert NO_JOBS not in [order.owned for order in herder.pop_effects(SetWorkerState)]
    herder.run_chore(stops[1])
    (first_append,) = herder.pop_effects(AppendStatusLines)
    assert not herder.pop_effects(SetWorkerState), "the statuses of its tasks are not written yet"
    herder.run_chore(first_append)
    for append in herder.pop_effects(AppendStatusLines):
        herder.run_chore(append)
    assert herder.pop_effects(SetWorkerState)[-1].owned == NO_JOBS


def test_before_an_eager_rebalance_a_starting_task_is_owned_until_it_has_started_and_stopped() -> None:
    herder = configured_herder()
    herder.assign(assigned=jobs_of(*TASKS), protocol=EAGER)
    started, blocked = herder.pop_effects(StartTask)
    herder.run_chore(started)
    herder.run_all_chores()
    herder.pop_effects(SetWorkerState)
    herder.feed(StopAllBeforeJoin())
    (stop,) = herder.pop_effects(StopTask)
    assert stop.task == started.spec.task, "a stop never overlaps a start of the same task"
    herder.run_chore(stop)
    herder.run_all_chores()
    assert herder.pop_effects(SetWorkerState)[-1].owned == jobs_of(blocked.spec.task)
    herder.run_chore(blocked)
    (stop,) = herder.pop_effects(StopTask)
    assert stop.task == blocked.spec.task
    herder.run_chore(stop)
    herder.run_all_chores()
    assert [order.owned for order in herder.pop_effects(SetWorkerState)] == [NO_JOBS]


def test_unwritable_statuses_do_not_delay_a_rebalance() -> None:
    herder = configured_herder()
    herder.assign(assigned=jobs_of(*TASKS), protocol=EAGER)
    herder.run_all_chores()
    herder.feed(TaskProgressed(task=TASKS[0], batch_id=0, input_rows=1))
    herder.run_all_chores()
    herder.pop_effects(SetWorkerState)
    herder.feed(StopAllBeforeJoin())
    for stop in herder.pop_effects(StopTask):
        herder.run_chore(stop)
    assert herder.pop_effects(AppendStatusLines)
    herder.feed(StatusAppendEnded(failure="the log cannot be reached"))
    assert herder.pop_effects(SetWorkerState)[-1].owned == NO_JOBS


def test_a_worker_without_tasks_reports_no_owned_jobs_at_once_when_it_must_stop_all() -> None:
    herder = configured_herder()
    herder.assign(protocol=EAGER)
    herder.run_all_chores()
    herder.pop_effects(SetWorkerState)
    herder.feed(StopAllBeforeJoin())
    herder.run_all_chores()
    assert [order.owned for order in herder.pop_effects(SetWorkerState)] == [NO_JOBS]


def test_an_eager_assignment_replaces_all_jobs_and_keeps_the_common_ones_running() -> None:
    herder = configured_herder()
    herder.assign(assigned=jobs_of(*TASKS))
    herder.run_all_chores()
    herder.assign(assigned=jobs_of(TASKS[0]), protocol=EAGER)
    assert [stop.task for stop in herder.pop_effects(StopTask)] == [TASKS[1]]
    assert not herder.pop_effects(StartTask)
    assert not herder.pop_effects(Rejoin), "a follower needs no rejoin"


# -- downgrade --------------------------------------------------------------------------------------------------------


@COOPERATIVE
def test_after_a_switch_to_eager_jobs_are_assigned_only_in_the_second_rebalance(
    protocol: ConnectProtocol,
) -> None:
    """KIP-415: a one-time double rebalance, the first of it with empty assignments."""
    herder = configured_herder()
    first = lead_round(herder, protocol, {ME: NO_JOBS, OTHER: NO_JOBS})
    herder.run_all_chores()
    assert not herder.pop_effects(Rejoin)
    # A third worker has joined that supports only eager. No worker has stopped its jobs, and none reports them.
    computed = lead_round(
        herder,
        EAGER,
        {ME: first.assignments[ME].assigned, OTHER: first.assignments[OTHER].assigned, MemberId("third"): NO_JOBS},
    )
    assert assigned_jobs(computed) == NO_JOBS
    herder.run_all_chores()  # It stops its own jobs.
    assert not herder.herder.owned_jobs
    assert len(herder.pop_effects(Rejoin)) == 1, "the leader triggers the second rebalance"
    # The members have received the eager protocol, so they stopped their jobs before they joined.
    computed = lead_round(herder, EAGER, {ME: NO_JOBS, OTHER: NO_JOBS, MemberId("third"): NO_JOBS})
    assert assigned_jobs(computed) == ALL_JOBS
    herder.run_all_chores()
    assert not herder.pop_effects(Rejoin), "the rejoin is requested only once"


def test_a_leader_that_was_not_in_the_previous_rebalance_assumes_that_jobs_still_run() -> None:
    herder = configured_herder()
    assert assigned_jobs(compute_round(herder, 7, EAGER, {ME: NO_JOBS, OTHER: NO_JOBS})) == NO_JOBS


def test_a_leader_that_missed_a_rebalance_assumes_that_jobs_still_run() -> None:
    herder = configured_herder()
    lead_round(herder, EAGER, {ME: NO_JOBS, OTHER: NO_JOBS})
    assert assigned_jobs(compute_round(herder, 3, EAGER, {ME: NO_JOBS, OTHER: NO_JOBS})) == NO_JOBS


def test_a_leader_that_lost_its_membership_assumes_that_jobs_still_run() -> None:
    herder = configured_herder()
    lead_round(herder, EAGER, {ME: NO_JOBS, OTHER: NO_JOBS})
    herder.feed(MembershipLost(reason="silence"))
    assert assigned_jobs(compute_round(herder, 2, EAGER, {ME: NO_JOBS, OTHER: NO_JOBS})) == NO_JOBS


def test_in_a_first_generation_or_a_group_of_one_all_jobs_are_assigned_at_once() -> None:
    assert assigned_jobs(compute_round(configured_herder(), 1, EAGER, {ME: NO_JOBS, OTHER: NO_JOBS})) == ALL_JOBS
    assert assigned_jobs(compute_round(configured_herder(), 7, EAGER, {ME: NO_JOBS})) == ALL_JOBS


def test_a_follower_of_an_eager_rebalance_that_leads_the_next_one_assigns_all_jobs() -> None:
    herder = configured_herder()
    herder.assign(leader=OTHER, protocol=EAGER)
    assert assigned_jobs(compute_round(herder, 2, EAGER, {ME: NO_JOBS, MemberId("third"): NO_JOBS})) == ALL_JOBS


def test_a_group_without_jobs_needs_no_second_rebalance() -> None:
    herder = HerderDriver()
    herder.open_runtime()
    herder.assign(protocol=STATIC, leader=ME)
    lead_round(herder, EAGER, {ME: NO_JOBS, OTHER: NO_JOBS})
    assert not herder.pop_effects(Rejoin)


# -- upgrade ----------------------------------------------------------------------------------------------------------


@COOPERATIVE
def test_the_first_cooperative_rebalance_after_an_eager_one_assigns_all_jobs_without_a_delay(
    protocol: ConnectProtocol,
) -> None:
    """The last eager worker has left: the others stopped everything before they joined, because the group was eager,
    so all jobs, also those of the departed worker, must be assigned at once."""
    herder = configured_herder()
    # This leader's state from before the eager rebalances is outdated.
    lead_round(herder, protocol, {ME: NO_JOBS, OTHER: NO_JOBS, MemberId("third"): NO_JOBS})
    lead_round(herder, EAGER, {ME: NO_JOBS, OTHER: NO_JOBS, MemberId("third"): NO_JOBS})
    lead_round(herder, EAGER, {ME: NO_JOBS, OTHER: NO_JOBS, MemberId("third"): NO_JOBS})
    computed = lead_round(herder, protocol, {ME: NO_JOBS, OTHER: NO_JOBS})
    assert assigned_jobs(computed) == ALL_JOBS
    assert computed.delay_ms == 0
    # Afterwards a departed worker's jobs are deferred as usual, and the other jobs keep running.
    computed = lead_round(herder, protocol, {ME: computed.assignments[ME].assigned})
    assert assigned_jobs(computed) == NO_JOBS
    assert computed.delay_ms == 300_000


def test_a_switch_to_eager_ends_a_running_delay() -> None:
    herder = configured_herder()
    herder.assign(delay_ms=60_000, leader=ME, protocol=STATIC)
    lead_round(herder, EAGER, {ME: NO_JOBS, OTHER: NO_JOBS})
    lead_round(herder, EAGER, {ME: NO_JOBS, OTHER: NO_JOBS})
    computed = lead_round(herder, STATIC, {ME: NO_JOBS, OTHER: NO_JOBS})
    assert (assigned_jobs(computed), computed.delay_ms) == (ALL_JOBS, 0)


# -- claims -----------------------------------------------------------------------------------------------------------


def test_a_worker_that_claims_all_jobs_is_assigned_them() -> None:
    computed = compute_round(configured_herder(), 1, STATIC, {ME: NO_JOBS, OTHER: NO_JOBS}, {OTHER: ALL_JOBS})
    assert computed.assignments[OTHER].assigned == ALL_JOBS
