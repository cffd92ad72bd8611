"""A whole worker with a REST API, put together from its settings as ``coterie worker`` does it, on the shared Spark
session."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from coterie.cli.workers.compose import spark_runtime
from coterie.config.worker import WorkerSettings
from coterie.spark import runtime as runtime_module
from coterie.spark.runtime import SparkTaskRuntime
from tests.kafka.embedded_broker import EmbeddedBroker
from tests.spark.conftest import LentDriver, Rig
from tests.worker.composed import Composed, ComposedFleet


class RestWorker:
    """One worker and an HTTP client to it."""

    def __init__(self, composed: Composed, runtime: SparkTaskRuntime) -> None:
        self.runtime = runtime
        self._composed = composed

    async def ask(self, method: str, path: str, body: Any = None) -> httpx.Response:
        return await self._composed.client.request(method, self._composed.url + path, json=body)

    async def create(self, name: str, config: Mapping[str, str], **fields: str) -> None:
        """Create a connector. ``fields`` are other fields of the request than its name and config."""
        answer = await self.ask("POST", "/connectors", {"name": name, "config": dict(config), **fields})
        assert answer.status_code == 201, answer.text

    async def order(self, method: str, path: str) -> None:
        """Send a request without a body that must succeed."""
        answer = await self.ask(method, path)
        assert answer.is_success, answer.text

    async def view(self) -> Any:
        return (await self.ask("GET", "/coterie/worker")).json()

    async def lost_threads(self) -> int:
        return int((await self.view())["plugin_threads"]["lost"])

    async def status(self, name: str) -> Any:
        """The status of the connector; an empty object while it has none."""
        answer = await self.ask("GET", f"/connectors/{name}/status")
        return answer.json() if answer.is_success else {}

    async def until_running(self, name: str, tasks: int = 1) -> None:
        async def runs() -> bool:
            status = await self.status(name)
            return [task["state"] for task in status.get("tasks", ())] == ["RUNNING"] * tasks

        await until_true(runs, f"{name} runs")

    async def until_stopped(self, name: str) -> None:
        async def has_stopped() -> bool:
            status = await self.status(name)
            return bool(status) and (status["connector"]["state"], status["tasks"]) == ("STOPPED", [])

        await until_true(has_stopped, f"{name} has stopped")

    async def trace_of(self, name: str) -> str:
        """The trace with which the connector or one of its tasks is FAILED; waits until it is."""
        traces: list[str] = []

        async def has_failed() -> bool:
            status = await self.status(name)
            jobs = [status["connector"], *status["tasks"]] if status else []
            traces[:] = [job["trace"] for job in jobs if job["state"] == "FAILED" and "trace" in job]
            return bool(traces)

        await until_true(has_failed, f"{name} has failed")
        return traces[0]

    async def delete(self, *names: str) -> None:
        """Delete connectors, and wait until the worker has none of their tasks."""
        for name in names:
            assert (await self.ask("DELETE", f"/connectors/{name}")).status_code == 204

        async def are_gone() -> bool:
            return not any(task["connector"] in names for task in (await self.view())["tasks"])

        await until_true(are_gone, f"no task of {names} is left")


async def until_true(condition: Callable[[], Any], what: str, *, within_s: float = 90) -> None:
    """Await ``condition()`` until it returns True."""
    try:
        async with asyncio.timeout(within_s):
            while not await condition():  # noqa: ASYNC110 - waits for the responses of a worker
                await asyncio.sleep(0.1)
    except TimeoutError:
        pytest.fail(f"not within {within_s} s: {what}")


@asynccontextmanager
async def rest_worker(
    rig: Rig,
    broker: EmbeddedBroker,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    properties: Mapping[str, str] = {},
) -> AsyncIterator[RestWorker]:
    """A worker that leads its group. ``properties``: settings of its file."""
    driver = rig.spark_runtime._driver
    assert driver is not None
    monkeypatch.setattr(runtime_module, "start_driver", lambda *_, **__: LentDriver(driver))
    monkeypatch.setattr(runtime_module, "run_warm_up_queries", lambda *_: None)  # The session is warm.
    group = f"rest-{uuid.uuid4().hex[:8]}"
    all_properties = {
        "bootstrap.servers": broker.bootstrap_servers,
        "group.id": group,
        "config.storage.topic": f"{group}-configs",
        "offset.storage.topic": f"{group}-offsets",
        "status.storage.topic": f"{group}-statuses",
        "checkpoint.location": str(folder / "checkpoints"),
        **properties,
    }
    async with AsyncExitStack() as stack:
        fleet = ComposedFleet(all_properties, stack)
        runtime = spark_runtime(WorkerSettings.from_properties(fleet.properties), "worker", folder / "scratch")
        assert isinstance(runtime, SparkTaskRuntime)
        worker = RestWorker(await fleet.start("worker", runtime, {}), runtime)
        try:

            async def is_leader() -> bool:
                try:
                    return bool((await worker.view())["group"]["is_leader"])
                except (httpx.HTTPError, KeyError):
                    return False

            await until_true(is_leader, "the worker leads its group")
            yield worker
        finally:
            await fleet.stop()
