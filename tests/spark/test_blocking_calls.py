"""Each call into a plug-in that blocks ends at its time limit with one error that names the call, on a worker that is
put together from its settings, over its REST API: other connectors go on, and the connector can be deleted."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from coterie.spark.plugin_calls import PluginTimeoutError
from coterie.spark.plugin_list import all_plugins
from coterie.spark.plugins import (
    SINK_BY_CLASS_NAME,
    SINK_BY_NAME,
    source_by_name,
)
from coterie.spark.runtime import SparkTaskRuntime
from coterie.spark.settings import SparkConfig
from coterie.spark.sinks.noop import NoopSink
from coterie.spark.sources.files import FileSource
from coterie.spark.sources.rate import RateSource
from tests import blocking_source
from tests.blocking_source import BlockingSource
from tests.kafka.embedded_broker import EmbeddedBroker
from tests.spark import user_functions
from tests.spark.conftest import Rig, rows_of, write_file
from tests.spark.gated_plugins import Gate, gated, gated_member
from tests.spark.installed_plugins import forget_lists_of_plugins, installed_blocking_source
from tests.spark.rest_worker import RestWorker, rest_worker, until_true

pytestmark = [
    pytest.mark.spark,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(240),
]

CALL_TIMEOUT_MS = 12_000
"""``plugin.call.timeout.ms`` of the worker: longer than any call of the tests that does not block takes."""
LOST_THREADS_MAX = 5
GOOD = {"connector.class": "RateSource", "trigger.interval.ms": "500", "sink.format": "noop"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """A call of a plug-in that blocks, and what is to be seen of it."""

    plugin: Any
    """The source or sink of which one method blocks; None: the function of a transform, or of a PythonSource."""
    method: str
    stage: str
    """The stage that the error names."""
    passes: int = 0
    """How many calls of the method return before one blocks."""
    config: tuple[tuple[str, str], ...] = ()
    """Other keys of the connector than those of :data:`GOOD`."""

    @property
    def name(self) -> str:
        """The name of the connector."""
        plugin = "function" if self.plugin is None else self.plugin.__name__
        return f"{plugin}-{self.method}-{self.stage}-{self.passes}"

    @property
    def class_name(self) -> str:
        return self.name.replace("-", "_").replace(".", "_")


class Gates:
    """The connectors of a test, and a gate for each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.gates: dict[Blocked, Gate] = {}
        self._monkeypatch = monkeypatch
        self._folder = folder

    def config(self, blocked: Blocked) -> dict[str, str]:
        """Install the plug-in, and return the config of its connector."""
        gate = self.gates[blocked] = Gate()
        config = {**GOOD, **dict(blocked.config)}
        if blocked.plugin is None:
            self._monkeypatch.setattr(user_functions, "function_gate", gate)
            return config
        plugin = gated(blocked.plugin, blocked.method, gate, blocked.class_name)
        if blocked.plugin is NoopSink:
            for sinks in (SINK_BY_CLASS_NAME, SINK_BY_NAME):
                self._monkeypatch.setitem(sinks, blocked.class_name, plugin)
            del config["sink.format"]
            config["sink.class"] = blocked.class_name
        else:
            self._monkeypatch.setitem(source_by_name(), blocked.class_name, plugin)
            config["connector.class"] = blocked.class_name
            if blocked.plugin is FileSource:
                config |= self.file_keys(blocked)
        forget_lists_of_plugins()
        return config

    def folder_of(self, blocked: Blocked) -> Path:
        return self._folder / blocked.class_name

    def file_keys(self, blocked: Blocked) -> dict[str, str]:
        """The keys of a source that reads the folder ``in`` and a sink that writes ``out``; the folder has one file."""
        folder = self.folder_of(blocked)
        write_file(folder / "in", "0.csv", [(0, 1.0, 1)])
        keys = {
            "source.path": str(folder / "in"),
            "source.format": "csv",
            "source.option.header": "true",
            "sink.format": "json",
            "sink.path": str(folder / "out"),
        }
        infers_columns = blocked.method == "infer_values"
        return keys if infers_columns else {**keys, "source.schema": "row BIGINT, delay DOUBLE, distance INT"}

    def close(self) -> None:
        """Close all gates."""
        for blocked, gate in self.gates.items():
            gate.close(passes=blocked.passes)


