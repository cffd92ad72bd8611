"""A real worker with light tasks: a task uses almost no resources, and its starts and stops are logged.

``python -m benchmarks.light_worker WORKER_FILE DIARY`` runs a worker until SIGTERM. DIARY is the file for the task log;
see :mod:`benchmarks.task_log`.
"""

import asyncio
import logging
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.task_log import format_entry, now_ms
from coterie.cli import parent
from coterie.cli.workers import compose, settings_file
from coterie.config.definition import ConfigKey
from coterie.config.infos import ConfigInfos
from coterie.config.plugins import Plugin, UnknownPluginError
from coterie.herder.seams import SplitResult, TaskEvent, TaskHaltedWithoutOrder, TaskProgressed, TaskSpec
from coterie.nouns.connector_offsets import ConnectorOffset, OffsetChange, OffsetsRefusedError
from coterie.nouns.ids import Incarnation
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.nouns.logger_levels import LoggerLevel

TICK_S = 0.1
"""The duration of a simulated batch: a task stops at the end of a batch, as Connect's source tasks stop when their poll
returns."""


class LightRuntime:
    """`TaskRuntime` whose tasks only report that they run. A connector is split into ``tasks.max`` tasks."""

    def __init__(self, task_log: Path) -> None:
        self._task_log = task_log.open("ab", buffering=0)
        self._started_s: dict[ConnectorTaskId, float] = {}
        self._events: asyncio.Queue[TaskEvent] = asyncio.Queue()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()

    async def close(self) -> None:
        for task in list(self._started_s):
            self._end(task)
        self._task_log.close()

    async def validate(
        self, config: Mapping[str, str], configs_of_checkpointed_tasks: Sequence[Mapping[str, str]]
    ) -> ConfigInfos:
        return ConfigInfos(connector_class=config["connector.class"], configs=())

    async def list_plugins(self) -> Sequence[Plugin]:
        return ()

    async def describe_plugin(self, name: str, version_range: str | None) -> Sequence[ConfigKey]:
        raise UnknownPluginError(f"Unknown plugin {name}.")

    def connector_type(self, config: Mapping[str, str]) -> str:
        return "source"

    async def logger_levels(self) -> Mapping[str, LoggerLevel]:
        return {}

    async def set_logger_level(self, name: str, level: LoggerLevel) -> None:
        pass

    def missing_jars(self) -> Mapping[str, str]:
        return {}

    async def split(
        self,
        connector: ConnectorName,
        incarnation: Incarnation,
        config: Mapping[str, str],
        configs_of_checkpointed_tasks: Sequence[Mapping[str, str]],
        *,
        keeps_source_parts: bool = False,
    ) -> SplitResult:
        return SplitResult(
            task_configs=[{**config, "task": f"{connector}-{number}"} for number in range(int(config["tasks.max"]))]
        )

    def stop_connector(self, connector: ConnectorName) -> None:
        """Does nothing: a split takes no time."""

    async def read_offsets(
        self, connector: ConnectorName, incarnation: Incarnation, config: Mapping[str, str]
    ) -> Sequence[ConnectorOffset]:
        return ()

    async def change_offsets(
        self,
        connector: ConnectorName,
        incarnation: Incarnation,
        config: Mapping[str, str],
        configs_of_checkpointed_tasks: Sequence[Mapping[str, str]],
        change: OffsetChange,
    ) -> None:
        raise OffsetsRefusedError("The tasks of this benchmark have no offsets")

    async def ensure_open_checkpoint_generation(
        self, connector: ConnectorName, incarnation: Incarnation
    ) -> Sequence[Mapping[str, str]] | None:
        raise AssertionError("tasks are never closed in this benchmark")

    async def start(self, spec: TaskSpec) -> None:
        self._log_event("start", spec.task)
        self._started_s[spec.task] = time.monotonic()
        self._events.put_nowait(TaskProgressed(task=spec.task, batch_id=0, input_rows=0))

    def abort_task_start(self, task: ConnectorTaskId, *, grace_ms: int) -> None:
        """Does nothing: a start takes no time."""

    async def restart(self, task: ConnectorTaskId) -> None:
        raise AssertionError("tasks never fail in this benchmark")

    async def stop(self, task: ConnectorTaskId, *, grace_ms: int) -> None:
        if (started_s := self._started_s.get(task)) is not None:
            await asyncio.sleep(TICK_S - (time.monotonic() - started_s) % TICK_S)
            self._end(task)

    def halt_all_tasks(self) -> None:
        assert self._loop is not None
        for task in list(self._started_s):
            self._end(task)
            self._loop.call_soon_threadsafe(self._events.put_nowait, TaskHaltedWithoutOrder(task=task))

    async def next_event(self) -> TaskEvent:
        return await self._events.get()

    def _end(self, task: ConnectorTaskId) -> None:
        if self._started_s.pop(task, None) is not None:
            self._log_event("stop", task)

    def _log_event(self, event: str, task: ConnectorTaskId) -> None:
        self._task_log.write(format_entry(now_ms(), event, str(task)).encode())


def main(file: str, task_log: str) -> int:
    parent.exit_with_parent()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    settings, _ = settings_file.read_settings_and_warnings(Path(file))
    return compose.run_worker(settings, lambda settings, name, scratch: LightRuntime(Path(task_log)))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
