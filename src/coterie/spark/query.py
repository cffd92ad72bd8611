"""The Spark query of a task on a checkpoint that this worker holds: start, batches, stop at a batch boundary, fence."""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from coterie.nouns.errors import CoterieError, UnreachableError, WorldError
from coterie.nouns.jobs import ConnectorTaskId
from coterie.spark.bad_records.guarded import guarded
from coterie.spark.bad_records.hidden import bad_rows, good_rows
from coterie.spark.bad_records.report import Report
from coterie.spark.bad_records.sifted import Sifter, Tally, kept, tally_of
from coterie.spark.checkpoint import HeldCheckpoint, batch_in_flight, is_taken, last_batch
from coterie.spark.failures import raised_sentence, sentence_of, sentence_of_java, trace_of
from coterie.spark.fence import Fence, FencedError
from coterie.spark.patience import BATCH_TIMEOUT, Patience
from coterie.spark.pipeline import Pipeline
from coterie.spark.seams import Batch, ReadAgainError, Source, Staged, TaskLineage
from coterie.spark.transforms import transform

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1
"""Interval at which a thread that waits for a batch checks whether it must continue to wait."""

_OVERTAKEN = "a later start of the task has taken over in the sink"


class TaskQuery:
    """Runs a task on a checkpoint that this worker holds. All methods block: they are called on threads."""

    def __init__(
        self, spark: SparkSession, task: ConnectorTaskId, pipeline: Pipeline, held: HeldCheckpoint, fence: Fence
    ) -> None:
        self.task = task
        self.held = held
        self.fence = fence
        self.refusal: str | None = None
        """The message of a failure that a restart would only repeat; None without such a failure."""
        self.is_server_away = False
        """Whether the last start or batch failed because a server could not be reached."""
        self._batch: tuple[int, float] | None = None
        """The number of the running batch, and the monotonic second in which its batch function began."""
        self._cause: str | None = None
        """The cause of the last batch's failure, in one line. Spark's own message contains only that Python raised an
        exception."""
        self._spark = spark
        self._pipeline = pipeline
        self._lineage = TaskLineage(task=task, lineage=held.lineage)
        self._report = None if pipeline.tolerance is None else Report(task, pipeline.tolerance)
        self._query: StreamingQuery | None = None
        self._starting = threading.Lock()

    def start(self) -> None:
        """Start the query; also after the query has failed.

        :raises ConfigError, PySparkException, Py4JError: when Spark does not start the query.
        :raises FencedError: when the task was stopped while the query started.
        """
        self._begin(processingTime=f"{self._pipeline.trigger_interval_ms} milliseconds")

    def _begin(self, **trigger: Any) -> StreamingQuery:
        """Start the query with one of Spark's triggers."""
        self.is_server_away = False
        try:
            return self._begin_with(trigger)
        except BaseException as error:
            self.is_server_away = isinstance(error, UnreachableError)
            # Close the sinks here: stop() is not called after a start that was fenced.
            self._close_sinks()
            raise

    def _begin_with(self, trigger: dict[str, Any]) -> StreamingQuery:
        pipeline = self._pipeline
        # The query's own thread inherits this property from the thread that starts it. Spark has a pool for each name.
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", str(self.task))
        rows = pipeline.source.read(self._spark, self.held.path, pipeline.sink.rotation)
        if pipeline.tolerance is None:
            rows = pipeline.sink.shape(transform(rows, pipeline.transforms))
        else:
            rows = guarded(rows, pipeline.transforms, pipeline.sink)
        writer = rows.writeStream.foreachBatch(self._effect).option("checkpointLocation", str(self.held.path))
        writer = writer.trigger(**trigger)
        # A start that was stopped or has lost its checkpoint must not remove the batches that the next owner stages.
        if self.fence.closed:
            raise FencedError
        if not self.taken:
            self._pipeline.sink.take_over(self._lineage, self.held.starts)
            if self._pipeline.queue is not None:
                self._pipeline.queue.take_over(self._lineage, self.held.starts)
        with self._starting:
            if self.fence.closed:
                raise FencedError
            self._cause = None
            self._query = writer.start()
            return self._query

    def run_once(self) -> None:
        """Process the input that is available now, and end.

        :raises PySparkException: when a batch fails.
        """
        self._begin(availableNow=True).awaitTermination()

    def finish_batch(self) -> None:
        """Run the batch in flight, and no other.

        :raises FencedError: when the fence was shut, before the batch began or while it ran.
        :raises UnreachableError: when the batch failed because a server cannot be reached.
        :raises WorldError: when the batch failed for another reason, or took longer than ``task.batch.timeout.ms``.
        """
        try:
            query = self._begin(once=True)
            while not query.awaitTermination(LOOK_EVERY_S):
                if self.fence.closed:
                    raise FencedError
                if (overdue := self.overdue()) is not None:
                    raise WorldError(overdue)
        except Exception as error:
            if self.fence.closed:
                raise FencedError from error
            trace = self.trace() if self._query is not None else trace_of(error)
            raise (UnreachableError if self.is_server_away else WorldError)(trace or _OVERTAKEN) from error
        finally:
            self._interrupt()
            self._close_sinks()

    @property
    def patience(self) -> Patience:
        return self._pipeline.patience

    @property
    def source(self) -> Source:
        return self._pipeline.source

    def overdue(self) -> str | None:
        """The message when the running batch exceeds ``task.batch.timeout.ms``, else None; sets :attr:`refusal` too."""
        batch, limit_ms = self._batch, self._pipeline.patience.batch_timeout_ms
        if batch is None or limit_ms is None or time.monotonic() - batch[1] <= limit_ms / 1000:
            return None
        self.refusal = (
            f"Batch {batch[0]} has not ended within {BATCH_TIMEOUT.name}={limit_ms}: a function or an expression of "
            "the pipeline does not return, or a batch is too large. Fix it and restart the task, or raise "
            "task.batch.timeout.ms"
        )
        return self.refusal

    @property
    def taken(self) -> bool:
        return is_taken(self.held.path)

    def active(self) -> bool:
        return self._query is not None and self._query.isActive

    def progress(self) -> tuple[int, int, str] | None:
        """Batch number, number of input rows and timestamp of Spark's last progress; None before the first one."""
        if self._query is None:
            return None
        last = self._query._jsq.lastProgress()
        return None if last is None else (int(last.batchId()), int(last.numInputRows()), str(last.timestamp()))

    @property
    def bad_records(self) -> int:
        """Number of bad records that were left out of committed batches."""
        return 0 if self._report is None else self._report.count

    def trace(self) -> str:
        """The cause with which the query ended, in one line, followed by Spark's stack trace."""
        if self.refusal is not None:
            return self.refusal
        failure = self._query.exception() if self._query is not None else None
        if failure is None:
            return "The query ended without an error"
        assert self._query is not None
        return f"{self._cause or sentence_of_java(self._query._jsq.exception().get())}\n\n{failure}"

    def stop(self, *, grace_ms: int) -> None:
        """Let the last batch commit within ``grace_ms``, else interrupt it. Afterwards this run commits nothing.

        The grace ends early when the fence is shut.
        """
        started = time.monotonic()
        deadline = started + grace_ms / 1000
        try:
            if self._query is not None and grace_ms > 0 and not self.fence.closed:
                _end_at_boundary(self._query, self.held.path, lambda: self._is_over(deadline))
                self._finish_batch(self._query, deadline)
        except (CoterieError, PySparkException, Py4JError, OSError) as error:
            log.debug("%s: the query did not stop at a batch boundary: %s", self.task, error)
        finally:
            # The batch function may wait for a server: closing the sink ends that wait. Or it may wait for Spark to
            # compute the batch's rows: then it is interrupted and awaited.
            self.fence.shut()
            self._close_sinks()
            self._interrupt()
            self._close_sinks()
            self.fence.close()
        planned, committed = (last_batch(self.held.path / name) for name in ("offsets", "commits"))
        state = "at a batch boundary" if planned == committed else f"in batch {planned}, which will be replayed"
        log.info("%s: stopped %s after %d ms", self.task, state, (time.monotonic() - started) * 1000)

    def _is_over(self, deadline: float) -> bool:
        return self.fence.closed or time.monotonic() > deadline

    def _interrupt(self) -> None:
        """Stop the query, also in the middle of a batch, and wait until Spark has stopped it."""
        try:
            # A running start ends first; a later start finds the fence closed.
            with self._starting:
                if self._query is not None:
                    self._query.stop()
        except (PySparkException, Py4JError, OSError) as error:
            # Occurs when the JVM has ended, or ends while a thread waits here.
            log.warning("%s: stopping the query failed; its further commits are rejected: %s", self.task, error)

    def _close_sinks(self) -> None:
        self._pipeline.sink.close()
        if self._pipeline.queue is not None:
            self._pipeline.queue.close()

    def _finish_batch(self, ended: StreamingQuery, deadline: float) -> None:
        """Run the batch that Spark planned while it was being stopped, if there is one, and no other batch: the next
        owner of the task then has no batch to replay."""
        if self._is_over(deadline) or ended.exception() is not None or self.taken:
            return
        if batch_in_flight(self.held.path) is None:
            return
        log.debug("%s: running the batch that Spark planned during the stop", self.task)
        ended.stop()
        query = self._begin(once=True)
        while not self._is_over(deadline) and not query.awaitTermination(LOOK_EVERY_S):
            pass

    def _effect(self, batch: DataFrame, batch_id: int) -> None:
        """The function of foreachBatch: check the plan, stage the batch, check the read rows, commit in the sink."""
        self._batch = (batch_id, time.monotonic())
        try:
            self._pipeline.source.check_plan(self.held.path, batch_id)
            if self.fence.closed:
                raise FencedError
            is_small = self._pipeline.source.is_small(batch.sparkSession, self.held.path, batch_id)
            whole = Batch(lineage=self._lineage, batch_id=batch_id, rows=batch, is_small=is_small)
            with ExitStack() as stack:
                in_order, sifted = self._stage(whole, stack)
                self._pipeline.source.check_read(batch.sparkSession, self.held.path, batch_id)
                with self.fence.passing():
                    for staged in in_order:
                        staged.put_in_place()
                if self._report is not None:
                    self._report.add(sifted())
        except UnreachableError as error:
            self._cause = str(error)
            self.is_server_away = True
            raise
        except WorldError as error:
            self.refusal = str(error)
            raise
        except ReadAgainError as error:
            self._cause = str(error)
            raise
        except FencedError:
            log.info(
                "%s: batch %d was not committed: the task was stopped here or another worker has taken it over",
                self.task,
                batch_id,
            )
            raise
        except Exception as error:
            self.refusal = raised_sentence(error)
            self._cause = f"Batch {batch_id} failed: {sentence_of(error)}"
            raise
        finally:
            self._batch = None

    def _stage(self, whole: Batch, stack: ExitStack) -> tuple[list[Staged], Callable[[], Tally]]:
        """The staged data in the order of their commits, and a function that returns the bad-row summary afterwards."""
        sink, tolerance = self._pipeline.sink, self._pipeline.tolerance
        if tolerance is None:
            return [self._staged(stack, sink.stage(whole))], Tally
        if isinstance(tolerance.letters, sink.holds):
            sifter = Sifter(whole.rows, is_small=whole.is_small)
            batch = replace(whole, rows=good_rows(whole.rows), sifter=sifter)
            return [self._staged(stack, sink.stage(batch))], lambda: sifter.tally
        if self._pipeline.queue is None and not tolerance.logs:
            # Only the good rows are evaluated: no second evaluation exists that could give other rows.
            return [self._staged(stack, sink.stage(replace(whole, rows=good_rows(whole.rows))))], Tally
        rows = stack.enter_context(kept(whole.rows))
        tally = tally_of(rows)
        in_order: list[Staged] = []
        if self._pipeline.queue is not None and tally.count:
            in_order.append(self._staged(stack, self._pipeline.queue.stage(replace(whole, rows=bad_rows(rows)))))
        in_order.append(self._staged(stack, sink.stage(replace(whole, rows=good_rows(rows)))))
        return in_order, lambda: tally

    @staticmethod
    def _staged(stack: ExitStack, staged: Staged) -> Staged:
        stack.callback(staged.drop)
        return staged


def _end_at_boundary(query: StreamingQuery, checkpoint: Path, is_over: Callable[[], bool]) -> None:
    """Prevent further batches and wait for the running one until ``is_over``.

    Uses Spark's internals: Spark's loop over batches continues while its state is not TERMINATED.
    """
    inner: Any = query._jsq
    module = inner.getClass().getClassLoader().loadClass("org.apache.spark.sql.execution.streaming.runtime.TERMINATED$")
    terminated = module.getField("MODULE$").get(None)
    thread = inner.streamingQuery().queryExecutionThread()
    # A batch that is being planned would be dropped after the planning: wait until it runs, or until there is none.
    while (status := inner.status()).isTriggerActive() and status.message() != "Processing new data":
        if is_over() or not thread.isAlive():
            return
        time.sleep(0.002)
    inner.streamingQuery().state().set(terminated)
    quiet = 0
    # The loop ends at once, or sleeps until its next trigger. The trigger can read as inactive in the middle of a
    # batch: accept it only after two equal reads without a batch in flight.
    while quiet < 2 and thread.isAlive() and not is_over():
        time.sleep(0.02)
        idle = not inner.status().isTriggerActive() and batch_in_flight(checkpoint) is None
        quiet = quiet + 1 if idle else 0
