"""The processor time of a batch of 100 rows, in Coterie and in plain Spark's foreachBatch.

``python -m benchmarks.bench_small_batch`` prints one JSON line for each case; `docs/benchmarks.md` explains its keys.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import inputs, paced, pipelines
from benchmarks.brokers import print_progress
from benchmarks.inputs import DeltaFolder, ParquetFolder, PostgresTable, Sink
from benchmarks.pipelines import Pipeline, Rig
from tests.kafka.real_kafka import ProgramUnavailableError
from tests.spark.sinks.postgres_server import PostgresServer

CASES = ("parquet", "delta", "postgres")
QUERIES = 4
COLUMNS = "id BIGINT, carrier TEXT, delay INT, distance INT"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_small_batch", description=__doc__)
    parser.add_argument("--interval-s", type=float, default=1.0, help="trigger interval (default: %(default)s)")
    parser.add_argument("--settle", type=int, default=20, help="intervals before the measurement (default: 20)")
    parser.add_argument("--intervals", type=int, default=60, help="measured intervals (default: 60)")
    pipelines.add_options(parser)
    return pipelines.print_lines(measure(parser.parse_args(arguments)))


def measure(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    systems = pipelines.systems(options)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-small-batch-", dir=options.folder)))
        rig = stack.enter_context(pipelines.rig(folder, options.compiler))
        for case in options.case or CASES:
            load_before = os.getloadavg()[0]
            facts = {
                "rows": paced.ROWS,
                "queries": QUERIES,
                "interval_s": options.interval_s,
                "unit": "ms of CPU a batch",
            }
            try:
                server = stack.enter_context(inputs.postgres()) if case == "postgres" else None
                figures = pipelines.medians_of_interleaved_runs(
                    systems, options.runs, partial(measure_system, rig, case, server, options)
                )
            except (AssertionError, ProgramUnavailableError) as reason:
                yield pipelines.error_line("small_batch", case, options, load_before, reason, **facts)
                continue
            told = pipelines.with_ratios(figures, "cpu_ms_a_batch") | pipelines.with_ratios(
                figures, "batches", prefix="batches_"
            )
            yield pipelines.result_line("small_batch", case, options, load_before, **facts, **told)


def measure_system(
    rig: Rig, case: str, server: PostgresServer | None, options: argparse.Namespace, name: str
) -> dict[str, float]:
    """One run of one system.

    :raises AssertionError: when the system fails, or rows are lost or duplicated.
    """
    print_progress(f"{case}: {name} starts ...")
    pulse = paced.IntervalProducer(rig.servers, interval_s=options.interval_s)
    with rig.running_system(name, guarantee="foreach_batch") as system:
        running: list[tuple[Pipeline, Sink]] = []
        for query in range(QUERIES):
            out = rig.new_path("out")
            sink: Sink
            match case:
                case "parquet":
                    sink = ParquetFolder(out)
                case "delta":
                    sink = DeltaFolder(out)
                case _:
                    assert server is not None
                    sink = PostgresTable(server, f"flights_{query}", COLUMNS)
            topic = inputs.make_topic(rig.servers, out.name, 1)
            pulse.add(topic)
            trigger_ms = round(options.interval_s * 1000)
            pipeline = Pipeline(name=out.name, source=topic, sink=sink, trigger_ms=trigger_ms, rotate=False)
            system.run(pipeline)
            running.append((pipeline, sink))
        pulse.start()
        for pipeline, _ in running:
            system.wait_commit(pipeline, 0)
        time.sleep(options.settle * options.interval_s)
        seconds = options.intervals * options.interval_s
        window = paced.watch(system, [one for one, _ in running], interval_s=options.interval_s, seconds=seconds)
        pulse.stop()
        for pipeline, sink in running:
            wrong = paced.row_errors(system, pipeline, sink, pulse.written[pipeline.name])
            assert wrong is None, f"{name}: {wrong}"
    print_progress(
        f"{case}: {name}: {window.cpu_ms_a_batch} ms of CPU a batch, {window.batches} batches of {window.due}"
    )
    return {"cpu_ms_a_batch": window.cpu_ms_a_batch, "batches": window.batches}


if __name__ == "__main__":
    sys.exit(main())
