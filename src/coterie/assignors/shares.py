"""Quotas: how many connectors and tasks each worker runs, and which workers get the extras.

The extras are the remainder when the connectors, or the tasks, are divided by the number of workers: so many workers
run one more than the floor. They go to the workers where they save most stops. A worker that runs more connectors than
the floor stops one connector less if it has a connector extra. A worker that runs more tasks than the floor stops one
task less if it has a task extra.

A worker's state is: a connector extra, a task extra, both or none. The sum of connectors and tasks must be balanced,
too. So if there are at most as many extras as workers, no worker may have both. If there are more, every worker must
have at least one.

Prices show which states can still lead to the fewest stops. At the right price of each kind of extra (the solution of
the linear program's dual), the states with the greatest gain for a worker are exactly the states that occur in *some*
best solution. Every distribution of the extras that uses only such states is a best one. So the caller may choose
among them by other criteria.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

Extras: TypeAlias = tuple[bool, bool]
"""Whether a worker has a connector extra, and whether it has a task extra."""

_Kind: TypeAlias = tuple[bool, bool]
"""Whether a worker runs more connectors than the floor, and whether it runs more tasks than the floor."""
_RANK: Mapping[_Kind, int] = {(True, False): 0, (True, True): 1, (False, False): 2, (False, True): 3}
"""The order in which workers get connector extras. First come workers above the floor of connectors only, then workers
above both floors (where either extra saves one stop), then workers for which a connector extra saves no stop."""


@dataclass(slots=True, kw_only=True)
class Shares:
    """The number of connectors and tasks that each worker should run. Sequences are in the order of the workers."""

    connectors_floor: int
    tasks_floor: int
    tasks_extras: int
    """The number of workers with a task extra."""
    surplus: Sequence[int]
    """For each worker, its tasks above the floor; negative when it runs fewer."""
    with_connector: list[bool]
    """For each worker, whether it has a connector extra."""
    with_task: list[bool]
    """For each worker, whether it has a task extra. At first True only for workers that must have one; the caller
    distributes the other extras."""
    lawful: Sequence[frozenset[Extras]]
    """For each worker, the states that cost no additional stop."""

    def may(self, worker: int, *, connector: bool, task: bool) -> bool:
        return (connector, task) in self.lawful[worker]

    def open_workers(self) -> list[int]:
        """The workers for which a task extra is optional while their connector extra stays as it is."""
        return [
            worker
            for worker, (connector, lawful) in enumerate(zip(self.with_connector, self.lawful, strict=True))
            if (connector, True) in lawful and (connector, False) in lawful
        ]

    def changing_workers(self) -> set[int]:
        """The workers for which a task extra is optional if connector extras may move between workers as well."""
        free = {lawful for lawful in set(self.lawful) if len({task for _, task in lawful}) > 1}
        return {worker for worker, lawful in enumerate(self.lawful) if lawful in free}


def divide(connectors: Sequence[int], tasks: Sequence[int], *, all_connectors: int, all_tasks: int) -> Shares:
    """Compute the quotas of workers that run these numbers of ``connectors`` and ``tasks``.

    Both are in the order of the workers, which also breaks ties.
    """
    workers = range(len(connectors))
    connectors_floor, connectors_extras = divmod(all_connectors, len(workers))
    tasks_floor, tasks_extras = divmod(all_tasks, len(workers))
    surplus = [running - tasks_floor for running in tasks]
    kinds = [(held > connectors_floor, over > 0) for held, over in zip(connectors, surplus, strict=True)]
    lawful_by_kind = _lawful(Counter(kinds), connectors_extras, tasks_extras)
    with_connector = [False] * len(workers)
    for worker in sorted(workers, key=[_RANK[kind] for kind in kinds].__getitem__)[:connectors_extras]:
        with_connector[worker] = True
    lawful = [lawful_by_kind[kind] for kind in kinds]
    return Shares(
        connectors_floor=connectors_floor,
        tasks_floor=tasks_floor,
        tasks_extras=tasks_extras,
        surplus=surplus,
        with_connector=with_connector,
        with_task=[(has, False) not in lawful[worker] for worker, has in enumerate(with_connector)],
        lawful=lawful,
    )


def _lawful(kinds: Counter[_Kind], connectors_extras: int, tasks_extras: int) -> dict[_Kind, frozenset[Extras]]:
    if connectors_extras + tasks_extras <= kinds.total():
        states = [(False, False), (True, False), (False, True)]
    else:
        states = [(True, False), (False, True), (True, True)]

    def gain(kind: _Kind, state: Extras, prices: tuple[int, int]) -> int:
        return (kind[0] - prices[0]) * state[0] + (kind[1] - prices[1]) * state[1]

    def total(prices: tuple[int, int]) -> int:
        gains = sum(count * max(gain(kind, state, prices) for state in states) for kind, count in kinds.items())
        return gains + prices[0] * connectors_extras + prices[1] * tasks_extras

    # An extra saves 0 or 1 stops, so prices outside this range are never needed.
    prices = min(product(range(-2, 3), range(-2, 3)), key=total)
    lawful = {}
    for kind in kinds:
        most = max(gain(kind, state, prices) for state in states)
        lawful[kind] = frozenset(state for state in states if gain(kind, state, prices) == most)
    return lawful
