"""Supervises the tasks that run on one Spark session: starts, polls, restarts and stops their queries.

A run is one start of one task, with all restarts on the checkpoint that this start took over; the herder decides when
to restart. Only the supervisor changes a run's state, always under its lock:

| state | meaning | next |
|---|---|---|
| ``QueryStarting`` | waits for a thread, takes over the checkpoint, then starts | Running, Waiting, Failed, Ended |
| ``QueryRunning`` | the query runs, or its failure was not detected yet | Failed, Stopping, Ended |
| ``QueryFailed`` | the query failed; the checkpoint is held | Restarting, Waiting, Stopping, Ended |
| ``QueryWaiting`` | a server cannot be reached, ``errors.retry.timeout`` is not over | Restarting, Stopping, Ended |
| ``QueryRestarting`` | a thread starts the query on the same checkpoint | Running, Waiting, Failed, Stopping, Ended |
| ``QueryStopping`` | is being stopped; the running batch may be committed until the grace is over | Ended |
| ``QueryEnded`` | this run commits nothing any more | |

The supervisor restarts a task that failed because a server cannot be reached, as ``errors.retry.*`` define, and reports
the cause to the herder. After other failures, and when ``errors.retry.timeout`` is over, the herder decides about a
restart.

A run ends for one of five reasons: it was stopped; its checkpoint generation was closed (:class:`TaskClosed`); it was
*halted* with all others (:class:`TaskHalted`); another worker holds its checkpoint (:class:`TaskDied`, not held); or
the JVM ended. Spark raises no exception when another worker has taken over the checkpoint, so the supervisor checks the
checkpoint's path.
"""

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

from coterie.herder.seams import TaskClosed, TaskDied, TaskHalted, TaskProgressed, TaskStart, TaskWaiting
from coterie.nouns.errors import ConfigError, WorldError
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.spark.checkpoint import HeldCheckpoint
from coterie.spark.events import Events
from coterie.spark.failures import sentence_of, trace_of
from coterie.spark.fence import Fence, FencedError
from coterie.spark.generations.layout import GenerationId, connector_folder, generation_folder
from coterie.spark.generations.resplit import release
from coterie.spark.generations.taking import GenerationAbsentError, GenerationClosedError, is_closed, take_open
from coterie.spark.patience import Outage
from coterie.spark.pipeline import GENERATION, Pipeline
from coterie.spark.query import TaskQuery
from coterie.spark.session import Session
from coterie.spark.settings import SparkConfig

log = logging.getLogger(__name__)

T = TypeVar("T")

STARTS_AT_ONCE = 4
"""Maximum of queries that are started at the same time; more would only share the same two or four cores."""
RESTARTS_AT_ONCE = 16
"""Maximum of queries that are restarted at the same time after a server could not be reached. The limit holds
separately for the restarts that the herder orders and for those of the supervisor. Each may wait a minute for its
server."""
RESTARTS_OF_CONNECTOR = 4
"""Maximum of concurrent restarts of the supervisor for one connector whose tasks wait for a server. The other threads
stay free for connectors whose server is reachable again."""
STOPS_AT_ONCE = 64
"""Maximum of queries that are stopped at the same time. Each may hang in Spark, and none may wait for another."""
REPORTS_AT_ONCE = 4
"""Maximum of failed queries whose cause is read at the same time."""
CLOSE_GRACE_MS = 10_000
"""Time limit for the last batch of a task whose checkpoint generation is closed. A batch that takes longer is
interrupted and replayed."""
ABSENT_MS = 10_000
"""Time that a start waits until the shared file system shows the checkpoint generation that its config names."""
EFFECTS_END_MS = 10_000
"""Time that the stop of all tasks waits for running commits, while their queries are interrupted. Only a sink that
waits for something other than Spark can take longer; its late commit cannot harm the next owner of the task."""
LOOK_EVERY_MS = 300
"""Interval at which the supervisor polls each query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryStarting:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryRunning:
    query: TaskQuery
    progress: tuple[int, int, str] | None
    """The last reported progress; see :meth:`TaskQuery.progress`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryFailed:
    query: TaskQuery


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryWaiting:
    query: TaskQuery
    restarts_at: float
    """The monotonic second of the next restart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryRestarting:
    query: TaskQuery


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryStopping:
    query: TaskQuery


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryEnded:
    pass


QueryState: TypeAlias = (
    QueryStarting | QueryRunning | QueryFailed | QueryWaiting | QueryRestarting | QueryStopping | QueryEnded
)


class QueryRun:
    """One start of one task. Only the supervisor assigns ``state``."""

    def __init__(self, task: ConnectorTaskId) -> None:
        self.task = task
        self.fence = Fence()
        self.generation: Path | None = None
        """The folder of the checkpoint generation that contains the checkpoint; None before the take-over begins."""
        self.ended = threading.Event()
        self.outage: Outage | None = None
        """Set while a server that the task needs cannot be reached; None again after the query's next progress."""
        self.state: QueryState = QueryStarting()


