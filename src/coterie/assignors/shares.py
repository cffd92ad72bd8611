"""Who gets the extras: what remains when connectors, and tasks, are divided by workers, where it saves most stops.

A worker has a connector's extra, a task's extra, both or none. The sum of connectors and tasks ties the two kinds
together: if all extras fit side by side, nobody may have both; if they do not, nobody may have neither. A connector's
extra saves a stop where more than the floor of connectors is held, a task's extra where more than that of tasks is.

Which of these states still lead to the fewest stops is told by prices: at the right price of each kind (those of the
linear program's dual), exactly the states that pay a worker most occur in *some* best solution, and every way to deal
out the extras by such states is a best one. So whoever deals may choose among them by other things.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

Extras: TypeAlias = tuple[bool, bool]
"""Whether a worker has a connector's extra, and whether it has a task's."""

_Kind: TypeAlias = tuple[bool, bool]
"""Whether a worker holds more connectors than the floor, and more tasks."""
_RANK: Mapping[_Kind, int] = {(True, False): 0, (True, True): 1, (False, False): 2, (False, True): 3}
"""Connectors' extras go first to workers that hold many connectors alone, then to those that hold much of both (there
either extra saves one stop), then to those for whom none saves any."""


@dataclass(slots=True, kw_only=True)
class Shares:
    """How many connectors and tasks each worker is to run."""

    connectors_floor: int
    tasks_floor: int
    tasks_extras: int
    """How many workers have one."""
    surplus: Sequence[int]
    """Of each worker, how many tasks more than the floor it runs."""
    with_connector: list[bool]
    with_task: list[bool]
    """True is settled where nothing else is lawful; for the others whoever deals decides."""
    lawful: Sequence[frozenset[Extras]]
    """Of each worker, the states that cost no stop more than others."""

    def may(self, worker: int, *, connector: bool, task: bool) -> bool:
        return (connector, task) in self.lawful[worker]

    def open_workers(self) -> list[int]:
        """Who may have a task's extra and may go without, as far as their connectors go."""
        return [
            worker
            for worker, (connector, lawful) in enumerate(zip(self.with_connector, self.lawful, strict=True))
            if (connector, True) in lawful and (connector, False) in lawful
        ]

    def changing_workers(self) -> set[int]:
        """Who may have a task's extra and may go without, if connectors' extras change hands, too."""
        free = {lawful for lawful in set(self.lawful) if len({task for _, task in lawful}) > 1}
        return {worker for worker, lawful in enumerate(self.lawful) if lawful in free}


def divide(connectors: Sequence[int], tasks: Sequence[int], *, all_connectors: int, all_tasks: int) -> Shares:
    """The shares of workers that run so many ``connectors`` and ``tasks``; the order of workers settles ties."""
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

    # What an extra saves is 0 or 1, so prices beyond these are never needed.
    prices = min(product(range(-2, 3), range(-2, 3)), key=total)
    lawful = {}
    for kind in kinds:
        most = max(gain(kind, state, prices) for state in states)
        lawful[kind] = frozenset(state for state in states if gain(kind, state, prices) == most)
    return lawful
