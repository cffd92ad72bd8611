"""The time from the production of a Kafka record until a reader of the sink sees it, in Coterie and in plain Spark.

``python -m benchmarks.bench_latency`` prints one JSON line for each case; `docs/benchmarks.md` explains its keys.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import inputs, pipelines
from benchmarks.brokers import print_progress
from benchmarks.inputs import DeltaFolder, ParquetFolder, RowProducer
from benchmarks.pipelines import Pipeline, Rig
from tests.kafka.real_kafka import ProgramUnavailableError
from tests.sink_files import values_in

CASES: Mapping[str, type[ParquetFolder] | type[DeltaFolder]] = {
    "kafka-parquet": ParquetFolder,
    "kafka-delta": DeltaFolder,
}
PARTITIONS = 4


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_latency", description=__doc__)
    parser.add_argument("--records", type=int, default=1_000, help="timed records (default: %(default)s)")
    parser.add_argument("--warm-up", type=int, default=200, help="records before the timed ones (default: %(default)s)")
    parser.add_argument("--every-ms", type=int, default=50, help="time between two records (default: %(default)s)")
    pipelines.add_options(parser)
    return pipelines.print_lines(measure(parser.parse_args(arguments)))


def measure(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    systems = pipelines.systems(options)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-latency-", dir=options.folder)))
        rig = stack.enter_context(pipelines.rig(folder, options.compiler))
        for case in options.case or CASES:
            load_before = os.getloadavg()[0]
            facts = {"records": options.records, "every_ms": options.every_ms, "unit": "ms"}
            try:
                figures = pipelines.medians_of_interleaved_runs(
                    systems, options.runs, partial(measure_system, rig, case, options)
                )
            except (AssertionError, ProgramUnavailableError) as reason:
                yield pipelines.error_line("latency", case, options, load_before, reason, **facts)
                continue
            told = pipelines.with_ratios(figures, "p50_ms") | pipelines.with_ratios(figures, "p99_ms", prefix="p99_")
            yield pipelines.result_line("latency", case, options, load_before, **facts, **told)


def measure_system(rig: Rig, case: str, options: argparse.Namespace, name: str) -> dict[str, float]:
    """One run of one system.

    :raises AssertionError: when the system fails, or rows are lost or duplicated.
    """
    print_progress(f"{case}: {name} starts ...")
    records = options.warm_up + options.records
    out = rig.new_path("out")
    sink = CASES[case](out)
    topic = inputs.make_topic(rig.servers, out.name, PARTITIONS)
    feed = RowProducer(rig.servers, linger_ms=0)
    pipeline = Pipeline(name=out.name, source=topic, sink=sink, rotate=False)
    with rig.running_system(name) as system:
        feed.write(topic, range(1))
        system.run(pipeline)
        system.wait_commit(pipeline, 0)
        produced_s = paced(feed, topic, range(1, records), options.every_ms / 1000)
        system.wait_rows(pipeline, records)
    wrong = sink.row_errors(range(records))
    assert wrong is None, f"{name}: {wrong}"
    seen_s = {number: at_s for path, at_s in sink.visible_since_s().items() for number in values_in(path, "id")}
    waits_s = [seen_s[number] - at_s for number, at_s in produced_s.items() if number >= options.warm_up]
    p50, p99 = pipelines.p50_p99(waits_s)
    print_progress(f"{case}: {name}: p50 {p50} s, p99 {p99} s")
    return {"p50_ms": round(p50 * 1000, 1), "p99_ms": round(p99 * 1000, 1)}


def paced(feed: RowProducer, topic: inputs.Topic, numbers: range, every_s: float) -> dict[int, float]:
    """Write one row every ``every_s``; returns the time at which each was written, in seconds since 1970, by number."""
    produced_s: dict[int, float] = {}
    due = time.monotonic()
    for number in numbers:
        due += every_s
        time.sleep(max(0.0, due - time.monotonic()))
        produced_s[number] = time.time()
        feed.write(topic, range(number, number + 1))
    feed.flush()
    return produced_s


if __name__ == "__main__":
    sys.exit(main())
