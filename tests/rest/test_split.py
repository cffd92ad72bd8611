"""Configs that would split a connector again although its tasks have checkpoints."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import httpx

from coterie.config.infos import ConfigInfos
from coterie.engine.log import NewTopicRecord
from coterie.herder.seams import SourcePartsChanged, SplitResult
from coterie.nouns.errors import ConfigError
from coterie.nouns.ids import Incarnation
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.spark.validation import task_count_change_errors
from tests.rest.served import ServedCluster, ServedWorker
from tests.worker.simulated import SimulatedRuntime, until

CONFIG = {"connector.class": "SimulatedSource", "tasks.max": "2"}
CHANGED = {**CONFIG, "tasks.max": "3"}
TASKS = [ConnectorTaskId(ConnectorName("a"), number) for number in range(2)]


class FixedSplitRuntime(SimulatedRuntime):
    """Its task configs contain the number of tasks, as Spark's do, and the same rule refuses another number."""

    async def validate(
        self, config: Mapping[str, str], configs_of_checkpointed_tasks: Sequence[Mapping[str, str]]
    ) -> ConfigInfos:
        infos = await super().validate(config, configs_of_checkpointed_tasks)
        return infos.with_errors_replaced(
            task_count_change_errors(config, int(config["tasks.max"]), configs_of_checkpointed_tasks)
        )

    async def split(
        self,
        connector: ConnectorName,
        incarnation: Incarnation,
        config: Mapping[str, str],
        configs_of_checkpointed_tasks: Sequence[Mapping[str, str]],
        *,
        keeps_source_parts: bool = False,
    ) -> SplitResult:
        result = await super().split(
            connector, incarnation, config, configs_of_checkpointed_tasks, keeps_source_parts=keeps_source_parts
        )
        task_count = len(result.task_configs)
        if errors := task_count_change_errors(config, task_count, configs_of_checkpointed_tasks):
            raise ConfigError(errors)
        return replace(result, task_configs=[{**task, "task.count": str(task_count)} for task in result.task_configs])


async def running(cluster: ServedCluster, **keys: str) -> tuple[ServedWorker, SimulatedRuntime]:
    """Start one worker, which runs the two tasks of connector ``a``, with the further ``keys`` in its config."""
    runtime = FixedSplitRuntime()
    worker = await cluster.serve(runtime=runtime)
    assert (await worker.ask("POST", "/connectors", {"name": "a", "config": {**CONFIG, **keys}})).status_code == 201
    await worker.until_running("a", 2)
    return worker, runtime


async def until_no_task_is_assigned(worker: ServedWorker) -> None:
    async def is_so() -> bool:
        view = (await worker.get("/coterie/worker")).json()
        return bool(view["group"]["settled"]) and view["assigned"]["tasks"] == []

    await until(is_so)


def assert_refused(answer: httpx.Response) -> None:
    assert (answer.status_code, answer.json()["error_code"]) == (400, 400)
    message = answer.json()["message"]
    assert message.startswith("Connector configuration is invalid and contains the following 1 error(s):\n")
    assert "Invalid value 3 for configuration tasks.max: the connector has checkpoints of 2 task(s)" in message
    assert "Keep tasks.max=2; or create a connector under another name; or delete this one" in message


async def test_another_number_of_tasks_is_a_400_and_the_tasks_keep_running(cluster: ServedCluster) -> None:
    worker, runtime = await running(cluster)
    lines = cluster.config_log.keys()
    assert_refused(await worker.ask("PUT", "/connectors/a/config", CHANGED))
    assert cluster.config_log.keys() == lines, "nothing was written"
    assert (await worker.get("/connectors/a/config")).json() == {**CONFIG, "name": "a"}
    await worker.until_running("a", 2)
    assert (sorted(runtime.starts), runtime.stops) == (TASKS, [])


