"""Real workers on Spark: restarts without losing their memberships, and a drain that moves all tasks before the end."""

import pytest

from tests.processes.cluster import TASKS, Cluster, Feed

pytestmark = [pytest.mark.processes, pytest.mark.spark, pytest.mark.timeout(600)]


def test_workers_restart_one_by_one_and_keep_their_memberships_and_one_is_drained(cluster: Cluster, feed: Feed) -> None:
    """The start counts are in the checkpoints' names: every start by assignment takes a task over."""
    cluster.start_broker()
    # A worker whose restart takes longer than its session loses its membership; on a busy machine Spark takes minutes.
    workers = [cluster.start_worker(name, properties={"session.timeout.ms": "300000"}) for name in ("w0", "w1")]
    cluster.wait_ready(*workers)
    cluster.create(workers[0], "lasting", feed.folder, "parquet")
    cluster.wait_running(workers, "lasting")
    owned = [worker.running() for worker in workers]
    assert [len(tasks) for tasks in owned] == [2, 2]
    assert cluster.starts("lasting") == dict.fromkeys(range(TASKS), 1)
    jvms = [worker.jvm() for worker in workers]

    output = cluster.cli("workers", "restart", "--rolling", "--timeout", "250", "--url", workers[0].url)
    assert "All 2 workers have restarted." in output, output
    assert output.count("run again") == 2, output
    assert [worker.running() for worker in workers] == owned
    assert cluster.starts("lasting") == dict.fromkeys(range(TASKS), 2)
    assert all(worker.popen.poll() is None for worker in workers), "a process has ended"
    assert not set(jvms) & {worker.jvm() for worker in workers}, "a JVM was not replaced"

    stays, goes = workers
    output = cluster.cli("worker", "drain", "w1", "--url", goes.url)
    assert "w1 has handed its jobs over and has ended." in output
    assert goes.wait(within_s=30) == 0
    goes.wait_gone()
    cluster.wait_running([stays], "lasting")
    moved = {task: 3 if f"lasting-{task}" in owned[1] else 2 for task in range(TASKS)}
    assert cluster.starts("lasting") == moved, "a task that did not move was restarted"
    assert "lasting" in cluster.cli("connectors", "list", "--url", stays.url)
    cluster.assert_exact("lasting", feed.stop())
