"""How long a task that moves to another worker does not run, with real Spark and real batches.

``python -m benchmarks.bench_move`` prints one JSON line for each case; `docs/benchmarks.md` explains its keys. In plain
Spark the counterpart of a move is to stop a query and to start it again.
"""

import argparse
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import inputs, paced, pipelines
from benchmarks.brokers import print_progress
from benchmarks.inputs import ParquetFolder
from benchmarks.pipelines import Coterie, Pipeline, Rig
from tests.kafka.real_kafka import ProgramUnavailableError

CASES = ("join", "drain", "stop and start")
WORKERS = 3
ROWS = 5
"""Rows per partition in each quarter of an interval, so that a task that starts has rows to read."""

_STOPPED = re.compile(r"^(\S+ \S+) .*?: Task (\S+)-(\d+): the query has stopped ", re.MULTILINE)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_move", description=__doc__)
    parser.add_argument("--tasks", type=int, default=24, help="tasks on three workers (default: %(default)s)")
    parser.add_argument("--interval-s", type=float, default=4.0, help="trigger interval (default: %(default)s)")
    parser.add_argument("--settle", type=int, default=5, help="intervals before each event (default: %(default)s)")
    pipelines.add_options(parser)
    return pipelines.print_lines(measure(parser.parse_args(arguments)))


def measure(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the line of each case. In each run all cases are events of the same group of workers."""
    cases = options.case or CASES
    load_before = os.getloadavg()[0]
    facts = {"unit": "s", "tasks": options.tasks, "workers": WORKERS, "interval_s": options.interval_s}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-move-", dir=options.folder)))
        rig = stack.enter_context(pipelines.rig(folder, options.compiler))
        try:
            runs = [run_all_events(rig, options) for _ in range(options.runs)]
        except (AssertionError, ProgramUnavailableError) as reason:
            for case in cases:
                yield pipelines.error_line("move", case, options, load_before, reason, **facts)
            return
    for case in cases:
        figures = pipelines.medians([run[case] for run in runs])
        told = {"ours": figures["down_p50_s"], "stock": None, "ratio": None, **figures}
        yield pipelines.result_line("move", case, options, load_before, **facts, **told)


def run_all_events(rig: Rig, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Run all events on one group of workers.

    :raises AssertionError: when the system fails, or rows are lost or duplicated.
    """
    print_progress("three workers start ...")
    out = rig.new_path("out")
    sink = ParquetFolder(out)
    topic = inputs.make_topic(rig.servers, out.name, options.tasks)
    pulse = paced.IntervalProducer(rig.servers, interval_s=options.interval_s / 4, rows=ROWS)
    pulse.add(topic)
    trigger_ms = round(options.interval_s * 1000)
    pipeline = Pipeline(
        name=out.name, source=topic, sink=sink, tasks=options.tasks, trigger_ms=trigger_ms, rotate=False
    )
    with rig.running_system("ours", workers=WORKERS) as system:
        assert isinstance(system, Coterie)
        system.run(pipeline)
        pulse.start()
        system.wait_commit(pipeline, 0)
        play = partial(_event, system, pipeline, options)
        figures = {"join": play("join"), "drain": play("drain"), "stop and start": play("stop and start")}
        pulse.stop()
        wrong = paced.row_errors(system, pipeline, sink, pulse.written[topic.name])
        assert wrong is None, wrong
    return figures


def _event(system: Coterie, pipeline: Pipeline, options: argparse.Namespace, case: str) -> dict[str, float]:
    if case == "join":
        # A starting JVM uses all cores, so busy_share is not measured here: the worker joins after its JVM has started.
        before_s = time.time()
        system.workers.start()
        count = len(system.workers.running)
        system.workers.until("it has joined", lambda: system.workers.group_state() == ("Stable", count))
    else:
        time.sleep(options.settle * options.interval_s)
        busy_s, before_s = pipelines.busy_s(), time.time()
        time.sleep(options.interval_s)
        busy_share = (pipelines.busy_s() - busy_s) / (time.time() - before_s) / pipelines.cores()
        before_s = time.time()
        if case == "drain":
            system.workers.drain(list(system.workers.running)[-1])
        else:
            for order in ("stop", "resume"):
                answer = system.request("PUT", f"/connectors/{pipeline.name}/{order}")
                assert answer.is_success, answer.text
                if order == "stop":
                    stopped = lambda: len(_stops(system, pipeline, before_s)) == pipeline.tasks  # noqa: E731 - awaited below
                    system.until("all tasks have stopped", stopped, pipeline)
    moved = max(1, pipeline.tasks // (WORKERS + 1)) if case != "stop and start" else pipeline.tasks

    def downs() -> Mapping[int, float] | None:
        found = downs_s(_stops(system, pipeline, before_s), system.checkpoints(pipeline))
        return found if len(found) >= moved else None

    found = system.until(f"{moved} tasks have moved", downs, pipeline)
    p50, p99 = pipelines.p50_p99(list(found.values()))
    told = {"moved": len(found), "down_p50_s": p50, "down_p99_s": p99}
    if case != "join":
        told["busy_share"] = round(busy_share, 2)
    print_progress(f"{case}: {told}")
    return told


def _stops(system: Coterie, pipeline: Pipeline, since_s: float) -> dict[int, float]:
    """The last stop of each task that has stopped since ``since_s``, from the workers' logs, in seconds since 1970."""
    found: dict[int, float] = {}
    for log in system.logs():
        for at, connector, task in _STOPPED.findall(log.read_text(errors="replace")):
            at_s = datetime.strptime(at, "%Y-%m-%d %H:%M:%S,%f").timestamp()  # noqa: DTZ007 - logs have the local time
            if connector == pipeline.name and at_s >= since_s:
                found[int(task)] = max(at_s, found.get(int(task), 0.0))
    return found


def downs_s(stops_s: Mapping[int, float], checkpoints: Sequence[Path]) -> dict[int, float]:
    """Seconds from each task's stop to the first batch that is planned afterwards, by number of the task.

    Tasks without such a batch are left out.
    """
    found: dict[int, float] = {}
    for task, stopped_s in stops_s.items():
        try:
            batches = pipelines.batches(checkpoints[task])
        except (FileNotFoundError, NotADirectoryError):
            continue  # Another worker is taking over the checkpoint: the next poll finds it.
        later = [at_s for at_s in batches.values() if at_s > stopped_s]
        if later:
            found[task] = min(later) - stopped_s
    return found


if __name__ == "__main__":
    sys.exit(main())
