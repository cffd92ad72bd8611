"""How long a leader takes to compute assignments, and how many jobs move: Coterie's assignor, and Kafka Connect's.

``python -m benchmarks.bench_assignor --jobs 100000 --workers 1000`` prints one JSON line for each event;
`docs/benchmarks.md` explains its keys.
"""

import argparse
import json
import os
import platform
import select
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from benchmarks.brokers import print_progress
from coterie.assignors.assignor_state import AssignorState, union_of_jobs
from coterie.assignors.cooperative import RoundOutcome, assign
from coterie.assignors.members import MemberSpec, RebalancePolicy
from coterie.assignors.target import Load, compute_balanced_target, fewest_moves_bound
from coterie.cli.garbage_collection import raise_worker_gc_thresholds
from coterie.nouns.ids import GenerationId, MemberId
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Jobs
from tests.assignors.oracle import fewest_moves
from tests.kafka.real_kafka import ProgramUnavailableError, fetch, java_path

JOBS = (1_000, 10_000, 100_000, 1_000_000)
WORKERS = (10, 100, 1_000, 2_000)
SIZES = (9, 49, 99, 149, 189)
"""The numbers of tasks of connectors, used cyclically."""
RUNS = 3
ORACLE_WORKERS_MAX = 500
"""With more workers the oracle may take minutes. It is not needed when the number of moves equals the lower bound."""
PEER_TIMEOUT_S = 120
NO_DELAY = RebalancePolicy(max_delay_ms=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The connectors and workers of a group."""

    connector_sizes: tuple[int | None, ...]
    """The number of tasks of each connector; None for a deleted connector."""
    workers: int
    """The number of workers that have joined, with those that have left."""
    departed_workers: int = 0
    """The number of workers that have left; these are the first that joined."""

    @classmethod
    def of(cls, jobs: int, workers: int) -> Self:
        sizes: list[int | None] = []
        while jobs > 0:
            sizes.append(min(SIZES[len(sizes) % len(SIZES)], jobs - 1))
            jobs -= 1 + (sizes[-1] or 0)
        return cls(connector_sizes=tuple(sizes), workers=workers)

    @property
    def configured(self) -> Jobs:
        names = {
            ConnectorName(f"connector-{n:05}"): size for n, size in enumerate(self.connector_sizes) if size is not None
        }
        tasks = frozenset(ConnectorTaskId(name, number) for name, size in names.items() for number in range(size))
        return Jobs(frozenset(names), tasks)

    @property
    def members(self) -> Sequence[MemberId]:
        return [MemberId(f"worker-{number:05}") for number in range(self.departed_workers, self.workers)]


def many_workers(workload: Workload) -> int:
    return max(2, workload.workers // 10)


EVENTS: Mapping[str, Callable[[Workload], Workload]] = {
    "full": lambda fleet: fleet,
    "stable": lambda fleet: fleet,
    "join-one": lambda fleet: replace(fleet, workers=fleet.workers + 1),
    "join-many": lambda fleet: replace(fleet, workers=fleet.workers + many_workers(fleet)),
    "leave-one": lambda fleet: replace(fleet, departed_workers=1),
    "leave-many": lambda fleet: replace(fleet, departed_workers=many_workers(fleet)),
    "connector-added": lambda fleet: replace(fleet, connector_sizes=(*fleet.connector_sizes, SIZES[2])),
    "connector-removed": lambda fleet: replace(
        fleet, connector_sizes=(*fleet.connector_sizes[:2], None, *fleet.connector_sizes[3:])
    ),
}
"""The events, as changes of a settled state; ``full`` is the first assignment, from workers that run nothing."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_assignor", description=__doc__)
    parser.add_argument("--jobs", type=int, action="append", help=f"connectors and tasks (default: {JOBS})")
    parser.add_argument("--workers", type=int, action="append", help=f"(default: {WORKERS})")
    parser.add_argument("--event", choices=EVENTS, action="append", help="measure only this (default: all)")
    parser.add_argument("--no-peer", action="store_true", help="leave Kafka Connect's assignor out")
    options = parser.parse_args(arguments)
    raise_worker_gc_thresholds()  # as a worker does
    try:
        for jobs in options.jobs or JOBS:
            for workers in options.workers or WORKERS:
                for point in measure(
                    Workload.of(jobs, workers), options.event or list(EVENTS), peer=not options.no_peer
                ):
                    sys.stdout.write(json.dumps(point) + "\n")
                    sys.stdout.flush()
    except ProgramUnavailableError as reason:
        print_progress(f"bench_assignor: {reason}")
        return 1
    return 0


