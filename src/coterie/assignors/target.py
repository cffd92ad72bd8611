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
from coterie.assignors.redistribution import Deltas, redistribute
from coterie.assignors.spread import even_out
from coterie.nouns.jobs import ConnectorName


class Load(NamedTuple):
    """The number of connectors, and of tasks of each connector, that one worker runs.

    It is a tuple, like :class:`LoadChange`, because there is one for each worker, and a frozen dataclass takes twice as
    long to create.
    """

    connectors: int = 0
    tasks: Mapping[ConnectorName, int] = MappingProxyType({})

    @property
    def all_tasks(self) -> int:
        """The number of tasks of all connectors."""
        return sum(self.tasks.values())


class LoadChange(NamedTuple):
    """The number of connectors, and of tasks of each connector, that one worker receives (above 0) or releases (below).

    Connectors of which the worker receives and releases no task are left out.
    """

    connectors: int = 0
    tasks: Mapping[ConnectorName, int] = MappingProxyType({})


NO_CHANGE = LoadChange()
"""The worker receives and releases nothing."""


def balance(loads: Sequence[Load], *, connectors: int, tasks: Mapping[ConnectorName, int]) -> Sequence[LoadChange]:
    """Return the change that brings each worker to the balanced target, in the order of ``loads``.

    This order also breaks ties. ``connectors`` and ``tasks`` (by connector) are the numbers of connectors and tasks
    that no worker runs. A worker without a change has :data:`NO_CHANGE` itself.
    """
    if not loads:
        return ()
    held = [load.tasks for load in loads]
    running = [load.all_tasks for load in loads]
    hosting = [load.connectors for load in loads]
    quotas = compute_quotas(
        hosting, running, all_connectors=connectors + sum(hosting), all_tasks=sum(tasks.values()) + sum(running)
    )
    if any(running):
        deltas = redistribute(held, tasks, quotas)
        even_out(held, deltas, quotas)
    else:
        deltas = _assign_round_robin(tasks, quotas)
    more = [
        quotas.connectors_floor + extra - host for host, extra in zip(hosting, quotas.has_connector_extra, strict=True)
    ]
    return [
        LoadChange(count, delta) if count or delta else NO_CHANGE for count, delta in zip(more, deltas, strict=True)
    ]


def _assign_round_robin(tasks: Mapping[ConnectorName, int], quotas: Quotas) -> Deltas:
    """Distribute ``tasks`` (numbers by connector) round-robin. Only for workers that run no task: this is then the best
    spread.

    Sets in ``quotas`` which workers have a task extra, that is, run one task more than the floor. These workers come
    first. Each connector begins at the worker after the worker that received the previous connector's last task.
    """
    extras = quotas.tasks_extras - sum(quotas.has_task_extra)
    for worker in quotas.with_optional_task_extra()[:extras]:
        quotas.has_task_extra[worker] = True
    deltas: Deltas = [{} for _ in quotas.has_task_extra]
    turn = [
        deltas[worker] for worker in sorted(range(len(deltas)), key=lambda worker: not quotas.has_task_extra[worker])
    ]
    for name in sorted(tasks):
        rounds, more = divmod(tasks[name], len(turn))
        first, others = turn[:more], turn[more:]
        for delta in first:
            delta[name] = rounds + 1
        for delta in others if rounds else ():
            delta[name] = rounds
        turn = others + first
    return deltas


def fewest_moves_bound(loads: Iterable[int], jobs: int) -> int:
    """Return M*, a lower bound on the running jobs that must move to any balanced assignment of ``jobs`` jobs.

    ``loads`` is the number of these jobs that each worker runs. The bound is not always reachable, because connectors
    and tasks must also be balanced separately: workers with 2 and 0 connectors and with 0 and 2 tasks are balanced in
    all, but not in each.
    """
    held = list(loads)
    if not held:
        return 0
    floor, extras = divmod(jobs, len(held))
    return sum(max(0, load - floor) for load in held) - min(extras, sum(load > floor for load in held))
