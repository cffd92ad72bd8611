"""Moves surplus tasks, as counts, from workers above their quota (givers) to workers below it (takers).

A giver releases tasks of the connectors of which it runs most. A taker receives tasks of the connectors of which it
runs least. Both are greedy: one task at a time, and no step is undone. So the cost grows with the number of cells
(connector, worker) of the givers and with the number of tasks that move. `spread` then evens out the result.

Example: three workers run the tasks of two connectors, a and b. The connectors themselves run on workers 1 and 2. So
worker 0 may run one task more than the floor (the extra of `quotas`), and every worker ends with three jobs.

====== ============ ======= ========= ============ =============
worker tasks before surplus may run   tasks after  moved
====== ============ ======= ========= ============ =============
0      3 a, 3 b     4       2 + extra 2 a, 1 b     -1 a, -2 b
1      1 a          -1      2         1 a, 1 b     +1 b
2      none         -2      2         1 a, 1 b     +1 a, +1 b
====== ============ ======= ========= ============ =============

The 7 tasks divided by 3 workers give a floor of 2 and one extra. A giver that keeps the extra stops one task less, so
worker 0 keeps it and releases three tasks:

1. The price of a release is the lowest count of the connector on a taker, minus its count on the giver. The task with
   the lowest price is released first. The price is 0 - 3 for a and for b. Among equals the last name comes first:
   worker 0 releases one b. One taker can receive it, and the other taker still has no b.
2. Now b costs 0 - 2, and a costs 0 - 3: worker 0 releases one a. If worker 2 receives it, both takers have one a.
3. Now a costs 1 - 2, and b costs 0 - 2: worker 0 releases another b.

Then the takers receive these three tasks, the connector with most tasks first: worker 2, which has most room, and
worker 1 receive one b each. The task of a goes to worker 2, the only taker that still has room.
"""

import heapq
from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from coterie.assignors.quotas import Quotas
from coterie.nouns.jobs import ConnectorName

HeldTasks: TypeAlias = Sequence[Mapping[ConnectorName, int]]
"""For each worker: the number of tasks that it runs before any task moves, by connector."""
Deltas: TypeAlias = Sequence[dict[ConnectorName, int]]
"""For each worker, by connector: the number of tasks received (above zero) or released (below zero), never zero."""

MINUS_INFINITY = -(1 << 60)
"""Below the price of every release."""


def redistribute(held: HeldTasks, free: Mapping[ConnectorName, int], quotas: Quotas) -> Deltas:
    """Return the changes that bring every worker to its quota of tasks.

    This sets in ``quotas.has_task_extra`` which workers have a task extra.

    :param held: for each worker, the number of tasks that it runs, by connector.
    :param free: the number of tasks that no worker runs, by connector.
    """
    deltas: Deltas = [{} for _ in held]
    surplus = quotas.surplus
    givers = [worker for worker, over in enumerate(surplus) if over > 0]
    takers = [worker for worker, over in enumerate(surplus) if over <= 0]
    # All open workers are givers, or all are takers: an extra saves a stop for a giver, but not for a taker.
    open_ = quotas.with_optional_task_extra()
    extras = quotas.tasks_extras - sum(quotas.has_task_extra)
    to_place = dict(free)
    may_keep = {worker for worker in open_ if surplus[worker] > 0}
    for worker in may_keep:
        quotas.has_task_extra[worker] = True
    due = {worker: surplus[worker] - quotas.has_task_extra[worker] for worker in givers}
    more = max(0, len(may_keep) - extras)
    if more or any(due.values()):
        levels = _Levels(sorted(set().union(*(held[worker] for worker in givers))), [held[w] for w in takers])
        for name, count in free.items():
            levels.fill(name, count)
        for worker in _release(held, deltas, levels, due, may_keep, more, to_place):
            quotas.has_task_extra[worker] = False
    may_take = frozenset(worker for worker in open_ if surplus[worker] <= 0)
    room = {worker: quotas.has_task_extra[worker] - surplus[worker] for worker in takers}
    receiving = _Receiving(held, deltas, quotas.has_task_extra, room, may_take, extras)
    for name in sorted(to_place, key=lambda name: (-to_place[name], name)):
        receiving.take(name, to_place[name])
    return deltas


