"""Connector instances in a driven herder: which worker publishes the task configs, and when it repeats that."""

import pytest

from coterie.engine.log import TopicRecord
from coterie.herder import config_records, statuses
from coterie.herder.messages import (
    SendTaskConfigsToLeader,
    SetTimer,
    SplitConnector,
    SplitFailed,
    SplitSucceeded,
    StatusLinesRead,
    StopConnector,
    TaskConfigsPublicationEnded,
    TimerFired,
)
from coterie.herder.seams import SourcePartsChanged
from coterie.herder.status_records import Status, status_line_of_job
from coterie.herder.timers import ConnectorRetryDue
from coterie.nouns.ids import GenerationId, Incarnation, WorkerId
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Jobs
from coterie.nouns.states import JobState, TargetState
from tests.herder.herder_driver import ME, SESSION_TIMEOUT_MS, HerderDriver, lease_renewed

ORDERS = ConnectorName("orders")
CONFIG = {"connector.class": "Any", "tasks.max": "2"}
TASK_CONFIGS = [{"share": "0"}, {"share": "1"}]
TASK_CONFIG_LINES = config_records.task_config_and_commit_lines(ORDERS, TASK_CONFIGS)
STOP = (
    *config_records.task_config_and_commit_lines(ORDERS, ()),
    config_records.target_state_line(ORDERS, TargetState.STOPPED),
)
RESUME = config_records.target_state_line(ORDERS, TargetState.STARTED)


def owner_after_split() -> tuple[HerderDriver, int]:
    """A herder that owns one connector and has split it; and the offset of the config."""
    herder = HerderDriver()
    herder.open_runtime()
    herder.write(config_records.connector_line(ORDERS, CONFIG, Incarnation("incarnation-0")))
    herder.assign(assigned=Jobs(frozenset([ORDERS])))
    (split,) = herder.pop_effects(SplitConnector)
    herder.feed(
        SplitSucceeded(connector=ORDERS, config_line_offset=split.config_line_offset, task_configs=TASK_CONFIGS)
    )
    return herder, split.config_line_offset


def test_changed_source_parts_cause_a_split_that_is_published_only_if_the_task_configs_differ() -> None:
    for configs in (TASK_CONFIGS, [*TASK_CONFIGS, {"share": "2"}]):
        herder, written_at = owner_after_split()
        herder.write(*TASK_CONFIG_LINES)
        herder.feed(TaskConfigsPublicationEnded(connector=ORDERS, config_line_offset=written_at))
        herder.pop_effects(SendTaskConfigsToLeader)
        herder.feed(SourcePartsChanged(connector=ORDERS))
        (split,) = herder.pop_effects(SplitConnector)
        herder.feed(SourcePartsChanged(connector=ORDERS))
        assert not herder.pop_effects(SplitConnector), "one split at a time"
        assert split.config_line_offset == written_at
        herder.feed(SplitSucceeded(connector=ORDERS, config_line_offset=written_at, task_configs=configs))
        assert [list(order.configs) for order in herder.pop_effects(SendTaskConfigsToLeader)] == [configs] * (
            configs != TASK_CONFIGS
        )


def test_changed_source_parts_of_a_paused_or_foreign_connector_have_no_effect() -> None:
    herder, _ = owner_after_split()
    herder.write(config_records.target_state_line(ORDERS, TargetState.PAUSED))
    herder.feed(SourcePartsChanged(connector=ORDERS))
    herder.assign(assigned=NO_JOBS, revoked=Jobs(frozenset([ORDERS])))
    herder.feed(SourcePartsChanged(connector=ORDERS))
    assert not herder.pop_effects(SplitConnector)


