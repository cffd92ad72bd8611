"""Supervises the tasks that run on one Spark session: starts, polls, restarts and stops their queries.

A run is one start of one task, with all restarts of its query on the checkpoint that this start took over. Only the
supervisor changes a run's state, always under its lock:

| state | meaning | next |
|---|---|---|
| ``QueryStarting`` | waits for a thread, takes over the checkpoint, then starts | Running, Waiting, Failed, Ended |
| ``QueryRunning`` | the query runs, or the supervisor has not detected its failure yet | Failed, Stopping, Ended |
| ``QueryFailed`` | the query failed; the checkpoint is held | Restarting, Waiting, Stopping, Ended |
| ``QueryWaiting`` | a server cannot be reached, ``errors.retry.timeout`` is not over | Restarting, Stopping, Ended |
| ``QueryRestarting`` | a thread starts the query on the same checkpoint | Running, Waiting, Failed, Stopping, Ended |
| ``QueryStopping`` | a thread stops the query; the running batch may be committed until the grace is over | Ended |
| ``QueryEnded`` | this run commits nothing any more | |

The supervisor restarts a query that failed because a server cannot be reached, as ``errors.retry.*`` define, and
reports the cause to the herder. After other failures, and when ``errors.retry.timeout`` is over, the herder decides
about a restart.

A run ends for one of six reasons: its start failed before the checkpoint was taken over; it was stopped; its checkpoint
generation was closed (:class:`TaskCheckpointClosed`); it was *halted* with all others (:class:`TaskHalted`); another
worker holds its checkpoint or has taken over in a sink (:class:`TaskDied` with ``holds_checkpoint`` False); or the JVM
ended. Spark raises no exception when another worker has taken over the checkpoint, so the supervisor checks the
checkpoint's path."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypeVar

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from coterie.herder.seams import TaskCheckpointClosed, TaskDied, TaskHalted, TaskProgressed, TaskRetrying, TaskSpec
from coterie.nouns.errors import ConfigError, WorldError
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.spark.checkpoint import HeldCheckpoint
from coterie.spark.events import Events
from coterie.spark.failures import message_of, trace_of
from coterie.spark.fence import Fence, FencedError
from coterie.spark.generations.checkpoint_take_over import (
    GenerationAbsentError,
    GenerationClosedError,
    is_closed,
    take_over_in_open,
)
from coterie.spark.generations.layout import GenerationId, connector_folder, generation_folder
from coterie.spark.generations.resplit import record_task_stopped
from coterie.spark.pipeline import GENERATION, Pipeline
from coterie.spark.query import TaskQuery
from coterie.spark.session import SparkDriver
from coterie.spark.settings import SparkConfig
from coterie.spark.task_timeouts import Outage

log = logging.getLogger(__name__)

T = TypeVar("T")

STARTS_AT_ONCE = 4
"""Maximum number of queries that are started at the same time; more would only share the same two or four cores."""
RESTARTS_AT_ONCE = 16
"""Maximum number of queries that are restarted at the same time after a server could not be reached. The limit applies
to the restarts that the herder orders, and separately to those of the supervisor itself. Each restart may wait a minute
for its server."""
RESTARTS_OF_CONNECTOR = 4
"""Maximum number of queries of one connector that are being restarted at the same time: then the supervisor restarts no
other query of this connector that waits for a server. The threads stay free for connectors whose server is reachable
again."""
STOPS_AT_ONCE = 64
"""Maximum number of queries that are stopped at the same time. A stop may hang in Spark, and no stop may wait for
another."""
REPORTS_AT_ONCE = 4
"""Maximum number of failed queries whose cause is read at the same time."""
CLOSE_GRACE_MS = 10_000
"""Time limit for the last batch of a task whose checkpoint generation is closed, from the start of the stop. A batch
that takes longer is interrupted and replayed."""
GENERATION_VISIBLE_TIMEOUT_MS = 10_000
"""How long a start waits until the shared file system shows the checkpoint generation that the task's config names."""
COMMITS_TIMEOUT_MS = 10_000
"""How long the immediate end of all runs waits for their running commits, in all. Only a sink that waits for something
other than Spark can take longer; its late commit cannot harm the next owner of the task."""
POLL_INTERVAL_MS = 300
"""Interval at which the supervisor polls each run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryStarting:
    """The run has no query yet."""

    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryRunning:
    """The query runs, or the supervisor has not detected its failure yet."""

    query: TaskQuery
    progress: tuple[int, int, str] | None
    """The last reported progress; see :meth:`TaskQuery.progress`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryFailed:
    """The query failed. Its checkpoint is held until the task is restarted or stopped."""

    query: TaskQuery


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryWaiting:
    """The query failed because a server cannot be reached, and the supervisor will restart it."""

    query: TaskQuery
    restarts_at: float
    """The monotonic second from which the query may be restarted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryRestarting:
    """A thread starts the failed query again, or will start it as soon as a thread is free."""

    query: TaskQuery


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryStopping:
    """A thread stops the query, or will stop it as soon as a thread is free."""

    query: TaskQuery


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryEnded:
    """The run is no longer among the supervisor's runs."""

    pass