# -- giving -----------------------------------------------------------------------------------------------------------


def _release(
    held: HeldTasks,
    deltas: Deltas,
    levels: "_Levels",
    due: dict[int, int],
    may_give: set[int],
    more: int,
    to_place: dict[ConnectorName, int],
) -> Sequence[int]:
    """Release tasks one by one, each time the task whose release improves the spread most.

    Each worker in ``due`` releases the number of tasks given there. In addition, ``more`` of the workers in
    ``may_give`` release one task each. Among equals the connectors take turns, the last name first, and the last worker
    of a connector first. The releases are written to ``deltas``, added to ``to_place`` and ``levels``, and counted down
    in ``due``; the workers that release an additional task are removed from ``may_give``.

    Returns the workers that released an additional task.
    """
    level = levels.level
    offers: dict[ConnectorName, list[tuple[int, int]]] = {name: [] for name in level}
    """For each connector, sorted pairs (its tasks on a worker, the worker); the last pair releases first."""
    for worker in due:
        for name, count in held[worker].items():
            offers[name].append((count, worker))
    # (price, number of tasks released, position that breaks ties, connector). The price is the change of the sum of
    # squares when one task moves, halved, minus one.
    queue = [(MINUS_INFINITY, 0, place, name) for place, name in enumerate(reversed(level))]
    gave_more: list[int] = []
    left = sum(due.values()) + more
    for line in offers.values():
        line.sort()
    while left:
        price, given, place, name = queue[0]
        line = offers[name]
        while line and not due[line[-1][1]] and (line[-1][1] not in may_give or len(gave_more) == more):
            line.pop()
        if not line:
            heapq.heappop(queue)
            continue
        count, worker = line[-1]
        now = level[name] - count
        if now != price:  # the price rose: the giver has fewer tasks now, or the takers have more
            heapq.heapreplace(queue, (now, given, place, name))
            continue
        deltas[worker][name] = deltas[worker].get(name, 0) - 1
        to_place[name] = to_place.get(name, 0) + 1
        levels.fill(name, 1)
        left -= 1
        if due[worker]:
            due[worker] -= 1
        else:
            may_give.remove(worker)
            gave_more.append(worker)
        line.pop()
        if count > 1:
            insort(line, (count - 1, worker))
        heapq.heapreplace(queue, (price, given + 1, place, name))
    return gave_more


class _Levels:
    """The level of each connector: the lowest number of its tasks on a taker, if the takers are filled evenly.

    The next task of the connector goes to a taker with this number.
    """

    def __init__(self, names: Iterable[ConnectorName], takers: HeldTasks) -> None:
        self.level = dict.fromkeys(names, 0)
        self._at = dict.fromkeys(self.level, len(takers))
        """The number of takers at the connector's level."""
        self._above: dict[ConnectorName, dict[int, int]] = {name: {} for name in self.level}
        """The number of takers at each number of the connector's tasks above its level."""
        for tasks in takers:
            for name, count in tasks.items():
                if name in self.level:
                    above = self._above[name]
                    above[count] = above.get(count, 0) + 1
                    self._at[name] -= 1
        for name in self.level:
            self.fill(name, 0)

    def fill(self, name: ConnectorName, tasks: int) -> None:
        """Add this many ``tasks`` of connector ``name``, each to a taker at the level. Other connectors are ignored."""
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


