"""From counts to jobs: which ones a worker gets and which it releases, on the way to the balanced target."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from heapq import nlargest

from coterie.assignors.target import NO_CHANGE, Change, Load, balance
from coterie.nouns.ids import MemberId
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId, Jobs


def toward_balance(
    owned: Mapping[MemberId, Jobs], *, to_place: Jobs, free: Jobs, moved: Jobs, order: Sequence[MemberId]
) -> tuple[dict[MemberId, Jobs], dict[MemberId, Jobs]]:
    """What each member gets now, and what it has to release.

    Of ``to_place``, what the target lets members gain beside what they release to each other, only what is ``free``
    can be given now: the rest is waiting or still runs elsewhere, and comes in a later round.
    """
    changes = balance(
        [Load(connectors=len(owned[m].connectors), tasks=_counted(owned[m].tasks)) for m in order],
        connectors=len(to_place.connectors),
        tasks=_counted(to_place.tasks),
    )
    free_connectors = sorted(free.connectors, reverse=True)
    free_tasks = _by_connector(free.tasks)
    for there in free_tasks.values():
        there.sort(reverse=True)
    given: dict[MemberId, Jobs] = {}
    released: dict[MemberId, Jobs] = {}
    for member, change in zip(order, changes, strict=True):
        if change is NO_CHANGE:
            continue
        connectors = [free_connectors.pop() for _ in range(min(change.connectors, len(free_connectors)))]
        tasks: list[ConnectorTaskId] = []
        for connector, count in change.tasks.items():
            if count > 0 and connector in free_tasks:
                tasks += free_tasks[connector][-count:]
                del free_tasks[connector][-count:]
        if connectors or tasks:
            given[member] = Jobs(frozenset(connectors), frozenset(tasks))
        surplus = _surplus(owned[member], change, moved)
        if surplus:
            released[member] = surplus
    return given, released


def _surplus(owned: Jobs, change: Change, moved: Jobs) -> Jobs:
    """As many as ``change`` takes away: those that have moved before, then the last ones by name and number."""
    connectors: Sequence[ConnectorName] = ()
    if change.connectors < 0:
        ranked = sorted(owned.connectors, key=lambda connector: (connector in moved.connectors, connector))
        connectors = ranked[change.connectors :]
    gives = {connector: -count for connector, count in change.tasks.items() if count < 0}
    there = _by_connector(task for task in owned.tasks if task.connector in gives) if gives else {}
    tasks: list[ConnectorTaskId] = []
    for connector, count in gives.items():
        tasks += nlargest(count, there[connector], key=lambda task: (task in moved.tasks, task.task))
    return Jobs(frozenset(connectors), frozenset(tasks))


def _counted(tasks: Iterable[ConnectorTaskId]) -> dict[ConnectorName, int]:
    # (Where a worker has ten tasks, to set up a Counter takes as long as to count them.)
    counts: dict[ConnectorName, int] = {}
    for task in tasks:
        name = task.connector
        counts[name] = counts.get(name, 0) + 1
    return counts


def _by_connector(tasks: Iterable[ConnectorTaskId]) -> dict[ConnectorName, list[ConnectorTaskId]]:
    found: defaultdict[ConnectorName, list[ConnectorTaskId]] = defaultdict(list)
    for task in tasks:
        found[task.connector].append(task)
    return found
