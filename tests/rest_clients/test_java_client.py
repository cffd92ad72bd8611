"""The Java library kafka-connect-client (org.sourcelab), unmodified, which AKHQ uses: each of its methods."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError

from tests.rest_clients.conftest import Group
from tests.spark.sinks.kafka_jvm import running_jvm

pytestmark = pytest.mark.timeout(300)
CONFIG = {"connector.class": "simulated.Source", "tasks.max": "2"}
STORED = {**CONFIG, "name": "a"}
BOTH_TASKS = [("a", 0), ("a", 1)]


async def test_each_method(group: Group, java_kafka_connect_client: Path) -> None:
    with running_jvm(java_kafka_connect_client) as java:
        api = java.org.sourcelab.kafka.connect.apiclient
        client = api.KafkaConnectClient(api.Configuration(group.url))
        dto = api.request.dto

        def config(**more: str) -> Any:
            map_of_java = java.java.util.HashMap()
            for key, value in {**CONFIG, **more}.items():
                map_of_java[key] = value
            return map_of_java

        async def call(method: str, *arguments: object) -> Any:
            """On a thread: the workers that respond use the event loop."""
            return await asyncio.to_thread(getattr(client, method), *arguments)

        async def error_of(method: str, *arguments: object) -> tuple[str, str]:
            """The class and the message of the client's exception."""
            with pytest.raises(Py4JJavaError) as caught:
                await call(method, *arguments)
            exception = caught.value.java_exception
            return exception.getClass().getSimpleName(), exception.getMessage()

        def tasks_of(definition: Any) -> list[tuple[str, int]]:
            return [(task.getConnector(), task.getTask()) for task in definition.getTasks()]

        version = await call("getConnectServerVersion")
        assert (version.getVersion(), version.getKafkaClusterId()) == ("4.3.1", "simulated")
        assert list(await call("getConnectors")) == []
        assert {plugin.getType() for plugin in await call("getConnectorPlugins")} == {"source", "sink"}
        to_validate = dto.ConnectorPluginConfigDefinition("simulated.Source", config(**{"tasks.max": "x", "name": "a"}))
        validated = await call("validateConnectorPluginConfig", to_validate)
        assert [
            one.getDefinition().getName() for one in validated.getConfigs() if list(one.getValue().getErrors())
        ] == ["tasks.max"]

        created = await call("addConnector", dto.NewConnectorDefinition("a", config()))
        assert (created.getName(), created.getType(), dict(created.getConfig())) == ("a", "source", STORED)
        again = await error_of("addConnector", dto.NewConnectorDefinition("a", config()))
        assert again == ("ConcurrentConfigModificationException", "Connector a already exists")
        await group.follower.until_running("a", 2)
        assert list(await call("getConnectors")) == ["a"]
        info = await call("getConnector", "a")
        assert (dict(info.getConfig()), tasks_of(info)) == (STORED, BOTH_TASKS)
        assert dict(await call("getConnectorConfig", "a")) == STORED
        assert (await call("getConnectorTopics", "a")).getName() == "a"
        assert await call("resetConnectorTopics", "a") is True

        status = await call("getConnectorStatus", "a")
        assert [task.getState() for task in status.getTasks()] == ["RUNNING"] * 2
        assert set(status.getConnector()) == {"state", "worker_id", "version"}
        assert [task.getId().getTask() for task in await call("getConnectorTasks", "a")] == [0, 1]
        assert (await call("getConnectorTaskStatus", "a", 1)).getState() == "RUNNING"
        missing = await error_of("getConnectorTaskStatus", "a", 7)
        assert missing == ("ResourceNotFoundException", "No status found for task a-7")
        all_details = await call("getConnectorsWithAllExpandedMetadata")
        assert tasks_of(all_details.getDefinitionForConnector("a")) == BOTH_TASKS
        assert all_details.getStatusForConnector("a").getType() == "source"
        infos, statuses = await call("getConnectorsWithExpandedInfo"), await call("getConnectorsWithExpandedStatus")
        assert list(infos.getConnectorNames()) == list(statuses.getConnectorNames()) == ["a"]

        changed = await call("updateConnectorConfig", "a", config(more="1"))
        assert dict(changed.getConfig()) == {**STORED, "more": "1"}
        await group.follower.until_running("a", 2)
        # The client sends an empty text as the JSON of these requests.
        assert await call("pauseConnector", "a") is True
        assert await call("resumeConnector", "a") is True
        await group.follower.until_running("a", 2)
        assert await call("restartConnector", "a") is True
        await group.follower.until_running("a", 2)
        with_tasks = api.request.post.PostConnectorRestart("a").withIncludeTasks(True)
        assert await call("restartConnector", with_tasks) is True
        await group.follower.until_running("a", 2)
        assert await call("restartConnectorTask", "a", 1) is True
        await group.follower.until_running("a", 2)
        assert await call("stopConnector", "a") is True
        assert await call("deleteConnector", "a") is True
        assert await error_of("deleteConnector", "a") == ("ResourceNotFoundException", "Connector a not found")
