"""Rounds as a member sees them: those that fail, delays, moves in portions, and what asks for the next one."""

from dataclasses import replace

import pytest

from coterie.assignors.members import Policy
from coterie.engine.log import NewLine
from coterie.herder import config_records
from coterie.herder.messages import Event, SetTimer, StopTask, TimerFired
from coterie.nouns.ids import MemberId
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Jobs
from coterie.nouns.membership import Lost, Rejoin
from coterie.nouns.states import TargetState
from coterie.wire.connect import AssignmentError, ConnectProtocol
from tests.herder.builders import (
    ALL_JOBS,
    BORN,
    COMPATIBLE,
    CONFIG,
    LIFE,
    ORDERS,
    SESSIONED,
    SHARES,
    STATIC,
    TASKS,
    only,
    ready,
    round_of,
)
from tests.herder.by_hand import ME, OTHER, ROUND, ByHand

STOCK = ConnectorName("stock")
STOCK_TASK = ConnectorTaskId(STOCK, 0)
THIRD = MemberId("third")
COOPERATIVE = pytest.mark.parametrize("protocol", [COMPATIBLE, SESSIONED, STATIC])


# -- rounds that fail -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", list(ConnectProtocol))
def test_in_a_round_that_fails_everybody_keeps_what_it_has_and_who_did_not_lag_asks_for_nothing(
    protocol: ConnectProtocol,
) -> None:
    herder = ready()
    herder.assign(assigned=only(*TASKS))
    herder.obey()
    herder.tell(ROUND)
    herder.assign(error=AssignmentError.CONFIG_MISMATCH, protocol=protocol)
    assert not herder.take(StopTask)
    assert not herder.take(Rejoin)
    assert herder.herder.place.assigned == only(*TASKS)


def test_who_lagged_in_a_round_that_failed_asks_for_another_when_it_has_read() -> None:
    herder = ready()
    herder.write(config_records.connector_line(STOCK, {"name": "stock"}, LIFE), read=False)
    herder.assign(error=AssignmentError.CONFIG_MISMATCH)
    assert not herder.take(Rejoin)
    herder.config.pop()
    herder.write(config_records.connector_line(STOCK, {"name": "stock"}, LIFE))
    assert len(herder.take(Rejoin)) == 1


@COOPERATIVE
def test_a_round_that_failed_makes_the_leader_forget_nothing(protocol: ConnectProtocol) -> None:
    """KAFKA-9848: who leaves after it is waited for, and nobody's work is lost that was never dealt out."""
    herder = ready()
    first = round_of(herder, {ME: NO_JOBS, OTHER: NO_JOBS}, protocol)
    owned = {member: one.assigned for member, one in first.assignments.items()}
    herder.write(BORN, read=False)
    failed = round_of(herder, {**owned, THIRD: NO_JOBS}, protocol)
    assert failed.has_config_mismatch
    herder.config.pop()
    herder.write(BORN)
    assert len(herder.take(Rejoin)) == 1
    after = round_of(herder, {ME: owned[ME], THIRD: NO_JOBS}, protocol)
    assert {one.assigned for one in after.assignments.values()} == {NO_JOBS}, "the other has left, and may be back"
    assert after.delay_ms == 300_000


# -- delays -----------------------------------------------------------------------------------------------------------


def test_a_worker_asks_for_a_round_by_itself_when_the_delay_is_over() -> None:
    herder = ready()
    herder.assign(delay_ms=60_000)
    (timer,) = [order for order in herder.take(SetTimer) if order.timer == "delay over"]
    assert timer.at_ms == herder.now_ms + 60_000
    herder.tell(TimerFired(timer="delay over"))
    assert not herder.take(Rejoin), "a timer is a claim to check"
    herder.now_ms = timer.at_ms
    herder.tell(TimerFired(timer="delay over"))
    assert [order.reason for order in herder.take(Rejoin)] == ["the scheduled rebalance delay is over"]
    herder.tell(TimerFired(timer="delay over"))
    assert not herder.take(Rejoin), "once"


def test_a_delay_that_ends_during_a_round_asks_for_no_other() -> None:
    herder = ready()
    herder.assign(delay_ms=60_000)
    herder.now_ms += 59_000
    herder.tell(ROUND)
    herder.now_ms += 2_000
    herder.tell(TimerFired(timer="delay over"))
    assert not herder.take(Rejoin)
    herder.assign()
    assert not herder.take(Rejoin)