def measure(workload: Workload, events: Sequence[str], *, peer: bool) -> Iterator[dict[str, Any]]:
    """Yield the figures of each of ``events``, of Coterie's assignor and, with ``peer``, of Kafka Connect's."""
    connect = ConnectAssignorProcess() if peer else None
    try:
        print_progress(f"{len(workload.configured)} jobs, {workload.workers} workers: settling ...")
        settled = AssignedGroup(workload, dict.fromkeys(workload.members, NO_JOBS), AssignorState())
        settled.settle()
        if connect is not None:
            connect.settle(workload)
        for event in events:
            print_progress(f"{len(workload.configured)} jobs, {workload.workers} workers: {event} ...")
            point = {
                "benchmark": "assignor",
                "jobs": len(workload.configured),
                "workers": workload.workers,
                "event": event,
                **measure_coterie(settled, workload, event),
                "python": platform.python_version(),
                "cores": os.cpu_count(),
                "load": os.getloadavg()[0],
            }
            if connect is not None:
                point |= connect.figures(workload, event)
            yield point
    finally:
        if connect is not None:
            connect.close()


# -- Coterie's assignor -----------------------------------------------------------------------------------------------


class AssignedGroup:
    """The members of a group, with their jobs, and the state that the leader keeps between rounds."""

    def __init__(self, workload: Workload, owned: Mapping[MemberId, Jobs], state: AssignorState) -> None:
        self.configured = workload.configured
        self.owned = owned
        self.state = state

    def after_event(self, workload: Workload) -> "AssignedGroup":
        """The group at the moment of an event, before the first rebalance."""
        return AssignedGroup(
            workload, {member: self.owned.get(member, NO_JOBS) for member in workload.members}, self.state
        )

    def settle(self) -> dict[str, float]:
        """Run rounds until a round assigns and revokes no job.

        Returns the processor time of the first round and of all rounds in ms, and the numbers of rounds and of revoked
        jobs. The last round, which changes nothing, is not counted.
        """
        took_ms: list[float] = []
        moves = 0
        while True:
            # Connect's assignor also receives decoded members: decoding is in neither measurement.
            members = {member: MemberSpec(owned=owned) for member, owned in self.owned.items()}
            started_s = time.thread_time()
            outcome = self._round(members)
            ended_s = time.thread_time()
            self.state = outcome.assignor_state
            self.owned = {member: one.owned_after for member, one in outcome.assignments.items()}
            told = any(one.revoked or one.assigned for one in outcome.assignments.values())
            if took_ms and not told:
                break
            took_ms.append(1000 * (ended_s - started_s))
            moves += sum(len(one.revoked) for one in outcome.assignments.values())
        return {"ms": took_ms[0], "all_ms": sum(took_ms), "rounds": len(took_ms), "moves": moves}

    def _round(self, members: Mapping[MemberId, MemberSpec]) -> RoundOutcome:
        generation = GenerationId(self.state.generation + 1 if self.state.generation > 0 else 1)
        return assign(
            self.state,
            configured=self.configured,
            members=members,
            generation=generation,
            last_completed_generation=GenerationId(generation - 1 if generation > 1 else -1),
            now_ms=0,
            policy=NO_DELAY,
        )


def measure_coterie(settled: AssignedGroup, workload: Workload, event: str) -> dict[str, float | None]:
    after = EVENTS[event](workload)
    start = AssignedGroup(workload, {}, AssignorState()) if event == "full" else settled
    before = start.after_event(after)
    loads, free = count_level(before.configured, before.owned.values())
    free_tasks = Counter(task.connector for task in free.tasks)
    runs = []
    for _ in range(RUNS):
        group = start.after_event(after)
        started_s = time.thread_time()
        compute_balanced_target(loads, unowned_connectors=len(free.connectors), unowned_tasks=free_tasks)
        count_ms = 1000 * (time.thread_time() - started_s)
        runs.append({"count_ms": count_ms, **group.settle()})
    best = {key: round(min(run[key] for run in runs), 3) for key in ("count_ms", "ms", "all_ms")}
    best["first_ms"] = round(runs[0]["ms"], 3)
    # Deleted jobs have to stop with any assignor, so they are not counted.
    moves = runs[0]["moves"] - sum(len(jobs - before.configured) for jobs in before.owned.values())
    return {
        **best,
        "rounds": runs[0]["rounds"],
        "moves": moves,
        "optimum": fewest_possible_moves(loads, free, int(moves)),
        "mstar": lower_bound(loads, free),
    }


