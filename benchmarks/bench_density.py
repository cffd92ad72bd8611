"""How many small tasks from Kafka to Parquet one machine can run, in a worker of Coterie and in a plain Spark driver.

``python -m benchmarks.bench_density`` prints one JSON line for each case; `docs/benchmarks.md` explains its keys.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import inputs, paced, pipelines
from benchmarks.brokers import print_progress
from benchmarks.inputs import ParquetFolder
from benchmarks.pipelines import MeasuredSystem, ParquetFiles, Pipeline, Rig
from tests.kafka.real_kafka import ProgramUnavailableError


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    interval_s: float
    partitions: int
    """Partitions of each task."""
    ladder: tuple[int, ...]
    """Numbers of tasks that are tried, one after the other."""
    settle: int = 10
    """Number of intervals before each measurement."""
    intervals: int = 30
    """Number of measured intervals."""


CASES: Mapping[str, Case] = {
    "1 s": Case(interval_s=1, partitions=1, ladder=(6, 8, 10, 12, 13, 14, 15, 16, 17, 18, 20, 22, 24, 28, 32)),
    "1 s, 8 partitions a task": Case(interval_s=1, partitions=8, ladder=(2, 3, 4, 5, 6, 7, 8, 10, 12)),
    "10 s": Case(
        interval_s=10, partitions=1, ladder=(50, 75, 100, 120, 140, 150, 160, 180, 200, 240), settle=3, intervals=6
    ),
}
IDLE: Mapping[str, int] = {"idle Kafka tasks": 200, "idle file tasks": 500}
IDLE_S = 20.0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_density", description=__doc__)
    parser.add_argument("--ladder", type=int, nargs="+", help="numbers of tasks to try (default: those of the case)")
    parser.add_argument("--settle", type=int, help="intervals before each measurement (default: 10; of 10 s: 3)")
    parser.add_argument("--intervals", type=int, help="measured intervals (default: 30; of 10 s: 6)")
    parser.add_argument("--idle", type=int, help="idle tasks (default: 200 of Kafka, 500 of files)")
    pipelines.add_options(parser)
    return pipelines.print_lines(measure(parser.parse_args(arguments)))


def measure(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    systems = pipelines.systems(options)
    for name in options.case or (*CASES, *IDLE):
        load_before = os.getloadavg()[0]
        facts = {"unit": "MB a task" if name in IDLE else "tasks"}
        try:
            with ExitStack() as stack:
                prefix = "bench-density-"
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix, dir=options.folder)))
                rig = stack.enter_context(pipelines.rig(folder, options.compiler))
                if name in IDLE:
                    idle = {one: measure_idle(rig, one, name, options.idle or IDLE[name]) for one in systems}
                    told = pipelines.with_ratios(idle, "mb_a_task")
                    told |= pipelines.with_ratios(idle, "cpu_ms_a_task_and_s", prefix="cpu_ms_")
                    told["tasks"] = options.idle or IDLE[name]
                else:
                    points = {one: measure_ladder(rig, one, name, options) for one in systems}
                    told = pipelines.with_ratios(
                        {one: {"held": max_tasks_on_time(climbed)} for one, climbed in points.items()}, "held"
                    )
                    told["points"] = points
        except (AssertionError, ProgramUnavailableError) as reason:
            yield pipelines.error_line("density", name, options, load_before, reason, **facts)
            continue
        yield pipelines.result_line("density", name, options, load_before, **facts, **told)


def max_tasks_on_time(points: Sequence[Mapping[str, float]]) -> int:
    """The largest number of tasks whose batches were on time; 0 if none were."""
    return max((int(point["tasks"]) for point in points if point["held"]), default=0)


def measure_ladder(rig: Rig, name: str, title: str, options: argparse.Namespace) -> list[dict[str, float]]:
    """Measure increasing numbers of tasks of the case ``title`` until batches are late; returns the figures of each.

    :raises AssertionError: when the system fails, or rows are lost or duplicated.
    """
    case = CASES[title]
    interval_s = case.interval_s
    settle, intervals = options.settle or case.settle, options.intervals or case.intervals
    points: list[dict[str, float]] = []
    running: list[tuple[Pipeline, ParquetFolder]] = []
    pulse = paced.IntervalProducer(rig.servers, interval_s=interval_s)
    pulse.start()
    with rig.running_system(name) as system:
        for tasks in options.ladder or case.ladder:
            more = tasks - sum(pipeline.tasks for pipeline, _ in running)
            out = rig.new_path("out")
            topic = inputs.make_topic(rig.servers, out.name, more * case.partitions)
            pulse.add(topic)
            sink = ParquetFolder(out)
            pipeline = Pipeline(
                name=out.name,
                source=topic,
                sink=sink,
                tasks=more,
                trigger_ms=round(interval_s * 1000),
                rotate=False,
            )
            system.run(pipeline)
            running.append((pipeline, sink))
            system.wait_commit(pipeline, 0)
            time.sleep(settle * interval_s)
            seconds = intervals * interval_s
            window = paced.watch(system, [one for one, _ in running], interval_s=interval_s, seconds=seconds)
            points.append(
                {
                    "tasks": tasks,
                    "partitions": tasks * case.partitions,
                    "late_p99_ms": round(window.lateness_p99_s * 1000),
                    "batches": window.batches,
                    "due": window.due,
                    "cpu_ms_a_batch": window.cpu_ms_a_batch,
                    "busy_share": window.busy_share,
                    "held": window.keeps_up(interval_s),
                }
            )
            print_progress(f"{title}: {name}: {points[-1]}")
            if not points[-1]["held"]:
                break
        pulse.stop()
        for pipeline, sink in running:
            wrong = paced.row_errors(system, pipeline, sink, pulse.written[pipeline.name])
            assert wrong is None, f"{name}: {wrong}"
    return points


def measure_idle(rig: Rig, name: str, title: str, tasks: int) -> dict[str, float]:
    """Measure the cost of ``tasks`` tasks without input, after each has read one row, or all have read one file."""
    out = rig.new_path("out")
    source: inputs.Topic | ParquetFiles
    if title == "idle Kafka tasks":
        source = inputs.make_topic(rig.servers, out.name, tasks)
        rows = tasks
        feed = inputs.RowProducer(rig.servers)
        feed.write(source, range(rows))
        feed.flush()
    else:
        rows = 100
        source = ParquetFiles(path=rig.new_path("in"), files=1)
        inputs.make_files(source.path, files=1, rows=rows)
    sink = ParquetFolder(out)
    pipeline = Pipeline(name=out.name, source=source, sink=sink, tasks=tasks, trigger_ms=1_000, rotate=False)
    with rig.running_system(name) as system:
        before_mb = system.resident_mb
        system.run(pipeline)
        expected = rows if isinstance(source, inputs.Topic) or name == "ours" else rows * tasks
        system.wait_rows(pipeline, expected)
        _wait_started(system, pipeline)
        time.sleep(IDLE_S / 2)
        cpu_s = system.cpu_s
        time.sleep(IDLE_S)
        cpu_s = system.cpu_s - cpu_s
        figures = {
            "mb_a_task": round((system.resident_mb - before_mb) / tasks, 2),
            "cpu_ms_a_task_and_s": round(cpu_s * 1000 / IDLE_S / tasks, 2),
        }
    print_progress(f"{title}: {name}: {figures}")
    return figures


def _wait_started(system: MeasuredSystem, pipeline: Pipeline) -> None:
    """Wait until each query has written ``metadata``, its first file in a checkpoint."""
    checkpoints = system.checkpoints(pipeline)
    started = lambda: all((path / "metadata").exists() for path in checkpoints)  # noqa: E731 - passed to `until` below
    system.until("all tasks have started", started, pipeline)


if __name__ == "__main__":
    sys.exit(main())
