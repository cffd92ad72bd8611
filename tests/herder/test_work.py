"""A task's run: in which of its states a part of the task may run on this worker."""

from typing import get_args

import pytest

from coterie.herder.restart_policy import DEFAULT_RESTART_POLICY
from coterie.herder.seams import TaskSpec
from coterie.herder.work import (
    CheckpointClosed,
    Failed,
    FailedQueryHoldingCheckpoint,
    LocalJobsState,
    LocalTaskState,
    NotStarted,
    OwnershipUnconfirmed,
    Restarting,
    Running,
    Starting,
    StartRetryPending,
    Stopping,
)
from tests.herder.builders import BOTH_TASKS, INCARNATION, TASKS

START = TaskSpec(task=TASKS[0], connector_incarnation=INCARNATION, config={})
STATES: dict[type[LocalTaskState], tuple[LocalTaskState, bool]] = {
    NotStarted: (NotStarted(), False),
    Failed: (Failed(spec=START, trace=""), False),
    StartRetryPending: (StartRetryPending(spec=START, failed_starts=1, starts_at_ms=0), False),
    OwnershipUnconfirmed: (OwnershipUnconfirmed(unconfirmed_since_ms=0), False),
    CheckpointClosed: (CheckpointClosed(spec=START), False),
    Starting: (Starting(spec=START), True),
    Running: (Running(spec=START, has_progressed_since_start=False, failures_since_progress=0), True),
    # The checkpoint of a failed query is held until the task is stopped.
    FailedQueryHoldingCheckpoint: (
        FailedQueryHoldingCheckpoint(
            spec=START,
            has_progressed_since_start=True,
            failures_since_progress=4,
            trace="",
            restarts_at_ms=None,
            restart_policy=DEFAULT_RESTART_POLICY,
        ),
        True,
    ),
    Restarting: (
        Restarting(
            spec=START,
            has_progressed_since_start=True,
            failures_since_progress=1,
            restart_policy=DEFAULT_RESTART_POLICY,
        ),
        True,
    ),
    Stopping: (Stopping(spec=START), True),
}


@pytest.mark.parametrize("kind", get_args(LocalTaskState), ids=lambda kind: kind.__name__)
def test_a_task_is_owned_while_any_part_of_it_may_run_on_this_worker(kind: type[LocalTaskState]) -> None:
    state, is_active = STATES[kind]
    work = LocalJobsState(BOTH_TASKS)
    work.local_tasks[TASKS[0]].state = state
    assert work.tasks_that_may_hold_checkpoint == ({TASKS[0]} if is_active else set())
