"""Supervises the tasks that run on one Spark session: starts, polls, restarts and stops their queries.

A run is one start of one task, with all restarts of its query on the checkpoint that this start took over. Only the
supervisor changes a run's state, always under its lock:

| state | meaning | next |
|---|---|---|
| ``QueryStartingState`` | waits for a thread, takes over the checkpoint, starts | running, waiting, failed, ended |
| ``QueryRunningState`` | the query runs, or its failure is not yet detected | failed, stopping, ended |
| ``QueryFailedState`` | the query failed; the checkpoint is held | restarting, waiting, stopping, ended |
| ``QueryWaitingToRestartState`` | ``errors.retry.timeout`` runs | restarting, failed, stopping, ended |
| ``QueryRestartingState`` | a thread starts the query again | running, waiting, failed, stopping, ended |
| ``QueryStoppingState`` | a thread stops the query; the batch may be committed until the grace is over | ended |
| ``QueryEndedState`` | this run commits nothing any more | |

The supervisor restarts a query that failed because a server cannot be reached, as ``errors.retry.*`` define, and
reports the cause to the herder. After other failures, and when ``errors.retry.timeout`` is over, the herder decides
about a restart.

A run ends for one of seven reasons: its start failed before the checkpoint was taken over; its start was abandoned,
because it exceeded its time limit or was no longer needed; it was stopped; its checkpoint generation was closed
(:class:`TaskCheckpointClosed`); it was *halted* with all others (:class:`TaskHaltedWithoutOrder`); another worker holds
its checkpoint or has taken over in a sink (:class:`TaskDied` with ``holds_checkpoint`` False); or the JVM ended. Spark
raises no exception when another worker has taken over the checkpoint, so the supervisor checks the checkpoint's
path."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from coterie.herder.seams import (
    RetriableStartError,
    TaskCheckpointClosed,
    TaskDied,
    TaskHaltedWithoutOrder,
    TaskProgressed,
    TaskRetrying,
    TaskSpec,
)
from coterie.nouns.errors import ConfigError, WorldError
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.spark.call_ledger import CallQueueSpec
from coterie.spark.checkpoint import HeldCheckpoint
from coterie.spark.events import EventQueue
from coterie.spark.failures import error_message, message_with_trace_unless_coterie_error
from coterie.spark.fence import Fence, FencedError
from coterie.spark.generations.checkpoint_take_over import (
    GenerationAbsentError,
    GenerationClosedError,
    is_generation_closed_or_removed,
    take_over_in_open_generation,
)
from coterie.spark.generations.layout import GenerationId, connector_folder, generation_folder
from coterie.spark.generations.resplit import record_task_stopped
from coterie.spark.pipeline import Pipeline
from coterie.spark.plugin_calls import AbandonedCallError, NoThreadError, PluginCall, PluginCalls, result_of
from coterie.spark.query import TaskQuery, sink_rejection_text
from coterie.spark.redaction import new_redacting_session
from coterie.spark.session import SparkDriver
from coterie.spark.settings import SparkConfig
from coterie.spark.task_timeouts import Outage
from coterie.spark.validation import GENERATION_KEY

log = logging.getLogger(__name__)

CONCURRENT_STARTS_MAX = 4
"""Maximum number of queries that are started at the same time; more would only share the same two or four cores."""
CONCURRENT_RESTARTS_MAX = 16
"""Maximum number of queries that are restarted at the same time after a server could not be reached. The limit applies
to the restarts that the herder orders, and separately to those of the supervisor itself. Each restart may wait a minute
for its server."""
CONCURRENT_RESTARTS_OF_CONNECTOR_MAX = 4
"""While this number of queries of one connector are being restarted, the supervisor restarts no further query of this
connector that waits for a server. So threads stay free for connectors whose server is reachable again."""
CONCURRENT_STOPS_MAX = 64
"""Maximum number of queries that are stopped at the same time. A stop may hang in Spark, and no stop may wait for
another."""
CONCURRENT_REPORTS_MAX = 4
"""Maximum number of failed queries whose cause is read at the same time."""
# Separate queues: a start that blocks in a plug-in must delay neither a stop nor the report of a failure. No start
# waits for a restart whose server cannot be reached, and no restart that the herder orders waits for a restart of the
# supervisor (errors.retry.*).
START_CALLS = CallQueueSpec(name="start", concurrent_calls_max=CONCURRENT_STARTS_MAX)
RESTART_CALLS = CallQueueSpec(name="restart", concurrent_calls_max=CONCURRENT_RESTARTS_MAX)
RETRY_CALLS = CallQueueSpec(name="retry", concurrent_calls_max=CONCURRENT_RESTARTS_MAX)
STOP_CALLS = CallQueueSpec(name="stop", concurrent_calls_max=CONCURRENT_STOPS_MAX)
REPORT_CALLS = CallQueueSpec(name="report", concurrent_calls_max=CONCURRENT_REPORTS_MAX)
INTERRUPTED_STOP_TIMEOUT_MS = 2_000
"""How long a stop may take after its grace, when its batch is interrupted. Then the stop is abandoned."""
CLOSED_GENERATION_STOP_GRACE_MS = 10_000
"""Time limit for the last batch of a task whose checkpoint generation is closed, from the start of the stop. A batch
that takes longer is interrupted and replayed."""
GENERATION_VISIBLE_TIMEOUT_MS = 10_000
"""How long a start waits until the shared file system shows the checkpoint generation that the task's config names."""
RUNNING_COMMITS_TIMEOUT_MS = 10_000
"""How long the immediate end of all runs waits for their running commits, in all. Only a sink that waits for something
other than Spark can take longer; its late commit cannot harm the next owner of the task."""
POLL_INTERVAL_MS = 300
"""Interval at which the supervisor polls each run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryStartingState:
    """State of a run that has no query yet: it waits for a thread, takes over the checkpoint, or starts the query."""

    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryRunningState:
    """The query runs, or the supervisor has not detected its failure yet. ``progress`` is that of the last reported
    batch: batch id, number of input rows and time; None before the first."""

    query: TaskQuery
    progress: tuple[int, int, str] | None
    """The last reported progress: batch id, number of input rows and time
    (:meth:`TaskQuery.last_batch_id_rows_and_time`); None before the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryFailedState:
    """The query failed. Its checkpoint is held until the task is stopped; a restart uses the same checkpoint."""

    query: TaskQuery


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryWaitingToRestartState:
    """The query failed because a server cannot be reached, and the supervisor will restart it."""

    query: TaskQuery
    restart_due_at_s: float
    """The monotonic second from which the query may be restarted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryRestartingState:
    """A thread starts the failed query again, or will start it as soon as a thread is free."""

    query: TaskQuery


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryStoppingState:
    """A thread stops the query, or will stop it as soon as a thread is free."""

    query: TaskQuery


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryEndedState:
    """State of a run that has ended: the supervisor has removed it from its runs, and it commits nothing any more."""

    pass


QueryState: TypeAlias = (
    QueryStartingState
    | QueryRunningState
    | QueryFailedState
    | QueryWaitingToRestartState
    | QueryRestartingState
    | QueryStoppingState
    | QueryEndedState
)


class SupervisedTaskRun:
    """One start of one task, with the restarts of its query. Only the supervisor assigns ``state``."""

    def __init__(self, task: ConnectorTaskId) -> None:
        self.task = task
        self.fence = Fence()
        self.generation_path: Path | None = None
        """The folder of the checkpoint generation that contains the checkpoint; None before the take-over begins."""
        self.has_ended = threading.Event()
        """Set when the state becomes QueryEndedState."""
        self.start_call: PluginCall | None = None
        """The last call that starts or restarts the query; None before the first."""
        self.config: Mapping[str, str] = {}
        """The task's config, with unresolved references; empty before the start."""
        self.resolved_config: Mapping[str, str] = {}
        """:attr:`config` with the values of the references at the last start of the query."""
        self.outage: Outage | None = None
        """Set while a server that the task needs cannot be reached; None again after the query's next progress."""
        self.state: QueryState = QueryStartingState()


