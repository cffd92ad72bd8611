"""The cost of a rebalance: tasks that stop, how long these tasks do not run, and the time until all are balanced.

``python -m benchmarks.bench_rebalance --tasks 90`` prints one JSON line for each event, for Coterie and Kafka Connect;
`docs/benchmarks.md` explains its keys.
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
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import counting_proxy, fleets, task_log
from benchmarks.brokers import print_progress
from benchmarks.counting_proxy import INSTALL_ASSIGNMENT, GroupTraffic
from benchmarks.fleets import ConnectGroupWorkers, ConnectWorkers, CoterieWorkers, Workers
from benchmarks.task_log import now_ms
from coterie.cli.processes import Children
from coterie.nouns.errors import WorldError
from tests.kafka.real_kafka import ProgramUnavailableError

EVENTS = ("create", "add", "remove", "join", "bounce", "roll", "stop", "kill", "drain")
SYSTEMS = ("classic", "connect", "connect-server")
"""Coterie's workers: in a classic group, and in connect groups whose target assignment is computed by a worker and by
the coordinator."""
WORKERS = 3
TASKS_PER_CONNECTOR = 10
QUIET_S = 1.0
"""Tasks count as balanced when none has started or stopped for this time."""
_ADDED = "added"
"""The connector of the events add and remove."""
IDLE_S = 7.0
"""Pause between two events: then no worker uses the shorter intervals that follow an event any more."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_rebalance", description=__doc__)
    parser.add_argument(
        "--tasks", type=int, action="append", help="number of tasks, a multiple of ten (default: 90, then 300)"
    )
    parser.add_argument("--event", choices=EVENTS, action="append", help="measure only this (default: all)")
    parser.add_argument(
        "--system", choices=SYSTEMS, action="append", help="measure only these of Coterie's (default: all)"
    )
    parser.add_argument("--protocol", default="static", help="Coterie's connect.protocol (default: %(default)s)")
    parser.add_argument("--peer", action="append", help="Connect's (default: compatible, sessioned, eager)")
    parser.add_argument("--no-peer", action="store_true", help="leave Kafka Connect out")
    parser.add_argument("--delay-ms", type=int, default=10_000, help="scheduled rebalance delay (default: %(default)s)")
    parser.add_argument(
        "--runs", type=int, default=1, help="number of runs, of which the medians are printed (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    if options.runs < 1:
        parser.error("--runs: at least one")
    try:
        for tasks in options.tasks or (90, 300):
            for point in measure(tasks, options):
                sys.stdout.write(json.dumps(point) + "\n")
                sys.stdout.flush()
    except (WorldError, ProgramUnavailableError) as reason:
        print_progress(f"bench_rebalance: {reason}")
        return 1
    return 0


def measure(tasks: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure all events; returns one line for each event, with the figures of every system."""
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
        ours: dict[str, tuple[str, Callable[..., Workers], str]] = {
            "classic": ("coterie", CoterieWorkers, options.protocol),
            "connect": ("coterie_connect", ConnectGroupWorkers, "client"),
            "connect-server": ("coterie_connect_server", ConnectGroupWorkers, "server"),
        }
        measured = [ours[system] for system in options.system or SYSTEMS]
        systems: dict[str, Callable[..., Workers]] = {name: kind for name, kind, _ in measured}
        protocols = {name: protocol for name, _, protocol in measured}
        if not options.no_peer:
            jars, plugins = fleets.light_source(folder)
            for protocol in options.peer or ("compatible", "sessioned", "eager"):
                systems[f"connect_{protocol}"] = lambda *given, **more: ConnectWorkers(
                    *given, jars=jars, plugins=plugins, **more
                )
                protocols[f"connect_{protocol}"] = protocol
        # Runs of the systems alternate, so that other load on the machine affects all systems alike.
        runs = [
            (
                system,
                measure_system(f"{system}-{run}", kind, folder, tasks, wanted, protocols[system], options.delay_ms),
            )
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
    """The median of each key; for an even number of runs the lower of the two middle values."""
    keys = {key: None for one in figures for key in one}
    return {key: statistics.median_low(one[key] for one in figures if key in one) for key in keys}


def measure_system(
    name: str,
    kind: Callable[..., Workers],
    folder: Path,
    tasks: int,
    wanted: Sequence[str],
    protocol: str,
    delay_ms: int,
) -> Mapping[str, dict[str, Any]]:
    """Measure all ``wanted`` events of one system in one run, ``name``, with a separate broker; returns the figures."""
    home = folder / name
    home.mkdir()
    with (
        Children(folder / "logs") as children,
        fleets.broker(folder / f"{name}-broker", children) as broker,
        counting_proxy.counted(name, broker.port, children) as traffic,
    ):
        workers = kind(
            home, children, port=broker.port, protocol=protocol, delay_ms=delay_ms, workers_port=traffic.port
        )
        print_progress(f"{name}: {WORKERS} workers start ...")
        figures = play(name, Bench(workers, tasks, traffic=traffic), wanted)
        workers.end()
    gap_ms = fleets.heartbeat_gap_ms(folder / f"{name}-broker", workers.group_id)
    if gap_ms >= 2 * fleets.HEARTBEAT_MS:
        print_progress(
            f"{name}: a heartbeat was late: {gap_ms} ms after the previous one; the interval is {fleets.HEARTBEAT_MS}"
        )
    for one in figures.values():
        one["heartbeat_gap_max_ms"] = gap_ms
        if stall_ms := workers.longest_stall_ms():
            one["loop_stall_max_ms"] = stall_ms
    return figures


def play(name: str, bench: "Bench", wanted: Sequence[str]) -> Mapping[str, dict[str, Any]]:
    figures: dict[str, dict[str, Any]] = {}

    def note(event: str, cost: dict[str, Any]) -> None:
        figures[event] = cost
        print_progress(f"{name}: {event}: balanced after {cost['to_balanced_s']} s")

    workers = bench.workers
    for _ in range(WORKERS):
        workers.start()
    bench.settle_group()
    note("create", bench.create())
    changes: dict[str, Callable[[], dict[str, Any]]] = {"add": bench.add, "remove": bench.remove, "join": bench.join}
    if workers.can_restart:
        changes |= {"bounce": bench.bounce, "roll": bench.roll}
    takes_away = {"stop": workers.stop, "kill": workers.kill}
    if workers.can_drain:
        takes_away["drain"] = workers.drain
    for event in [event for event in EVENTS if event in wanted]:
        if event in takes_away:
            if len(workers.running) == WORKERS:
                bench.join()  # Only the first join is reported: the number of workers before it is always the same.
            note(event, bench.lose(takes_away[event]))
        elif event in changes:
            note(event, changes[event]())
    return {event: one for event, one in figures.items() if event in wanted}


class Bench:
    """One group of workers, through one event after another; tasks are balanced before and after each event."""

    def __init__(
        self, workers: Workers, tasks: int, *, idle_s: float = IDLE_S, traffic: GroupTraffic | None = None
    ) -> None:
        """``traffic``: the proxy through which the workers connect; None: requests and bytes are not counted."""
        self.workers = workers
        self._traffic = traffic
        self._tasks = tasks
        self._idle_s = idle_s

    def create(self) -> dict[str, Any]:
        """Create all connectors over REST, one after the other."""
        generations = self.workers.generations()
        since_ms = now_ms()
        for number in range(self._tasks // TASKS_PER_CONNECTOR):
            self.workers.create(f"c{number:03d}", TASKS_PER_CONNECTOR)
        posted_ms = now_ms()
        self.settle()
        rounds = len(self.workers.generations() - generations)
        return {
            "posted_s": round((posted_ms - since_ms) / 1000, 2),
            "rounds": rounds,
            "restarted": sum(
                count - 1 for count in Counter(run.task for run in self.workers.timeline().runs()).values()
            ),
            "to_balanced_s": round((self.workers.timeline().last_ms() - since_ms) / 1000, 2),
            **self._traffic_cost(since_ms, rounds),
        }

    def add(self) -> dict[str, Any]:
        """Create one more connector."""
        before = self._before()
        since_ms = now_ms()
        self._tasks += TASKS_PER_CONNECTOR
        self.workers.create(_ADDED, TASKS_PER_CONNECTOR)
        self.settle()
        return self._cost(since_ms, before)

    def remove(self) -> dict[str, Any]:
        """Delete the connector that :meth:`add` created, which is created before if there is none."""
        if not any(task.startswith(_ADDED) for task, _ in self.workers.timeline().running()):
            self.add()
        before = self._before(deleted=_ADDED)
        since_ms = now_ms()
        self._tasks -= TASKS_PER_CONNECTOR
        self.workers.delete(_ADDED)
        self.settle()
        return self._cost(since_ms, before, deleted=_ADDED)

    def join(self) -> dict[str, Any]:
        """Start one more worker; the event begins when the group starts to rebalance. Requests and bytes are counted
        from the moment at which the new worker looks for its coordinator."""
        before = self._before()
        state = self.workers.group_state()
        started_ms = now_ms()
        self.workers.start()
        self.workers.until("the group rebalances", lambda: self.workers.group_state() != state, pause_s=0.005)
        since_ms = now_ms()
        self.settle()
        joined_ms = None if self._traffic is None else counting_proxy.first_join_ms(self._traffic.frames(started_ms))
        return self._cost(since_ms, before, counted_since_ms=joined_ms)

    def bounce(self) -> dict[str, Any]:
        """Restart the newest worker in place."""
        before = self._before()
        since_ms = now_ms()
        name = list(self.workers.running)[-1]
        self.workers.restart(name)
        self._until_restarted([name], since_ms)
        return self._cost(since_ms, before)

    def roll(self) -> dict[str, Any]:
        """Restart all workers in place, one after the other."""
        before = self._before()
        since_ms = now_ms()
        self.workers.restart_all()
        self._until_restarted(list(self.workers.running), since_ms)
        return self._cost(since_ms, before)

    def lose(self, how: Callable[[str], None]) -> dict[str, Any]:
        """Remove the newest worker by calling ``how`` with its name."""
        before = self._before()
        _, members = self.workers.group_state()
        since_ms = now_ms()
        gone = list(self.workers.running)[-1]
        how(gone)
        self.workers.until("a member is gone", lambda: self.workers.group_state()[1] < members, pause_s=0.005)
        gone_ms = now_ms()
        self.settle()
        return self._cost(since_ms, before, gone=gone) | {"member_gone_s": round((gone_ms - since_ms) / 1000, 2)}

    def settle(self) -> None:
        """Wait until every task runs once, and tasks have been evenly spread for :data:`QUIET_S`."""

        def is_settled() -> bool:
            fleet = self.workers.timeline()
            return now_ms() > fleet.last_ms() + 1000 * QUIET_S and fleet.is_balanced(
                list(self.workers.running), self._tasks
            )

        self.workers.until("all tasks are balanced", is_settled, pause_s=0.1)
        self.settle_group()

    def settle_group(self) -> None:
        count = len(self.workers.running)
        self.workers.until("the group is stable", lambda: self.workers.group_state() == ("Stable", count), pause_s=0.1)
        self.workers.until("the REST API serves connectors", self.workers.serves_connectors, pause_s=0.1)

    def _until_restarted(self, names: Sequence[str], since_ms: int) -> None:
        """Wait until the workers have started every task again, and all are balanced."""

        def has_restarted() -> bool:
            runs = [run for run in self.workers.timeline().runs() if run.worker in names]
            earlier = {run.task for run in runs if run.begin_ms < since_ms and (run.end_ms or since_ms) >= since_ms}
            return earlier <= {run.task for run in runs if run.begin_ms >= since_ms}

        self.workers.until("the workers have restarted", has_restarted, pause_s=0.1)
        self.settle()

    def _before(self, *, deleted: str | None = None) -> "_Before":
        """What there is before an event, after a pause, without the connector that the event deletes."""
        time.sleep(self._idle_s)
        running = self.workers.timeline().running()
        loads = Counter(worker for task, worker in running if deleted is None or not task.startswith(deleted))
        return _Before(loads=loads, generations=self.workers.generations())

    def _cost(
        self,
        since_ms: int,
        before: "_Before",
        *,
        gone: str | None = None,
        deleted: str | None = None,
        counted_since_ms: int | None = None,
    ) -> dict[str, Any]:
        timeline = self.workers.timeline()
        if deleted is not None:
            kept = [entry for entry in timeline.entries if not entry.task.startswith(deleted)]
            timeline = replace(timeline, entries=kept)
        figures: dict[str, Any] = task_log.event_cost(timeline, since_ms, gone)
        figures["to_balanced_s"] = round((self.workers.timeline().last_ms() - since_ms) / 1000, 2)
        figures["rounds"] = len(self.workers.generations() - before.generations)
        figures["optimum"] = task_log.fewest_stops(before.loads, list(self.workers.running))
        return figures | self._traffic_cost(counted_since_ms or since_ms, figures["rounds"])

    def _traffic_cost(self, since_ms: int, rounds: int) -> dict[str, Any]:
        """Requests and bytes of the group's APIs from ``since_ms`` until the tasks were balanced, and the number of
        computed assignments; empty if they are not counted. ``rounds`` are the generations or epochs in the logs."""
        if self._traffic is None:
            return {}
        until_ms = self.workers.timeline().last_ms()
        frames = self._traffic.frames(since_ms)
        installed = sum(
            frame.is_request and frame.key == INSTALL_ASSIGNMENT for frame in frames if frame.at_ms <= until_ms
        )
        # A target that changes the jobs of no worker is in no log, but a worker has installed it.
        return {"computations": max(rounds, installed), **counting_proxy.cost(frames, since_ms, until_ms)}


@dataclass(frozen=True, slots=True)
class _Before:
    loads: Mapping[str, int]
    """The number of tasks by worker, without those of a connector that the event deletes."""
    generations: Set[int]


if __name__ == "__main__":
    sys.exit(main())
