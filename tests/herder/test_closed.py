"""Tasks that wait for the next generation while no worker may be making it: this worker finishes and publishes it."""

from collections.abc import Sequence

from coterie.herder import config_records
from coterie.herder.messages import (
    FinishGeneration,
    GenerationFinished,
    PublishTaskConfigs,
    SplitConnector,
    SplitFailed,
    StartTask,
    TaskConfigsPublished,
    TimerFired,
)
from coterie.herder.seams import TaskClosed
from coterie.herder.timers import ClosedDue
from coterie.nouns.ids import Incarnation
from coterie.nouns.states import TargetState
from tests.herder.builders import BOTH_TASKS, DEALT, LIFE, ORDERS, SHARES, TASKS, only, ready
from tests.herder.by_hand import ME, OTHER, ByHand

NEXT = [{"share": "0/3"}, {"share": "1/3"}, {"share": "2/3"}]


def waiting(*, has_connector: bool = False, leads: bool = False) -> ByHand:
    """A worker whose two tasks were closed a while ago."""
    hand = ready()
    hand.assign(assigned=only(ORDERS, *TASKS) if has_connector else BOTH_TASKS, leader=ME if leads else OTHER)
    hand.obey()
    for task in TASKS:
        hand.tell(TaskClosed(task=task))
    hand.orders.clear()
    return hand


def due(hand: ByHand) -> list[FinishGeneration]:
    hand.tell(TimerFired(timer=ClosedDue(connector=ORDERS)))
    return hand.take(FinishGeneration)


def finished(hand: ByHand, configs: Sequence[dict[str, str]] | None, incarnation: Incarnation = LIFE) -> None:
    hand.tell(GenerationFinished(connector=ORDERS, incarnation=incarnation, configs=configs))


def test_what_the_next_generation_states_goes_to_the_leader() -> None:
    hand = waiting()
    assert due(hand) == [FinishGeneration(connector=ORDERS, incarnation=LIFE)]
    assert not due(hand), "one chore at a time"
    finished(hand, NEXT)
    (publish,) = hand.take(PublishTaskConfigs)
    assert list(publish.configs) == NEXT
    hand.tell(TaskConfigsPublished(connector=ORDERS, written_at=publish.written_at, refusal="no leader"))
    assert not hand.take(PublishTaskConfigs)
    assert due(hand), "tried again for as long as the tasks wait"


def test_the_leader_writes_it_itself() -> None:
    hand = waiting(leads=True)
    assert due(hand)
    finished(hand, NEXT)
    hand.obey()
    connector = hand.herder.config.connector(ORDERS)
    assert connector is not None
    assert list(connector.task_configs) == NEXT


def test_nothing_is_published_when_another_worker_is_at_work_or_nothing_changes() -> None:
    for configs, incarnation in ((None, LIFE), (SHARES, LIFE), (NEXT, Incarnation("former"))):
        hand = waiting()
        assert due(hand)
        finished(hand, configs, incarnation)
        assert not hand.take(PublishTaskConfigs)


def test_a_worker_that_has_the_connector_leaves_it_to_its_split() -> None:
    assert not due(waiting(has_connector=True))


def test_a_worker_whose_own_split_was_closed_by_another_one_splits_again() -> None:
    hand = ready()
    hand.assign(assigned=only(ORDERS, *TASKS))
    hand.obey()
    hand.write(*config_records.task_config_lines(ORDERS, SHARES))
    hand.obey()
    hand.orders.clear()
    hand.tell(TaskClosed(task=TASKS[0]))
    assert len(hand.take(SplitConnector)) == 1
    hand.tell(TaskClosed(task=TASKS[1]))
    assert not hand.take(SplitConnector), "one split at a time"


def test_a_worker_that_has_the_connector_and_cannot_split_it_leaves_no_task_waiting() -> None:
    hand = waiting(has_connector=True)
    connector = hand.herder.config.connector(ORDERS)
    assert connector is not None
    hand.write(config_records.target_state_line(ORDERS, TargetState.PAUSED))
    hand.write(config_records.target_state_line(ORDERS, TargetState.STARTED))
    hand.tell(SplitFailed(connector=ORDERS, written_at=connector.written_at, trace="ended", is_transient=True))
    hand.take(SplitConnector)
    assert not due(hand), "it is at work"
    hand.tell(SplitFailed(connector=ORDERS, written_at=connector.written_at, trace="no such option"))
    assert due(hand)
    finished(hand, NEXT)
    (publish,) = hand.take(PublishTaskConfigs)
    assert list(publish.configs) == NEXT
    assert hand.take(SplitConnector), "the reason may be over"


def test_once_a_config_names_another_generation_nothing_waits() -> None:
    hand = waiting()
    hand.write(*DEALT)
    assert not hand.take(StartTask), "the same config names the same generation"
    assert due(hand)
    hand.write(*config_records.task_config_lines(ORDERS, NEXT))
    assert hand.take(StartTask)
    finished(hand, NEXT)
    assert not due(hand)
    assert not hand.take(PublishTaskConfigs)
