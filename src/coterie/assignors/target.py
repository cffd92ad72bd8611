"""The balanced target, over counts: how many connectors, and how many tasks of each connector, a worker gains or gives.

What is promised (design, "Assignors"):

- connectors, tasks and their sum end at floor or ceiling for every worker;
- the fewest moves under those totals. A worker above its quota gives away exactly its surplus and gains nothing, one
  below it gives nothing, so moves depend only on *who gets the extras* (the remainders of connectors and of tasks by
  workers): an extra saves a stop only where more than the floor is held. The sum ties the two kinds of extra together:
  if all of them fit side by side, nobody may have both; if they do not, nobody may have neither;
- the tasks of one connector are spread: a worker gives where it has most and the receivers have least, a receiver
  takes where it has least.

Nothing here looks at single tasks. The cost is that of the cells (connector, worker) that hold something, plus that of
the tasks that change hands.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from coterie.nouns.jobs import ConnectorName


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one worker runs: how many connectors, how many tasks of each connector."""

    connectors: int = 0
    tasks: Mapping[ConnectorName, int] = field(default_factory=dict)

    @property
    def all_tasks(self) -> int:
        return sum(self.tasks.values())


@dataclass(slots=True, kw_only=True)
class Change:
    """What one worker gains (above zero) or gives away (below)."""

    connectors: int = 0
    tasks: Counter[ConnectorName] = field(default_factory=Counter)


def balance(loads: Sequence[Load], *, connectors: int, tasks: Mapping[ConnectorName, int]) -> Sequence[Change]:
    """The change of every worker, in the order of ``loads``, which is also the order that settles ties.

    ``connectors`` and ``tasks`` (by connector) are what nobody runs.
    """
    if not loads:
        return ()
    quota = _quota(loads, connectors + sum(load.connectors for load in loads), sum(tasks.values()))
    changes = [
        Change(connectors=wanted - load.connectors) for load, wanted in zip(loads, quota.connectors, strict=True)
    ]
    freed = _give(loads, quota, tasks, changes)
    _take(loads, quota, freed, changes)
    return changes


def fewest_moves_bound(loads: Iterable[int], jobs: int) -> int:
    """M*: no balanced outcome of ``jobs`` jobs moves fewer, given how many of them each worker runs.

    It is not always reachable, since connectors and tasks are balanced apart, too (connectors {2,0}, tasks {0,2}).
    """
    held = list(loads)
    if not held:
        return 0
    floor, extras = divmod(jobs, len(held))
    return sum(max(0, load - floor) for load in held) - min(extras, sum(load > floor for load in held))


# -- who gets the extras ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Quota:
    """Connectors a worker, in full; tasks as a floor, and who may, must or must not have one above it."""

    connectors: Sequence[int]
    tasks_floor: int
    over: frozenset[int]
    """Workers that run more tasks than the floor: the only ones for whom an extra saves a stop."""
    must: frozenset[int]
    must_not: frozenset[int]
    extras_over: int
    """How many of ``over`` get a tasks' extra, those in ``must`` included."""
    extras_under: int
    """How many others do, those in ``must`` included."""


def _quota(loads: Sequence[Load], all_connectors: int, free_tasks: int) -> _Quota:
    workers = range(len(loads))
    held = [load.all_tasks for load in loads]
    connectors_floor, connector_extras = divmod(all_connectors, len(loads))
    tasks_floor, task_extras = divmod(sum(held) + free_tasks, len(loads))
    many_connectors = [load.connectors > connectors_floor for load in loads]
    over = frozenset(worker for worker in workers if held[worker] > tasks_floor)

    must: frozenset[int] = frozenset()
    must_not: frozenset[int] = frozenset()
    if connector_extras + task_extras <= len(loads):
        # Nobody may have both. Connectors' extras go first to workers that hold many connectors alone, then to those
        # that hold much of both (there either extra saves one stop), then to those for whom none saves any.
        ranked = sorted(workers, key=lambda worker: (not many_connectors[worker], worker in over, worker))
        must_not = with_connector = frozenset(ranked[:connector_extras])
        extras_over = min(task_extras, len(over - must_not))
    else:
        # Nobody may have neither: who gets no connector's extra must have a task's. The same ranking, turned round.
        ranked = sorted(workers, key=lambda worker: (many_connectors[worker], worker not in over, -worker))
        must = frozenset(ranked[: len(loads) - connector_extras])
        with_connector = frozenset(workers) - must
        without_tasks_extra = len(loads) - task_extras
        extras_over = len(over) - max(0, without_tasks_extra - len(loads) + len(over | must))
    return _Quota(
        connectors=[connectors_floor + (worker in with_connector) for worker in workers],
        tasks_floor=tasks_floor,
        over=over,
        must=must,
        must_not=must_not,
        extras_over=extras_over,
        extras_under=task_extras - extras_over,
    )


# -- giving -----------------------------------------------------------------------------------------------------------


