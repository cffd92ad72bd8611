"""Two whole workers on one Spark session split a running connector again, also if its owner fails half-way."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from coterie.nouns.errors import WorldError
from coterie.spark import runtime as spark_runtime
from coterie.spark.generations.resplit import ResplitFinisher
from coterie.spark.generations.updater import GenerationRequest, GenerationUpdater
from coterie.spark.runtime import SparkTaskRuntime
from coterie.spark.settings import SparkConfig
from tests.kafka.embedded_broker import EmbeddedBroker
from tests.spark.conftest import LentDriver, Rig, rows_of, write_file
from tests.worker.composed import Composed, ComposedFleet

pytestmark = [
    pytest.mark.spark,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(900),
]


class Pair:
    """Two workers and a connector that reads a growing folder."""

    def __init__(self, rig: Rig, workers: list[Composed], folder: Path) -> None:
        self.workers = workers
        self.folder = folder
        self.files = 0
        self._rig = rig

    def write(self, count: int) -> None:
        for row in range(self.files, self.files + count):
            write_file(self.folder / "in", f"{row}.csv", [(row, 1.0, 1)])
        self.files += count

    def config(self, **keys: str) -> dict[str, str]:
        return self._rig.config(self.folder, source__max__files__per__trigger="1", **keys)

    async def put(self, config: dict[str, str]) -> None:
        async with asyncio.timeout(60):
            while (answer := await self._put(config)).status_code == 503:  # noqa: ASYNC110 - waits for the worker's start
                await asyncio.sleep(0.1)
        assert answer.status_code in (200, 201), answer.text

    async def _put(self, config: dict[str, str]) -> httpx.Response:
        return await self.ask("PUT", "/connectors/grows/config", config)

    async def ask(self, method: str, path: str, body: Any = None) -> httpx.Response:
        return await self.workers[0].client.request(method, self.workers[0].url + path, json=body)

    async def until(self, condition: Callable[[], bool], within_s: float = 240) -> None:
        async with asyncio.timeout(within_s):
            while not condition():  # noqa: ASYNC110 - waits for files
                await asyncio.sleep(0.1)

    async def generation(self) -> str:
        tasks = (await self.ask("GET", "/connectors/grows/tasks")).json()
        (generation,) = {task["config"]["generation"] for task in tasks}
        return str(generation)

    def rows(self) -> list[int]:
        return rows_of(self.folder / "out")


@pytest_asyncio.fixture(loop_scope="session")
async def pair(
    rig: Rig, embedded_broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Pair]:
    session = rig.spark_runtime._driver
    assert session is not None
    monkeypatch.setattr(spark_runtime, "start_driver", lambda *_, **__: LentDriver(session))
    monkeypatch.setattr(spark_runtime, "run_warm_up_queries", lambda *_: None)  # the session is warm
    group = f"resplit-{uuid.uuid4().hex[:8]}"
    async with AsyncExitStack() as stack:
        fleet = ComposedFleet(
            {
                "bootstrap.servers": embedded_broker.bootstrap_servers,
                "group.id": group,
                "config.storage.topic": f"{group}-configs",
                "offset.storage.topic": f"{group}-offsets",
                "status.storage.topic": f"{group}-statuses",
                "checkpoint.location": str(tmp_path / "checkpoints"),
            },
            stack,
        )
        workers = []
        for name in ("one", "two"):
            config = SparkConfig(
                checkpoint_location=tmp_path / "checkpoints",
                scratch_folder=tmp_path / name,
                jvm_log_file=tmp_path / f"{name}.log",
            )
            workers.append(await fleet.start(name, SparkTaskRuntime(config), {}))
        try:
            yield Pair(rig, workers, tmp_path)
        finally:
            await fleet.stop()


async def test_changing_tasks_max_and_the_sink_of_a_running_connector_loses_and_doubles_no_row(pair: Pair) -> None:
    pair.write(20)
    await pair.put(pair.config(tasks__max="2"))
    for count in ("3", "1", "4"):
        seen = len(pair.rows()) if (pair.folder / "out").exists() else 0
        await pair.until(lambda: len(pair.rows()) > seen + 3)  # noqa: B023
        pair.write(12)
        await pair.put(pair.config(tasks__max=count))
    await pair.until(lambda: pair.rows() == list(range(pair.files)))
    assert (await pair.generation()).startswith("4-")

    await pair.put(pair.config(tasks__max="4", sink__path=str(pair.folder / "later")))
    async with asyncio.timeout(240):
        while not (await pair.generation()).startswith("5-"):  # noqa: ASYNC110 - waits for a record of a topic
            await asyncio.sleep(0.1)
    pair.write(6)
    await pair.until(lambda: rows_of(pair.folder / "later") == list(range(pair.files - 6, pair.files)))
    assert pair.rows() == list(range(pair.files - 6))


async def test_a_worker_with_a_waiting_task_finishes_the_re_split_of_the_former_owner(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle = GenerationUpdater.update

    def settle_and_give_up(self: GenerationUpdater, request: GenerationRequest) -> Any:
        """The owner ends after it has closed a generation."""
        if len(request.split.partitions_by_task) == 3:
            monkeypatch.setattr(GenerationUpdater, "update", settle)
            monkeypatch.setattr(ResplitFinisher, "create_next_generation", give_up)
        return settle(self, request)

    finish = ResplitFinisher.create_next_generation

    def give_up(self: ResplitFinisher, number: int) -> Any:
        monkeypatch.setattr(ResplitFinisher, "create_next_generation", finish)
        raise WorldError("The owner ends here")

    monkeypatch.setattr(GenerationUpdater, "update", settle_and_give_up)
    pair.write(10)
    await pair.put(pair.config(tasks__max="2"))
    await pair.until(lambda: (pair.folder / "out").exists() and len(pair.rows()) > 3)
    await pair.put(pair.config(tasks__max="3"))
    pair.write(10)
    await pair.until(lambda: pair.rows() == list(range(pair.files)))
    status = (await pair.ask("GET", "/connectors/grows/status")).json()
    # The owner may have read about the next generation meanwhile, and have split the connector again.
    assert status["connector"].get("trace", "The owner ends here") == "The owner ends here"
    assert len(status["tasks"]) == 3
    assert (await pair.generation()).startswith("2-")
