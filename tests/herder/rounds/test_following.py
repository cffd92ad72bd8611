"""Rebalances in a follower or leader: failed ones, delays, limited moves, and the reasons for the next rejoin."""

from dataclasses import replace

import pytest

from coterie.assignors.members import RebalancePolicy
from coterie.engine.log import NewTopicRecord
from coterie.herder import config_records
from coterie.herder.messages import Event, SetTimer, StopTask, TimerFired
from coterie.herder.requests.views import DescribeWorker, WorkerView
from coterie.nouns.ids import MemberId
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Jobs
from coterie.nouns.membership import MembershipLost, Rejoin
from coterie.nouns.states import TargetState
from coterie.wire.connect import AssignmentErrorCode, ConnectProtocol
from tests.herder.builders import (
    ALL_JOBS,
    COMPATIBLE,
    CONFIG,
    CONNECTOR_LINE,
    INCARNATION,
    ORDERS,
    ORDERS_TASK_CONFIGS,
    SESSIONED,
    STATIC,
    TASKS,
    compute_static_round,
    configured_herder,
    jobs_of,
)
from tests.herder.herder_driver import ME, OTHER, ROUND, HerderDriver

STOCK = ConnectorName("stock")
STOCK_TASK = ConnectorTaskId(STOCK, 0)
THIRD = MemberId("third")
COOPERATIVE = pytest.mark.parametrize("protocol", [COMPATIBLE, SESSIONED, STATIC])


# -- failed rebalances ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", list(ConnectProtocol))
def test_a_worker_that_did_not_lag_in_a_failed_rebalance_keeps_its_jobs_without_a_rejoin(
    protocol: ConnectProtocol,
) -> None:
    herder = configured_herder()
    herder.assign(assigned=jobs_of(*TASKS))
    herder.run_all_chores()
    herder.feed(ROUND)
    herder.assign(error=AssignmentErrorCode.CONFIG_MISMATCH, protocol=protocol)
    assert not herder.pop_effects(StopTask)
    assert not herder.pop_effects(Rejoin)
    assert herder.herder.place.assigned == jobs_of(*TASKS)


def test_a_worker_that_lagged_in_a_failed_rebalance_rejoins_when_it_has_read_the_config_log() -> None:
    herder = configured_herder()
    herder.write(config_records.connector_line(STOCK, {"name": "stock"}, INCARNATION), read=False)
    herder.assign(error=AssignmentErrorCode.CONFIG_MISMATCH)
    assert not herder.pop_effects(Rejoin)
    herder.config.pop()
    herder.write(config_records.connector_line(STOCK, {"name": "stock"}, INCARNATION))
    assert len(herder.pop_effects(Rejoin)) == 1


def test_only_new_rebalances_that_have_ended_with_an_assignment_are_counted() -> None:
    herder = configured_herder()

    def completed() -> int | None:
        view = herder.answer(herder.send_request(DescribeWorker()))
        assert isinstance(view, WorkerView)
        return view.completed_rebalances

    before = completed()
    assert before is not None
    herder.assign(assigned=jobs_of(*TASKS))
    herder.assign(error=AssignmentErrorCode.CONFIG_MISMATCH)
    assert completed() == before + 1, "the second one has failed"
    herder.assign()
    assert completed() == before + 2
    herder.feed(ROUND)
    herder.generation -= 1
    herder.assign()
    assert completed() == before + 2, "this worker received the answer of the current generation again"


@COOPERATIVE
def test_a_failed_rebalance_does_not_discard_the_leaders_state(protocol: ConnectProtocol) -> None:
    """KAFKA-9848: a worker that leaves afterwards starts a delay, and jobs that were never delivered are not lost."""
    herder = configured_herder()
    first = compute_static_round(herder, {ME: NO_JOBS, OTHER: NO_JOBS}, protocol)
    owned = {member: assignment.assigned for member, assignment in first.assignments.items()}
    herder.write(CONNECTOR_LINE, read=False)
    failed = compute_static_round(herder, {**owned, THIRD: NO_JOBS}, protocol)
    assert failed.has_config_mismatch
    herder.config.pop()
    herder.write(CONNECTOR_LINE)
    assert len(herder.pop_effects(Rejoin)) == 1
    after = compute_static_round(herder, {ME: owned[ME], THIRD: NO_JOBS}, protocol)
    assert {assignment.assigned for assignment in after.assignments.values()} == {NO_JOBS}, (
        "the other worker has left, and may return"
    )
    assert after.delay_ms == 300_000


