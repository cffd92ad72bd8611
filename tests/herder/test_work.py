"""A task's run: in which of its states something of the task may run here."""

from typing import get_args

import pytest

from coterie.herder.seams import TaskStart
from coterie.herder.work import (
    Closed,
    Dead,
    Failed,
    NotStarted,
    Restarting,
    Running,
    RunState,
    Starting,
    Stopping,
    Taken,
    Work,
)
from tests.herder.builders import BOTH_TASKS, LIFE, TASKS

START = TaskStart(task=TASKS[0], incarnation=LIFE, config={})
STATES: dict[type[RunState], tuple[RunState, bool]] = {
    NotStarted: (NotStarted(), False),
    Failed: (Failed(start=START, trace=""), False),
    Taken: (Taken(at_ms=0), False),
    Closed: (Closed(start=START), False),
    Starting: (Starting(start=START), True),
    Running: (Running(start=START, has_progressed=False, deaths=0), True),
    # The checkpoint of a query that died is held until the task is stopped.
    Dead: (Dead(start=START, has_progressed=True, deaths=4, trace="", restarts_at_ms=None), True),
    Restarting: (Restarting(start=START, has_progressed=True, deaths=1), True),
    Stopping: (Stopping(start=START), True),
}


@pytest.mark.parametrize("kind", get_args(RunState), ids=lambda kind: kind.__name__)
def test_a_task_is_owned_while_something_of_it_may_run_here(kind: type[RunState]) -> None:
    state, is_active = STATES[kind]
    work = Work(BOTH_TASKS)
    work.runs[TASKS[0]].state = state
    assert work.active_tasks == ({TASKS[0]} if is_active else set())
