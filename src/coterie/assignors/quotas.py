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
"""Whether a worker has a connector extra (runs one connector more than the floor), and whether it has a task extra."""

_AboveConnectorAndTaskFloors: TypeAlias = tuple[bool, bool]
"""Whether a worker runs more connectors than the floor, and whether it runs more tasks than the floor."""
_RANK_BY_ABOVE_FLOOR: Mapping[_AboveConnectorAndTaskFloors, int] = {
    (True, False): 0,
    (True, True): 1,
    (False, False): 2,
    (False, True): 3,
}
"""The order in which workers get connector extras, by kind. First come workers above the floor of connectors only, then
workers above both floors (where either extra saves a stop), then workers for which a connector extra saves no stop."""


@dataclass(slots=True, kw_only=True)
class Quotas:
    """The number of connectors and tasks that each worker should run. Sequences are in the order of the workers."""

    connectors_floor: int
    """The number of connectors that each worker runs at least; with a connector extra, one more."""
    tasks_floor: int
    """The number of tasks that each worker runs at least; with a task extra, one more."""
    task_extra_count: int
    """The number of workers that must have a task extra in the end."""
    task_surplus_by_worker: Sequence[int]
    """For each worker, its tasks above the floor; negative when it runs fewer."""
    has_connector_extra_by_worker: list[bool]
    """For each worker, whether it has a connector extra."""
    has_task_extra_by_worker: list[bool]
    """For each worker, whether it has a task extra. At first True only for workers that must have a task extra; the
    caller distributes the other task extras."""
    allowed_extras_by_worker: Sequence[frozenset[WorkerExtras]]
    """For each worker, the combinations of extras that cost no additional stop."""

    def allows_extras(self, worker: int, *, connector: bool, task: bool) -> bool:
        """Whether ``worker`` may have exactly these extras (one connector, one task above the floor) without an
        additional stop."""
        return (connector, task) in self.allowed_extras_by_worker[worker]

    def workers_with_optional_task_extra(self) -> list[int]:
        """The workers that can have a task extra (one task above the floor) or have none, in both cases without an
        additional stop, if their connector extra stays as it is."""
        return [
            worker
            for worker, (connector, allowed) in enumerate(
                zip(self.has_connector_extra_by_worker, self.allowed_extras_by_worker, strict=True)
            )
            if (connector, True) in allowed and (connector, False) in allowed
        ]

    def workers_with_tradable_task_extra(self) -> set[int]:
        """The workers that can have a task extra or have none, in both cases without an additional stop, if their
        connector extra may change.

        These include the workers of :meth:`workers_with_optional_task_extra`.
        """
        tradable = {allowed for allowed in set(self.allowed_extras_by_worker) if len({task for _, task in allowed}) > 1}
        return {worker for worker, extras in enumerate(self.allowed_extras_by_worker) if extras in tradable}


def compute_quotas(
    connector_counts: Sequence[int], task_counts: Sequence[int], *, connector_total: int, task_total: int
) -> Quotas:
    """Compute the quotas of workers that run ``connector_counts`` connectors and ``task_counts`` tasks now.

    Both are in the order of the workers: among equals, earlier workers get the connector extras. ``connector_total``
    and ``task_total`` are the numbers to distribute, with those that no worker runs.
    """
    workers = range(len(connector_counts))
    connectors_floor, connector_extra_count = divmod(connector_total, len(workers))
    tasks_floor, task_extra_count = divmod(task_total, len(workers))
    task_surplus = [task_count - tasks_floor for task_count in task_counts]
    kinds = [
        (connector_count > connectors_floor, task_surplus_of_worker > 0)
        for connector_count, task_surplus_of_worker in zip(connector_counts, task_surplus, strict=True)
    ]
    allowed_by_kind = _allowed_extras_by_kind(Counter(kinds), connector_extra_count, task_extra_count)
    has_connector_extra = [False] * len(workers)
    for worker in sorted(workers, key=[_RANK_BY_ABOVE_FLOOR[kind] for kind in kinds].__getitem__)[
        :connector_extra_count
    ]:
        has_connector_extra[worker] = True
    allowed_extras = [allowed_by_kind[kind] for kind in kinds]
    return Quotas(
        connectors_floor=connectors_floor,
        tasks_floor=tasks_floor,
        task_extra_count=task_extra_count,
        task_surplus_by_worker=task_surplus,
        has_connector_extra_by_worker=has_connector_extra,
        has_task_extra_by_worker=[
            (has_extra, False) not in allowed_extras[worker] for worker, has_extra in enumerate(has_connector_extra)
        ],
        allowed_extras_by_worker=allowed_extras,
    )


def _allowed_extras_by_kind(
    worker_count_by_kind: Counter[_AboveConnectorAndTaskFloors], connector_extra_count: int, task_extra_count: int
) -> dict[_AboveConnectorAndTaskFloors, frozenset[WorkerExtras]]:
    """Return, for each kind of worker, the combinations of extras that occur in at least one of the distributions with
    the fewest stops.

    ``worker_count_by_kind`` has the number of workers of each kind: above the floor of connectors or not, above the
    floor of tasks or not.
    """
    if connector_extra_count + task_extra_count <= worker_count_by_kind.total():
        extras_states = [(False, False), (True, False), (False, True)]
    else:
        extras_states = [(True, False), (False, True), (True, True)]

    def gain_at_prices(kind: _AboveConnectorAndTaskFloors, extras: WorkerExtras, prices: tuple[int, int]) -> int:
        return (kind[0] - prices[0]) * extras[0] + (kind[1] - prices[1]) * extras[1]

    def dual_objective(prices: tuple[int, int]) -> int:
        gains = sum(
            count * max(gain_at_prices(kind, state, prices) for state in extras_states)
            for kind, count in worker_count_by_kind.items()
        )
        return gains + prices[0] * connector_extra_count + prices[1] * task_extra_count

    # An extra saves 0 or 1 stops, so prices outside this range are never needed.
    prices = min(product(range(-2, 3), range(-2, 3)), key=dual_objective)
    allowed_by_kind = {}
    for kind in worker_count_by_kind:
        greatest_gain = max(gain_at_prices(kind, state, prices) for state in extras_states)
        allowed_by_kind[kind] = frozenset(
            state for state in extras_states if gain_at_prices(kind, state, prices) == greatest_gain
        )
    return allowed_by_kind