# -- delays -----------------------------------------------------------------------------------------------------------


def test_a_worker_requests_a_rejoin_when_the_delay_is_over() -> None:
    herder = configured_herder()
    herder.assign(delay_ms=60_000)
    (timer,) = [order for order in herder.pop_effects(SetTimer) if order.timer == "delay over"]
    assert timer.at_ms == herder.now_ms + 60_000
    herder.feed(TimerFired(timer="delay over"))
    assert not herder.pop_effects(Rejoin), "a timer is a claim to check"
    herder.now_ms = timer.at_ms
    herder.feed(TimerFired(timer="delay over"))
    assert [order.reason for order in herder.pop_effects(Rejoin)] == ["the scheduled rebalance delay is over"]
    herder.feed(TimerFired(timer="delay over"))
    assert not herder.pop_effects(Rejoin), "the rejoin is requested only once"


def test_a_delay_that_ends_during_a_rebalance_requests_no_other_rejoin() -> None:
    herder = configured_herder()
    herder.assign(delay_ms=60_000)
    herder.now_ms += 59_000
    herder.feed(ROUND)
    herder.now_ms += 2_000
    herder.feed(TimerFired(timer="delay over"))
    assert not herder.pop_effects(Rejoin)
    herder.assign()
    assert not herder.pop_effects(Rejoin)


def test_a_delay_that_is_received_again_does_not_restart() -> None:
    """A follower whose delay is over joins, and the response contains the current generation. If the leader was lost
    meanwhile, and this worker leads, the delay is over."""
    herder = configured_herder()
    herder.assign(assigned=jobs_of(TASKS[0]), leader=OTHER, delay_ms=60_000)
    herder.run_all_chores()
    herder.now_ms += 60_000
    herder.feed(TimerFired(timer="delay over"))
    assert herder.pop_effects(Rejoin)
    herder.feed(ROUND)
    herder.generation -= 1
    herder.assign(assigned=jobs_of(TASKS[0]), leader=OTHER, delay_ms=60_000)
    computed = compute_static_round(herder, {ME: jobs_of(TASKS[0])})
    assert computed.assignments[ME].assigned == ALL_JOBS - jobs_of(TASKS[0])
    assert computed.delay_ms == 0


@COOPERATIVE
def test_a_new_leader_continues_the_delay_that_it_received(protocol: ConnectProtocol) -> None:
    """KIP-415, "Leader leaves the group": then every unowned job counts as lost."""
    herder = configured_herder()
    herder.assign(assigned=jobs_of(TASKS[0]), leader=OTHER, delay_ms=60_000, protocol=protocol)
    herder.run_all_chores()
    herder.now_ms += 20_000
    computed = compute_static_round(herder, {ME: jobs_of(TASKS[0]), THIRD: NO_JOBS}, protocol)
    assert {assignment.assigned for assignment in computed.assignments.values()} == {NO_JOBS}
    assert computed.delay_ms == 40_000
    herder.now_ms += 30_000
    computed = compute_static_round(herder, {ME: jobs_of(TASKS[0]), THIRD: NO_JOBS, OTHER: NO_JOBS}, protocol)
    assert {assignment.assigned for assignment in computed.assignments.values()} == {NO_JOBS}
    assert computed.delay_ms == 10_000
    herder.now_ms += 10_000
    herder.feed(TimerFired(timer="delay over"))
    assert len(herder.pop_effects(Rejoin)) == 1
    computed = compute_static_round(herder, {ME: jobs_of(TASKS[0]), THIRD: NO_JOBS, OTHER: NO_JOBS}, protocol)
    assert Jobs.of(
        job for assignment in computed.assignments.values() for job in assignment.assigned
    ) == ALL_JOBS - jobs_of(TASKS[0])
    assert computed.delay_ms == 0


