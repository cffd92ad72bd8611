"""The balanced target, in counts: the connectors, and the tasks of each connector, that a worker receives or releases.

The target guarantees (design, "Assignors"):

- Every worker ends with the floor or the ceiling of the average number of connectors, of tasks, and of both together.
- No assignment with such totals needs fewer moves. A worker above its quota releases exactly its surplus and receives
  nothing. A worker below its quota releases nothing. So the number of moves depends only on which workers get the
  extras (`quotas`).
- Among the assignments with as few moves, the target has the best spread. That is the least sum of squares of the
  cells, where a cell is the number of a connector's tasks on a worker. `redistribution` comes near this minimum, and
  `spread` reaches it. If no worker runs a task yet, a round-robin assignment already has the best spread.

The code works on counts, not on single tasks. The cost grows with the number of cells (connector, worker) of the
workers that release or receive tasks, with the number of tasks that move, and with the corrections that `spread` makes.
`spread` makes none in a fleet that was well spread and gained or lost one worker or connector. `spread` makes most
where the tasks were placed at random.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from coterie.assignors.quotas import Quotas, compute_quotas
from coterie.assignors.redistribution import TaskDeltas, redistribute_tasks_and_set_extras
from coterie.assignors.spread import even_out_tasks_and_extras
from coterie.nouns.jobs import ConnectorName


class Load(NamedTuple):
    """The number of connectors, and of tasks of each connector, that one worker runs.

    It is a tuple, like :class:`LoadChange`, because there is one for each worker, and a frozen dataclass takes twice as
    long to create.
    """

    connector_count: int = 0
    task_count_by_connector: Mapping[ConnectorName, int] = MappingProxyType({})

    @property
    def task_count(self) -> int:
        """The number of tasks of all connectors."""
        return sum(self.task_count_by_connector.values())


class LoadChange(NamedTuple):
    """The number of connectors, and of tasks of each connector, that one worker receives (above 0) or releases (below).

    Connectors of which the worker receives and releases no task are left out.
    """

    connector_delta: int = 0
    task_delta_by_connector: Mapping[ConnectorName, int] = MappingProxyType({})


NO_LOAD_CHANGE = LoadChange()
"""The worker receives and releases nothing."""


def compute_balanced_target(
    loads: Sequence[Load], *, unowned_connectors: int, unowned_tasks: Mapping[ConnectorName, int]
) -> Sequence[LoadChange]:
    """Return the change that brings each worker to the balanced target, in the order of ``loads``.

    This order also breaks ties. ``unowned_connectors`` and ``unowned_tasks`` (by connector) are the numbers of
    connectors and tasks that no worker runs. A worker without a change has :data:`NO_LOAD_CHANGE` itself.
    """
    if not loads:
        return ()
    task_counts_by_worker = [load.task_count_by_connector for load in loads]
    task_count_by_worker = [load.task_count for load in loads]
    connector_count_by_worker = [load.connector_count for load in loads]
    quotas = compute_quotas(
        connector_count_by_worker,
        task_count_by_worker,
        connector_total=unowned_connectors + sum(connector_count_by_worker),
        task_total=sum(unowned_tasks.values()) + sum(task_count_by_worker),
    )
    if any(task_count_by_worker):
        deltas = redistribute_tasks_and_set_extras(task_counts_by_worker, unowned_tasks, quotas)
        even_out_tasks_and_extras(task_counts_by_worker, deltas, quotas)
    else:
        deltas = _assign_round_robin_and_set_extras(unowned_tasks, quotas)
    connector_deltas = [
        quotas.connectors_floor + extra - connector_count
        for connector_count, extra in zip(connector_count_by_worker, quotas.has_connector_extra_by_worker, strict=True)
    ]
    return [
        LoadChange(connector_delta, task_deltas) if connector_delta or task_deltas else NO_LOAD_CHANGE
        for connector_delta, task_deltas in zip(connector_deltas, deltas, strict=True)
    ]


def _assign_round_robin_and_set_extras(unowned_tasks: Mapping[ConnectorName, int], quotas: Quotas) -> TaskDeltas:
    """Distribute ``unowned_tasks``, numbers by connector, round-robin. Only for workers that run no task: this is then
    the best spread.

    Sets in ``quotas`` which workers have a task extra, that is, run one task more than the floor. These workers come
    first. Each connector begins at the worker after the worker that received the previous connector's last task.
    """
    optional_extras = quotas.task_extra_count - sum(quotas.has_task_extra_by_worker)
    for worker in quotas.workers_with_optional_task_extra()[:optional_extras]:
        quotas.has_task_extra_by_worker[worker] = True
    deltas: TaskDeltas = [{} for _ in quotas.has_task_extra_by_worker]
    deltas_in_turn = [
        deltas[worker]
        for worker in sorted(range(len(deltas)), key=lambda worker: not quotas.has_task_extra_by_worker[worker])
    ]
    for name in sorted(unowned_tasks):
        tasks_each, remainder = divmod(unowned_tasks[name], len(deltas_in_turn))
        with_one_more, without_one_more = deltas_in_turn[:remainder], deltas_in_turn[remainder:]
        for delta in with_one_more:
            delta[name] = tasks_each + 1
        for delta in without_one_more if tasks_each else ():
            delta[name] = tasks_each
        deltas_in_turn = without_one_more + with_one_more
    return deltas


def fewest_moves_bound(loads: Iterable[int], job_count: int) -> int:
    """Return M*, a lower bound on the running jobs that must move to any balanced assignment of ``job_count`` jobs.

    ``loads`` is the number of these jobs that each worker runs. The bound is not always reachable, because connectors
    and tasks must also be balanced separately: workers with 2 and 0 connectors and with 0 and 2 tasks are balanced in
    all, but not in each.
    """
    job_counts = list(loads)
    if not job_counts:
        return 0
    floor, extras = divmod(job_count, len(job_counts))
    return sum(max(0, load - floor) for load in job_counts) - min(extras, sum(load > floor for load in job_counts))
