"""How late light tasks are while a task reads a backlog, in a worker of Coterie and in a driver of plain Spark.

``python -m benchmarks.bench_neighbours`` prints one JSON line; `docs/benchmarks.md` explains its keys.
"""

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import inputs, paced, pipelines
from benchmarks.brokers import print_progress
from benchmarks.inputs import QUERY, ParquetFolder, RowProducer, Topic
from benchmarks.pipelines import Pipeline, Rig
from tests.kafka.real_kafka import ProgramUnavailableError

INTERVAL_S = 1.0
PARTITIONS = 4
"""Partitions of the backlog's topic."""
HEAVY_BATCH = 250_000


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_neighbours", description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000, help="rows of the backlog (default: %(default)s)")
    parser.add_argument("--tasks", type=int, default=10, help="light tasks (default: %(default)s)")
    parser.add_argument("--settle", type=int, default=20, help="seconds before the backlog (default: %(default)s)")
    pipelines.add_options(parser)
    return pipelines.print_lines(measure(parser.parse_args(arguments)))


def measure(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    load_before = os.getloadavg()[0]
    case, facts = f"{options.tasks} light tasks", {"rows": options.rows, "unit": "ms late, p99"}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-neighbours-", dir=options.folder)))
        rig = stack.enter_context(pipelines.rig(folder, options.compiler))
        try:
            print_progress(f"{options.rows} rows are written to a topic ...")
            backlog = inputs.make_topic(rig.servers, "backlog", PARTITIONS)
            feed = RowProducer(rig.servers)
            feed.write(backlog, range(options.rows))
            feed.flush()
            run = partial(measure_system, rig, backlog, options)
            figures = pipelines.medians_of_interleaved_runs(pipelines.systems(options), options.runs, run)
        except (AssertionError, ProgramUnavailableError) as reason:
            yield pipelines.error_line("neighbours", case, options, load_before, reason, **facts)
            return
    told = pipelines.with_ratios(figures, "late_p99_ms") | pipelines.with_ratios(figures, "late_p50_ms", prefix="p50_")
    told |= pipelines.with_ratios(figures, "rows_per_s", prefix="backlog_rows_per_s_")
    yield pipelines.result_line("neighbours", case, options, load_before, **facts, **told)


def measure_system(rig: Rig, backlog: Topic, options: argparse.Namespace, name: str) -> dict[str, float]:
    """One run of one system.

    :raises AssertionError: when the system fails, or rows are lost or duplicated.
    """
    print_progress(f"{name} starts ...")
    out = rig.new_path("out")
    topic = inputs.make_topic(rig.servers, out.name, options.tasks)
    pulse = paced.IntervalProducer(rig.servers, interval_s=INTERVAL_S)
    pulse.add(topic)
    sink = ParquetFolder(out)
    trigger_ms = round(INTERVAL_S * 1000)
    light = Pipeline(name=out.name, source=topic, sink=sink, tasks=options.tasks, trigger_ms=trigger_ms, rotate=False)
    heavy_out = ParquetFolder(rig.new_path("heavy"))
    heavy = Pipeline(name=heavy_out.path.name, source=backlog, sink=heavy_out, sql=QUERY, batch=HEAVY_BATCH)
    with rig.running_system(name) as system:
        system.run(light)
        system.wait_commit(light, 0)
        pulse.start()
        time.sleep(options.settle)
        expected = inputs.ids_kept_by_query(options.rows)
        planned = BatchTimeRecorder(system.checkpoints(light))
        planned.start()
        begin_s = time.time()
        system.run(heavy)
        within_s = max(600.0, options.rows / 2_000)
        system.wait_rows(heavy, len(expected), within_s=within_s)
        end_s = time.time()
        seen = planned.stop()
        pulse.stop()
        wrong = heavy_out.row_errors(expected) or paced.row_errors(system, light, sink, pulse.written[topic.name])
        assert wrong is None, f"{name}: {wrong}"
    late_s = [late for one in seen for late in paced.lateness_s(one, INTERVAL_S, begin_s, end_s)]
    p50, p99 = pipelines.p50_p99(late_s)
    print_progress(
        f"{name}: {len(late_s)} light batches, late p50 {p50} s, p99 {p99} s; backlog in {end_s - begin_s:.1f} s"
    )
    return {
        "late_p99_ms": round(p99 * 1000),
        "late_p50_ms": round(p50 * 1000),
        "rows_per_s": round(options.rows / (end_s - begin_s)),
    }


class BatchTimeRecorder(threading.Thread):
    """Reads checkpoints periodically, since Spark deletes the files of a batch after 100 further batches."""

    def __init__(self, checkpoints: Sequence[Path]) -> None:
        super().__init__(name="planned", daemon=True)
        self._checkpoints = checkpoints
        self._seen: list[dict[int, float]] = [{} for _ in checkpoints]
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(20):
            self._look()

    def stop(self) -> list[dict[int, float]]:
        """Stop reading; returns when each batch was planned, in seconds since 1970, for each checkpoint."""
        self._stopped.set()
        self.join()
        self._look()
        return self._seen

    def _look(self) -> None:
        for checkpoint, seen in zip(self._checkpoints, self._seen, strict=True):
            seen |= pipelines.batches(checkpoint)


if __name__ == "__main__":
    sys.exit(main())
