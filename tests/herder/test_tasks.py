"""Tasks that were halted without the herder; all else that befalls tasks is in `test_machine`."""

from coterie.herder.messages import StartTask, StopTask, TaskStarted
from coterie.herder.seams import TaskHalted
from coterie.herder.work import Running
from coterie.nouns.membership import Lost
from tests.herder.by_hand import ByHand, proved
from tests.herder.test_machine import BORN, DEALT, TASKS, only


def working() -> ByHand:
    herder = ByHand()
    herder.begin()
    herder.write(BORN, *DEALT)
    herder.assign(assigned=only(*TASKS))
    herder.obey()
    return herder


def test_a_halted_task_starts_again_only_after_a_heartbeat_that_was_sent_after_it() -> None:
    herder = working()
    for task in TASKS:
        herder.tell(TaskHalted(task=task))
    herder.tell(proved(sent_at_ms=herder.now_ms))
    assert not herder.take(StartTask), "that answer may have lain in the socket while the worker stood still"
    herder.tell(proved(sent_at_ms=herder.now_ms + 1))
    assert {order.start.task for order in herder.take(StartTask)} == set(TASKS)


def test_a_loss_after_a_halt_finds_nothing_left_to_stop() -> None:
    herder = working()
    for task in TASKS:
        herder.tell(TaskHalted(task=task))
    herder.tell(Lost(reason="the lease is over"))
    assert not herder.take(StopTask)
    assert not herder.herder.owned.tasks


def test_a_task_that_was_halted_while_it_was_started_does_not_run() -> None:
    herder = working()
    herder.tell(Lost(reason="before"))
    herder.obey()
    herder.assign(assigned=only(*TASKS))
    starts = herder.take(StartTask)
    assert starts
    for order in starts:
        herder.tell(TaskHalted(task=order.start.task))
        herder.tell(TaskStarted(task=order.start.task))
    assert not any(isinstance(run.state, Running) for run in herder.herder.work.runs.values())