def test_task_configs_that_are_read_back_unchanged_are_published_once() -> None:
    for read_first in (True, False):
        herder, written_at = owner_after_split()
        assert len(herder.pop_effects(SendTaskConfigsToLeader)) == 1
        if read_first:
            herder.write(*TASK_CONFIG_LINES)
        herder.feed(TaskConfigsPublicationEnded(connector=ORDERS, config_line_offset=written_at))
        if not read_first:
            assert not herder.pop_effects(SendTaskConfigsToLeader), (
                "the leader has written them; only the reading back is missing"
            )
            herder.write(*TASK_CONFIG_LINES)
        assert not herder.pop_effects(SendTaskConfigsToLeader)


def test_a_stop_and_resume_that_are_read_together_keep_the_connectors_tasks() -> None:
    herder, written_at = owner_after_split()
    herder.write(*TASK_CONFIG_LINES)
    herder.feed(TaskConfigsPublicationEnded(connector=ORDERS, config_line_offset=written_at))
    herder.pop_effects(SendTaskConfigsToLeader)
    herder.write(*STOP, RESUME)
    (again,) = herder.pop_effects(SendTaskConfigsToLeader)
    assert list(again.configs) == TASK_CONFIGS
    herder.feed(TaskConfigsPublicationEnded(connector=ORDERS, config_line_offset=written_at))
    herder.write(*TASK_CONFIG_LINES)
    assert not herder.pop_effects(SendTaskConfigsToLeader)


def test_only_the_owner_publishes_its_task_configs_again_after_another_worker_overwrote_them() -> None:
    herder, written_at = owner_after_split()
    herder.write(*TASK_CONFIG_LINES)
    herder.feed(TaskConfigsPublicationEnded(connector=ORDERS, config_line_offset=written_at))
    herder.pop_effects(SendTaskConfigsToLeader)
    herder.write(*config_records.task_config_and_commit_lines(ORDERS, [{"share": "of a former owner"}]))
    assert len(herder.pop_effects(SendTaskConfigsToLeader)) == 1
    herder.assign(assigned=NO_JOBS, revoked=Jobs(frozenset([ORDERS])))
    herder.write(*config_records.task_config_and_commit_lines(ORDERS, [{"share": "of a former owner"}]))
    assert not herder.pop_effects(SendTaskConfigsToLeader)


def test_an_unvalidated_config_is_split_with_the_checkpointed_task_configs() -> None:
    herder, _ = owner_after_split()
    herder.write(*TASK_CONFIG_LINES)
    herder.pop_effects(SendTaskConfigsToLeader)
    herder.write(config_records.connector_line(ORDERS, {**CONFIG, "tasks.max": "3"}, Incarnation("incarnation-0")))
    (split,) = herder.pop_effects(SplitConnector)
    assert list(split.configs_of_checkpointed_tasks) == TASK_CONFIGS
    herder.feed(SplitFailed(connector=ORDERS, config_line_offset=split.config_line_offset, trace="no"))
    assert not herder.pop_effects(SendTaskConfigsToLeader)
    assert herder.herder.config.committed_tasks(ORDERS) == (ConnectorTaskId(ORDERS, 0), ConnectorTaskId(ORDERS, 1))


def test_a_leader_does_not_write_the_task_configs_of_a_deleted_connector_for_the_one_created_again() -> None:
    herder = HerderDriver()
    herder.open_runtime()
    herder.write(config_records.connector_line(ORDERS, CONFIG, Incarnation("incarnation-0")))
    herder.assign(assigned=Jobs(frozenset([ORDERS])), leader=ME)
    (split,) = herder.pop_effects(SplitConnector)
    herder.feed(
        SplitSucceeded(connector=ORDERS, config_line_offset=split.config_line_offset, task_configs=[{"of": "deleted"}])
    )
    assert len(herder.herder.requests.writes) == 1, "the write of the task configs waits for the log's end"
    herder.write(
        *config_records.connector_and_target_state_tombstones(ORDERS),
        config_records.connector_line(ORDERS, CONFIG, Incarnation("incarnation-1")),
    )
    herder.run_all_chores()
    connector = herder.herder.config.connector(ORDERS)
    assert connector is not None
    written = [line.value for line in herder.config if line.key == b"task-orders-0"]
    assert written == [b'{"properties":{"share":"0/2"},"incarnation":"incarnation-1"}']
    assert connector.task_configs == ({"share": "0/2"}, {"share": "1/2"})


