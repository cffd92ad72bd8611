"""Makes the result of `exchange` a best spread: swaps moved tasks, without more stops, until no swap improves it.

This is a min-cost flow with convex costs: the n-th task of a connector on a worker costs n² - (n-1)². `exchange` has
computed a good solution, and the out-of-kilter method below turns it into a best one. Every connector has a *level* and
every worker has an *offset*. A solution is a best one if levels and offsets exist such that

- a worker that may receive one more task of a connector has at least level + offset tasks of it;
- a worker that may release one task of a connector has at most level + offset + 1 tasks of it.

The first levels satisfy all conditions of the first kind. If a condition of the second kind does not hold, the method
searches a cheapest cycle for one task: the task moves to another worker, that worker passes a task of another connector
to a third one, and so on, until the first worker has its number of tasks again. If the cycle reduces the sum of
squares, it is applied. In either case levels rise and offsets fall until the condition holds, and all conditions that
held before still hold.

The rules for which worker may receive or release a task ensure that no cycle causes another stop. A giver takes back no
more tasks of a connector than it released, and a taker releases no more tasks of a connector than it received. A cycle
may also move task extras and connector extras, where `shares` allows either worker to have them. Each kind of extra is
a node with an offset, as if it were a worker.

Example: three workers run the tasks of connectors a, b and c. Each runs one of the connectors, and its quota is two
tasks.

====== ============ ============== ===========
worker tasks before after exchange after spread
====== ============ ============== ===========
0      2 a, 2 b     1 a, 1 b       1 a, 1 b
1      1 c          1 c, 1 a       1 c, 1 b
2      1 b          2 b            1 b, 1 a
====== ============ ============== ===========

Worker 0 releases one a and one b. `exchange` assigns a first. Both takers have no a and the same room, so worker 1
receives the task. Then only worker 2 has room for the task of b. The sum of squares is 1 + 1, 1 + 1 and 4, which is 8.

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

from coterie.assignors.exchange import Deltas, HeldTasks
from coterie.assignors.shares import Shares
from coterie.nouns.jobs import ConnectorName

TASKS_EXTRAS = -1
CONNECTORS_EXTRAS = -2
"""The two nodes through which extras move. Workers are numbered from 0."""
NOWHERE = 1 << 60
"""The level of a connector of which no worker may receive a task: above all other levels."""

_Node: TypeAlias = ConnectorName | int
"""A connector, a worker, or one of the two nodes of the extras."""


def spread(held: HeldTasks, deltas: Deltas, shares: Shares) -> None:
    """Change ``deltas``, and the extras in ``shares``, to a best spread that needs no additional stop."""
    exchanged = _Exchanged(held, deltas, shares)
    crowded = list(exchanged.crowded())
    if not crowded:
        return
    level = exchanged.lowest()
    # Keep only the cells whose condition fails; in most cells it holds. It then continues to hold and is not checked
    # again.
    crowded = sorted(cell for cell in crowded if -cell[0] > level[cell[1]] + 1)
    prices = _Prices(exchanged, level)
    for _, name, worker in crowded:
        while exchanged.may_lose(worker, name) and (gain := -prices.slack_of_losing(worker, name)) > 0:
            way = prices.short_way(name, worker) or prices.cheapest_way(name, worker, gain)
            if way:
                exchanged.follow(way)


class _Exchanged:
    """The tasks of each worker after the exchange, and which of them may still move."""

    def __init__(self, held: HeldTasks, deltas: Deltas, shares: Shares) -> None:
        self.held = held
        self.deltas = deltas
        self._shares = shares
        changing = shares.changing_workers()
        self.workers = [worker for worker, delta in enumerate(deltas) if delta or worker in changing]
        """The workers whose tasks may change."""
        self.givers = {worker for worker in self.workers if shares.surplus[worker] > 0}

    def crowded(self) -> Iterator[tuple[int, ConnectorName, int]]:
        """Yield (-tasks, connector, worker) for each worker with several tasks of a connector, if it may release one.

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
        return self.held[worker].get(name, 0) + self.deltas[worker].get(name, 0)

    def may_take(self, worker: int, name: ConnectorName) -> bool:
        return worker not in self.givers or name in self.deltas[worker]

    def may_lose(self, worker: int, name: ConnectorName) -> bool:
        return self.has(worker, name) > 0 if worker in self.givers else name in self.deltas[worker]

    def losable(self, worker: int) -> list[tuple[ConnectorName, int]]:
        """Return the connectors of which ``worker`` may release a task, with the number of its tasks."""
        tasks, delta = self.held[worker], self.deltas[worker]
        if worker in self.givers:
            return [(name, now) for name, before in tasks.items() if (now := before + delta.get(name, 0))]
        return [(name, tasks.get(name, 0) + gained) for name, gained in delta.items()]

    def lowest(self) -> dict[ConnectorName, int]:
        """Return, for each connector, the fewest tasks on a worker that may receive one more."""
        takers = [worker for worker in self.workers if worker not in self.givers]
        holding: Counter[ConnectorName] = Counter()
        for worker in takers:
            holding.update(self.held[worker].keys() | self.deltas[worker].keys())
        names = set(holding).union(*(self.held[worker] for worker in self.givers))
        lowest = dict.fromkeys(names, 0)
        for name in names:
            if holding[name] == len(takers):  # otherwise a taker has no task of this connector, so the lowest is 0
                could_take = [worker for worker in self.workers if self.may_take(worker, name)]
                lowest[name] = min((self.has(worker, name) for worker in could_take), default=NOWHERE)
        return lowest

    # -- arcs of the extras -------------------------------------------------------------------------------------------

    def takes_extra_from(self, worker: int) -> Iterator[int]:
        """Yield the nodes from which ``worker`` can get a task extra: without trade, or for its connector extra."""
        shares = self._shares
        connector = shares.with_connector[worker]
        if shares.with_task[worker]:
            return
        if shares.may(worker, connector=connector, task=True):
            yield TASKS_EXTRAS
        if connector and shares.may(worker, connector=False, task=True):
            yield CONNECTORS_EXTRAS

    def give_extra_to(self, holder: int) -> Iterator[int]:
        """Yield the workers that can give up a task extra to ``holder``: without trade, or for a connector extra."""
        shares = self._shares
        for worker in self.workers:
            connector = shares.with_connector[worker]
            if not shares.with_task[worker] or (holder == CONNECTORS_EXTRAS and connector):
                continue
            if shares.may(worker, connector=connector or holder == CONNECTORS_EXTRAS, task=False):
                yield worker

    def between(self, holder: int) -> int | None:
        """Return the first worker whose connector extra can change without its task extra; None if there is none.

        If ``holder`` is the node of the connector extras, the worker gets a connector extra. Otherwise it gives one up.
        """
        shares = self._shares
        gets = holder == CONNECTORS_EXTRAS
        for worker, connector in enumerate(shares.with_connector):
            if connector != gets and shares.may(worker, connector=gets, task=shares.with_task[worker]):
                return worker
        return None

    # -- changes ------------------------------------------------------------------------------------------------------

    def follow(self, way: Sequence[_Node]) -> None:
        """Apply the cycle ``way``: its last node, a worker, releases a task of its first node, a connector."""
        shares = self._shares
        # Computed before anything changes: within one cycle, no worker changes its connector extra twice.
        between = {holder: self.between(holder) for holder in (TASKS_EXTRAS, CONNECTORS_EXTRAS)}
        for origin, to in pairwise((way[-1], *way)):
            if isinstance(to, str):
                assert isinstance(origin, int)
                self._shift(origin, to, -1)
            elif isinstance(origin, str):
                self._shift(to, origin, +1)
            elif origin >= 0:
                shares.with_task[origin] = True
                shares.with_connector[origin] &= to != CONNECTORS_EXTRAS
            elif to >= 0:
                shares.with_task[to] = False
                shares.with_connector[to] |= origin == CONNECTORS_EXTRAS
            else:
                trader = between[origin]
                assert trader is not None
                shares.with_connector[trader] = origin == CONNECTORS_EXTRAS

    def _shift(self, worker: int, name: ConnectorName, by: int) -> None:
        delta = self.deltas[worker]
        delta[name] = delta.get(name, 0) + by
        if not delta[name]:
            del delta[name]


