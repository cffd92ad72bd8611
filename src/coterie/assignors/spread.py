"""Makes the result of `redistribution` a best spread: swaps moved tasks until no swap improves it, without more stops.

This is a min-cost flow with convex costs: the n-th task of a connector on a worker costs n² - (n-1)². `redistribution`
has computed a good solution, and the out-of-kilter method below turns it into a best one. Every connector has a
*level* and every worker has an *offset*. A solution is a best one if levels and offsets exist such that

- a worker that may receive one more task of a connector has at least level + offset tasks of it;
- a worker that may release one task of a connector has at most level + offset + 1 tasks of it.

The first levels satisfy all conditions of the first kind. If a condition of the second kind does not hold, the method
searches a cheapest cycle for one task: the task moves to another worker, that worker passes a task of another connector
to a third one, and so on, until the first worker has its number of tasks again. If the cycle reduces the sum of
squares, it is applied. In either case levels rise and offsets fall until the condition holds, and all conditions that
held before still hold.

The rules for which worker may receive or release a task ensure that no cycle causes another stop. A giver takes back no
more tasks of a connector than it released, and a taker releases no more tasks of a connector than it received. A cycle
may also move task extras and connector extras, where `quotas` allows the extra to both workers. Each kind of extra is a
node with an offset, as if it were a worker.

Example: three workers run the tasks of connectors a, b and c. Each runs one of the connectors, and its quota is two
tasks.

====== ============ ==================== ============
worker tasks before after redistribution after spread
====== ============ ==================== ============
0      2 a, 2 b     1 a, 1 b             1 a, 1 b
1      1 c          1 c, 1 a             1 c, 1 b
2      1 b          2 b                  1 b, 1 a
====== ============ ==================== ============

Worker 0 releases one a and one b. `redistribution` assigns a first. Both takers have no a and the same room, so worker
1 receives the task. Then only worker 2 has room for the task of b. The sum of squares is 1 + 1, 1 + 1 and 4: this is 8.

Here, all levels and offsets are 0. Worker 2 may release a task of b, since it received one, but has two, which is more
than level + offset + 1. The cheapest cycle is: worker 2 passes the task of b to worker 1, which has none, and worker 1
passes the task of a, which it received, to worker 2, which has none. Then all conditions hold, and the sum of squares
is 6. The same two tasks move as before: no other task stops.
"""

import heapq
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, pairwise
from typing import TypeAlias

from coterie.assignors.quotas import Quotas
from coterie.assignors.redistribution import TaskCountsByWorker, TaskDeltas
from coterie.nouns.jobs import ConnectorName

TASK_EXTRAS_NODE = -1
CONNECTOR_EXTRAS_NODE = -2
"""The two nodes through which task extras and connector extras move, as numbers below those of the workers (from 0)."""
INFINITE_LEVEL = 1 << 60
"""The level of a connector of which no worker may receive a task: above all other levels."""

_FlowNode: TypeAlias = ConnectorName | int
"""A connector, a worker, or one of the two nodes of the extras."""


def even_out_tasks_and_extras(task_counts: TaskCountsByWorker, deltas: TaskDeltas, quotas: Quotas) -> None:
    """Change ``deltas``, and the extras in ``quotas``, to a best spread: the squares of the numbers of each connector's
    tasks on each worker have the least sum. No further task or connector has to stop for it."""
    distribution = _TaskDistribution(task_counts, deltas, quotas)
    crowded_cells = list(distribution.negated_task_counts_where_reducible())
    if not crowded_cells:
        return
    minimum_counts = distribution.lowest_receiver_count_by_connector()
    # Keep only the cells whose condition fails; in most cells it holds. It then continues to hold and is not checked
    # again.
    crowded_cells = sorted(cell for cell in crowded_cells if -cell[0] > minimum_counts[cell[1]] + 1)
    potentials = _FlowPotentials(distribution, minimum_counts)
    for _, name, worker in crowded_cells:
        while (
            distribution.may_release_task(worker, name) and (gain := -potentials.slack_of_releasing(worker, name)) > 0
        ):
            path = potentials.find_path_via_one_worker(name, worker) or potentials.find_path_and_adjust_potentials(
                name, worker, gain
            )
            if path:
                distribution.apply_cycle_to_tasks_and_extras(path)


