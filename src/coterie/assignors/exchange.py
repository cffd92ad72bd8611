"""Tasks change hands, as counts: who has too many gives where it has most, who has too few takes where there is least.

Both go one step at a time and never look back, so that the cost is that of the cells (connector, worker) of those who
give, plus that of the tasks that change hands. What is left uneven `spread` puts right.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from coterie.assignors.shares import Shares
from coterie.nouns.jobs import ConnectorName

Held: TypeAlias = Sequence[Mapping[ConnectorName, int]]
"""Of each worker, its tasks by connector."""
Deltas: TypeAlias = Sequence[dict[ConnectorName, int]]
"""Of each worker, by connector: tasks gained (above zero) or given away (below); nothing is at zero."""


def exchange(held: Held, free: Mapping[ConnectorName, int], shares: Shares) -> Deltas:
    """Bring every worker to its share, and settle in ``shares`` who has a task's extra.

    :param free: the tasks that nobody runs.
    """
    deltas: Deltas = [{} for _ in held]
    surplus = [sum(tasks.values()) - shares.tasks_floor for tasks in held]
    givers = [worker for worker, over in enumerate(surplus) if over > 0]
    takers = [worker for worker, over in enumerate(surplus) if over <= 0]
    # All open workers give, or all take: an extra saves a stop for the ones and not for the others.
    open_ = [worker for worker in range(len(held)) if shares.is_open(worker)]
    extras = shares.tasks_extras - sum(shares.with_task)
    to_place = dict(free)
    if givers:
        giving = _Giving(held, deltas, givers, takers, to_place)
        may_keep = [worker for worker in open_ if surplus[worker] > 0]
        for worker in may_keep:
            shares.with_task[worker] = True
        due = {worker: surplus[worker] - shares.with_task[worker] for worker in givers}
        giving.give(due, sum(due.values()))
        for worker in giving.give(dict.fromkeys(may_keep, 1), max(0, len(may_keep) - extras)):
            shares.with_task[worker] = False
    may_take = frozenset(worker for worker in open_ if surplus[worker] <= 0)
    room = {worker: shares.with_task[worker] - surplus[worker] for worker in takers}
    taking = _Taking(held, deltas, shares.with_task, room, may_take, extras)
    for name in sorted(to_place, key=lambda name: (-to_place[name], name)):
        taking.take(name, to_place[name])
    return deltas


# -- giving -----------------------------------------------------------------------------------------------------------


class _Giving:
    """What those above their share give, into ``to_place``."""

    def __init__(
        self,
        held: Held,
        deltas: Deltas,
        givers: Sequence[int],
        takers: Sequence[int],
        to_place: dict[ConnectorName, int],
    ) -> None:
        self._held = held
        self._deltas = deltas
        self._to_place = to_place
        names = sorted(set().union(*(held[worker] for worker in givers)))
        self._levels = _Levels(names, [held[worker] for worker in takers])
        for name, count in to_place.items():
            self._levels.fill(name, count)
        level = self._levels.level
        rank = {name: place for place, name in enumerate(reversed(names))}
        self._offers: dict[int, list[tuple[int, int, ConnectorName]]] = {}
        """Of each giver a heap: by how much giving one adds to the sum of squares (halved, less one), and of what."""
        # Among equals each giver begins with another connector: else who takes would have to fit exactly, and every
        # price that rises would be that of all.
        step = max(len(takers) - 1, len(names) // len(held))
        for worker in givers:
            first = worker * step
            offers = [
                (level[name] - count, (rank[name] + first) % len(names), name) for name, count in held[worker].items()
            ]
            heapq.heapify(offers)
            self._offers[worker] = offers

    def give(self, due: dict[int, int], at_most: int) -> Sequence[int]:
        """One by one, from where it spreads best, among equals from the last; ``due``, by worker, goes down.

        Returns who gave, in order.
        """
        queue = [(self._best(worker), -worker) for worker, count in due.items() if count] if at_most else []
        heapq.heapify(queue)
        gave: list[int] = []
        while len(gave) < at_most:
            then, minus = queue[0]
            worker = -minus
            now = self._best(worker)
            if now != then:  # it has fewer since, or takers have more: prices only rise
                heapq.heapreplace(queue, (now, minus))
                continue
            name = now[2]
            delta = self._deltas[worker]
            delta[name] = delta.get(name, 0) - 1
            if not self._held[worker][name] + delta[name]:
                heapq.heappop(self._offers[worker])
            self._to_place[name] = self._to_place.get(name, 0) + 1
            self._levels.fill(name, 1)
            gave.append(worker)
            due[worker] -= 1
            if not due[worker]:
                heapq.heappop(queue)
        return gave

    def _best(self, worker: int) -> tuple[int, int, ConnectorName]:
        offers, tasks, delta = self._offers[worker], self._held[worker], self._deltas[worker]
        level = self._levels.level
        while True:
            price, tie, name = offers[0]
            now = level[name] - tasks[name] - delta.get(name, 0)
            if now == price:
                return offers[0]
            heapq.heapreplace(offers, (now, tie, name))


class _Levels:
    """Where the next task of each connector would come to lie, were the takers filled evenly."""

    def __init__(self, names: Iterable[ConnectorName], takers: Held) -> None:
        self.level = dict.fromkeys(names, 0)
        self._at = dict.fromkeys(self.level, len(takers))
        """How many takers are at the level."""
        self._above: dict[ConnectorName, dict[int, int]] = {name: {} for name in self.level}
        """How many have how many more."""
        for tasks in takers:
            for name, count in tasks.items():
                if name in self.level:
                    above = self._above[name]
                    above[count] = above.get(count, 0) + 1
                    self._at[name] -= 1
        for name in self.level:
            self.fill(name, 0)

    def fill(self, name: ConnectorName, tasks: int) -> None:
        if name not in self.level:
            return
        above = self._above[name]
        while True:
            step = min(tasks, self._at[name])
            tasks -= step
            self._at[name] -= step
            if step:
                following = self.level[name] + 1
                above[following] = above.get(following, 0) + step
            if self._at[name]:
                return
            self.level[name] += 1
            self._at[name] = above.pop(self.level[name], 0)


# -- taking -----------------------------------------------------------------------------------------------------------


class _Taking:
    """Deals tasks to those below their share: where there is least of the connector, then where is most room."""

    def __init__(
        self,
        held: Held,
        deltas: Deltas,
        with_task: list[bool],
        room: Mapping[int, int],
        open_: frozenset[int],
        extras: int,
    ) -> None:
        """``open_`` are those among whom there are ``extras`` to be had, each a task above its room."""
        self._held = held
        self._deltas = deltas
        self._with_task = with_task
        self._open = open_
        self._extras = extras
        self._lines: dict[int, list[int]] = {}
        """By room, who has so much, in the order of being served; in line 0 are those who may have an extra."""
        for worker, left in room.items():
            if left or (extras and worker in open_):
                self._lines.setdefault(left, []).append(worker)

    def take(self, name: ConnectorName, count: int) -> None:
        level = 0
        while True:
            count -= self._take_at(level, name, count)
            if not count:
                return
            level = min(self._count(worker, name) for line in self._lines.values() for worker in line)

    def _take_at(self, level: int, name: ConnectorName, count: int) -> int:
        """One each for those who have no more than ``level``, ``count`` at most. Returns how many took one."""
        left = count
        moved_up: dict[int, list[int]] = {}
        for room in sorted(self._lines, reverse=True):
            taken, passed = self._serve(self._lines.pop(room), level, name, left if room else min(left, self._extras))
            if passed:
                self._lines[room] = passed
            left -= len(taken)
            if room > 1:
                moved_up[room - 1] = taken
            elif room:
                moved_up[0] = [worker for worker in taken if worker in self._open]
            else:
                self._extras -= len(taken)
                for worker in taken:
                    self._with_task[worker] = True
            if not left:
                break
        for room, workers in moved_up.items():
            if workers:
                self._lines.setdefault(room, []).extend(workers)
        if not self._extras:
            self._lines.pop(0, None)
        return count - left

    def _serve(self, line: Sequence[int], level: int, name: ConnectorName, most: int) -> tuple[list[int], list[int]]:
        """One each for the first ``most`` in line who have no more than ``level``. Returns them, then all others."""
        taken: list[int] = []
        passed: list[int] = []
        waiting = iter(line)
        for worker in waiting:
            delta = self._deltas[worker]
            if self._held[worker].get(name, 0) + delta.get(name, 0) > level:
                passed.append(worker)
                continue
            delta[name] = delta.get(name, 0) + 1
            taken.append(worker)
            if len(taken) == most:
                break
        passed.extend(waiting)
        return taken, passed

    def _count(self, worker: int, name: ConnectorName) -> int:
        return self._held[worker].get(name, 0) + self._deltas[worker].get(name, 0)
