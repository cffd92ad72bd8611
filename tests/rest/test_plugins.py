"""Plug-ins, their keys and validations, as recorded from a real Kafka Connect 4.3.1, and of simulated workers."""

import asyncio
import json
import re
from typing import Any

import pytest

from coterie.rest.problems import UnreadableBodyError
from tests.rest.recorded_plugins import CALLS, PLUGIN_CALLS, RecordedPluginsRuntime
from tests.rest.served import ServedCluster, ServedWorker
from tests.worker.simulated import SimulatedRuntime, until

VALIDATE = "/connector-plugins/Source/config/validate"
CONFIG = {"connector.class": "Source", "name": "a"}
OTHER_STATUS = {
    ("GET", "/connector-plugins/java.lang.String/config", ""): 404,
    ("PUT", "/connector-plugins/FileStreamSource/config/validate", "-d {}"): 400,
    **{
        ("PUT", "/connector-plugins/FileStreamSource/config/validate", args): UnreadableBodyError.status
        for args in ("-d ", "-d null", "-d []", "-d {")
    },
    # Connect's worker fails at this value. Here it is a value like any other: the simulated connector has no such key.
    (
        "PUT",
        "/connector-plugins/FileStreamSource/config/validate",
        '-d {"connector.class": "FileStreamSource", "name": "v", "topic": "t", "producer.override.linger.ms": "x"}',
    ): 200,
}
"""Calls that Connect answers with 500, with the status that Coterie returns (docs/rest.md)."""
JAVA_TEXTS = ("Cannot invoke", "Class class java.lang.String")
"""Parts of messages about Java's objects, which Coterie does not have."""


def call_id(call: dict[str, Any]) -> tuple[str, str, str]:
    return call["method"], call["path"], call["args"]


def comparable_infos(body: dict[str, Any], *, is_whole: bool) -> object:
    """``body``, the result of a validation, as the recording contains it: only the first calls were recorded with all
    keys and definitions; otherwise the recording has the keys with a value or an error."""
    if is_whole:
        return body
    values = [
        info["value"] for info in body["configs"] if info["value"]["value"] is not None or info["value"]["errors"]
    ]
    is_of_alias = [value["name"].startswith(("transforms.", "predicates.")) for value in values]
    if any(is_of_alias):  # Connect keeps the keys of one transform in a hash table.
        first, count = is_of_alias.index(True), sum(is_of_alias)
        values[first : first + count] = sorted(values[first : first + count], key=lambda value: str(value["name"]))
    return {**body, "configs": values}


def without_prefix(message: str) -> str:
    """A message about a key of a transform or converter, as Connect words it: without the prefix of the key, and
    without the classes that Coterie lists after an unknown class."""
    message = re.sub(r"configuration (transforms\.\w+|value\.converter)\.(?!type)", "configuration ", message)
    return message.partition(" There are ")[0]


def assert_agrees(call: dict[str, Any], status: int, body: Any) -> None:
    recorded = call["body"]
    if (expected := OTHER_STATUS.get(call_id(call))) is not None:
        assert status == expected
        return
    assert status == call["status"], body
    if isinstance(recorded, list):
        if recorded and isinstance(recorded[-1], str):  # The recording has the first items and the number of items.
            assert f"…({len(body)})" == recorded[-1]
            body, recorded = body[: len(recorded) - 1], recorded[:-1]
        assert body == recorded
    elif "configs" in recorded and not any(text in json.dumps(recorded) for text in JAVA_TEXTS):
        is_whole = call.get("note", "").startswith("whole")
        actual = json.loads(json.dumps(comparable_infos(body, is_whole=is_whole)))
        for info in actual["configs"]:
            value = info if not is_whole else info["value"]
            value["errors"] = [without_prefix(message) for message in value["errors"]]
        assert actual == comparable_infos(recorded, is_whole=is_whole)
    elif "configs" not in recorded:
        assert body == recorded


async def answer(worker: ServedWorker, call: dict[str, Any]) -> tuple[int, Any]:
    raw = call["args"].removeprefix("-d ").encode() if call["args"] else None
    response = await worker.ask(call["method"], call["path"], raw=raw)
    return response.status_code, response.json()


async def test_every_recorded_call_about_plugins_gets_the_response_that_connect_gave(cluster: ServedCluster) -> None:
    worker = await cluster.serve(runtime=RecordedPluginsRuntime())
    assert len(PLUGIN_CALLS) == 56
    for call in PLUGIN_CALLS:
        status, body = await answer(worker, call)
        assert_agrees(call, status, body)


