"""Tasks that wait for the next checkpoint generation, which possibly no worker finishes: this worker does."""

from collections.abc import Sequence
from dataclasses import replace

from coterie.herder import config_records
from coterie.herder.messages import (
    AppendConfigLines,
    CheckpointGenerationCreationEnded,
    ConfigLinesAppendFailed,
    ConfigLogEndLookupEnded,
    CreateNextCheckpointGeneration,
    FindConfigLogEnd,
    SendTaskConfigsToLeader,
    SplitConnector,
    SplitFailed,
    SplitSucceeded,
    StartTask,
    TaskConfigsPublicationEnded,
    TimerFired,
    WriteLogMessage,
)
from coterie.herder.seams import TaskCheckpointClosed
from coterie.herder.timers import ClosedCheckpointCheckDue
from coterie.nouns.ids import Incarnation
from coterie.nouns.states import JobState, TargetState
from coterie.wire.connect import ConnectProtocol
from tests.herder.builders import (
    BOTH_TASKS,
    INCARNATION,
    ORDERS,
    ORDERS_TASK_CONFIGS,
    TASK_CONFIG_LINES,
    TASKS,
    configured_herder,
    jobs_of,
)
from tests.herder.herder_driver import ME, OTHER, HerderDriver

NEXT = [{"share": "0/3"}, {"share": "1/3"}, {"share": "2/3"}]


def herder_with_waiting_tasks(
    *, has_connector: bool = False, leads: bool = False, protocol: ConnectProtocol = ConnectProtocol.COMPATIBLE
) -> HerderDriver:
    """A worker whose two tasks have closed checkpoints."""
    driver = configured_herder()
    driver.assign(
        assigned=jobs_of(ORDERS, *TASKS) if has_connector else BOTH_TASKS,
        leader=ME if leads else OTHER,
        protocol=protocol,
    )
    driver.run_all_chores()
    for task in TASKS:
        driver.feed(TaskCheckpointClosed(task=task))
    driver.effects.clear()
    return driver


def fire_finish_check(driver: HerderDriver) -> list[CreateNextCheckpointGeneration]:
    driver.feed(TimerFired(timer=ClosedCheckpointCheckDue(connector=ORDERS)))
    return driver.pop_effects(CreateNextCheckpointGeneration)


def finish_generation(
    driver: HerderDriver, configs: Sequence[dict[str, str]] | None, incarnation: Incarnation = INCARNATION
) -> None:
    driver.feed(CheckpointGenerationCreationEnded(connector=ORDERS, incarnation=incarnation, task_configs=configs))


def test_the_task_configs_of_the_next_generation_are_published_through_the_leader() -> None:
    driver = herder_with_waiting_tasks()
    assert fire_finish_check(driver) == [CreateNextCheckpointGeneration(connector=ORDERS, incarnation=INCARNATION)]
    assert not fire_finish_check(driver), "one chore at a time"
    finish_generation(driver, NEXT)
    (publish,) = driver.pop_effects(SendTaskConfigsToLeader)
    assert list(publish.configs) == NEXT
    driver.feed(
        TaskConfigsPublicationEnded(
            connector=ORDERS, config_line_offset=publish.config_line_offset, refusal="no leader"
        )
    )
    assert not driver.pop_effects(SendTaskConfigsToLeader)
    assert fire_finish_check(driver), "retried as long as the tasks wait"


def test_without_a_session_key_the_worker_logs_that_it_waits_for_the_key() -> None:
    for protocol, ending in (
        (ConnectProtocol.COMPATIBLE, "this worker publishes them now"),
        (ConnectProtocol.SESSIONED, "this worker will publish them when it has the group's session key"),
    ):
        driver = herder_with_waiting_tasks(protocol=protocol)
        assert fire_finish_check(driver)
        finish_generation(driver, NEXT)
        (message,) = driver.pop_effects(WriteLogMessage)
        assert message.text.endswith(ending)
        assert len(driver.pop_effects(SendTaskConfigsToLeader)) == (protocol is ConnectProtocol.COMPATIBLE)


def test_a_refusal_of_the_leader_is_logged() -> None:
    driver = herder_with_waiting_tasks()
    assert fire_finish_check(driver)
    finish_generation(driver, NEXT)
    (publish,) = driver.pop_effects(SendTaskConfigsToLeader)
    driver.pop_effects(WriteLogMessage)
    sent = TaskConfigsPublicationEnded(connector=ORDERS, config_line_offset=publish.config_line_offset)
    driver.feed(replace(sent, refusal="HTTP 500"))
    (message,) = driver.pop_effects(WriteLogMessage)
    assert message.is_warning
    assert message.text.startswith(
        "Connector orders: the leader did not accept the task configs that this worker published: HTTP 500. "
    )
    driver.feed(sent)
    assert not driver.pop_effects(WriteLogMessage)


def test_a_refusal_of_task_configs_for_which_no_task_waits_any_more_is_not_logged() -> None:
    """Another worker has published other ones meanwhile."""
    driver = herder_with_waiting_tasks()
    assert fire_finish_check(driver)
    finish_generation(driver, NEXT)
    (publish,) = driver.pop_effects(SendTaskConfigsToLeader)
    driver.write(
        *config_records.task_config_and_commit_lines(ORDERS, [{"share": "0/4"}, {"share": "1/4"}], INCARNATION)
    )
    driver.pop_effects(WriteLogMessage)
    ended = TaskConfigsPublicationEnded(connector=ORDERS, config_line_offset=publish.config_line_offset)
    driver.feed(replace(ended, refusal="HTTP 500"))
    assert not driver.pop_effects(WriteLogMessage)
    assert not fire_finish_check(driver)


