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

TaskCountsByWorker: TypeAlias = Sequence[Mapping[ConnectorName, int]]
"""For each worker: the number of tasks that it runs before any task moves, by connector."""
TaskDeltas: TypeAlias = Sequence[dict[ConnectorName, int]]
"""For each worker, by connector: the number of tasks received (above zero) or released (below zero), never zero."""

MINUS_INFINITY = -(1 << 60)
"""Below the price of every release."""


def redistribute_tasks_and_set_extras(
    task_counts: TaskCountsByWorker, unowned_tasks: Mapping[ConnectorName, int], quotas: Quotas
) -> TaskDeltas:
    """Return the changes that bring every worker to its quota of tasks.

    This sets in ``quotas.has_task_extra_by_worker`` which workers have a task extra.

    :param task_counts: for each worker, the number of tasks that it runs, by connector.
    :param unowned_tasks: the number of tasks that no worker runs, by connector.
    """
    deltas: TaskDeltas = [{} for _ in task_counts]
    task_surplus = quotas.task_surplus_by_worker
    givers = [worker for worker, surplus_of_worker in enumerate(task_surplus) if surplus_of_worker > 0]
    takers = [worker for worker, surplus_of_worker in enumerate(task_surplus) if surplus_of_worker <= 0]
    # The workers with an optional task extra are all givers or all takers: an extra saves a stop for a giver only.
    workers_with_optional_extra = quotas.workers_with_optional_task_extra()
    extras = quotas.task_extra_count - sum(quotas.has_task_extra_by_worker)
    tasks_to_assign = dict(unowned_tasks)
    givers_with_optional_extra = {worker for worker in workers_with_optional_extra if task_surplus[worker] > 0}
    for worker in givers_with_optional_extra:
        quotas.has_task_extra_by_worker[worker] = True
    tasks_to_release = {worker: task_surplus[worker] - quotas.has_task_extra_by_worker[worker] for worker in givers}
    additional_releases = max(0, len(givers_with_optional_extra) - extras)
    if additional_releases or any(tasks_to_release.values()):
        levels = _LowestTaskCountsOfTakers(
            sorted(set().union(*(task_counts[worker] for worker in givers))), [task_counts[taker] for taker in takers]
        )
        for name, count in unowned_tasks.items():
            levels.add_tasks(name, count)
        for worker in _release_tasks_and_pick_additional_givers(
            task_counts,
            deltas,
            levels,
            tasks_to_release,
            givers_with_optional_extra,
            additional_releases,
            tasks_to_assign,
        ):
            quotas.has_task_extra_by_worker[worker] = False
    takers_with_optional_extra = frozenset(
        worker for worker in workers_with_optional_extra if task_surplus[worker] <= 0
    )
    room = {worker: quotas.has_task_extra_by_worker[worker] - task_surplus[worker] for worker in takers}
    receivers = _TaskReceivers(
        task_counts, deltas, quotas.has_task_extra_by_worker, room, takers_with_optional_extra, extras
    )
    for name in sorted(tasks_to_assign, key=lambda name: (-tasks_to_assign[name], name)):
        receivers.assign_tasks(name, tasks_to_assign[name])
    return deltas


# -- giving -----------------------------------------------------------------------------------------------------------


