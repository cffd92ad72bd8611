"""Supervises the tasks that run on one Spark session: starts, watches, restarts and stops their queries.

A run is one start of one task, with all restarts on the checkpoint that this start took over; the herder decides when
to restart. Only the supervisor changes a run's state, always under its lock:

| state | meaning | next |
|---|---|---|
| ``QueryStarting`` | waits for a thread, takes the checkpoint, starts the query | Running, Waiting, Failed, Ended |
| ``QueryRunning`` | the query runs, or its failure was not noticed yet | Failed, Stopping, Ended |
| ``QueryFailed`` | the query failed; the checkpoint is held | Restarting, Waiting, Stopping, Ended |
| ``QueryWaiting`` | a server is away, and ``errors.retry.timeout`` is not over | Restarting, Stopping, Ended |
| ``QueryRestarting`` | a thread starts the query on the same checkpoint | Running, Waiting, Failed, Stopping, Ended |
| ``QueryStopping`` | is being stopped; the running batch may be put in place until the grace is over | Ended |
| ``QueryEnded`` | this run has no effect any more | |

The supervisor restarts a task that failed because a server is away, as ``errors.retry.*`` say, and reports the cause to
the herder. After other failures, and when ``errors.retry.timeout`` is over, the herder decides about a restart.

A run ends for one of five reasons: it was stopped; its generation of checkpoints was closed (:class:`TaskClosed`); it
was *halted* with all others (:class:`TaskHalted`); another worker holds its checkpoint (:class:`TaskDied`, not held);
or the JVM ended. Spark raises no exception of its own when a checkpoint was taken, so that the supervisor looks at the
checkpoint.
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
"""How many queries are started at the same time; more only take turns on the same two or four cores."""
RESTARTS_AT_ONCE = 16
"""How many queries whose server was away are started again at the same time, as many for the herder as by ourselves;
each may wait a minute for its server."""
RESTARTS_OF_CONNECTOR = 4
"""How many of them may be of one connector when its tasks wait for a server: the others leave threads to those whose
server is back."""
STOPS_AT_ONCE = 64
"""How many are stopped at the same time: each may hang in Spark for a while, and none may wait for another."""
REPORTS_AT_ONCE = 4
"""How many failures are asked for their cause at the same time."""
CLOSE_GRACE_MS = 10_000
"""How long the last batch of a task may take whose generation is closed; it is run again when it takes longer."""
ABSENT_MS = 10_000
"""How long a start waits until the generation that its config names is seen on the shared file system."""
EFFECTS_END_MS = 10_000
"""How long the stop of everything waits for effects that are under way, while their queries are interrupted. Only a
sink that waits for something else than Spark can take longer; the next owner of the task is safe from what it does."""
LOOK_EVERY_MS = 300
"""How often the queries are asked for their progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryStarting:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryRunning:
    query: TaskQuery
    progress: tuple[int, int, str] | None
    """The last progress that was reported; see :meth:`TaskQuery.progress`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryFailed:
    query: TaskQuery


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryWaiting:
    query: TaskQuery
    restarts_at: float
    """The monotonic second."""


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
        """Where the checkpoint stands; None before it is looked for."""
        self.ended = threading.Event()
        self.outage: Outage | None = None
        """A server that the task needs has been away since its last progress."""
        self.state: QueryState = QueryStarting()


class Supervisor:
    """Runs tasks on the session that ``session`` returns; ``session`` raises WorldError when nothing can run.

    ``closing`` is set before :meth:`close` is called: threads that wait then go on and end.
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
        # Pools of their own: a start that blocks in a plug-in must delay neither a stop nor the report of a failure.
        # No start waits for a restart whose server is away, and no restart that the herder asks for waits for one that
        # is made by ourselves, as errors.retry.* say.
        self._starts = ThreadPoolExecutor(STARTS_AT_ONCE, thread_name_prefix="coterie-start")
        self._restarts = ThreadPoolExecutor(RESTARTS_AT_ONCE, thread_name_prefix="coterie-restart")
        self._retries = ThreadPoolExecutor(RESTARTS_AT_ONCE, thread_name_prefix="coterie-retry")
        self._stops = ThreadPoolExecutor(STOPS_AT_ONCE, thread_name_prefix="coterie-stop")
        self._reports = ThreadPoolExecutor(REPORTS_AT_ONCE, thread_name_prefix="coterie-report")

    def watch(self) -> None:
        """Begin to look at the runs, on a thread; the session is open."""
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
                raise WorldError(f"Task {task} holds no checkpoint here to be restarted on")
            run, restarting = current[0], QueryRestarting(query=dead.query)
            run.state = restarting
        pool = self._restarts if dead.query.is_server_away else self._starts
        await on_thread(pool, lambda: self._restart(run, restarting))

    async def stop(self, task: ConnectorTaskId, *, grace_ms: int) -> None:
        """See :meth:`coterie.herder.seams.TaskRuntime.stop`."""
        # Many stops wait for a thread together, and the grace is for all of them, as in Connect.
        deadline = time.monotonic() + grace_ms / 1000
        if (stopping := self._begin_stop(task)) is not None:
            await on_thread(self._stops, lambda: self._stop(*stopping, deadline))
        elif (closing := self._closing_run(task)) is not None:
            await on_thread(self._stops, lambda: _await_end(closing, deadline))
        self._events.forget(task)

    def stop_everything_now(self) -> None:
        """See :meth:`coterie.herder.seams.TaskRuntime.stop_everything_now`. An effect that does not end within
        :data:`EFFECTS_END_MS` is logged: this thread has to give up the worker's place in the group."""
        with self._lock:
            halted = list(self._runs)
            queries = self._end_running()
            for run, _ in queries:
                self._events.put(TaskHalted(task=run.task))
        # All fences are shut before this waits for one: a run that hangs in its effect must not keep the others
        # running. A run in QueryStarting finds its fence closed and reports TaskHalted; the grace of a run in
        # QueryStopping is over, and it reports nothing.
        for run in halted:
            run.fence.shut()
        for _, query in queries:
            self._stops.submit(query.stop, grace_ms=0)
        _close_fences(halted)
        log.warning("Everything here was stopped: %d tasks", len(halted))

    def fence_running(self) -> None:
        """Let no effect of a run through any more, without stopping its query: the JVM has ended or is about to."""
        with self._lock:
            runs = [run for run, _ in self._end_running()]
        _close_fences(runs)

    def held(self, task: ConnectorTaskId) -> HeldCheckpoint | None:
        """The checkpoint on which ``task`` runs here."""
        with self._lock:
            current = self._current(task)
            return None if current is None else current[1].held

    def running(self) -> list[TaskQuery]:
        """The queries that run, also those that are being stopped and may commit one more batch."""
        with self._lock:
            return [run.state.query for run in self._runs if isinstance(run.state, QueryRunning | QueryStopping)]

    def close(self) -> None:
        """Fence all that runs, end the watch and drop the starts that still wait for a thread."""
        self.fence_running()
        # The watcher uses the pools, so it ends first.
        if self._watcher is not None:
            self._watcher.join()
        for pool in (self._starts, self._restarts, self._retries):
            pool.shutdown(wait=False, cancel_futures=True)

    def join(self) -> None:
        """Wait for the threads; the session was closed, so that none of them waits for a query."""
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
        """Take the checkpoint in the generation that the config names, once that generation is seen here.

        :raises GenerationClosedError: when it is closed, or the config is from before there were generations.
        :raises WorldError: when it does not come to be seen, or the checkpoint cannot be taken.
        """
        if (name := start.config.get(GENERATION)) is None:
            raise GenerationClosedError(f"The config of {run.task} names no generation")
        named = GenerationId.parse(name)
        connector = connector_folder(self._config.checkpoint_location, run.task.connector, start.incarnation)
        run.generation = generation_folder(connector, named.number)
        deadline = time.monotonic() + ABSENT_MS / 1000
        while True:
            try:
                return take_open(run.generation, named, run.task.task)
            except GenerationAbsentError:
                # A shared file system may show it late.
                if time.monotonic() > deadline or self._closing.wait(LOOK_EVERY_MS / 1000):
                    raise
            if run.fence.closed:
                raise FencedError

    def _start_query(self, run: QueryRun, query: TaskQuery) -> None:
        """Start the query; the run is QueryRunning afterwards, or QueryFailed, unless it ended meanwhile."""
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
        """Start the query. None when it runs, else the event that reports the failed start.

        :raises FencedError: when the run was stopped meanwhile.
        :raises WorldError: when Spark is not running here any more.
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
        """Stop a query whose generation is closed at a batch boundary, and let the finisher know."""
        assert run.generation is not None
        try:
            query.stop(grace_ms=CLOSE_GRACE_MS)
            release(run.generation, run.task.task)
        finally:
            with self._lock:
                if not isinstance(run.state, QueryEnded):
                    self._end(run)
                    self._events.put(TaskClosed(task=run.task))

    # -- the watch ----------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Look at every run again and again: is its checkpoint still ours, is the query alive, has it progressed."""
        while not self._closing.wait(LOOK_EVERY_MS / 1000):
            with self._lock:
                runs = list(self._runs)
            for run in runs:
                try:
                    self._look(run)
                except (PySparkException, Py4JError, OSError) as error:
                    # The JVM is going: the thread that waits for it reports that.
                    log.debug("%s: no look: %s", run.task, error)
                except Exception as error:
                    # The other runs are still watched, and this one is reported; its checkpoint is held until the stop.
                    log.exception("%s cannot be watched", run.task)
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
            # Also when the query has not noticed yet: one with nothing to read writes nothing, and would live on.
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
            # The herder then stops the task without grace, which ends what the batch runs in Spark.
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
        """Whether another waiting task of this connector may be started again now."""
        with self._lock:
            restarting = [run for run in self._runs if isinstance(run.state, QueryRestarting)]
        return sum(run.task.connector == connector for run in restarting) < RESTARTS_OF_CONNECTOR

    def _report(self, run: QueryRun, dead: QueryFailed) -> None:
        """Report the cause of the query's failure."""
        query = dead.query
        try:
            trace = query.trace()
            is_held = not query.taken
        except Exception as error:  # noqa: BLE001 - no caller looks at what this thread raises
            trace, is_held = f"What the query died of is not known: {error}", True
        if not is_held:
            self._give_up(run, _taken(run))
            return
        log.warning("%s: the query died: %.500s", run.task, trace)
        died = TaskDied(task=run.task, trace=trace, is_held=True, can_restart=query.refusal is None)
        with self._lock:
            if run.state is dead:
                self._fail(run, query, died)

    def _restart(self, run: QueryRun, restarting: QueryRestarting) -> None:
        query = restarting.query
        try:
            died = self._begin_query(run, query)
        except FencedError:
            log.info("%s was stopped while it was started again", run.task)
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
        """End a run by ourselves; reported before the query is stopped, which takes time. The thread of the watch does
        not wait for an effect that is under way: the new owner is safe from it, and all other runs are to be watched.
        """
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

    # -- states; the caller holds the lock, but for _move -------------------------------------------------------------

    def _current(self, task: ConnectorTaskId) -> tuple[QueryRun, TaskQuery] | None:
        """The run of ``task`` that has a query, running or dead."""
        return next((found for found in self._running() if found[0].task == task), None)

    def _closing_run(self, task: ConnectorTaskId) -> QueryRun | None:
        """The run of ``task`` that is being stopped because its generation is closed."""
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
        """Report that the query failed; or, where a server is away and the config says so, wait and start it again."""
        if query.is_server_away:
            now = time.monotonic()
            outage = run.outage or Outage(since=now, attempts=0)
            if (at := query.patience.retry_at(outage, now)) is not None:
                run.outage = Outage(since=outage.since, attempts=outage.attempts + 1)
                run.state = QueryWaiting(query=query, restarts_at=at)
                log.warning("%s is started again in %d ms: %.500s", run.task, (at - now) * 1000, died.trace)
                cause = died.trace.partition("\n\n")[0]
                trace = f"A server is away, and the task is started again as errors.retry.timeout says: {cause}"
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
        """Whether ``run`` was still in the state ``before``, and now is in ``after``, with ``event`` reported."""
        with self._lock:
            if run.state is not before:
                return False
            run.state = after
            if event is not None:
                self._events.put(event)
            return True