class Supervisor:
    """Runs tasks on the Spark that ``running_driver`` returns. ``running_driver`` raises WorldError when Spark is not
    running.

    ``closing`` is set before :meth:`close` is called: waiting threads then wake up and end.
    """

    def __init__(
        self,
        config: SparkConfig,
        events: EventQueue,
        running_driver: Callable[[], SparkDriver],
        closing: threading.Event,
        calls: PluginCalls,
    ) -> None:
        self._config = config
        self._events = events
        self._calls = calls
        self._running_driver = running_driver
        self._closing = closing
        self._lock = threading.Lock()
        self._runs: list[SupervisedTaskRun] = []
        """All runs that have not ended. A task has at most one run with a query."""
        self._polling_thread: threading.Thread | None = None

    def start_polling(self) -> None:
        """Start the thread that polls the runs. Spark must be running."""
        self._polling_thread = threading.Thread(target=self._poll_runs_until_closing, name="coterie-watch", daemon=True)
        self._polling_thread.start()

    async def start(self, spec: TaskSpec) -> None:
        """Take the task's checkpoint over and start its query, as :meth:`coterie.herder.seams.TaskRuntime.start`
        describes. First, drop the unread events of the task, and stop an earlier run of the task on this worker without
        grace."""
        self._events.drop_events_of_task(spec.task)
        run = SupervisedTaskRun(spec.task)
        with self._lock:
            self._runs.append(run)
        try:
            if (former_run := self._mark_run_stopping(spec.task)) is not None:
                await self._wait_for_stop_or_abandonment(self._submit_run_stop(*former_run, time.monotonic()))
            run.start_call = self._calls.submit(
                START_CALLS,
                f"task {run.task}",
                lambda: self._start_run(run, spec),
                stage="start",
                on_abandon=lambda _: self._end_run_of_abandoned_start(run),
            )
            await result_of(run.start_call)
        except BaseException:
            if run.start_call is None or run.start_call.thread is None:
                self._end_run_of_abandoned_start(run)  # The start has not begun, and will not.
            raise

    async def restart(self, task: ConnectorTaskId) -> None:
        """Start the failed query of ``task`` again on the checkpoint that this worker holds, as
        :meth:`coterie.herder.seams.TaskRuntime.restart` describes.

        :raises WorldError: when the task has no run in QueryFailedState on this worker, or the restart failed and
            Spark is not running any more.
        """
        with self._lock:
            run_and_query = self._find_run_with_query_not_being_stopped(task)
            if run_and_query is None or not isinstance(failed_state := run_and_query[0].state, QueryFailedState):
                raise WorldError(
                    f"Task {task} cannot be restarted on this worker: it has no failed query here that still holds the "
                    "checkpoint"
                )
            run, restarting = run_and_query[0], QueryRestartingState(query=failed_state.query)
            run.state = restarting
        queue = RESTART_CALLS if failed_state.query.is_server_unreachable else START_CALLS
        try:
            await result_of(self._submit_restart(queue, run, restarting))
        except AbandonedCallError:
            return  # The failure was reported when the restart was abandoned.

    async def stop(self, task: ConnectorTaskId, *, grace_ms: int) -> None:
        """Stop the task at the end of its batch, or interrupt the batch after ``grace_ms``, as
        :meth:`coterie.herder.seams.TaskRuntime.stop` describes. If a plug-in prevents the end of the interrupted batch
        for :data:`INTERRUPTED_STOP_TIMEOUT_MS`, the stop is abandoned: the run's fence is closed, and the run ends. A
        start of the task that is not finished continues: see :meth:`abort_task_start`."""
        # The grace begins before a stop gets a thread: it is one time limit for all stops together, as in Connect.
        deadline_s = time.monotonic() + grace_ms / 1000
        if (run_and_query := self._mark_run_stopping(task)) is not None:
            await self._wait_for_stop_or_abandonment(self._submit_run_stop(*run_and_query, deadline_s))
        elif (stopping_run := self._find_stopping_run(task)) is not None:
            await self._wait_for_stop_or_abandonment(
                self._submit_stop_call(
                    stopping_run, partial(_wait_for_run_end_then_close_fence, stopping_run, deadline_s), deadline_s
                )
            )
        self._events.drop_events_of_task(task)

    def abort_task_start(self, task: ConnectorTaskId, *, grace_ms: int) -> None:
        """If the running start or restart of ``task`` has not ended within ``grace_ms``, abandon it: its result is no
        longer needed. Does nothing when there is none. Never waits. See
        :meth:`coterie.herder.seams.TaskRuntime.abort_task_start`."""
        with self._lock:
            calls = [
                run.start_call
                for run in self._runs
                if run.task == task and run.start_call is not None and not run.start_call.future.done()
            ]
        for call in calls:
            call.limit_remaining_time(grace_ms / 1000)

    def halt_all_tasks(self) -> None:
        """Stop all tasks immediately, as :meth:`coterie.herder.seams.TaskRuntime.halt_all_tasks` describes. A commit
        that does not end within :data:`RUNNING_COMMITS_TIMEOUT_MS` is logged, and may still write after this method has
        returned. The caller must then give up the worker's membership of the group."""
        with self._lock:
            halted_runs = list(self._runs)
            ended_runs = self._mark_ended_and_remove_runs_not_being_stopped()
            for run, _ in ended_runs:
                self._events.put(TaskHaltedWithoutOrder(task=run.task))
        # Close all fences before waiting for one: a run that hangs in its commit must not keep the others running. A
        # run in QueryStartingState finds its fence closed and reports TaskHaltedWithoutOrder. For a run in
        # QueryStoppingState this ends the grace, and the run reports nothing.
        for run in halted_runs:
            run.fence.close_nowait()
        for run, query in ended_runs:
            self._submit_immediate_query_stop(run, query)
        _close_fences_and_wait_with_limit(halted_runs)
        log.warning(
            "Stopped all %d tasks of this worker immediately; batches that were not committed are replayed by the next "
            "owners of the tasks",
            len(halted_runs),
        )

    def end_runs_without_stopping_queries(self) -> None:
        """End all runs that have a query and are not being stopped, without stopping their queries and without events:
        the JVM has ended or is about to end. Rejects their further commits, and waits for running commits,
        :data:`RUNNING_COMMITS_TIMEOUT_MS` at most."""
        with self._lock:
            runs = [run for run, _ in self._mark_ended_and_remove_runs_not_being_stopped()]
        _close_fences_and_wait_with_limit(runs)

    def held_checkpoint(self, task: ConnectorTaskId) -> HeldCheckpoint | None:
        """The checkpoint that the run of ``task`` on this worker holds; None when there is no such run, or the run is
        being started or stopped."""
        with self._lock:
            run_and_query = self._find_run_with_query_not_being_stopped(task)
            return None if run_and_query is None else run_and_query[1].held_checkpoint

    def running_and_stopping_queries(self) -> list[TaskQuery]:
        """The queries of all runs in QueryRunningState, and of those in QueryStoppingState, which may commit one more
        batch."""
        with self._lock:
            return [
                run.state.query for run in self._runs if isinstance(run.state, QueryRunningState | QueryStoppingState)
            ]

    def close(self) -> None:
        """End the runs (:meth:`end_runs_without_stopping_queries`), and wait for the end of the polling thread, so that
        it submits no more plug-in calls. ``closing`` must be set."""
        self.end_runs_without_stopping_queries()
        if self._polling_thread is not None:
            self._polling_thread.join()

    # -- calls into plug-ins, and their end when a plug-in blocks -----------------------------------------------------

    def _submit_run_stop(self, run: SupervisedTaskRun, query: TaskQuery, deadline_s: float) -> PluginCall:
        """Stop a run in QueryStoppingState (:meth:`_stop_query_and_end_run`) on another thread."""
        return self._submit_stop_call(run, partial(self._stop_query_and_end_run, run, query, deadline_s), deadline_s)

    def _submit_immediate_query_stop(self, run: SupervisedTaskRun, query: TaskQuery) -> None:
        """Stop ``query``, the query of the run ``run`` that has ended, on another thread: without grace, also in the
        middle of a batch."""
        self._submit_stop_call(run, partial(query.stop, grace_ms=0), time.monotonic())

    def _submit_stop_call(
        self,
        run: SupervisedTaskRun,
        function: Callable[[], object],
        deadline_s: float,
        *,
        end_run: Callable[[], object] | None = None,
    ) -> PluginCall:
        """Call ``function``, which stops ``run`` with a grace until the monotonic second ``deadline_s``, on another
        thread. If it takes longer than :data:`INTERRUPTED_STOP_TIMEOUT_MS` after the grace, the call is abandoned: the
        run's fence is closed, and ``end_run`` is called, by default :meth:`_mark_ended_and_remove_run`."""

        def close_fence_and_end_run(_: AbandonedCallError) -> None:
            run.fence.close_nowait()
            if end_run is not None:
                end_run()
                return
            with self._lock:
                self._mark_ended_and_remove_run(run)

        return self._calls.submit(
            STOP_CALLS,
            f"task {run.task}",
            function,
            stage="stop",
            timeout_s=max(0, deadline_s - time.monotonic()) + INTERRUPTED_STOP_TIMEOUT_MS / 1000,
            on_abandon=close_fence_and_end_run,
        )

    async def _wait_for_stop_or_abandonment(self, call: PluginCall) -> None:
        """Wait until the call ``call``, which stops a run, has returned or was abandoned. An abandoned stop is logged,
        and raises nothing."""
        try:
            await result_of(call)
        except AbandonedCallError as error:
            log.error(
                "The stop of %s has not ended, and this worker no longer waits for it: what its sink has begun "
                "to write may still become visible: %s",
                call.subject,
                error,
            )

    def _submit_restart(
        self, queue: CallQueueSpec, run: SupervisedTaskRun, restarting: QueryRestartingState
    ) -> PluginCall:
        """Restart the query of a run in the state ``restarting`` (:meth:`_restart_query`) on another thread. If that
        exceeds the time limit of a plug-in call, the run's fence is closed, the run becomes QueryFailedState, and
        :class:`TaskDied` is reported: no restart can succeed on this run any more. If the restart could not begin for
        lack of a thread, a later restart may succeed."""

        def mark_failed_and_report_died(error: AbandonedCallError) -> None:
            can_restart = isinstance(error, NoThreadError)
            if not can_restart:
                run.fence.close_nowait()
            died_event = TaskDied(
                task=run.task,
                trace=str(error),
                holds_checkpoint=True,
                can_restart=can_restart,
                restart_policy=restarting.query.restart_policy,
            )
            self._try_change_run_state(run, restarting, QueryFailedState(query=restarting.query), died_event)

        run.start_call = self._calls.submit(
            queue,
            f"task {run.task}",
            lambda: self._restart_query(run, restarting),
            stage="restart",
            on_abandon=mark_failed_and_report_died,
        )
        return run.start_call

    def _end_run_of_abandoned_start(self, run: SupervisedTaskRun) -> None:
        """Close the fence of a run whose start was abandoned, and end the run. If its query was started at the same
        moment, stop the query."""
        run.fence.close_nowait()
        with self._lock:
            state = run.state
            self._mark_ended_and_remove_run(run)
        # The start may have returned just now.
        if not isinstance(state, QueryStartingState | QueryEndedState):
            self._submit_immediate_query_stop(run, state.query)

    def _report_unless_start_abandoned(
        self, run: SupervisedTaskRun, event: TaskDied | TaskHaltedWithoutOrder | TaskCheckpointClosed
    ) -> None:
        """Report ``event`` about a run that is being started, unless the start was abandoned: then the herder has
        received an error, and may have ordered the next start of the task."""
        with self._lock:
            if not isinstance(run.state, QueryEndedState):
                self._events.put(event)

    # -- starts and stops, on threads ---------------------------------------------------------------------------------

    def _start_run(self, run: SupervisedTaskRun, spec: TaskSpec) -> None:
        """Take over the checkpoint and start the query.

        Some failures are not raised but reported as events: ``run`` was halted meanwhile
        (:class:`TaskHaltedWithoutOrder`); its checkpoint generation is closed (:class:`TaskCheckpointClosed`); a later
        start of the task has taken over, or the query does not start (:class:`TaskDied`).

        :raises RetriableStartError: when the checkpoint cannot be taken over, or Spark ended during the start.
        :raises ConfigError, WorldError: when the config is not valid, or Spark was not running at the beginning.
        """
        try:
            driver = self._running_driver()
            run.config = spec.config
            run.resolved_config = self._config.config_providers.resolve(spec.config)
            pipeline = Pipeline.of(run.resolved_config, self._config.worker_kafka_properties)
            try:
                self._take_over_and_start_query(driver, run, spec, pipeline)
            except (FencedError, GenerationClosedError, ConfigError):
                raise
            except Exception as error:
                if run.fence.is_closed:
                    raise FencedError from error
                log.warning("Task %s: the start failed: %.500s", run.task, error_message(error))
                # Without the cause, in whose place an exception without secrets would have the default policy.
                raise RetriableStartError(
                    message_with_trace_unless_coterie_error(error), pipeline.timeouts.restart_policy
                ) from None
        except FencedError as error:
            self._running_driver()
            self._report_unless_start_abandoned(
                run,
                TaskHaltedWithoutOrder(task=run.task)
                if run.fence.is_closed
                else _taken_over_in_sink_event(run, sink_rejection_text(error)),
            )
        except GenerationClosedError:
            _try_record_stop_unless_taken_over(run)
            self._report_unless_start_abandoned(run, TaskCheckpointClosed(task=run.task))
        finally:
            with self._lock:
                has_no_query = isinstance(run.state, QueryStartingState)
                if has_no_query:
                    self._mark_ended_and_remove_run(run)
            if has_no_query:
                run.fence.close_and_wait()

    def _take_over_and_start_query(
        self, driver: SparkDriver, run: SupervisedTaskRun, spec: TaskSpec, pipeline: Pipeline
    ) -> None:
        """Take over the checkpoint and start the query of ``pipeline``. Raises the exceptions of
        :meth:`_take_over_checkpoint` and :meth:`_start_query`."""
        held_checkpoint = self._take_over_checkpoint(run, spec)
        log.info(
            "Task %s: start %d has taken over the checkpoint; batch in flight: %s",
            run.task,
            held_checkpoint.task_start_number,
            held_checkpoint.batch_id_in_flight,
        )
        session = new_redacting_session(driver.spark, run.config, run.resolved_config)
        self._start_query(run, TaskQuery(session, run.task, pipeline, held_checkpoint, run.fence))

    def _take_over_checkpoint(self, run: SupervisedTaskRun, spec: TaskSpec) -> HeldCheckpoint:
        """Take over the task's checkpoint in the checkpoint generation that the config in ``spec`` names.

        Waits up to :data:`GENERATION_VISIBLE_TIMEOUT_MS` until the shared file system shows the generation.

        :raises GenerationClosedError: when the generation is closed, or the config was written by a version of Coterie
            without checkpoint generations.
        :raises FencedError: when the run was halted, or its start abandoned, before the checkpoint was taken over.
        :raises WorldError: when the generation does not appear, or the checkpoint cannot be taken over.
        """
        if (generation_text := spec.config.get(GENERATION_KEY)) is None:
            raise GenerationClosedError(
                f"The config of {run.task} was written by a version of Coterie without checkpoint generations: it has "
                "no key generation"
            )
        generation_id = GenerationId.parse(generation_text)
        connector_path = connector_folder(
            self._config.checkpoint_location, run.task.connector, spec.connector_incarnation
        )
        run.generation_path = generation_folder(connector_path, generation_id.number)
        deadline_s = time.monotonic() + GENERATION_VISIBLE_TIMEOUT_MS / 1000
        while True:
            if run.fence.is_closed:
                raise FencedError
            try:
                return take_over_in_open_generation(run.generation_path, generation_id, run.task.task)
            except GenerationAbsentError:
                # A shared file system may show the generation late.
                if time.monotonic() > deadline_s or self._closing.wait(POLL_INTERVAL_MS / 1000):
                    raise

    def _start_query(self, run: SupervisedTaskRun, query: TaskQuery) -> None:
        """Start the query of a run in QueryStartingState. Afterwards the run is QueryRunningState,
        QueryWaitingToRestartState or QueryFailedState.

        If another start has taken over the checkpoint, or the run was halted meanwhile, the query is stopped, this is
        reported as an event, and the run stays QueryStartingState: the caller ends it.

        :raises FencedError: when the run was halted before Spark started the query.
        :raises WorldError: when Spark is not running any more.
        """
        died_event = self._try_start_query(run, query)
        if died_event is not None and not died_event.holds_checkpoint:
            query.stop(grace_ms=0)
            self._report_unless_start_abandoned(run, died_event)
            return
        with self._lock:
            self._running_driver()
            if not run.fence.is_closed:
                if died_event is None:
                    run.state = QueryRunningState(query=query, progress=None)
                else:
                    self._fail_or_retry_run(run, query, died_event)
                return
        self._report_unless_start_abandoned(run, TaskHaltedWithoutOrder(task=run.task))
        query.stop(grace_ms=0)

    def _try_start_query(self, run: SupervisedTaskRun, query: TaskQuery) -> TaskDied | None:
        """Start the query, with the present values of the references in the task's config. Returns None when the query
        runs, else the event for the failed start, which the caller reports.

        :raises FencedError: when the run was stopped or halted while the query started, or a later start of the task
            has taken over in a sink.
        :raises WorldError: when the start failed and Spark is not running any more.
        """
        try:
            resolved_config = self._config.config_providers.resolve(run.config)
            if resolved_config != run.resolved_config:
                query.close_sinks_and_replace_pipeline(
                    Pipeline.of(resolved_config, self._config.worker_kafka_properties)
                )
                run.resolved_config = resolved_config
            query.start()
        except FencedError:
            raise
        except BaseException as error:  # noqa: BLE001 - a plug-in may raise anything; it is this task's failure
            self._running_driver()
            log.warning("Task %s: the query did not start: %.500s", run.task, error_message(error))
            if _is_checkpoint_known_taken_over(query):
                return _checkpoint_taken_over_event(run)
            reason = f"The query did not start: {message_with_trace_unless_coterie_error(error)}"
            return TaskDied(
                task=run.task,
                trace=reason,
                holds_checkpoint=True,
                can_restart=not isinstance(error, ConfigError),
                restart_policy=query.timeouts.restart_policy,
            )
        return None

    def _mark_run_stopping(self, task: ConnectorTaskId) -> tuple[SupervisedTaskRun, TaskQuery] | None:
        """Change the state of the run of :meth:`_find_run_with_query_not_being_stopped` to QueryStoppingState. Returns
        the run and its query; None when ``task`` has no such run."""
        with self._lock:
            run_and_query = self._find_run_with_query_not_being_stopped(task)
            if run_and_query is not None:
                run_and_query[0].state = QueryStoppingState(query=run_and_query[1])
            return run_and_query

    def _stop_query_and_end_run(self, run: SupervisedTaskRun, query: TaskQuery, deadline_s: float) -> None:
        """Stop the query, with a grace until the monotonic second ``deadline_s``, and end the run. Record in the
        checkpoint generation's folder that the task has stopped, unless another start holds the checkpoint."""
        try:
            query.stop(grace_ms=max(0, round((deadline_s - time.monotonic()) * 1000)))
            _try_record_stop_unless_taken_over(run, query)
        finally:
            with self._lock:
                self._mark_ended_and_remove_run(run)

    def _submit_stop_in_closed_generation(self, run: SupervisedTaskRun, query: TaskQuery) -> None:
        """On another thread, stop the query of a run in QueryStoppingState whose checkpoint generation is closed, with
        the grace :data:`CLOSED_GENERATION_STOP_GRACE_MS`, and end the run. Record in the generation's folder that the
        task has stopped: the worker that performs the re-split waits for that record. Report
        :class:`TaskCheckpointClosed` unless the run was ended meanwhile."""

        def mark_ended_and_report_closed() -> None:
            with self._lock:
                if not isinstance(run.state, QueryEndedState):
                    self._mark_ended_and_remove_run(run)
                    self._events.put(TaskCheckpointClosed(task=run.task))

        def stop() -> None:
            try:
                query.stop(grace_ms=CLOSED_GENERATION_STOP_GRACE_MS)
                _try_record_stop_unless_taken_over(run)
            finally:
                mark_ended_and_report_closed()

        deadline_s = time.monotonic() + CLOSED_GENERATION_STOP_GRACE_MS / 1000
        self._submit_stop_call(run, stop, deadline_s, end_run=mark_ended_and_report_closed)

    # -- the polling thread -------------------------------------------------------------------------------------------

    def _poll_runs_until_closing(self) -> None:
        """Call :meth:`_poll_run` for every run at intervals of :data:`POLL_INTERVAL_MS`, until ``closing`` is set."""
        while not self._closing.wait(POLL_INTERVAL_MS / 1000):
            with self._lock:
                runs = list(self._runs)
            for run in runs:
                try:
                    self._poll_run(run)
                except (PySparkException, Py4JError, OSError) as error:
                    # The JVM is ending: the thread that waits for its exit reports that. Or the folder of a waiting
                    # query cannot be read now: the query waits until it can be.
                    log.debug("Task %s: polling the query failed: %s", run.task, error)
                except Exception as error:
                    # Continue with the other runs and report this one; its checkpoint is held until the stop.
                    log.exception(
                        "Task %s: polling the query failed unexpectedly (a bug in Coterie); the task fails", run.task
                    )
                    state = run.state
                    if isinstance(state, QueryRunningState | QueryWaitingToRestartState):
                        run.fence.close_nowait()
                        died_event = TaskDied(
                            task=run.task,
                            trace=message_with_trace_unless_coterie_error(error),
                            holds_checkpoint=True,
                            can_restart=False,
                        )
                        self._try_change_run_state(run, state, QueryFailedState(query=state.query), died_event)

    def _poll_run(self, run: SupervisedTaskRun) -> None:
        """Poll a run in QueryRunningState or QueryWaitingToRestartState. Ends the run if its checkpoint was taken over;
        stops it if its checkpoint generation is closed; restarts a waiting query whose time has come; reports progress,
        a batch that takes too long, and a query that has ended."""
        state = run.state
        if not isinstance(state, QueryRunningState | QueryWaitingToRestartState):
            return
        query = state.query
        try:
            if self._end_or_stop_superseded_run(run, state):
                return
        except OSError as error:
            if isinstance(state, QueryWaitingToRestartState):
                raise
            # Not known until the folder can be read again. But the query may have failed, also because of this.
            log.debug("Task %s: the checkpoint's folder cannot be read: %s", run.task, error)
        if isinstance(state, QueryWaitingToRestartState):
            restarting = QueryRestartingState(query=query)
            is_due = time.monotonic() >= state.restart_due_at_s and self._is_connector_below_restart_limit(
                run.task.connector
            )
            if is_due and self._try_change_run_state(run, state, restarting):
                self._submit_restart(RETRY_CALLS, run, restarting)
            return
        if (timeout_message := query.mark_failed_and_describe_if_batch_timed_out()) is not None:
            # The herder then stops the task without grace, which cancels the batch's Spark jobs.
            died_event = TaskDied(task=run.task, trace=timeout_message, holds_checkpoint=True, can_restart=False)
            self._try_change_run_state(run, state, QueryFailedState(query=query), died_event)
            return
        is_alive, progress = query.is_active(), query.last_batch_id_rows_and_time()
        if progress is not None and progress != state.progress:
            running_state = QueryRunningState(query=query, progress=progress)
            batch_id, input_rows, _ = progress
            event = TaskProgressed(
                task=run.task,
                batch_id=batch_id,
                input_rows=input_rows,
                bad_records=query.bad_record_count,
                topics=query.used_topics if input_rows else frozenset(),
            )
            if not self._try_change_run_state(run, state, running_state, event):
                return
            state = running_state
            run.outage = None
        if not is_alive:
            failed_state = QueryFailedState(query=query)
            if self._try_change_run_state(run, state, failed_state):
                self._submit_failure_report_or_retry(run, failed_state)

    def _end_or_stop_superseded_run(
        self, run: SupervisedTaskRun, state: QueryRunningState | QueryWaitingToRestartState
    ) -> bool:
        """End a run in ``state`` if its checkpoint was taken over; stop it if its checkpoint generation is closed.
        Returns whether either is so.

        :raises OSError: when the folder of the checkpoint or of the generation cannot be read.
        """
        if state.query.was_checkpoint_taken_over:
            # Do not wait for the query to fail: a query without input writes nothing, and would continue without end.
            self._end_taken_over_run(run, _checkpoint_taken_over_event(run))
            return True
        if run.generation_path is None or not is_generation_closed_or_removed(run.generation_path):
            return False
        if self._try_change_run_state(run, state, QueryStoppingState(query=state.query)):
            self._submit_stop_in_closed_generation(run, state.query)
        return True

    def _submit_failure_report_or_retry(self, run: SupervisedTaskRun, failed_state: QueryFailedState) -> None:
        """Read the cause of the query's failure, and report or retry it (:meth:`_report_or_retry_failure`), on another
        thread. If that thread cannot be started, :class:`TaskDied` is reported without the cause."""

        def report_without_cause(error: AbandonedCallError) -> None:
            died_event = TaskDied(
                task=run.task,
                trace=f"The query failed, and the cause could not be read: {error}",
                holds_checkpoint=True,
                restart_policy=failed_state.query.restart_policy,
            )
            self._try_change_run_state(run, failed_state, QueryFailedState(query=failed_state.query), died_event)

        self._calls.submit(
            REPORT_CALLS,
            f"task {run.task}",
            partial(self._report_or_retry_failure, run, failed_state),
            on_abandon=report_without_cause,
        )

    def _is_connector_below_restart_limit(self, connector: ConnectorName) -> bool:
        """Whether fewer than :data:`CONCURRENT_RESTARTS_OF_CONNECTOR_MAX` queries of ``connector`` are being restarted
        now."""
        with self._lock:
            restarting = [run for run in self._runs if isinstance(run.state, QueryRestartingState)]
        return sum(run.task.connector == connector for run in restarting) < CONCURRENT_RESTARTS_OF_CONNECTOR_MAX

    def _report_or_retry_failure(self, run: SupervisedTaskRun, failed_state: QueryFailedState) -> None:
        """Read the cause of a query's failure, and report or retry it (:meth:`_fail_or_retry_run`). If another start
        has taken over, in the checkpoint or in a sink, end the run."""
        query = failed_state.query
        try:
            query.update_server_reachability()
            reason = query.end_reason()
            is_checkpoint_held = not _is_checkpoint_known_taken_over(query)
        except Exception as error:  # noqa: BLE001 - no caller reads the exceptions of this thread
            reason, is_checkpoint_held = f"The query failed, and reading the cause failed too: {error}", True
        if not is_checkpoint_held:
            self._end_taken_over_run(run, _checkpoint_taken_over_event(run))
            return
        if query.sink_rejection is not None:
            self._end_taken_over_run(run, _taken_over_in_sink_event(run, query.sink_rejection))
            return
        log.warning("Task %s: the query failed: %.500s", run.task, reason)
        died_event = TaskDied(
            task=run.task,
            trace=reason,
            holds_checkpoint=True,
            can_restart=query.permanent_failure is None,
            restart_policy=query.restart_policy,
        )
        with self._lock:
            if run.state is failed_state:
                self._fail_or_retry_run(run, query, died_event)

    def _restart_query(self, run: SupervisedTaskRun, restarting_state: QueryRestartingState) -> None:
        """Start the query of ``run`` again, on the checkpoint that is held. A failure is reported or retried
        (:meth:`_fail_or_retry_run`). If a later start of the task has taken over, in a sink or in the checkpoint, end
        the run."""
        query = restarting_state.query
        try:
            died_event = self._try_start_query(run, query)
        except FencedError as error:
            if run.fence.is_closed:
                log.info("Task %s was stopped while its query was restarted", run.task)
            if run.state is restarting_state:
                self._end_taken_over_run(run, _taken_over_in_sink_event(run, sink_rejection_text(error)))
            return
        if died_event is None:
            self._try_change_run_state(run, restarting_state, QueryRunningState(query=query, progress=None))
        elif died_event.holds_checkpoint:
            with self._lock:
                if run.state is restarting_state:
                    self._fail_or_retry_run(run, query, died_event)
        else:
            self._end_taken_over_run(run, died_event)

    def _end_taken_over_run(self, run: SupervisedTaskRun, event: TaskDied) -> None:
        """End a run whose task another start has taken over, in the checkpoint or in a sink, and report ``event``. Does
        nothing more than closing the fence if the run is being started or stopped, or has ended.

        The event is reported before the query is stopped, because the stop takes time. No thread waits for a running
        commit: that commit cannot harm the task under its new owner, and the other runs must be polled.
        """
        run.fence.close_nowait()
        with self._lock:
            match run.state:
                case (
                    QueryRunningState(query=query)
                    | QueryFailedState(query=query)
                    | QueryWaitingToRestartState(query=query)
                    | QueryRestartingState(query=query)
                ):
                    self._mark_ended_and_remove_run(run)
                    self._events.put(event)
                case QueryStartingState() | QueryStoppingState() | QueryEndedState():
                    return
        self._submit_immediate_query_stop(run, query)

    # -- states; the caller holds the lock, except for _find_stopping_run and _try_change_run_state --------------------

    def _find_run_with_query_not_being_stopped(
        self, task: ConnectorTaskId
    ) -> tuple[SupervisedTaskRun, TaskQuery] | None:
        """The run of ``task`` that has a query and is not being stopped, and its query; None when there is none. The
        query may have failed."""
        runs_and_queries = self._runs_with_query_not_being_stopped()
        return next((run_and_query for run_and_query in runs_and_queries if run_and_query[0].task == task), None)

    def _find_stopping_run(self, task: ConnectorTaskId) -> SupervisedTaskRun | None:
        """The run of ``task`` that is being stopped: because its checkpoint generation is closed, or by another call of
        :meth:`stop`. None when there is none."""
        with self._lock:
            return next(
                (run for run in self._runs if run.task == task and isinstance(run.state, QueryStoppingState)), None
            )

    def _runs_with_query_not_being_stopped(self) -> list[tuple[SupervisedTaskRun, TaskQuery]]:
        """The runs that have a query and are not being stopped, each with its query. The query may have failed."""
        return [
            (run, run.state.query)
            for run in self._runs
            if isinstance(
                run.state, QueryRunningState | QueryFailedState | QueryWaitingToRestartState | QueryRestartingState
            )
        ]

    def _mark_ended_and_remove_runs_not_being_stopped(self) -> list[tuple[SupervisedTaskRun, TaskQuery]]:
        """End the runs of :meth:`_runs_with_query_not_being_stopped`, and return them with their queries. The queries
        and the fences are not changed. The caller holds the lock."""
        runs_and_queries = self._runs_with_query_not_being_stopped()
        for run, _ in runs_and_queries:
            self._mark_ended_and_remove_run(run)
        return runs_and_queries

    def _fail_or_retry_run(self, run: SupervisedTaskRun, query: TaskQuery, died_event: TaskDied) -> None:
        """Change the state of ``run`` to QueryFailedState and report ``died_event``. But if a server cannot be reached,
        and the next restart would be within ``errors.retry.timeout``, change the state to QueryWaitingToRestartState
        and report :class:`TaskRetrying`."""
        if query.is_server_unreachable:
            now_s = time.monotonic()
            outage = run.outage or Outage(began_at_s=now_s, planned_restart_count=0)
            if (restart_at_s := query.timeouts.next_restart_at_s(outage, now_s)) is not None:
                run.outage = Outage(
                    began_at_s=outage.began_at_s, planned_restart_count=outage.planned_restart_count + 1
                )
                run.state = QueryWaitingToRestartState(query=query, restart_due_at_s=restart_at_s)
                log.warning(
                    "Task %s: a server cannot be reached, so the query is started again in %d ms: %.500s",
                    run.task,
                    (restart_at_s - now_s) * 1000,
                    died_event.trace,
                )
                cause_message = died_event.trace.partition("\n\n")[0]
                trace = (
                    "A server cannot be reached; the task is restarted until errors.retry.timeout is over: "
                    f"{cause_message}"
                )
                self._events.put(TaskRetrying(task=run.task, trace=trace))
                return
        run.state = QueryFailedState(query=query)
        self._events.put(died_event)

    def _mark_ended_and_remove_run(self, run: SupervisedTaskRun) -> None:
        """Change the state of ``run`` to QueryEndedState and remove it from the runs. Does nothing if it has ended."""
        if not isinstance(run.state, QueryEndedState):
            run.state = QueryEndedState()
            run.has_ended.set()
            self._runs.remove(run)

    def _try_change_run_state(
        self,
        run: SupervisedTaskRun,
        state_before: QueryState,
        state_after: QueryState,
        event: TaskProgressed | TaskDied | None = None,
    ) -> bool:
        """Change the state of ``run`` from ``state_before`` to ``state_after`` and report ``event``, if given. Returns
        True.

        Returns False, without a change or a report, when the run is no longer in ``state_before``.
        """
        with self._lock:
            if run.state is not state_before:
                return False
            run.state = state_after
            if event is not None:
                self._events.put(event)
            return True


