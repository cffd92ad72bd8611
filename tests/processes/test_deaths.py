"""Processes are killed one after the other during continuous input: other workers continue their tasks without loss."""

import os
import signal

import pytest

from tests.processes.cluster import CONNECT_IN_SOAK, TASKS, Cluster, Feed, WorkerProcess, until

pytestmark = [pytest.mark.processes, pytest.mark.spark, pytest.mark.timeout(400)]


def followers_first(workers: list[WorkerProcess]) -> list[WorkerProcess]:
    return sorted(workers, key=lambda worker: worker.is_leader())


@CONNECT_IN_SOAK
def test_no_row_is_lost_or_doubled_when_a_python_process_a_jvm_and_the_leader_are_killed(
    cluster: Cluster, feed: Feed
) -> None:
    cluster.start_broker()
    workers = [cluster.start_worker(f"w{number}") for number in range(3)]
    cluster.wait_ready(*workers)
    cluster.create(workers[0], "deaths", feed.folder, "parquet")
    cluster.wait_running(workers, "deaths")
    until(lambda: cluster.committed("deaths") > 0, within_s=60, what="rows are committed")

    # Only the Python process: its JVM ends with it, and the other workers continue after its last batch.
    first, second, leader = followers_first(workers)
    assert leader.is_leader()
    assert first.running(), "the worker that is killed runs nothing"
    first.popen.kill()
    first.wait(within_s=10)
    first.wait_gone()
    cluster.wait_running([second, leader], "deaths")

    # Only the JVM: the worker logs the reason, leaves the group, and exits with an error.
    third = cluster.start_worker("w3")
    cluster.wait_ready(second, leader, third)
    cluster.wait_running([second, leader, third], "deaths")
    assert second.running(), "the worker whose JVM is killed runs nothing"
    os.kill(second.jvm(), signal.SIGKILL)
    assert second.wait(within_s=60) != 0
    assert "was killed by signal 9" in second.log.read_text(), "the log does not contain the reason"
    cluster.wait_running([leader, third], "deaths")

    # The leader: its successor has no record of the jobs it ran, so they are assigned at once, in spite of the delay.
    leader.kill_group()
    leader.wait(within_s=10)
    cluster.wait_running([third], "deaths")
    assert third.is_leader()

    cluster.assert_exact("deaths", feed.stop())
    assert len(cluster.starts("deaths")) == TASKS
