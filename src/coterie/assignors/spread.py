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
from coterie.assignors.redistribution import Deltas, HeldTasks
from coterie.nouns.jobs import ConnectorName

TASK_EXTRAS_NODE = -1
CONNECTOR_EXTRAS_NODE = -2
"""The two nodes through which task extras and connector extras move, as numbers below those of the workers (from 0)."""
INFINITE_LEVEL = 1 << 60
"""The level of a connector of which no worker may receive a task: above all other levels."""

_Node: TypeAlias = ConnectorName | int
"""A connector, a worker, or one of the two nodes of the extras."""


def even_out(held: HeldTasks, deltas: Deltas, quotas: Quotas) -> None:
    """Change ``deltas``, and the extras in ``quotas``, to a best spread that stops no more tasks or connectors."""
    distribution = _Distribution(held, deltas, quotas)
    crowded_cells = list(distribution.reducible_cells())
    if not crowded_cells:
        return
    level = distribution.minimum_counts()
    # Keep only the cells whose condition fails; in most cells it holds. It then continues to hold and is not checked
    # again.
    crowded_cells = sorted(cell for cell in crowded_cells if -cell[0] > level[cell[1]] + 1)
    potentials = _Potentials(distribution, level)
    for _, name, worker in crowded_cells:
        while distribution.may_lose(worker, name) and (gain := -potentials.slack_of_losing(worker, name)) > 0:
            path = potentials.short_path(name, worker) or potentials.cheapest_path(name, worker, gain)
            if path:
                distribution.apply_cycle(path)


class _Distribution:
    """The tasks of each worker with the present ``deltas``, and which of them may still move."""

    def __init__(self, held: HeldTasks, deltas: Deltas, quotas: Quotas) -> None:
        self.held = held
        self.deltas = deltas
        self._shares = quotas
        changing = quotas.with_tradable_task_extra()
        self.workers = [worker for worker, delta in enumerate(deltas) if delta or worker in changing]
        """The workers whose tasks or extras may change."""
        self.givers = {worker for worker in self.workers if quotas.surplus[worker] > 0}

    def reducible_cells(self) -> Iterator[tuple[int, ConnectorName, int]]:
        """Yield (-tasks, connector, worker) for each worker that has several tasks of a connector and may release one.

        When sorted, the cells with most tasks come first.
        """
        for worker in self.workers:
            tasks, delta = self.held[worker], self.deltas[worker]
            if worker in self.givers:
                for name, before in tasks.items():
                    if before > 1 and (now := before + delta.get(name, 0)) > 1:
                        yield -now, name, worker
            else:
                for name, gained in delta.items():
                    if (now := tasks.get(name, 0) + gained) > 1:
                        yield -now, name, worker

    def has(self, worker: int, name: ConnectorName) -> int:
        """The number of tasks of connector ``name`` on ``worker`` with the present ``deltas``."""
        return self.held[worker].get(name, 0) + self.deltas[worker].get(name, 0)

    def may_take(self, worker: int, name: ConnectorName) -> bool:
        """Whether ``worker`` may receive a task of ``name``: a giver only takes back what it released."""
        return worker not in self.givers or name in self.deltas[worker]

    def may_lose(self, worker: int, name: ConnectorName) -> bool:
        """Whether ``worker`` may release a task of ``name``: a taker only releases what it received."""
        return self.has(worker, name) > 0 if worker in self.givers else name in self.deltas[worker]

    def removable(self, worker: int) -> list[tuple[ConnectorName, int]]:
        """Return (connector, its tasks on ``worker``) for each connector of which ``worker`` may release a task."""
        tasks, delta = self.held[worker], self.deltas[worker]
        if worker in self.givers:
            return [(name, now) for name, before in tasks.items() if (now := before + delta.get(name, 0))]
        return [(name, tasks.get(name, 0) + gained) for name, gained in delta.items()]

    def minimum_counts(self) -> dict[ConnectorName, int]:
        """Return, for each connector, the fewest of its tasks on a worker that may receive one more of them.

        :data:`INFINITE_LEVEL` if no worker may.
        """
        takers = [worker for worker in self.workers if worker not in self.givers]
        holding: Counter[ConnectorName] = Counter()
        for worker in takers:
            holding.update(self.held[worker].keys() | self.deltas[worker].keys())
        names = set(holding).union(*(self.held[worker] for worker in self.givers))
        lowest = dict.fromkeys(names, 0)
        for name in names:
            if holding[name] == len(takers):  # otherwise a taker has no task of this connector, so the lowest is 0
                could_take = [worker for worker in self.workers if self.may_take(worker, name)]
                lowest[name] = min((self.has(worker, name) for worker in could_take), default=INFINITE_LEVEL)
        return lowest

    # -- arcs of the extras -------------------------------------------------------------------------------------------

    def takes_extra_from(self, worker: int) -> Iterator[int]:
        """Yield the nodes from which ``worker`` can get a task extra.

        It keeps its connector extra if the node is that of the task extras, and gives its connector extra up if the
        node is that of the connector extras.
        """
        shares = self._shares
        connector = shares.has_connector_extra[worker]
        if shares.has_task_extra[worker]:
            return
        if shares.allows(worker, connector=connector, task=True):
            yield TASK_EXTRAS_NODE
        if connector and shares.allows(worker, connector=False, task=True):
            yield CONNECTOR_EXTRAS_NODE

    def give_extra_to(self, holder: int) -> Iterator[int]:
        """Yield the workers that can give up a task extra to the node ``holder``.

        If ``holder`` is the node of the connector extras, the worker gets a connector extra for its task extra.
        """
        shares = self._shares
        for worker in self.workers:
            connector = shares.has_connector_extra[worker]
            if not shares.has_task_extra[worker] or (holder == CONNECTOR_EXTRAS_NODE and connector):
                continue
            if shares.allows(worker, connector=connector or holder == CONNECTOR_EXTRAS_NODE, task=False):
                yield worker

    def connector_extra_trader(self, holder: int) -> int | None:
        """Return the first worker whose connector extra can change while its task extra stays; None if there is none.

        If ``holder`` is the node of the connector extras, the worker gets a connector extra. Otherwise it gives its
        connector extra up.
        """
        shares = self._shares
        gets = holder == CONNECTOR_EXTRAS_NODE
        for worker, connector in enumerate(shares.has_connector_extra):
            if connector != gets and shares.allows(worker, connector=gets, task=shares.has_task_extra[worker]):
                return worker
        return None

    # -- changes ------------------------------------------------------------------------------------------------------

    def apply_cycle(self, cycle: Sequence[_Node]) -> None:
        """Change the tasks and extras along ``cycle``; its last node (a worker) releases a task of its first node (a
        connector), each worker passes a task or an extra on, and the last node has its number of tasks again."""
        shares = self._shares
        # Computed before anything changes: within one cycle, no worker changes its connector extra twice.
        between = {holder: self.connector_extra_trader(holder) for holder in (TASK_EXTRAS_NODE, CONNECTOR_EXTRAS_NODE)}
        for origin, to in pairwise((cycle[-1], *cycle)):
            if isinstance(to, str):
                assert isinstance(origin, int)
                self._shift(origin, to, -1)
            elif isinstance(origin, str):
                self._shift(to, origin, +1)
            elif origin >= 0:
                shares.has_task_extra[origin] = True
                shares.has_connector_extra[origin] &= to != CONNECTOR_EXTRAS_NODE
            elif to >= 0:
                shares.has_task_extra[to] = False
                shares.has_connector_extra[to] |= origin == CONNECTOR_EXTRAS_NODE
            else:
                trader = between[origin]
                assert trader is not None
                shares.has_connector_extra[trader] = origin == CONNECTOR_EXTRAS_NODE

    def _shift(self, worker: int, name: ConnectorName, by: int) -> None:
        """Change the number of tasks of ``name`` that ``worker`` receives by ``by``."""
        delta = self.deltas[worker]
        delta[name] = delta.get(name, 0) + by
        if not delta[name]:
            del delta[name]


