"""One run of one task: its checkpoint taken over, its query started, stopped at a batch boundary, or fenced off."""

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
"""How often a thread that waits for a batch looks whether it has to go on waiting."""

_OVERTAKEN = "a later start of the task has taken over in the sink"


class TaskQuery:
    """Runs a task on a checkpoint that it holds. All methods block: they are called on threads."""

    def __init__(
        self, spark: SparkSession, task: ConnectorTaskId, pipeline: Pipeline, held: HeldCheckpoint, fence: Fence
    ) -> None:
        self.task = task
        self.held = held
        self.fence = fence
        self.refusal: str | None = None
        """Why a batch was refused; starting again would refuse it again."""
        self.is_server_away = False
        """Whether the last start or batch failed because a server could not be reached."""
        self._batch: tuple[int, float] | None = None
        """The number of the batch that is written, and the monotonic second in which that began."""
        self._cause: str | None = None
        """What the last batch failed of, in one line; Spark knows of it only that Python raised something."""
        self._spark = spark
        self._pipeline = pipeline
        self._lineage = TaskLineage(task=task, lineage=held.lineage)
        self._report = None if pipeline.tolerance is None else Report(task, pipeline.tolerance)
        self._query: StreamingQuery | None = None
        self._starting = threading.Lock()

    def start(self) -> None:
        """Start the query, also after it has died.

        :raises ConfigError, PySparkException, Py4JError: when Spark does not start it.
        :raises FencedError: when the task was stopped meanwhile.
        """
        self._begin(processingTime=f"{self._pipeline.trigger_interval_ms} milliseconds")

    def _begin(self, **trigger: Any) -> StreamingQuery:
        """Start the query with one of Spark's triggers."""
        self.is_server_away = False
        try:
            return self._begin_with(trigger)
        except BaseException as error:
            self.is_server_away = isinstance(error, UnreachableError)
            # No stop follows a start that was fenced.
            self._close_sinks()
            raise

    def _begin_with(self, trigger: dict[str, Any]) -> StreamingQuery:
        pipeline = self._pipeline
        # The query's own thread takes this over from the thread that starts it. Spark keeps a pool for each name.
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", str(self.task))
        rows = pipeline.source.read(self._spark, self.held.path, pipeline.sink.rotation)
        if pipeline.tolerance is None:
            rows = pipeline.sink.shape(transform(rows, pipeline.transforms))
        else:
            rows = guarded(rows, pipeline.transforms, pipeline.sink)
        writer = rows.writeStream.foreachBatch(self._effect).option("checkpointLocation", str(self.held.path))
        writer = writer.trigger(**trigger)
        # A start that was stopped or has lost its checkpoint meanwhile must not sweep away what the next owner stages.
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
        """Process what is there now and end.

        :raises PySparkException: when a batch fails.
        """
        self._begin(availableNow=True).awaitTermination()

    def finish_batch(self) -> None:
        """Run the batch in flight, and no other.

        :raises FencedError: when the fence was shut, before the batch began or while it ran.
        :raises UnreachableError: when the batch failed because a server is away.
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
        """Why the batch that is written fails the task, when it takes longer than it may."""
        batch, limit_ms = self._batch, self._pipeline.patience.batch_timeout_ms
        if batch is None or limit_ms is None or time.monotonic() - batch[1] <= limit_ms / 1000:
            return None
        self.refusal = (
            f"Batch {batch[0]} has not ended within {BATCH_TIMEOUT.name}={limit_ms}: a function or an expression of "
            "the pipeline does not return, or a batch is too large. Mend it and restart the task, or raise the limit"
        )
        return self.refusal

    @property
    def taken(self) -> bool:
        return is_taken(self.held.path)

    def active(self) -> bool:
        return self._query is not None and self._query.isActive

    def progress(self) -> tuple[int, int, str] | None:
        """Batch number, rows read and moment of the last look for input; None before the first."""
        if self._query is None:
            return None
        last = self._query._jsq.lastProgress()
        return None if last is None else (int(last.batchId()), int(last.numInputRows()), str(last.timestamp()))

    @property
    def bad_records(self) -> int:
        """How many bad records were left out in batches that were put in place."""
        return 0 if self._report is None else self._report.count

    def trace(self) -> str:
        """What the query died of."""
        if self.refusal is not None:
            return self.refusal
        failure = self._query.exception() if self._query is not None else None
        if failure is None:
            return "The query ended without an error"
        assert self._query is not None
        return f"{self._cause or sentence_of_java(self._query._jsq.exception().get())}\n\n{failure}"

    def stop(self, *, grace_ms: int) -> None:
        """Let the last batch commit within ``grace_ms``, else interrupt it. No effect comes from here afterwards.

        The grace is over when the fence is shut.
        """
        started = time.monotonic()
        deadline = started + grace_ms / 1000
        try:
            if self._query is not None and grace_ms > 0 and not self.fence.closed:
                _end_at_boundary(self._query, self.held.path, lambda: self._is_over(deadline))
                self._finish_batch(self._query, deadline)
        except (CoterieError, PySparkException, Py4JError, OSError) as error:
            log.debug("%s: no graceful end: %s", self.task, error)
        finally:
            # An effect may wait for a server: closing the sink ends that wait. Or it computes the batch's rows in
            # Spark, and waits for them: it is interrupted, then waited for.
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
        """End the query, also in the middle of a batch, and wait until Spark has ended it."""
        try:
            # A start that is under way ends first; one that comes later finds the fence closed.
            with self._starting:
                if self._query is not None:
                    self._query.stop()
        except (PySparkException, Py4JError, OSError) as error:
            # So it is when the JVM is gone, or is ended while somebody still waits here.
            log.warning("%s: the query did not stop in order; it is fenced: %s", self.task, error)

    def _close_sinks(self) -> None:
        self._pipeline.sink.close()
        if self._pipeline.queue is not None:
            self._pipeline.queue.close()

    def _finish_batch(self, ended: StreamingQuery, deadline: float) -> None:
        """Spark may have planned one more batch in the moment in which it was told to end. Run that one, and no other:
        whoever has the task next finds nothing to replay."""
        if self._is_over(deadline) or ended.exception() is not None or self.taken:
            return
        if batch_in_flight(self.held.path) is None:
            return
        log.debug("%s: one more batch was planned, and is run", self.task)
        ended.stop()
        query = self._begin(once=True)
        while not self._is_over(deadline) and not query.awaitTermination(LOOK_EVERY_S):
            pass

    def _effect(self, batch: DataFrame, batch_id: int) -> None:
        """What foreachBatch calls: check, write aside, check again, put in place."""
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
            log.info("%s: batch %d was not put in place: the task is no longer ours", self.task, batch_id)
            raise
        except Exception as error:
            self.refusal = raised_sentence(error)
            self._cause = f"Batch {batch_id} failed: {sentence_of(error)}"
            raise
        finally:
            self._batch = None

    def _stage(self, whole: Batch, stack: ExitStack) -> tuple[list[Staged], Callable[[], Tally]]:
        """What is to be put in place, in this order, and what tells of the bad rows afterwards."""
        sink, tolerance = self._pipeline.sink, self._pipeline.tolerance
        if tolerance is None:
            return [self._staged(stack, sink.stage(whole))], Tally
        if isinstance(tolerance.letters, sink.holds):
            sifter = Sifter(whole.rows, is_small=whole.is_small)
            batch = replace(whole, rows=good_rows(whole.rows), sifter=sifter)
            return [self._staged(stack, sink.stage(batch))], lambda: sifter.tally
        if self._pipeline.queue is None and not tolerance.logs:
            # Only the good rows are looked at: there is no second evaluation that they have to agree with.
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
    """Let no further batch begin and wait for the running one until ``is_over``.

    The only place that reaches into Spark's internals: the loop over batches goes on while its state is not TERMINATED.
    """
    inner: Any = query._jsq
    module = inner.getClass().getClassLoader().loadClass("org.apache.spark.sql.execution.streaming.runtime.TERMINATED$")
    terminated = module.getField("MODULE$").get(None)
    thread = inner.streamingQuery().queryExecutionThread()
    # A batch that is being planned would be dropped once planned: wait until it runs, or there is none.
    while (status := inner.status()).isTriggerActive() and status.message() != "Processing new data":
        if is_over() or not thread.isAlive():
            return
        time.sleep(0.002)
    inner.streamingQuery().state().set(terminated)
    quiet = 0
    # The loop ends at once, or sleeps until its next trigger. Between two moments of one batch the trigger can read as
    # inactive: believe that only when it is said twice, and no batch is on its way.
    while quiet < 2 and thread.isAlive() and not is_over():
        time.sleep(0.02)
        idle = not inner.status().isTriggerActive() and batch_in_flight(checkpoint) is None
        quiet = quiet + 1 if idle else 0
