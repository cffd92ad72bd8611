"""``SparkTaskRuntime``: the herder's task runtime on Spark; blocking work runs on separate threads."""

import asyncio
import logging
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from coterie.config.worker import JARS_OF_USER
from coterie.herder.seams import RuntimeDied, TaskEvent, TaskSpec
from coterie.nouns.errors import WorldError
from coterie.nouns.ids import Incarnation
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.spark import user_code
from coterie.spark.checkpoint import HeldCheckpoint, check_location
from coterie.spark.events import Events
from coterie.spark.jar_fetch import fetch, has_pinned_digest
from coterie.spark.jars import missing_package_messages, packages, session_settings
from coterie.spark.offset_committer import OffsetCommitter
from coterie.spark.pipeline import resolved
from coterie.spark.plugins import connector_type
from coterie.spark.session import SparkDriver, start_driver
from coterie.spark.settings import SparkConfig
from coterie.spark.splitting import Splitter
from coterie.spark.supervisor import Supervisor, on_thread
from coterie.spark.validation import config_errors
from coterie.spark.warmup import warm_up

log = logging.getLogger(__name__)

VALIDATIONS_MAX = 16
"""Maximum number of connectors that are validated or split at the same time. A plug-in may block without limit."""


class SparkTaskRuntime:
    """The :class:`coterie.herder.seams.TaskRuntime` of a worker whose tasks are Spark queries. Methods without a
    docstring are described there."""

    def __init__(self, config: SparkConfig) -> None:
        self._config = config
        self._events = Events()
        self._driver: SparkDriver | None = None
        self._exit_reason: str | None = None
        self._missing_jars: Mapping[str, str] = {}
        self._closing = threading.Event()
        self._lag_thread: threading.Thread | None = None
        self._supervisor = Supervisor(config, self._events, self._driver_or_raise, self._closing)
        self._splitter = Splitter(config, self._events, self._driver_or_raise)
        # Separate from starts and stops: a plug-in that blocks in a validation or a split must delay neither.
        self._validation_pool = ThreadPoolExecutor(VALIDATIONS_MAX, thread_name_prefix="coterie-validate")

    async def open(self) -> None:
        """Start Spark, run a first query to warm it up, and start the threads of the runtime.

        :raises WorldError: when the checkpoint location or the jars' folder cannot be used, jars cannot be fetched,
            there is no suitable Java, Spark does not start, its first query fails, or :meth:`close` was called.
        """
        self._events.bind()
        await on_thread(self._validation_pool, self._open)

    async def close(self) -> None:
        self._closing.set()
        await asyncio.to_thread(self._close)

    async def validate(
        self, config: Mapping[str, str], checkpointed_task_configs: Sequence[Mapping[str, str]]
    ) -> Mapping[str, Sequence[str]]:
        return await on_thread(
            self._validation_pool,
            lambda: config_errors(
                self._driver_or_raise().spark, resolved(config), self._config.kafka, checkpointed_task_configs
            ),
        )

    def connector_type(self, config: Mapping[str, str]) -> str:
        return connector_type(config)

    def missing_jars(self) -> Mapping[str, str]:
        return self._missing_jars

    async def split(
        self,
        connector: ConnectorName,
        incarnation: Incarnation,
        config: Mapping[str, str],
        checkpointed_task_configs: Sequence[Mapping[str, str]],
        *,
        keeps_source_parts: bool = False,
    ) -> Sequence[Mapping[str, str]]:
        fence = self._splitter.open_fence(connector)
        return await on_thread(
            self._validation_pool,
            lambda: self._splitter.split(
                fence, connector, incarnation, config, checkpointed_task_configs, keeps_source_parts=keeps_source_parts
            ),
        )

    def stop_connector(self, connector: ConnectorName) -> None:
        self._splitter.stop_connector(connector)

    async def finish_checkpoint_generation(
        self, connector: ConnectorName, incarnation: Incarnation
    ) -> Sequence[Mapping[str, str]] | None:
        fence = self._splitter.open_fence(connector)
        return await on_thread(
            self._validation_pool, lambda: self._splitter.finish_checkpoint_generation(fence, connector, incarnation)
        )

    async def start(self, spec: TaskSpec) -> None:
        await self._supervisor.start(spec)

    async def restart(self, task: ConnectorTaskId) -> None:
        await self._supervisor.restart(task)

    async def stop(self, task: ConnectorTaskId, *, grace_ms: int) -> None:
        await self._supervisor.stop(task, grace_ms=grace_ms)

    def halt_all_tasks(self) -> None:
        self._splitter.close_nowait()
        self._supervisor.halt_all_tasks()

    async def next_event(self) -> TaskEvent:
        return await self._events.get()

    def held_checkpoint(self, task: ConnectorTaskId) -> HeldCheckpoint | None:
        """See :meth:`Supervisor.held_checkpoint`."""
        return self._supervisor.held_checkpoint(task)

    @property
    def jvm_pid(self) -> int | None:
        """The process id of Spark's JVM, which may have ended; None before Spark was started."""
        return None if self._driver is None else self._driver.jvm_pid

    # -- on threads ---------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """:meth:`open`, on a thread."""
        config = self._config
        check_location(config.checkpoint_location)  # Before the start of Spark, which takes long.
        settings = {**user_code.settings_of(config.python), **self._jar_settings(), **config.settings}
        self._driver = start_driver(replace(config, settings=settings), self._on_jvm_exit)
        if self._closing.is_set():
            raise WorldError("Spark was closed while it started")
        try:
            warm_up(self._driver.spark, config.scratch)
        except (PySparkException, Py4JError) as error:
            raise WorldError(f"Spark's first query failed; see {config.log_file}: {error}") from error
        self._missing_jars = missing_package_messages(self._driver.spark)
        if self._missing_jars:
            log.info(
                "This worker rejects connectors that need the jars of %s: see `coterie jars list`",
                ", ".join(self._missing_jars),
            )
        self._supervisor.watch()
        watcher = threading.Thread(
            target=self._splitter.watch_parts, args=(self._closing,), name="coterie-parts", daemon=True
        )
        watcher.start()
        lag = OffsetCommitter(self._supervisor.running, self._config.offset_flush_interval_ms)
        self._lag_thread = threading.Thread(target=lag.run, args=(self._closing,), name="coterie-lag", daemon=True)
        self._lag_thread.start()

    def _jar_settings(self) -> Mapping[str, str]:
        """The settings that add the jars of the worker's folder to Spark (:func:`session_settings`). If the worker's
        settings say so, the pinned jars that are missing or differ are fetched first.

        :raises WorldError: when jars cannot be fetched or the folder cannot be read, or :meth:`close` was called.
        """
        jars, users = self._config.jars, self._config.settings
        if jars is None:
            return {}
        if jars.fetch and not any(users.get(key) for key in JARS_OF_USER):
            pinned = [jar for package in packages().values() for jar in package.jars]
            lacking = [jar for jar in pinned if not has_pinned_digest(jar, jars.folder)]
            if lacking:
                log.info("Fetching %d jars into %s", len(lacking), jars.folder)
                fetch(lacking, jars.folder, mirror=jars.mirror, on_bytes=self._check_not_closing)
                log.info("All missing jars were fetched")
        return session_settings(jars.folder, users)

    def _check_not_closing(self, *_: object) -> None:
        """End a fetch of jars after :meth:`close` was called.

        :raises WorldError: when :meth:`close` was called.
        """
        if self._closing.is_set():
            raise WorldError("Spark was closed while its jars were fetched")

    def _close(self) -> None:
        """:meth:`close`, on a thread."""
        self._splitter.close_nowait()
        self._supervisor.close()
        self._validation_pool.shutdown(wait=False, cancel_futures=True)
        # The end of the JVM ends its queries, and so every thread of this worker that waits for a query.
        if self._driver is not None:
            self._driver.close()
        self._supervisor.join()
        self._validation_pool.shutdown(cancel_futures=True)
        if self._lag_thread is not None:
            self._lag_thread.join()
        # `open` may have created the session after the check above.
        if self._driver is not None:
            self._driver.close()

    def _on_jvm_exit(self, reason: str) -> None:
        """Reject further commits of all splits and tasks and report :class:`RuntimeDied`: the JVM has ended
        unexpectedly."""
        self._exit_reason = reason
        self._splitter.close_nowait()
        self._supervisor.fence_running()
        self._events.put(RuntimeDied(reason=reason))

    def _driver_or_raise(self) -> SparkDriver:
        """The running Spark session.

        :raises WorldError: when Spark is not running on this worker, or is being closed.
        """
        if self._exit_reason is not None:
            raise WorldError(self._exit_reason)
        if self._driver is None or self._closing.is_set():
            raise WorldError("Spark is not running on this worker")
        return self._driver