@COOPERATIVE
def test_a_new_leader_that_received_no_delay_assigns_all_unowned_jobs_at_once(protocol: ConnectProtocol) -> None:
    herder = configured_herder()
    herder.assign(assigned=jobs_of(TASKS[0]), leader=OTHER, protocol=protocol)
    computed = compute_static_round(herder, {ME: jobs_of(TASKS[0]), THIRD: NO_JOBS}, protocol)
    assert Jobs.of(
        job for assignment in computed.assignments.values() for job in assignment.assigned
    ) == ALL_JOBS - jobs_of(TASKS[0])


# -- limited moves (design III) ---------------------------------------------------------------------------------------


def leader_with_move_limit() -> HerderDriver:
    """A leader that may make one move per second, and has two to make."""
    herder = configured_herder(STOCK_CONNECTOR_LINE, *STOCK_TASK_CONFIG_LINES)
    policy = RebalancePolicy(moves_per_round_max=1, round_interval_ms=1_000)
    herder.herder.settings = replace(herder.herder.settings, rebalance_policy=policy)
    everything = herder.herder.config.jobs()
    herder.assign(assigned=everything, leader=ME)
    herder.run_all_chores()
    computed = compute_static_round(herder, {ME: everything, OTHER: NO_JOBS, THIRD: NO_JOBS})
    herder.run_all_chores()
    assert len(computed.assignments[ME].revoked) == 1
    assert len(herder.pop_effects(Rejoin)) == 1
    herder.pop_effects(SetTimer)
    herder.now_ms += 100
    computed = compute_static_round(
        herder, {ME: everything - computed.assignments[ME].revoked, OTHER: NO_JOBS, THIRD: NO_JOBS}
    )
    assert computed.delay_ms == 0, "the delay is only for deferred jobs"
    return herder


def test_a_leader_requests_a_rejoin_for_the_next_moves_after_the_interval() -> None:
    herder = leader_with_move_limit()
    (timer,) = [order for order in herder.pop_effects(SetTimer) if order.timer == "moves"]
    assert timer.at_ms == herder.now_ms + 900
    herder.feed(TimerFired(timer="moves"))
    assert not herder.pop_effects(Rejoin), "a timer is a claim to check"
    herder.now_ms = timer.at_ms
    herder.feed(TimerFired(timer="moves"))
    assert [order.reason for order in herder.pop_effects(Rejoin)] == [
        "the time has come to continue postponed moves of jobs"
    ]
    herder.feed(TimerFired(timer="moves"))
    assert not herder.pop_effects(Rejoin), "the rejoin is requested only once"


@pytest.mark.parametrize(
    "event", [ROUND, MembershipLost(reason="silence"), None], ids=["a rebalance", "loss", "another leader"]
)
def test_no_rejoin_for_moves_is_requested_after_a_rebalance_a_loss_or_a_change_of_leader(event: Event | None) -> None:
    herder = leader_with_move_limit()
    if event is None:
        herder.assign(leader=OTHER)
    else:
        herder.feed(event)
    herder.now_ms += 900
    herder.feed(TimerFired(timer="moves"))
    assert not herder.pop_effects(Rejoin)


# -- reasons for a rejoin ---------------------------------------------------------------------------------------------

STOCK_CONNECTOR_LINE = config_records.connector_line(STOCK, {"name": "stock", "tasks.max": "1"}, INCARNATION)
STOCK_TASK_CONFIG_LINES = config_records.task_config_and_commit_lines(STOCK, [{"share": "0/1"}])


