"""The Go module go-kafka-connect, unmodified, which the Terraform provider for connectors uses: each of its methods.

The methods that change a connector wait until they read the change from the same worker.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.rest_clients.conftest import Group, run

pytestmark = pytest.mark.timeout(300)
CONFIG = {"connector.class": "simulated.Source", "tasks.max": "2", "name": "a"}


async def test_each_method(group: Group, go_kafka_connect: Path) -> None:
    async def call(method: str, **request: object) -> Any:
        ended = await run(go_kafka_connect, group.url, method, json.dumps(request))
        assert ended.code == 0, ended.errors
        return json.loads(ended.output)

    assert (await call("GetAll"))["Code"] == 200
    assert (await call("GetConnector", name="a"))["Code"] == 404
    created = await call("CreateConnector", name="a", config=CONFIG)
    assert (created["Code"], created["config"]) == (201, CONFIG)
    await group.follower.until_running("a", 2)
    assert (await call("GetAll"))["Connectors"] == ["a"]

    # A number and a boolean are sent as they are, and read as text.
    config = {**CONFIG, "more": 1, "less": True}
    assert (await call("UpdateConnector", name="a", config=config))["Code"] == 200
    assert (await call("IsUpToDate", name="a", config=config)) is True
    assert (await call("IsUpToDate", name="a", config=CONFIG)) is False
    stored = {**CONFIG, "more": "1", "less": "true"}
    assert (await call("GetConnectorConfig", name="a"))["Config"] == stored
    assert (await call("GetConnector", name="a"))["config"] == stored
    await group.follower.until_running("a", 2)

    assert (await call("PauseConnector", name="a"))["Code"] == 202
    assert (await call("ResumeConnector", name="a"))["Code"] == 202
    await group.follower.until_running("a", 2)
    assert (await call("RestartConnector", name="a"))["Code"] == 204
    await group.follower.until_running("a", 2)
    tasks = (await call("GetAllTasks", name="a"))["Tasks"]
    assert [task["id"] for task in tasks] == [{"connector": "a", "task": number} for number in (0, 1)]
    # Of a task's status the client returns only the HTTP status.
    assert (await call("GetTaskStatus", Connector="a", TaskID=1))["Code"] == 200
    assert (await call("GetTaskStatus", Connector="a", TaskID=7))["Code"] == 404
    assert (await call("RestartTask", Connector="a", TaskID=1))["Code"] == 204
    await group.follower.until_running("a", 2)
    status = await call("GetConnectorStatus", name="a")
    assert (status["Code"], status["connector"]["state"]) == (200, "RUNNING")

    await call("DeployConnector", name="b", config={**CONFIG, "name": "b"})
    await group.follower.until_running("b", 2)
    for name in ("a", "b"):
        assert (await call("DeleteConnector", name=name))["Code"] == 204
    assert (await call("GetAll"))["Connectors"] == []
