"""How long a running connector is stopped while it is split again, from 4 tasks to 7.

``python -m benchmarks.bench_resplit`` prints one JSON line for each case; `docs/benchmarks.md` explains its keys. Plain
Spark has no such step: a query keeps its checkpoint, or starts with an empty one.
"""

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import inputs, pipelines
from benchmarks.brokers import print_progress
from benchmarks.inputs import ParquetFolder, RowProducer, Topic
from benchmarks.pipelines import Coterie, ParquetFiles, Pipeline, Rig
from tests.kafka.real_kafka import ProgramUnavailableError

CASES = ("kafka", "files")
FROM, TO = 4, 7
ROWS_A_PART = 20
"""Rows of each partition and of each file before the split."""
MORE_EVERY_S = 0.5
SEEDED = {"kafka": 0, "files": 2}
"""How many committed batches the checkpoints of a new checkpoint generation contain before the tasks start."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_resplit", description=__doc__)
    parser.add_argument("--partitions", type=int, default=100, help="partitions of the topic (default: %(default)s)")
    parser.add_argument("--files", type=int, default=10_000, help="files read before the split (default: %(default)s)")
    pipelines.add_options(parser)
    return pipelines.print_lines(measure(parser.parse_args(arguments)))


def measure(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-resplit-", dir=options.folder)))
        rig = stack.enter_context(pipelines.rig(folder, options.compiler))
        for case in options.case or CASES:
            load_before = os.getloadavg()[0]
            size = {"partitions": options.partitions} if case == "kafka" else {"files": options.files}
            facts = {"unit": "s", "from": FROM, "to": TO, **size}
            try:
                figures = pipelines.medians_of_interleaved_runs(
                    ["ours"], options.runs, partial(measure_system, rig, case, options)
                )
            except (AssertionError, ProgramUnavailableError) as reason:
                yield pipelines.error_line("resplit", case, options, load_before, reason, **facts)
                continue
            told = {"ours": figures["ours"]["batches_s"], "stock": None, "ratio": None} | figures["ours"]
            yield pipelines.result_line("resplit", case, options, load_before, **facts, **told)


def measure_system(rig: Rig, case: str, options: argparse.Namespace, name: str) -> dict[str, float]:
    """One run.

    :raises AssertionError: when the system fails, or rows are lost or duplicated.
    """
    print_progress(f"{case}: a worker starts ...")
    out = rig.new_path("out")
    sink = ParquetFolder(out)
    source: Topic | ParquetFiles
    if case == "kafka":
        rows = options.partitions * ROWS_A_PART
        topic = source = inputs.make_topic(rig.servers, out.name, options.partitions)
        feed = RowProducer(rig.servers)
        feed.write(topic, range(rows))
        feed.flush()
        each, write = options.partitions, partial(feed.write, topic)
    else:
        rows = options.files * ROWS_A_PART
        source = ParquetFiles(path=rig.new_path("in"), files=options.files)
        inputs.make_files(source.path, files=options.files, rows=rows)
        each, write = TO * 2 * ROWS_A_PART, partial(_write_files, source.path)
    pipeline = Pipeline(name=out.name, source=source, sink=sink, tasks=FROM, trigger_ms=1_000, rotate=False)
    with rig.running_system(name) as system:
        assert isinstance(system, Coterie)
        system.run(pipeline)
        system.wait_rows(pipeline, rows)
        print_progress(f"{case}: {rows} rows were read; {FROM} tasks become {TO} ...")
        trickle = ContinuousProducer(write, rows, each)
        trickle.start()
        figures = split_anew(system, replace(pipeline, tasks=TO), SEEDED[case])
        rows = trickle.stop()
        if case == "kafka":
            feed.flush()
        system.wait_rows(pipeline, rows)
    wrong = sink.row_errors(range(rows))
    assert wrong is None, wrong
    print_progress(f"{case}: {figures}")
    return figures


def split_anew(system: Coterie, pipeline: Pipeline, seeded: int) -> dict[str, float]:
    """Seconds from the PUT of another ``tasks.max`` until the next checkpoint generation exists, and until each of its
    tasks has committed a batch with rows."""
    (connector,) = system.folder.glob(f"checkpoints/{pipeline.name}-*")
    put_s = time.time()
    answer = system.request("PUT", f"/connectors/{pipeline.name}/config", json=pipeline.connector())
    assert answer.is_success, answer.text
    generation = connector / "gen-2"
    system.until("the next checkpoint generation exists", generation.is_dir, pipeline)
    stands_s = time.time()

    def first_commits() -> list[float] | None:
        found = []
        for task in range(pipeline.tasks):
            marks = list(generation.glob(f"{task}/*/commits/{seeded}"))
            if not marks:
                return None
            found.append(marks[0].stat().st_mtime)
        return found

    commits = system.until("each task has committed a batch", first_commits, pipeline)
    return {"stands_s": round(stands_s - put_s, 2), "batches_s": round(max(commits) - put_s, 2)}


class ContinuousProducer(threading.Thread):
    """Writes rows repeatedly, so that every task of any split has rows to read."""

    def __init__(self, write: Callable[[range], None], first: int, each: int) -> None:
        super().__init__(name="trickle", daemon=True)
        self._write = write
        self._next = first
        self._each = each
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(MORE_EVERY_S):
            self._write(range(self._next, self._next + self._each))
            self._next += self._each

    def stop(self) -> int:
        """Stop; returns the number of rows written so far, including those before the start."""
        self._stopped.set()
        self.join()
        return self._next


def _write_files(folder: Path, numbers: range) -> None:
    """Write files with these rows to a temporary folder and rename them into ``folder``."""
    aside = folder.with_name(f"{folder.name}-{numbers.start}")
    inputs.make_files(aside, files=len(numbers) // ROWS_A_PART, rows=len(numbers), first=numbers.start)
    for path in aside.iterdir():
        path.rename(folder / f"{numbers.start}-{path.name}")
    aside.rmdir()


if __name__ == "__main__":
    sys.exit(main())
