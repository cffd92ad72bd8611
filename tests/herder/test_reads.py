"""Reads: they wait for the writes before them up to a timeout, and do not fail because of a rebalance."""

import pytest

from coterie.herder.messages import ConfigLinesRead, ConfigLogEndLookupEnded, FindConfigLogEnd, TimerFired
from coterie.herder.requests.reads import (
    ConnectorDescriptions,
    ConnectorInfo,
    DescribeConnector,
    DescribeConnectors,
    DescribeConnectorStatus,
    DescribeTaskStatus,
    Read,
)
from coterie.herder.requests.refusals import Problem, RequestRefused
from coterie.herder.requests.views import DescribeWorker, WorkerView
from coterie.herder.seams import TaskProgressed
from coterie.herder.timers import RequestTimeoutDue
from coterie.nouns.ids import LogPosition
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.nouns.membership import SetWorkerState
from tests.herder.builders import BOTH_TASKS, CONFIG, CONNECTOR_LINE, ORDERS, TASKS, configured_herder
from tests.herder.herder_driver import ME, ROUND, HerderDriver


def test_a_read_waits_for_the_writes_before_it_up_to_a_timeout() -> None:
    herder = HerderDriver()
    herder.open_runtime()
    read = herder.send_request(DescribeConnector(connector=ORDERS))
    herder.write(CONNECTOR_LINE, read=False)
    (lookup,) = herder.pop_effects(FindConfigLogEnd)
    herder.feed(ConfigLogEndLookupEnded(purpose=lookup.purpose, end_offset=LogPosition(1)))
    assert herder.answer(read) is None
    herder.now_ms += 3_000
    herder.feed(TimerFired(timer=RequestTimeoutDue(id=read)))
    assert isinstance(herder.answer(read), RequestRefused)


def test_a_read_after_a_transactions_marker_waits_for_the_readers_position_not_for_a_line() -> None:
    herder = configured_herder()
    herder.assign(leader=ME)
    read = herder.send_request(DescribeConnector(connector=ORDERS))
    (lookup,) = herder.pop_effects(FindConfigLogEnd)
    lines, end = herder.herder.config.offset, LogPosition(herder.herder.config.offset + 1)
    herder.feed(ConfigLogEndLookupEnded(purpose=lookup.purpose, end_offset=end))
    assert herder.answer(read) is None
    herder.pop_effects(SetWorkerState)
    herder.feed(ConfigLinesRead(lines=(), position=end))
    assert isinstance(herder.answer(read), ConnectorInfo)
    assert herder.herder.config.offset == lines, "the group is told the offset after the last line"
    assert all(order.config_offset == lines for order in herder.pop_effects(SetWorkerState)), "and nothing else"


def test_a_read_is_answered_from_memory_if_the_log_cannot_be_reached() -> None:
    herder = configured_herder()
    read = herder.send_request(DescribeConnector(connector=ORDERS))
    (lookup,) = herder.pop_effects(FindConfigLogEnd)
    herder.feed(ConfigLogEndLookupEnded(purpose=lookup.purpose, end_offset=None))
    assert herder.answer(read) == ConnectorInfo(connector=ORDERS, config=CONFIG, tasks=tuple(TASKS), config_version=0)


def test_a_read_is_answered_while_the_group_rebalances() -> None:
    herder = configured_herder()
    herder.feed(ROUND)
    read = herder.send_request(DescribeConnector(connector=ORDERS))
    herder.run_all_chores()
    assert isinstance(herder.answer(read), ConnectorInfo)


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (DescribeConnector(connector=ConnectorName("none")), "Connector none not found"),
        (DescribeConnectorStatus(connector=ConnectorName("none")), "No status found for connector none"),
        (DescribeTaskStatus(task=ConnectorTaskId(ORDERS, 7)), "No status found for task orders-7"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_unknown_name_gets_connects_not_found_message(read: Read, message: str) -> None:
    herder = configured_herder()
    id_ = herder.send_request(read)
    herder.run_all_chores()
    assert herder.answer(id_) == RequestRefused(problem=Problem.NOT_FOUND, message=message)


def test_connectors_are_described_at_once_and_one_that_is_deleted_is_left_out() -> None:
    herder = configured_herder()
    answer = herder.answer(herder.send_request(DescribeConnectors(connectors=(ConnectorName("deleted"), ORDERS))))
    assert isinstance(answer, ConnectorDescriptions)
    assert [(info.connector, info.config, status) for info, status in answer.connectors] == [(ORDERS, CONFIG, None)]


def test_the_bad_records_of_a_task_are_shown() -> None:
    herder = configured_herder()
    herder.assign(assigned=BOTH_TASKS)
    herder.run_all_chores()
    for batch_id, bad in enumerate((3, 3, 5)):
        herder.feed(TaskProgressed(task=TASKS[1], batch_id=batch_id, input_rows=10, bad_records=bad))
    view = herder.answer(herder.send_request(DescribeWorker()))
    assert isinstance(view, WorkerView)
    assert [task.bad_records for task in view.tasks] == [0, 5]


def test_a_task_is_shown_as_running_only_after_its_first_batch() -> None:
    herder = configured_herder()
    herder.assign(assigned=BOTH_TASKS)
    assert phases(herder) == ["starting", "starting"]
    herder.run_all_chores()
    herder.feed(TaskProgressed(task=TASKS[1], batch_id=0, input_rows=5))
    assert phases(herder) == ["started", "running"]
    herder.assign(revoked=BOTH_TASKS)
    assert phases(herder) == ["stopping", "stopping"]


def phases(herder: HerderDriver) -> list[str]:
    view = herder.answer(herder.send_request(DescribeWorker()))
    assert isinstance(view, WorkerView)
    return [task.phase for task in view.tasks]
