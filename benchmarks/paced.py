"""Pipelines that read some rows in each interval: a producer for them, and lateness and cost of their batches."""

import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks import pipelines
from benchmarks.inputs import RowProducer, Sink, Topic
from benchmarks.pipelines import MeasuredSystem, Pipeline

ROWS = 100
"""Rows that are written to each partition in each interval, by default."""


class IntervalProducer(threading.Thread):
    """Writes ``rows`` to each partition of some topics in the middle of each interval, until it is stopped.

    Spark's triggers are at multiples of the interval, so a batch that is on time reads the rows of one interval.
    """

    def __init__(self, servers: str, *, interval_s: float, rows: int = ROWS) -> None:
        super().__init__(name="pulse", daemon=True)
        self.written: dict[str, int] = {}
        """Number of rows written, by topic."""
        self._feed = RowProducer(servers)
        self._interval_s = interval_s
        self._rows = rows
        self._topics: list[Topic] = []
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def add(self, topic: Topic) -> None:
        """Write to this topic too, from now on; the topic's first rows have been sent when this returns."""
        with self._lock:
            self.written[topic.name] = 0
            self._write(topic)
            self._feed.flush()
            self._topics.append(topic)

    def run(self) -> None:
        while not self._stopped.wait(self._until_next()):
            with self._lock:
                for topic in self._topics:
                    self._write(topic)

    def stop(self) -> None:
        """Stop writing; returns when the last rows have been sent."""
        self._stopped.set()
        self.join()
        self._feed.flush()

    def _write(self, topic: Topic) -> None:
        first = self.written[topic.name]
        self.written[topic.name] += self._rows * topic.partitions
        self._feed.write(topic, range(first, self.written[topic.name]))

    def _until_next(self) -> float:
        """Seconds until the middle of the next interval."""
        return self._interval_s - (time.time() + self._interval_s / 2) % self._interval_s


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTimings:
    """Figures of some paced pipelines over a period of time."""

    lateness_s: Sequence[float]
    """For each batch, the time from when the batch was due to when it was planned."""
    batches: int
    """The number of batches that were planned."""
    due: int
    """The number of batches that were due."""
    cpu_ms_a_batch: float
    """The measured system's processor time divided by the number of batches."""
    busy_share: float
    """The fraction of the time of all the machine's cores in which a process, of any program, ran."""

    @property
    def lateness_p99_s(self) -> float:
        return pipelines.p50_p99(self.lateness_s)[1]

    def keeps_up(self, interval_s: float) -> bool:
        """Whether at least 95 % of the batches were planned, and their p99 lateness is below 20 % of the interval."""
        return self.batches >= 0.95 * self.due and self.lateness_p99_s < 0.2 * interval_s


def watch(system: MeasuredSystem, running: Sequence[Pipeline], *, interval_s: float, seconds: float) -> BatchTimings:
    """Measure the batches of the pipelines ``running`` in ``system`` in the next ``seconds``.

    :raises AssertionError: when a pipeline has failed.
    """
    checkpoints = [path for pipeline in running for path in system.checkpoints(pipeline)]
    begin_s, cpu_s, busy_s = time.time(), system.cpu_s, pipelines.busy_s()
    time.sleep(seconds)
    end_s, cpu_s, busy_s = time.time(), system.cpu_s - cpu_s, pipelines.busy_s() - busy_s
    for pipeline in running:
        system.check(pipeline)
    late_s = [
        late
        for checkpoint in checkpoints
        for late in lateness_s(pipelines.batches(checkpoint), interval_s, begin_s, end_s)
    ]
    return BatchTimings(
        lateness_s=late_s,
        batches=len(late_s),
        due=math.floor(seconds / interval_s) * len(checkpoints),
        cpu_ms_a_batch=round(cpu_s * 1000 / max(1, len(late_s)), 1),
        busy_share=round(busy_s / (end_s - begin_s) / pipelines.cores(), 2),
    )


def lateness_s(planned_s: Mapping[int, float], interval_s: float, begin_s: float, end_s: float) -> list[float]:
    """The lateness of each batch that was planned between ``begin_s`` and ``end_s``. A batch is due at the next
    multiple of the interval after the previous batch."""
    return [
        max(0.0, at_s - (math.floor(before_s / interval_s) + 1) * interval_s)
        for before_s, at_s in pairwise(sorted(planned_s.values()))
        if begin_s <= at_s <= end_s
    ]


def row_errors(system: MeasuredSystem, pipeline: Pipeline, sink: Sink, rows: int) -> str | None:
    """Wait for all ``rows`` that were written to the topic of ``pipeline``; returns None when each is in the sink once,
    else an error message."""
    system.wait_rows(pipeline, rows)
    return sink.row_errors(range(rows))
