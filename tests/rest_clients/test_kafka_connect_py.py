"""kafka-connect-py, unmodified: each command of its program ``kc``."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.rest_clients.conftest import Group, run
from tests.worker.simulated import until

pytestmark = pytest.mark.timeout(300)
CONFIG = {"connector.class": "simulated.Source", "tasks.max": "2"}


async def test_each_command(group: Group, kafka_connect_py: Path, tmp_path: Path) -> None:
    async def kc(*arguments: str) -> Any:
        """What the command prints, as JSON; None when it prints nothing. It prints an error and ends with code 0."""
        ended = await run(kafka_connect_py / "kc", "--url", group.url, "--log-level", "ERROR", *arguments)
        assert ended.code == 0, ended.errors
        try:
            return json.loads(ended.output) if ended.output.strip() else None
        except ValueError:
            raise AssertionError(f"kc {' '.join(arguments)}: {ended.output} {ended.errors}") from None

    async def until_states(name: str, *states: str) -> None:
        async def has_states() -> bool:
            return await group.states(name) == [*states]

        await until(has_states)

    assert (await kc("info"))["kafka_cluster_id"] == "simulated"
    assert await kc("list") == []
    file = tmp_path / "a.json"
    file.write_text(json.dumps({"name": "a", "config": CONFIG}))
    assert (await kc("create", "--config-file", str(file)))["config"] == {**CONFIG, "name": "a"}
    assert (await kc("create", "-d", json.dumps({"name": "b", "config": CONFIG})))["type"] == "source"
    for name in ("a", "b"):
        await until_states(name, "RUNNING", "RUNNING", "RUNNING")
    assert sorted(await kc("list")) == ["a", "b"]
    assert (await kc("list", "--expand", "info"))["a"]["info"]["config"] == {**CONFIG, "name": "a"}
    assert list(await kc("list", "--expand", "status", "--state", "RUNNING", "--pattern", "a.*")) == ["a"]
    assert (await kc("get", "a"))["tasks"] == [{"connector": "a", "task": 0}, {"connector": "a", "task": 1}]
    assert (await kc("update", "a", "-d", json.dumps({**CONFIG, "more": "1"})))["config"]["more"] == "1"
    assert await kc("config", "a") == {**CONFIG, "more": "1", "name": "a"}
    assert (await kc("status", "a"))["connector"]["state"] == "RUNNING"
    assert [task["id"]["task"] for task in await kc("list-tasks", "a")] == [0, 1]
    assert (await kc("task-status", "a", "1"))["id"] == 1
    assert await kc("restart-task", "a", "1") is None
    assert (await kc("restart", "a"))["name"] == "a"
    assert (await kc("restart", "a", "--include-tasks"))["name"] == "a"
    assert (await kc("restart", "a", "--include-tasks", "--only-failed"))["name"] == "a"
    assert sorted(await kc("restart", "--all", "--include-tasks")) == ["a", "b"]
    assert await kc("list-topics", "a") == {"a": {"topics": []}}
    assert await kc("reset-topics", "a") is None
    assert {plugin["type"] for plugin in await kc("list-plugins")} == {"source", "sink"}

    await until_states("a", "RUNNING", "RUNNING", "RUNNING")
    assert await kc("pause", "a") is None
    await until_states("a", "PAUSED", "PAUSED", "PAUSED")
    assert await kc("resume", "--all", "--state", "PAUSED") is None
    await until_states("a", "RUNNING", "RUNNING", "RUNNING")
    assert await kc("pause", "--all", "--pattern", "b") is None
    await until_states("b", "PAUSED", "PAUSED", "PAUSED")
    assert await kc("resume", "b") is None
    await until_states("b", "RUNNING", "RUNNING", "RUNNING")
    assert await kc("delete", "a") is None
    assert await kc("list") == ["b"]
    assert await kc("delete", "--all") is None
    assert await kc("list") == []


async def test_an_unknown_connector_is_an_error_in_the_clients_words(group: Group, kafka_connect_py: Path) -> None:
    ended = await run(kafka_connect_py / "kc", "--url", group.url, "get", "nope")
    assert "404" in ended.output


async def test_validation_by_the_clients_library(group: Group, kafka_connect_py: Path) -> None:
    script = (
        "import logging, sys; from kafka_connect.kafka_connect import KafkaConnect\n"
        "client = KafkaConnect(sys.argv[1], None, True, logging.getLogger())\n"
        f"print(client.validate_connector_config('Source', {{**{CONFIG!r}, 'name': 'c'}})['error_count'])"
    )
    ended = await run(kafka_connect_py / "python", "-c", script, group.url)
    assert (ended.code, ended.output) == (0, "0\n"), ended.errors
    # The command `validate-config` sends the config as a text in JSON, which every server refuses.
    command = ("validate-config", "Source", "-d", json.dumps(CONFIG))
    refused = await run(kafka_connect_py / "kc", "--url", group.url, *command)
    assert refused.output.startswith("400 Client Error")