# -- a split that fails, or is no longer needed ------------------------------------------------------------------------


def last_reported_status(herder: HerderDriver) -> tuple[JobState, str | None] | None:
    return herder.last_reported(ORDERS)


def publish(herder: HerderDriver, config_line_offset: int) -> None:
    """The task configs of the split are published and read back."""
    herder.write(*TASK_CONFIG_LINES)
    herder.feed(TaskConfigsPublicationEnded(connector=ORDERS, config_line_offset=config_line_offset))
    herder.effects.clear()


def append_task_status(herder: HerderDriver, number: int, state: JobState, trace: str | None = None) -> None:
    """Another worker writes the task's status to the status topic."""
    status = Status(state=state, worker_id=WorkerId("there:8083"), generation=GenerationId(1), trace=trace)
    line = status_line_of_job(ConnectorTaskId(ORDERS, number), status)
    herder.feed(
        StatusLinesRead(lines=[TopicRecord(partition=0, offset=0, timestamp_ms=0, key=line.key, value=line.value)])
    )


def test_a_split_with_a_transient_error_is_reported_and_retried_with_growing_delays() -> None:
    herder, written_at = owner_after_split()
    publish(herder, written_at)
    herder.feed(SourcePartsChanged(connector=ORDERS))
    delays_ms: list[int] = []
    for _ in range(4):
        (split,) = herder.pop_effects(SplitConnector)
        failed = SplitFailed(
            connector=ORDERS, config_line_offset=written_at, trace="the server cannot be reached", is_transient=True
        )
        herder.feed(failed)
        assert last_reported_status(herder) == (JobState.RESTARTING, "the server cannot be reached")
        assert not herder.pop_effects(SplitConnector), "not before the retry delay"
        (timer,) = [order for order in herder.pop_effects(SetTimer) if isinstance(order.timer, ConnectorRetryDue)]
        delays_ms.append(timer.at_ms - herder.now_ms)
        herder.now_ms = timer.at_ms
        herder.feed(TimerFired(timer=timer.timer))
        assert last_reported_status(herder) == (JobState.RESTARTING, "the server cannot be reached"), (
            "also during the retry"
        )
    assert delays_ms == [250, 500, 1_000, 2_000]
    (split,) = herder.pop_effects(SplitConnector)
    assert split.config_line_offset == written_at
    herder.feed(SplitSucceeded(connector=ORDERS, config_line_offset=written_at, task_configs=TASK_CONFIGS))
    assert last_reported_status(herder) == (JobState.RUNNING, None)
    assert not herder.pop_effects(SendTaskConfigsToLeader)


def test_a_changed_config_is_split_without_waiting_for_the_next_retry() -> None:
    herder, written_at = owner_after_split()
    publish(herder, written_at)
    herder.feed(SourcePartsChanged(connector=ORDERS))
    herder.pop_effects(SplitConnector)
    herder.feed(SplitFailed(connector=ORDERS, config_line_offset=written_at, trace="unreachable", is_transient=True))
    herder.write(config_records.connector_line(ORDERS, {**CONFIG, "tasks.max": "3"}, Incarnation("incarnation-0")))
    assert [split.config["tasks.max"] for split in herder.pop_effects(SplitConnector)] == ["3"]


def test_a_split_that_failed_permanently_is_not_retried() -> None:
    herder, written_at = owner_after_split()
    publish(herder, written_at)
    herder.feed(SourcePartsChanged(connector=ORDERS))
    herder.pop_effects(SplitConnector)
    herder.feed(SplitFailed(connector=ORDERS, config_line_offset=written_at, trace="batch 4 of task 1 fails"))
    herder.now_ms += 100_000
    herder.feed(lease_renewed(sent_at_ms=herder.now_ms))
    herder.feed(TimerFired(timer=ConnectorRetryDue(connector=ORDERS)))
    assert not herder.pop_effects(SplitConnector)
    assert last_reported_status(herder) == (JobState.FAILED, "batch 4 of task 1 fails")