def _wait_for_run_end_then_close_fence(run: SupervisedTaskRun, deadline_s: float) -> None:
    """Wait for the end of a run that another thread stops, until the monotonic second ``deadline_s`` at most. Then
    close its fence: reject further commits and wait, without limit, for its running commit."""
    run.has_ended.wait(max(0, deadline_s - time.monotonic()))
    run.fence.close_and_wait()


def _close_fences_and_wait_with_limit(runs: Sequence[SupervisedTaskRun]) -> None:
    """Reject further commits of ``runs``, and wait for their running commits, :data:`RUNNING_COMMITS_TIMEOUT_MS` at
    most in all. A commit that has not ended then is logged."""
    for run in runs:
        run.fence.close_nowait()
    deadline_s = time.monotonic() + RUNNING_COMMITS_TIMEOUT_MS / 1000
    for run in runs:
        if not run.fence.close_and_wait(timeout_s=max(0, deadline_s - time.monotonic())):
            log.error(
                "Task %s: the commit of its last batch has not ended within %d ms; the next owner replays the batch",
                run.task,
                RUNNING_COMMITS_TIMEOUT_MS,
            )


def _try_record_stop_unless_taken_over(run: SupervisedTaskRun, query: TaskQuery | None = None) -> None:
    """Record in the folder of the checkpoint generation that the query of ``run`` has stopped. Does nothing if the
    generation is not known, or if another start has taken over the checkpoint of ``query``; without ``query`` the
    latter is not checked. A failure is logged."""
    if run.generation_path is None:
        return
    try:
        if query is None or not query.was_checkpoint_taken_over:
            record_task_stopped(run.generation_path, run.task.task)
    except OSError as error:
        log.warning(
            "Task %s: the task has stopped, and this could not be recorded in %s, so a new split of the connector "
            "waits for it until the time limit of tasks' stops is over: %s",
            run.task,
            run.generation_path,
            error,
        )


def _is_checkpoint_known_taken_over(query: TaskQuery) -> bool:
    """Whether another start has taken over the checkpoint of ``query``. False also when this worker cannot read the
    checkpoint's folder."""
    try:
        return query.was_checkpoint_taken_over
    except OSError as error:
        log.debug("Task %s: the checkpoint's folder cannot be read: %s", query.task, error)
        return False


def _checkpoint_taken_over_event(run: SupervisedTaskRun) -> TaskDied:
    """The event which reports that another start of the task, or a re-split, has taken over the checkpoint of
    ``run``."""
    return TaskDied(
        task=run.task,
        trace="Another start of the task, or a new split of the connector, has taken over the checkpoint",
        holds_checkpoint=False,
    )


def _taken_over_in_sink_event(run: SupervisedTaskRun, reason: str) -> TaskDied:
    """The event which reports that a sink rejected a write of ``run``, because a later start of the task has taken over
    in this sink. ``reason``: the text for the user."""
    return TaskDied(task=run.task, trace=reason, holds_checkpoint=False)
