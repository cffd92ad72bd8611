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
from coterie.herder.seams import RuntimeDied, TaskEvent, TaskStart
from coterie.nouns.errors import WorldError
from coterie.nouns.ids import Incarnation
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.spark import user_code
from coterie.spark.checkpoint import HeldCheckpoint, check_location
from coterie.spark.events import Events
from coterie.spark.jar_fetch import fetch, is_whole
from coterie.spark.jars import missing_packages, packages, session_settings
from coterie.spark.lag import LagReports
from coterie.spark.pipeline import resolved
from coterie.spark.plugins import connector_type
from coterie.spark.session import Session, open_session
from coterie.spark.settings import SparkConfig
from coterie.spark.splitting import Splitter
from coterie.spark.supervisor import Supervisor, on_thread
from coterie.spark.validation import errors_of
from coterie.spark.warmup import warm_up

log = logging.getLogger(__name__)

QUESTIONS_AT_ONCE = 16
"""Maximum of connectors that are validated or split at the same time; a plug-in may block without limit."""


class SparkTaskRuntime:
    """Matches :class:`coterie.herder.seams.TaskRuntime`."""

    def __init__(self, config: SparkConfig) -> None:
        self._config = config
        self._events = Events()
        self._session: Session | None = None
        self._dead: str | None = None
        self._lacks: Mapping[str, str] = {}
        self._closing = threading.Event()
        self._lag_thread: threading.Thread | None = None
        self._supervisor = Supervisor(config, self._events, self._living, self._closing)
        self._splitter = Splitter(config, self._events, self._living)
        # Separate from starts and stops: a plug-in that blocks in a validation or a split must delay neither.
        self._questions = ThreadPoolExecutor(QUESTIONS_AT_ONCE, thread_name_prefix="coterie-validate")

    async def open(self) -> None:
        """Start the session and warm it up.

        :raises WorldError: when the checkpoint location cannot be written, Java or memory is missing, or Spark rejects
            a setting.
        """
        self._events.bind()
        await on_thread(self._questions, self._open)

    async def close(self) -> None:
        self._closing.set()
        await asyncio.to_thread(self._close)

    async def validate(
        self, config: Mapping[str, str], checkpointed: Sequence[Mapping[str, str]]
    ) -> Mapping[str, Sequence[str]]:
        return await on_thread(
            self._questions, lambda: errors_of(self._living().spark, resolved(config), self._config.kafka, checkpointed)
        )

    def connector_type(self, config: Mapping[str, str]) -> str:
        return connector_type(config)

    def lacks(self) -> Mapping[str, str]:
        return self._lacks

    async def split(
        self,
        connector: ConnectorName,
        incarnation: Incarnation,
        config: Mapping[str, str],
        checkpointed: Sequence[Mapping[str, str]],
        *,
        keeps_split: bool = False,
    ) -> Sequence[Mapping[str, str]]:
        fence = self._splitter.begin(connector)
        return await on_thread(
            self._questions,
            lambda: self._splitter.split(fence, connector, incarnation, config, checkpointed, keeps_split=keeps_split),
        )

    def forget(self, connector: ConnectorName) -> None:
        self._splitter.forget(connector)

    async def finish(self, connector: ConnectorName, incarnation: Incarnation) -> Sequence[Mapping[str, str]] | None:
        fence = self._splitter.begin(connector)
        return await on_thread(self._questions, lambda: self._splitter.finish(fence, connector, incarnation))

    async def start(self, start: TaskStart) -> None:
        await self._supervisor.start(start)

    async def restart(self, task: ConnectorTaskId) -> None:
        await self._supervisor.restart(task)

    async def stop(self, task: ConnectorTaskId, *, grace_ms: int) -> None:
        await self._supervisor.stop(task, grace_ms=grace_ms)

    def stop_everything_now(self) -> None:
        self._splitter.shut()
        self._supervisor.stop_everything_now()

    async def next_event(self) -> TaskEvent:
        return await self._events.get()

    def held(self, task: ConnectorTaskId) -> HeldCheckpoint | None:
        """The checkpoint of the run of ``task`` on this worker; None when there is no such run."""
        return self._supervisor.held(task)

    @property
    def jvm_pid(self) -> int | None:
        return None if self._session is None else self._session.jvm_pid

    # -- on threads ---------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        config = self._config
        check_location(config.checkpoint_location)  # Before the start of Spark, which takes long.
        settings = {**user_code.settings_of(config.python), **self._jar_settings(), **config.settings}
        self._session = open_session(replace(config, settings=settings), self._died)
        if self._closing.is_set():
            raise WorldError("Spark was closed while it started")
        try:
            warm_up(self._session.spark, config.scratch)
        except (PySparkException, Py4JError) as error:
            raise WorldError(f"Spark's first query failed; see {config.log_file}: {error}") from error
        self._lacks = missing_packages(self._session.spark)
        if self._lacks:
            log.info(
                "This worker rejects connectors that need the jars of %s: see `coterie jars list`",
                ", ".join(self._lacks),
            )
        self._supervisor.watch()
        watcher = threading.Thread(
            target=self._splitter.watch_parts, args=(self._closing,), name="coterie-parts", daemon=True
        )
        watcher.start()
        lag = LagReports(self._supervisor.running, self._config.offset_flush_interval_ms)
        self._lag_thread = threading.Thread(target=lag.run, args=(self._closing,), name="coterie-lag", daemon=True)
        self._lag_thread.start()

    def _jar_settings(self) -> Mapping[str, str]:
        """The settings that add the jars of the worker's folder to Spark; first fetches missing jars if configured."""
        jars, users = self._config.jars, self._config.settings
        if jars is None:
            return {}
        if jars.fetch and not any(users.get(key) for key in JARS_OF_USER):
            pinned = [jar for package in packages().values() for jar in package.jars]
            lacking = [jar for jar in pinned if not is_whole(jar, jars.folder)]
            if lacking:
                log.info("Fetching %d jars into %s", len(lacking), jars.folder)
                fetch(lacking, jars.folder, mirror=jars.mirror, on_bytes=self._check_not_closing)
                log.info("All missing jars were fetched")
        return session_settings(jars.folder, users)

    def _check_not_closing(self, *_: object) -> None:
        if self._closing.is_set():
            raise WorldError("Spark was closed while its jars were fetched")

    def _close(self) -> None:
        self._splitter.shut()
        self._supervisor.close()
        self._questions.shutdown(wait=False, cancel_futures=True)
        # The end of the JVM ends its queries, and so every thread of this worker that waits for a query.
        if self._session is not None:
            self._session.close()
        self._supervisor.join()
        self._questions.shutdown(cancel_futures=True)
        if self._lag_thread is not None:
            self._lag_thread.join()
        # `open` may have created the session after the check above.
        if self._session is not None:
            self._session.close()

    def _died(self, reason: str) -> None:
        self._dead = reason
        self._splitter.shut()
        self._supervisor.fence_running()
        self._events.put(RuntimeDied(reason=reason))

    def _living(self) -> Session:
        """:raises WorldError: when Spark is not running on this worker."""
        if self._dead is not None:
            raise WorldError(self._dead)
        if self._session is None or self._closing.is_set():
            raise WorldError("Spark is not running on this worker")
        return self._session
