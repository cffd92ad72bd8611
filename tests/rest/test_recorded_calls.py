"""The calls that a real Kafka Connect 4.3.1 answered, asked again: same status, same shape, same words."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.herder.seams import TaskStart
from coterie.nouns.errors import WorldError
from coterie.nouns.ids import Incarnation
from coterie.rest.app import CONNECT_VERSION
from tests.rest.served import Served, ServedCluster
from tests.worker.simulated import SimulatedRuntime, until

CALLS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "vectors" / "connect-rest.json").read_text())["rest"]
KNOWN = ("FileStreamSourceConnector", "FileStreamSinkConnector", "SleepySource")
OTHER_WORDS = ("Failed to find any class", "Unexpected end-of-input")
"""Beginnings of messages that name Java's classes: only their status and shape are ours to keep."""


class RecordedRuntime(SimulatedRuntime):
    """Knows the plug-ins of the worker that was recorded."""

    async def validate(
        self, config: Mapping[str, str], checkpointed: Sequence[Mapping[str, str]]
    ) -> Mapping[str, Sequence[str]]:
        if not config["connector.class"].endswith(KNOWN):
            return {"connector.class": [f"Failed to find any class {config['connector.class']}"]}
        errors = dict(await super().validate(config, checkpointed))
        if config["connector.class"].endswith("FileStreamSourceConnector") and "topic" not in config:
            errors["topic"] = ['Missing required configuration "topic" which has no default value.']
        return errors

    async def start(self, start: TaskStart) -> None:
        if start.config.get("file", "").startswith("/nonexistent/"):
            raise WorldError(f"Couldn't find or create file '{start.config['file']}'")
        await super().start(start)

    async def split(
        self,
        connector: str,
        incarnation: Incarnation,
        config: Mapping[str, str],
        checkpointed: Sequence[Mapping[str, str]],
        *,
        keeps_split: bool = False,
    ) -> Sequence[Mapping[str, str]]:
        count = int(config["tasks.max"])
        return [{"task.class": f"task {number}", **config} for number in range(count)]


def comparable(body: Any, key: str = "") -> Any:
    """``body`` without what differs from worker to worker: ids, versions, traces, whose config a task got."""
    if key in ("worker_id", "version", "commit", "kafka_cluster_id", "trace", "task.class"):
        return f"some {key}"
    if isinstance(body, dict):
        return {name: comparable(value, name) for name, value in body.items() if name != "coterie_version"}
    if isinstance(body, list):
        return [comparable(item) for item in body]
    return body


def agrees(call: dict[str, Any], status: int, text: str) -> bool:
    if status != call["status"]:
        return False
    body: Any = json.loads(text) if text else ""
    if status >= 400 and call["body"]["message"].startswith(OTHER_WORDS):
        return set(body) == {"error_code", "message"} and body["error_code"] == status
    return bool(comparable(body) == comparable(call["body"]))


async def answer(worker: Served, call: dict[str, Any]) -> tuple[int, str]:
    raw = call["args"].removeprefix("-d ").encode() if call["args"] else None
    response = await worker.ask(call["method"], call["path"], raw=raw)
    if response.status_code == 201:
        assert response.headers["location"] == f"/connectors/{response.json()['name']}"
    return response.status_code, response.text


async def test_every_recorded_call_is_answered_as_connect_answered_it(cluster: ServedCluster) -> None:
    runtime = RecordedRuntime()
    worker = await cluster.serve(runtime=runtime)
    for call in CALLS:
        status, text = await answer(worker, call)
        if call["method"] != "GET":
            assert agrees(call, status, text), (call, status, text)
            continue

        # Whoever recorded waited for things to settle, and so do we.
        async def is_answered(call: dict[str, Any] = call) -> bool:
            return agrees(call, *await answer(worker, call))

        try:
            await until(is_answered, within_s=10)
        except TimeoutError:
            raise AssertionError((call, await answer(worker, call))) from None


async def test_the_root_names_a_version_that_clients_of_connect_understand(cluster: ServedCluster) -> None:
    worker = await cluster.serve()
    root = (await worker.get("/")).json()
    assert root["version"] == CONNECT_VERSION == "4.3.1"
    assert root["kafka_cluster_id"] == "simulated"
    assert root["coterie_version"]
