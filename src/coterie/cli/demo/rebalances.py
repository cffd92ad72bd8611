"""Reports what each rebalance did: which tasks moved, which were stopped and which were not."""

from collections.abc import Callable, Mapping, Sequence

from coterie.nouns.jobs import ConnectorTaskId

WorkerByTask = Mapping[ConnectorTaskId, str]
"""The name of each task's worker."""
StartCounts = Mapping[ConnectorTaskId, int]
"""How often each task was started."""


class RebalanceReporter:
    """Prints what each rebalance of the demo did: which tasks moved, were restarted or were not stopped."""

    def __init__(self, print_line: Callable[[str], None]) -> None:
        """``print_line`` prints its argument as a line."""
        self._print_line = print_line
        self._owners: WorkerByTask = {}
        self._starts: StartCounts = {}

    def report_if_changed(self, owners: WorkerByTask, starts: StartCounts) -> None:
        """Print the difference to the previous call, if ``owners`` or ``starts`` differ. Call it when every task runs.

        ``owners`` are the names of the tasks' workers, ``starts`` how often each task was started.
        """
        if owners == self._owners and starts == self._starts:
            return
        self._print_line(f"Rebalance: {rebalance_text(self._owners, owners, self._starts, starts)}")
        self._owners, self._starts = dict(owners), dict(starts)


def rebalance_text(
    before: WorkerByTask, after: WorkerByTask, starts_before: StartCounts, starts_after: StartCounts
) -> str:
    """Describe, in one line, which tasks moved, were restarted on the same worker, or were not stopped."""
    if not before:
        workers = sorted(set(after.values()))
        assignment_texts = [
            f"{worker} {task_list_text([task for task in sorted(after) if after[task] == worker])}"
            for worker in workers
        ]
        return "the first tasks are assigned: " + "; ".join(assignment_texts)
    moved = [task for task in sorted(after) if after[task] != before.get(task)]
    stopped = [task for task in sorted(after) if starts_after.get(task, 0) > starts_before.get(task, 0)]
    restarted_in_place = [task for task in stopped if task not in moved]
    not_stopped = [task for task in sorted(after) if task not in stopped]
    move_texts = [f"{task} {before.get(task, 'no worker')} → {after[task]}" for task in moved]
    return "; ".join(
        [
            "moved: " + (", ".join(move_texts) or "nothing"),
            *(["restarted on the same worker: " + task_list_text(restarted_in_place)] if restarted_in_place else []),
            f"not stopped: {task_list_text(not_stopped)}",
        ]
    )


def task_list_text(tasks: Sequence[ConnectorTaskId]) -> str:
    """The names of ``tasks``, separated by commas; "nothing" without tasks."""
    return ", ".join(map(str, tasks)) or "nothing"
