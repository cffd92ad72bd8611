"""The balanced target, over counts: how many connectors, and how many tasks of each connector, a worker gains or gives.

What is promised (design, "Assignors"):

- connectors, tasks and their sum end at floor or ceiling for every worker;
- the fewest moves under those totals. A worker above its share gives away exactly its surplus and gains nothing, one
  below it gives nothing, so moves depend only on *who gets the extras* (`shares`);
- among the outcomes with so few moves, the best spread: the least sum, over connectors and workers, of the squares of a
  connector's tasks on a worker. `exchange` comes near it, `spread` makes it exact; where nobody runs a task yet,
  dealing in turn is enough.

Nothing here looks at single tasks. The cost is that of the cells (connector, worker) of those who give or take, plus
that of the tasks that change hands, plus that of what `spread` has to repair: nothing in a fleet that was spread well
and has a worker, or a connector, more or less; most where everything had come to lie at random.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from coterie.assignors.exchange import Deltas, exchange
from coterie.assignors.shares import Shares, divide
from coterie.assignors.spread import spread
from coterie.nouns.jobs import ConnectorName


class Load(NamedTuple):
    """What one worker runs: how many connectors, how many tasks of each connector.

    (A tuple, as a change is, since there is one for each worker: a frozen dataclass takes twice as long to make.)
    """

    connectors: int = 0
    tasks: Mapping[ConnectorName, int] = MappingProxyType({})

    @property
    def all_tasks(self) -> int:
        return sum(self.tasks.values())


class LoadChange(NamedTuple):
    """What one worker gains (above zero) or gives away (below)."""

    connectors: int = 0
    tasks: Mapping[ConnectorName, int] = MappingProxyType({})


NO_CHANGE = LoadChange()


def balance(loads: Sequence[Load], *, connectors: int, tasks: Mapping[ConnectorName, int]) -> Sequence[LoadChange]:
    """The change of every worker, in the order of ``loads``, which is also the order that settles ties.

    ``connectors`` and ``tasks`` (by connector) are what nobody runs.
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
    """Where nobody runs any task, none can be spread better than by dealing them out, round and round.

    Those with an extra come first, and each connector begins where the one before it ended.
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
    """M*: no balanced outcome of ``jobs`` jobs moves fewer, given how many of them each worker runs.

    It is not always reachable, since connectors and tasks are balanced apart, too (connectors {2,0}, tasks {0,2}).
    """
    held = list(loads)
    if not held:
        return 0
    floor, extras = divmod(jobs, len(held))
    return sum(max(0, load - floor) for load in held) - min(extras, sum(load > floor for load in held))