def test_a_delay_that_is_told_again_does_not_begin_anew() -> None:
    """A follower whose delay is over joins, and is answered with the generation that runs. If the leader has died
    meanwhile, and this one leads, nothing is left of the delay."""
    herder = ready()
    herder.assign(assigned=only(TASKS[0]), leader=OTHER, delay_ms=60_000)
    herder.obey()
    herder.now_ms += 60_000
    herder.tell(TimerFired(timer="delay over"))
    assert herder.take(Rejoin)
    herder.tell(ROUND)
    herder.generation -= 1
    herder.assign(assigned=only(TASKS[0]), leader=OTHER, delay_ms=60_000)
    dealt = round_of(herder, {ME: only(TASKS[0])})
    assert dealt.assignments[ME].assigned == ALL_JOBS - only(TASKS[0])
    assert dealt.delay_ms == 0


@COOPERATIVE
def test_a_new_leader_keeps_what_is_left_of_the_delay_that_it_was_told_of(protocol: ConnectProtocol) -> None:
    """K415, "Leader leaves the group": then every job that nobody runs counts as lost."""
    herder = ready()
    herder.assign(assigned=only(TASKS[0]), leader=OTHER, delay_ms=60_000, protocol=protocol)
    herder.obey()
    herder.now_ms += 20_000
    dealt = round_of(herder, {ME: only(TASKS[0]), THIRD: NO_JOBS}, protocol)
    assert {one.assigned for one in dealt.assignments.values()} == {NO_JOBS}
    assert dealt.delay_ms == 40_000
    herder.now_ms += 30_000
    dealt = round_of(herder, {ME: only(TASKS[0]), THIRD: NO_JOBS, OTHER: NO_JOBS}, protocol)
    assert {one.assigned for one in dealt.assignments.values()} == {NO_JOBS}
    assert dealt.delay_ms == 10_000
    herder.now_ms += 10_000
    herder.tell(TimerFired(timer="delay over"))
    assert len(herder.take(Rejoin)) == 1
    dealt = round_of(herder, {ME: only(TASKS[0]), THIRD: NO_JOBS, OTHER: NO_JOBS}, protocol)
    assert Jobs.of(job for one in dealt.assignments.values() for job in one.assigned) == ALL_JOBS - only(TASKS[0])
    assert dealt.delay_ms == 0


@COOPERATIVE
def test_a_new_leader_that_was_told_of_no_delay_deals_out_at_once(protocol: ConnectProtocol) -> None:
    herder = ready()
    herder.assign(assigned=only(TASKS[0]), leader=OTHER, protocol=protocol)
    dealt = round_of(herder, {ME: only(TASKS[0]), THIRD: NO_JOBS}, protocol)
    assert Jobs.of(job for one in dealt.assignments.values() for job in one.assigned) == ALL_JOBS - only(TASKS[0])


# -- moves in portions (design III) -----------------------------------------------------------------------------------


def paced() -> ByHand:
    """A leader that may make a move a second, and whose group has two to make."""
    herder = ready(STOCK_BORN, *STOCK_DEALT)
    policy = Policy(moves_per_round_max=1, round_interval_ms=1_000)
    herder.herder.settings = replace(herder.herder.settings, policy=policy)
    everything = herder.herder.config.jobs()
    herder.assign(assigned=everything, leader=ME)
    herder.obey()
    dealt = round_of(herder, {ME: everything, OTHER: NO_JOBS, THIRD: NO_JOBS})
    herder.obey()
    assert len(dealt.assignments[ME].revoked) == 1
    assert len(herder.take(Rejoin)) == 1
    herder.take(SetTimer)
    herder.now_ms += 100
    dealt = round_of(herder, {ME: everything - dealt.assignments[ME].revoked, OTHER: NO_JOBS, THIRD: NO_JOBS})
    assert dealt.delay_ms == 0, "that is for jobs that wait for their worker"
    return herder


def test_a_leader_asks_for_the_round_that_makes_the_next_moves() -> None:
    herder = paced()
    (timer,) = [order for order in herder.take(SetTimer) if order.timer == "moves"]
    assert timer.at_ms == herder.now_ms + 900
    herder.tell(TimerFired(timer="moves"))
    assert not herder.take(Rejoin), "a timer is a claim to check"
    herder.now_ms = timer.at_ms
    herder.tell(TimerFired(timer="moves"))
    assert [order.reason for order in herder.take(Rejoin)] == ["moves are left to make"]
    herder.tell(TimerFired(timer="moves"))
    assert not herder.take(Rejoin), "once"