def test_an_unwanted_split_is_stopped_once_and_the_next_one_waits_for_its_end() -> None:
    changed = config_records.connector_line(ORDERS, {**CONFIG, "tasks.max": "3"}, Incarnation("incarnation-0"))
    paused = config_records.target_state_line(ORDERS, TargetState.PAUSED)
    for line in (changed, paused, None):
        herder, written_at = owner_after_split()
        publish(herder, written_at)
        herder.feed(SourcePartsChanged(connector=ORDERS))
        herder.pop_effects(SplitConnector)
        if line is not None:
            herder.write(line)
        else:
            herder.assign(assigned=NO_JOBS, revoked=Jobs(frozenset([ORDERS])))
        assert herder.pop_effects(StopConnector) == [StopConnector(connector=ORDERS)]
        herder.feed(TimerFired(timer="behind"))
        assert not herder.pop_effects(StopConnector)
        assert not herder.pop_effects(SplitConnector)
        herder.feed(SplitFailed(connector=ORDERS, config_line_offset=written_at, trace="ended here", is_transient=True))
        assert len(herder.pop_effects(SplitConnector)) == (line is changed)
        assert not herder.pop_effects(StopConnector)


def test_a_paused_or_revoked_connector_is_stopped() -> None:
    herder, written_at = owner_after_split()
    publish(herder, written_at)
    herder.write(config_records.target_state_line(ORDERS, TargetState.PAUSED))
    assert herder.pop_effects(StopConnector) == [StopConnector(connector=ORDERS)]
    herder.write(RESUME)
    (split,) = herder.pop_effects(SplitConnector)
    herder.feed(
        SplitSucceeded(connector=ORDERS, config_line_offset=split.config_line_offset, task_configs=TASK_CONFIGS)
    )
    herder.assign(assigned=NO_JOBS, revoked=Jobs(frozenset([ORDERS])))
    assert herder.pop_effects(StopConnector) == [StopConnector(connector=ORDERS)]


def test_a_worker_with_an_expired_lease_splits_nothing_until_the_next_heartbeat_response() -> None:
    herder, written_at = owner_after_split()
    publish(herder, written_at)
    herder.feed(lease_renewed(sent_at_ms=herder.now_ms))
    herder.now_ms += SESSION_TIMEOUT_MS
    herder.feed(SourcePartsChanged(connector=ORDERS))
    assert not herder.pop_effects(SplitConnector)
    herder.feed(lease_renewed(sent_at_ms=herder.now_ms))
    assert len(herder.pop_effects(SplitConnector)) == 1


# -- a failed task -----------------------------------------------------------------------------------------------------


def test_while_a_task_is_failed_a_split_keeps_the_source_parts_and_is_repeated_afterwards() -> None:
    herder, written_at = owner_after_split()
    publish(herder, written_at)
    append_task_status(herder, 1, JobState.FAILED)
    herder.feed(SourcePartsChanged(connector=ORDERS))
    (split,) = herder.pop_effects(SplitConnector)
    assert split.keeps_source_parts
    herder.feed(
        SplitSucceeded(
            connector=ORDERS, config_line_offset=written_at, task_configs=TASK_CONFIGS, kept_source_parts_reason="kept"
        )
    )
    append_task_status(herder, 0, JobState.RUNNING)
    assert not herder.pop_effects(SplitConnector)
    assert not herder.pop_effects(SendTaskConfigsToLeader)
    append_task_status(herder, 1, JobState.RUNNING)
    (split,) = herder.pop_effects(SplitConnector)
    assert not split.keeps_source_parts


