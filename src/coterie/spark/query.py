"""The Spark query of a task on a checkpoint that this worker holds: start, batches, stop at a batch boundary, fence."""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from coterie.config.secrets import hide_secrets
from coterie.herder.restart_policy import RestartPolicy
from coterie.nouns.errors import CoterieError, UnreachableError, WorldError
from coterie.nouns.jobs import ConnectorTaskId
from coterie.spark.bad_records.error_columns import bad_rows, good_rows
from coterie.spark.bad_records.report import BadRecordLogReporter
from coterie.spark.bad_records.separator import BadRowSeparator, BadRowSummary, rows_evaluated_once, summarize_bad_rows
from coterie.spark.bad_records.tolerant_transforms import apply_transforms_tolerantly
from coterie.spark.batch_execution import coalesce_if_above_default_parallelism
from coterie.spark.checkpoint import (
    HeldCheckpoint,
    find_batch_id_in_flight,
    is_checkpoint_taken_over_or_absent,
    last_batch_id_in_log,
)
from coterie.spark.failures import (
    error_message,
    hide_secrets_in_exceptions,
    java_error_message,
    java_exception_of,
    message_passed_to_raise_error,
    message_with_trace_unless_coterie_error,
)
from coterie.spark.fence import Fence, FencedError
from coterie.spark.pipeline import Pipeline
from coterie.spark.plugin_calls import clean_up_stage_even_if_abandoned, plugin_stage
from coterie.spark.seams import Batch, BatchTooLargeError, Source, StagedBatch, TaskCheckpointLineage
from coterie.spark.sources.kafka_client import may_kafka_retry_succeed
from coterie.spark.task_timeouts import BATCH_TIMEOUT_KEY, TaskTimeoutsAndRestarts
from coterie.spark.transforms import apply_transforms

log = logging.getLogger(__name__)

POLL_INTERVAL_S = 1
"""Interval at which a thread that waits for a batch checks whether it must continue to wait."""


class TakenOverInSinkError(WorldError):
    """The sink rejects a start or a batch of the task because of a later start of the task, while the fence of the run
    is open."""