class _Levels:
    """One connector's tasks at the receivers, filled evenly in thought: where would the next one come to lie?"""

    def __init__(self, receivers: int, counts: Iterable[int]) -> None:
        self._at = Counter(counts)
        self._at[0] += receivers - self._at.total()
        self.level = 0
        self._climb()

    def fill(self, tasks: int) -> None:
        while tasks:
            step = min(tasks, self._at[self.level])
            self._at[self.level] -= step
            self._at[self.level + 1] += step
            tasks -= step
            self._climb()

    def _climb(self) -> None:
        while not self._at[self.level]:
            self.level += 1


def _give(
    loads: Sequence[Load], quota: _Quota, free: Mapping[ConnectorName, int], changes: Sequence[Change]
) -> Counter[ConnectorName]:
    """Let the workers above their quota give: where they have most, and receivers have least. Returns all to place."""
    to_place = Counter(free)
    receivers = [worker for worker in range(len(loads)) if worker not in quota.over]
    if not quota.over or not receivers:
        return to_place
    rank = {name: place for place, name in enumerate(sorted({c for w in quota.over for c in loads[w].tasks}))}
    counts: dict[ConnectorName, list[int]] = {name: [] for name in rank}
    for worker in receivers:
        for connector, count in loads[worker].tasks.items():
            if connector in counts:
                counts[connector].append(count)
    levels = {name: _Levels(len(receivers), of_name) for name, of_name in counts.items()}
    for name, of_name in levels.items():
        of_name.fill(free.get(name, 0))

    def give(due: dict[int, int], at_most: int) -> None:
        def entry(worker: int, connector: ConnectorName) -> tuple[int, int, int, ConnectorName]:
            have = loads[worker].tasks[connector] + changes[worker].tasks[connector]
            # By how much the sum of squares grows (halved): at the receiver by 2 level + 1, here by -(2 have - 1).
            return (levels[connector].level + 1 - have, -rank[connector], -worker, connector)

        heap = [
            entry(worker, connector)
            for worker, wanted in due.items()
            if wanted
            for connector, count in loads[worker].tasks.items()
            if count + changes[worker].tasks[connector] > 0
        ]
        heapq.heapify(heap)
        while at_most and heap:
            seen = heap[0]
            worker, connector = -seen[2], seen[3]
            if not due[worker]:
                heapq.heappop(heap)
                continue
            now = entry(worker, connector)
            if now != seen:  # receivers have filled up since: the price only ever rises
                heapq.heapreplace(heap, now)
                continue
            changes[worker].tasks[connector] -= 1
            to_place[connector] += 1
            levels[connector].fill(1)
            due[worker] -= 1
            at_most -= 1
            if loads[worker].tasks[connector] + changes[worker].tasks[connector] > 0:
                heapq.heapreplace(heap, entry(worker, connector))
            else:
                heapq.heappop(heap)

    surplus = {worker: loads[worker].all_tasks - quota.tasks_floor for worker in sorted(quota.over)}
    certain = {worker: count - (worker not in quota.must_not) for worker, count in surplus.items()}
    give(certain, sum(certain.values()))
    # Everybody who may keep an extra still does: those give one more for whom no extra is left, where it spreads best.
    open_ = {worker: 1 for worker in surplus if worker not in quota.must and worker not in quota.must_not}
    give(open_, len(open_) - (quota.extras_over - len(quota.over & quota.must)))
    return to_place


# -- taking -----------------------------------------------------------------------------------------------------------


def _take(
    loads: Sequence[Load], quota: _Quota, to_place: Mapping[ConnectorName, int], changes: Sequence[Change]
) -> None:
    """Deal ``to_place`` to the workers with room: where there is least of the connector, then where is most room."""
    room = {
        worker: quota.tasks_floor - load.all_tasks + (worker in quota.must)
        for worker, load in enumerate(loads)
        if worker not in quota.over
    }
    may_have_extra = {worker for worker in room if worker not in quota.must and worker not in quota.must_not}
    extras = quota.extras_under - len(quota.must - quota.over)
    # (minus the room, worker): those with most room first. A worker without room stays while an extra may be its.
    roomy = [(-left, worker) for worker, left in room.items() if left or worker in may_have_extra]
    heapq.heapify(roomy)
    for connector in sorted(to_place, key=lambda name: (-to_place[name], name)):
        left = to_place[connector]
        lined_up: list[tuple[int, int, int]] = []  # (tasks of this connector, minus the room, worker)
        while left:
            while roomy and not (lined_up and lined_up[0][0] == 0):
                free, worker = heapq.heappop(roomy)
                if not free and not extras:
                    continue
                has = loads[worker].tasks.get(connector, 0) + changes[worker].tasks[connector]
                heapq.heappush(lined_up, (has, free, worker))
            has, free, worker = heapq.heappop(lined_up)
            if not free:
                if not extras:
                    continue
                extras -= 1
                may_have_extra.discard(worker)
            changes[worker].tasks[connector] += 1
            left -= 1
            free = min(0, free + 1)
            if free or worker in may_have_extra:
                heapq.heappush(lined_up, (has + 1, free, worker))
        for _, free, worker in lined_up:
            heapq.heappush(roomy, (free, worker))
