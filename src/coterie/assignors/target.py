"""The balanced target, in counts: the connectors, and the tasks of each connector, that a worker receives or releases.

The target guarantees (design, "Assignors"):

- Every worker ends with the floor or the ceiling of the average number of connectors, of tasks, and of both together.
- No assignment with such totals needs fewer moves. A worker above its quota releases exactly its surplus and receives
  nothing. A worker below its quota releases nothing. So the number of moves depends only on which workers get the
  extras (`shares`).
- Among the assignments with as few moves, the target has the best spread. That is the least sum of squares of the
  cells, where a cell is the number of a connector's tasks on a worker. `exchange` comes near this minimum, and `spread`
  reaches it. If no worker runs a task yet, a round-robin assignment already has the best spread.

The code works on counts, not on single tasks. The cost grows with the number of cells (connector, worker) of the
workers that release or receive tasks, with the number of tasks that move, and with the corrections that `spread` makes.
It makes none in a fleet that was well spread and gained or lost one worker or connector. It makes most where the tasks
were placed at random.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from coterie.assignors.exchange import Deltas, exchange
from coterie.assignors.shares import Shares, divide
from coterie.assignors.spread import spread
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
        return sum(self.tasks.values())


class LoadChange(NamedTuple):
    """The numbers of connectors and tasks that one worker receives (above zero) or releases (below zero)."""

    connectors: int = 0
    tasks: Mapping[ConnectorName, int] = MappingProxyType({})


NO_CHANGE = LoadChange()


def balance(loads: Sequence[Load], *, connectors: int, tasks: Mapping[ConnectorName, int]) -> Sequence[LoadChange]:
    """Return the change of every worker, in the order of ``loads``, which also breaks ties.

    ``connectors`` and ``tasks`` (by connector) are the numbers of connectors and tasks that no worker runs.
    """
    if not loads:
        return ()
    held = [load.tasks for load in loads]
    running = [load.all_tasks for load in loads]
    hosting = [load.connectors for load in loads]
    shares = divide(
        hosting, running, all_connectors=connectors + sum(hosting), all_tasks=sum(tasks.values()) + sum(running)
    )
    if any(running):
        deltas = exchange(held, tasks, shares)
        spread(held, deltas, shares)
    else:
        deltas = _dealt_in_turn(tasks, shares)
    more = [shares.connectors_floor + extra - host for host, extra in zip(hosting, shares.with_connector, strict=True)]
    return [
        LoadChange(count, delta) if count or delta else NO_CHANGE for count, delta in zip(more, deltas, strict=True)
    ]


def _dealt_in_turn(tasks: Mapping[ConnectorName, int], shares: Shares) -> Deltas:
    """Assign the tasks round-robin, which gives the best spread if no worker runs a task.

    Workers with an extra come first. Each connector begins at the worker after the previous connector's last one.
    """
    extras = shares.tasks_extras - sum(shares.with_task)
    for worker in shares.open_workers()[:extras]:
        shares.with_task[worker] = True
    deltas: Deltas = [{} for _ in shares.with_task]
    turn = [deltas[worker] for worker in sorted(range(len(deltas)), key=lambda worker: not shares.with_task[worker])]
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
    """Return M*, a lower bound on the moves to any balanced assignment of ``jobs`` jobs.

    ``loads`` is the number of these jobs that each worker runs. The bound is not always reachable, because connectors
    and tasks must be balanced separately as well (connectors {2,0}, tasks {0,2}).
    """
    held = list(loads)
    if not held:
        return 0
    floor, extras = divmod(jobs, len(held))
    return sum(max(0, load - floor) for load in held) - min(extras, sum(load > floor for load in held))