@pytest.mark.parametrize("event", [ROUND, Lost(reason="silence"), None], ids=["a round", "loss", "another leads"])
def test_moves_that_are_somebody_elses_by_then_are_not_asked_for(event: Event | None) -> None:
    herder = paced()
    if event is None:
        herder.assign(leader=OTHER)
    else:
        herder.tell(event)
    herder.now_ms += 900
    herder.tell(TimerFired(timer="moves"))
    assert not herder.take(Rejoin)


# -- what asks for a round --------------------------------------------------------------------------------------------

STOCK_BORN = config_records.connector_line(STOCK, {"name": "stock", "tasks.max": "1"}, LIFE)
STOCK_DEALT = config_records.task_config_lines(STOCK, [{"share": "0/1"}])


@pytest.mark.parametrize(
    ("lines", "restarted"),
    [
        ((config_records.connector_line(ORDERS, {**CONFIG, "colour": "red"}, LIFE),), []),
        (config_records.task_config_lines(ORDERS, SHARES), []),
        (config_records.task_config_lines(ORDERS, [SHARES[0], {"share": "new"}]), [TASKS[1]]),
        ((config_records.target_state_line(ORDERS, TargetState.PAUSED),), TASKS),
        ((config_records.target_state_line(STOCK, TargetState.PAUSED),), [STOCK_TASK]),
    ],
    ids=["another config", "the same tasks", "another task config", "pause", "pause of the other"],
)
@pytest.mark.parametrize("protocol", list(ConnectProtocol))
def test_a_config_that_only_changes_asks_for_no_round_and_stops_what_it_concerns(
    protocol: ConnectProtocol, lines: tuple[NewLine, ...], restarted: list[ConnectorTaskId]
) -> None:
    herder = ready(STOCK_BORN, *STOCK_DEALT)
    herder.assign(assigned=only(*TASKS, STOCK_TASK), protocol=protocol)
    herder.obey()
    herder.write(*lines)
    herder.now_ms += 1_000
    herder.tell(TimerFired(timer="changed jobs"))
    assert not herder.take(Rejoin)
    assert sorted(stop.task for stop in herder.take(StopTask)) == restarted


@pytest.mark.parametrize(
    ("lines", "stopped"),
    [
        ((config_records.connector_line(ConnectorName("new"), {"name": "new"}, LIFE),), []),
        (config_records.task_config_lines(ORDERS, [*SHARES, {"share": "2/2"}]), []),
        (config_records.task_config_lines(ORDERS, SHARES[:1]), [TASKS[1]]),
        (config_records.deletion_lines(ORDERS), TASKS),
    ],
    ids=["a connector more", "a task more", "a task less", "a connector less"],
)
@pytest.mark.parametrize("protocol", list(ConnectProtocol))
def test_jobs_that_come_or_go_ask_for_a_round_and_before_it_nothing_else_stops(
    protocol: ConnectProtocol, lines: tuple[NewLine, ...], stopped: list[ConnectorTaskId]
) -> None:
    herder = ready(STOCK_BORN, *STOCK_DEALT)
    herder.assign(assigned=only(*TASKS, STOCK_TASK), protocol=protocol)
    herder.obey()
    herder.write(*lines)
    herder.now_ms += 1_000
    herder.tell(TimerFired(timer="changed jobs"))
    assert len(herder.take(Rejoin)) == 1
    assert sorted(stop.task for stop in herder.take(StopTask)) == stopped


@pytest.mark.parametrize("is_slow", [False, True])
def test_giving_back_what_is_deleted_asks_for_no_round_unless_it_still_runs(is_slow: bool) -> None:
    herder = ready()
    herder.assign(assigned=only(*TASKS))
    herder.obey()
    herder.write(*config_records.deletion_lines(ORDERS))
    stops = herder.take(StopTask)
    if not is_slow:
        for stop in stops:
            herder.do(stop)
    herder.assign(revoked=only(*TASKS))
    assert not herder.take(Rejoin)
    for stop in stops if is_slow else ():
        herder.do(stop)
    assert not herder.herder.owned
    assert len(herder.take(Rejoin)) == is_slow


def test_giving_back_what_may_exist_asks_for_a_round_though_this_worker_has_only_read_that_it_does_not() -> None:
    herder = ready()
    herder.assign(assigned=only(*TASKS))
    herder.obey()
    herder.write(*config_records.deletion_lines(ORDERS))
    herder.obey()
    herder.write(config_records.connector_line(ORDERS, {"name": ORDERS}, LIFE), read=False)
    herder.assign(revoked=only(*TASKS))
    assert len(herder.take(Rejoin)) == 1
