"""Connector instances by hand: whose task configs stand in the log, and who puts them there again."""

from coterie.herder import config_records
from coterie.herder.messages import (
    ConnectorSplit,
    PublishTaskConfigs,
    SplitConnector,
    SplitFailed,
    TaskConfigsPublished,
)
from coterie.herder.seams import PartsChanged
from coterie.nouns.ids import Incarnation
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Jobs
from coterie.nouns.states import TargetState
from tests.herder.by_hand import ByHand

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