QueryState: TypeAlias = (
    QueryStarting | QueryRunning | QueryFailed | QueryWaiting | QueryRestarting | QueryStopping | QueryEnded
)


class QueryRun:
    """One start of one task, with the restarts of its query. Only the supervisor assigns ``state``."""

    def __init__(self, task: ConnectorTaskId) -> None:
        self.task = task
        self.fence = Fence()
        self.generation: Path | None = None
        """The folder of the checkpoint generation that contains the checkpoint; None before the take-over begins."""
        self.ended = threading.Event()
        """Set when the state becomes QueryEnded."""
        self.outage: Outage | None = None
        """Set while a server that the task needs cannot be reached; None again after the query's next progress."""
        self.state: QueryState = QueryStarting()


class Supervisor:
    """Runs tasks on the Spark that ``driver`` returns. ``driver`` raises WorldError when Spark is not running.

    ``closing`` is set before :meth:`close` is called: waiting threads then wake up and end.
    """

    def __init__(
        self, config: SparkConfig, events: Events, driver: Callable[[], SparkDriver], closing: threading.Event
    ) -> None:
        self._config = config
        self._events = events
        self._driver = driver
        self._closing = closing
        self._lock = threading.Lock()
        self._runs: list[QueryRun] = []
        """All runs that have not ended. A task has at most one run with a query."""
        self._watcher: threading.Thread | None = None
        # Separate pools: a start that blocks in a plug-in must delay neither a stop nor the report of a failure. No
        # start waits for a restart whose server cannot be reached, and no restart that the herder orders waits for a
        # restart of the supervisor (errors.retry.*).
        self._starts = ThreadPoolExecutor(STARTS_AT_ONCE, thread_name_prefix="coterie-start")
        self._restarts = ThreadPoolExecutor(RESTARTS_AT_ONCE, thread_name_prefix="coterie-restart")
        self._retries = ThreadPoolExecutor(RESTARTS_AT_ONCE, thread_name_prefix="coterie-retry")
        self._stops = ThreadPoolExecutor(STOPS_AT_ONCE, thread_name_prefix="coterie-stop")
        self._reports = ThreadPoolExecutor(REPORTS_AT_ONCE, thread_name_prefix="coterie-report")

    def watch(self) -> None:
        """Start the thread that polls the runs. Spark must be running."""
        self._watcher = threading.Thread(target=self._watch, name="coterie-watch", daemon=True)
        self._watcher.start()

    async def start(self, spec: TaskSpec) -> None:
        """See :meth:`coterie.herder.seams.TaskRuntime.start`."""
        self._events.forget(spec.task)
        run = QueryRun(spec.task)
        with self._lock:
            self._runs.append(run)
        await on_thread(self._starts, lambda: self._start(run, spec))

    async def restart(self, task: ConnectorTaskId) -> None:
        """See :meth:`coterie.herder.seams.TaskRuntime.restart`."""
        with self._lock:
            current = self._current(task)
            if current is None or not isinstance(dead := current[0].state, QueryFailed):
                raise WorldError(f"Task {task} cannot be restarted on this worker: it holds no checkpoint here")
            run, restarting = current[0], QueryRestarting(query=dead.query)
            run.state = restarting
        pool = self._restarts if dead.query.is_server_unreachable else self._starts
        await on_thread(pool, lambda: self._restart(run, restarting))

    async def stop(self, task: ConnectorTaskId, *, grace_ms: int) -> None:
        """See :meth:`coterie.herder.seams.TaskRuntime.stop`."""
        # The grace begins before a stop gets a thread: it is one time limit for all stops together, as in Connect.
        deadline = time.monotonic() + grace_ms / 1000
        if (stopping := self._mark_stopping(task)) is not None:
            await on_thread(self._stops, lambda: self._stop(*stopping, deadline))
        elif (closing := self._closing_run(task)) is not None:
            await on_thread(self._stops, lambda: _await_end(closing, deadline))
        self._events.forget(task)

    def halt_all_tasks(self) -> None:
        """See :meth:`coterie.herder.seams.TaskRuntime.halt_all_tasks`, with an exception: a commit that does not end
        within :data:`COMMITS_TIMEOUT_MS` is logged, and may still write after this method has returned. The caller must
        then give up the worker's membership of the group."""
        with self._lock:
            halted = list(self._runs)
            queries = self._end_running()
            for run, _ in queries:
                self._events.put(TaskHalted(task=run.task))
        # Shut all fences before waiting for one: a run that hangs in its commit must not keep the others running. A run
        # in QueryStarting finds its fence closed and reports TaskHalted. For a run in QueryStopping this ends the
        # grace, and the run reports nothing.
        for run in halted:
            run.fence.close_nowait()
        for _, query in queries:
            self._stops.submit(query.stop, grace_ms=0)
        _close_fences(halted)
        log.warning("Stopped all %d tasks of this worker immediately, without grace", len(halted))

    def fence_running(self) -> None:
        """End all runs that have a query and are not being stopped, without stopping their queries and without events:
        the JVM has ended or is about to end. Rejects their further commits, and waits for running commits,
        :data:`COMMITS_TIMEOUT_MS` at most."""
        with self._lock:
            runs = [run for run, _ in self._end_running()]
        _close_fences(runs)

    def held_checkpoint(self, task: ConnectorTaskId) -> HeldCheckpoint | None:
        """The checkpoint that the run of ``task`` on this worker holds; None when there is no such run, or the run is
        being started or stopped."""
        with self._lock:
            current = self._current(task)
            return None if current is None else current[1].held_checkpoint

    def running(self) -> list[TaskQuery]:
        """The queries of all runs in QueryRunning, and of those in QueryStopping, which may commit one more batch."""
        with self._lock:
            return [run.state.query for run in self._runs if isinstance(run.state, QueryRunning | QueryStopping)]

    def close(self) -> None:
        """:meth:`fence_running`, wait for the end of the polling thread, and cancel the starts and restarts that still
        wait for a thread. ``closing`` must be set."""
        self.fence_running()
        # The polling thread uses the pools, so it ends first.
        if self._watcher is not None:
            self._watcher.join()
        for pool in (self._starts, self._restarts, self._retries):
            pool.shutdown(wait=False, cancel_futures=True)

    def join(self) -> None:
        """Wait for the threads. Spark must have been closed before, so that no thread waits for a query."""
        for pool in (self._starts, self._restarts, self._retries, self._stops, self._reports):
            pool.shutdown(cancel_futures=True)

    # -- starts and stops, on threads ---------------------------------------------------------------------------------

    def _start(self, run: QueryRun, spec: TaskSpec) -> None:
        """Stop the task's former run without grace, take over the checkpoint and start the query.

        If ``run`` was halted meanwhile, its checkpoint generation is closed, or a later start of the task has taken
        over in a sink, this is reported as an event. An error before the checkpoint was taken over is raised; a query
        that does not start is reported as :class:`TaskDied`.

        :raises ConfigError, WorldError: when the config is not valid, the checkpoint cannot be taken over, or Spark is
            not running.
        """
        try:
            session = self._driver()
            if (former := self._mark_stopping(run.task)) is not None:
                self._stop(*former, time.monotonic())
            if run.fence.is_closed:
                raise FencedError
            pipeline = Pipeline.of(spec.config, self._config.kafka)
            held = self._take_over(run, spec)
            log.info(
                "%s: start %d has taken over the checkpoint; batch in flight: %s",
                run.task,
                held.start_number,
                held.batch_in_flight,
            )
            self._start_query(run, TaskQuery(session.spark.newSession(), run.task, pipeline, held, run.fence))
        except FencedError:
            self._driver()
            self._events.put(TaskHalted(task=run.task) if run.fence.is_closed else _fenced_in_sink_event(run))
        except GenerationClosedError:
            if run.generation is not None:
                record_task_stopped(run.generation, run.task.task)
            self._events.put(TaskCheckpointClosed(task=run.task))
        finally:
            with self._lock:
                has_failed = isinstance(run.state, QueryStarting)
                if has_failed:
                    self._end(run)
            if has_failed:
                run.fence.close()

    def _take_over(self, run: QueryRun, spec: TaskSpec) -> HeldCheckpoint:
        """Take over the task's checkpoint in the checkpoint generation that the config in ``spec`` names.

        Waits up to :data:`GENERATION_VISIBLE_TIMEOUT_MS` until the shared file system shows the generation.

        :raises GenerationClosedError: when the generation is closed, or the config was written by a version of Coterie
            without checkpoint generations.
        :raises FencedError: when the run was halted during this wait.
        :raises WorldError: when the generation does not appear, or the checkpoint cannot be taken over.
        """
        if (name := spec.config.get(GENERATION)) is None:
            raise GenerationClosedError(
                f"The config of {run.task} was written by a version of Coterie without checkpoint generations: it has "
                "no key generation"
            )
        named = GenerationId.parse(name)
        connector = connector_folder(self._config.checkpoint_location, run.task.connector, spec.incarnation)
        run.generation = generation_folder(connector, named.number)
        deadline = time.monotonic() + GENERATION_VISIBLE_TIMEOUT_MS / 1000
        while True:
            try:
                return take_over_in_open(run.generation, named, run.task.task)
            except GenerationAbsentError:
                # A shared file system may show the generation late.
                if time.monotonic() > deadline or self._closing.wait(POLL_INTERVAL_MS / 1000):
                    raise
            if run.fence.is_closed:
                raise FencedError

    def _start_query(self, run: QueryRun, query: TaskQuery) -> None:
        """Start the query of a run in QueryStarting. Afterwards the run is QueryRunning, QueryWaiting or QueryFailed.

        If another start has taken over the checkpoint, or the run was halted meanwhile, the query is stopped, this is
        reported as an event, and the run stays QueryStarting: the caller ends it.

        :raises FencedError: when the run was halted before Spark started the query.
        :raises WorldError: when Spark is not running any more.
        """
        died = self._try_start_query(run, query)
        if died is not None and not died.holds_checkpoint:
            query.stop(grace_ms=0)
            self._events.put(died)
            return
        with self._lock:
            self._driver()
            if not run.fence.is_closed:
                if died is None:
                    run.state = QueryRunning(query=query, progress=None)
                else:
                    self._fail(run, query, died)
                return
        self._events.put(TaskHalted(task=run.task))
        query.stop(grace_ms=0)

    def _try_start_query(self, run: QueryRun, query: TaskQuery) -> TaskDied | None:
        """Start the query. Returns None when the query runs, else the event for the failed start, which the caller
        reports.

        :raises FencedError: when the run was stopped or halted while the query started, or a later start of the task
            has taken over in a sink.
        :raises WorldError: when the start failed and Spark is not running any more.
        """
        try:
            query.start()
        except FencedError:
            raise
        except Exception as error:  # noqa: BLE001 - a plug-in may raise anything; it is this task's failure
            self._driver()
            log.warning("%s: the query did not start: %.500s", run.task, message_of(error))
            if query.is_checkpoint_lost:
                return _checkpoint_lost_event(run)
            trace = f"The query did not start: {trace_of(error)}"
            return TaskDied(
                task=run.task, trace=trace, holds_checkpoint=True, can_restart=not isinstance(error, ConfigError)
            )
        return None

    def _mark_stopping(self, task: ConnectorTaskId) -> tuple[QueryRun, TaskQuery] | None:
        """Change the state of the run of :meth:`_current` to QueryStopping. Returns the run and its query; None when
        ``task`` has no such run."""
        with self._lock:
            current = self._current(task)
            if current is not None:
                current[0].state = QueryStopping(query=current[1])
            return current

    def _stop(self, run: QueryRun, query: TaskQuery, deadline: float) -> None:
        """Stop the query, with a grace until the monotonic second ``deadline``, and end the run. Record in the
        checkpoint generation's folder that the task has stopped, unless another start holds the checkpoint."""
        try:
            query.stop(grace_ms=max(0, round((deadline - time.monotonic()) * 1000)))
            if run.generation is not None and not query.is_checkpoint_lost:
                record_task_stopped(run.generation, run.task.task)
        finally:
            with self._lock:
                self._end(run)

    def _close(self, run: QueryRun, query: TaskQuery) -> None:
        """Stop a query because its checkpoint generation is closed, with the grace :data:`CLOSE_GRACE_MS`, and end the
        run. Record in the generation's folder that the task has stopped: the worker that performs the re-split waits
        for that record. Reports :class:`TaskCheckpointClosed` unless the run was ended meanwhile."""
        assert run.generation is not None
        try:
            query.stop(grace_ms=CLOSE_GRACE_MS)
            record_task_stopped(run.generation, run.task.task)
        finally:
            with self._lock:
                if not isinstance(run.state, QueryEnded):
                    self._end(run)
                    self._events.put(TaskCheckpointClosed(task=run.task))

    # -- the polling thread -------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Call :meth:`_check_run` for every run at intervals of :data:`POLL_INTERVAL_MS`, until ``closing`` is set."""
        while not self._closing.wait(POLL_INTERVAL_MS / 1000):
            with self._lock:
                runs = list(self._runs)
            for run in runs:
                try:
                    self._check_run(run)
                except (PySparkException, Py4JError, OSError) as error:
                    # The JVM is ending: the thread that waits for its exit reports that.
                    log.debug("%s: polling the query failed: %s", run.task, error)
                except Exception as error:
                    # Continue with the other runs and report this one; its checkpoint is held until the stop.
                    log.exception(
                        "%s: polling the query failed unexpectedly (a bug in Coterie); the task fails", run.task
                    )
                    state = run.state
                    if isinstance(state, QueryRunning):
                        run.fence.close_nowait()
                        died = TaskDied(task=run.task, trace=trace_of(error), holds_checkpoint=True, can_restart=False)
                        self._transition(run, state, QueryFailed(query=state.query), died)

    def _check_run(self, run: QueryRun) -> None:
        """Poll a run in QueryRunning or QueryWaiting. Ends the run if its checkpoint was taken over; stops it if its
        checkpoint generation is closed; restarts a waiting query whose time has come; reports progress, a batch that
        takes too long, and a query that has ended."""
        state = run.state
        if not isinstance(state, QueryRunning | QueryWaiting):
            return
        query = state.query
        if query.is_checkpoint_lost:
            # Do not wait for the query to fail: a query without input writes nothing, and would continue without end.
            self._abandon(run, _checkpoint_lost_event(run))
            return
        if run.generation is not None and is_closed(run.generation):
            if self._transition(run, state, QueryStopping(query=query)):
                self._stops.submit(self._close, run, query)
            return
        if isinstance(state, QueryWaiting):
            restarting = QueryRestarting(query=query)
            is_due = time.monotonic() >= state.restarts_at and self._may_restart(run.task.connector)
            if is_due and self._transition(run, state, restarting):
                self._retries.submit(self._restart, run, restarting)
            return
        if (overdue := query.check_batch_timeout()) is not None:
            # The herder then stops the task without grace, which cancels the batch's Spark jobs.
            died = TaskDied(task=run.task, trace=overdue, holds_checkpoint=True, can_restart=False)
            self._transition(run, state, QueryFailed(query=query), died)
            return
        is_alive, progress = query.active(), query.progress()
        if progress is not None and progress != state.progress:
            progressed = QueryRunning(query=query, progress=progress)
            batch_id, input_rows, _ = progress
            event = TaskProgressed(
                task=run.task, batch_id=batch_id, input_rows=input_rows, bad_records=query.bad_records
            )
            if not self._transition(run, state, progressed, event):
                return
            state = progressed
            run.outage = None
        if not is_alive:
            dead = QueryFailed(query=query)
            if self._transition(run, state, dead):
                self._reports.submit(self._report, run, dead)

    def _may_restart(self, connector: ConnectorName) -> bool:
        """Whether fewer than :data:`RESTARTS_OF_CONNECTOR` queries of ``connector`` are being restarted now."""
        with self._lock:
            restarting = [run for run in self._runs if isinstance(run.state, QueryRestarting)]
        return sum(run.task.connector == connector for run in restarting) < RESTARTS_OF_CONNECTOR

    def _report(self, run: QueryRun, dead: QueryFailed) -> None:
        """Read the cause of a query's failure, and report or retry it (:meth:`_fail`). If another start has taken over
        the checkpoint, end the run."""
        query = dead.query
        try:
            trace = query.trace()
            is_held = not query.is_checkpoint_lost
        except Exception as error:  # noqa: BLE001 - no caller reads the exceptions of this thread
            trace, is_held = f"The query failed, and reading the cause failed too: {error}", True
        if not is_held:
            self._abandon(run, _checkpoint_lost_event(run))
            return
        log.warning("%s: the query failed: %.500s", run.task, trace)
        died = TaskDied(task=run.task, trace=trace, holds_checkpoint=True, can_restart=query.permanent_failure is None)
        with self._lock:
            if run.state is dead:
                self._fail(run, query, died)

    def _restart(self, run: QueryRun, restarting: QueryRestarting) -> None:
        """Start the query of ``run`` again, on the checkpoint that is held. A failure is reported or retried
        (:meth:`_fail`). If a later start of the task has taken over, in a sink or in the checkpoint, end the run."""
        query = restarting.query
        try:
            died = self._try_start_query(run, query)
        except FencedError:
            if run.fence.is_closed:
                log.info("%s was stopped while its query was restarted", run.task)
            self._abandon(run, _fenced_in_sink_event(run))
            return
        if died is None:
            self._transition(run, restarting, QueryRunning(query=query, progress=None))
        elif died.holds_checkpoint:
            with self._lock:
                if run.state is restarting:
                    self._fail(run, query, died)
        else:
            self._abandon(run, died)

    def _abandon(self, run: QueryRun, event: TaskDied) -> None:
        """End a run whose task another start has taken over, in the checkpoint or in a sink, and report ``event``. Does
        nothing more than closing the fence if the run is being started or stopped, or has ended.

        The event is reported before the query is stopped, because the stop takes time. No thread waits for a running
        commit: that commit cannot harm the task under its new owner, and the other runs must be polled.
        """
        run.fence.close_nowait()
        with self._lock:
            match run.state:
                case (
                    QueryRunning(query=query)
                    | QueryFailed(query=query)
                    | QueryWaiting(query=query)
                    | QueryRestarting(query=query)
                ):
                    self._end(run)
                    self._events.put(event)
                case QueryStarting() | QueryStopping() | QueryEnded():
                    return
        self._stops.submit(query.stop, grace_ms=0)

    # -- states; the caller holds the lock, except for _closing_run and _transition -----------------------------------

    def _current(self, task: ConnectorTaskId) -> tuple[QueryRun, TaskQuery] | None:
        """The run of ``task`` that has a query and is not being stopped, and its query; None when there is none."""
        return next((found for found in self._runs_with_query() if found[0].task == task), None)

    def _closing_run(self, task: ConnectorTaskId) -> QueryRun | None:
        """The run of ``task`` that is being stopped: because its checkpoint generation is closed, or by another call of
        :meth:`stop`. None when there is none."""
        with self._lock:
            return next((run for run in self._runs if run.task == task and isinstance(run.state, QueryStopping)), None)

    def _runs_with_query(self) -> list[tuple[QueryRun, TaskQuery]]:
        """The runs that have a query and are not being stopped, each with its query."""
        return [
            (run, run.state.query)
            for run in self._runs
            if isinstance(run.state, QueryRunning | QueryFailed | QueryWaiting | QueryRestarting)
        ]

    def _end_running(self) -> list[tuple[QueryRun, TaskQuery]]:
        """End the runs of :meth:`_runs_with_query` and return them. Their queries and fences are not changed."""
        running = self._runs_with_query()
        for run, _ in running:
            self._end(run)
        return running

    def _fail(self, run: QueryRun, query: TaskQuery, died: TaskDied) -> None:
        """Change the state of ``run`` to QueryFailed and report ``died``. But if a server cannot be reached and
        ``errors.retry.timeout`` is not over, change the state to QueryWaiting and report :class:`TaskRetrying`."""
        if query.is_server_unreachable:
            now = time.monotonic()
            outage = run.outage or Outage(since=now, attempts=0)
            if (at := query.timeouts.retry_at(outage, now)) is not None:
                run.outage = Outage(since=outage.since, attempts=outage.attempts + 1)
                run.state = QueryWaiting(query=query, restarts_at=at)
                log.warning(
                    "%s: a server cannot be reached, so the query is started again in %d ms: %.500s",
                    run.task,
                    (at - now) * 1000,
                    died.trace,
                )
                cause = died.trace.partition("\n\n")[0]
                trace = f"A server cannot be reached; the task is restarted until errors.retry.timeout is over: {cause}"
                self._events.put(TaskRetrying(task=run.task, trace=trace))
                return
        run.state = QueryFailed(query=query)
        self._events.put(died)

    def _end(self, run: QueryRun) -> None:
        """Change the state of ``run`` to QueryEnded and remove it from the runs."""
        run.state = QueryEnded()
        run.ended.set()
        self._runs.remove(run)

    def _transition(
        self, run: QueryRun, before: QueryState, after: QueryState, event: TaskProgressed | TaskDied | None = None
    ) -> bool:
        """Change the state of ``run`` from ``before`` to ``after`` and report ``event``, if given. Returns True.

        Returns False, without a change or a report, when the run is not in the state ``before`` any more.
        """
        with self._lock:
            if run.state is not before:
                return False
            run.state = after
            if event is not None:
                self._events.put(event)
            return True


