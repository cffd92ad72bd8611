"""The smallest number of jobs that must be stopped for balance, found by exhaustive search. It shares no code with the
assignor that it helps to check."""

from collections.abc import Sequence
from functools import cache


def fewest_job_stops(
    connector_and_task_counts: Sequence[tuple[int, int]], *, connector_count: int, task_count: int
) -> int:
    """The smallest number of jobs that must be taken from their workers, so that on every worker the numbers of
    connectors, of tasks and of jobs are at the floor or the ceiling of the average.

    ``connector_and_task_counts`` has, for each worker, the numbers of connectors and of tasks that it has now.
    ``connector_count`` and ``task_count`` are the numbers of connectors and tasks that all workers together are to
    have.
    """
    return _fewest_job_stops_of_sorted(tuple(sorted(connector_and_task_counts)), connector_count, task_count)


@cache
def _fewest_job_stops_of_sorted(
    connector_and_task_counts: tuple[tuple[int, int], ...], connector_count: int, task_count: int
) -> int:
    """`fewest_job_stops`, with sorted ``connector_and_task_counts``, so that the cache has one entry for all orders of
    the same counts."""
    if not connector_and_task_counts:
        return 0
    connectors_floor, connector_extras = divmod(connector_count, len(connector_and_task_counts))
    tasks_floor, task_extras = divmod(task_count, len(connector_and_task_counts))
    # A worker with one extra connector and one extra task has two extra jobs: allowed only if no worker has no extra.
    extras_of_one_worker = (
        ((0, 1), (1, 0), (1, 1))
        if connector_extras + task_extras > len(connector_and_task_counts)
        else ((0, 0), (0, 1), (1, 0))
    )
    stops_by_used_extras = {(0, 0): 0}
    """The smallest number of stops on the workers so far, by the numbers of connector extras and of task extras that
    these workers keep above the floor."""
    for connector_load, task_load in connector_and_task_counts:
        stops_with_next_worker: dict[tuple[int, int], int] = {}
        for (connector_extras_used, task_extras_used), stops in stops_by_used_extras.items():
            for connector_extra, task_extra in extras_of_one_worker:
                used_extras = (connector_extras_used + connector_extra, task_extras_used + task_extra)
                stops_so_far = stops
                stops_so_far += max(0, connector_load - connectors_floor - connector_extra)
                stops_so_far += max(0, task_load - tasks_floor - task_extra)
                stops_with_next_worker[used_extras] = min(
                    stops_with_next_worker.get(used_extras, stops_so_far), stops_so_far
                )
        stops_by_used_extras = stops_with_next_worker
    return stops_by_used_extras[(connector_extras, task_extras)]