class _TaskDistribution:
    """The tasks of each worker with the present ``deltas``, and which of them may still move."""

    def __init__(self, task_counts: TaskCountsByWorker, deltas: TaskDeltas, quotas: Quotas) -> None:
        self.task_counts = task_counts
        self.deltas = deltas
        self._quotas = quotas
        workers_with_tradable_extra = quotas.workers_with_tradable_task_extra()
        self.workers = [worker for worker, delta in enumerate(deltas) if delta or worker in workers_with_tradable_extra]
        """The workers whose tasks or extras may change."""
        self.givers = {worker for worker in self.workers if quotas.task_surplus_by_worker[worker] > 0}
        """Those of ``workers`` that ran more tasks than the floor before any task moved; the others are takers."""

    def negated_task_counts_where_reducible(self) -> Iterator[tuple[int, ConnectorName, int]]:
        """Yield (-tasks, connector, worker) for each worker that has several tasks of a connector and may release one.

        When these are sorted, those with the most tasks come first.
        """
        for worker in self.workers:
            task_counts, delta = self.task_counts[worker], self.deltas[worker]
            if worker in self.givers:
                for name, count_before in task_counts.items():
                    if count_before > 1 and (current_count := count_before + delta.get(name, 0)) > 1:
                        yield -current_count, name, worker
            else:
                for name, gained in delta.items():
                    if (current_count := task_counts.get(name, 0) + gained) > 1:
                        yield -current_count, name, worker

    def task_count(self, worker: int, name: ConnectorName) -> int:
        """The number of tasks of connector ``name`` on ``worker`` with the present ``deltas``."""
        return self.task_counts[worker].get(name, 0) + self.deltas[worker].get(name, 0)

    def may_receive_task(self, worker: int, name: ConnectorName) -> bool:
        """Whether ``worker`` may receive a task of ``name``: a giver, which ran more tasks than the floor, only takes
        back tasks that it released; every other worker may receive any."""
        return worker not in self.givers or name in self.deltas[worker]

    def may_release_task(self, worker: int, name: ConnectorName) -> bool:
        """Whether ``worker`` may release a task of ``name``: a giver, which ran more tasks than the floor, may release
        each of its tasks; every other worker only tasks that it received."""
        return self.task_count(worker, name) > 0 if worker in self.givers else name in self.deltas[worker]

    def task_counts_where_releasable(self, worker: int) -> list[tuple[ConnectorName, int]]:
        """Return (connector, its tasks on ``worker``) for each connector of which ``worker`` may release a task."""
        task_counts, delta = self.task_counts[worker], self.deltas[worker]
        if worker in self.givers:
            return [
                (name, current_count)
                for name, count_before in task_counts.items()
                if (current_count := count_before + delta.get(name, 0))
            ]
        return [(name, task_counts.get(name, 0) + gained) for name, gained in delta.items()]

    def lowest_receiver_count_by_connector(self) -> dict[ConnectorName, int]:
        """Return, for each connector, the fewest of its tasks on a worker that may receive one more of them.

        :data:`INFINITE_LEVEL` if no worker may.
        """
        takers = [worker for worker in self.workers if worker not in self.givers]
        taker_count_by_connector: Counter[ConnectorName] = Counter()
        for worker in takers:
            taker_count_by_connector.update(self.task_counts[worker].keys() | self.deltas[worker].keys())
        names = set(taker_count_by_connector).union(*(self.task_counts[worker] for worker in self.givers))
        minimum_by_connector = dict.fromkeys(names, 0)
        for name in names:
            if taker_count_by_connector[name] == len(
                takers
            ):  # otherwise a taker has no task of this connector, so the lowest is 0
                possible_receivers = [worker for worker in self.workers if self.may_receive_task(worker, name)]
                minimum_by_connector[name] = min(
                    (self.task_count(worker, name) for worker in possible_receivers), default=INFINITE_LEVEL
                )
        return minimum_by_connector

    # -- arcs of the extras -------------------------------------------------------------------------------------------

    def nodes_that_can_give_task_extra(self, worker: int) -> Iterator[int]:
        """Yield the nodes of the flow graph from which ``worker`` can get a task extra (one task more than the floor);
        none if the worker has one.

        From the node of the task extras, the worker gets a task extra for nothing: its connector extra stays as it is.
        From the node of the connector extras, the worker gets a task extra and gives up its connector extra for it.
        """
        quotas = self._quotas
        has_connector_extra = quotas.has_connector_extra_by_worker[worker]
        if quotas.has_task_extra_by_worker[worker]:
            return
        if quotas.allows_extras(worker, connector=has_connector_extra, task=True):
            yield TASK_EXTRAS_NODE
        if has_connector_extra and quotas.allows_extras(worker, connector=False, task=True):
            yield CONNECTOR_EXTRAS_NODE

    def workers_that_can_give_task_extra(self, extras_node: int) -> Iterator[int]:
        """Yield the workers that can give up a task extra (one task more than the floor) to ``extras_node``, one of the
        two extras nodes of the flow graph.

        To the node of the task extras, a worker gives its task extra and gets nothing for it. To the node of the
        connector extras, a worker gives its task extra and gets a connector extra for it.
        """
        quotas = self._quotas
        for worker in self.workers:
            has_connector_extra = quotas.has_connector_extra_by_worker[worker]
            if not quotas.has_task_extra_by_worker[worker] or (
                extras_node == CONNECTOR_EXTRAS_NODE and has_connector_extra
            ):
                continue
            if quotas.allows_extras(
                worker, connector=has_connector_extra or extras_node == CONNECTOR_EXTRAS_NODE, task=False
            ):
                yield worker

    def worker_that_can_change_connector_extra(self, extras_node: int) -> int | None:
        """Return the first worker whose connector extra (one connector more than the floor) can change while its task
        extra stays; None if there is none.

        If ``extras_node`` is the node of the connector extras, a worker without a connector extra gets one. If it is
        the node of the task extras, a worker with a connector extra gives it up.
        """
        quotas = self._quotas
        gains_extra = extras_node == CONNECTOR_EXTRAS_NODE
        for worker, has_connector_extra in enumerate(quotas.has_connector_extra_by_worker):
            if has_connector_extra != gains_extra and quotas.allows_extras(
                worker, connector=gains_extra, task=quotas.has_task_extra_by_worker[worker]
            ):
                return worker
        return None

    # -- changes ------------------------------------------------------------------------------------------------------

    def apply_cycle_to_tasks_and_extras(self, cycle: Sequence[_FlowNode]) -> None:
        """Change the tasks and extras along ``cycle``, which begins with a connector and ends with a worker.

        First the last node releases a task of the first node. Then, from node to node: a worker after a connector
        receives a task of this connector, a worker before a connector releases one, and a worker beside an extras node
        gets or gives up an extra. So each worker, also the last node, ends with the number of tasks that its extras
        require.
        """
        quotas = self._quotas
        # Computed before anything changes: within one cycle, no worker changes its connector extra twice.
        trader_by_node = {
            extras_node: self.worker_that_can_change_connector_extra(extras_node)
            for extras_node in (TASK_EXTRAS_NODE, CONNECTOR_EXTRAS_NODE)
        }
        for origin, target in pairwise((cycle[-1], *cycle)):
            if isinstance(target, str):
                assert isinstance(origin, int)
                self._change_delta(origin, target, -1)
            elif isinstance(origin, str):
                self._change_delta(target, origin, +1)
            elif origin >= 0:
                quotas.has_task_extra_by_worker[origin] = True
                quotas.has_connector_extra_by_worker[origin] &= target != CONNECTOR_EXTRAS_NODE
            elif target >= 0:
                quotas.has_task_extra_by_worker[target] = False
                quotas.has_connector_extra_by_worker[target] |= origin == CONNECTOR_EXTRAS_NODE
            else:
                trader = trader_by_node[origin]
                assert trader is not None
                quotas.has_connector_extra_by_worker[trader] = origin == CONNECTOR_EXTRAS_NODE

    def _change_delta(self, worker: int, name: ConnectorName, change: int) -> None:
        """Add ``change``, which is below 0 for a release, to the number of tasks of connector ``name`` that ``worker``
        receives by ``deltas``."""
        delta = self.deltas[worker]
        delta[name] = delta.get(name, 0) + change
        if not delta[name]:
            del delta[name]