def _release_tasks_and_pick_additional_givers(
    task_counts: TaskCountsByWorker,
    deltas: TaskDeltas,
    levels: "_LowestTaskCountsOfTakers",
    tasks_to_release: dict[int, int],
    givers_with_optional_extra: set[int],
    additional_releases: int,
    tasks_to_assign: dict[ConnectorName, int],
) -> Sequence[int]:
    """Release tasks of givers (workers with more tasks than the floor) one by one, each time the task whose release
    improves the spread most.

    Each worker in ``tasks_to_release`` releases the number of tasks given there. In addition, ``additional_releases``
    of the workers in ``givers_with_optional_extra`` release one task each. Of equally good releases, the one is done
    whose connector has released the fewest tasks so far; among these, that of the connector with the last name. The
    task is released by the worker with the most tasks of the connector; among these, by the last worker.

    The releases are written to ``deltas``, added to ``tasks_to_assign`` and ``levels``, and counted down in
    ``tasks_to_release``; the workers that release an additional task are removed from ``givers_with_optional_extra``.
    Returns the workers that released an additional task.
    """
    level_by_connector = levels.level_by_connector
    releasable_by_connector: dict[ConnectorName, list[tuple[int, int]]] = {name: [] for name in level_by_connector}
    """For each connector, sorted pairs (its tasks on a worker, the worker); the last pair releases first."""
    for worker in tasks_to_release:
        for name, count in task_counts[worker].items():
            releasable_by_connector[name].append((count, worker))
    # (price, number of tasks released, position that breaks ties, connector). The price is the change of the sum of
    # squares when one task moves, halved, minus one.
    queue = [
        (MINUS_INFINITY, 0, tie_break_position, name)
        for tie_break_position, name in enumerate(reversed(level_by_connector))
    ]
    additional_givers: list[int] = []
    remaining_releases = sum(tasks_to_release.values()) + additional_releases
    for releasable in releasable_by_connector.values():
        releasable.sort()
    while remaining_releases:
        price, released_count, place, name = queue[0]
        releasable = releasable_by_connector[name]
        while (
            releasable
            and not tasks_to_release[releasable[-1][1]]
            and (releasable[-1][1] not in givers_with_optional_extra or len(additional_givers) == additional_releases)
        ):
            releasable.pop()
        if not releasable:
            heapq.heappop(queue)
            continue
        count, worker = releasable[-1]
        current_price = level_by_connector[name] - count
        if current_price != price:  # the price rose: the giver has fewer tasks now, or the takers have more
            heapq.heapreplace(queue, (current_price, released_count, place, name))
            continue
        deltas[worker][name] = deltas[worker].get(name, 0) - 1
        tasks_to_assign[name] = tasks_to_assign.get(name, 0) + 1
        levels.add_tasks(name, 1)
        remaining_releases -= 1
        if tasks_to_release[worker]:
            tasks_to_release[worker] -= 1
        else:
            givers_with_optional_extra.remove(worker)
            additional_givers.append(worker)
        releasable.pop()
        if count > 1:
            insort(releasable, (count - 1, worker))
        heapq.heapreplace(queue, (price, released_count + 1, place, name))
    return additional_givers


class _LowestTaskCountsOfTakers:
    """The level of each connector: the lowest number of its tasks on a taker (a worker that runs at most as many tasks
    as the floor), if each task goes to a taker with the fewest tasks of its connector.

    The next task of the connector goes to a taker with this number.
    """

    def __init__(self, names: Iterable[ConnectorName], task_counts_of_takers: TaskCountsByWorker) -> None:
        self.level_by_connector = dict.fromkeys(names, 0)
        self._takers_at_level = dict.fromkeys(self.level_by_connector, len(task_counts_of_takers))
        """The number of takers at the connector's level."""
        self._takers_above_level: dict[ConnectorName, dict[int, int]] = {name: {} for name in self.level_by_connector}
        """The number of takers at each number of the connector's tasks above its level."""
        for tasks in task_counts_of_takers:
            for name, count in tasks.items():
                if name in self.level_by_connector:
                    takers_above_level = self._takers_above_level[name]
                    takers_above_level[count] = takers_above_level.get(count, 0) + 1
                    self._takers_at_level[name] -= 1
        for name in self.level_by_connector:
            self.add_tasks(name, 0)

    def add_tasks(self, name: ConnectorName, task_count: int) -> None:
        """Add ``task_count`` tasks of connector ``name``, each to a taker that has the fewest of its tasks. A ``name``
        that was not given to the constructor is ignored."""
        if name not in self.level_by_connector:
            return
        above = self._takers_above_level[name]
        while True:
            filled = min(task_count, self._takers_at_level[name])
            task_count -= filled
            self._takers_at_level[name] -= filled
            if filled:
                next_level = self.level_by_connector[name] + 1
                above[next_level] = above.get(next_level, 0) + filled
            if self._takers_at_level[name]:
                return
            self.level_by_connector[name] += 1
            self._takers_at_level[name] = above.pop(self.level_by_connector[name], 0)


# -- taking -----------------------------------------------------------------------------------------------------------


