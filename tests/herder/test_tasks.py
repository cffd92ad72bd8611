"""Tasks that were halted without the herder; all else that befalls tasks is in `test_machine`."""

from coterie.herder import config_records
from coterie.herder.messages import (
    RestartTask,
    Say,
    StartTask,
    StopTask,
    TaskStarted,
    TaskStartFailed,
    TaskStopped,
    TimerFired,
)
from coterie.herder.seams import TaskClosed, TaskDied, TaskHalted, TaskProgressed, TaskWaiting
from coterie.herder.timers import RestartDue
from coterie.herder.work import Closed, Running, Starting
from coterie.nouns.jobs import ConnectorTaskId
from coterie.nouns.membership import Lost, ProvedUntil
from coterie.nouns.states import State
from tests.herder.builders import BORN, DEALT, ORDERS, TASKS, only
from tests.herder.by_hand import SESSION_TIMEOUT_MS, ByHand, proved

RESPLIT = config_records.task_config_lines(ORDERS, [{"share": "new"}] * 2)


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


def test_a_task_that_was_taken_while_it_was_started_waits_for_proof_also_when_its_start_returns_late() -> None:
    herder = working()
    herder.tell(Lost(reason="before"))
    herder.obey()
    herder.assign(assigned=only(TASKS[0]))
    (order,) = herder.take(StartTask)
    herder.tell(TaskDied(task=TASKS[0], trace="taken", is_held=False))
    herder.tell(proved(sent_at_ms=herder.now_ms + 1))
    herder.tell(TaskStarted(task=order.start.task))
    assert not herder.take(StartTask)
    herder.tell(proved(sent_at_ms=herder.now_ms + 2))
    assert herder.take(StartTask)


# -- queries that die -------------------------------------------------------------------------------------------------


def dies(herder: ByHand, task: ConnectorTaskId = TASKS[0], **how: bool) -> None:
    herder.tell(TaskDied(task=task, trace="boom", **{"is_held": True, **how}))


def restarts(herder: ByHand, *, after_ms: int, task: ConnectorTaskId = TASKS[0]) -> list[RestartTask]:
    """What is ordered when so much time has passed since."""
    herder.now_ms += after_ms
    herder.tell(TimerFired(timer=RestartDue(task=task)))
    return herder.take(RestartTask)


def status(herder: ByHand, task: ConnectorTaskId = TASKS[0]) -> tuple[State, str | None] | None:
    herder.obey()
    known = herder.herder.statuses.get(task)
    return None if known is None else (known.state, known.trace)


def running() -> ByHand:
    """Its tasks have progressed, and its place is proved for long."""
    herder = working()
    herder.tell(ProvedUntil(until_ms=herder.now_ms + 1_000_000, session_timeout_ms=1_500_000))
    for task in TASKS:
        herder.tell(TaskProgressed(task=task, batch_id=0, input_rows=1))
    herder.obey()
    return herder


def test_a_query_that_dies_is_started_again_three_times_with_patience_and_then_its_task_has_failed() -> None:
    herder = running()
    for wait_ms in (200, 400, 800):
        dies(herder)
        assert not restarts(herder, after_ms=wait_ms - 1)
        assert restarts(herder, after_ms=1) == [RestartTask(task=TASKS[0])]
        herder.tell(TaskStarted(task=TASKS[0]))
        assert status(herder) == (State.RUNNING, None), "that was nobody's business yet"
    dies(herder)
    assert herder.take(StopTask) == [StopTask(task=TASKS[0], grace_ms=0)], "its checkpoint is not held any longer"
    herder.tell(TaskStopped(task=TASKS[0]))
    assert status(herder) == (State.FAILED, "boom")
    assert not herder.take(StartTask), "the same start is not tried again"


def test_a_restart_that_fails_is_one_more_death() -> None:
    herder = running()
    dies(herder)
    for wait_ms in (200, 400, 800):
        assert restarts(herder, after_ms=wait_ms)
        herder.tell(TaskStartFailed(task=TASKS[0], trace="no session"))
    herder.obey()
    assert status(herder) == (State.FAILED, "no session")


def test_progress_forgets_the_deaths_before_it() -> None:
    herder = running()
    for _ in range(5):
        dies(herder)
        assert restarts(herder, after_ms=200)
        herder.tell(TaskStarted(task=TASKS[0]))
        herder.tell(TaskProgressed(task=TASKS[0], batch_id=1, input_rows=1))
    assert status(herder) == (State.RUNNING, None)


def test_a_task_that_waits_for_a_server_is_shown_as_restarting_with_the_cause_until_it_progresses() -> None:
    away = TaskWaiting(task=TASKS[0], trace="away")
    for herder in (running(), working()):
        herder.tell(away)
        assert status(herder) == (State.RESTARTING, "away")
        assert not herder.take(StopTask), "the runtime has it"
        herder.tell(TaskProgressed(task=TASKS[0], batch_id=1, input_rows=1))
        assert status(herder) == (State.RUNNING, None)
        herder.tell(away)
        dies(herder, can_restart=False)
        assert status(herder) == (State.FAILED, "boom")
        herder.tell(away)
        assert status(herder) == (State.FAILED, "boom")