async def test_every_recorded_refusal_of_a_config_has_the_message_that_connect_gave(cluster: ServedCluster) -> None:
    worker = await cluster.serve(runtime=RecordedPluginsRuntime())
    refused = [call for call in CALLS if "is invalid and contains" in str(call["body"]) and call["method"] == "POST"]
    assert len(refused) == 20
    for call in refused:
        status, body = await answer(worker, call)
        assert status == call["status"] == body["error_code"], call
        assert list(map(without_prefix, body["message"].split("\n"))) == call["body"]["message"].split("\n")


async def test_a_worker_without_a_leader_answers_questions_to_its_plugins(cluster: ServedCluster) -> None:
    workers = [await cluster.serve() for _ in range(2)]
    for worker in workers:
        listed = (await worker.get("/connector-plugins")).json()
        assert [plugin["class"] for plugin in listed] == ["simulated.Sink", "simulated.Source"]
        assert "version" not in listed[0], "the sink's package has no version"
        infos = (await worker.ask("PUT", VALIDATE, CONFIG)).json()
        assert (infos["name"], infos["error_count"]) == ("Source", 0)


async def test_a_plugin_that_hangs_delays_no_other_request(cluster: ServedCluster) -> None:
    runtime = SimulatedRuntime()
    worker = await cluster.serve(runtime=runtime)
    gate = runtime.blocked["validate a"] = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        hanging = group.create_task(worker.ask("PUT", VALIDATE, CONFIG))
        await until(lambda: bool(runtime.at_gates))
        other = await worker.ask("PUT", VALIDATE, {**CONFIG, "name": "b"})
        created = await worker.ask("POST", "/connectors", {"name": "c", "config": {"connector.class": "Source"}})
        assert (other.status_code, created.status_code) == (200, 201)
        assert not hanging.done()
        gate.set()
    assert hanging.result().status_code == 200


async def test_a_plugin_that_raises_is_a_500_or_an_error_of_its_class(cluster: ServedCluster) -> None:
    class BrokenRuntime(SimulatedRuntime):
        async def describe_plugin(self, name: str, version_range: str | None) -> Any:
            raise ValueError("no definition")

    worker = await cluster.serve(runtime=BrokenRuntime())
    described = await worker.get("/connector-plugins/Source/config")
    assert (described.status_code, "no definition" in described.json()["message"]) == (500, True)
    infos = (await worker.ask("PUT", VALIDATE, {**CONFIG, "unjudgeable": "no validation"})).json()
    (info,) = infos["configs"]
    assert info["definition"]["name"] == "connector.class"
    assert "no validation" in info["value"]["errors"][0]
    unreachable = await worker.ask("PUT", VALIDATE, {**CONFIG, "unreachable": "no server"})
    assert (unreachable.status_code, "no server" in unreachable.json()["message"]) == (500, True)


async def test_a_validation_reports_what_a_write_is_refused_for(cluster: ServedCluster) -> None:
    worker = await cluster.serve()
    for changes in ({"tasks.max": "x"}, {"tasks.max": "0"}, {"name": "a/b"}):
        config = CONFIG | changes
        infos = (await worker.ask("PUT", VALIDATE, config)).json()
        errors = [message for info in infos["configs"] for message in info["value"]["errors"]]
        refused = await worker.ask("POST", "/connectors", {"name": config["name"], "config": config})
        assert refused.status_code == 400
        first, *lines, last = refused.json()["message"].splitlines()
        assert first == f"Connector configuration is invalid and contains the following {len(errors)} error(s):"
        assert lines == errors
        assert last.endswith("`/connector-plugins/{connectorType}/config/validate`")


async def test_a_password_is_hidden(cluster: ServedCluster) -> None:
    worker = await cluster.serve()
    response = await worker.ask("PUT", VALIDATE, {**CONFIG, "password": "secret-1"})
    values = {info["value"]["name"]: info["value"]["value"] for info in response.json()["configs"]}
    assert values["password"] == "[hidden]"
    assert "secret-1" not in response.text


@pytest.mark.parametrize("version_range", ["1", "latest", "[1,)", "[0.9,1.0]", "(,2)"])
async def test_a_version_range_with_the_version_is_accepted(cluster: ServedCluster, version_range: str) -> None:
    worker = await cluster.serve()
    assert (await worker.get(f"/connector-plugins/Source/config?version={version_range}")).status_code == 200
