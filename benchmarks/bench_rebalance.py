"""What a rebalance costs: tasks that stop, for how long they are down, and how long it takes until all is balanced.

``python -m benchmarks.bench_rebalance --tasks 90`` prints one JSON line for each event, Kafka Connect beside Coterie;
`docs/benchmarks.md` says what its keys mean.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import diary, fleets
from benchmarks.brokers import say
from benchmarks.fleets import ConnectWorkers, OurWorkers, Workers
from coterie.cli.processes import Children
from coterie.nouns.errors import WorldError
from tests.kafka.real_kafka import NotToBeHad

EVENTS = ("create", "join", "stop", "kill", "drain")
WORKERS = 3
TASKS_PER_CONNECTOR = 10
QUIET_S = 1.0
"""A fleet is balanced when it has been for so long."""
IDLE_S = 7.0
"""Between two events: by then nobody hurries any more because of the last one."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_rebalance", description=__doc__)
    parser.add_argument("--tasks", type=int, action="append", help="how many, in tens (default: 90, then 300)")
    parser.add_argument("--event", choices=EVENTS, action="append", help="measure only this (default: all)")
    parser.add_argument("--protocol", default="static", help="Coterie's connect.protocol (default: %(default)s)")
    parser.add_argument("--peer", action="append", help="Connect's (default: compatible, sessioned, eager)")
    parser.add_argument("--no-peer", action="store_true", help="leave Kafka Connect out")
    parser.add_argument(
        "--delay-ms", type=int, default=10_000, help="for how long lost jobs wait (default: %(default)s)"
    )
    parser.add_argument("--runs", type=int, default=1, help="tell the medians of so many (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.runs < 1:
        parser.error("--runs: at least one")
    try:
        for tasks in options.tasks or (90, 300):
            for point in measure(tasks, options):
                sys.stdout.write(json.dumps(point) + "\n")
                sys.stdout.flush()
    except (WorldError, NotToBeHad) as reason:
        say(f"bench_rebalance: {reason}")
        return 1
    return 0


def measure(tasks: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """One point for each event, every system in it."""
    wanted = options.event or EVENTS
    points: dict[str, dict[str, Any]] = {
        event: {
            "benchmark": "rebalance",
            "event": event,
            "tasks": tasks,
            "runs": options.runs,
            "delay_ms": options.delay_ms,
            "heartbeat_interval_ms": fleets.HEARTBEAT_MS,
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "load_before": os.getloadavg()[0],
        }
        for event in wanted
    }
    with tempfile.TemporaryDirectory(prefix="bench-rebalance-") as name:
        folder = Path(name)
        systems: dict[str, Callable[..., Workers]] = {"coterie": OurWorkers}
        protocols = {"coterie": options.protocol}
        if not options.no_peer:
            jars, plugins = fleets.light_source(folder)
            for protocol in options.peer or ("compatible", "sessioned", "eager"):
                systems[f"connect_{protocol}"] = lambda *given, **more: ConnectWorkers(
                    *given, jars=jars, plugins=plugins, **more
                )
                protocols[f"connect_{protocol}"] = protocol
        # In turn, so that whatever else the machine does meets all of them.
        runs = [
            (system, measured(f"{system}-{run}", kind, folder, tasks, wanted, protocols[system], options.delay_ms))
            for run in range(1, options.runs + 1)
            for system, kind in systems.items()
        ]
        for event, point in points.items():
            for system in systems:
                if told := [figures[event] for of, figures in runs if of == system and event in figures]:
                    point[system] = medians(told)
    for point in points.values():
        point["load_after"] = os.getloadavg()[0]
    return list(points.values())


def medians(figures: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of each key by itself; of an even number of runs the lower one of the two in the middle."""
    keys = {key: None for one in figures for key in one}
    return {key: statistics.median_low(one[key] for one in figures if key in one) for key in keys}


def measured(
    name: str,
    kind: Callable[..., Workers],
    folder: Path,
    tasks: int,
    wanted: Sequence[str],
    protocol: str,
    delay_ms: int,
) -> Mapping[str, dict[str, Any]]:
    """All events of one system in one run, ``name``, on a broker of its own."""
    home = folder / name
    home.mkdir()
    with Children(folder / "logs") as children, fleets.broker(folder / f"{name}-broker", children) as port:
        workers = kind(home, children, port=port, protocol=protocol, delay_ms=delay_ms)
        say(f"{name}: {WORKERS} workers start ...")
        figures = play(name, Bench(workers, tasks), wanted)
        workers.end()
    gap_ms = fleets.heartbeat_gap_ms(folder / f"{name}-broker", workers.group_id)
    if gap_ms >= 2 * fleets.HEARTBEAT_MS:
        say(f"{name}: a heartbeat was late: {gap_ms} ms after the one before, where {fleets.HEARTBEAT_MS} are wanted")
    for one in figures.values():
        one["heartbeat_gap_max_ms"] = gap_ms
        if stall_ms := workers.longest_stall_ms():
            one["loop_stall_max_ms"] = stall_ms
    return figures


def play(name: str, bench: "Bench", wanted: Sequence[str]) -> Mapping[str, dict[str, Any]]:
    figures: dict[str, dict[str, Any]] = {}

    def note(event: str, cost: dict[str, Any]) -> None:
        figures[event] = cost
        say(f"{name}: {event}: balanced after {cost['to_balanced_s']} s")

    workers = bench.workers
    for _ in range(WORKERS):
        workers.start()
    bench.settle_group()
    note("create", bench.create())
    takes_away = {"stop": workers.stop, "kill": workers.kill, "drain": workers.drain}
    for event in [event for event in EVENTS if event in wanted]:
        if event in takes_away and (event != "drain" or workers.can_drain):
            if len(workers.running) == WORKERS:
                bench.join()  # Of joins the first is told of: that is one of the same fleet in every system.
            note(event, bench.lose(takes_away[event]))
        elif event == "join":
            note(event, bench.join())
    return {event: one for event, one in figures.items() if event in wanted}


class Bench:
    """One fleet, event by event; it is balanced before and after each."""

    def __init__(self, workers: Workers, tasks: int, *, idle_s: float = IDLE_S) -> None:
        self.workers = workers
        self._tasks = tasks
        self._idle_s = idle_s

    def create(self) -> dict[str, Any]:
        """All connectors over REST, one after the other."""
        generation = self.workers.generation()
        since_ms = now_ms()
        for number in range(self._tasks // TASKS_PER_CONNECTOR):
            self.workers.create(f"c{number:03d}", TASKS_PER_CONNECTOR)
        posted_ms = now_ms()
        self.settle()
        return {
            "posted_s": round((posted_ms - since_ms) / 1000, 2),
            "rounds": self.workers.generation() - generation,
            "restarted": sum(count - 1 for count in Counter(run.task for run in self.workers.fleet().runs()).values()),
            "to_balanced_s": round((self.workers.fleet().last_ms() - since_ms) / 1000, 2),
        }

    def join(self) -> dict[str, Any]:
        """One more worker; the event begins when its group takes notice of it."""
        before, generation = self._before()
        self.workers.start()
        self.workers.until("the group takes notice", lambda: self.workers.group_state()[0] != "Stable", pause_s=0.005)
        since_ms = now_ms()
        self.settle()
        return self._cost(since_ms, generation, before, gone=None)

    def lose(self, how: Callable[[str], None]) -> dict[str, Any]:
        """The newest worker goes."""
        before, generation = self._before()
        since_ms = now_ms()
        gone = list(self.workers.running)[-1]
        how(gone)
        self.settle()
        return self._cost(since_ms, generation, before, gone=gone)

    def settle(self) -> None:
        """Until every task runs once, evenly spread, and has for a while."""

        def is_settled() -> bool:
            fleet = self.workers.fleet()
            return now_ms() > fleet.last_ms() + 1000 * QUIET_S and fleet.is_balanced(
                list(self.workers.running), self._tasks
            )

        self.workers.until("all tasks are balanced", is_settled, pause_s=0.1)
        self.settle_group()

    def settle_group(self) -> None:
        count = len(self.workers.running)
        self.workers.until("the group is stable", lambda: self.workers.group_state() == ("Stable", count), pause_s=0.1)
        self.workers.until("connectors can be asked for", self.workers.serves_connectors, pause_s=0.1)

    def _before(self) -> tuple[Mapping[str, int], int]:
        """What each worker runs, and the generation, once all is idle."""
        time.sleep(self._idle_s)
        return Counter(worker for _, worker in self.workers.fleet().running()), self.workers.generation()

    def _cost(self, since_ms: int, generation: int, before: Mapping[str, int], *, gone: str | None) -> dict[str, Any]:
        figures: dict[str, Any] = diary.cost(self.workers.fleet(), since_ms, gone)
        figures["optimum"] = diary.fewest_stops(before, list(self.workers.running))
        figures["rounds"] = self.workers.generation() - generation
        return figures


def now_ms() -> int:
    return round(time.time() * 1000)


if __name__ == "__main__":
    sys.exit(main())
