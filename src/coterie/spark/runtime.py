"""``SparkTaskRuntime``: the herder's task runtime on Spark; blocking work runs on separate threads."""

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from dataclasses import replace
from typing import TypeVar

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from coterie.config.definition import ConfigKey
from coterie.config.infos import ConfigInfos
from coterie.config.plugins import Plugin
from coterie.config.worker import USER_JAR_KEYS
from coterie.herder.seams import PluginThreadsLost, RuntimeDied, SplitResult, TaskEvent, TaskSpec
from coterie.nouns.connector_offsets import ConnectorOffset, OffsetChange
from coterie.nouns.errors import WorldError
from coterie.nouns.ids import Incarnation
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.nouns.logger_levels import LoggerLevel
from coterie.spark import user_code
from coterie.spark.call_ledger import CallQueueSpec
from coterie.spark.checkpoint import HeldCheckpoint, create_checkpoint_location_and_test_write
from coterie.spark.events import EventQueue
from coterie.spark.failures import SPARK_NOT_RUNNING_MESSAGE
from coterie.spark.fence import Fence
from coterie.spark.jar_fetch import fetch_and_replace_jars, has_pinned_digest
from coterie.spark.jars import jar_packages, jar_settings_unless_user_sets_jars, missing_jars_message_by_package
from coterie.spark.jvm_loggers import read_logger_levels, set_logger_level
from coterie.spark.offset_committer import OffsetCommitter
from coterie.spark.plugin_calls import PluginCall, PluginCalls, plugin_stage, result_of
from coterie.spark.plugin_list import all_plugins, plugin_config_keys
from coterie.spark.plugins import connector_type, source_by_name
from coterie.spark.session import SparkDriver, start_driver
from coterie.spark.settings import SparkConfig
from coterie.spark.splitting import Splitter
from coterie.spark.supervisor import Supervisor
from coterie.spark.validation import validate_config
from coterie.spark.warmup import run_warm_up_queries

log = logging.getLogger(__name__)

T = TypeVar("T")

CONNECTOR_CALLS = CallQueueSpec(name="connector", concurrent_calls_max=16)
"""The calls for connectors: they validate a config, split a connector, read or change its offsets, or finish a
checkpoint generation. Separate from starts and stops, which must not wait for them."""
LOGGER_CALLS = CallQueueSpec(name="loggers", concurrent_calls_max=1)
OPEN_CALLS = CallQueueSpec(name="open", concurrent_calls_max=1)
ENDED_SPLIT_TIMEOUT_S = 5
"""How long a running split, change of offsets or finish of a checkpoint generation may take to end after
:meth:`SparkTaskRuntime.stop_connector`. Then the call is abandoned."""
INTERRUPTED_OPEN_TIMEOUT_S = 60
"""How long :meth:`SparkTaskRuntime.close` waits for a running :meth:`SparkTaskRuntime.open`, which may be starting the
JVM."""
CLOSE_TIMEOUT_S = 5
"""How long :meth:`SparkTaskRuntime.close` waits for running calls after the end of the JVM. All calls that do not hang
in a plug-in end then."""


