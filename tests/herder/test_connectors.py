"""Connector instances by hand: whose task configs stand in the log, and who puts them there again."""

from coterie.engine.log import Line
from coterie.herder import config_records
from coterie.herder.messages import (
    ConnectorSplit,
    ForgetConnector,
    PublishTaskConfigs,
    SetTimer,
    SplitConnector,
    SplitFailed,
    StatusLinesRead,
    TaskConfigsPublished,
    TimerFired,
)
from coterie.herder.seams import PartsChanged
from coterie.herder.status_records import Status, line_of
from coterie.herder.timers import RetryDue
from coterie.nouns.ids import Generation, Incarnation, WorkerId
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Jobs
from coterie.nouns.states import State, TargetState
from tests.herder.by_hand import SESSION_TIMEOUT_MS, ByHand, proved

ORDERS = ConnectorName("orders")
CONFIG = {"connector.class": "Any", "tasks.max": "2"}
SHARES = [{"share": "0"}, {"share": "1"}]
DEALT = config_records.task_config_lines(ORDERS, SHARES)
STOP = (
    *config_records.task_config_lines(ORDERS, ()),
    config_records.target_state_line(ORDERS, TargetState.STOPPED),
)
RESUME = config_records.target_state_line(ORDERS, TargetState.STARTED)


def owner() -> tuple[ByHand, int]:
    """The owner of one connector, which has split it; and which config that was."""
    herder = ByHand()
    herder.begin()
    herder.write(config_records.connector_line(ORDERS, CONFIG, Incarnation("life")))
    herder.assign(assigned=Jobs(frozenset([ORDERS])))
    (split,) = herder.take(SplitConnector)
    herder.tell(ConnectorSplit(connector=ORDERS, written_at=split.written_at, configs=SHARES))
    return herder, split.written_at


def test_a_source_with_other_parts_is_split_again_and_published_only_if_something_comes_out_otherwise() -> None:
    for configs in (SHARES, [*SHARES, {"share": "2"}]):
        herder, written_at = owner()
        herder.write(*DEALT)
        herder.tell(TaskConfigsPublished(connector=ORDERS, written_at=written_at))
        herder.take(PublishTaskConfigs)
        herder.tell(PartsChanged(connector=ORDERS))
        (split,) = herder.take(SplitConnector)
        herder.tell(PartsChanged(connector=ORDERS))
        assert not herder.take(SplitConnector), "one split at a time"
        assert split.written_at == written_at
        herder.tell(ConnectorSplit(connector=ORDERS, written_at=written_at, configs=configs))
        assert [list(order.configs) for order in herder.take(PublishTaskConfigs)] == [configs] * (configs != SHARES)


def test_parts_of_a_connector_that_is_paused_or_elsewhere_change_nothing_here() -> None:
    herder, _ = owner()
    herder.write(config_records.target_state_line(ORDERS, TargetState.PAUSED))
    herder.tell(PartsChanged(connector=ORDERS))
    herder.assign(assigned=NO_JOBS, revoked=Jobs(frozenset([ORDERS])))
    herder.tell(PartsChanged(connector=ORDERS))
    assert not herder.take(SplitConnector)


def test_what_is_read_back_as_it_was_published_is_published_once() -> None:
    for read_first in (True, False):
        herder, written_at = owner()
        assert len(herder.take(PublishTaskConfigs)) == 1
        if read_first:
            herder.write(*DEALT)
        herder.tell(TaskConfigsPublished(connector=ORDERS, written_at=written_at))
        if not read_first:
            assert not herder.take(PublishTaskConfigs), "the leader has them; they only have not come back yet"
            herder.write(*DEALT)
        assert not herder.take(PublishTaskConfigs)


def test_a_stop_that_is_read_only_when_it_is_taken_back_costs_the_connector_no_tasks() -> None:
    herder, written_at = owner()
    herder.write(*DEALT)
    herder.tell(TaskConfigsPublished(connector=ORDERS, written_at=written_at))
    herder.take(PublishTaskConfigs)
    herder.write(*STOP, RESUME)
    (again,) = herder.take(PublishTaskConfigs)
    assert list(again.configs) == SHARES
    herder.tell(TaskConfigsPublished(connector=ORDERS, written_at=written_at))
    herder.write(*DEALT)
    assert not herder.take(PublishTaskConfigs)