class _Potentials:
    """The levels and offsets, and the search that adjusts them.

    An arc is one step of a cycle: a worker receives a task, releases a task, or gets or gives up an extra. The slack of
    an arc is the difference between the two sides of its condition; below zero, the condition fails.
    """

    def __init__(self, distribution: _Distribution, level: dict[ConnectorName, int]) -> None:
        self._distribution = distribution
        self._level = level
        self._offset = dict.fromkeys([*distribution.workers, TASK_EXTRAS_NODE, CONNECTOR_EXTRAS_NODE], 0)
        self._lines: dict[int, deque[ConnectorName]] = {}

    def slack_of_losing(self, worker: int, name: ConnectorName) -> int:
        """Return level + offset + 1 minus the tasks of ``name`` on ``worker``: below zero when these are too many."""
        return self._level[name] + self._offset[worker] - (self._distribution.has(worker, name) - 1)

    def _slack_of_taking(self, worker: int, name: ConnectorName) -> int:
        """Return the tasks of ``name`` on ``worker`` minus level + offset: below zero when these are too few."""
        return self._distribution.has(worker, name) - self._level[name] - self._offset[worker]

    def _takes(self, worker: int, name: ConnectorName) -> bool:
        """Whether ``worker`` may receive a task of ``name`` and this arc has the slack 0."""
        return self._distribution.may_take(worker, name) and not self._slack_of_taking(worker, name)

    def short_path(self, start: ConnectorName, end: int) -> Sequence[_Node]:
        """Return a path for a task of ``start`` that leaves ``end``: through one other worker, each arc with slack 0.

        The path is empty if there is none. No path is cheaper, and for most tasks such a path is found quickly.
        """
        for worker in reversed(self._distribution.workers):
            if self._takes(worker, start) and (name := self._swappable_connector(worker, end)) is not None:
                return start, worker, name, end
        return ()

    def _swappable_connector(self, worker: int, to: int) -> ConnectorName | None:
        """Return a connector of which ``worker`` may release a task that ``to`` may receive, both arcs with slack 0.

        None if there is no such connector among those of which ``worker`` could release a task at its first call; these
        are cached. `cheapest_path` finds the connectors that ``worker`` received since. Each call for ``worker``
        continues where the previous call found a connector, so that it does not check the exhausted connectors again.
        """
        distribution = self._distribution
        if worker not in self._lines:
            self._lines[worker] = deque(sorted(name for name, _ in distribution.removable(worker)))
        line = self._lines[worker]
        for _ in range(len(line)):
            name = line[-1]
            if distribution.may_lose(worker, name) and not self.slack_of_losing(worker, name) and self._takes(to, name):
                return name
            line.rotate()
        return None

    def cheapest_path(self, start: ConnectorName, end: int, limit: int) -> Sequence[_Node]:
        """Return the cheapest path for a task of ``start`` that leaves ``end``; empty unless it costs below ``limit``.

        This is Dijkstra's search with slacks as lengths; arcs with a slack below zero are left out. Then the levels of
        the reached connectors rise, and the offsets of the reached workers and extras fall, by the difference between
        the path's length (without a path, ``limit``) and the node's distance. Now all arcs of the path have the slack
        0. If there is no path, the condition for releasing the task of ``start`` holds.
        """
        distribution = self._distribution
        distance: dict[_Node, int] = {start: 0}
        came_from: dict[_Node, _Node] = {}
        settled: set[_Node] = set()
        order = count()
        queue: list[tuple[int, int, _Node]] = [(0, next(order), start)]
        far: Sequence[int] = distribution.workers
        reached = limit
        while queue:
            here, _, node = heapq.heappop(queue)
            if node in settled:
                continue
            if node == end:
                reached = here
                break
            settled.add(node)
            if isinstance(node, str) and self._takes(end, node):
                came_from[end], reached = node, here
                break
            arcs: Iterable[tuple[int, _Node]]
            if isinstance(node, str):
                arcs, far = self._from_connector(node, far, limit - here)
            else:
                arcs = self._from_number(node)
            for slack, to in arcs:
                there = here + slack
                if there < distance.get(to, limit):
                    distance[to] = there
                    came_from[to] = node
                    # At equal distance the end comes first, then the latest node: depth first, the search ends soon.
                    heapq.heappush(queue, (there, -INFINITE_LEVEL if to == end else -next(order), to))
        for node, there in distance.items() if reached else ():
            rise = max(0, reached - there)
            if isinstance(node, str):
                self._level[node] += rise
            else:
                self._offset[node] -= rise
        if reached == limit:
            return ()
        path: list[_Node] = [end]
        while path[-1] != start:
            path.append(came_from[path[-1]])
        return path[::-1]

    def _from_connector(
        self, name: ConnectorName, far: Sequence[int], limit: int
    ) -> tuple[Sequence[tuple[int, int]], Sequence[int]]:
        """The arcs (slack, worker) to workers of ``far`` that may receive a task of ``name``; and the next ``far``.

        Only arcs with a slack below ``limit`` are returned. The next ``far`` are the workers not yet reached with
        slack 0: to the others, no later arc is shorter.
        """
        # `may_take` and `_slack_of_taking` are inlined because this loop runs over all workers very often.
        held, deltas, givers = self._distribution.held, self._distribution.deltas, self._distribution.givers
        level, offset = self._level[name], self._offset
        arcs = []
        still_far = []
        for worker in far:
            delta = deltas[worker]
            slack = INFINITE_LEVEL
            if name in delta or worker not in givers:
                slack = held[worker].get(name, 0) + delta.get(name, 0) - level - offset[worker]
            if slack:
                still_far.append(worker)
            if slack < limit:
                arcs.append((slack, worker))
        return arcs, still_far

    def _from_number(self, node: int) -> Iterator[tuple[int, _Node]]:
        """Yield the arcs (slack, next node) from a worker or from a node of the extras.

        From a worker they lead to the connectors of which it may release a task and to the extras that it can get.
        """
        distribution, offset = self._distribution, self._offset
        if node >= 0:
            above = offset[node] + 1
            level = self._level
            arcs = [(level[name] + above - now, name) for name, now in distribution.removable(node)]
            yield from sorted(arc for arc in arcs if arc[0] >= 0)
            for holder in distribution.takes_extra_from(node):
                yield offset[node] - offset[holder], holder
        else:
            for worker in distribution.give_extra_to(node):
                yield offset[node] - offset[worker], worker
            if distribution.connector_extra_trader(node) is not None:
                other = CONNECTOR_EXTRAS_NODE if node == TASK_EXTRAS_NODE else TASK_EXTRAS_NODE
                yield offset[node] - offset[other], other
