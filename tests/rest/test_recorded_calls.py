"""Calls recorded from a real Kafka Connect 4.3.1 get responses with the same status, structure and messages."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.config.infos import ConfigInfos
from coterie.herder.seams import TaskSpec
from coterie.nouns.errors import WorldError
from coterie.nouns.ids import Incarnation
from coterie.rest.resources.server import CONNECT_VERSION
from tests.rest.served import ServedCluster, ServedWorker
from tests.worker.simulated import SimulatedRuntime, until

CALLS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "vectors" / "connect-rest.json").read_text())["rest"]
KNOWN = ("FileStreamSourceConnector", "FileStreamSinkConnector", "SleepySource")
OTHER_WORDS = ("Failed to find any class", "Unexpected end-of-input")
"""Beginnings of messages that name Java's classes: for these only status and structure are compared."""


class RecordedRuntime(SimulatedRuntime):
    """Has the plug-ins of the recorded worker."""

    async def validate(
        self, config: Mapping[str, str], checkpointed_task_configs: Sequence[Mapping[str, str]]
    ) -> ConfigInfos:
        infos = await super().validate(config, checkpointed_task_configs)
        if not config["connector.class"].endswith(KNOWN):
            return infos.with_errors({"connector.class": [f"Failed to find any class {config['connector.class']}"]})
        if config["connector.class"].endswith("FileStreamSourceConnector") and "topic" not in config:
            missing = 'Missing required configuration "topic" which has no default value.'
            return infos.with_errors({"topic": [missing]})
        return infos

    async def start(self, spec: TaskSpec) -> None:
        if spec.config.get("file", "").startswith("/nonexistent/"):
            raise WorldError(f"Couldn't find or create file '{spec.config['file']}'")
        await super().start(spec)

    async def split(
        self,
        connector: str,
        incarnation: Incarnation,
        config: Mapping[str, str],
        checkpointed_task_configs: Sequence[Mapping[str, str]],
        *,
        keeps_source_parts: bool = False,
    ) -> Sequence[Mapping[str, str]]:
        count = int(config["tasks.max"])
        return [{"task.class": f"task {number}", **config} for number in range(count)]


def comparable(body: Any, key: str = "") -> Any:
    """``body`` without what differs between workers: ids, versions, traces, task configs."""
    if key in ("worker_id", "version", "commit", "kafka_cluster_id", "trace", "task.class"):
        return f"some {key}"
    if isinstance(body, dict):
        return {name: comparable(value, name) for name, value in body.items() if name != "coterie_version"}
    if isinstance(body, list):
        return [comparable(item) for item in body]
    return body


def agrees(call: dict[str, Any], status: int, text: str) -> bool:
    if call["status"] == 500 and call["body"]["message"].startswith("Unexpected end-of-input"):
        return status == 400  # Malformed JSON is 400 here.
    if status != call["status"]:
        return False
    body: Any = json.loads(text) if text else ""
    if status >= 400 and call["body"]["message"].startswith(OTHER_WORDS):
        return set(body) == {"error_code", "message"} and body["error_code"] == status
    return bool(comparable(body) == comparable(call["body"]))


async def answer(worker: ServedWorker, call: dict[str, Any]) -> tuple[int, str]:
    raw = call["args"].removeprefix("-d ").encode() if call["args"] else None
    response = await worker.ask(call["method"], call["path"], raw=raw)
    if response.status_code == 201:
        assert response.headers["location"] == f"/connectors/{response.json()['name']}"
    return response.status_code, response.text


async def test_every_recorded_call_gets_the_response_that_connect_gave(cluster: ServedCluster) -> None:
    runtime = RecordedRuntime()
    worker = await cluster.serve(runtime=runtime)
    for call in CALLS:
        status, text = await answer(worker, call)
        if call["method"] != "GET":
            assert agrees(call, status, text), (call, status, text)
            continue

        # The recorder waited for the cluster to settle before each call, and so does this test.
        async def is_answered(call: dict[str, Any] = call) -> bool:
            return agrees(call, *await answer(worker, call))

        try:
            await until(is_answered, within_s=10)
        except TimeoutError:
            raise AssertionError((call, await answer(worker, call))) from None


async def test_the_root_names_a_version_that_connects_clients_accept(cluster: ServedCluster) -> None:
    worker = await cluster.serve()
    root = (await worker.get("/")).json()
    assert root["version"] == CONNECT_VERSION == "4.3.1"
    assert root["kafka_cluster_id"] == "simulated"
    assert root["coterie_version"]
