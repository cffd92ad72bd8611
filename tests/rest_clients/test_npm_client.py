"""The npm package kafka-connect-client, unmodified: each of its methods."""

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.rest_clients.conftest import Group, run
from tests.worker.simulated import until

pytestmark = pytest.mark.timeout(300)
SCRIPT = Path(__file__).parent / "npm" / "call.js"
CONFIG = {"connector.class": "simulated.Source", "tasks.max": "2", "topics": "lines"}


async def test_each_method(group: Group, kafka_connect_client: Path) -> None:
    async def call(connector: str, method: str, *args: object) -> tuple[int, Any]:
        port = urlsplit(group.url).port
        ended = await run("node", SCRIPT, kafka_connect_client, str(port), connector, method, json.dumps(args))
        assert ended.code == 0, ended.errors
        answer = json.loads(ended.output)
        return answer["status"], answer.get("data")

    status, cluster = await call("", "getCluster")
    assert (status, cluster["kafka_cluster_id"]) == (200, "simulated")
    assert (await call("", "getConnectors")) == (200, [])
    status, created = await call("", "createConnector", "a", CONFIG)
    assert (status, created["name"], created["config"]) == (201, "a", {**CONFIG, "name": "a"})
    assert (await call("", "createConnector", "a", CONFIG))[0] == 409
    await group.follower.until_running("a", 2)
    assert (await call("b", "create", CONFIG))[0] == 201
    await group.follower.until_running("b", 2)
    status, expanded = await call("", "getConnectors", {"expand": "status"})
    assert (status, expanded["a"]["status"]["connector"]["state"]) == (200, "RUNNING")
    assert {plugin["type"] for plugin in (await call("", "getConnectorPlugins", {}))[1]} == {"source", "sink"}
    all_plugins = (await call("", "getConnectorPlugins", {"connectorsOnly": False}))[1]
    assert "transformation" in {plugin["type"] for plugin in all_plugins}
    status, infos = await call("", "validateConnectorConfig", "Source", {**CONFIG, "name": "c", "tasks.max": "x"})
    errors = {info["value"]["name"]: info["value"]["errors"] for info in infos["configs"] if info["value"]["errors"]}
    assert (status, list(errors)) == (200, ["tasks.max"]), errors

    status, info = await call("a", "get")
    assert (status, info["tasks"]) == (200, [{"connector": "a", "task": 0}, {"connector": "a", "task": 1}])
    assert (await call("a", "updateConfig", {**CONFIG, "tasks.max": "1"}))[0] == 200
    await group.follower.until_running("a", 1)
    assert (await call("a", "getConfig"))[1] == {**CONFIG, "tasks.max": "1", "name": "a"}
    assert (await call("a", "getStatus"))[1]["tasks"][0]["state"] == "RUNNING"
    assert [task["id"] for task in (await call("a", "getTasks"))[1]] == [{"connector": "a", "task": 0}]
    assert (await call("a", "getTaskStatus", 0))[1]["state"] == "RUNNING"
    assert (await call("a", "getTaskStatus", 7))[0] == 404
    # The client sends the options as a body, which Connect and Coterie ignore.
    assert (await call("a", "restart", {"includeTasks": True}))[0] == 204
    # The client sends these requests as forms without fields. Connect refuses them with the same status.
    for method in ("pause", "resume", "stop", "resetTopics"):
        assert (await call("a", method))[0] == 415
    assert (await call("a", "restartTask", 0))[0] == 415
    assert await group.states("a") == ["RUNNING", "RUNNING"]
    assert (await group.follower.ask("PUT", "/connectors/a/stop")).status_code == 204

    async def is_stopped() -> bool:
        return await group.states("a") == ["STOPPED"]

    await until(is_stopped)
    offset = {"partition": {"file": "x"}, "offset": {"position": 3}}
    assert (await call("a", "alterOffsets", [offset]))[0] == 200
    assert (await call("a", "getOffsets")) == (200, {"offsets": [offset]})
    assert (await call("a", "resetOffsets"))[0] == 200
    assert (await call("a", "getOffsets")) == (200, {"offsets": []})
    assert (await call("a", "delete")) == (204, "")
    assert (await call("a", "get"))[0] == 404
    # Not called: getTopics, which parses no response of any server (it reads a field of the response's text).
