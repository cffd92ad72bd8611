"""Reports what each rebalance did: which tasks moved, which were stopped and which were not."""

from collections.abc import Callable, Mapping, Sequence

from coterie.nouns.jobs import ConnectorTaskId

Owners = Mapping[ConnectorTaskId, str]
"""The name of each task's worker."""
Starts = Mapping[ConnectorTaskId, int]
"""How often each task was started."""


class Rebalances:
    """Reports the difference between one placement of all tasks and the next."""

    def __init__(self, say: Callable[[str], None]) -> None:
        """``say`` prints a line."""
        self._say = say
        self._owners: Owners = {}
        self._starts: Starts = {}

    def report_if_changed(self, owners: Owners, starts: Starts) -> None:
        """Print the difference to the previous call, if ``owners`` or ``starts`` differ. Call it when every task runs.

        ``owners`` are the names of the tasks' workers, ``starts`` how often each task was started.
        """
        if owners == self._owners and starts == self._starts:
            return
        self._say(f"Rebalance: {describe(self._owners, owners, self._starts, starts)}")
        self._owners, self._starts = dict(owners), dict(starts)


def describe(before: Owners, after: Owners, starts_before: Starts, starts_after: Starts) -> str:
    """Describe, in one line, which tasks moved, were restarted on the same worker, or were not stopped."""
    if not before:
        workers = sorted(set(after.values()))
        shares = [f"{worker} {listed([task for task in sorted(after) if after[task] == worker])}" for worker in workers]
        return "the first tasks are assigned: " + "; ".join(shares)
    moved = [task for task in sorted(after) if after[task] != before.get(task)]
    stopped = [task for task in sorted(after) if starts_after.get(task, 0) > starts_before.get(task, 0)]
    again = [task for task in stopped if task not in moved]
    kept = [task for task in sorted(after) if task not in stopped]
    parts = [f"{task} {before.get(task, 'no worker')} → {after[task]}" for task in moved]
    return "; ".join(
        [
            "moved: " + (", ".join(parts) or "nothing"),
            *(["restarted on the same worker: " + listed(again)] if again else []),
            f"not stopped: {listed(kept)}",
        ]
    )


def listed(tasks: Sequence[ConnectorTaskId]) -> str:
    """The names of ``tasks``, separated by commas; "nothing" without tasks."""
    return ", ".join(map(str, tasks)) or "nothing"