def _await_end(run: QueryRun, deadline: float) -> None:
    """Wait for the end of a run that is being stopped; when the grace is over, until it can have no effect any more."""
    run.ended.wait(max(0, deadline - time.monotonic()))
    run.fence.close()


def _close_fences(runs: Sequence[QueryRun]) -> None:
    """Let no effect of these runs begin, and wait for those that are under way, all together for a limited time."""
    for run in runs:
        run.fence.shut()
    deadline = time.monotonic() + EFFECTS_END_MS / 1000
    for run in runs:
        if not run.fence.close(within_s=max(0, deadline - time.monotonic())):
            log.error(
                "%s: its last batch was being put in place and has not ended within %d ms; the next owner replays it",
                run.task,
                EFFECTS_END_MS,
            )


def _taken(run: QueryRun) -> TaskDied:
    return TaskDied(task=run.task, trace="Another worker took the checkpoint", is_held=False)


async def on_thread(pool: ThreadPoolExecutor, work: Callable[[], T]) -> T:
    """Run ``work`` on a thread of ``pool``.

    :raises WorldError: when the pool was shut down before the work began.
    """
    try:
        return await asyncio.get_running_loop().run_in_executor(pool, work)
    except RuntimeError as error:
        if "shutdown" not in str(error):
            raise
        raise WorldError("Spark is not running here") from error