class _TaskReceivers:
    """Assigns tasks to workers below their quota.

    A task goes to a worker with the fewest tasks of the connector; among these, to a worker with most room.
    """

    def __init__(
        self,
        task_counts: TaskCountsByWorker,
        deltas: TaskDeltas,
        has_task_extra: list[bool],
        room: Mapping[int, int],
        workers_with_optional_extra: frozenset[int],
        remaining_extras: int,
    ) -> None:
        """Set up the workers in ``room`` with their room: the number of tasks that each can receive without a further
        extra.

        ``remaining_extras`` of the workers in ``workers_with_optional_extra`` can receive one task above their room, as
        their task extra. Assigned tasks are added to ``deltas``, and extras are entered in ``has_task_extra``.
        """
        self._task_counts = task_counts
        self._deltas = deltas
        self._has_task_extra = has_task_extra
        self._workers_with_optional_extra = workers_with_optional_extra
        self._remaining_extras = remaining_extras
        self._receivers_by_room: dict[int, list[int]] = {}
        """The workers with each room, in the order in which they receive tasks. Those with room 0 can receive a task
        extra."""
        for worker, room_of_worker in room.items():
            if room_of_worker or (remaining_extras and worker in workers_with_optional_extra):
                self._receivers_by_room.setdefault(room_of_worker, []).append(worker)

    def assign_tasks(self, name: ConnectorName, count: int) -> None:
        """Assign ``count`` tasks of connector ``name``. Each goes to the worker that has the fewest tasks of this
        connector at that time, among the workers that can still receive a task; these must have room for all."""
        level, leveled_count = self._try_leveling_and_count_assigned(name, count)
        count -= leveled_count
        while count:
            count -= self._assign_at_level_and_count_assigned(level, name, count)
            if count:
                level = min(
                    self._current_task_count(worker, name)
                    for workers in self._receivers_by_room.values()
                    for worker in workers
                )

    def _try_leveling_and_count_assigned(self, name: ConnectorName, count: int) -> tuple[int, int]:
        """Assign tasks of ``name`` to all workers that can still receive tasks, so that each has the same number of
        tasks of ``name`` (the level). The level is limited by ``count`` and by the room of each worker.

        This is a shortcut for many tasks: nothing is assigned if ``count`` is less than twice the number of these
        workers, or if one of them already has at least as many tasks as the level. Returns the level and the number of
        tasks assigned; 0 and 0 if nothing was assigned.
        """
        if count < 2 * sum(map(len, self._receivers_by_room.values())):
            return 0, 0
        room = {
            worker: room
            for room, workers in sorted(self._receivers_by_room.items(), reverse=True)
            for worker in workers
        }
        current_counts = {worker: self._current_task_count(worker, name) for worker in room}
        level = min(
            (sum(current_counts.values()) + count) // len(current_counts),
            *(current_counts[worker] + room[worker] for worker in room),
        )
        if level <= max(current_counts.values()):
            return 0, 0
        self._receivers_by_room.clear()
        for worker, count_before in current_counts.items():
            gained = level - count_before
            self._deltas[worker][name] = self._deltas[worker].get(name, 0) + gained
            room_left = room[worker] - gained
            if room_left or (self._remaining_extras and worker in self._workers_with_optional_extra):
                self._receivers_by_room.setdefault(room_left, []).append(worker)
        return level, len(current_counts) * level - sum(current_counts.values())

    def _assign_at_level_and_count_assigned(self, level: int, name: ConnectorName, count: int) -> int:
        """Assign one task each of the connector ``name`` to at most ``count`` workers that have at most ``level`` tasks
        of this connector and can still receive a task.

        Workers with most room (the number of tasks that a worker can still receive without a further extra) come first.
        A worker with room 0 receives a task only as its task extra. Returns the number of tasks assigned, which may be
        0.
        """
        remaining = count
        receivers_by_new_room: dict[int, list[int]] = {}
        for room in sorted(self._receivers_by_room, reverse=True):
            receivers, not_receiving = self._split_receivers_from_others_and_assign(
                self._receivers_by_room.pop(room),
                level,
                name,
                remaining if room else min(remaining, self._remaining_extras),
            )
            if not_receiving:
                self._receivers_by_room[room] = not_receiving
            remaining -= len(receivers)
            if room > 1:
                receivers_by_new_room[room - 1] = receivers
            elif room:
                receivers_by_new_room[0] = [
                    worker for worker in receivers if worker in self._workers_with_optional_extra
                ]
            else:
                self._remaining_extras -= len(receivers)
                for worker in receivers:
                    self._has_task_extra[worker] = True
            if not remaining:
                break
        for room, workers in receivers_by_new_room.items():
            if workers:
                self._receivers_by_room.setdefault(room, []).extend(workers)
        if not self._remaining_extras:
            self._receivers_by_room.pop(0, None)
        return count - remaining

    def _split_receivers_from_others_and_assign(
        self, workers: Sequence[int], level: int, name: ConnectorName, receivers_max: int
    ) -> tuple[list[int], list[int]]:
        """Assign one task of ``name`` each to the first ``receivers_max`` workers in ``workers`` that have at most
        ``level`` of it.

        Returns these workers, then all other workers of ``workers``.
        """
        receivers: list[int] = []
        not_receiving: list[int] = []
        task_counts, deltas = self._task_counts, self._deltas
        remaining_workers = iter(workers)
        for worker in remaining_workers:
            delta = deltas[worker]
            gained = delta.get(name, 0)
            if task_counts[worker].get(name, 0) + gained > level:
                not_receiving.append(worker)
                continue
            delta[name] = gained + 1
            receivers.append(worker)
            if len(receivers) == receivers_max:
                break
        not_receiving.extend(remaining_workers)
        return receivers, not_receiving

    def _current_task_count(self, worker: int, name: ConnectorName) -> int:
        """The number of tasks of ``name`` that ``worker`` has now, with those that it has received."""
        return self._task_counts[worker].get(name, 0) + self._deltas[worker].get(name, 0)
