"""One warm real runtime for all tests of this process that need one; and small builders of input and config."""

import asyncio
import csv
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio
from pyspark.sql import SparkSession

from coterie.herder.seams import RuntimeDied, SplitResult, TaskDied, TaskEvent, TaskRuntime, TaskSpec
from coterie.nouns.ids import Incarnation
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.spark.runtime import SparkTaskRuntime
from coterie.spark.session import SparkDriver
from coterie.spark.settings import JarSettings, PythonSettings, SparkConfig
from tests.kafka.embedded_broker import EmbeddedBroker
from tests.kafka.real_kafka import ProgramUnavailableError
from tests.sink_files import counted
from tests.worker.fleet import Fleet

SCHEMA = "row BIGINT, delay DOUBLE, distance INT"


def write_file(folder: Path, name: str, rows: list[tuple[int, float | None, int]]) -> Path:
    """A CSV file, written elsewhere and renamed into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / f".{name}"
    with aside.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["row", "delay", "distance"])
        writer.writerows(rows)
    return aside.rename(folder / name)


def rows_of(out: Path, column: str = "row") -> list[int]:
    """The numbers in ``column`` that a reader without Spark finds, sorted."""
    return sorted(counted(out, column).elements())


class Rig:
    """A runtime and helpers of the tests."""

    def __init__(self, runtime: SparkTaskRuntime) -> None:
        self.spark_runtime = runtime
        self.runtime: TaskRuntime = runtime
        self._connectors: set[ConnectorName] = set()

    def stop_connectors(self) -> None:
        """Stop the connectors that were split. Otherwise the runtime would check their sources after the test."""
        while self._connectors:
            self.runtime.stop_connector(self._connectors.pop())

    @property
    def session(self) -> SparkSession:
        """A new session, as each task has one."""
        return SparkSession.builder.getOrCreate().newSession()

    async def config_errors(
        self, config: Mapping[str, str], configs_of_checkpointed_tasks: Sequence[Mapping[str, str]]
    ) -> dict[str, list[str]]:
        """The errors of a connector's config, by key. The config gets a name if it has none."""
        infos = await self.runtime.validate({"name": "connector", **config}, configs_of_checkpointed_tasks)
        return infos.errors

    def config(self, folder: Path, **keys: str) -> dict[str, str]:
        (folder / "in").mkdir(parents=True, exist_ok=True)
        return {
            "connector.class": "FileSource",
            "tasks.max": "1",
            "trigger.interval.ms": "0",
            "source.format": "csv",
            "source.path": str(folder / "in"),
            "source.schema": SCHEMA,
            "source.option.header": "true",
            "sink.format": "json",
            "sink.path": str(folder / "out"),
        } | {key.replace("__", "."): value for key, value in keys.items()}

    async def split(
        self,
        connector: ConnectorName,
        incarnation: Incarnation,
        config: Mapping[str, str],
        configs_of_checkpointed_tasks: Sequence[Mapping[str, str]],
        *,
        keeps_source_parts: bool = False,
    ) -> SplitResult:
        """Split a connector, which :meth:`stop_connectors` stops."""
        self._connectors.add(connector)
        return await self.runtime.split(
            connector, incarnation, config, configs_of_checkpointed_tasks, keeps_source_parts=keeps_source_parts
        )

    async def start(self, config: Mapping[str, str], name: str = "c", index: int = 0) -> TaskSpec:
        """Split and start task ``index`` of a connector of this name, which :meth:`stop_connectors` stops."""
        tasks = (await self.split(ConnectorName(name), Incarnation("i"), config, ())).task_configs
        task = ConnectorTaskId(ConnectorName(name), index)
        start = TaskSpec(task=task, connector_incarnation=Incarnation("i"), config=tasks[index])
        await self.runtime.start(start)
        return start

    async def end_of(self, task: ConnectorTaskId) -> TaskDied:
        """The event with which the query of ``task`` ends."""
        while True:
            event: TaskEvent = await asyncio.wait_for(self.runtime.next_event(), 60)
            assert not isinstance(event, RuntimeDied), event
            if isinstance(event, TaskDied) and event.task == task:
                return event

    async def wait_until(self, condition: Callable[[], bool], *, within_s: float = 60) -> None:
        async with asyncio.timeout(within_s):
            while not condition():  # noqa: ASYNC110 - waits for files that another process writes
                await asyncio.sleep(0.05)


class LentDriver:
    """The driver of a worker in tests: it uses the shared session, and closing it does not end the session."""

    def __init__(self, session: SparkDriver) -> None:
        self.spark = session.spark
        self.jvm_pid = session.jvm_pid

    def await_exit_report_or_timeout(self, *, timeout_s: float) -> None:
        pass

    def close(self) -> None:
        pass


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def rig(
    tmp_path_factory: pytest.TempPathFactory, spark_jars_if_any: Path | ProgramUnavailableError
) -> AsyncIterator[Rig]:
    """Has the jars of connectors if they are available; a test that needs them uses ``spark_jars``."""
    jars = None if isinstance(spark_jars_if_any, ProgramUnavailableError) else JarSettings(folder=spark_jars_if_any)
    folder = tmp_path_factory.mktemp("runtime")
    runtime = SparkTaskRuntime(
        SparkConfig(
            checkpoint_location=folder / "checkpoints",
            scratch_folder=folder / "scratch",
            jvm_log_file=folder / "spark.log",
            user_settings={"spark.master": "local[2]"},
            jar_folder_settings=jars,
            python_settings=PythonSettings(allowed_modules=("tests.spark.user_functions", "pipelines")),
            offset_flush_interval_ms=2_000,
        )
    )
    await runtime.open()
    yield Rig(runtime)
    await runtime.close()


@pytest.fixture(autouse=True)
def connectors_stop(request: pytest.FixtureRequest) -> Iterator[None]:
    """The connectors that a test has started with the shared runtime end with the test."""
    yield
    if "rig" in request.fixturenames:
        request.getfixturevalue("rig").stop_connectors()


@pytest.fixture
def lent(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> SparkTaskRuntime:
    """The shared runtime, which workers cannot open or close."""
    monkeypatch.setattr(rig.spark_runtime, "open", nothing)
    monkeypatch.setattr(rig.spark_runtime, "close", nothing)
    return rig.spark_runtime


@pytest_asyncio.fixture(loop_scope="session")
async def fleet(embedded_broker: EmbeddedBroker, lent: SparkTaskRuntime) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        fleet = Fleet(embedded_broker.bootstrap_servers, stack)
        yield fleet
        await fleet.stop()


async def nothing() -> None:
    pass
