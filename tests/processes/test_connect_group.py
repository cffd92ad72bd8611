"""Real workers on Spark in a connect group: one is killed in the middle of a batch, one is drained, one joins."""

from collections.abc import Iterable

import pytest

from coterie.cli.demo.kill import BatchInFlight, are_batches_repeated_or_raise, kill_in_mid_batch_unless_ended
from coterie.cli.demo.observe import CheckpointFinder
from coterie.cli.processes import Child
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from tests.processes.cluster import Cluster, Feed, WorkerProcess, until

pytestmark = [pytest.mark.processes, pytest.mark.spark, pytest.mark.timeout(600)]

FLOWS = ConnectorName("flows")
TASKS = 6
CONNECT = {"group.protocol": "connect"}
KILL_WITHIN_S = 60


def test_no_row_is_lost_or_doubled_when_workers_of_a_connect_group_are_killed_drained_and_added(
    cluster: Cluster, feed: Feed
) -> None:
    """The start counts are in the checkpoints' names: a task that did not move was not started again."""
    cluster.start_broker()
    workers = [cluster.start_worker(name, properties=CONNECT) for name in ("w0", "w1", "w2")]
    cluster.wait_ready(*workers)
    cluster.create(workers[0], FLOWS, feed.folder, "parquet", tasks=TASKS)
    cluster.wait_running(workers, FLOWS, tasks=TASKS)
    until(lambda: cluster.committed(FLOWS) > 0, within_s=60, what="rows are committed")
    starts = cluster.starts(FLOWS)
    assert starts == dict.fromkeys(range(TASKS), 1)

    killed, goes, stays = sorted(workers, key=lambda worker: worker.is_leader())
    assert stays.is_leader()
    moved = tasks_of(killed)
    interrupted = kill_in_the_middle_of_a_batch(cluster, killed, moved)
    until(
        lambda: are_batches_repeated_or_raise(interrupted, CheckpointFinder(cluster.checkpoints)),
        within_s=60,
        what="the interrupted batches are repeated and committed by other workers",
    )
    cluster.wait_running([goes, stays], FLOWS, tasks=TASKS)
    starts = assert_started_once_more(cluster, starts, moved)

    joins = cluster.start_worker("w3", properties=CONNECT)
    cluster.wait_ready(goes, stays, joins)
    until(lambda: len(joins.running()) == TASKS // 3, within_s=60, what="the new worker runs its share")
    cluster.wait_running([goes, stays, joins], FLOWS, tasks=TASKS)
    starts = assert_started_once_more(cluster, starts, tasks_of(joins))

    moved = tasks_of(goes)
    assert len(moved) == TASKS // 3
    assert f"{goes.name} has handed its jobs over" in cluster.cli("worker", "drain", goes.name, "--url", stays.url)
    assert goes.wait(within_s=30) == 0
    cluster.wait_running([stays, joins], FLOWS, tasks=TASKS)
    assert_started_once_more(cluster, starts, moved)

    cluster.assert_exact(FLOWS, feed.stop())


def tasks_of(worker: WorkerProcess) -> list[ConnectorTaskId]:
    """The tasks of the connector that run on the worker now."""
    running = worker.running()
    return [task for number in range(TASKS) if str(task := ConnectorTaskId(FLOWS, number)) in running]


def kill_in_the_middle_of_a_batch(
    cluster: Cluster, worker: WorkerProcess, tasks: list[ConnectorTaskId]
) -> list[BatchInFlight]:
    """Kill the worker with its JVM while a batch of one of ``tasks`` is planned and not committed."""
    child = Child(worker.name, worker.popen, worker.log, before_reaping=lambda _: None)
    interrupted = kill_in_mid_batch_unless_ended(
        child, tasks, CheckpointFinder(cluster.checkpoints), timeout_s=KILL_WITHIN_S, between_checks=lambda: None
    )
    assert interrupted, f"the worker ended by itself: {worker.tail()}"
    return interrupted


def assert_started_once_more(
    cluster: Cluster, before: dict[int, int], moved: Iterable[ConnectorTaskId]
) -> dict[int, int]:
    """Check that each moved task has been started once since ``before``, and no other; returns the new counts."""
    numbers = {task.task for task in moved}
    after = cluster.starts(FLOWS)
    assert after == {task: count + (task in numbers) for task, count in before.items()}
    return after