class TaskQuery:
    """Runs a task on a checkpoint that this worker holds. All methods may block: they are called on threads."""

    def __init__(
        self,
        spark: SparkSession,
        task: ConnectorTaskId,
        pipeline: Pipeline,
        held_checkpoint: HeldCheckpoint,
        fence: Fence,
    ) -> None:
        self.task = task
        self.held_checkpoint = held_checkpoint
        self.fence = fence
        self.permanent_failure: str | None = None
        """The message of a failure that a restart would only repeat; None without such a failure."""
        self.is_server_unreachable = False
        """Whether the last start or batch failed because a server could not be reached. After a failure between
        batches :meth:`update_server_reachability` sets it."""
        self.sink_rejection: str | None = None
        """Why a sink has rejected the last batch with a FencedError although the run's own fence was open; None if it
        has not."""
        self._needs_restart = False
        """Whether the last batch was ended in order to start the query with another limit (BatchTooLargeError)."""
        self._running_batch_and_start_s: tuple[int, float] | None = None
        """The number of the running batch, and the monotonic second in which it began; None between batches."""
        self._last_failure: str | None = None
        """Why the last batch failed, in one line; None if no batch has failed since the last start. Spark's own message
        contains only that Python raised an exception."""
        self._spark = spark
        self._pipeline = pipeline
        self._used_topics = pipeline.used_topics
        self._lineage = TaskCheckpointLineage(task=task, lineage_id=held_checkpoint.lineage_id)
        self._bad_record_reporter = (
            None if pipeline.bad_record_settings is None else BadRecordLogReporter(task, pipeline.bad_record_settings)
        )
        self._query: StreamingQuery | None = None
        self._start_lock = threading.Lock()
        self._is_between_batches = threading.Event()
        """Set while no batch is being processed."""
        self._is_between_batches.set()

    @property
    def restart_policy(self) -> RestartPolicy:
        """The policy for the restarts of the query after its last failure: that of the task's config. But after a batch
        that was too large (BatchTooLargeError) one restart is allowed also with ``errors.restart.max=0``."""
        policy = self.timeouts.restart_policy
        return replace(policy, restarts_max=policy.restarts_max or 1) if self._needs_restart else policy

    def start(self) -> None:
        """Start the query, also again after it has failed: take over in the sinks (:meth:`Sink.take_over`), then let
        Spark run batches. Returns when the query runs.

        If another start has taken over the checkpoint, nothing is taken over in the sinks, and the query is started all
        the same: it fails at its next write to the checkpoint.

        :raises ConfigError: when a value is not valid or does not fit the columns; the error names the key.
        :raises FencedError: when the fence was closed, or a later start of the task has taken over in a sink.
        :raises WorldError: when the task cannot resume from the checkpoint, or a sink cannot be reached or used.
        :raises OSError: when a file or folder of the checkpoint or of a sink cannot be read or written.
        :raises PySparkException, Py4JError: when Spark does not start the query.
        """
        self._start_closing_sinks_on_error(processingTime=f"{self._pipeline.trigger_interval_ms} milliseconds")

    def _start_closing_sinks_on_error(self, **trigger: Any) -> StreamingQuery:
        """Start the query. ``trigger``: the keyword argument for Spark's ``DataStreamWriter.trigger``, which determines
        when Spark runs batches. Close the sinks if the start fails. Raises the exceptions of :meth:`start`."""
        self.is_server_unreachable = self._needs_restart = False
        self.sink_rejection = None
        try:
            return self._start_with_trigger(trigger)
        except BaseException as error:
            self.is_server_unreachable = isinstance(error, UnreachableError)
            # Close the sinks here: stop() is not called after a start that was fenced.
            self._close_sinks()
            raise

    def _start_with_trigger(self, trigger: dict[str, Any]) -> StreamingQuery:
        """Start the query with the trigger ``trigger``, as :meth:`_start_closing_sinks_on_error`; but do not close the
        sinks if the start fails. Raises the exceptions of :meth:`start`."""
        pipeline = self._pipeline
        # The query's own thread inherits this property from the thread that starts it. Spark has a pool for each name.
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", str(self.task))
        with plugin_stage("read"):
            rows = pipeline.source.read(self._spark, self.held_checkpoint.path, pipeline.sink.rotation)
        with plugin_stage("transforms"):
            if pipeline.bad_record_settings is None:
                rows = apply_transforms(rows, pipeline.transforms)
                with plugin_stage("to_sink_columns"):
                    rows = pipeline.sink.to_sink_columns(rows)
            else:
                rows = apply_transforms_tolerantly(rows, pipeline.transforms, pipeline.sink)
        writer = rows.writeStream.foreachBatch(self._process_batch).option(
            "checkpointLocation", str(self.held_checkpoint.path)
        )
        writer = writer.trigger(**trigger)
        # A start that was stopped or has lost its checkpoint must not remove the batches that the next owner stages.
        if self.fence.is_closed:
            raise FencedError
        if not self.was_checkpoint_taken_over:
            with plugin_stage("take_over"):
                self._pipeline.sink.take_over(self._lineage, self.held_checkpoint.task_start_number)
            if self._pipeline.dead_letter_queue is not None:
                with plugin_stage("take_over"):
                    self._pipeline.dead_letter_queue.take_over(self._lineage, self.held_checkpoint.task_start_number)
        with self._start_lock:
            if self.fence.is_closed:
                raise FencedError
            self._last_failure = None
            with plugin_stage("start"):
                self._query = writer.start()
            return self._query

    def run_available_input_until_end(self, *, timeout_s: int) -> None:
        """Process the input that is available now, in one or more batches, and wait until the query has ended. After an
        error the query is stopped: it creates no further file.

        :raises WorldError: when the query has not ended within ``timeout_s`` seconds.
        :raises PySparkException: when a batch fails. Also raises the exceptions of :meth:`start`.
        """
        try:
            if not self._start_closing_sinks_on_error(availableNow=True).awaitTermination(timeout_s):
                raise WorldError(f"the query of {self.task} has not ended within {timeout_s} s")
        except BaseException:
            self.stop(grace_ms=0)
            raise

    def run_batch_in_flight(self) -> None:
        """Run the batch in flight (planned and not committed), which must exist, and no other batch. Then close the
        sinks.

        :raises FencedError: when the fence was closed, before the batch began or while it ran.
        :raises UnreachableError: when the batch failed because a server cannot be reached.
        :raises TakenOverInSinkError: when a later start of the task has taken over in the sink.
        :raises WorldError: when the batch failed for another reason, or took longer than ``task.batch.timeout.ms``.
        """
        try:
            query = self._start_closing_sinks_on_error(once=True)
            while not query.awaitTermination(POLL_INTERVAL_S):
                if self.fence.is_closed:
                    raise FencedError
                if (timeout_message := self.mark_failed_and_describe_if_batch_timed_out()) is not None:
                    raise WorldError(timeout_message)
        except Exception as error:
            if self.fence.is_closed:
                raise FencedError from error
            rejection = sink_rejection_text(error) if isinstance(error, FencedError) else self.sink_rejection
            if rejection is not None:
                raise TakenOverInSinkError(rejection) from error
            self.update_server_reachability()
            reason = self.end_reason() if self._query is not None else message_with_trace_unless_coterie_error(error)
            raise (UnreachableError if self.is_server_unreachable else WorldError)(reason) from error
        finally:
            with clean_up_stage_even_if_abandoned("stop"):
                self._stop_spark_query()
            self._close_sinks()

    def close_sinks_and_replace_pipeline(self, pipeline: Pipeline) -> None:
        """Close the sinks, and use ``pipeline``, the task's pipeline with newly resolved references, from the next
        start on."""
        self._close_sinks()
        self._pipeline = pipeline
        self._used_topics = pipeline.used_topics

    @property
    def timeouts(self) -> TaskTimeoutsAndRestarts:
        return self._pipeline.timeouts

    @property
    def source(self) -> Source:
        return self._pipeline.source

    def mark_failed_and_describe_if_batch_timed_out(self) -> str | None:
        """A message if the running batch has taken longer than ``task.batch.timeout.ms``, else None. The message is
        also assigned to :attr:`permanent_failure`. The query continues to run: the caller must stop it."""
        batch_and_start_s, limit_ms = self._running_batch_and_start_s, self._pipeline.timeouts.batch_timeout_ms
        if batch_and_start_s is None or limit_ms is None or time.monotonic() - batch_and_start_s[1] <= limit_ms / 1000:
            return None
        self.permanent_failure = (
            f"Batch {batch_and_start_s[0]} has not ended within {BATCH_TIMEOUT_KEY.name}={limit_ms}. A function of a "
            "user may not return, a server may be slow, or the batch may be too large: remove the cause and restart "
            "the task, or raise task.batch.timeout.ms"
        )
        return self.permanent_failure

    @property
    def was_checkpoint_taken_over(self) -> bool:
        """Whether another start has taken over the checkpoint; tested in the file system at each call."""
        return is_checkpoint_taken_over_or_absent(self.held_checkpoint.path)

    def is_active(self) -> bool:
        """Whether Spark runs the query: it was started, and has neither failed nor been stopped."""
        return self._query is not None and self._query.isActive

    @property
    def used_topics(self) -> frozenset[str]:
        """The topics of Kafka that the task reads or writes. Calls no code of a plug-in: it is read by the thread that
        polls all tasks."""
        return self._used_topics

    def last_batch_id_rows_and_time(self) -> tuple[int, int, str] | None:
        """Spark's last progress report: the batch number, the number of input rows, and the time at which Spark began
        to look for the batch, as text; None before the first report."""
        if self._query is None:
            return None
        spark_progress = self._query._jsq.lastProgress()
        return (
            None
            if spark_progress is None
            else (int(spark_progress.batchId()), int(spark_progress.numInputRows()), str(spark_progress.timestamp()))
        )

    @property
    def bad_record_count(self) -> int:
        """Number of bad records in the batches that this object has committed: they were not written as good rows. 0 if
        the first bad record fails the task (``errors.tolerance=none``)."""
        return 0 if self._bad_record_reporter is None else self._bad_record_reporter.bad_record_count

    def end_reason(self) -> str:
        """Why the query, which must have ended, has ended: the cause in one line, followed by Spark's stack trace; or
        only :attr:`permanent_failure`, if that is set; or that the query ended without an error."""
        if self.permanent_failure is not None:
            return hide_secrets(self.permanent_failure)
        spark_failure = self._query.exception() if self._query is not None else None
        if spark_failure is None:
            return "The query ended without an error"
        assert self._query is not None
        cause = self._last_failure or java_error_message(self._query._jsq.exception().get())
        return hide_secrets(f"{cause}\n\n{spark_failure}")

    def update_server_reachability(self) -> None:
        """Set :attr:`is_server_unreachable` if the query has ended between batches because a server does not respond,
        according to the query's exception. No request is sent.

        Spark fails a query itself, without a failed batch, when its source cannot find the next batch."""
        if self.permanent_failure is None and self._last_failure is None and self._query is not None:
            spark_failure = self._query._jsq.exception()
            if spark_failure.isDefined():
                self.is_server_unreachable = may_kafka_retry_succeed(spark_failure.get())

    def stop(self, *, grace_ms: int) -> None:
        """Stop the query and close its fence: afterwards this run commits nothing. The running batch, and a batch that
        Spark has already planned, may still be committed within ``grace_ms``; then they are interrupted.

        The grace ends early when the fence is closed. Errors of Spark and of the sink are logged and not raised. Does
        not return before the function that processes a batch has returned, which code of a user can prevent without
        limit.
        """
        started_at_s = time.monotonic()
        deadline_s = started_at_s + grace_ms / 1000
        try:
            if self._query is not None and grace_ms > 0 and not self.fence.is_closed:
                _try_stop_at_batch_boundary(
                    self._query, self.held_checkpoint.path, lambda: self._must_interrupt(deadline_s)
                )
                self._run_last_planned_batch(self._query, deadline_s)
        except (CoterieError, PySparkException, Py4JError, OSError) as error:
            log.debug("Task %s: the query did not stop at a batch boundary: %s", self.task, error)
        finally:
            # The batch function may wait for a server: closing the sink ends that wait. Or it may wait for Spark to
            # compute the batch's rows: then it is interrupted and awaited.
            self.fence.close_nowait()
            self._close_sinks()
            self._stop_spark_query()
            self._close_sinks()
            self.fence.close_and_wait()
            self._is_between_batches.wait()
        log.info(
            "Task %s: the query has stopped %s; the stop took %d ms",
            self.task,
            self._stopping_point_text(),
            (time.monotonic() - started_at_s) * 1000,
        )

    def _stopping_point_text(self) -> str:
        """Where the query has stopped, as the end of the clause "the query has stopped ..."."""
        planned, committed = (last_batch_id_in_log(self.held_checkpoint.path / name) for name in ("offsets", "commits"))
        if (
            self.was_checkpoint_taken_over
        ):  # Then neither log could be read; checked afterwards, because it may be lost now.
            return "without its checkpoint, which another start has taken over"
        return "at a batch boundary" if planned == committed else f"in batch {planned}, which will be replayed"

    def _must_interrupt(self, deadline_s: float) -> bool:
        """Whether the fence is closed, or the time is past ``deadline_s``, a monotonic second."""
        return self.fence.is_closed or time.monotonic() > deadline_s

    def _stop_spark_query(self) -> None:
        """Stop the query, also in the middle of a batch, and wait until Spark has stopped it. A failure is logged."""
        try:
            # A running start ends first; a later start finds the fence closed.
            with self._start_lock:
                if self._query is not None:
                    self._query.stop()
        except (PySparkException, Py4JError, OSError) as error:
            # Occurs when the JVM has ended, or ends while a thread waits here.
            log.warning("Task %s: stopping the query failed; its further commits are rejected: %s", self.task, error)

    def _close_sinks(self) -> None:
        """Close the sink and the dead letter queue. Exceptions, which neither may raise, are logged."""
        with clean_up_stage_even_if_abandoned("close"):
            for sink in (self._pipeline.sink, self._pipeline.dead_letter_queue):
                if sink is None:
                    continue
                try:
                    sink.close()
                except Exception as error:  # noqa: BLE001 - the query must be stopped all the same
                    log.warning(
                        "Task %s: %s was not closed, because its close raised an exception, which is a fault of this "
                        "class: %s",
                        self.task, type(sink).__name__, error_message(error),
                    )  # fmt: skip

    def _run_last_planned_batch(self, ended_query: StreamingQuery, deadline_s: float) -> None:
        """Run the batch that Spark planned while ``ended_query`` was being stopped, if there is such a batch, and no
        other batch: the next owner of the task then has no batch to replay.

        Returns when that batch has ended or failed, when the fence is closed, or at ``deadline_s`` (the end of the
        stop's grace, a second of the monotonic clock). In the last two cases the batch may still run, and the caller
        stops it. A failure of the batch is not raised; an exception of :meth:`start` is.

        Does nothing if ``ended_query`` has failed, the checkpoint was taken over, the fence is closed, or
        ``deadline_s`` is past.
        """
        if self._must_interrupt(deadline_s) or ended_query.exception() is not None or self.was_checkpoint_taken_over:
            return
        if find_batch_id_in_flight(self.held_checkpoint.path) is None:
            return
        log.debug("Task %s: running the batch that Spark planned during the stop", self.task)
        ended_query.stop()
        query = self._start_closing_sinks_on_error(once=True)
        while not self._must_interrupt(deadline_s) and not query.awaitTermination(POLL_INTERVAL_S):
            pass

    def _process_batch(self, batch: DataFrame, batch_id: int) -> None:
        """The function of foreachBatch: process one batch (:meth:`_stage_and_commit`). Spark shows the exceptions that
        it raises in its UI and event log, so they contain no value of a reference to a secret."""
        with hide_secrets_in_exceptions():
            self._stage_and_commit(batch, batch_id)

    def _stage_and_commit(self, batch: DataFrame, batch_id: int) -> None:
        """Process one batch: the source checks the planned batch, the sinks stage the rows, the source checks that the
        rows read are the planned ones, and the staged rows are committed unless the fence is closed.

        Every exception makes the query fail. Before that, the cause is kept for :meth:`end_reason` and for the
        supervisor; a FencedError after the run's fence was closed is only logged.
        """
        self._running_batch_and_start_s = (batch_id, time.monotonic())
        self._is_between_batches.clear()
        try:
            self._pipeline.source.check_before_read(self.held_checkpoint.path, batch_id)
            if self.fence.is_closed:
                raise FencedError
            is_small = self._pipeline.source.is_batch_small(batch.sparkSession, self.held_checkpoint.path, batch_id)
            rows = (
                coalesce_if_above_default_parallelism(
                    batch, source_partition_count_of_task=self._pipeline.source_partition_count_of_task
                )
                if is_small
                else batch
            )
            whole_batch = Batch(
                task_lineage=self._lineage,
                batch_id=batch_id,
                rows=rows,
                is_small=is_small,
                compute_has_bounded_spark_partitions=partial(
                    self._pipeline.source.has_bounded_spark_partitions,
                    batch.sparkSession,
                    self.held_checkpoint.path,
                    batch_id,
                ),
            )
            with ExitStack() as clean_up_stack:
                staged_batches, get_summary = self._stage_batch(whole_batch, clean_up_stack)
                self._pipeline.source.check_after_read(batch.sparkSession, self.held_checkpoint.path, batch_id)
                with self.fence.commit_or_raise_if_closed():
                    for staged_batch in staged_batches:
                        staged_batch.commit()
                if self._bad_record_reporter is not None:
                    self._bad_record_reporter.count_and_log_when_due(get_summary())
        except UnreachableError as error:
            self._last_failure = str(error)
            self.is_server_unreachable = True
            raise
        except WorldError as error:
            self.permanent_failure = str(error)
            raise
        except BatchTooLargeError as error:
            self._last_failure = str(error)
            self._needs_restart = True
            raise
        except FencedError as error:
            log.info(
                "Task %s: batch %d was not committed: the task was stopped here, or another worker has taken over "
                "the task",
                self.task,
                batch_id,
            )
            if not self.fence.is_closed:
                self.sink_rejection = sink_rejection_text(error)
            raise
        except Exception as error:
            self.permanent_failure = message_passed_to_raise_error(error)
            self._last_failure = f"Batch {batch_id} failed: {error_message(error)}"
            self.is_server_unreachable = may_kafka_retry_succeed(java_exception_of(error))
            raise
        finally:
            self._running_batch_and_start_s = None
            self._is_between_batches.set()

    def _stage_batch(
        self, whole_batch: Batch, clean_up_stack: ExitStack
    ) -> tuple[list[StagedBatch], Callable[[], BadRowSummary]]:
        """Stage the good rows of ``whole_batch``, and its bad rows if they are written. The staged data is removed when
        ``clean_up_stack`` ends.

        Returns the staged batches in the order in which they must be committed, and a function that returns the number
        of bad rows and the first of them; it is called after the commits.
        """
        sink, tolerance = self._pipeline.sink, self._pipeline.bad_record_settings
        if tolerance is None:
            return [self._register_clean_up(clean_up_stack, sink.stage(whole_batch))], BadRowSummary
        if isinstance(tolerance.dead_letter_destination, sink.atomic_dead_letter_destinations):
            separator = BadRowSeparator(
                whole_batch.rows,
                is_small=whole_batch.is_small,
                has_bounded_spark_partitions=lambda: whole_batch.has_bounded_spark_partitions,
            )
            batch = replace(whole_batch, rows=good_rows(whole_batch.rows), bad_row_separator_for_atomic_sink=separator)
            return [
                self._register_clean_up(clean_up_stack, sink.stage(batch))
            ], lambda: separator.bad_row_summary_so_far
        if self._pipeline.dead_letter_queue is None and not tolerance.logs_bad_record_counts:
            # Only the good rows are evaluated: no second evaluation exists that could give other rows.
            return [
                self._register_clean_up(
                    clean_up_stack, sink.stage(replace(whole_batch, rows=good_rows(whole_batch.rows)))
                )
            ], BadRowSummary
        rows = clean_up_stack.enter_context(rows_evaluated_once(whole_batch.rows))
        summary = summarize_bad_rows(rows)
        staged_batches: list[StagedBatch] = []
        if self._pipeline.dead_letter_queue is not None and summary.count:
            staged_batches.append(
                self._register_clean_up(
                    clean_up_stack, self._pipeline.dead_letter_queue.stage(replace(whole_batch, rows=bad_rows(rows)))
                )
            )
        staged_batches.append(
            self._register_clean_up(clean_up_stack, sink.stage(replace(whole_batch, rows=good_rows(rows))))
        )
        return staged_batches, lambda: summary

    @staticmethod
    def _register_clean_up(clean_up_stack: ExitStack, staged_batch: StagedBatch) -> StagedBatch:
        """Register :meth:`StagedBatch.clean_up` of ``staged_batch`` with ``clean_up_stack``, which calls it at its end;
        return ``staged_batch``."""
        clean_up_stack.callback(staged_batch.clean_up)
        return staged_batch


