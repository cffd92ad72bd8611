"""The optimum of balanced outcomes, from a min-cost flow: the fewest moves, then the most even spread of connectors.

Independent of the assignor and of another method: there are no givers, receivers or shares here. Every task flows
from its connector to a worker, every worker passes on exactly its floor of tasks, and the rest above the floor, of
tasks and of connectors, has to pass through the worker's *extra*: an arc that holds at most one unit where no worker
may have both extras, and at least one where each worker must have one (so that the sum is balanced, too). A task
costs one move less where it is kept, and the n-th task of a connector on one worker costs n² - (n-1)². Costs are
convex and whole numbers, so network simplex finds the exact optimum.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import networkx

from coterie.assignors.target import Load
from coterie.nouns.jobs import ConnectorName


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimum:
    """The optimum of all outcomes with connectors, tasks and their sum at floor or ceiling for every worker."""

    moves: int
    """The fewest jobs that the present workers have to stop."""
    squares: int
    """The least sum of squares of a connector's tasks on a worker, among the outcomes with ``moves`` moves."""


def optimum(loads: Sequence[Load], *, connectors: int, tasks: Mapping[ConnectorName, int]) -> Optimum:
    """The optimum for the workers' ``loads`` and the unowned jobs: ``connectors``, and ``tasks`` by connector.

    The caller excludes static jobs, static workers and draining workers,
    and counts the jobs of draining workers as unowned.
    """
    of_connector = Counter(tasks)
    for load in loads:
        of_connector.update(load.task_count_by_connector)
    # More than all squares together: one move less outweighs any spread.
    move_weight = sum(count * count for count in of_connector.values()) + 1
    network = _shares(loads, connectors=connectors, tasks=of_connector.total(), move_weight=move_weight)
    tasks_floor = of_connector.total() // len(loads)
    for name, count in of_connector.items():
        network.add_node(("connector", name), demand=-count)
        for worker, load in enumerate(loads):
            held = load.task_count_by_connector.get(name, 0)
            for nth in range(1, min(count, tasks_floor + 1) + 1):
                weight = 2 * nth - 1 - (move_weight if nth <= held else 0)
                network.add_edge(("connector", name), ("worker", worker), capacity=1, weight=weight)
    cost, _ = networkx.network_simplex(network)
    saved, squares = divmod(cost, move_weight)
    return Optimum(moves=_stops_if_all_move(loads, connectors) + saved, squares=squares)


def fewest_moves(loads: Sequence[Load], *, connectors: int, tasks: int) -> int:
    """Only the moves of `optimum`, which do not depend on the tasks' connectors; fast enough for large groups."""
    all_tasks = tasks + sum(load.task_count for load in loads)
    network = _shares(loads, connectors=connectors, tasks=all_tasks, move_weight=1)
    network.add_node("tasks", demand=-all_tasks)
    for worker, load in enumerate(loads):
        network.add_edge("tasks", ("worker", worker), capacity=load.task_count, weight=-1)
        network.add_edge("tasks", ("worker", worker), capacity=all_tasks, weight=0)
    saved, _ = networkx.network_simplex(network)
    return _stops_if_all_move(loads, connectors) + int(saved)


def _shares(loads: Sequence[Load], *, connectors: int, tasks: int, move_weight: int) -> networkx.MultiDiGraph:
    """The required final counts as a network; the caller adds the arcs from tasks to workers."""
    tasks_floor, task_extras = divmod(tasks, len(loads))
    connectors_floor, connector_extras = _of_connectors(loads, connectors)
    crowded = task_extras + connector_extras > len(loads)
    network = networkx.MultiDiGraph()
    network.add_node("out", demand=task_extras + connector_extras - (len(loads) if crowded else 0))
    network.add_node("connectors' extras", demand=-connector_extras)
    for worker, load in enumerate(loads):
        network.add_node(("worker", worker), demand=tasks_floor)
        network.add_node(("extra", worker), demand=int(crowded))
        network.add_edge(("worker", worker), ("extra", worker), capacity=1, weight=0)
        kept = -move_weight if load.connector_count > connectors_floor else 0
        network.add_edge("connectors' extras", ("extra", worker), capacity=1, weight=kept)
        network.add_edge(("extra", worker), "out", capacity=1, weight=0)
    return network


def _stops_if_all_move(loads: Sequence[Load], connectors: int) -> int:
    """The stops of an outcome that keeps no task and no connector above the floor."""
    floor, _ = _of_connectors(loads, connectors)
    return sum(load.task_count + max(0, load.connector_count - floor) for load in loads)


def _of_connectors(loads: Sequence[Load], connectors: int) -> tuple[int, int]:
    return divmod(connectors + sum(load.connector_count for load in loads), len(loads))


def is_balanced(counts: Sequence[int]) -> bool:
    """Whether the counts differ by at most one."""
    return max(counts) - min(counts) <= 1
