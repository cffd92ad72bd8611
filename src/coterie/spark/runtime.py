"""``SparkTaskRuntime``: the herder's task runtime on Spark; what blocks runs on threads of its own.

A run of a task ends in one of five ways. It is *stopped* when asked to, or *halted* with all others when the worker
stands still. It is *taken* when another worker holds its checkpoint. It *failed* when starting it again on the same
checkpoint, a few times, does not help. Or everything ends at once, because the JVM died. No exception of Spark's tells
taken from failed: a look at the checkpoint does.
"""

import asyncio
import logging
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from coterie.herder.seams import RuntimeDied, TaskEvent, TaskFailed, TaskHalted, TaskProgressed, TaskStart, TaskTaken
from coterie.nouns.errors import ConfigError, WorldError
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.spark.checkpoint import Held, take_over, task_folder
from coterie.spark.events import Events
from coterie.spark.fence import FencedError
from coterie.spark.plugins import find_plugin
from coterie.spark.query import TaskQuery
from coterie.spark.session import Session, open_session
from coterie.spark.validation import dealt_by, errors_of, split_errors
from coterie.spark.warmup import warm_up

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkConfig:
    """How a worker runs Spark."""

    checkpoint_location: Path
    """Shared by all workers."""
    scratch: Path
    """This worker's own: temporary files of Spark and ours."""
    log_file: Path
    """What the JVM prints."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """``spark.*`` settings, over ours."""
    stop_at_c1: bool = True
    """Halve the CPU of small batches; heavy queries run slower (``-XX:TieredStopAtLevel=1``)."""
    starts_at_once: int = 4
    """How many queries are started at the same time; more only take turns on the same two or four cores."""
    stops_at_once: int = 64
    """How many are stopped at the same time: each may hang in Spark for a while, and none may wait for another."""
    questions_at_once: int = 16
    """How many connectors are validated or split at the same time; a plug-in may take as long as it likes."""
    look_every_ms: int = 300
    """How often the queries are asked for their progress."""
    restarts: int = 3
    """How often a query that died is started again on the same checkpoint before its task has failed."""
    restart_backoff_ms: int = 200
    """The wait before the first of these; each further one waits twice as long."""


@dataclass(slots=True, eq=False)
class Run:
    """One task that runs here, over all restarts on the same checkpoint."""

    query: TaskQuery
    seen: tuple[int, int, str] | None = None
    deaths: int = 0
    restarting: bool = False


class SparkTaskRuntime:
    """Matches :class:`coterie.herder.seams.TaskRuntime`."""

    def __init__(self, config: SparkConfig) -> None:
        self._config = config
        self._events = Events()
        self._session: Session | None = None
        self._dead: str | None = None
        self._lock = threading.Lock()
        self._runs: dict[ConnectorTaskId, Run] = {}
        self._being_started: list[Run] = []
        self._being_stopped: list[Run] = []
        """In their grace: the batch that runs may still be put in place."""
        self._halts = 0
        """How often everything was stopped: a start that was asked for before that is none any more."""
        self._closing = threading.Event()
        self._watcher: threading.Thread | None = None
        # Apart, so that a plug-in that blocks in one of them holds up neither of the others.
        self._starts = ThreadPoolExecutor(config.starts_at_once, thread_name_prefix="coterie-start")
        self._stops = ThreadPoolExecutor(config.stops_at_once, thread_name_prefix="coterie-stop")
        self._questions = ThreadPoolExecutor(config.questions_at_once, thread_name_prefix="coterie-validate")

    async def open(self) -> None:
        """Start the session and warm it up.

        :raises WorldError: no Java, no memory, a setting that Spark refuses.
        """
        self._events.bind()
        await _on(self._starts, self._open)

    async def close(self) -> None:
        self._closing.set()
        await asyncio.to_thread(self._close)

    async def validate(
        self, config: Mapping[str, str], checkpointed: Sequence[Mapping[str, str]]
    ) -> Mapping[str, Sequence[str]]:
        return await _on(self._questions, lambda: errors_of(self._living().spark, config, checkpointed))

    def connector_type(self, config: Mapping[str, str]) -> str:
        plugin = find_plugin(config.get("connector.class", ""))
        return "unknown" if plugin is None else plugin.type

    async def split(
        self, connector: ConnectorName, config: Mapping[str, str], checkpointed: Sequence[Mapping[str, str]]
    ) -> Sequence[Mapping[str, str]]:
        return await _on(self._questions, lambda: _split(connector, config, checkpointed))

    async def start(self, start: TaskStart) -> None:
        self._events.forget(start.task)
        halts = self._halts
        await _on(self._starts, lambda: self._start(start, halts))

    async def stop(self, task: ConnectorTaskId, *, grace_ms: int) -> None:
        run = self._pop_to_stop(task)
        if run is not None:
            # Many stops wait for a thread together, and the grace is for all of them, as in Connect.
            deadline = time.monotonic() + grace_ms / 1000
            await _on(self._stops, lambda: self._stop(run, deadline))
        self._events.forget(task)

    def stop_everything_now(self) -> None:
        with self._lock:
            self._halts += 1
            runs, self._runs = self._runs, {}
            for task in runs:
                self._events.put(TaskHalted(task=task))
            # Whoever starts these tells of them, when it finds their fences closed; whoever stops them need not.
            halted = [*runs.values(), *self._being_started, *self._being_stopped]
        # All at once: one that hangs in its effect must not keep the others running.
        for run in halted:
            run.query.fence.shut()
        for run in runs.values():
            self._stops.submit(run.query.stop, grace_ms=0)
        for run in halted:
            run.query.fence.close()
        log.warning("Everything here was stopped: %d tasks", len(halted))

    async def next_event(self) -> TaskEvent:
        return await self._events.get()

    def held(self, task: ConnectorTaskId) -> Held | None:
        """The checkpoint on which ``task`` runs here."""
        with self._lock:
            run = self._runs.get(task)
            return None if run is None else run.query.held

    @property
    def jvm_pid(self) -> int | None:
        return None if self._session is None else self._session.jvm_pid

    # -- on threads ---------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        config = self._config
        self._session = open_session(
            config.settings, scratch=config.scratch, log_file=config.log_file, stop_at_c1=config.stop_at_c1
        )
        if self._closing.is_set():
            raise WorldError("Spark was closed while it started")
        self._session.on_death(self._died)
        try:
            warm_up(self._session.spark, config.scratch)
        except (PySparkException, Py4JError) as error:
            raise WorldError(f"Spark's first query failed; see {config.log_file}: {error}") from error
        self._watcher = threading.Thread(target=self._watch, name="coterie-watch", daemon=True)
        self._watcher.start()

    def _close(self) -> None:
        with self._lock:
            runs, self._runs = list(self._runs.values()), {}
        for run in runs:
            run.query.fence.close()
        # The watcher uses the pools, so it ends first.
        if self._watcher is not None:
            self._watcher.join()
        for pool in (self._starts, self._questions):
            pool.shutdown(wait=False, cancel_futures=True)
        # Ending the JVM ends its queries, and whatever thread of ours still waits for one of them.
        if self._session is not None:
            self._session.close()
        for pool in (self._starts, self._stops, self._questions):
            pool.shutdown(cancel_futures=True)
        # An `open` that was under way had no session yet when we looked.
        if self._session is not None:
            self._session.close()

    def _died(self, reason: str) -> None:
        self._dead = reason
        with self._lock:
            runs, self._runs = list(self._runs.values()), {}
        for run in runs:
            run.query.fence.close()
        self._events.put(RuntimeDied(reason=reason))

    def _living(self) -> Session:
        if self._dead is not None:
            raise WorldError(self._dead)
        if self._session is None or self._closing.is_set():
            raise WorldError("Spark is not running here")
        return self._session

    def _start(self, start: TaskStart, halts: int) -> None:
        session = self._living()
        former = self._pop_to_stop(start.task)
        if former is not None:
            self._stop(former, time.monotonic())
        with self._lock:
            halted = self._halts != halts
        if halted:
            self._events.put(TaskHalted(task=start.task))
            return
        held = take_over(task_folder(self._config.checkpoint_location, start.task, start.incarnation))
        log.info("%s: start %d takes over with batch %s in flight", start.task, held.starts, held.batch_in_flight)
        run = Run(TaskQuery(session.spark, start.task, start.config, held))
        with self._lock:
            self._being_started.append(run)
            if self._halts != halts:
                run.query.fence.close()
        try:
            self._start_query(start.task, run)
        finally:
            with self._lock:
                self._being_started.remove(run)

    def _pop_to_stop(self, task: ConnectorTaskId) -> Run | None:
        with self._lock:
            run = self._runs.pop(task, None)
            if run is not None:
                self._being_stopped.append(run)
        return run

    def _stop(self, run: Run, deadline: float) -> None:
        try:
            run.query.stop(grace_ms=max(0, round((deadline - time.monotonic()) * 1000)))
        finally:
            with self._lock:
                self._being_stopped.remove(run)

    def _start_query(self, task: ConnectorTaskId, run: Run) -> None:
        """Start the query, with a few attempts, and keep the run."""
        for attempt in range(self._config.restarts + 1):
            try:
                run.query.start()
                break
            except FencedError:
                break
            except (PySparkException, Py4JError) as error:
                self._living()
                if run.query.taken:
                    run.query.stop(grace_ms=0)
                    self._events.put(TaskTaken(task=task))
                    return
                if attempt == self._config.restarts:
                    raise WorldError(f"The query did not start: {error}") from error
                self._back_off(attempt)
        with self._lock:
            refused = self._closing.is_set() or self._dead is not None
            halted = run.query.fence.closed
            if not (refused or halted):
                self._runs[task] = run
        if refused:
            run.query.fence.close()
            raise WorldError(self._dead or "Spark is not running here")
        if halted:
            self._events.put(TaskHalted(task=task))
            run.query.stop(grace_ms=0)

    # -- the watch ----------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Look at every run again and again: is it still ours, does it live, how far has it come."""
        while not self._closing.wait(self._config.look_every_ms / 1000) and self._dead is None:
            with self._lock:
                runs = list(self._runs.items())
            for task, run in runs:
                try:
                    self._look(task, run)
                except (PySparkException, Py4JError, OSError) as error:
                    # The JVM is going: the thread that waits for it will say so.
                    log.debug("%s: no look: %s", task, error)
                except Exception:
                    # Whatever it is, the others are still watched, and this task says that it is not.
                    log.exception("%s cannot be watched", task)
                    self._end(task, run, TaskFailed(task=task, trace=traceback.format_exc()))

    def _look(self, task: ConnectorTaskId, run: Run) -> None:
        if run.restarting:
            return
        if run.query.taken:
            # Also when the query has not noticed yet: one with nothing to read writes nothing, and would live on.
            self._end(task, run, TaskTaken(task=task))
            return
        alive = run.query.active()
        progress = run.query.progress()
        if progress is not None and progress != run.seen:
            run.seen, run.deaths = progress, 0
            self._tell(task, run, TaskProgressed(task=task, batch_id=progress[0], input_rows=progress[1]))
        if not alive:
            run.restarting = True
            self._starts.submit(self._restart, task, run)

    def _restart(self, task: ConnectorTaskId, run: Run) -> None:
        """A query died: once more on the same folder, unless that cannot help."""
        try:
            trace = run.query.trace()
            if run.query.taken:
                self._end(task, run, TaskTaken(task=task))
                return
            run.deaths += 1
            if run.query.refusal is not None or run.deaths > self._config.restarts:
                self._end(task, run, TaskFailed(task=task, trace=trace))
                return
            log.warning("%s: the query died and is started again (%d): %.500s", task, run.deaths, trace)
            self._back_off(run.deaths - 1)
            with self._lock:
                current = self._runs.get(task) is run
            if current:
                run.query.start()
        except FencedError:
            log.info("%s was stopped while it was started again", task)
        except Exception as error:  # noqa: BLE001 - a plug-in's or a sink's; nobody looks at what this thread returns
            # A start that fails is one more death, until it is one too many.
            log.warning("%s: the query did not start again: %s", task, error)
            if run.deaths >= self._config.restarts:
                self._end(task, run, TaskFailed(task=task, trace=traceback.format_exc()))
                return
        run.restarting = False

    def _back_off(self, attempt: int) -> None:
        self._closing.wait(self._config.restart_backoff_ms * 2**attempt / 1000)

    def _end(self, task: ConnectorTaskId, run: Run, event: TaskTaken | TaskFailed) -> None:
        """Told before the query is stopped: nothing of it gets through the fence, and stopping takes time."""
        run.query.fence.close()
        run.restarting = True
        with self._lock:
            if self._runs.get(task) is run:
                del self._runs[task]
                self._events.put(event)
        self._stops.submit(run.query.stop, grace_ms=0)

    def _tell(self, task: ConnectorTaskId, run: Run, event: TaskProgressed) -> None:
        with self._lock:
            if self._runs.get(task) is run:
                self._events.put(event)


async def _on(pool: ThreadPoolExecutor, work: Callable[[], T]) -> T:
    try:
        return await asyncio.get_running_loop().run_in_executor(pool, work)
    except RuntimeError as error:
        if "shutdown" not in str(error):
            raise
        raise WorldError("Spark is not running here") from error


def _split(
    connector: ConnectorName, config: Mapping[str, str], checkpointed: Sequence[Mapping[str, str]]
) -> list[Mapping[str, str]]:
    connector_class = config.get("connector.class", "")
    plugin = find_plugin(connector_class)
    if plugin is None:
        raise ConfigError({"connector.class": [f"No such connector: {connector_class}"]})
    dealt = dealt_by(plugin, config)
    if errors := split_errors(config, len(dealt), checkpointed):
        raise ConfigError(errors)
    return [
        {
            **config,
            **own,
            "name": connector,
            "task.class": connector_class,
            "task.index": str(index),
            "task.count": str(len(dealt)),
        }
        for index, own in enumerate(dealt)
    ]
