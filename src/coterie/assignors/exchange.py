"""Tasks change hands, as counts: who has too many gives where it has most, who has too few takes where there is least.

Both go one step at a time and never look back, so that the cost is that of the cells (connector, worker) of those who
give, plus that of the tasks that change hands. What is left uneven `spread` puts right.
"""

import heapq
from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from coterie.assignors.shares import Shares
from coterie.nouns.jobs import ConnectorName

HeldTasks: TypeAlias = Sequence[Mapping[ConnectorName, int]]
"""Of each worker, its tasks by connector."""
Deltas: TypeAlias = Sequence[dict[ConnectorName, int]]
"""Of each worker, by connector: tasks gained (above zero) or given away (below); nothing is at zero."""

NOTHING = -(1 << 60)
"""Below every price."""


def exchange(held: HeldTasks, free: Mapping[ConnectorName, int], shares: Shares) -> Deltas:
    """Bring every worker to its share, and settle in ``shares`` who has a task's extra.

    :param free: the tasks that nobody runs.
    """
    deltas: Deltas = [{} for _ in held]
    surplus = shares.surplus
    givers = [worker for worker, over in enumerate(surplus) if over > 0]
    takers = [worker for worker, over in enumerate(surplus) if over <= 0]
    # All open workers give, or all take: an extra saves a stop for the ones and not for the others.
    open_ = shares.open_workers()
    extras = shares.tasks_extras - sum(shares.with_task)
    to_place = dict(free)
    may_keep = {worker for worker in open_ if surplus[worker] > 0}
    for worker in may_keep:
        shares.with_task[worker] = True
    due = {worker: surplus[worker] - shares.with_task[worker] for worker in givers}
    more = max(0, len(may_keep) - extras)
    if more or any(due.values()):
        levels = _Levels(sorted(set().union(*(held[worker] for worker in givers))), [held[w] for w in takers])
        for name, count in free.items():
            levels.fill(name, count)
        for worker in _give(held, deltas, levels, due, may_keep, more, to_place):
            shares.with_task[worker] = False
    may_take = frozenset(worker for worker in open_ if surplus[worker] <= 0)
    room = {worker: shares.with_task[worker] - surplus[worker] for worker in takers}
    taking = _Taking(held, deltas, shares.with_task, room, may_take, extras)
    for name in sorted(to_place, key=lambda name: (-to_place[name], name)):
        taking.take(name, to_place[name])
    return deltas


# -- giving -----------------------------------------------------------------------------------------------------------


def _give(
    held: HeldTasks,
    deltas: Deltas,
    levels: "_Levels",
    due: dict[int, int],
    may_give: set[int],
    more: int,
    to_place: dict[ConnectorName, int],
) -> Sequence[int]:
    """One by one, from where it spreads best: what is ``due``, by worker, and ``more`` by those who ``may_give`` one.

    It comes ``to_place``. Among equals each connector gives in turn, the last by name first, and of it the last worker.
    Returns who gave one more.
    """
    level = levels.level
    offers: dict[ConnectorName, list[tuple[int, int]]] = {name: [] for name in level}
    """Of each connector a sorted line, whose last gives first: how many of it a worker has, the worker."""
    for worker in due:
        for name, count in held[worker].items():
            offers[name].append((count, worker))
    # By how much giving one adds to the sum of squares (halved, less one), how many have been given, a tie, of what.
    queue = [(NOTHING, 0, place, name) for place, name in enumerate(reversed(level))]
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
        if now != price:  # it has fewer since, or takers have more: prices only rise
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
    """Where the next task of each connector would come to lie, were the takers filled evenly."""

    def __init__(self, names: Iterable[ConnectorName], takers: HeldTasks) -> None:
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
        held: HeldTasks,
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
        level, given = self._level_out(name, count)
        count -= given
        while count:
            count -= self._take_at(level, name, count)
            if count:
                level = min(self._count(worker, name) for line in self._lines.values() for worker in line)

    def _level_out(self, name: ConnectorName, count: int) -> tuple[int, int]:
        """Where there are several for everybody, bring all to one level at once: to which, and how many that took."""
        if count < 2 * sum(map(len, self._lines.values())):
            return 0, 0
        room = {worker: room for room, line in sorted(self._lines.items(), reverse=True) for worker in line}
        has = {worker: self._count(worker, name) for worker in room}
        level = min((sum(has.values()) + count) // len(has), *(has[worker] + room[worker] for worker in room))
        if level <= max(has.values()):
            return 0, 0
        self._lines.clear()
        for worker, before in has.items():
            more = level - before
            self._deltas[worker][name] = self._deltas[worker].get(name, 0) + more
            left = room[worker] - more
            if left or (self._extras and worker in self._open):
                self._lines.setdefault(left, []).append(worker)
        return level, len(has) * level - sum(has.values())

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
        held, deltas = self._held, self._deltas
        waiting = iter(line)
        for worker in waiting:
            delta = deltas[worker]
            gained = delta.get(name, 0)
            if held[worker].get(name, 0) + gained > level:
                passed.append(worker)
                continue
            delta[name] = gained + 1
            taken.append(worker)
            if len(taken) == most:
                break
        passed.extend(waiting)
        return taken, passed

    def _count(self, worker: int, name: ConnectorName) -> int:
        return self._held[worker].get(name, 0) + self._deltas[worker].get(name, 0)
