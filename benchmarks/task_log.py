"""Logs of the starts and stops of tasks, and the cost of an event computed from these logs.

A task log is a file of one worker with lines ``<milliseconds since 1970> start|stop <task>``; Java's light tasks
(`peers/LightSource.java`) write the same lines.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


def now_ms() -> int:
    """The time as in a task log."""
    return round(time.time() * 1000)


def format_entry(at_ms: int, event: str, task: str) -> str:
    """The line of a task log; ``event`` is start or stop."""
    return f"{at_ms} {event} {task}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLogEntry:
    at_ms: int
    starts: bool
    task: str
    worker: str


def parse_entries(text: str, worker: str) -> list[TaskLogEntry]:
    """The entries in the task log of ``worker``, without a last line that is not completely written."""
    found = []
    for line in text.splitlines(keepends=True):
        if line.endswith("\n"):
            at_ms, what, task = line.split()
            found.append(TaskLogEntry(at_ms=int(at_ms), starts=what == "start", task=task, worker=worker))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTimeline:
    """The runs of all tasks, from the task logs of all workers."""

    entries: Sequence[TaskLogEntry]
    killed_ms: Mapping[str, int] = field(default_factory=dict)
    """When workers were killed, by worker; killed workers have not logged the stops of their tasks."""

    def runs(self) -> list["TaskRun"]:
        """Every run of every task, in order of starts; the runs of a killed worker end when it was killed."""
        open_: dict[tuple[str, str], int] = {}
        found: list[TaskRun] = []
        for entry in sorted(self.entries, key=lambda entry: (entry.at_ms, entry.starts)):
            key = (entry.task, entry.worker)
            if entry.starts:
                open_[key] = entry.at_ms
            elif key in open_:
                begin_ms = open_.pop(key)
                found.append(TaskRun(task=entry.task, worker=entry.worker, begin_ms=begin_ms, end_ms=entry.at_ms))
        for (task, worker), begin_ms in open_.items():
            found.append(TaskRun(task=task, worker=worker, begin_ms=begin_ms, end_ms=self.killed_ms.get(worker)))
        return sorted(found, key=lambda run: run.begin_ms)

    def running(self) -> Counter[tuple[str, str]]:
        """(task, worker), once for each run that has not ended."""
        return Counter((run.task, run.worker) for run in self.runs() if run.end_ms is None)

    def is_balanced(self, workers: Sequence[str], tasks: int) -> bool:
        """Whether every task runs once, on these workers, and the workers' numbers of tasks differ by at most one."""
        running = self.running()
        loads = Counter(worker for _, worker in running)
        return (
            len({task for task, _ in running}) == running.total() == tasks
            and loads.keys() <= set(workers)
            and max(loads[worker] for worker in workers) - min(loads[worker] for worker in workers) <= 1
        )

    def last_ms(self) -> int:
        """The time of the last start or stop; 0 without entries."""
        return max((entry.at_ms for entry in self.entries), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRun:
    task: str
    worker: str
    begin_ms: int
    end_ms: int | None
    """None while the run has not ended."""


def fewest_stops(before: Mapping[str, int], workers: Sequence[str]) -> int:
    """The fewest tasks of ``workers`` that must stop for an even distribution on ``workers``.

    ``before`` is the number of tasks of each worker. Tasks of other workers stop in any case and are
    not counted: M* = Σ max(0, load − q) − min(r, |{load > q}|).
    """
    quotient, remainder = divmod(sum(before.values()), len(workers))
    above = [load - quotient for worker in workers if (load := before.get(worker, 0)) > quotient]
    return sum(above) - min(remainder, len(above))


def event_cost(timeline: TaskTimeline, since_ms: int, gone: str | None) -> dict[str, float]:
    """The cost of an event at ``since_ms``, from a timeline that ends when the tasks are balanced again.

    ``gone`` is the worker that the event removed; None if the event removed no worker. `docs/benchmarks.md` explains
    the keys.
    """
    runs = timeline.runs()
    owner: dict[str, str] = {}
    downs_ms: dict[str, int] = {}
    stopped: set[str] = set()
    down_since_ms: dict[str, int] = {}
    for run in runs:
        task = run.task
        if run.begin_ms < since_ms and (run.end_ms is None or run.end_ms >= since_ms):
            owner[task] = run.worker
        if run.end_ms is not None and run.end_ms >= since_ms and task in owner:
            stopped.add(task)
    for run in runs:
        task = run.task
        if task not in stopped:
            continue
        if run.begin_ms >= since_ms and task in down_since_ms:
            downs_ms[task] = downs_ms.get(task, 0) + max(run.begin_ms - down_since_ms.pop(task), 0)
        if run.end_ms is not None and run.end_ms >= since_ms:
            down_since_ms[task] = run.end_ms
    now = {run.task: run.worker for run in runs if run.end_ms is None}
    moved = sorted(task for task in stopped if now.get(task) != owner[task])
    others = sorted(stopped - set(moved))
    down = [downs_ms.get(task, 0) / 1000 for task in moved]
    return {
        "stopped": sum(owner[task] != gone for task in stopped),
        "moved": len(moved),
        "down_p50_s": quantile(down, 0.5),
        "down_p99_s": quantile(down, 0.99),
        "down_sum_s": round(sum(downs_ms.values()) / 1000, 2),
        "others_stopped": len(others),
        "others_down_p50_s": quantile([downs_ms.get(task, 0) / 1000 for task in others], 0.5),
        "to_balanced_s": round((timeline.last_ms() - since_ms) / 1000, 2),
    }


def quantile(values: Sequence[float], fraction: float) -> float:
    """The value below which ``fraction`` of ``values`` are; 0 without values."""
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(fraction * len(ordered)))], 3) if ordered else 0.0
