"""Quotas: how many connectors and tasks each worker runs, and which workers get the extras.

The number of connectors, or of tasks, is divided by the number of workers. The quotient is the floor, and the remainder
is the number of extras: so many workers run one more than the floor, that is, have an extra. The extras go to the
workers where they save most stops. A worker that runs more connectors than the floor stops one connector less if it has
a connector extra. A worker that runs more tasks than the floor stops one task less if it has a task extra.

A worker's state is: a connector extra, a task extra, both or none. The sum of connectors and tasks must be balanced,
too. So if there are at most as many extras as workers, no worker may have both. If there are more, every worker must
have at least one.

Prices show which states can still lead to the fewest stops. At the right price of each kind of extra (the solution of
the linear program's dual), the states with the greatest gain for a worker are exactly the states that occur in *some*
best solution. Every distribution of the extras that uses only such states is a best one. So the caller may choose
among these distributions by other criteria.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

WorkerExtras: TypeAlias = tuple[bool, bool]
"""Whether a worker has a connector extra, and whether it has a task extra."""

_Kind: TypeAlias = tuple[bool, bool]
"""Whether a worker runs more connectors than the floor, and whether it runs more tasks than the floor."""
_RANK: Mapping[_Kind, int] = {(True, False): 0, (True, True): 1, (False, False): 2, (False, True): 3}
"""The order in which workers get connector extras, by kind. First come workers above the floor of connectors only, then
workers above both floors (where either extra saves a stop), then workers for which a connector extra saves no stop."""


@dataclass(slots=True, kw_only=True)
class Quotas:
    """The number of connectors and tasks that each worker should run. Sequences are in the order of the workers."""

    connectors_floor: int
    tasks_floor: int
    tasks_extras: int
    """The number of workers that must have a task extra in the end."""
    surplus: Sequence[int]
    """For each worker, its tasks above the floor; negative when it runs fewer."""
    has_connector_extra: list[bool]
    """For each worker, whether it has a connector extra."""
    has_task_extra: list[bool]
    """For each worker, whether it has a task extra. At first True only for workers that must have a task extra; the
    caller distributes the other task extras."""
    allowed_extras: Sequence[frozenset[WorkerExtras]]
    """For each worker, the combinations of extras that cost no additional stop."""

    def allows(self, worker: int, *, connector: bool, task: bool) -> bool:
        """Whether ``worker`` may have exactly these extras without an additional stop."""
        return (connector, task) in self.allowed_extras[worker]

    def with_optional_task_extra(self) -> list[int]:
        """The workers that may have a task extra or not, at no additional stop, while their connector extra stays."""
        return [
            worker
            for worker, (connector, lawful) in enumerate(
                zip(self.has_connector_extra, self.allowed_extras, strict=True)
            )
            if (connector, True) in lawful and (connector, False) in lawful
        ]

    def with_tradable_task_extra(self) -> set[int]:
        """The workers that may have a task extra or not, at no additional stop, if their connector extra may change.

        These include the workers of :meth:`with_optional_task_extra`.
        """
        free = {lawful for lawful in set(self.allowed_extras) if len({task for _, task in lawful}) > 1}
        return {worker for worker, lawful in enumerate(self.allowed_extras) if lawful in free}


def compute_quotas(connectors: Sequence[int], tasks: Sequence[int], *, all_connectors: int, all_tasks: int) -> Quotas:
    """Compute the quotas of workers that run these numbers of ``connectors`` and ``tasks`` now.

    Both are in the order of the workers: among equals, earlier workers get the connector extras. ``all_connectors`` and
    ``all_tasks`` are the numbers to distribute, with those that no worker runs.
    """
    workers = range(len(connectors))
    connectors_floor, connectors_extras = divmod(all_connectors, len(workers))
    tasks_floor, tasks_extras = divmod(all_tasks, len(workers))
    surplus = [running - tasks_floor for running in tasks]
    kinds = [(held > connectors_floor, over > 0) for held, over in zip(connectors, surplus, strict=True)]
    lawful_by_kind = _allowed_extras(Counter(kinds), connectors_extras, tasks_extras)
    with_connector = [False] * len(workers)
    for worker in sorted(workers, key=[_RANK[kind] for kind in kinds].__getitem__)[:connectors_extras]:
        with_connector[worker] = True
    lawful = [lawful_by_kind[kind] for kind in kinds]
    return Quotas(
        connectors_floor=connectors_floor,
        tasks_floor=tasks_floor,
        tasks_extras=tasks_extras,
        surplus=surplus,
        has_connector_extra=with_connector,
        has_task_extra=[(has, False) not in lawful[worker] for worker, has in enumerate(with_connector)],
        allowed_extras=lawful,
    )


def _allowed_extras(
    kinds: Counter[_Kind], connectors_extras: int, tasks_extras: int
) -> dict[_Kind, frozenset[WorkerExtras]]:
    """Return, for each kind, the combinations of extras that occur in a distribution with the fewest stops.

    ``kinds`` has the number of workers of each kind.
    """
    if connectors_extras + tasks_extras <= kinds.total():
        states = [(False, False), (True, False), (False, True)]
    else:
        states = [(True, False), (False, True), (True, True)]

    def gain(kind: _Kind, state: WorkerExtras, potentials: tuple[int, int]) -> int:
        return (kind[0] - potentials[0]) * state[0] + (kind[1] - potentials[1]) * state[1]

    def total(potentials: tuple[int, int]) -> int:
        gains = sum(count * max(gain(kind, state, potentials) for state in states) for kind, count in kinds.items())
        return gains + potentials[0] * connectors_extras + potentials[1] * tasks_extras

    # An extra saves 0 or 1 stops, so potentials outside this range are never needed.
    potentials = min(product(range(-2, 3), range(-2, 3)), key=total)
    lawful = {}
    for kind in kinds:
        most = max(gain(kind, state, potentials) for state in states)
        lawful[kind] = frozenset(state for state in states if gain(kind, state, potentials) == most)
    return lawful