class SparkTaskRuntime:
    """The :class:`coterie.herder.seams.TaskRuntime` of a worker whose tasks are Spark queries. Methods without a
    docstring are described there."""

    def __init__(self, config: SparkConfig) -> None:
        self._config = config
        self._events = EventQueue()
        self._driver: SparkDriver | None = None
        self._jvm_exit_reason: str | None = None
        self._missing_jars: Mapping[str, str] = {}
        self._closing = threading.Event()
        self._offset_commit_thread: threading.Thread | None = None
        self._calls = PluginCalls(
            config.plugin_call_timeout_ms, lambda count: self._events.put(PluginThreadsLost(lost_threads_total=count))
        )
        self._supervisor = Supervisor(config, self._events, self._running_driver, self._closing, self._calls)
        self._splitter = Splitter(config, self._events, self._running_driver, self._calls)
        self._opening: PluginCall | None = None
        """The call of :meth:`open`; None before."""
        self._split_calls: dict[PluginCall, ConnectorName] = {}
        """The running calls of the splitter, each with its connector. Used on the event loop only."""

    async def open(self) -> None:
        """Start Spark, run first queries to warm it up, and start the threads of the runtime.

        :raises WorldError: when the import of the plug-ins takes too long, the checkpoint location or the jars' folder
            cannot be used, jars cannot be fetched, there is no suitable Java, Spark does not start, a first query
            fails, or :meth:`close` was called.
        """
        self._events.bind_to_running_loop()
        self._opening = self._calls.submit(OPEN_CALLS, "this worker", self._open_blocking)
        await result_of(self._opening)

    async def close(self) -> None:
        self._closing.set()
        await asyncio.to_thread(self._close_blocking)

    async def validate(
        self, config: Mapping[str, str], configs_of_checkpointed_tasks: Sequence[Mapping[str, str]]
    ) -> ConfigInfos:
        providers = self._config.config_providers
        return await self._calls.call(
            CONNECTOR_CALLS,
            f"connector {config.get('name', 'without a name')}",
            lambda: validate_config(
                self._running_driver().spark,
                config,
                providers.resolve,
                self._config.worker_kafka_properties,
                [providers.resolve_where_possible(task_config) for task_config in configs_of_checkpointed_tasks],
            ),
            stage="validate",
        )

    def connector_type(self, config: Mapping[str, str]) -> str:
        return connector_type(config)

    async def list_plugins(self) -> Sequence[Plugin]:
        return await self._calls.call(CONNECTOR_CALLS, "the list of plug-ins", all_plugins, stage="import")

    async def describe_plugin(self, name: str, version_range: str | None) -> Sequence[ConfigKey]:
        return await self._calls.call(
            CONNECTOR_CALLS, f"class {name}", lambda: plugin_config_keys(name, version_range), stage="definition"
        )

    async def logger_levels(self) -> Mapping[str, LoggerLevel]:
        driver = self._driver_while_jvm_runs()
        if driver is None:
            return {}
        return await self._calls.call(
            LOGGER_CALLS, "the loggers of Spark's JVM", lambda: read_logger_levels(driver.spark), stage="read"
        )

    async def set_logger_level(self, name: str, level: LoggerLevel) -> None:
        driver = self._driver_while_jvm_runs()
        if driver is not None:
            await self._calls.call(
                LOGGER_CALLS, f"logger {name}", lambda: set_logger_level(driver.spark, name, level), stage="set level"
            )

    def missing_jars(self) -> Mapping[str, str]:
        return self._missing_jars

    async def split(
        self,
        connector: ConnectorName,
        incarnation: Incarnation,
        config: Mapping[str, str],
        configs_of_checkpointed_tasks: Sequence[Mapping[str, str]],
        *,
        keeps_source_parts: bool = False,
    ) -> SplitResult:
        return await self._call_splitter(
            connector,
            lambda fence: self._splitter.split(
                fence,
                connector,
                incarnation,
                config,
                configs_of_checkpointed_tasks,
                keeps_source_parts=keeps_source_parts,
            ),
        )

    def stop_connector(self, connector: ConnectorName) -> None:
        self._splitter.stop_connector(connector)
        for call, name in self._split_calls.items():
            if name == connector:
                call.limit_remaining_time(ENDED_SPLIT_TIMEOUT_S)

    async def ensure_open_checkpoint_generation(
        self, connector: ConnectorName, incarnation: Incarnation
    ) -> Sequence[Mapping[str, str]] | None:
        return await self._call_splitter(
            connector, lambda fence: self._splitter.ensure_open_checkpoint_generation(fence, connector, incarnation)
        )

    async def read_offsets(
        self, connector: ConnectorName, incarnation: Incarnation, config: Mapping[str, str]
    ) -> Sequence[ConnectorOffset]:
        return await self._calls.call(
            CONNECTOR_CALLS,
            f"connector {connector}",
            lambda: self._splitter.read_offsets(connector, incarnation, config),
            stage="read_offsets",
        )

    async def change_offsets(
        self,
        connector: ConnectorName,
        incarnation: Incarnation,
        config: Mapping[str, str],
        configs_of_checkpointed_tasks: Sequence[Mapping[str, str]],
        change: OffsetChange,
    ) -> None:
        await self._call_splitter(
            connector,
            lambda fence: self._splitter.change_offsets(
                fence, connector, incarnation, config, configs_of_checkpointed_tasks, change
            ),
        )

    async def _call_splitter(self, connector: ConnectorName, function: Callable[[Fence], T]) -> T:
        """Call ``function``, a function of the splitter for ``connector``, on another thread with a new fence, and
        return its result. The fence is closed when the call is abandoned."""
        fence = self._splitter.add_fence(connector)
        call = self._calls.submit(
            CONNECTOR_CALLS,
            f"connector {connector}",
            lambda: function(fence),
            on_abandon=lambda _: fence.close_nowait(),
        )
        self._split_calls[call] = connector
        try:
            result: T = await result_of(call)
        finally:
            del self._split_calls[call]
            if call.has_function_ended:
                self._splitter.drop_fence(fence)  # The function, which drops it too, may never have begun.
        return result

    async def start(self, spec: TaskSpec) -> None:
        await self._supervisor.start(spec)

    async def restart(self, task: ConnectorTaskId) -> None:
        await self._supervisor.restart(task)

    def abort_task_start(self, task: ConnectorTaskId, *, grace_ms: int) -> None:
        self._supervisor.abort_task_start(task, grace_ms=grace_ms)

    async def stop(self, task: ConnectorTaskId, *, grace_ms: int) -> None:
        await self._supervisor.stop(task, grace_ms=grace_ms)

    def halt_all_tasks(self) -> None:
        self._splitter.close_fences_nowait()
        self._supervisor.halt_all_tasks()

    async def next_event(self) -> TaskEvent:
        return await self._events.get()

    def held_checkpoint(self, task: ConnectorTaskId) -> HeldCheckpoint | None:
        """The checkpoint that the run of ``task`` on this worker holds; None when there is no such run, or the run is
        being started or stopped (:meth:`Supervisor.held_checkpoint`)."""
        return self._supervisor.held_checkpoint(task)

    @property
    def jvm_pid(self) -> int | None:
        """The process id of Spark's JVM, which may have ended; None before Spark was started."""
        return None if self._driver is None else self._driver.jvm_pid

    # -- on threads ---------------------------------------------------------------------------------------------------

    def _open_blocking(self) -> None:
        """Do the work of :meth:`open`. Blocks, and is called on a thread. Raises the exceptions of :meth:`open`."""
        config = self._config
        with plugin_stage("import"):
            source_by_name()  # The event loop uses the imported plug-ins, and must not wait for an import.
        # Before the start of Spark, which takes long.
        create_checkpoint_location_and_test_write(config.checkpoint_location)
        settings = {
            **user_code.python_session_settings(config.python_settings),
            **self._maybe_fetch_jars_and_make_settings(),
            **config.user_settings,
        }
        if self._closing.is_set():  # This call was abandoned in the import of a plug-in that has returned late.
            raise WorldError("Spark was not started: this worker is being shut down")
        self._driver = start_driver(
            replace(config, user_settings=settings), self._close_all_fences_and_report_runtime_died
        )
        if self._closing.is_set():
            raise WorldError("Spark was started and is not used: this worker is being shut down")
        try:
            run_warm_up_queries(self._driver.spark, config.scratch_folder)
        except (PySparkException, Py4JError, WorldError) as error:
            raise WorldError(f"a warm-up query of Spark failed; see {config.jvm_log_file}: {error}") from error
        self._missing_jars = missing_jars_message_by_package(self._driver.spark)
        if self._missing_jars:
            log.info(
                "This worker rejects connectors that need the jars of %s: see `coterie jars list`",
                ", ".join(self._missing_jars),
            )
        self._supervisor.start_polling()
        partitions_thread = threading.Thread(
            target=self._splitter.watch_source_partitions, args=(self._closing,), name="coterie-parts", daemon=True
        )
        partitions_thread.start()
        offset_committer = OffsetCommitter(
            self._supervisor.running_and_stopping_queries, self._config.offset_flush_interval_ms, self._calls
        )
        self._offset_commit_thread = threading.Thread(
            target=offset_committer.commit_repeatedly_until_closing,
            args=(self._closing,),
            name="coterie-lag",
            daemon=True,
        )
        self._offset_commit_thread.start()

    def _maybe_fetch_jars_and_make_settings(self) -> Mapping[str, str]:
        """The settings that add the jars of the worker's folder to Spark (:func:`jar_settings_unless_user_sets_jars`).
        If the worker's settings say so, the pinned jars that are missing or differ are fetched first, unless the user's
        Spark settings name jars themselves (:data:`USER_JAR_KEYS`).

        :raises WorldError: when jars cannot be fetched or the folder cannot be read, or :meth:`close` was called.
        """
        jar_config, user_settings = self._config.jar_folder_settings, self._config.user_settings
        if jar_config is None:
            return {}
        if jar_config.fetches_missing_jars and not any(user_settings.get(key) for key in USER_JAR_KEYS):
            pinned_jars = [jar for package in jar_packages().values() for jar in package.jars]
            jars_to_fetch = [jar for jar in pinned_jars if not has_pinned_digest(jar, jar_config.folder)]
            if jars_to_fetch:
                log.info("Fetching %d jars into %s", len(jars_to_fetch), jar_config.folder)
                fetch_and_replace_jars(
                    jars_to_fetch,
                    jar_config.folder,
                    repository_url=jar_config.repository_url,
                    on_chunk=self._check_not_closing,
                )
                log.info("All missing jars were fetched")
        return jar_settings_unless_user_sets_jars(jar_config.folder, user_settings)

    def _check_not_closing(self, *_: object) -> None:
        """End a fetch of jars after :meth:`close` was called.

        :raises WorldError: when :meth:`close` was called.
        """
        if self._closing.is_set():
            raise WorldError("The fetch of jars was ended: this worker is being shut down")

    def _close_blocking(self) -> None:
        """Do the work of :meth:`close`. Blocks, and is called on a thread."""
        self._splitter.close_fences_nowait()
        self._supervisor.close()
        self._calls.close()
        # The end of the JVM ends its queries, and so every thread of this worker that waits for a query.
        if self._driver is not None:
            self._driver.close()
        if self._opening is not None:
            futures.wait([self._opening.future], INTERRUPTED_OPEN_TIMEOUT_S)
        self._calls.wait_or_abandon_running_calls(CLOSE_TIMEOUT_S)
        if self._offset_commit_thread is not None:
            self._offset_commit_thread.join()
        # `open` may have created the session after the check above.
        if self._driver is not None:
            self._driver.close()

    def _close_all_fences_and_report_runtime_died(self, reason: str) -> None:
        """The JVM has ended unexpectedly: reject further commits of all splits and tasks, end all runs that have a
        query, and report one :class:`RuntimeDied` with ``reason``. No event of a single task is reported: the worker
        leaves the group and ends."""
        self._jvm_exit_reason = reason
        self._splitter.close_fences_nowait()
        self._supervisor.end_runs_without_stopping_queries()
        self._events.put(RuntimeDied(reason=reason))

    def _driver_while_jvm_runs(self) -> SparkDriver | None:
        """The driver (SparkSession and JVM) whose JVM has loggers to show; None when no JVM runs on this worker, or it
        is being closed."""
        return None if self._jvm_exit_reason is not None or self._closing.is_set() else self._driver

    def _running_driver(self) -> SparkDriver:
        """The driver (SparkSession and JVM) of this worker.

        :raises WorldError: when Spark is not running on this worker, or is being closed.
        """
        if self._jvm_exit_reason is not None:
            raise WorldError(self._jvm_exit_reason)
        if self._driver is None or self._closing.is_set():
            raise WorldError(SPARK_NOT_RUNNING_MESSAGE)
        return self._driver