async def test_a_stopped_connector_still_has_its_checkpoints(cluster: ServedCluster) -> None:
    worker, runtime = await running(cluster)
    assert (await worker.ask("PUT", "/connectors/a/stop")).status_code == 204
    # Until the group has taken the tasks away from the worker, a resume would start them once more.
    await until_no_task_is_assigned(worker)
    assert_refused(await worker.ask("PUT", "/connectors/a/config", CHANGED))
    assert (await worker.ask("PUT", "/connectors/a/config", {**CONFIG, "other": "1"})).status_code == 200
    assert_refused(await worker.ask("PUT", "/connectors/a/config", CHANGED))
    assert (await worker.ask("PUT", "/connectors/a/resume")).status_code == 202
    await worker.until_running("a", 2)
    assert sorted(runtime.starts) == sorted(2 * TASKS)


async def test_other_keys_of_the_config_may_change(cluster: ServedCluster) -> None:
    worker, runtime = await running(cluster)
    assert (await worker.ask("PUT", "/connectors/a/config", {**CONFIG, "other": "1"})).status_code == 200
    await worker.until_running("a", 2)

    async def is_so() -> bool:
        return sorted(runtime.starts) == sorted(2 * TASKS)

    await until(is_so)


async def test_an_invalid_config_written_by_a_connect_worker_fails_the_connector_and_no_task(
    cluster: ServedCluster,
) -> None:
    worker, runtime = await running(cluster)
    line = NewTopicRecord(key=b"connector-a", value=json.dumps({"properties": {**CHANGED, "name": "a"}}).encode())
    await cluster.config_log.append([line])

    async def has_failed() -> bool:
        status = (await worker.get("/connectors/a/status")).json()["connector"]
        return status["state"] == "FAILED" and "tasks.max=2; or create a connector under another" in status["trace"]

    await until(has_failed)
    await worker.until_running("a", 2)
    assert (sorted(runtime.starts), runtime.stops) == (TASKS, [])
    assert (await worker.ask("PUT", "/connectors/a/config", CONFIG)).status_code == 200, (
        "a valid config must be accepted"
    )
    await until_connector_runs(worker)


async def test_the_status_shows_why_a_split_is_postponed_until_the_failed_task_is_repaired(
    cluster: ServedCluster,
) -> None:
    worker, runtime = await running(cluster, postponement="a task is failing")
    runtime.fail_query(TASKS[1], "no", can_restart=False)

    async def has_failed() -> bool:
        (_, task) = (await worker.get("/connectors/a/status")).json()["tasks"]
        return bool(task["state"] == "FAILED")

    await until(has_failed)
    runtime.emit(SourcePartsChanged(connector=ConnectorName("a")))

    async def is_shown() -> bool:
        status = (await worker.get("/connectors/a/status")).json()["connector"]
        return (status["state"], status.get("trace")) == ("RESTARTING", "a task is failing")

    await until(is_shown)
    assert (await worker.ask("POST", "/connectors/a/tasks/1/restart")).status_code == 204
    await until_connector_runs(worker)
    await worker.until_running("a", 2)


async def until_connector_runs(worker: ServedWorker) -> None:
    async def is_so() -> bool:
        return bool((await worker.get("/connectors/a/status")).json()["connector"]["state"] == "RUNNING")

    await until(is_so)


async def test_another_name_or_a_new_incarnation_allows_another_number_of_tasks(cluster: ServedCluster) -> None:
    worker, runtime = await running(cluster)
    former = {start.connector_incarnation for start in runtime.running.values()}
    assert (await worker.ask("POST", "/connectors", {"name": "b", "config": CHANGED})).status_code == 201
    await worker.until_running("b", 3)
    assert (await worker.ask("DELETE", "/connectors/a")).status_code == 204
    assert (await worker.ask("POST", "/connectors", {"name": "a", "config": CHANGED})).status_code == 201
    await worker.until_running("a", 3)
    assert not former & {start.connector_incarnation for start in runtime.running.values()}, "other checkpoints"
