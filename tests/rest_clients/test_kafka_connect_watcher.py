"""kafka-connect-watcher, unmodified, and kafka-connect-api, the client that it uses: each of their requests."""

import asyncio
import json
import signal
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from tests.rest_clients.conftest import Group, run
from tests.worker.simulated import until

pytestmark = pytest.mark.timeout(300)

CALLS = """
import json, sys
from kafka_connect_api.kafka_connect_api import Api, Cluster, Connector
from kafka_connect_api.errors import GenericNotFound

cluster = Cluster(Api("127.0.0.1", port=int(sys.argv[1])))
a = cluster.connectors["a"]
assert cluster.kafka_cluster == "simulated" and cluster.version
assert cluster.root_logger["level"] in ("INFO", "WARN")
cluster.root_logger = "WARN"
assert cluster.root_logger["level"] == "WARN"
assert "coterie.audit" in cluster.set_logger_log_level("coterie.audit", "DEBUG")
assert a.exists() and a.connector_class == "simulated.Source" and a.state == "RUNNING"
assert [(task.id, task.state, task.is_running()) for task in a.tasks] == [(0, "RUNNING", True), (1, "RUNNING", True)]
a.restart()
a.restart_all_tasks()
a.pause()
a.resume()
a.cycle_connector()
a.config = {**a.config, "more": "1"}
assert a.config["more"] == "1"
a.delete()
nope = Connector(cluster, "a")
for read in (nope.exists, lambda: nope.status):
    try:
        assert read() is False
    except GenericNotFound as error:
        assert error.code == 404
print("done")
"""


async def test_each_method_of_kafka_connect_api(group: Group, kafka_connect_watcher: Path) -> None:
    await group.create("a")
    ended = await run(kafka_connect_watcher / "python", "-c", CALLS, str(urlsplit(group.url).port))
    assert (ended.code, ended.output) == (0, "done\n"), ended.errors


async def test_the_watcher_repairs_failed_and_paused_connectors(
    group: Group, kafka_connect_watcher: Path, tmp_path: Path
) -> None:
    for name in ("good", "failed", "paused"):
        await group.create(name)
    failed = ConnectorTaskId(ConnectorName("failed"), 0)
    owner = next(runtime for runtime in group.runtimes if failed in runtime.running)
    owner.fail_query(failed, "the disk is full", can_restart=False)
    await group.follower.ask("PUT", "/connectors/paused/pause")

    async def need_repair() -> bool:
        return (
            await group.states("failed") == ["RUNNING", "FAILED", "RUNNING"]
            and await group.states("paused") == ["PAUSED"] * 3
        )

    await until(need_repair)
    rules = [{"auto_correct_actions": [{"action": "cycle"}]}]
    cluster = {"name": "coterie", "hostname": "127.0.0.1", "port": urlsplit(group.url).port, "evaluation_rules": rules}
    config = tmp_path / "watcher.json"
    config.write_text(json.dumps({"watch_interval": "2s", "clusters": [cluster]}))
    watcher = await asyncio.create_subprocess_exec(
        kafka_connect_watcher / "kafka-connect-watcher",
        "-c",
        str(config),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:

        async def are_repaired() -> bool:
            return all([await group.states(name) == ["RUNNING"] * 3 for name in ("good", "failed", "paused")])

        await until(are_repaired, within_s=60)
    finally:
        watcher.send_signal(signal.SIGTERM)
        output, _ = await watcher.communicate()
    assert b"Traceback" not in output, output.decode()
