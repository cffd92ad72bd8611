"""Plug-ins, their keys and validations, of simulated workers. `test_recorded_calls` compares them with Connect's."""

import asyncio
from dataclasses import replace
from typing import Any

from coterie.config.definition import ConfigDef, OneOfPluginClasses
from coterie.spark.connector_keys import common_connector_definition
from tests.rest.recorded_plugins import RecordedPluginsRuntime
from tests.rest.served import ServedCluster
from tests.worker.simulated import DEFINITION, SimulatedRuntime, until

VALIDATE = "/connector-plugins/Source/config/validate"
CONFIG = {"connector.class": "Source", "name": "a"}


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
    assert (info["definition"], info["value"]["name"]) == (None, "connector.class")
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


async def test_a_class_that_is_no_plugin_is_refused_with_the_names_of_the_plugins(cluster: ServedCluster) -> None:
    class StrictRuntime(SimulatedRuntime):
        def definition(self, connector_class: str) -> ConfigDef:
            names = OneOfPluginClasses(("simulated.Sink", "simulated.Source"), interface_name="Connector")
            return ConfigDef((*DEFINITION.keys[2:], replace(DEFINITION["connector.class"], validator=names)))

    worker = await cluster.serve(runtime=StrictRuntime())
    config = {"connector.class": "no.such", "tasks.max": "x"}
    message = (
        "Failed to find any class that implements Connector and which name matches no.such, available connectors are: "
        "simulated.Sink, simulated.Source"
    )
    validated = await worker.ask("PUT", "/connector-plugins/such/config/validate", config)
    # As of other refusals of a validation, Connect's message begins with the Java class of the exception.
    java_class = "org.apache.kafka.connect.runtime.rest.errors.BadRequestException"
    assert (validated.status_code, validated.json()["message"]) == (500, f"{java_class}: {message}")
    written = await worker.ask("PUT", "/connectors/a/config", config)
    assert (written.status_code, written.json()) == (400, {"error_code": 400, "message": message})
    # Only the runtime knows the value of a reference: its errors are the response.
    of_reference = await worker.ask("PUT", "/connectors/a/config", config | {"connector.class": "${env:CLASS}"})
    assert of_reference.status_code == 400
    assert of_reference.json()["message"].startswith("Connector configuration is invalid")
    known = {"connector.class": "simulated.Source"}
    assert (await worker.ask("PUT", "/connector-plugins/Source/config/validate", known)).status_code == 200
    assert (await worker.ask("PUT", "/connectors/a/config", known)).status_code == 201


async def test_a_client_property_of_a_wrong_type_is_a_500_as_in_connect(cluster: ServedCluster) -> None:
    worker = await cluster.serve(runtime=RecordedPluginsRuntime())
    config = {"connector.class": "FileStreamSource", "topic": "t", "producer.override.linger.ms": "x"}
    message = "Invalid value x for configuration linger.ms: Not a number of type LONG"
    validated = await worker.ask("PUT", "/connector-plugins/FileStreamSource/config/validate", config)
    java_class = "org.apache.kafka.common.config.ConfigException"
    assert (validated.status_code, validated.json()["message"]) == (500, f"{java_class}: {message}")
    written = await worker.ask("PUT", "/connectors/a/config", config)
    assert (written.status_code, written.json()["message"]) == (500, message)


async def test_a_connector_may_have_at_most_a_thousand_tasks(cluster: ServedCluster) -> None:
    class CommonKeysRuntime(SimulatedRuntime):
        def definition(self, connector_class: str) -> ConfigDef:
            return ConfigDef((common_connector_definition()["tasks.max"],))

    worker = await cluster.serve(runtime=CommonKeysRuntime())
    for number, status in (("1000", 201), ("1001", 400)):
        config = {"connector.class": "Source", "tasks.max": number}
        new = {"name": f"of-{number}", "config": config, "initial_state": "STOPPED"}
        assert (await worker.ask("POST", "/connectors", new)).status_code == status


async def test_a_password_is_hidden(cluster: ServedCluster) -> None:
    worker = await cluster.serve()
    response = await worker.ask("PUT", VALIDATE, {**CONFIG, "password": "secret-1"})
    values = {info["value"]["name"]: info["value"]["value"] for info in response.json()["configs"]}
    assert values["password"] == "[hidden]"
    assert "secret-1" not in response.text


async def test_a_version_range_with_the_version_is_accepted(cluster: ServedCluster) -> None:
    worker = await cluster.serve()
    for version_range in ("1", "latest", "[1,)", "[0.9,1.0]", "(,2)"):
        answer = await worker.get(f"/connector-plugins/Source/config?version={version_range}")
        assert answer.status_code == 200, version_range
