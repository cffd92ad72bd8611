"""Real workers on Spark: restarts without losing their memberships, and a drain that moves all tasks before the end."""

from dataclasses import replace
from typing import Any

import pytest

from coterie.nouns.membership import GroupProtocolName
from tests.processes.cluster import CLASSIC_IN_SOAK, TASKS, Cluster, Feed

pytestmark = [pytest.mark.processes, pytest.mark.spark, pytest.mark.timeout(600)]


@CLASSIC_IN_SOAK
def test_workers_restart_one_by_one_and_keep_their_memberships_and_one_is_drained(
    cluster: Cluster, feed: Feed, group_protocol: GroupProtocolName
) -> None:
    """The start counts are in the checkpoints' names: every start by assignment takes a task over. The restarts change
    nothing in a connect group: no epoch, no target, no member and no leader."""
    # A worker whose restart takes longer than its session loses its membership; on a busy machine Spark takes minutes.
    cluster.session_ms = 300_000
    cluster.start_broker()
    workers = [cluster.start_worker(name) for name in ("w0", "w1")]
    cluster.wait_ready(*workers)
    cluster.create(workers[0], "lasting", feed.folder, "parquet")
    cluster.wait_running(workers, "lasting")
    owned = [worker.running() for worker in workers]
    assert [len(tasks) for tasks in owned] == [2, 2]
    assert cluster.starts("lasting") == dict.fromkeys(range(TASKS), 1)
    jvms = [worker.jvm() for worker in workers]
    cluster.wait_ready(*workers)
    before = described(cluster) if group_protocol is GroupProtocolName.CONNECT else None

    output = cluster.cli("workers", "restart", "--rolling", "--timeout", "250", "--url", workers[0].url)
    assert "All 2 workers have restarted." in output, output
    assert output.count("run again") == 2, output
    assert [worker.running() for worker in workers] == owned
    if group_protocol is GroupProtocolName.CONNECT:
        assert described(cluster) == before
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
    if group_protocol is GroupProtocolName.CONNECT:
        stats = cluster.end_broker()["connect"]
        assert stats["removals"] == {"left": 1}, "only the drained worker"
        assert not stats["refusals"].keys() & {"FENCED_MEMBER_EPOCH", "UNKNOWN_MEMBER_ID"}


def described(cluster: Cluster) -> Any:
    """The group as its coordinator describes it, without the config offsets."""
    group = cluster.describe_connect_group()
    return replace(group, config_offset=0, members=[replace(member, config_offset=0) for member in group.members])
