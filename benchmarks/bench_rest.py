"""The REST API of a worker with many connectors: the time of ``GET /connectors?expand=status&expand=info``, or of
``GET /metrics``, and what it costs the worker's event loop.

``python -m benchmarks.bench_rest`` prints one JSON line; `docs/benchmarks.md` explains its keys. With ``--check`` the
exit code is 1 if a figure misses its target.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.cli.garbage_collection import raise_worker_gc_thresholds
from coterie.worker.stall import StallMeter
from tests.rest.served import ServedCluster, ServedWorker
from tests.worker.simulated import until

EXPANDED = "/connectors?expand=status&expand=info"


@dataclass(frozen=True)
class Case:
    """A request to measure."""

    path: str
    mark: str
    """A text that the response contains once for each connector."""


CASES = {
    "expand": Case(EXPANDED, '"info":{'),
    "metrics": Case("/metrics", "metrics_connector_total_task_count{"),
}
CLIENT = """
import http.client, json, sys, time
port, path, mark, requests = int(sys.argv[1]), sys.argv[2], sys.argv[3].encode(), int(sys.argv[4])
connection = http.client.HTTPConnection("127.0.0.1", port)
durations_ms = []
for number in range(requests):
    begun = time.perf_counter()
    connection.request("GET", path)
    body = connection.getresponse().read()
    durations_ms.append((time.perf_counter() - begun) * 1000)
print(json.dumps({"durations_ms": durations_ms, "size_bytes": len(body), "connectors": body.count(mark)}))
"""
"""The program of the client. It runs in a separate process, so that its reads do not delay the worker's event loop."""
TARGETS_MS = {"p99_ms": 200.0, "longest_stall_ms": 50.0}
"""The figures that ``--check`` compares: each must be below its target, with 1,000 connectors of 3 tasks."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_rest", description=__doc__)
    parser.add_argument("--case", choices=sorted(CASES), default="expand", help="(default: %(default)s)")
    parser.add_argument("--connectors", type=int, default=1_000, help="(default: %(default)s)")
    parser.add_argument("--tasks", type=int, default=3, help="tasks of each connector (default: %(default)s)")
    parser.add_argument("--requests", type=int, default=300, help="one after the other (default: %(default)s)")
    parser.add_argument("--idle-s", type=float, default=3, help="the time without requests (default: %(default)s)")
    parser.add_argument("--check", action="store_true", help="exit with 1, and name each figure that misses its target")
    options = parser.parse_args(arguments)
    figures = asyncio.run(measure(options))
    print(json.dumps(figures), flush=True)  # noqa: T201
    misses = missed_targets(figures) if options.check else []
    for miss in misses:
        print(miss, file=sys.stderr)  # noqa: T201
    return 1 if misses else 0


def missed_targets(figures: Mapping[str, Any]) -> list[str]:
    """A sentence for each of ``figures`` that is not below its target."""
    return [
        f"{key} is {figures[key]} ms; the target is below {target_ms:g} ms"
        for key, target_ms in TARGETS_MS.items()
        if figures[key] >= target_ms
    ]


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """One run with a new worker."""
    raise_worker_gc_thresholds()  # as a worker's process does
    load_before = os.getloadavg()[0]
    async with ServedCluster() as cluster:
        worker = await cluster.serve()
        await create_connectors(worker, options.connectors, options.tasks)
        idle = await longest_stall_ms(asyncio.sleep(options.idle_s))
        task = asyncio.create_task(run_client(worker, CASES[options.case], options.requests))
        stall_ms = await longest_stall_ms(task)
        client = task.result()
    assert client["connectors"] == options.connectors
    durations = sorted(client["durations_ms"])
    return {
        "bench": "rest",
        "case": options.case,
        "connectors": options.connectors,
        "tasks": options.connectors * options.tasks,
        "requests": options.requests,
        "size_bytes": client["size_bytes"],
        "p50_ms": round(statistics.median(durations), 1),
        "p99_ms": round(durations[int(len(durations) * 0.99)], 1),
        "max_ms": round(durations[-1], 1),
        "longest_stall_ms": round(stall_ms, 1),
        "idle_longest_stall_ms": round(idle, 1),
        "load_before": load_before,
        "load_after": os.getloadavg()[0],
    }


async def create_connectors(worker: ServedWorker, connectors: int, tasks: int) -> None:
    """Create the connectors, and wait until all tasks run."""

    async def create(number: int) -> None:
        config = {
            "connector.class": "simulated.Sink",
            "tasks.max": str(tasks),
            "topics": f"orders-{number}",
            "sink.path": f"/warehouse/orders/{number}",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "errors.tolerance": "all",
        }
        answer = await worker.ask("POST", "/connectors", {"name": f"orders-{number}", "config": config})
        assert answer.status_code == 201, answer.text

    for first in range(0, connectors, 50):
        await asyncio.gather(*(create(number) for number in range(first, min(first + 50, connectors))))

    async def all_run() -> bool:
        status = (await worker.get(EXPANDED)).json().values()
        states = [task["state"] for one in status for task in one["status"]["tasks"]]
        return states == ["RUNNING"] * (connectors * tasks)

    await until(all_run, within_s=120)


async def longest_stall_ms(work: Awaitable[object]) -> float:
    """The longest stall of the event loop until ``work`` is done."""
    meter = StallMeter()
    measuring = asyncio.create_task(meter.measure_stalls())
    await work
    measuring.cancel()
    return meter.longest_ms


async def run_client(worker: ServedWorker, case: Case, requests: int) -> dict[str, Any]:
    """What :data:`CLIENT` prints."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        CLIENT,
        worker.url.rpartition(":")[2],
        case.path,
        case.mark,
        str(requests),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    result: dict[str, Any] = json.loads(output)
    return result


if __name__ == "__main__":
    sys.exit(main())