def sink_rejection_text(error: FencedError) -> str:
    """Why a sink has rejected a start or a batch with ``error`` although the run's own fence is open: the message of
    ``error``; if it has none, that a later start has taken over."""
    return str(error) or "A later start of the task has taken over in the sink"


def _try_stop_at_batch_boundary(query: StreamingQuery, checkpoint: Path, is_grace_over: Callable[[], bool]) -> None:
    """Prevent further batches, and wait until the running batch has ended or ``is_grace_over()`` is True. Spark may
    plan one more batch and not run it. If ``is_grace_over()`` becomes True while Spark plans a batch, return at once:
    the query then continues with this batch and further ones until the caller stops it.

    Uses Spark's internals: Spark's loop over batches continues while its state is not TERMINATED.
    """
    java_query: Any = query._jsq
    terminated_class = (
        java_query.getClass().getClassLoader().loadClass("org.apache.spark.sql.execution.streaming.runtime.TERMINATED$")
    )
    terminated = terminated_class.getField("MODULE$").get(None)
    thread = java_query.streamingQuery().queryExecutionThread()
    # A batch that is being planned would be dropped after the planning: wait until it runs, or until there is none.
    while (status := java_query.status()).isTriggerActive() and status.message() != "Processing new data":
        if is_grace_over() or not thread.isAlive():
            return
        time.sleep(0.002)
    java_query.streamingQuery().state().set(terminated)
    idle_reads = 0
    # The loop ends at once, or sleeps until its next trigger. The trigger can read as inactive in the middle of a
    # batch: accept it only after two equal reads without a batch in flight.
    while idle_reads < 2 and thread.isAlive() and not is_grace_over():
        time.sleep(0.02)
        is_idle = not java_query.status().isTriggerActive() and find_batch_id_in_flight(checkpoint) is None
        idle_reads = idle_reads + 1 if is_idle else 0
