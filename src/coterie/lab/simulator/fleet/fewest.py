"""The fewest jobs that balance has to stop, found by trying all: an examiner that shares nothing with the assignor."""

from collections.abc import Sequence
from functools import cache


def fewest_stops(held: Sequence[tuple[int, int]], *, connectors: int, tasks: int) -> int:
    """How many jobs have to leave their workers until connectors, tasks and their sum are at floor or ceiling.

    ``held`` is how many connectors and tasks each worker runs; ``connectors`` and ``tasks`` are all that there are.
    """
    return _fewest(tuple(sorted(held)), connectors, tasks)


@cache
def _fewest(held: tuple[tuple[int, int], ...], connectors: int, tasks: int) -> int:
    if not held:
        return 0
    connectors_floor, connector_extras = divmod(connectors, len(held))
    tasks_floor, task_extras = divmod(tasks, len(held))
    # One above the floor of both sums up to two above: lawful only if nobody has neither.
    kinds = ((0, 1), (1, 0), (1, 1)) if connector_extras + task_extras > len(held) else ((0, 0), (0, 1), (1, 0))
    reached = {(0, 0): 0}
    """Stops so far, by how many extras of each kind are given out."""
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