def test_a_split_that_a_failed_task_has_not_postponed_is_not_repeated() -> None:
    herder, written_at = owner_after_split()
    publish(herder, written_at)
    append_task_status(herder, 1, JobState.FAILED)
    herder.feed(SourcePartsChanged(connector=ORDERS))
    assert herder.pop_effects(SplitConnector)
    herder.feed(SplitSucceeded(connector=ORDERS, config_line_offset=written_at, task_configs=TASK_CONFIGS))
    append_task_status(herder, 1, JobState.RUNNING)
    assert not herder.pop_effects(SplitConnector)


def test_a_connector_whose_split_a_failed_task_postpones_shows_the_reason_until_it_is_split() -> None:
    herder, written_at = owner_after_split()
    publish(herder, written_at)
    append_task_status(herder, 1, JobState.FAILED)
    for kept_source_parts_reason, reported in (
        (None, (JobState.RUNNING, None)),
        ("kept", (JobState.RESTARTING, "kept")),
    ):
        herder.feed(SourcePartsChanged(connector=ORDERS))
        herder.feed(
            SplitSucceeded(
                connector=ORDERS,
                config_line_offset=written_at,
                task_configs=TASK_CONFIGS,
                kept_source_parts_reason=kept_source_parts_reason,
            )
        )
        assert last_reported_status(herder) == reported
    append_task_status(herder, 0, JobState.RUNNING)
    assert last_reported_status(herder) == (JobState.RESTARTING, "kept")
    append_task_status(herder, 1, JobState.RUNNING)
    herder.feed(SplitSucceeded(connector=ORDERS, config_line_offset=written_at, task_configs=TASK_CONFIGS))
    assert last_reported_status(herder) == (JobState.RUNNING, None)


@pytest.mark.parametrize(
    ("trace", "is_failing"),
    [
        ("The query has failed (failures without progress: 9)", True),
        (None, False),
        (statuses.WAITS_FOR_CONFIG_TRACE, False),
    ],
    ids=["after errors", "ordered", "waits for its config"],
)
def test_a_task_that_restarts_after_errors_counts_as_failed(trace: str | None, is_failing: bool) -> None:
    herder, written_at = owner_after_split()
    publish(herder, written_at)
    append_task_status(herder, 1, JobState.RESTARTING, trace)
    herder.feed(SourcePartsChanged(connector=ORDERS))
    (split,) = herder.pop_effects(SplitConnector)
    assert split.keeps_source_parts == is_failing


def test_a_connector_whose_task_configs_are_refused_again_and_again_shows_the_reason() -> None:
    herder, written_at = owner_after_split()
    refused = TaskConfigsPublicationEnded(connector=ORDERS, config_line_offset=written_at, refusal="HTTP 413: too long")
    seen = []
    for _ in range(8):
        assert herder.pop_effects(SendTaskConfigsToLeader)
        herder.feed(refused)
        seen.append(herder.last_reported(ORDERS))
        herder.now_ms += 60_000
        herder.feed(TimerFired(timer=ConnectorRetryDue(connector=ORDERS)))
    text = "The leader has not accepted the connector's task configs; they are sent again: HTTP 413: too long"
    assert seen == [(JobState.RUNNING, None)] * 6 + [(JobState.RESTARTING, text)] * 2
    publish(herder, written_at)
    assert herder.last_reported(ORDERS) == (JobState.RUNNING, None)


def test_a_changed_config_reaches_a_failed_task() -> None:
    herder, written_at = owner_after_split()
    publish(herder, written_at)
    append_task_status(herder, 1, JobState.FAILED)
    herder.write(config_records.connector_line(ORDERS, {**CONFIG, "transforms": "t"}, Incarnation("incarnation-0")))
    (split,) = herder.pop_effects(SplitConnector)
    assert split.keeps_source_parts
    changed_configs = [{**share, "transforms": "t"} for share in TASK_CONFIGS]
    herder.feed(
        SplitSucceeded(connector=ORDERS, config_line_offset=split.config_line_offset, task_configs=changed_configs)
    )
    (order,) = herder.pop_effects(SendTaskConfigsToLeader)
    assert list(order.configs) == changed_configs
