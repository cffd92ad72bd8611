"""The best spread: tasks change places at no extra stop until no connector can be spread more evenly.

That is a min-cost flow with convex costs (the n-th task of a connector on a worker costs n² - (n-1)²), of which
`exchange` has made a good solution, and this is the out-of-kilter method that makes it a best one. Every connector has
a *level* and every worker an *offset*; a best solution is one for which they can be chosen so that

- a worker that may take one more of a connector has at least level + offset of it;
- a worker that may do with one less has at most level + offset + 1.

Levels are chosen such that all of the first hold. Where one of the second does not, the task seeks a cheapest way: its
connector takes the place of another's task, that one another's, until the first worker is whole again. If such a cycle
makes the sum of squares less, it is made; either way levels and offsets rise until the second holds, too, and none that
held is broken.

Who may take and who may do with less is such that nobody stops more: who has too many takes back no more than it gave,
who has too few gives back no more than it took. Tasks' and connectors' extras change hands on the way, too, where
`shares` tells them to be alike: an offset each, as if both were workers.
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
"""Who hands the extras around: nodes beside the workers, whose numbers begin at 0."""
NOWHERE = 1 << 60
"""The level of a connector that no worker may take: above all others."""

_Node: TypeAlias = ConnectorName | int
"""A connector, a worker, or one of the two that hand extras around."""


def spread(held: HeldTasks, deltas: Deltas, shares: Shares) -> None:
    """Change ``deltas``, and the extras in ``shares``, to those of a best spread that needs no stop more."""
    exchanged = _Exchanged(held, deltas, shares)
    crowded = list(exchanged.crowded())
    if not crowded:
        return
    level = exchanged.lowest()
    # Most are where all have as many. What holds now goes on to hold, so nobody looks at it again.
    crowded = sorted(cell for cell in crowded if -cell[0] > level[cell[1]] + 1)
    prices = _Prices(exchanged, level)
    for _, name, worker in crowded:
        while exchanged.may_lose(worker, name) and (gain := -prices.slack_of_losing(worker, name)) > 0:
            way = prices.short_way(name, worker) or prices.cheapest_way(name, worker, gain)
            if way:
                exchanged.follow(way)


class _Exchanged:
    """What everybody has after the exchange, and what of it may still change."""

    def __init__(self, held: HeldTasks, deltas: Deltas, shares: Shares) -> None:
        self.held = held
        self.deltas = deltas
        self._shares = shares
        changing = shares.changing_workers()
        self.workers = [worker for worker, delta in enumerate(deltas) if delta or worker in changing]
        """Those whose tasks may change at all."""
        self.givers = {worker for worker in self.workers if shares.surplus[worker] > 0}

    def crowded(self) -> Iterator[tuple[int, ConnectorName, int]]:
        """Where several tasks of a connector are of which one could go; most tasks first when sorted."""
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
        """Of which connectors it may do with one less, and how many it has of each."""
        tasks, delta = self.held[worker], self.deltas[worker]
        if worker in self.givers:
            return [(name, now) for name, before in tasks.items() if (now := before + delta.get(name, 0))]
        return [(name, tasks.get(name, 0) + gained) for name, gained in delta.items()]

    def lowest(self) -> dict[ConnectorName, int]:
        """Of each connector, the least that a worker has that may take one more."""
        takers = [worker for worker in self.workers if worker not in self.givers]
        holding: Counter[ConnectorName] = Counter()
        for worker in takers:
            holding.update(self.held[worker].keys() | self.deltas[worker].keys())
        names = set(holding).union(*(self.held[worker] for worker in self.givers))
        lowest = dict.fromkeys(names, 0)
        for name in names:
            if holding[name] == len(takers):  # or else one has none
                could_take = [worker for worker in self.workers if self.may_take(worker, name)]
                lowest[name] = min((self.has(worker, name) for worker in could_take), default=NOWHERE)
        return lowest

    # -- the ways of extras -------------------------------------------------------------------------------------------

    def takes_extra_from(self, worker: int) -> Iterator[int]:
        """Who lets ``worker`` have a task's extra: for nothing, or for the connector's extra that it has."""
        shares = self._shares
        connector = shares.with_connector[worker]
        if shares.with_task[worker]:
            return
        if shares.may(worker, connector=connector, task=True):
            yield TASKS_EXTRAS
        if connector and shares.may(worker, connector=False, task=True):
            yield CONNECTORS_EXTRAS

    def give_extra_to(self, holder: int) -> Iterator[int]:
        """Which workers give up a task's extra: for nothing, or for a connector's extra."""
        shares = self._shares
        for worker in self.workers:
            connector = shares.with_connector[worker]
            if not shares.with_task[worker] or (holder == CONNECTORS_EXTRAS and connector):
                continue
            if shares.may(worker, connector=connector or holder == CONNECTORS_EXTRAS, task=False):
                yield worker

    def between(self, holder: int) -> int | None:
        """The first worker that gets a connector's extra and keeps the rest, or gives one up, seen from ``holder``."""
        shares = self._shares
        gets = holder == CONNECTORS_EXTRAS
        for worker, connector in enumerate(shares.with_connector):
            if connector != gets and shares.may(worker, connector=gets, task=shares.with_task[worker]):
                return worker
        return None

    # -- changing -----------------------------------------------------------------------------------------------------

    def follow(self, way: Sequence[_Node]) -> None:
        """The last of ``way``, a worker, gives up one of the first, a connector; all between them follows."""
        shares = self._shares
        # Asked before anything changes: on one way, nobody changes its connectors twice.
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
    """Levels and offsets, and the search that raises them."""

    def __init__(self, exchanged: _Exchanged, level: dict[ConnectorName, int]) -> None:
        self._exchanged = exchanged
        self._level = level
        self._offset = dict.fromkeys([*exchanged.workers, TASKS_EXTRAS, CONNECTORS_EXTRAS], 0)
        self._lines: dict[int, deque[ConnectorName]] = {}

    def slack_of_losing(self, worker: int, name: ConnectorName) -> int:
        """Below zero where ``worker`` has too many of ``name`` for level and offset."""
        return self._level[name] + self._offset[worker] - (self._exchanged.has(worker, name) - 1)

    def _slack_of_taking(self, worker: int, name: ConnectorName) -> int:
        return self._exchanged.has(worker, name) - self._level[name] - self._offset[worker]

    def _takes(self, worker: int, name: ConnectorName) -> bool:
        """Whether it may take one, without slack."""
        return self._exchanged.may_take(worker, name) and not self._slack_of_taking(worker, name)

    def short_way(self, start: ConnectorName, end: int) -> Sequence[_Node]:
        """A way by one other worker, without slack: none is cheaper, and most tasks find one before long."""
        for worker in reversed(self._exchanged.workers):
            if self._takes(worker, start) and (name := self._passed_on(worker, end)) is not None:
                return start, worker, name, end
        return ()

    def _passed_on(self, worker: int, to: int) -> ConnectorName | None:
        """Of what ``worker`` can do with one less that ``to`` takes.

        What it could do with less of when first asked stands in a line; what it took since is left to the search.
        Whoever looks along it goes on where the last one found something, or all would pass by what is used up.
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
        """The way of a task of ``start`` that leaves ``end``: empty when none costs less than ``limit``.

        Dijkstra's search over slacks; those that are below zero are no arcs yet. What it reached rises by as much as
        the way is longer, or ``limit`` is: then the way has no slack, or else the task's leaving has none.
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
                    # Among equals the end first, then the latest: it goes deep, and is there after a few steps.
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
        """To workers of ``far`` that may take one, if that costs less than ``limit``; and who stays far.

        Those without slack do not: no later arc leads to them sooner.
        """
        # `may_take` and `_slack_of_taking`, written out: this looks at every worker, again and again.
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