class _Prices:
    """The levels and offsets, and the search that adjusts them.

    The slack of an arc is the difference between the two sides of its condition; below zero, the condition fails.
    """

    def __init__(self, exchanged: _Exchanged, level: dict[ConnectorName, int]) -> None:
        self._exchanged = exchanged
        self._level = level
        self._offset = dict.fromkeys([*exchanged.workers, TASKS_EXTRAS, CONNECTORS_EXTRAS], 0)
        self._lines: dict[int, deque[ConnectorName]] = {}

    def slack_of_losing(self, worker: int, name: ConnectorName) -> int:
        """Return level + offset + 1 minus the tasks of ``name`` on ``worker``: below zero when it has too many."""
        return self._level[name] + self._offset[worker] - (self._exchanged.has(worker, name) - 1)

    def _slack_of_taking(self, worker: int, name: ConnectorName) -> int:
        return self._exchanged.has(worker, name) - self._level[name] - self._offset[worker]

    def _takes(self, worker: int, name: ConnectorName) -> bool:
        """Whether ``worker`` may receive a task of ``name``, and the arc has no slack."""
        return self._exchanged.may_take(worker, name) and not self._slack_of_taking(worker, name)

    def short_way(self, start: ConnectorName, end: int) -> Sequence[_Node]:
        """Return a path through one other worker without slack, or an empty one if there is none.

        No path is cheaper, and most tasks quickly find such a path.
        """
        for worker in reversed(self._exchanged.workers):
            if self._takes(worker, start) and (name := self._passed_on(worker, end)) is not None:
                return start, worker, name, end
        return ()

    def _passed_on(self, worker: int, to: int) -> ConnectorName | None:
        """Return a connector of which ``worker`` may release a task that ``to`` may receive, both without slack.

        The connectors of which ``worker`` could release a task are cached at the first call; `cheapest_way` finds the
        connectors that it received since. Each call continues where the previous one found a connector, so that it does
        not check the exhausted connectors again.
        """
        exchanged = self._exchanged
        if worker not in self._lines:
            self._lines[worker] = deque(sorted(name for name, _ in exchanged.losable(worker)))
        line = self._lines[worker]
        for _ in range(len(line)):
            name = line[-1]
            if exchanged.may_lose(worker, name) and not self.slack_of_losing(worker, name) and self._takes(to, name):
                return name
            line.rotate()
        return None

    def cheapest_way(self, start: ConnectorName, end: int, limit: int) -> Sequence[_Node]:
        """Return the cheapest path for a task of ``start`` that leaves ``end``; empty unless it costs below ``limit``.

        This is Dijkstra's search with slacks as lengths; arcs with a slack below zero are left out. Then the levels of
        the reached nodes rise, and their offsets fall, by the difference between the path's length (without a path,
        ``limit``) and the node's distance. After that the path has no slack, or, without a path, the release of the
        task has none.
        """
        exchanged = self._exchanged
        distance: dict[_Node, int] = {start: 0}
        came_from: dict[_Node, _Node] = {}
        settled: set[_Node] = set()
        order = count()
        queue: list[tuple[int, int, _Node]] = [(0, next(order), start)]
        far: Sequence[int] = exchanged.workers
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
                    # Among equals the end comes first, then the latest node: a depth-first search reaches the end soon.
                    heapq.heappush(queue, (there, -NOWHERE if to == end else -next(order), to))
        for node, there in distance.items() if reached else ():
            rise = max(0, reached - there)
            if isinstance(node, str):
                self._level[node] += rise
            else:
                self._offset[node] -= rise
        if reached == limit:
            return ()
        way: list[_Node] = [end]
        while way[-1] != start:
            way.append(came_from[way[-1]])
        return way[::-1]

    def _from_connector(
        self, name: ConnectorName, far: Sequence[int], limit: int
    ) -> tuple[Sequence[tuple[int, int]], Sequence[int]]:
        """Return the arcs to workers of ``far`` that may receive a task of ``name`` and cost less than ``limit``.

        Also return the workers that stay in ``far``. Workers reached without slack do not: no later arc to them is
        shorter.
        """
        # `may_take` and `_slack_of_taking` are inlined because this loop runs over all workers very often.
        held, deltas, givers = self._exchanged.held, self._exchanged.deltas, self._exchanged.givers
        level, offset = self._level[name], self._offset
        arcs = []
        still_far = []
        for worker in far:
            delta = deltas[worker]
            slack = NOWHERE
            if name in delta or worker not in givers:
                slack = held[worker].get(name, 0) + delta.get(name, 0) - level - offset[worker]
            if slack:
                still_far.append(worker)
            if slack < limit:
                arcs.append((slack, worker))
        return arcs, still_far

    def _from_number(self, node: int) -> Iterator[tuple[int, _Node]]:
        exchanged, offset = self._exchanged, self._offset
        if node >= 0:
            above = offset[node] + 1
            level = self._level
            arcs = [(level[name] + above - now, name) for name, now in exchanged.losable(node)]
            yield from sorted(arc for arc in arcs if arc[0] >= 0)
            for holder in exchanged.takes_extra_from(node):
                yield offset[node] - offset[holder], holder
        else:
            for worker in exchanged.give_extra_to(node):
                yield offset[node] - offset[worker], worker
            if exchanged.between(node) is not None:
                other = CONNECTORS_EXTRAS if node == TASKS_EXTRAS else TASKS_EXTRAS
                yield offset[node] - offset[other], other
