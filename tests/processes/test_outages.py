"""Outages that end: whoever cannot know that it still owns its work stops it in time, and comes back without harm."""

import signal

import httpx
import pytest

from tests.processes.cluster import TASKS, Cluster, Feed, until
from tests.processes.proxy import Proxy

SESSION_MS = 20_000
"""A worker waits for two thirds of it, and a broker that was killed took 6 s to be back where much else ran."""

pytestmark = [pytest.mark.processes, pytest.mark.spark, pytest.mark.timeout(400)]


def test_a_broker_restart_stops_nothing_and_a_cut_or_frozen_worker_loses_its_tasks_but_no_row(
    cluster: Cluster, feed: Feed
) -> None:
    broker = cluster.start_broker()
    proxy = Proxy(cluster.broker_port)
    proxy.start()
    try:
        session = {"session.timeout.ms": str(SESSION_MS)}
        steady = cluster.start_worker("steady", properties=session)
        shaky = cluster.start_worker("shaky", bootstrap_port=proxy.port, properties=session)
        cluster.wait_ready(steady, shaky)
        cluster.create(steady, "outages", feed.folder, "json")
        cluster.wait_running([steady, shaky], "outages")
        until(lambda: cluster.committed("outages") > 0, within_s=60, what="rows are committed")
        before = cluster.starts("outages")

        # The broker dies and is back within the session timeout: no task stops, no config and nobody's place is lost.
        config = httpx.get(f"{shaky.url}/connectors/outages/config", timeout=20).json()
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
            assert httpx.get(f"{worker.url}/connectors/outages/config", timeout=20).json() == config

        # Cut off: it stops its tasks by itself within its session timeout, and the other goes on with them.
        assert shaky.running()
        proxy.cut()
        until(lambda: not shaky.running(), within_s=SESSION_MS / 1000, what="the cut worker has stopped its tasks")
        cluster.wait_running([steady], "outages")
        proxy.heal()
        cluster.wait_ready(steady, shaky)
        cluster.wait_running([steady, shaky], "outages")

        # Frozen, Python and JVM, past its session timeout: when it thaws its tasks are another's, and stay so.
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