def _await_end(run: QueryRun, deadline: float) -> None:
    """Wait for the end of a run that another thread stops, until the monotonic second ``deadline`` at most. Then close
    its fence: reject further commits and wait, without limit, for its running commit."""
    run.ended.wait(max(0, deadline - time.monotonic()))
    run.fence.close()


def _close_fences(runs: Sequence[QueryRun]) -> None:
    """Reject further commits of ``runs``, and wait for their running commits, :data:`COMMITS_TIMEOUT_MS` at most in
    all. A commit that has not ended then is logged."""
    for run in runs:
        run.fence.close_nowait()
    deadline = time.monotonic() + COMMITS_TIMEOUT_MS / 1000
    for run in runs:
        if not run.fence.close(within_s=max(0, deadline - time.monotonic())):
            log.error(
                "%s: the commit of its last batch has not ended within %d ms; the next owner replays the batch",
                run.task,
                COMMITS_TIMEOUT_MS,
            )


def _checkpoint_lost_event(run: QueryRun) -> TaskDied:
    """The event that another worker has taken over the checkpoint of ``run``."""
    return TaskDied(task=run.task, trace="Another worker has taken over the checkpoint", holds_checkpoint=False)


def _fenced_in_sink_event(run: QueryRun) -> TaskDied:
    """The event that a sink has fenced ``run``, whose own fence is open."""
    return TaskDied(task=run.task, trace="A later start of the task has taken over in the sink", holds_checkpoint=False)


async def on_thread(pool: ThreadPoolExecutor, work: Callable[[], T]) -> T:
    """Run ``work`` on a thread of ``pool``, and return its result or raise its exception.

    :raises WorldError: when the pool was shut down before this call, or is shut down while ``work`` waits for a thread.
    """
    caller = asyncio.current_task()
    try:
        return await asyncio.get_running_loop().run_in_executor(pool, work)
    except asyncio.CancelledError as error:
        if caller is None or caller.cancelling():
            raise
        raise WorldError("Spark is not running on this worker") from error
    except RuntimeError as error:
        if "shutdown" not in str(error):
            raise
        raise WorldError("Spark is not running on this worker") from error
