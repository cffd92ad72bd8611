"""Many queries that start at once do not delay the heartbeats of their worker."""

import pytest

from tests.processes.cluster import CLASSIC_IN_SOAK, GROUP_ID, SESSION_MS, Cluster, Feed

pytestmark = [pytest.mark.processes, pytest.mark.spark, pytest.mark.timeout(300)]

QUERIES = 30


@CLASSIC_IN_SOAK
def test_heartbeat_gaps_stay_below_half_the_session_timeout_while_thirty_queries_start(
    cluster: Cluster, feed: Feed
) -> None:
    cluster.start_broker()
    worker = cluster.start_worker("w0")
    cluster.wait_ready(worker)
    cluster.create(worker, "many", feed.folder, "json", tasks=QUERIES)
    cluster.create(worker, "odd[x]", feed.folder, "json", tasks=1)
    cluster.wait_running([worker], "many", tasks=QUERIES, within_s=120)
    listed = cluster.cli("connectors", "list", "--url", worker.url)
    assert "odd[x]" in listed, "the name was rendered as markup"
    (many,) = [line for line in listed.splitlines() if line.strip().startswith("many")]
    assert f"{QUERIES} RUNNING" in many
    assert cluster.cli("connectors", "status", "many", "--url", worker.url).count("RUNNING") == QUERIES + 1
    assert "being paused" in cluster.cli("connectors", "pause", "odd[x]", "--url", worker.url)
    assert "is deleted" in cluster.cli("connectors", "delete", "odd[x]", "--url", worker.url)
    stall_ms = worker.view()["event_loop"]["longest_stall_ms"]  # type: ignore[index]

    (member,) = cluster.end_broker()["groups"][GROUP_ID].values()
    print(f"heartbeats {member['heartbeats']}, largest gap {member['largest_gap_ms']} ms, longest stall {stall_ms} ms")  # noqa: T201
    assert member["heartbeats"] > 0
    assert member["largest_gap_ms"] < SESSION_MS / 2