class _FlowPotentials:
    """The level of each connector and the offset of each worker and extras node, which show whether a solution of the
    min-cost flow is a best one; and the search that adjusts them.

    An arc is one step of a cycle: a worker receives a task, releases a task, or gets or gives up an extra. Each arc has
    a condition on levels and offsets; for tasks these are the two conditions in the module's docstring. The slack of an
    arc is the difference between the two sides of its condition; below zero, the condition fails.
    """

    def __init__(self, distribution: _TaskDistribution, level_by_connector: dict[ConnectorName, int]) -> None:
        self._distribution = distribution
        self._level_by_connector = level_by_connector
        self._offset_by_node = dict.fromkeys([*distribution.workers, TASK_EXTRAS_NODE, CONNECTOR_EXTRAS_NODE], 0)
        self._candidates_by_worker: dict[int, deque[ConnectorName]] = {}

    def slack_of_releasing(self, worker: int, name: ConnectorName) -> int:
        """Return level + offset + 1 minus the tasks of ``name`` on ``worker``: below zero when these are too many."""
        return (
            self._level_by_connector[name]
            + self._offset_by_node[worker]
            - (self._distribution.task_count(worker, name) - 1)
        )

    def _slack_of_receiving(self, worker: int, name: ConnectorName) -> int:
        """Return the tasks of ``name`` on ``worker`` minus level + offset: below zero when these are too few."""
        return (
            self._distribution.task_count(worker, name) - self._level_by_connector[name] - self._offset_by_node[worker]
        )

    def _may_receive_at_zero_slack(self, worker: int, name: ConnectorName) -> bool:
        """Whether ``worker`` may receive a task of ``name`` (:meth:`_TaskDistribution.may_receive_task`), and the arc
        by which it receives the task has the slack 0."""
        return self._distribution.may_receive_task(worker, name) and not self._slack_of_receiving(worker, name)

    def find_path_via_one_worker(self, start: ConnectorName, end: int) -> Sequence[_FlowNode]:
        """Return a path by which worker ``end`` passes a task of ``start`` to another worker, and receives a task of
        another connector from that worker, each arc with slack 0. Empty if there is no such path.

        No path is cheaper, and for most tasks such a path is found quickly.
        """
        for worker in reversed(self._distribution.workers):
            if (
                self._may_receive_at_zero_slack(worker, start)
                and (name := self._connector_to_pass_at_zero_slack(worker, end)) is not None
            ):
                return start, worker, name, end
        return ()

    def _connector_to_pass_at_zero_slack(self, worker: int, receiver: int) -> ConnectorName | None:
        """Return a connector of which ``worker`` may release a task that ``receiver`` may receive, both arcs with slack
        0; None if none is found.

        Only those connectors are examined of which ``worker`` could release a task at the first call for ``worker``:
        they are cached. `find_path_and_adjust_potentials` finds the connectors that ``worker`` received since. Each
        call for ``worker`` continues where the previous call for ``worker`` found a connector, so that it does not
        check the exhausted connectors again.
        """
        distribution = self._distribution
        if worker not in self._candidates_by_worker:
            self._candidates_by_worker[worker] = deque(
                sorted(name for name, _ in distribution.task_counts_where_releasable(worker))
            )
        candidates = self._candidates_by_worker[worker]
        for _ in range(len(candidates)):
            name = candidates[-1]
            if (
                distribution.may_release_task(worker, name)
                and not self.slack_of_releasing(worker, name)
                and self._may_receive_at_zero_slack(receiver, name)
            ):
                return name
            candidates.rotate()
        return None

    def find_path_and_adjust_potentials(self, start: ConnectorName, end: int, cost_limit: int) -> Sequence[_FlowNode]:
        """Return the cheapest path for a task of ``start`` that leaves ``end``; empty unless it costs below
        ``cost_limit``.

        This is Dijkstra's search with slacks as lengths; arcs with a slack below zero are left out. Then the levels of
        the reached connectors rise, and the offsets of the reached workers and extras fall, by the difference between
        the path's length (without a path, ``cost_limit``) and the node's distance. Now all arcs of the path have the
        slack 0. If there is no path, the condition for releasing the task of ``start`` holds.
        """
        distribution = self._distribution
        distance_by_node: dict[_FlowNode, int] = {start: 0}
        previous_node: dict[_FlowNode, _FlowNode] = {}
        settled: set[_FlowNode] = set()
        push_order = count()
        queue: list[tuple[int, int, _FlowNode]] = [(0, next(push_order), start)]
        workers_not_reached: Sequence[int] = distribution.workers
        path_cost = cost_limit
        while queue:
            node_distance, _, node = heapq.heappop(queue)
            if node in settled:
                continue
            if node == end:
                path_cost = node_distance
                break
            settled.add(node)
            if isinstance(node, str) and self._may_receive_at_zero_slack(end, node):
                previous_node[end], path_cost = node, node_distance
                break
            arcs: Iterable[tuple[int, _FlowNode]]
            if isinstance(node, str):
                arcs, workers_not_reached = self._arcs_from_connector_and_not_reached(
                    node, workers_not_reached, cost_limit - node_distance
                )
            else:
                arcs = self._arcs_from_worker_or_extras(node)
            for slack, target in arcs:
                target_distance = node_distance + slack
                if target_distance < distance_by_node.get(target, cost_limit):
                    distance_by_node[target] = target_distance
                    previous_node[target] = node
                    # At equal distance the end comes first, then the latest node: depth first, the search ends soon.
                    heapq.heappush(
                        queue, (target_distance, -INFINITE_LEVEL if target == end else -next(push_order), target)
                    )
        for node, target_distance in distance_by_node.items() if path_cost else ():
            rise = max(0, path_cost - target_distance)
            if isinstance(node, str):
                self._level_by_connector[node] += rise
            else:
                self._offset_by_node[node] -= rise
        if path_cost == cost_limit:
            return ()
        path: list[_FlowNode] = [end]
        while path[-1] != start:
            path.append(previous_node[path[-1]])
        return path[::-1]

    def _arcs_from_connector_and_not_reached(
        self, name: ConnectorName, workers_not_reached: Sequence[int], slack_limit: int
    ) -> tuple[Sequence[tuple[int, int]], Sequence[int]]:
        """Return the arcs (slack, worker) of connector ``name`` to those workers of ``workers_not_reached`` that may
        receive a task of ``name``, if their slack is below ``slack_limit``; and the next ``workers_not_reached``.

        The next ``workers_not_reached`` are the given ones without the workers whose arc has the slack 0. The search
        need not examine these workers again: no later arc to them is shorter.
        """
        # `may_receive_task` and `_slack_of_receiving` are inlined because this loop runs over all workers very often.
        task_counts, deltas, givers = (
            self._distribution.task_counts,
            self._distribution.deltas,
            self._distribution.givers,
        )
        level, offset = self._level_by_connector[name], self._offset_by_node
        arcs = []
        still_not_reached = []
        for worker in workers_not_reached:
            delta = deltas[worker]
            slack = INFINITE_LEVEL
            if name in delta or worker not in givers:
                slack = task_counts[worker].get(name, 0) + delta.get(name, 0) - level - offset[worker]
            if slack:
                still_not_reached.append(worker)
            if slack < slack_limit:
                arcs.append((slack, worker))
        return arcs, still_not_reached

    def _arcs_from_worker_or_extras(self, node: int) -> Iterator[tuple[int, _FlowNode]]:
        """Yield the arcs (slack, next node) from a worker or from one of the two extras nodes
        (:data:`TASK_EXTRAS_NODE`, :data:`CONNECTOR_EXTRAS_NODE`).

        From a worker they lead to the connectors of which it may release a task, and to the extras nodes from which it
        can get a task extra (:meth:`nodes_that_can_give_task_extra`). From an extras node they lead to the workers that
        can give up a task extra to it (:meth:`workers_that_can_give_task_extra`), and to the other extras node if some
        worker can change its connector extra accordingly (:meth:`worker_that_can_change_connector_extra`).
        """
        distribution, offset = self._distribution, self._offset_by_node
        if node >= 0:
            offset_plus_one = offset[node] + 1
            level = self._level_by_connector
            arcs = [
                (level[name] + offset_plus_one - current_count, name)
                for name, current_count in distribution.task_counts_where_releasable(node)
            ]
            yield from sorted(arc for arc in arcs if arc[0] >= 0)
            for extras_node in distribution.nodes_that_can_give_task_extra(node):
                yield offset[node] - offset[extras_node], extras_node
        else:
            for worker in distribution.workers_that_can_give_task_extra(node):
                yield offset[node] - offset[worker], worker
            if distribution.worker_that_can_change_connector_extra(node) is not None:
                other_extras_node = CONNECTOR_EXTRAS_NODE if node == TASK_EXTRAS_NODE else TASK_EXTRAS_NODE
                yield offset[node] - offset[other_extras_node], other_extras_node
