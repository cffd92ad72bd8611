"""Halted tasks, failed queries and starts, closed checkpoints; all other events of tasks are in `test_machine`."""

from coterie.herder import config_records
from coterie.herder.messages import (
    AbortTaskStart,
    FindConfigLogEnd,
    RestartTask,
    SplitConnector,
    StartTask,
    StopTask,
    TaskStarted,
    TaskStartFailed,
    TaskStopped,
    TimerFired,
    WriteLogMessage,
)
from coterie.herder.requests.orders import RestartConnectorTask
from coterie.herder.requests.refusals import SuccessWithoutContent
from coterie.herder.restart_policy import DEFAULT_RESTART_POLICY, RestartPolicy, jittered_delay_ms
from coterie.herder.seams import (
    PluginThreadsLost,
    TaskCheckpointClosed,
    TaskDied,
    TaskHaltedWithoutOrder,
    TaskProgressed,
    TaskRetrying,
)
from coterie.herder.timers import TaskRestartDue
from coterie.herder.work import CheckpointClosed, OwnershipUnconfirmed, Running, Starting
from coterie.nouns.jobs import ConnectorTaskId
from coterie.nouns.membership import LeaseRenewed, MembershipLost, Rejoin, SetWorkerState
from coterie.nouns.states import JobState, TargetState
from tests.herder.builders import CONNECTOR_LINE, ORDERS, TASK_CONFIG_LINES, TASKS, jobs_of
from tests.herder.herder_driver import SESSION_TIMEOUT_MS, HerderDriver, lease_renewed

RESPLIT = config_records.task_config_and_commit_lines(ORDERS, [{"share": "new"}] * 2)


def working() -> HerderDriver:
    herder = HerderDriver()
    herder.open_runtime()
    herder.write(CONNECTOR_LINE, *TASK_CONFIG_LINES)
    herder.assign(assigned=jobs_of(*TASKS))
    herder.run_all_chores()
    return herder


def test_a_halted_task_starts_again_only_after_a_heartbeat_that_was_sent_after_the_halt() -> None:
    herder = working()
    for task in TASKS:
        herder.feed(TaskHaltedWithoutOrder(task=task))
    herder.feed(lease_renewed(sent_at_ms=herder.now_ms))
    assert not herder.pop_effects(StartTask), (
        "the response may have been in the socket buffer while the worker was paused"
    )
    herder.feed(lease_renewed(sent_at_ms=herder.now_ms + 1))
    assert {order.spec.task for order in herder.pop_effects(StartTask)} == set(TASKS)


def test_a_lost_membership_after_a_halt_stops_nothing() -> None:
    herder = working()
    for task in TASKS:
        herder.feed(TaskHaltedWithoutOrder(task=task))
    herder.feed(MembershipLost(reason="the lease is over"))
    assert not herder.pop_effects(StopTask)
    assert not herder.herder.owned_jobs.tasks


def test_a_task_halted_while_it_starts_does_not_run() -> None:
    herder = working()
    herder.feed(MembershipLost(reason="before"))
    herder.run_all_chores()
    herder.assign(assigned=jobs_of(*TASKS))
    starts = herder.pop_effects(StartTask)
    assert starts
    for order in starts:
        herder.feed(TaskHaltedWithoutOrder(task=order.spec.task))
        herder.feed(TaskStarted(task=order.spec.task))
    assert not any(isinstance(run.state, Running) for run in herder.herder.work.local_tasks.values())


def test_a_task_taken_over_during_its_start_waits_for_a_later_lease_even_if_the_start_returns() -> None:
    herder = working()
    herder.feed(MembershipLost(reason="before"))
    herder.run_all_chores()
    herder.assign(assigned=jobs_of(TASKS[0]))
    (order,) = herder.pop_effects(StartTask)
    herder.feed(TaskDied(task=TASKS[0], trace="taken", holds_checkpoint=False))
    herder.feed(lease_renewed(sent_at_ms=herder.now_ms + 1))
    herder.feed(TaskStarted(task=order.spec.task))
    assert not herder.pop_effects(StartTask)
    herder.feed(lease_renewed(sent_at_ms=herder.now_ms + 2))
    assert herder.pop_effects(StartTask)