class Supervisor:
    """Runs tasks on the session that ``session`` returns; ``session`` raises WorldError when Spark is not running.

    ``closing`` is set before :meth:`close` is called: waiting threads then wake up and end.
    """

    def __init__(
        self, config: SparkConfig, events: Events, session: Callable[[], Session], closing: threading.Event
    ) -> None:
        self._config = config
        self._events = events
        self._session = session
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
        """Start the thread that polls the runs; the session must be open."""
        self._watcher = threading.Thread(target=self._watch, name="coterie-watch", daemon=True)
        self._watcher.start()

    async def start(self, start: TaskStart) -> None:
        """See :meth:`coterie.herder.seams.TaskRuntime.start`."""
        self._events.forget(start.task)
        run = QueryRun(start.task)
        with self._lock:
            self._runs.append(run)
        await on_thread(self._starts, lambda: self._start(run, start))

    async def restart(self, task: ConnectorTaskId) -> None:
        """See :meth:`coterie.herder.seams.TaskRuntime.restart`."""
        with self._lock:
            current = self._current(task)
            if current is None or not isinstance(dead := current[0].state, QueryFailed):
                raise WorldError(f"Task {task} cannot be restarted on this worker: it holds no checkpoint here")
            run, restarting = current[0], QueryRestarting(query=dead.query)
            run.state = restarting
        pool = self._restarts if dead.query.is_server_away else self._starts
        await on_thread(pool, lambda: self._restart(run, restarting))

    async def stop(self, task: ConnectorTaskId, *, grace_ms: int) -> None:
        """See :meth:`coterie.herder.seams.TaskRuntime.stop`."""
        # The grace begins before a stop gets a thread: it is one time limit for all stops together, as in Connect.
        deadline = time.monotonic() + grace_ms / 1000
        if (stopping := self._begin_stop(task)) is not None:
            await on_thread(self._stops, lambda: self._stop(*stopping, deadline))
        elif (closing := self._closing_run(task)) is not None:
            await on_thread(self._stops, lambda: _await_end(closing, deadline))
        self._events.forget(task)

    def stop_everything_now(self) -> None:
        """See :meth:`coterie.herder.seams.TaskRuntime.stop_everything_now`. A commit that does not end within
        :data:`EFFECTS_END_MS` is logged and not awaited: afterwards the caller must give up the worker's membership."""
        with self._lock:
            halted = list(self._runs)
            queries = self._end_running()
            for run, _ in queries:
                self._events.put(TaskHalted(task=run.task))
        # Shut all fences before waiting for one: a run that hangs in its commit must not keep the others running. A run
        # in QueryStarting finds its fence closed and reports TaskHalted. For a run in QueryStopping this ends the
        # grace, and the run reports nothing.
        for run in halted:
            run.fence.shut()
        for _, query in queries:
            self._stops.submit(query.stop, grace_ms=0)
        _close_fences(halted)
        log.warning("Stopped all tasks of this worker immediately, without grace: %d", len(halted))

    def fence_running(self) -> None:
        """Reject further commits of all runs, without stopping their queries: the JVM has ended or is about to end."""
        with self._lock:
            runs = [run for run, _ in self._end_running()]
        _close_fences(runs)

    def held(self, task: ConnectorTaskId) -> HeldCheckpoint | None:
        """The checkpoint of the run of ``task`` on this worker; None when there is no such run."""
        with self._lock:
            current = self._current(task)
            return None if current is None else current[1].held

    def running(self) -> list[TaskQuery]:
        """The queries that run, also those that are being stopped and may commit one more batch."""
        with self._lock:
            return [run.state.query for run in self._runs if isinstance(run.state, QueryRunning | QueryStopping)]

    def close(self) -> None:
        """Fence all runs, end the polling thread and cancel the starts that still wait for a thread."""
        self.fence_running()
        # The polling thread uses the pools, so it ends first.
        if self._watcher is not None:
            self._watcher.join()
        for pool in (self._starts, self._restarts, self._retries):
            pool.shutdown(wait=False, cancel_futures=True)

    def join(self) -> None:
        """Wait for the threads. The session must be closed before, so that no thread waits for a query."""
        for pool in (self._starts, self._restarts, self._retries, self._stops, self._reports):
            pool.shutdown(cancel_futures=True)

    # -- starts and stops, on threads ---------------------------------------------------------------------------------

    def _start(self, run: QueryRun, start: TaskStart) -> None:
        try:
            session = self._session()
            if (former := self._begin_stop(run.task)) is not None:
                self._stop(*former, time.monotonic())
            if run.fence.closed:
                raise FencedError
            pipeline = Pipeline.of(start.config, self._config.kafka)
            held = self._take_over(run, start)
            log.info("%s: start %d takes over with batch %s in flight", run.task, held.starts, held.batch_in_flight)
            self._start_query(run, TaskQuery(session.spark.newSession(), run.task, pipeline, held, run.fence))
        except FencedError:
            self._session()
            self._events.put(TaskHalted(task=run.task))
        except GenerationClosedError:
            if run.generation is not None:
                release(run.generation, run.task.task)
            self._events.put(TaskClosed(task=run.task))
        finally:
            with self._lock:
                has_failed = isinstance(run.state, QueryStarting)
                if has_failed:
                    self._end(run)
            if has_failed:
                run.fence.close()

    def _take_over(self, run: QueryRun, start: TaskStart) -> HeldCheckpoint:
        """Take over the checkpoint in the checkpoint generation that the config names.

        Waits up to :data:`ABSENT_MS` until the shared file system shows the generation.

        :raises GenerationClosedError: when the generation is closed, or the config was written by a version of Coterie
            without checkpoint generations.
        :raises WorldError: when the generation does not appear, or the checkpoint cannot be taken over.
        """
        if (name := start.config.get(GENERATION)) is None:
            raise GenerationClosedError(f"The config of {run.task} names no checkpoint generation")
        named = GenerationId.parse(name)
        connector = connector_folder(self._config.checkpoint_location, run.task.connector, start.incarnation)
        run.generation = generation_folder(connector, named.number)
        deadline = time.monotonic() + ABSENT_MS / 1000
        while True:
            try:
                return take_open(run.generation, named, run.task.task)
            except GenerationAbsentError:
                # A shared file system may show the generation late.
                if time.monotonic() > deadline or self._closing.wait(LOOK_EVERY_MS / 1000):
                    raise
            if run.fence.closed:
                raise FencedError

    def _start_query(self, run: QueryRun, query: TaskQuery) -> None:
        """Start the query. Afterwards the run is QueryRunning, QueryWaiting or QueryFailed, unless it was ended while
        the query started."""
        died = self._begin_query(run, query)
        if died is not None and not died.is_held:
            query.stop(grace_ms=0)
            self._events.put(died)
            return
        with self._lock:
            self._session()
            if not run.fence.closed:
                if died is None:
                    run.state = QueryRunning(query=query, progress=None)
                else:
                    self._fail(run, query, died)
                return
        self._events.put(TaskHalted(task=run.task))
        query.stop(grace_ms=0)

    def _begin_query(self, run: QueryRun, query: TaskQuery) -> TaskDied | None:
        """Start the query. Returns None when the query runs, else the event that reports the failed start.

        :raises FencedError: when the run was stopped while the query started.
        :raises WorldError: when Spark is not running any more.
        """
        try:
            query.start()
        except FencedError:
            raise
        except Exception as error:  # noqa: BLE001 - a plug-in may raise anything; it is this task's failure
            self._session()
            log.warning("%s: the query did not start: %.500s", run.task, sentence_of(error))
            if query.taken:
                return _taken(run)
            trace = f"The query did not start: {trace_of(error)}"
            return TaskDied(task=run.task, trace=trace, is_held=True, can_restart=not isinstance(error, ConfigError))
        return None

    def _begin_stop(self, task: ConnectorTaskId) -> tuple[QueryRun, TaskQuery] | None:
        with self._lock:
            current = self._current(task)
            if current is not None:
                current[0].state = QueryStopping(query=current[1])
            return current

    def _stop(self, run: QueryRun, query: TaskQuery, deadline: float) -> None:
        try:
            query.stop(grace_ms=max(0, round((deadline - time.monotonic()) * 1000)))
            if run.generation is not None and not query.taken:
                release(run.generation, run.task.task)
        finally:
            with self._lock:
                self._end(run)

    def _close(self, run: QueryRun, query: TaskQuery) -> None:
        """Stop a query at a batch boundary because its checkpoint generation is closed, and record in the generation's
        folder that the task has stopped: the worker that performs the re-split waits for that."""
        assert run.generation is not None
        try:
            query.stop(grace_ms=CLOSE_GRACE_MS)
            release(run.generation, run.task.task)
        finally:
            with self._lock:
                if not isinstance(run.state, QueryEnded):
                    self._end(run)
                    self._events.put(TaskClosed(task=run.task))

    # -- the polling thread -------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Poll every run: does this worker still hold its checkpoint, is the query active, has it progressed?"""
        while not self._closing.wait(LOOK_EVERY_MS / 1000):
            with self._lock:
                runs = list(self._runs)
            for run in runs:
                try:
                    self._look(run)
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
                        run.fence.shut()
                        died = TaskDied(task=run.task, trace=trace_of(error), is_held=True, can_restart=False)
                        self._move(run, state, QueryFailed(query=state.query), died)

    def _look(self, run: QueryRun) -> None:
        state = run.state
        if not isinstance(state, QueryRunning | QueryWaiting):
            return
        query = state.query
        if query.taken:
            # Do not wait for the query to fail: a query without input writes nothing, and would continue without end.
            self._give_up(run, _taken(run))
            return
        if run.generation is not None and is_closed(run.generation):
            if self._move(run, state, QueryStopping(query=query)):
                self._stops.submit(self._close, run, query)
            return
        if isinstance(state, QueryWaiting):
            restarting = QueryRestarting(query=query)
            is_due = time.monotonic() >= state.restarts_at and self._may_restart(run.task.connector)
            if is_due and self._move(run, state, restarting):
                self._retries.submit(self._restart, run, restarting)
            return
        if (overdue := query.overdue()) is not None:
            # The herder then stops the task without grace, which cancels the batch's Spark jobs.
            died = TaskDied(task=run.task, trace=overdue, is_held=True, can_restart=False)
            self._move(run, state, QueryFailed(query=query), died)
            return
        is_alive, progress = query.active(), query.progress()
        if progress is not None and progress != state.progress:
            progressed = QueryRunning(query=query, progress=progress)
            batch_id, input_rows, _ = progress
            event = TaskProgressed(
                task=run.task, batch_id=batch_id, input_rows=input_rows, bad_records=query.bad_records
            )
            if not self._move(run, state, progressed, event):
                return
            state = progressed
            run.outage = None
        if not is_alive:
            dead = QueryFailed(query=query)
            if self._move(run, state, dead):
                self._reports.submit(self._report, run, dead)

    def _may_restart(self, connector: ConnectorName) -> bool:
        """Whether another waiting task of this connector may be restarted now (:data:`RESTARTS_OF_CONNECTOR`)."""
        with self._lock:
            restarting = [run for run in self._runs if isinstance(run.state, QueryRestarting)]
        return sum(run.task.connector == connector for run in restarting) < RESTARTS_OF_CONNECTOR

    def _report(self, run: QueryRun, dead: QueryFailed) -> None:
        """Report the failure of the query with its cause."""
        query = dead.query
        try:
            trace = query.trace()
            is_held = not query.taken
        except Exception as error:  # noqa: BLE001 - no caller reads the exceptions of this thread
            trace, is_held = f"The query failed, and reading the cause failed too: {error}", True
        if not is_held:
            self._give_up(run, _taken(run))
            return
        log.warning("%s: the query failed: %.500s", run.task, trace)
        died = TaskDied(task=run.task, trace=trace, is_held=True, can_restart=query.refusal is None)
        with self._lock:
            if run.state is dead:
                self._fail(run, query, died)

    def _restart(self, run: QueryRun, restarting: QueryRestarting) -> None:
        query = restarting.query
        try:
            died = self._begin_query(run, query)
        except FencedError:
            log.info("%s was stopped while its query was restarted", run.task)
            self._give_up(run, _taken(run))
            return
        if died is None:
            self._move(run, restarting, QueryRunning(query=query, progress=None))
        elif died.is_held:
            with self._lock:
                if run.state is restarting:
                    self._fail(run, query, died)
        else:
            self._give_up(run, died)

    def _give_up(self, run: QueryRun, event: TaskDied) -> None:
        """End a run without an order of the herder. The event is reported before the query is stopped, because the stop
        takes time. The polling thread does not wait for a running commit: that commit cannot harm the new owner, and
        the other runs must be polled."""
        run.fence.shut()
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

    # -- states; the caller holds the lock, except for _closing_run and _move -----------------------------------------

    def _current(self, task: ConnectorTaskId) -> tuple[QueryRun, TaskQuery] | None:
        """The run of ``task`` that has a query, running or failed."""
        return next((found for found in self._running() if found[0].task == task), None)

    def _closing_run(self, task: ConnectorTaskId) -> QueryRun | None:
        """The run of ``task`` that is being stopped because its checkpoint generation is closed."""
        with self._lock:
            return next((run for run in self._runs if run.task == task and isinstance(run.state, QueryStopping)), None)

    def _running(self) -> list[tuple[QueryRun, TaskQuery]]:
        return [
            (run, run.state.query)
            for run in self._runs
            if isinstance(run.state, QueryRunning | QueryFailed | QueryWaiting | QueryRestarting)
        ]

    def _end_running(self) -> list[tuple[QueryRun, TaskQuery]]:
        running = self._running()
        for run, _ in running:
            self._end(run)
        return running

    def _fail(self, run: QueryRun, query: TaskQuery, died: TaskDied) -> None:
        """Report that the query failed. If a server cannot be reached and ``errors.retry.timeout`` is not over, wait
        and restart the query instead."""
        if query.is_server_away:
            now = time.monotonic()
            outage = run.outage or Outage(since=now, attempts=0)
            if (at := query.patience.retry_at(outage, now)) is not None:
                run.outage = Outage(since=outage.since, attempts=outage.attempts + 1)
                run.state = QueryWaiting(query=query, restarts_at=at)
                log.warning("%s is started again in %d ms: %.500s", run.task, (at - now) * 1000, died.trace)
                cause = died.trace.partition("\n\n")[0]
                trace = f"A server cannot be reached; the task is restarted until errors.retry.timeout is over: {cause}"
                self._events.put(TaskWaiting(task=run.task, trace=trace))
                return
        run.state = QueryFailed(query=query)
        self._events.put(died)

    def _end(self, run: QueryRun) -> None:
        run.state = QueryEnded()
        run.ended.set()
        self._runs.remove(run)

    def _move(
        self, run: QueryRun, before: QueryState, after: QueryState, event: TaskProgressed | TaskDied | None = None
    ) -> bool:
        """Change the state of ``run`` from ``before`` to ``after`` and report ``event``.

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
    """Wait for the end of a run that is being stopped. When the grace is over, close its fence: wait for its running
    commit and reject further commits."""
    run.ended.wait(max(0, deadline - time.monotonic()))
    run.fence.close()


def _close_fences(runs: Sequence[QueryRun]) -> None:
    """Reject further commits of these runs, and wait for the running commits, :data:`EFFECTS_END_MS` at most in all."""
    for run in runs:
        run.fence.shut()
    deadline = time.monotonic() + EFFECTS_END_MS / 1000
    for run in runs:
        if not run.fence.close(within_s=max(0, deadline - time.monotonic())):
            log.error(
                "%s: the commit of its last batch has not ended within %d ms; the next owner replays the batch",
                run.task,
                EFFECTS_END_MS,
            )


def _taken(run: QueryRun) -> TaskDied:
    return TaskDied(task=run.task, trace="Another worker has taken over the checkpoint", is_held=False)


async def on_thread(pool: ThreadPoolExecutor, work: Callable[[], T]) -> T:
    """Run ``work`` on a thread of ``pool``.

    :raises WorldError: when the pool was shut down before ``work`` began.
    """
    try:
        return await asyncio.get_running_loop().run_in_executor(pool, work)
    except RuntimeError as error:
        if "shutdown" not in str(error):
            raise
        raise WorldError("Spark is not running on this worker") from error