def test_what_others_have_written_over_its_task_configs_is_written_anew_by_the_owner_alone() -> None:
    herder, written_at = owner()
    herder.write(*DEALT)
    herder.tell(TaskConfigsPublished(connector=ORDERS, written_at=written_at))
    herder.take(PublishTaskConfigs)
    herder.write(*config_records.task_config_lines(ORDERS, [{"share": "of a former owner"}]))
    assert len(herder.take(PublishTaskConfigs)) == 1
    herder.assign(assigned=NO_JOBS, revoked=Jobs(frozenset([ORDERS])))
    herder.write(*config_records.task_config_lines(ORDERS, [{"share": "of a former owner"}]))
    assert not herder.take(PublishTaskConfigs)


def test_a_config_that_came_unjudged_is_split_beside_the_tasks_that_may_have_checkpoints() -> None:
    herder, _ = owner()
    herder.write(*DEALT)
    herder.take(PublishTaskConfigs)
    herder.write(config_records.connector_line(ORDERS, {**CONFIG, "tasks.max": "3"}, Incarnation("life")))
    (split,) = herder.take(SplitConnector)
    assert list(split.checkpointed) == SHARES
    herder.tell(SplitFailed(connector=ORDERS, written_at=split.written_at, trace="no"))
    assert not herder.take(PublishTaskConfigs)
    assert herder.herder.config.tasks(ORDERS) == (ConnectorTaskId(ORDERS, 0), ConnectorTaskId(ORDERS, 1))


# -- a split that fails, or is not wanted any more ---------------------------------------------------------------------


def shown(herder: ByHand) -> tuple[State, str | None] | None:
    return herder.herder.work.shown.get(ORDERS)


def publish(herder: ByHand, written_at: int) -> None:
    """What the owner has split is published and read back."""
    herder.write(*DEALT)
    herder.tell(TaskConfigsPublished(connector=ORDERS, written_at=written_at))
    herder.orders.clear()


def say_of_task(herder: ByHand, number: int, state: State) -> None:
    """A worker says so in the status topic."""
    status = Status(state=state, worker_id=WorkerId("there:8083"), generation=Generation(1))
    line = line_of(ConnectorTaskId(ORDERS, number), status)
    herder.tell(StatusLinesRead(lines=[Line(partition=0, offset=0, timestamp_ms=0, key=line.key, value=line.value)]))


def test_a_split_that_found_a_server_away_is_made_again_after_longer_and_longer_times_and_its_status_says_why() -> None:
    herder, written_at = owner()
    publish(herder, written_at)
    herder.tell(PartsChanged(connector=ORDERS))
    waits: list[int] = []
    for _ in range(4):
        (split,) = herder.take(SplitConnector)
        failed = SplitFailed(connector=ORDERS, written_at=written_at, trace="the server is away", is_transient=True)
        herder.tell(failed)
        assert shown(herder) == (State.RESTARTING, "the server is away")
        assert not herder.take(SplitConnector), "not at once"
        (timer,) = [order for order in herder.take(SetTimer) if isinstance(order.timer, RetryDue)]
        waits.append(timer.at_ms - herder.now_ms)
        herder.now_ms = timer.at_ms
        herder.tell(TimerFired(timer=timer.timer))
        assert shown(herder) == (State.RESTARTING, "the server is away"), "also while it is tried"
    assert waits == [250, 500, 1_000, 2_000]
    (split,) = herder.take(SplitConnector)
    assert split.written_at == written_at
    herder.tell(ConnectorSplit(connector=ORDERS, written_at=written_at, configs=SHARES))
    assert shown(herder) == (State.RUNNING, None)
    assert not herder.take(PublishTaskConfigs)


def test_another_config_does_not_wait_for_the_next_attempt_with_the_former_one() -> None:
    herder, written_at = owner()
    publish(herder, written_at)
    herder.tell(PartsChanged(connector=ORDERS))
    herder.take(SplitConnector)
    herder.tell(SplitFailed(connector=ORDERS, written_at=written_at, trace="away", is_transient=True))
    herder.write(config_records.connector_line(ORDERS, {**CONFIG, "tasks.max": "3"}, Incarnation("life")))
    assert [split.config["tasks.max"] for split in herder.take(SplitConnector)] == ["3"]


