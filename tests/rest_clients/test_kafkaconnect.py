"""The Python package kafkaconnect, unmodified: each method of its client.

Its command line needs packages that it does not name as its dependencies.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.rest_clients.conftest import Group, run

pytestmark = pytest.mark.timeout(300)
CONFIG = {"connector.class": "simulated.Source", "tasks.max": "2", "topics": "lines", "name": "a"}
SCRIPT = """
import json, sys
from kafkaconnect.connect import Connect

client = Connect(sys.argv[1])
print(json.dumps([getattr(client, method)(*arguments) for method, *arguments in json.loads(sys.argv[2])]))
"""


async def test_each_method(group: Group, kafkaconnect: Path) -> None:
    async def call(*calls: tuple[str, ...]) -> list[Any]:
        """What the methods return: JSON is parsed, and a text is returned as it is."""
        ended = await run(kafkaconnect / "python", "-c", SCRIPT, group.url, json.dumps(calls))
        assert ended.code == 0, ended.errors
        return [json.loads(text) if text.startswith(("{", "[")) else text for text in json.loads(ended.output)]

    config = json.dumps(CONFIG)
    names, plugins, validated, created = await call(
        ("list",), ("plugins",), ("validate", "simulated.Source", config), ("validate_and_create", "a", config)
    )
    assert names == []
    assert {plugin["type"] for plugin in plugins} == {"source", "sink"}
    assert validated["error_count"] == 0
    assert created["config"] == CONFIG
    await group.follower.until_running("a", 2)

    reads = ("info", "config", "tasks", "topics", "status")
    names, info, stored, tasks, topics, status = await call(("list",), *((read, "a") for read in reads))
    assert (names, stored, list(topics)) == (["a"], CONFIG, ["a"])
    assert len(info["tasks"]) == len(tasks) == len(status["tasks"]) == 2
    assert status["connector"]["state"] == "RUNNING"

    orders = ("pause", "resume", "restart", "remove")
    changed, *done, gone = await call(
        ("create_or_update", "a", json.dumps({**CONFIG, "more": "1"})),
        *((order, "a") for order in orders),
        ("status", "a"),
    )
    assert changed["config"]["more"] == "1"
    assert done == [""] * len(orders)
    assert gone.endswith("/connectors/a/status not found.")
