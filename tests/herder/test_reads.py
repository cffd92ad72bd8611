"""Reads: they wait for what was written before them, never fail because of a rebalance, and never wait for ever."""

import pytest

from coterie.herder.messages import ConfigEndFound, FindConfigEnd, TimerFired
from coterie.herder.requests import (
    ConnectorInfo,
    DescribeConnector,
    DescribeStatus,
    DescribeTaskStatus,
    DescribeWorker,
    Problem,
    Read,
    RequestRefused,
    WorkerView,
)
from coterie.herder.seams import TaskProgressed
from coterie.herder.timers import RequestDue
from coterie.nouns.ids import ConfigOffset
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from tests.herder.builders import BORN, BOTH_TASKS, CONFIG, ORDERS, TASKS, ready
from tests.herder.by_hand import ROUND, ByHand


def test_a_read_waits_for_what_was_written_before_it_and_not_for_ever() -> None:
    herder = ByHand()
    herder.begin()
    read = herder.ask(DescribeConnector(connector=ORDERS))
    herder.write(BORN, read=False)
    (look,) = herder.take(FindConfigEnd)
    herder.tell(ConfigEndFound(purpose=look.purpose, end=ConfigOffset(1)))
    assert herder.answer(read) is None
    herder.now_ms += 3_000
    herder.tell(TimerFired(timer=RequestDue(id=read)))
    assert isinstance(herder.answer(read), RequestRefused)


def test_a_read_is_answered_with_what_is_known_when_the_log_cannot_be_reached() -> None:
    herder = ready()
    read = herder.ask(DescribeConnector(connector=ORDERS))
    (look,) = herder.take(FindConfigEnd)
    herder.tell(ConfigEndFound(purpose=look.purpose, end=None))
    assert herder.answer(read) == ConnectorInfo(connector=ORDERS, config=CONFIG, tasks=tuple(TASKS))


def test_a_read_is_answered_while_the_group_rebalances() -> None:
    herder = ready()
    herder.tell(ROUND)
    read = herder.ask(DescribeConnector(connector=ORDERS))
    herder.obey()
    assert isinstance(herder.answer(read), ConnectorInfo)


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (DescribeConnector(connector=ConnectorName("none")), "Connector none not found"),
        (DescribeStatus(connector=ConnectorName("none")), "No status found for connector none"),
        (DescribeTaskStatus(task=ConnectorTaskId(ORDERS, 7)), "No status found for task orders-7"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_unknown_name_is_not_found_in_connects_words(read: Read, message: str) -> None:
    herder = ready()
    id_ = herder.ask(read)
    herder.obey()
    assert herder.answer(id_) == RequestRefused(problem=Problem.NOT_FOUND, message=message)


def test_the_bad_records_that_a_task_has_left_out_are_shown() -> None:
    herder = ready()
    herder.assign(assigned=BOTH_TASKS)
    herder.obey()
    for batch_id, bad in enumerate((3, 3, 5)):
        herder.tell(TaskProgressed(task=TASKS[1], batch_id=batch_id, input_rows=10, bad_records=bad))
    view = herder.answer(herder.ask(DescribeWorker()))
    assert isinstance(view, WorkerView)
    assert [task.bad_records for task in view.tasks] == [0, 5]


def test_a_task_is_shown_as_running_only_after_its_first_batch() -> None:
    herder = ready()
    herder.assign(assigned=BOTH_TASKS)
    assert phases(herder) == ["starting", "starting"]
    herder.obey()
    herder.tell(TaskProgressed(task=TASKS[1], batch_id=0, input_rows=5))
    assert phases(herder) == ["started", "running"]
    herder.assign(revoked=BOTH_TASKS)
    assert phases(herder) == ["stopping", "stopping"]


def phases(herder: ByHand) -> list[str]:
    view = herder.answer(herder.ask(DescribeWorker()))
    assert isinstance(view, WorkerView)
    return [task.phase for task in view.tasks]