def test_a_split_that_only_another_config_can_mend_is_made_once() -> None:
    herder, written_at = owner()
    publish(herder, written_at)
    herder.tell(PartsChanged(connector=ORDERS))
    herder.take(SplitConnector)
    herder.tell(SplitFailed(connector=ORDERS, written_at=written_at, trace="batch 4 of task 1 fails"))
    herder.now_ms += 100_000
    herder.tell(proved(sent_at_ms=herder.now_ms))
    herder.tell(TimerFired(timer=RetryDue(connector=ORDERS)))
    assert not herder.take(SplitConnector)
    assert shown(herder) == (State.FAILED, "batch 4 of task 1 fails")


def test_a_split_whose_result_is_not_wanted_is_ended_once_and_the_next_one_waits_for_its_end() -> None:
    changed = config_records.connector_line(ORDERS, {**CONFIG, "tasks.max": "3"}, Incarnation("life"))
    paused = config_records.target_state_line(ORDERS, TargetState.PAUSED)
    for line in (changed, paused, None):
        herder, written_at = owner()
        publish(herder, written_at)
        herder.tell(PartsChanged(connector=ORDERS))
        herder.take(SplitConnector)
        if line is not None:
            herder.write(line)
        else:
            herder.assign(assigned=NO_JOBS, revoked=Jobs(frozenset([ORDERS])))
        assert herder.take(ForgetConnector) == [ForgetConnector(connector=ORDERS)]
        herder.tell(TimerFired(timer="behind"))
        assert not herder.take(ForgetConnector)
        assert not herder.take(SplitConnector)
        herder.tell(SplitFailed(connector=ORDERS, written_at=written_at, trace="ended here", is_transient=True))
        assert len(herder.take(SplitConnector)) == (line is changed)
        assert not herder.take(ForgetConnector)


def test_the_parts_of_a_connector_are_forgotten_with_it() -> None:
    herder, written_at = owner()
    publish(herder, written_at)
    herder.write(config_records.target_state_line(ORDERS, TargetState.PAUSED))
    assert herder.take(ForgetConnector) == [ForgetConnector(connector=ORDERS)]
    herder.write(RESUME)
    (split,) = herder.take(SplitConnector)
    herder.tell(ConnectorSplit(connector=ORDERS, written_at=split.written_at, configs=SHARES))
    herder.assign(assigned=NO_JOBS, revoked=Jobs(frozenset([ORDERS])))
    assert herder.take(ForgetConnector) == [ForgetConnector(connector=ORDERS)]


def test_a_worker_whose_place_is_not_proved_splits_nothing_until_it_is() -> None:
    herder, written_at = owner()
    publish(herder, written_at)
    herder.tell(proved(sent_at_ms=herder.now_ms))
    herder.now_ms += SESSION_TIMEOUT_MS
    herder.tell(PartsChanged(connector=ORDERS))
    assert not herder.take(SplitConnector)
    herder.tell(proved(sent_at_ms=herder.now_ms))
    assert len(herder.take(SplitConnector)) == 1


# -- a task that is FAILED ---------------------------------------------------------------------------------------------


def test_while_a_task_is_failed_the_tasks_keep_their_parts_and_are_split_anew_once_none_is() -> None:
    herder, written_at = owner()
    publish(herder, written_at)
    say_of_task(herder, 1, State.FAILED)
    herder.tell(PartsChanged(connector=ORDERS))
    (split,) = herder.take(SplitConnector)
    assert split.keeps_split
    herder.tell(ConnectorSplit(connector=ORDERS, written_at=written_at, configs=SHARES))
    say_of_task(herder, 0, State.RUNNING)
    assert not herder.take(SplitConnector)
    assert not herder.take(PublishTaskConfigs)
    say_of_task(herder, 1, State.RUNNING)
    (split,) = herder.take(SplitConnector)
    assert not split.keeps_split


def test_a_config_that_is_to_mend_a_failed_task_reaches_it() -> None:
    herder, written_at = owner()
    publish(herder, written_at)
    say_of_task(herder, 1, State.FAILED)
    herder.write(config_records.connector_line(ORDERS, {**CONFIG, "transforms": "t"}, Incarnation("life")))
    (split,) = herder.take(SplitConnector)
    assert split.keeps_split
    mended = [{**share, "transforms": "t"} for share in SHARES]
    herder.tell(ConnectorSplit(connector=ORDERS, written_at=split.written_at, configs=mended))
    (order,) = herder.take(PublishTaskConfigs)
    assert list(order.configs) == mended