@pytest.fixture
def gates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Gates]:
    with installed_blocking_source(tmp_path / "packages", monkeypatch):
        yield Gates(monkeypatch, tmp_path)


@pytest_asyncio.fixture(loop_scope="session")
async def worker(
    rig: Rig, embedded_broker: EmbeddedBroker, gates: Gates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[RestWorker]:
    """A worker with one good connector, whose batches go on until the end of the test."""
    properties = {
        "plugin.call.timeout.ms": str(CALL_TIMEOUT_MS),
        "plugin.lost.threads.max": str(LOST_THREADS_MAX),
        "offset.flush.interval.ms": "500",
    }
    async with rest_worker(rig, embedded_broker, tmp_path, monkeypatch, properties) as worker:
        await worker.create("good", GOOD)
        await worker.until_running("good")
        yield worker
        await goes_on(worker, "good")
        blocking_source.go_on.set()
        await until_true(lambda: has_lost(worker, 0), "all threads have returned")


async def has_lost(worker: RestWorker, count: int) -> bool:
    return await worker.lost_threads() == count


async def goes_on(worker: RestWorker, name: str) -> None:
    """Wait until the task of the connector commits another batch."""

    async def batch() -> int:
        return next(
            (task["last_batch_id"] or 0 for task in (await worker.view())["tasks"] if task["connector"] == name), 0
        )

    before = await batch()

    async def has_another() -> bool:
        return await batch() > before

    await until_true(has_another, f"{name} commits a batch")


@contextmanager
def long_limit(worker: RestWorker) -> Iterator[None]:
    """Context manager: in the block, calls that do not block may take longer than :data:`CALL_TIMEOUT_MS`."""
    calls = worker.runtime._calls
    assert calls.timeout_ms == CALL_TIMEOUT_MS
    calls.timeout_ms = 60_000
    try:
        yield
    finally:
        calls.timeout_ms = CALL_TIMEOUT_MS


def message_of(blocked: Blocked) -> str:
    return f"has not returned from {blocked.stage} after "


# -- validation, description, import ----------------------------------------------------------------------------------

BLOCKED_IN_VALIDATION = (
    Blocked(plugin=RateSource, method="definition", stage="validate"),
    Blocked(plugin=RateSource, method="divide_partitions", stage="validate"),
    Blocked(plugin=NoopSink, method="validate", stage="validate"),
    Blocked(
        plugin=NoopSink, method="is_exactly_once", stage="validate", config=(("exactly.once.support", "required"),)
    ),
    Blocked(plugin=NoopSink, method="to_sink_columns", stage="validate"),
)
FUNCTION_KEYS = (
    ("transforms", "f"),
    ("transforms.f.type", "Function"),
    ("transforms.f.function", "tests.spark.user_functions:gated_rows"),
    ("transforms.f.schema", "value BIGINT"),
)
BLOCKED_FUNCTION = Blocked(plugin=None, method="rows", stage="transforms", config=FUNCTION_KEYS)


async def test_a_plugin_that_blocks_while_it_is_validated_or_described_refuses_one_request(
    worker: RestWorker, gates: Gates, monkeypatch: pytest.MonkeyPatch
) -> None:
    definition = Gate()
    monkeypatch.setattr(BlockingSource, "definition", gated_member(RateSource, "definition", definition))
    definition.close()
    calls = (*BLOCKED_IN_VALIDATION, BLOCKED_FUNCTION)
    configs = {blocked: gates.config(blocked) for blocked in calls}
    all_plugins.cache_clear()
    gates.close()
    requests = [
        worker.ask("POST", "/connectors", {"name": blocked.name, "config": config})
        for blocked, config in configs.items()
    ]
    described, *answers = await asyncio.gather(worker.ask("GET", "/connector-plugins/BlockingSource/config"), *requests)
    assert described.status_code == 500
    assert (
        "The plug-in of class BlockingSource has not returned from definition after 12" in described.json()["message"]
    )
    for blocked, answer in zip(calls, answers, strict=True):
        assert answer.status_code == 500, answer.text
        assert f"The plug-in of connector {blocked.name} has not returned from validate" in answer.json()["message"]
    assert (await worker.ask("GET", "/connectors")).json() == ["good"]
    assert await worker.lost_threads() == len(calls) + 1 > LOST_THREADS_MAX
    health = await worker.ask("GET", "/health")
    assert health.status_code == 500
    assert f"more than plugin.lost.threads.max={LOST_THREADS_MAX}" in health.json()["message"]


async def test_a_worker_whose_plugin_blocks_when_it_is_imported_does_not_start(
    gates: Gates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "blocking_import-1.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: blocking-import\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[coterie.connectors]\nblocking = blocking_import:Source\n")
    module = package.parent / "blocking_import.py"
    module.write_text(f"from {blocking_source.__name__} import BlockingSource as Source, go_on\n\ngo_on.wait()\n")
    monkeypatch.syspath_prepend(str(package.parent))
    source_by_name.cache_clear()
    config = SparkConfig(
        checkpoint_location=tmp_path, scratch_folder=tmp_path, jvm_log_file=tmp_path / "log", plugin_call_timeout_ms=200
    )
    runtime = SparkTaskRuntime(config)
    started: list[SparkConfig] = []
    monkeypatch.setattr("coterie.spark.runtime.start_driver", lambda config, _: started.append(config))
    with pytest.raises(
        PluginTimeoutError, match=r"The plug-in of this worker has not returned from import after 2\d\d ms"
    ):
        await runtime.open()
    await runtime.close()
    await asyncio.to_thread(blocking_source.end_all_calls)
    assert not started, "a late import starts no Spark in a process that ends"


# -- splits and starts ------------------------------------------------------------------------------------------------

BLOCKED_IN_SPLIT = (
    Blocked(plugin=RateSource, method="definition", stage="validate"),
    Blocked(plugin=RateSource, method="definition", stage="definition", passes=1),
    Blocked(plugin=RateSource, method="definition", stage="definition", passes=2),
    Blocked(plugin=RateSource, method="list_source_partitions", stage="list_source_partitions"),
    Blocked(plugin=RateSource, method="divide_partitions", stage="split"),
    Blocked(plugin=RateSource, method="initial_positions", stage="initial_positions"),
    Blocked(plugin=FileSource, method="infer_values", stage="infer_values"),
    Blocked(
        plugin=FileSource,
        method="position_store.write_to_new_checkpoint",
        stage="position_store.write_to_new_checkpoint",
    ),
    Blocked(plugin=NoopSink, method="definition", stage="definition"),
)
BLOCKED_IN_START = (
    Blocked(plugin=RateSource, method="definition", stage="start", passes=3),
    Blocked(plugin=RateSource, method="of", stage="start"),
    Blocked(plugin=RateSource, method="used_topics", stage="start"),
    Blocked(plugin=RateSource, method="read", stage="read"),
    Blocked(plugin=NoopSink, method="of", stage="start"),
    Blocked(plugin=NoopSink, method="to_sink_columns", stage="to_sink_columns"),
    Blocked(plugin=NoopSink, method="take_over", stage="take_over"),
    BLOCKED_FUNCTION,
)


async def test_a_connector_whose_split_or_start_blocks_fails_with_the_call_in_its_trace_and_can_be_deleted(
    worker: RestWorker, gates: Gates
) -> None:
    calls = (*BLOCKED_IN_SPLIT, *BLOCKED_IN_START)
    configs = {blocked: gates.config(blocked) for blocked in calls}
    # A connector that is created as stopped is validated, and neither split nor started.
    with long_limit(worker):
        await asyncio.gather(
            *(worker.create(blocked.name, config, initial_state="STOPPED") for blocked, config in configs.items())
        )
    gates.close()
    for blocked in calls:
        await worker.order("PUT", f"/connectors/{blocked.name}/resume")
    traces = {blocked.name: await worker.trace_of(blocked.name) for blocked in calls}
    assert {blocked.name: message_of(blocked) in traces[blocked.name] for blocked in calls} == {
        blocked.name: True for blocked in calls
    }, traces
    assert await worker.lost_threads() == len(calls)
    await goes_on(worker, "good")
    await worker.delete(*traces)


# -- batches and stops ------------------------------------------------------------------------------------------------

BLOCKED_IN_BATCH = (
    Blocked(plugin=RateSource, method="check_before_read", stage="stop"),
    Blocked(plugin=RateSource, method="is_batch_small", stage="stop"),
    Blocked(plugin=RateSource, method="check_after_read", stage="stop"),
    Blocked(plugin=NoopSink, method="stage", stage="stop"),
    Blocked(plugin=NoopSink, method="batch.commit", stage="stop"),
    Blocked(plugin=NoopSink, method="batch.clean_up", stage="stop"),
)


async def test_a_task_whose_source_or_sink_blocks_in_a_batch_fails_at_the_time_limit_of_the_batch(
    worker: RestWorker, gates: Gates, caplog: pytest.LogCaptureFixture
) -> None:
    configs = {blocked: gates.config(blocked) for blocked in BLOCKED_IN_BATCH}
    gates.close()
    for blocked, config in configs.items():
        await worker.create(blocked.name, {**config, "task.batch.timeout.ms": "1000"})
    for blocked in BLOCKED_IN_BATCH:
        trace = await worker.trace_of(blocked.name)
        assert "Batch 0 has not ended within task.batch.timeout.ms=1000" in trace
        assert gates.gates[blocked].has_blocked.is_set(), blocked
    # The stop waits for the batch, and is given up too.
    await until_true(lambda: has_lost(worker, len(BLOCKED_IN_BATCH)), "each stop has been given up")
    for blocked in BLOCKED_IN_BATCH:
        assert f"The plug-in of task {blocked.name}-0 has not returned from stop" in caplog.text
    await goes_on(worker, "good")
    await worker.delete(*(blocked.name for blocked in BLOCKED_IN_BATCH))


def rows_written(gates: Gates, blocked: Blocked) -> list[int]:
    out = gates.folder_of(blocked) / "out"
    return rows_of(out) if out.exists() else []


BLOCKED_WHILE_RUNNING = (
    Blocked(
        plugin=FileSource,
        method="list_source_partitions",
        stage="list_source_partitions",
        config=(("metadata.max.age.ms", "0"),),
    ),
    Blocked(plugin=RateSource, method="group_offsets", stage="group_offsets"),
)
BLOCKED_IN_RESTART = Blocked(plugin=RateSource, method="read", stage="read")
BLOCKED_IN_STOP = Blocked(plugin=NoopSink, method="close", stage="close")


async def test_a_running_connector_whose_plugin_blocks_runs_on_or_fails_alone(
    rig: Rig, worker: RestWorker, gates: Gates, caplog: pytest.LogCaptureFixture
) -> None:
    # A failure of this test shows which task was started or stopped, and why.
    caplog.set_level(logging.INFO, "coterie")
    listed, _ = BLOCKED_WHILE_RUNNING
    calls = (*BLOCKED_WHILE_RUNNING, BLOCKED_IN_RESTART, BLOCKED_IN_STOP)
    configs = {blocked: gates.config(blocked) for blocked in calls}
    with long_limit(worker):
        for blocked in calls:
            await worker.create(blocked.name, configs[blocked])
        for blocked in calls:
            await worker.until_running(blocked.name)
        await rig.wait_until(lambda: rows_written(gates, listed) == [0])
    gates.close()
    await worker.order("POST", f"/connectors/{BLOCKED_IN_RESTART.name}/tasks/0/restart")
    await worker.delete(BLOCKED_IN_STOP.name)
    assert message_of(BLOCKED_IN_RESTART) in await worker.trace_of(BLOCKED_IN_RESTART.name)
    await until_true(lambda: has_lost(worker, len(calls)), "all calls have been given up")
    for blocked in calls:
        assert message_of(blocked) in caplog.text
    await goes_on(worker, BLOCKED_WHILE_RUNNING[1].name)
    write_file(gates.folder_of(listed) / "in", "1.csv", [(1, 1.0, 1)])
    await rig.wait_until(lambda: rows_written(gates, listed) == [0, 1])
    await worker.delete(*(blocked.name for blocked in (*BLOCKED_WHILE_RUNNING, BLOCKED_IN_RESTART)))


# -- offsets ----------------------------------------------------------------------------------------------------------

BLOCKED_IN_READ_OFFSETS = (
    Blocked(plugin=FileSource, method="definition", stage="read_offsets"),
    Blocked(plugin=FileSource, method="to_offsets", stage="read_offsets"),
    Blocked(plugin=FileSource, method="position_store.read", stage="read_offsets"),
)
BLOCKED_IN_CHANGE_OFFSETS = (
    Blocked(plugin=RateSource, method="definition", stage="definition"),
    Blocked(plugin=FileSource, method="parse_offsets", stage="parse_offsets"),
    Blocked(plugin=FileSource, method="replace_group_offsets", stage="replace_group_offsets"),
    Blocked(plugin=FileSource, method="position_store.read", stage="position_store.read"),
    Blocked(
        plugin=FileSource,
        method="position_store.write_to_new_checkpoint",
        stage="position_store.write_to_new_checkpoint",
    ),
)


async def test_a_request_for_offsets_whose_source_blocks_is_answered_with_the_call(
    worker: RestWorker, gates: Gates
) -> None:
    calls = (*BLOCKED_IN_READ_OFFSETS, *BLOCKED_IN_CHANGE_OFFSETS)
    configs = {blocked: gates.config(blocked) for blocked in calls}
    with long_limit(worker):
        await asyncio.gather(*(worker.create(blocked.name, config) for blocked, config in configs.items()))
        for blocked in calls:
            await worker.until_running(blocked.name)
        for blocked in calls:
            await worker.order("PUT", f"/connectors/{blocked.name}/stop")
        for blocked in calls:
            await worker.until_stopped(blocked.name)
    gates.close()

    def change(blocked: Blocked) -> Any:
        if blocked.plugin is RateSource:
            return {"partition": {"task": 0, "task_count": 1}, "offset": {"seconds": 5}}
        path = str(gates.folder_of(blocked) / "in" / "0.csv")
        return {"partition": {"filename": path}, "offset": None}

    answers = await asyncio.gather(
        *(worker.ask("GET", f"/connectors/{blocked.name}/offsets") for blocked in BLOCKED_IN_READ_OFFSETS),
        *(
            worker.ask("PATCH", f"/connectors/{blocked.name}/offsets", {"offsets": [change(blocked)]})
            for blocked in BLOCKED_IN_CHANGE_OFFSETS
        ),
    )
    messages = {blocked.name: answer.json().get("message") for blocked, answer in zip(calls, answers, strict=True)}
    assert [answer.status_code for answer in answers] == [500] * len(calls), messages
    for blocked in calls:
        assert f"The plug-in of connector {blocked.name} {message_of(blocked)}" in messages[blocked.name]
    assert await worker.lost_threads() == len(calls)
    await goes_on(worker, "good")
    await worker.delete(*messages)
