"""Outages that end: a worker that may have lost its jobs stops its tasks in time, and later rejoins without loss."""

import signal

import pytest

from benchmarks.http_client import http
from tests.processes.cluster import CLASSIC_IN_SOAK, TASKS, Cluster, Feed, until
from tests.processes.proxy import Proxy

SESSION_MS = 20_000
"""A worker waits for two thirds of it; on a busy machine a killed broker took 6 s to restart."""

pytestmark = [pytest.mark.processes, pytest.mark.spark, pytest.mark.timeout(400)]


@CLASSIC_IN_SOAK
def test_a_broker_restart_stops_no_task_and_a_cut_or_frozen_worker_loses_no_row(cluster: Cluster, feed: Feed) -> None:
    cluster.session_ms = SESSION_MS
    broker = cluster.start_broker()
    proxy = Proxy(cluster.broker_port)
    proxy.start()
    try:
        steady = cluster.start_worker("steady")
        # When the proxy closes a connection, the worker has not ended.
        properties = {"connection.grace.ms": "0"}
        shaky = cluster.start_worker("shaky", bootstrap_port=proxy.port, properties=properties)
        cluster.wait_ready(steady, shaky)
        cluster.create(steady, "outages", feed.folder, "json")
        cluster.wait_running([steady, shaky], "outages")
        until(lambda: cluster.committed("outages") > 0, within_s=60, what="rows are committed")
        before = cluster.starts("outages")

        # The broker is killed and restarts within the session timeout: no task stops, no config or membership is lost.
        config = http.get(f"{shaky.url}/connectors/outages/config", timeout=20).json()
        generation = steady.view()["group"]["generation"]  # type: ignore[index]
        broker.kill_group()
        broker.wait(within_s=10)
        cluster.start_broker()
        done = cluster.committed("outages")
        until(lambda: cluster.committed("outages") > done, within_s=60, what="rows are committed after the restart")
        for worker in (steady, shaky):
            until(lambda w=worker: (w.view() or {}).get("group", {}).get("settled"), within_s=30, what="it is settled")  # type: ignore[misc]
        assert steady.view()["group"]["generation"] == generation  # type: ignore[index]
        assert cluster.starts("outages") == before
        for worker in (steady, shaky):
            assert http.get(f"{worker.url}/connectors/outages/config", timeout=20).json() == config

        # Disconnected: the worker stops its tasks within its session timeout, and the other worker continues them.
        assert shaky.running()
        proxy.cut()
        until(lambda: not shaky.running(), within_s=SESSION_MS / 1000, what="the cut worker has stopped its tasks")
        cluster.wait_running([steady], "outages")
        proxy.heal()
        cluster.wait_ready(steady, shaky)
        cluster.wait_running([steady, shaky], "outages")

        # Frozen, Python and JVM, for longer than the session timeout: afterwards another worker owns its tasks.
        assert shaky.running()
        shaky.kill_group(signal.SIGSTOP)
        cluster.wait_running([steady], "outages")
        shaky.kill_group(signal.SIGCONT)
        cluster.wait_ready(steady, shaky)
        cluster.wait_running([steady, shaky], "outages")

        cluster.assert_exact("outages", feed.stop())
        assert len(cluster.starts("outages")) == TASKS
    finally:
        proxy.stop()