def test_a_refusal_is_not_logged_by_a_worker_from_which_the_connector_has_moved() -> None:
    driver = configured_herder()
    driver.assign(assigned=jobs_of(ORDERS))
    (split,) = driver.pop_effects(SplitConnector)
    driver.feed(SplitSucceeded(connector=ORDERS, config_line_offset=split.config_line_offset, task_configs=NEXT))
    (publish,) = driver.pop_effects(SendTaskConfigsToLeader)
    driver.assign(revoked=jobs_of(ORDERS))
    driver.pop_effects(WriteLogMessage)
    ended = TaskConfigsPublicationEnded(connector=ORDERS, config_line_offset=publish.config_line_offset)
    driver.feed(replace(ended, refusal="HTTP 500"))
    assert not driver.pop_effects(WriteLogMessage)


def test_a_refusal_of_its_own_write_is_logged_by_the_leader() -> None:
    driver = herder_with_waiting_tasks(leads=True)
    assert fire_finish_check(driver)
    finish_generation(driver, NEXT)
    driver.pop_effects(WriteLogMessage)
    (find,) = driver.pop_effects(FindConfigLogEnd)
    driver.feed(ConfigLogEndLookupEnded(purpose=find.purpose, end_offset=driver.herder.config.position))
    (append,) = driver.pop_effects(AppendConfigLines)
    driver.feed(ConfigLinesAppendFailed(purpose=append.purpose, reason="the disk is full"))
    assert [message.text.partition(". ")[0] for message in driver.pop_effects(WriteLogMessage)] == [
        "Connector orders: the leader did not accept the task configs that this worker published: "
        "Error writing connector configuration to Kafka"
    ]


def test_the_leader_writes_the_next_task_configs_itself() -> None:
    driver = herder_with_waiting_tasks(leads=True)
    assert fire_finish_check(driver)
    finish_generation(driver, NEXT)
    driver.run_all_chores()
    connector = driver.herder.config.connector(ORDERS)
    assert connector is not None
    assert list(connector.task_configs) == NEXT


def test_nothing_is_published_if_another_worker_finishes_the_generation_or_nothing_changes() -> None:
    for configs, incarnation in (
        (None, INCARNATION),
        (ORDERS_TASK_CONFIGS, INCARNATION),
        (NEXT, Incarnation("former")),
    ):
        driver = herder_with_waiting_tasks()
        assert fire_finish_check(driver)
        finish_generation(driver, configs, incarnation)
        assert not driver.pop_effects(SendTaskConfigsToLeader)


def test_a_worker_that_owns_the_connector_splits_it_instead() -> None:
    assert not fire_finish_check(herder_with_waiting_tasks(has_connector=True))


def test_a_worker_whose_own_split_was_closed_by_another_worker_splits_again() -> None:
    driver = configured_herder()
    driver.assign(assigned=jobs_of(ORDERS, *TASKS))
    driver.run_all_chores()
    driver.write(*config_records.task_config_and_commit_lines(ORDERS, ORDERS_TASK_CONFIGS))
    driver.run_all_chores()
    driver.effects.clear()
    driver.feed(TaskCheckpointClosed(task=TASKS[0]))
    assert len(driver.pop_effects(SplitConnector)) == 1
    driver.feed(TaskCheckpointClosed(task=TASKS[1]))
    assert not driver.pop_effects(SplitConnector), "one split at a time"


def test_a_worker_that_cannot_split_its_connector_finishes_the_generation() -> None:
    driver = herder_with_waiting_tasks(has_connector=True)
    connector = driver.herder.config.connector(ORDERS)
    assert connector is not None
    driver.write(config_records.target_state_line(ORDERS, TargetState.PAUSED))
    driver.write(config_records.target_state_line(ORDERS, TargetState.STARTED))
    driver.feed(
        SplitFailed(connector=ORDERS, config_line_offset=connector.config_line_offset, trace="ended", is_transient=True)
    )
    driver.pop_effects(SplitConnector)
    assert not fire_finish_check(driver), "the worker retries its own split"
    driver.feed(SplitFailed(connector=ORDERS, config_line_offset=connector.config_line_offset, trace="no such option"))
    assert fire_finish_check(driver)
    finish_generation(driver, NEXT)
    (publish,) = driver.pop_effects(SendTaskConfigsToLeader)
    assert list(publish.configs) == NEXT
    assert driver.pop_effects(SplitConnector), "the cause of the failed split may have ended"


def test_an_owner_whose_split_has_failed_splits_again_when_another_worker_has_finished_the_generation() -> None:
    driver = herder_with_waiting_tasks(has_connector=True)
    connector = driver.herder.config.connector(ORDERS)
    assert connector is not None
    driver.feed(SplitFailed(connector=ORDERS, config_line_offset=connector.config_line_offset, trace="disk full"))
    assert driver.last_reported(ORDERS) == (JobState.FAILED, "disk full")
    driver.effects.clear()
    driver.write(*config_records.task_config_and_commit_lines(ORDERS, NEXT))
    assert driver.pop_effects(SplitConnector)


def test_after_a_config_with_another_generation_no_task_waits() -> None:
    driver = herder_with_waiting_tasks()
    driver.write(*TASK_CONFIG_LINES)
    assert not driver.pop_effects(StartTask), "the same config names the same generation"
    assert fire_finish_check(driver)
    driver.write(*config_records.task_config_and_commit_lines(ORDERS, NEXT))
    assert driver.pop_effects(StartTask)
    finish_generation(driver, NEXT)
    assert not fire_finish_check(driver)
    assert not driver.pop_effects(SendTaskConfigsToLeader)