def count_level(configured: Jobs, owned_by_members: Iterable[Jobs]) -> tuple[list[Load], Jobs]:
    """The input of the assignor's count level: the loads of the members, and the jobs that no member runs."""
    owned = [jobs & configured for jobs in owned_by_members]
    loads = [
        Load(
            connector_count=len(jobs.connectors),
            task_count_by_connector=Counter(task.connector for task in jobs.tasks),
        )
        for jobs in owned
    ]
    return loads, configured - union_of_jobs(owned)


def lower_bound(loads: Sequence[Load], free: Jobs) -> int:
    """M*: the lower bound of the moves by jobs alone, when no member runs the ``free`` jobs."""
    held = [load.connector_count + load.task_count for load in loads]
    return fewest_moves_bound(held, sum(held) + len(free))


def fewest_possible_moves(loads: Sequence[Load], free: Jobs, moves: int) -> int | None:
    """The fewest moves that are possible with connectors, tasks and their sum at floor or ceiling, if ``moves`` were
    made; None if that is not M*, and there are too many workers for the oracle."""
    if moves == (bound := lower_bound(loads, free)):
        return bound
    if len(loads) > ORACLE_WORKERS_MAX:
        return None
    return fewest_moves(loads, connectors=len(free.connectors), tasks=len(free.tasks))


# -- Connect's assignor -----------------------------------------------------------------------------------------------


class ConnectAssignorProcess:
    """Kafka Connect's own assignor in a separate JVM (`peers/ConnectAssignor.java`)."""

    def __init__(self) -> None:
        """:raises ProgramUnavailableError: when there is no Java, or no jars."""
        jars = fetch(print_progress)
        source = Path(__file__).parent / "peers" / "ConnectAssignor.java"
        options = ["-Xmx4g", "-Dlog4j2.level=OFF", "-Dlog4j2.statusLoggerLevel=OFF", "-cp", f"{jars}/*"]
        self._process: subprocess.Popen[str] | None = subprocess.Popen(
            [java_path(), *options, str(source)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def settle(self, workload: Workload) -> None:
        self._ask(f"fleet {workload.workers} {_written(workload)}")

    def figures(self, workload: Workload, event: str) -> dict[str, float | None]:
        """The figures of an event; None for each when the assignor did not respond within :data:`PEER_TIMEOUT_S`."""
        after = EVENTS[event](workload)
        request = f"event {after.workers - workload.workers} {after.departed_workers} {_written(after)}"
        if event == "full":
            request = f"fleet {workload.workers} {_written(workload)}"
        keys = ("peer_first_ms", "peer_ms", "peer_all_ms", "peer_rounds", "peer_moves")
        answers = [answer for _ in range(RUNS) if (answer := self._ask(request))]
        if len(answers) < RUNS:
            return dict.fromkeys(keys)
        best = min(answers, key=lambda answer: float(answer[0]))
        gone = (SIZES[2] + 1) if None in after.connector_sizes else 0
        moves = int(best[3]) - gone
        figures = (float(answers[0][0]), float(best[0]), float(best[1]), int(best[2]), moves)
        return dict(zip(keys, figures, strict=True))

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _ask(self, request: str) -> Sequence[str]:
        """Send ``request``; returns the fields of the response. Empty when no response arrives within
        :data:`PEER_TIMEOUT_S`, and for all later requests.

        :raises ProgramUnavailableError: when the assignor's process has ended.
        """
        if self._process is None:
            return ()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(request + "\n")
        self._process.stdin.flush()
        readable, _, _ = select.select([self._process.stdout], [], [], PEER_TIMEOUT_S)
        if not readable:
            print_progress(
                f"Kafka Connect's assignor did not respond within {PEER_TIMEOUT_S} s; it is left out from now on"
            )
            self.close()
            return ()
        answer = self._process.stdout.readline().split()
        if not answer:
            raise ProgramUnavailableError("Kafka Connect's assignor has ended; it needs a JDK, whose output is above")
        return answer


def _written(workload: Workload) -> str:
    return ",".join("-" if size is None else str(size) for size in workload.connector_sizes)


if __name__ == "__main__":
    sys.exit(main())