def test_a_task_that_waits_for_a_server_before_its_start_has_returned_is_shown_so_afterwards() -> None:
    herder = working()
    herder.write(*RESPLIT)
    for stop in herder.take(StopTask):
        herder.tell(TaskWaiting(task=stop.task, trace="too late"))
        herder.tell(TaskStopped(task=stop.task))
    herder.tell(TaskWaiting(task=TASKS[0], trace="away"))
    assert herder.herder.work.shown[TASKS[0]] == (State.RESTARTING, "away")
    assert status(herder) == (State.RESTARTING, "away")
    assert isinstance(herder.herder.work.runs[TASKS[0]].state, Running)
    assert herder.herder.work.shown[TASKS[1]] == (State.UNASSIGNED, None)


def test_a_query_that_refuses_its_input_is_not_started_again() -> None:
    herder = running()
    dies(herder, can_restart=False)
    assert not restarts(herder, after_ms=10_000)
    assert status(herder) == (State.FAILED, "boom")


def test_nothing_is_started_again_while_the_place_is_not_proved() -> None:
    herder = working()
    herder.tell(proved(sent_at_ms=herder.now_ms))
    dies(herder)
    assert not restarts(herder, after_ms=SESSION_TIMEOUT_MS), "the lease is over"
    herder.tell(proved(sent_at_ms=herder.now_ms))
    assert herder.take(RestartTask) == [RestartTask(task=TASKS[0])]


def test_a_query_that_died_is_owned_until_it_is_stopped_and_is_not_started_again_meanwhile() -> None:
    herder = running()
    dies(herder)
    herder.assign(revoked=only(TASKS[0]))
    assert [order.task for order in herder.take(StopTask)] == [TASKS[0]]
    assert TASKS[0] in herder.herder.owned.tasks
    assert not restarts(herder, after_ms=1_000)
    herder.tell(TaskStopped(task=TASKS[0]))
    assert TASKS[0] not in herder.herder.owned.tasks


def test_a_checkpoint_that_is_taken_while_its_query_is_dead_is_not_restarted_on() -> None:
    herder = running()
    dies(herder)
    dies(herder, is_held=False)
    assert not restarts(herder, after_ms=1_000)
    assert not herder.take(StopTask), "the runtime has let go of it"
    herder.tell(ProvedUntil(until_ms=herder.now_ms + 2_000_000, session_timeout_ms=1_500_000))
    assert [order.start.task for order in herder.take(StartTask)] == [TASKS[0]], "a start takes over"


def test_a_failed_task_that_is_halted_while_it_is_stopped_is_not_reported_as_one_that_starts_again() -> None:
    herder = running()
    dies(herder, can_restart=False)
    assert herder.take(StopTask)
    herder.take(Say)
    herder.tell(TaskHalted(task=TASKS[0]))
    assert not herder.take(Say)
    herder.tell(TaskStopped(task=TASKS[0]))
    assert status(herder) == (State.FAILED, "boom")


def test_a_query_that_dies_before_its_start_returned_is_started_again() -> None:
    herder = ByHand()
    herder.begin()
    herder.write(BORN, *DEALT)
    herder.assign(assigned=only(TASKS[0]))
    assert herder.take(StartTask)
    dies(herder)
    assert not restarts(herder, after_ms=1_000), "one chore at a time"
    herder.tell(TaskStarted(task=TASKS[0]))
    assert herder.take(RestartTask)


def test_a_closed_task_starts_again_only_with_another_config() -> None:
    herder = working()
    for task in TASKS:
        herder.tell(TaskClosed(task=task))
    herder.tell(proved(sent_at_ms=herder.now_ms + 1))
    assert not herder.take(StartTask)
    assert not herder.take(StopTask)
    assert not herder.herder.work.active_tasks
    herder.write(*RESPLIT)
    assert [order.start.config for order in herder.take(StartTask)] == [{"share": "new"}] * 2


def test_a_task_whose_generation_is_closed_when_it_starts_waits_whichever_is_told_first() -> None:
    for closed_first in (True, False):
        herder = working()
        herder.write(*RESPLIT)
        for stop in herder.take(StopTask):
            herder.tell(TaskStopped(task=stop.task))
        starts = herder.take(StartTask)
        assert {order.start.task for order in starts} == set(TASKS)
        for order in starts:
            events: list[TaskClosed | TaskStarted] = [
                TaskClosed(task=order.start.task),
                TaskStarted(task=order.start.task),
            ]
            for event in events if closed_first else reversed(events):
                herder.tell(event)
        states = [run.state for run in herder.herder.work.runs.values()]
        assert all(isinstance(state, Closed) for state in states), states
        assert not herder.take(StartTask)


def test_a_task_that_was_closed_while_it_was_stopped_looks_for_its_generation_again() -> None:
    herder = working()
    herder.write(*RESPLIT)
    for stop in herder.take(StopTask):
        herder.tell(TaskClosed(task=stop.task))
        herder.tell(TaskStopped(task=stop.task))
    assert all(isinstance(run.state, Starting) for run in herder.herder.work.runs.values())


def test_a_closed_task_is_shown_as_restarting() -> None:
    herder = working()
    herder.tell(TaskClosed(task=TASKS[0]))
    shown = herder.herder.work.shown[TASKS[0]]
    assert shown is not None
    assert shown[0] is State.RESTARTING