@pytest.mark.parametrize(
    ("lines", "restarted"),
    [
        ((config_records.connector_line(ORDERS, {**CONFIG, "colour": "red"}, INCARNATION),), []),
        (config_records.task_config_and_commit_lines(ORDERS, ORDERS_TASK_CONFIGS), []),
        (config_records.task_config_and_commit_lines(ORDERS, [ORDERS_TASK_CONFIGS[0], {"share": "new"}]), [TASKS[1]]),
        ((config_records.target_state_line(ORDERS, TargetState.PAUSED),), TASKS),
        ((config_records.target_state_line(STOCK, TargetState.PAUSED),), [STOCK_TASK]),
    ],
    ids=["another config", "the same tasks", "another task config", "pause", "pause of another connector"],
)
@pytest.mark.parametrize("protocol", list(ConnectProtocol))
def test_a_changed_config_requests_no_rejoin_and_restarts_only_its_tasks(
    protocol: ConnectProtocol, lines: tuple[NewTopicRecord, ...], restarted: list[ConnectorTaskId]
) -> None:
    herder = configured_herder(STOCK_CONNECTOR_LINE, *STOCK_TASK_CONFIG_LINES)
    herder.assign(assigned=jobs_of(*TASKS, STOCK_TASK), protocol=protocol)
    herder.run_all_chores()
    herder.write(*lines)
    herder.now_ms += 1_000
    herder.feed(TimerFired(timer="changed jobs"))
    assert not herder.pop_effects(Rejoin)
    assert sorted(stop.task for stop in herder.pop_effects(StopTask)) == restarted


@pytest.mark.parametrize(
    ("lines", "stopped"),
    [
        ((config_records.connector_line(ConnectorName("new"), {"name": "new"}, INCARNATION),), []),
        (config_records.task_config_and_commit_lines(ORDERS, [*ORDERS_TASK_CONFIGS, {"share": "2/2"}]), []),
        (config_records.task_config_and_commit_lines(ORDERS, ORDERS_TASK_CONFIGS[:1]), [TASKS[1]]),
        (config_records.connector_and_target_state_tombstones(ORDERS), TASKS),
    ],
    ids=["a new connector", "a new task", "a removed task", "a deleted connector"],
)
@pytest.mark.parametrize("protocol", list(ConnectProtocol))
def test_added_or_removed_jobs_request_a_rejoin_and_only_removed_tasks_stop_before_it(
    protocol: ConnectProtocol, lines: tuple[NewTopicRecord, ...], stopped: list[ConnectorTaskId]
) -> None:
    herder = configured_herder(STOCK_CONNECTOR_LINE, *STOCK_TASK_CONFIG_LINES)
    herder.assign(assigned=jobs_of(*TASKS, STOCK_TASK), protocol=protocol)
    herder.run_all_chores()
    herder.write(*lines)
    herder.now_ms += 1_000
    herder.feed(TimerFired(timer="changed jobs"))
    assert len(herder.pop_effects(Rejoin)) == 1
    assert sorted(stop.task for stop in herder.pop_effects(StopTask)) == stopped


@pytest.mark.parametrize("is_slow", [False, True])
def test_the_release_of_deleted_jobs_requests_no_rejoin_unless_they_still_run(is_slow: bool) -> None:
    herder = configured_herder()
    herder.assign(assigned=jobs_of(*TASKS))
    herder.run_all_chores()
    herder.write(*config_records.connector_and_target_state_tombstones(ORDERS))
    stops = herder.pop_effects(StopTask)
    if not is_slow:
        for stop in stops:
            herder.run_chore(stop)
    herder.assign(revoked=jobs_of(*TASKS))
    assert not herder.pop_effects(Rejoin)
    for stop in stops if is_slow else ():
        herder.run_chore(stop)
    assert not herder.herder.owned_jobs
    assert len(herder.pop_effects(Rejoin)) == is_slow


def test_the_release_of_jobs_that_may_exist_again_requests_a_rejoin() -> None:
    herder = configured_herder()
    herder.assign(assigned=jobs_of(*TASKS))
    herder.run_all_chores()
    herder.write(*config_records.connector_and_target_state_tombstones(ORDERS))
    herder.run_all_chores()
    herder.write(config_records.connector_line(ORDERS, {"name": ORDERS}, INCARNATION), read=False)
    herder.assign(revoked=jobs_of(*TASKS))
    assert len(herder.pop_effects(Rejoin)) == 1
