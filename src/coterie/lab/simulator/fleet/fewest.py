"""The fewest jobs that must be stopped for balance, found by exhaustive search. This check shares no code with the
assignor."""

from collections.abc import Sequence
from functools import cache


def fewest_stops(held: Sequence[tuple[int, int]], *, connectors: int, tasks: int) -> int:
    """The smallest number of jobs that must be taken from their workers, so that on every worker the numbers of
    connectors, of tasks and of jobs are at the floor or the ceiling of the average.

    ``held`` has the number of connectors and the number of tasks that each worker has; ``connectors`` and ``tasks`` are
    the numbers of all configured ones.
    """
    return _fewest(tuple(sorted(held)), connectors, tasks)


@cache
def _fewest(held: tuple[tuple[int, int], ...], connectors: int, tasks: int) -> int:
    """As `fewest_stops`, with sorted ``held``, so that the cache is used for equal loads."""
    if not held:
        return 0
    connectors_floor, connector_extras = divmod(connectors, len(held))
    tasks_floor, task_extras = divmod(tasks, len(held))
    # A worker with one extra connector and one extra task has two extra jobs: allowed only if no worker has no extra.
    kinds = ((0, 1), (1, 0), (1, 1)) if connector_extras + task_extras > len(held) else ((0, 0), (0, 1), (1, 0))
    reached = {(0, 0): 0}
    """The fewest stops so far, by the numbers of connector extras and of task extras that are used."""
    for has_connectors, has_tasks in held:
        further: dict[tuple[int, int], int] = {}
        for (of_connectors, of_tasks), stops in reached.items():
            for one, other in kinds:
                at = (of_connectors + one, of_tasks + other)
                now = stops
                now += max(0, has_connectors - connectors_floor - one)
                now += max(0, has_tasks - tasks_floor - other)
                further[at] = min(further.get(at, now), now)
        reached = further
    return reached[(connector_extras, task_extras)]