class _Receiving:
    """Assigns tasks to workers below their quota.

    A task goes to a worker with the fewest tasks of the connector; among these, to a worker with most room.
    """

    def __init__(
        self,
        held: HeldTasks,
        deltas: Deltas,
        has_task_extra: list[bool],
        room: Mapping[int, int],
        open_: frozenset[int],
        extras: int,
    ) -> None:
        """Set up the takers with their ``room``, the number of tasks that each can receive without a further extra.

        ``extras`` of the workers in ``open_`` can receive one task above their room, as their task extra. Assigned
        tasks are added to ``deltas``, and extras to ``has_task_extra``.
        """
        self._held = held
        self._deltas = deltas
        self._has_task_extra = has_task_extra
        self._open = open_
        self._extras = extras
        self._receivers_by_room: dict[int, list[int]] = {}
        """The workers with each room, in the order in which they receive tasks. Those with room 0 can receive a task
        extra."""
        for worker, left in room.items():
            if left or (extras and worker in open_):
                self._receivers_by_room.setdefault(left, []).append(worker)

    def take(self, name: ConnectorName, count: int) -> None:
        """Assign ``count`` tasks of connector ``name``."""
        level, given = self._level_out(name, count)
        count -= given
        while count:
            count -= self._take_at(level, name, count)
            if count:
                level = min(self._count(worker, name) for line in self._receivers_by_room.values() for worker in line)

    def _level_out(self, name: ConnectorName, count: int) -> tuple[int, int]:
        """Bring all workers to the same number of tasks of ``name`` at once, if there are two tasks for each worker.

        Returns this number (the level) and how many tasks were assigned, at most ``count``; 0 and 0 when none were.
        """
        if count < 2 * sum(map(len, self._receivers_by_room.values())):
            return 0, 0
        room = {worker: room for room, line in sorted(self._receivers_by_room.items(), reverse=True) for worker in line}
        has = {worker: self._count(worker, name) for worker in room}
        level = min((sum(has.values()) + count) // len(has), *(has[worker] + room[worker] for worker in room))
        if level <= max(has.values()):
            return 0, 0
        self._receivers_by_room.clear()
        for worker, before in has.items():
            more = level - before
            self._deltas[worker][name] = self._deltas[worker].get(name, 0) + more
            left = room[worker] - more
            if left or (self._extras and worker in self._open):
                self._receivers_by_room.setdefault(left, []).append(worker)
        return level, len(has) * level - sum(has.values())

    def _take_at(self, level: int, name: ConnectorName, count: int) -> int:
        """Assign one task of ``name`` each to at most ``count`` workers that have at most ``level`` tasks of it.

        Workers with most room come first. Returns the number of tasks assigned.
        """
        left = count
        moved_up: dict[int, list[int]] = {}
        for room in sorted(self._receivers_by_room, reverse=True):
            taken, passed = self._serve(
                self._receivers_by_room.pop(room), level, name, left if room else min(left, self._extras)
            )
            if passed:
                self._receivers_by_room[room] = passed
            left -= len(taken)
            if room > 1:
                moved_up[room - 1] = taken
            elif room:
                moved_up[0] = [worker for worker in taken if worker in self._open]
            else:
                self._extras -= len(taken)
                for worker in taken:
                    self._has_task_extra[worker] = True
            if not left:
                break
        for room, workers in moved_up.items():
            if workers:
                self._receivers_by_room.setdefault(room, []).extend(workers)
        if not self._extras:
            self._receivers_by_room.pop(0, None)
        return count - left

    def _serve(self, line: Sequence[int], level: int, name: ConnectorName, most: int) -> tuple[list[int], list[int]]:
        """Assign one task of ``name`` each to the first ``most`` workers in ``line`` that have at most ``level`` of it.

        Returns these workers, then all other workers of ``line``.
        """
        taken: list[int] = []
        passed: list[int] = []
        held, deltas = self._held, self._deltas
        deferrals = iter(line)
        for worker in deferrals:
            delta = deltas[worker]
            gained = delta.get(name, 0)
            if held[worker].get(name, 0) + gained > level:
                passed.append(worker)
                continue
            delta[name] = gained + 1
            taken.append(worker)
            if len(taken) == most:
                break
        passed.extend(deferrals)
        return taken, passed

    def _count(self, worker: int, name: ConnectorName) -> int:
        """The number of tasks of ``name`` that ``worker`` has now, with those that it has received."""
        return self._held[worker].get(name, 0) + self._deltas[worker].get(name, 0)