# -- failed queries ---------------------------------------------------------------------------------------------------


def report_query_failure(
    herder: HerderDriver,
    task: ConnectorTaskId = TASKS[0],
    *,
    holds_checkpoint: bool = True,
    can_restart: bool = True,
    policy: RestartPolicy = DEFAULT_RESTART_POLICY,
) -> None:
    herder.feed(
        TaskDied(
            task=task,
            trace="boom",
            holds_checkpoint=holds_checkpoint,
            can_restart=can_restart,
            restart_policy=policy,
        )
    )


def due_restarts(herder: HerderDriver, *, after_ms: int, task: ConnectorTaskId = TASKS[0]) -> list[RestartTask]:
    """The restarts ordered after ``after_ms``."""
    herder.now_ms += after_ms
    herder.feed(TimerFired(timer=TaskRestartDue(task=task)))
    return herder.pop_effects(RestartTask)


def stored_status(herder: HerderDriver, task: ConnectorTaskId = TASKS[0]) -> tuple[JobState, str | None] | None:
    herder.run_all_chores()
    stored = herder.herder.statuses.get(task)
    return None if stored is None else (stored.state, stored.trace)


GIVEN_UP = (
    "The task has failed 4 times without progress and is not started again, because errors.restart.max allows no more "
    "restarts; raise errors.restart.max, or set it to -1 for restarts without limit"
)
"""The beginning of the status of a task whose policy allows no further restart."""


def working_with_progress() -> HerderDriver:
    """A worker whose tasks have progressed, with a long lease."""
    herder = working()
    herder.feed(LeaseRenewed(lease_ends_ms=herder.now_ms + 1_000_000, session_timeout_ms=1_500_000))
    for task in TASKS:
        herder.feed(TaskProgressed(task=task, batch_id=0, input_rows=1))
    herder.run_all_chores()
    return herder


