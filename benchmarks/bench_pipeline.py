"""The throughput of one pipeline, in Coterie and in plain Spark with the same guarantee.

``python -m benchmarks.bench_pipeline`` prints one JSON line for each case; `docs/benchmarks.md` explains its keys.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import inputs, pipelines
from benchmarks.brokers import print_progress
from benchmarks.inputs import QUERY, DeltaFolder, ParquetFolder, PostgresTable, RowProducer, Sink, Topic
from benchmarks.pipelines import MeasuredSystem, ParquetFiles, Pipeline, Rig
from tests.kafka.real_kafka import ProgramUnavailableError
from tests.spark.sinks.postgres_server import PostgresServer

CASES = ("kafka-parquet", "kafka-delta", "parquet-postgres")
PARTITIONS = 4
FILES_A_BATCH = 4
COLUMNS = "id BIGINT, carrier TEXT, delay_s INT, km DOUBLE PRECISION"
"""The table's columns: those that the query returns."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_pipeline", description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000, help="rows of the input (default: %(default)s)")
    parser.add_argument("--batches", type=int, default=20, help="number of batches (default: %(default)s)")
    parser.add_argument("--no-at-least-once", action="store_true", help="leave Spark without a ledger out")
    pipelines.add_options(parser)
    options = parser.parse_args(arguments)
    if options.batches < 2 or options.rows % (options.batches * FILES_A_BATCH):
        parser.error(f"--rows must be a multiple of {FILES_A_BATCH} times --batches, and --batches at least 2")
    return pipelines.print_lines(measure(options))


def measure(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One line for each case, with the figures of every system."""
    systems = pipelines.systems(options, "stock", *([] if options.no_at_least_once else ["at_least_once"]))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-pipeline-", dir=options.folder)))
        rig = stack.enter_context(pipelines.rig(folder, options.compiler))
        topic: Topic | None = None
        for case in options.case or CASES:
            load_before = os.getloadavg()[0]
            facts = {"rows": options.rows, "batches": options.batches, "unit": "rows/s"}
            try:
                server = stack.enter_context(inputs.postgres()) if case == "parquet-postgres" else None
                if server is None and topic is None:
                    topic = _topic(rig.servers, options.rows)
                source = topic if server is None else _files(folder / "in", options)
                assert source is not None
                run = partial(measure_system, rig, case, source, server, options)
                figures = pipelines.medians_of_interleaved_runs(systems, options.runs, run)
            except (AssertionError, ProgramUnavailableError) as reason:
                yield pipelines.error_line("pipeline", case, options, load_before, reason, **facts)
                continue
            told = pipelines.with_ratios(figures, "rows_per_s")
            told |= pipelines.with_ratios(figures, "rows_per_cpu_s", prefix="cpu_")
            yield pipelines.result_line("pipeline", case, options, load_before, **facts, **told)


def measure_system(
    rig: Rig,
    case: str,
    source: Topic | ParquetFiles,
    server: PostgresServer | None,
    options: argparse.Namespace,
    name: str,
) -> dict[str, float]:
    """One run of one system. Its processes are started for this run and ended after it.

    :raises AssertionError: when the system fails, or rows are lost or duplicated.
    """
    print_progress(f"{case}: {name} starts ...")
    out = rig.new_path("out")
    sinks = {"kafka-parquet": ParquetFolder, "kafka-delta": DeltaFolder}
    sink: Sink = PostgresTable(server, "flights", COLUMNS) if server is not None else sinks[case](out)
    per_batch = options.rows // options.batches if isinstance(source, Topic) else FILES_A_BATCH
    pipeline = Pipeline(name=f"{case}-{out.name}", source=source, sink=sink, sql=QUERY, batch=per_batch)
    with rig.running_system(name) as system:
        system.run(pipeline)
        figures = measure_throughput(system, pipeline, options)
        expected = inputs.ids_kept_by_query(options.rows)
        system.wait_rows(pipeline, len(expected))
    wrong = sink.row_errors(expected)
    assert wrong is None, f"{name}: {wrong}"
    print_progress(
        f"{case}: {name}: {figures['rows_per_s']} rows/s, {figures['rows_per_cpu_s']} rows per second of CPU"
    )
    return figures


def measure_throughput(system: MeasuredSystem, pipeline: Pipeline, options: argparse.Namespace) -> dict[str, float]:
    """Figures from the commit of the first batch, which is the warm-up, to the commit of the last batch."""
    last = options.batches - 1
    system.wait_commit(pipeline, 0)
    cpu_s = system.cpu_s
    system.wait_commit(pipeline, last, within_s=max(600.0, options.rows / 2_000))
    cpu_s = system.cpu_s - cpu_s
    (checkpoint,) = system.checkpoints(pipeline)
    took_s = pipelines.committed_s(checkpoint, last) - pipelines.committed_s(checkpoint, 0)
    if isinstance(pipeline.source, Topic):
        rows = pipelines.end_offsets(checkpoint, last) - pipelines.end_offsets(checkpoint, 0)
    else:
        rows = options.rows // options.batches * last
    return {"rows_per_s": round(rows / took_s), "rows_per_cpu_s": round(rows / cpu_s)}


def _topic(servers: str, rows: int) -> Topic:
    print_progress(f"{rows} rows are written to a topic ...")
    topic = inputs.make_topic(servers, "flights", PARTITIONS)
    feed = RowProducer(servers)
    feed.write(topic, range(rows))
    feed.flush()
    return topic


def _files(folder: Path, options: argparse.Namespace) -> ParquetFiles:
    files = options.batches * FILES_A_BATCH
    print_progress(f"{options.rows} rows are written to {files} files ...")
    inputs.make_files(folder, files=files, rows=options.rows)
    return ParquetFiles(path=folder, files=files)


if __name__ == "__main__":
    sys.exit(main())
