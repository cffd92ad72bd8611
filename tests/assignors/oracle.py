"""What no balanced outcome can beat, from a min-cost flow: the fewest moves, then the most even spread of connectors.

Written apart from the assignor and by another way: nothing here knows of givers, receivers or shares. Every task flows
from its connector to some worker, every worker passes on exactly its floor of tasks, and what is above the floor, of
tasks and of connectors alike, has to squeeze through the worker's *extra*: an arc that holds at most one unit where
nobody may have both extras, and at least one where nobody may have neither (so that the sum is level, too). A task
costs a move less where it is kept, and the n-th task of a connector on one worker costs n² - (n-1)². Costs are convex
and whole numbers, so network simplex finds the exact optimum.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import networkx

from coterie.assignors.target import Load
from coterie.nouns.jobs import ConnectorName


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimum:
    """Of all outcomes with connectors, tasks and their sum at floor or ceiling for every worker."""

    moves: int
    """The fewest jobs that a worker has to stop though it stays."""
    squares: int
    """The least sum of squares of a connector's tasks on a worker, among the outcomes with so few moves."""


def optimum(loads: Sequence[Load], *, connectors: int, tasks: Mapping[ConnectorName, int]) -> Optimum:
    """For the workers' ``loads`` and for what nobody runs: ``connectors``, and ``tasks`` by connector.

    Static jobs, workers that only take what they claim, and draining workers are no part of it: the caller leaves them
    out, and counts what draining workers run among what nobody runs.
    """
    of_connector = Counter(tasks)
    for load in loads:
        of_connector.update(load.tasks)
    # More than all squares together: one move less is worth any spread.
    a_move = sum(count * count for count in of_connector.values()) + 1
    network = _shares(loads, connectors=connectors, tasks=of_connector.total(), a_move=a_move)
    tasks_floor = of_connector.total() // len(loads)
    for name, count in of_connector.items():
        network.add_node(("connector", name), demand=-count)
        for worker, load in enumerate(loads):
            held = load.tasks.get(name, 0)
            for nth in range(1, min(count, tasks_floor + 1) + 1):
                weight = 2 * nth - 1 - (a_move if nth <= held else 0)
                network.add_edge(("connector", name), ("worker", worker), capacity=1, weight=weight)
    cost, _ = networkx.network_simplex(network)
    saved, squares = divmod(cost, a_move)
    return Optimum(moves=_stops_of_all(loads, connectors) + saved, squares=squares)


def fewest_moves(loads: Sequence[Load], *, connectors: int, tasks: int) -> int:
    """The moves of `optimum` alone: whose task it is does not matter for them, so it can be asked of large groups."""
    all_tasks = tasks + sum(load.all_tasks for load in loads)
    network = _shares(loads, connectors=connectors, tasks=all_tasks, a_move=1)
    network.add_node("tasks", demand=-all_tasks)
    for worker, load in enumerate(loads):
        network.add_edge("tasks", ("worker", worker), capacity=load.all_tasks, weight=-1)
        network.add_edge("tasks", ("worker", worker), capacity=all_tasks, weight=0)
    saved, _ = networkx.network_simplex(network)
    return _stops_of_all(loads, connectors) + int(saved)


def _shares(loads: Sequence[Load], *, connectors: int, tasks: int, a_move: int) -> networkx.MultiDiGraph:
    """What workers have to end with, as a network to which the ways of tasks to workers are to be added."""
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
        kept = -a_move if load.connectors > connectors_floor else 0
        network.add_edge("connectors' extras", ("extra", worker), capacity=1, weight=kept)
        network.add_edge(("extra", worker), "out", capacity=1, weight=0)
    return network


def _stops_of_all(loads: Sequence[Load], connectors: int) -> int:
    """Were no task kept and no connector above the floor."""
    floor, _ = _of_connectors(loads, connectors)
    return sum(load.all_tasks + max(0, load.connectors - floor) for load in loads)


def _of_connectors(loads: Sequence[Load], connectors: int) -> tuple[int, int]:
    return divmod(connectors + sum(load.connectors for load in loads), len(loads))