def test_a_failed_query_is_restarted_three_times_with_growing_delays_before_its_task_fails() -> None:
    herder = working_with_progress()
    for wait_ms in (200, 400, 800):
        report_query_failure(herder)
        assert not due_restarts(herder, after_ms=wait_ms * 4 // 5 - 1)
        assert due_restarts(herder, after_ms=wait_ms // 5 + 1) == [RestartTask(task=TASKS[0])]
        herder.feed(TaskStarted(task=TASKS[0]))
        assert stored_status(herder) == (JobState.RUNNING, None), "a failure before the limit is not reported"
    report_query_failure(herder)
    assert herder.pop_effects(StopTask) == [StopTask(task=TASKS[0], grace_ms=0)], "its checkpoint is released"
    (message,) = [message for message in herder.pop_effects(WriteLogMessage) if message.is_warning]
    assert message.text == f"Task {TASKS[0]}: {GIVEN_UP}"
    herder.feed(TaskStopped(task=TASKS[0]))
    assert stored_status(herder) == (JobState.FAILED, f"{GIVEN_UP}: boom")
    assert not herder.pop_effects(StartTask), "the same start is not retried"


def test_a_failed_restart_counts_as_another_failure() -> None:
    herder = working_with_progress()
    report_query_failure(herder)
    for wait_ms in (200, 400, 800):
        assert due_restarts(herder, after_ms=wait_ms)
        herder.feed(TaskStartFailed(task=TASKS[0], trace="no session"))
    herder.run_all_chores()
    assert stored_status(herder) == (JobState.FAILED, f"{GIVEN_UP}: no session")


def test_a_task_that_may_not_be_restarted_fails_at_once() -> None:
    herder = working_with_progress()
    report_query_failure(herder, policy=RestartPolicy(restarts_max=0))
    assert stored_status(herder) == (JobState.FAILED, "boom")
    assert not herder.pop_effects(RestartTask)


def test_a_task_without_a_limit_is_restarted_at_growing_delays_and_shows_a_long_one_until_it_progresses() -> None:
    policy = RestartPolicy(restarts_max=-1, delay_max_ms=3_000)
    herder = working_with_progress()
    for failures, delay_ms in enumerate((200, 400, 800, 1_600, *(3_000,) * 60), start=1):
        report_query_failure(herder, policy=policy)
        waits_visibly = f"The query has failed (failures without progress: {failures}); the next attempt follows"
        state, trace = stored_status(herder) or (None, None)
        if delay_ms < 1_000:
            assert (state, trace) == (JobState.RUNNING, None)
        else:
            waited_s = waited_ms(TASKS[0], failures, delay_ms) / 1000
            assert (state, trace) == (JobState.RESTARTING, f"{waits_visibly} after {waited_s:g} s: boom")
        assert not due_restarts(herder, after_ms=delay_ms * 4 // 5 - 1)
        assert due_restarts(herder, after_ms=delay_ms // 5 + 1)
        herder.feed(TaskStarted(task=TASKS[0]))
        assert stored_status(herder) == (state, trace), "it has not progressed"
    herder.feed(TaskProgressed(task=TASKS[0], batch_id=1, input_rows=1))
    assert stored_status(herder) == (JobState.RUNNING, None)


def test_a_restart_that_fails_is_repeated_by_the_policy_of_the_failure_before_it() -> None:
    herder = working_with_progress()
    report_query_failure(herder, policy=RestartPolicy(restarts_max=4))
    for delay_ms in (200, 400, 800, 1_600):
        assert due_restarts(herder, after_ms=delay_ms)
        herder.feed(TaskStartFailed(task=TASKS[0], trace="no session"))
    given_up = GIVEN_UP.replace("4 times", "5 times")
    assert stored_status(herder) == (JobState.FAILED, f"{given_up}: no session")


def test_a_query_that_fails_before_its_restart_returns_shows_the_wait_also_if_the_restart_then_fails() -> None:
    policy = RestartPolicy(restarts_max=-1, delay_max_ms=1_000)
    herder = working_with_progress()
    for delay_ms in (200, 400, 800, 1_000):
        report_query_failure(herder, policy=policy)
        assert due_restarts(herder, after_ms=delay_ms)
        if delay_ms < 1_000:
            herder.feed(TaskStarted(task=TASKS[0]))
    report_query_failure(herder, policy=policy)
    herder.now_ms += 500
    herder.feed(TaskStartFailed(task=TASKS[0], trace="the start has failed, too"))
    text = "The query has failed (failures without progress: 5); the next attempt follows after {:g} s: boom"
    assert stored_status(herder) == (JobState.RESTARTING, text.format(waited_ms(TASKS[0], 5, 1_000) / 1000))


def test_the_status_after_a_failed_restart_names_the_restart_and_not_the_query() -> None:
    policy = RestartPolicy(restarts_max=-1)
    herder = working_with_progress()
    report_query_failure(herder, policy=policy)
    for delay_ms in (200, 400, 800):
        assert due_restarts(herder, after_ms=delay_ms)
        herder.feed(TaskStartFailed(task=TASKS[0], trace="no session"))
    waited_s = waited_ms(TASKS[0], 4, 1_600) / 1000
    text = "The restart of the query has failed (failures without progress: 4); the next attempt follows after "
    assert stored_status(herder) == (JobState.RESTARTING, f"{text}{waited_s:g} s: no session")


def waited_ms(task: ConnectorTaskId, failures: int, delay_ms: int) -> int:
    """The wait after so many failures, whose policy says ``delay_ms``."""
    return jittered_delay_ms(delay_ms, f"{task} {failures}")


def test_progress_resets_the_number_of_failures() -> None:
    herder = working_with_progress()
    for _ in range(5):
        report_query_failure(herder)
        assert due_restarts(herder, after_ms=200)
        herder.feed(TaskStarted(task=TASKS[0]))
        herder.feed(TaskProgressed(task=TASKS[0], batch_id=1, input_rows=1))
    assert stored_status(herder) == (JobState.RUNNING, None)


def test_progress_reported_after_a_later_failure_leaves_the_wait_before_the_restart_visible() -> None:
    policy = RestartPolicy(restarts_max=-1)
    herder = working_with_progress()
    for delay_ms in (200, 400, 800):
        report_query_failure(herder, policy=policy)
        assert due_restarts(herder, after_ms=delay_ms)
        herder.feed(TaskStarted(task=TASKS[0]))
    report_query_failure(herder, policy=policy)
    herder.feed(TaskProgressed(task=TASKS[0], batch_id=1, input_rows=1))
    waited_s = waited_ms(TASKS[0], 4, 1_600) / 1000
    text = f"The query has failed (failures without progress: 4); the next attempt follows after {waited_s:g} s: boom"
    assert stored_status(herder) == (JobState.RESTARTING, text)


def test_a_task_that_waits_for_a_server_is_restarting_with_the_cause_until_it_progresses() -> None:
    retrying = TaskRetrying(task=TASKS[0], trace="unreachable")
    for herder in (working_with_progress(), working()):
        herder.feed(retrying)
        assert stored_status(herder) == (JobState.RESTARTING, "unreachable")
        assert not herder.pop_effects(StopTask), "the runtime retries the query"
        herder.feed(TaskProgressed(task=TASKS[0], batch_id=1, input_rows=1))
        assert stored_status(herder) == (JobState.RUNNING, None)
        herder.feed(retrying)
        report_query_failure(herder, can_restart=False)
        assert stored_status(herder) == (JobState.FAILED, "boom")
        herder.feed(retrying)
        assert stored_status(herder) == (JobState.FAILED, "boom")


def test_a_task_that_waits_for_a_server_during_its_start_is_shown_as_restarting_afterwards() -> None:
    herder = working()
    herder.write(*RESPLIT)
    for stop in herder.pop_effects(StopTask):
        herder.feed(TaskRetrying(task=stop.task, trace="too late"))
        herder.feed(TaskStopped(task=stop.task))
    herder.feed(TaskRetrying(task=TASKS[0], trace="unreachable"))
    assert herder.last_reported(TASKS[0]) == (JobState.RESTARTING, "unreachable")
    assert stored_status(herder) == (JobState.RESTARTING, "unreachable")
    assert isinstance(herder.herder.work.local_tasks[TASKS[0]].state, Running)
    assert herder.last_reported(TASKS[1]) == (JobState.UNASSIGNED, None)


def test_a_query_that_refuses_its_input_is_not_restarted() -> None:
    herder = working_with_progress()
    report_query_failure(herder, can_restart=False)
    assert not due_restarts(herder, after_ms=10_000)
    assert stored_status(herder) == (JobState.FAILED, "boom")


def test_nothing_is_restarted_after_the_lease_expired() -> None:
    herder = working()
    herder.feed(lease_renewed(sent_at_ms=herder.now_ms))
    report_query_failure(herder)
    assert not due_restarts(herder, after_ms=SESSION_TIMEOUT_MS), "the lease is over"
    herder.feed(lease_renewed(sent_at_ms=herder.now_ms))
    assert herder.pop_effects(RestartTask) == [RestartTask(task=TASKS[0])]


def test_a_failed_query_is_owned_until_it_is_stopped_and_is_not_restarted_meanwhile() -> None:
    herder = working_with_progress()
    report_query_failure(herder)
    herder.assign(revoked=jobs_of(TASKS[0]))
    assert [order.task for order in herder.pop_effects(StopTask)] == [TASKS[0]]
    assert TASKS[0] in herder.herder.owned_jobs.tasks
    assert not due_restarts(herder, after_ms=1_000)
    herder.feed(TaskStopped(task=TASKS[0]))
    assert TASKS[0] not in herder.herder.owned_jobs.tasks


def test_a_failed_query_whose_checkpoint_was_taken_over_is_not_restarted() -> None:
    herder = working_with_progress()
    report_query_failure(herder)
    report_query_failure(herder, holds_checkpoint=False)
    assert not due_restarts(herder, after_ms=1_000)
    assert not herder.pop_effects(StopTask), "the runtime no longer holds the checkpoint"
    herder.feed(LeaseRenewed(lease_ends_ms=herder.now_ms + 2_000_000, session_timeout_ms=1_500_000))
    assert [order.spec.task for order in herder.pop_effects(StartTask)] == [TASKS[0]], (
        "a start takes the checkpoint over"
    )


def test_the_cause_of_a_take_over_is_logged() -> None:
    herder = working()
    herder.pop_effects(WriteLogMessage)
    herder.feed(TaskDied(task=TASKS[0], trace="A later start has taken over in the sink", holds_checkpoint=False))
    (message,) = herder.pop_effects(WriteLogMessage)
    assert message.text.startswith(f"Task {TASKS[0]} was stopped: A later start has taken over in the sink. If it is ")


def test_a_failed_task_halted_while_it_stops_is_not_reported_as_restarting() -> None:
    herder = working_with_progress()
    report_query_failure(herder, can_restart=False)
    assert herder.pop_effects(StopTask)
    herder.pop_effects(WriteLogMessage)
    herder.feed(TaskHaltedWithoutOrder(task=TASKS[0]))
    assert not herder.pop_effects(WriteLogMessage)
    herder.feed(TaskStopped(task=TASKS[0]))
    assert stored_status(herder) == (JobState.FAILED, "boom")


def test_a_start_is_ended_once_when_its_task_is_revoked_and_the_task_is_released_when_the_start_has_failed() -> None:
    herder = working()
    herder.feed(MembershipLost(reason="before"))
    herder.run_all_chores()
    herder.assign(assigned=jobs_of(TASKS[0]))
    assert herder.pop_effects(StartTask)
    herder.assign(revoked=jobs_of(TASKS[0]))
    (end,) = herder.pop_effects(AbortTaskStart)
    assert end == AbortTaskStart(task=TASKS[0], grace_ms=herder.herder.settings.stop_grace_ms)
    herder.feed(lease_renewed(sent_at_ms=herder.now_ms))
    assert not herder.pop_effects(AbortTaskStart)
    assert TASKS[0] in herder.herder.owned_jobs, "the start may still take the checkpoint over"
    herder.feed(TaskStartFailed(task=TASKS[0], trace="The plug-in has not returned from start"))
    assert TASKS[0] not in herder.herder.owned_jobs


def test_a_task_whose_start_was_ended_starts_again_if_it_is_assigned_again_meanwhile() -> None:
    herder = working()
    herder.feed(MembershipLost(reason="before"))
    herder.run_all_chores()
    herder.assign(assigned=jobs_of(TASKS[0]))
    assert herder.pop_effects(StartTask)
    herder.assign(revoked=jobs_of(TASKS[0]))
    herder.assign(assigned=jobs_of(TASKS[0]))
    herder.feed(TaskStartFailed(task=TASKS[0], trace="The plug-in has not returned from start"))
    assert [order.spec.task for order in herder.pop_effects(StartTask)] == [TASKS[0]]


def test_a_query_that_fails_before_its_start_returned_is_restarted() -> None:
    herder = HerderDriver()
    herder.open_runtime()
    herder.write(CONNECTOR_LINE, *TASK_CONFIG_LINES)
    herder.assign(assigned=jobs_of(TASKS[0]))
    assert herder.pop_effects(StartTask)
    report_query_failure(herder)
    assert not due_restarts(herder, after_ms=1_000), "one chore at a time"
    herder.feed(TaskStarted(task=TASKS[0]))
    assert herder.pop_effects(RestartTask)


# -- failed starts ----------------------------------------------------------------------------------------------------


def starting(*, lease_ms: int = 1_000_000) -> HerderDriver:
    """A worker whose start of the first task was ordered, with a lease of ``lease_ms``."""
    herder = HerderDriver()
    herder.open_runtime()
    herder.write(CONNECTOR_LINE, *TASK_CONFIG_LINES)
    herder.assign(assigned=jobs_of(TASKS[0]))
    herder.feed(LeaseRenewed(lease_ends_ms=herder.now_ms + lease_ms, session_timeout_ms=lease_ms * 3 // 2))
    assert ordered_starts(herder) == [TASKS[0]]
    return herder


def ordered_starts(herder: HerderDriver) -> list[ConnectorTaskId]:
    return [order.spec.task for order in herder.pop_effects(StartTask)]


def due_starts(herder: HerderDriver, *, after_ms: int) -> list[ConnectorTaskId]:
    """The starts ordered after ``after_ms``."""
    herder.now_ms += after_ms
    herder.feed(TimerFired(timer=TaskRestartDue(task=TASKS[0])))
    return ordered_starts(herder)


def report_failed_start(herder: HerderDriver, policy: RestartPolicy | None = DEFAULT_RESTART_POLICY) -> None:
    herder.feed(TaskStartFailed(task=TASKS[0], trace="the folder is away", restart_policy=policy))


def test_a_task_whose_checkpoint_folder_is_away_for_two_starts_runs_without_an_operator() -> None:
    herder = starting()
    for attempt, delay_ms in enumerate((200, 400), start=1):
        report_failed_start(herder)
        assert not ordered_starts(herder)
        waited_s = waited_ms(TASKS[0], attempt, delay_ms) / 1000
        text = f"Start {attempt} of the task has failed; the next one follows after {waited_s:g} s: "
        assert stored_status(herder) == (JobState.RESTARTING, text + "the folder is away")
        assert TASKS[0] not in herder.herder.work.tasks_that_may_hold_checkpoint, "no checkpoint is held"
        assert not due_starts(herder, after_ms=delay_ms * 4 // 5 - 1)
        assert due_starts(herder, after_ms=delay_ms // 5 + 1) == [TASKS[0]]
        assert stored_status(herder) == (JobState.RESTARTING, text + "the folder is away"), "it does not run yet"
    herder.feed(TaskStarted(task=TASKS[0]))
    herder.feed(TaskProgressed(task=TASKS[0], batch_id=0, input_rows=1))
    assert stored_status(herder) == (JobState.RUNNING, None)
    assert not herder.pop_effects(RestartTask), "a start takes the checkpoint over"


def test_a_task_that_has_never_started_fails_after_three_further_starts() -> None:
    herder = starting()
    for delay_ms in (200, 400, 800):
        report_failed_start(herder)
        assert due_starts(herder, after_ms=delay_ms) == [TASKS[0]]
    herder.pop_effects(WriteLogMessage)
    report_failed_start(herder)
    assert [message.text for message in herder.pop_effects(WriteLogMessage)] == [f"Task {TASKS[0]}: {GIVEN_UP}"]
    assert stored_status(herder) == (JobState.FAILED, f"{GIVEN_UP}: the folder is away")
    assert not due_starts(herder, after_ms=60_000)


def test_a_start_that_no_further_start_can_mend_fails_the_task_at_once() -> None:
    for policy in (None, RestartPolicy(restarts_max=0)):
        herder = starting()
        report_failed_start(herder, policy)
        assert stored_status(herder) == (JobState.FAILED, "the folder is away")
        assert not due_starts(herder, after_ms=60_000)


def test_failed_starts_and_failures_of_the_query_are_counted_together_until_progress() -> None:
    herder = starting()
    for delay_ms in (200, 400):
        report_failed_start(herder)
        assert due_starts(herder, after_ms=delay_ms)
    herder.feed(TaskStarted(task=TASKS[0]))
    report_query_failure(herder)
    assert due_restarts(herder, after_ms=800)
    herder.feed(TaskStarted(task=TASKS[0]))
    report_query_failure(herder)
    assert stored_status(herder) == (JobState.FAILED, f"{GIVEN_UP}: boom")


def test_a_task_is_not_started_again_after_the_lease_expired() -> None:
    herder = starting(lease_ms=500)
    report_failed_start(herder)
    assert not due_starts(herder, after_ms=500), "the lease is over"
    herder.feed(lease_renewed(sent_at_ms=herder.now_ms))
    assert ordered_starts(herder) == [TASKS[0]]


def test_a_task_that_waits_for_its_next_start_is_released_at_once() -> None:
    herder = starting()
    report_failed_start(herder)
    herder.assign(revoked=jobs_of(TASKS[0]))
    assert not herder.pop_effects(StopTask), "the runtime has no run of the task"
    assert TASKS[0] not in herder.herder.work.local_tasks
    assert stored_status(herder) == (JobState.UNASSIGNED, None)
    assert not due_starts(herder, after_ms=60_000)


def test_a_task_that_waits_for_its_next_start_is_paused_and_resumed_at_once() -> None:
    herder = starting()
    report_failed_start(herder)
    herder.write(config_records.target_state_line(ORDERS, TargetState.PAUSED))
    assert stored_status(herder) == (JobState.PAUSED, None)
    assert not due_starts(herder, after_ms=60_000)
    herder.write(config_records.target_state_line(ORDERS, TargetState.STARTED))
    assert ordered_starts(herder) == [TASKS[0]]
    report_failed_start(herder)
    assert due_starts(herder, after_ms=200), "the failures are counted from 0 again"


def test_a_task_that_waits_for_its_next_start_starts_at_once_with_another_config_or_by_an_order() -> None:
    for ordered in (False, True):
        herder = starting()
        report_failed_start(herder, RestartPolicy(restarts_max=1))
        if ordered:
            id_ = herder.send_request(RestartConnectorTask(task=TASKS[0]))
            for lookup in herder.pop_effects(FindConfigLogEnd):
                herder.run_chore(lookup)
            assert herder.answer(id_) == SuccessWithoutContent()
        else:
            herder.write(*RESPLIT)
        assert ordered_starts(herder) == [TASKS[0]]
        report_failed_start(herder, RestartPolicy(restarts_max=1))
        assert due_starts(herder, after_ms=200), "the failures are counted from 0 again"


def test_a_task_that_was_halted_or_closed_during_a_failed_start_does_not_start_again() -> None:
    for event, state in (
        (TaskHaltedWithoutOrder(task=TASKS[0]), OwnershipUnconfirmed),
        (TaskCheckpointClosed(task=TASKS[0]), CheckpointClosed),
    ):
        herder = starting()
        herder.feed(event)
        report_failed_start(herder)
        assert isinstance(herder.herder.work.local_tasks[TASKS[0]].state, state)
        assert not due_starts(herder, after_ms=60_000)


def test_tasks_that_fail_together_are_not_all_restarted_at_the_same_time() -> None:
    tasks = [ConnectorTaskId(ORDERS, number) for number in range(100)]
    for failures, delay_ms in enumerate((200, 400, 800), start=1):
        delays = [jittered_delay_ms(delay_ms, f"{task} {failures}") for task in tasks]
        assert delay_ms * 4 // 5 <= min(delays) < max(delays) <= delay_ms
        assert len({delay * 20 // delay_ms for delay in delays}) >= 4, "they are spread over a fifth of the delay"
    assert jittered_delay_ms(1, "orders-0 1") == 1
    assert jittered_delay_ms(60_000, "orders-0 9") == jittered_delay_ms(60_000, "orders-0 9")


# -- closed checkpoints -----------------------------------------------------------------------------------------------


def test_a_task_with_a_closed_checkpoint_starts_only_with_another_config() -> None:
    herder = working()
    for task in TASKS:
        herder.feed(TaskCheckpointClosed(task=task))
    herder.feed(lease_renewed(sent_at_ms=herder.now_ms + 1))
    assert not herder.pop_effects(StartTask)
    assert not herder.pop_effects(StopTask)
    assert not herder.herder.work.tasks_that_may_hold_checkpoint
    herder.write(*RESPLIT)
    assert [order.spec.config for order in herder.pop_effects(StartTask)] == [{"share": "new"}] * 2


def test_a_task_closed_while_it_starts_waits_in_either_order_of_the_events() -> None:
    for closed_first in (True, False):
        herder = working()
        herder.write(*RESPLIT)
        for stop in herder.pop_effects(StopTask):
            herder.feed(TaskStopped(task=stop.task))
        starts = herder.pop_effects(StartTask)
        assert {order.spec.task for order in starts} == set(TASKS)
        for order in starts:
            events: list[TaskCheckpointClosed | TaskStarted] = [
                TaskCheckpointClosed(task=order.spec.task),
                TaskStarted(task=order.spec.task),
            ]
            for event in events if closed_first else reversed(events):
                herder.feed(event)
        states = [run.state for run in herder.herder.work.local_tasks.values()]
        assert all(isinstance(state, CheckpointClosed) for state in states), states
        assert not herder.pop_effects(StartTask)


def test_a_task_closed_while_it_stops_starts_again() -> None:
    herder = working()
    herder.write(*RESPLIT)
    for stop in herder.pop_effects(StopTask):
        herder.feed(TaskCheckpointClosed(task=stop.task))
        herder.feed(TaskStopped(task=stop.task))
    assert all(isinstance(run.state, Starting) for run in herder.herder.work.local_tasks.values())


def test_a_task_with_a_closed_checkpoint_is_shown_as_restarting() -> None:
    herder = working()
    herder.feed(TaskCheckpointClosed(task=TASKS[0]))
    reported = herder.last_reported(TASKS[0])
    assert reported is not None
    assert reported[0] is JobState.RESTARTING


def test_a_worker_with_too_many_lost_threads_starts_no_new_task_and_keeps_its_own() -> None:
    herder = working()
    herder.feed(MembershipLost(reason="before"))
    herder.run_all_chores()
    herder.assign(assigned=jobs_of(TASKS[0]))
    herder.run_all_chores()
    lost_threads_max = herder.herder.settings.lost_threads_max
    herder.feed(PluginThreadsLost(lost_threads_total=lost_threads_max))
    assert herder.herder.lifecycle.no_new_jobs_reason is None
    herder.feed(PluginThreadsLost(lost_threads_total=lost_threads_max + 1))
    assert [line.is_error for line in herder.pop_effects(WriteLogMessage) if "hang in plug-ins" in line.text] == [True]
    assert [rejoin.reason for rejoin in herder.pop_effects(Rejoin)] == [
        "too many threads hang in plug-ins: this worker starts no new jobs"
    ]
    assert herder.pop_effects(SetWorkerState)[-1].allowed_jobs_until_restart == jobs_of(TASKS[0])
    herder.herder.work.local_tasks.pop(TASKS[1], None)
    herder.assign(assigned=jobs_of(TASKS[1]))
    assert not herder.pop_effects(StartTask)
    assert not herder.pop_effects(StopTask), "the worker keeps its task"
    status = herder.last_reported(TASKS[1])
    assert status is not None
    assert status[0] is JobState.UNASSIGNED
    assert "starts no new jobs until it is restarted: 65 of its threads" in str(status[1])
    assert herder.pop_effects(SetWorkerState)[-1].allowed_jobs_until_restart == jobs_of(TASKS[0]), (
        "another worker must receive the rest"
    )
    herder.feed(PluginThreadsLost(lost_threads_total=0))
    assert herder.herder.lifecycle.lost_threads == 0
    assert herder.herder.lifecycle.no_new_jobs_reason is not None, "until the worker is restarted"


def test_a_worker_with_too_many_lost_threads_splits_no_new_connector() -> None:
    herder = working()
    herder.feed(PluginThreadsLost(lost_threads_total=herder.herder.settings.lost_threads_max + 1))
    herder.assign(assigned=jobs_of(ORDERS))
    assert not herder.pop_effects(SplitConnector)
    status = herder.last_reported(ORDERS)
    assert status is not None
    assert status[0] is JobState.UNASSIGNED
