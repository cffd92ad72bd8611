"""Selects the jobs that each worker receives and releases, given the load changes (counts) of the balanced target."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

from coterie.assignors.target import NO_CHANGE, Load, LoadChange, balance
from coterie.nouns.ids import MemberId
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Jobs

_number = attrgetter("task")


def select_jobs(
    owned: Mapping[MemberId, Jobs], *, to_assign: Jobs, free: Jobs, moved_before: Jobs, order: Sequence[MemberId]
) -> tuple[dict[MemberId, Jobs], dict[MemberId, Jobs]]:
    """Return the jobs that each member of ``order`` receives now, and the jobs that each must release.

    Both mappings leave out the members without such jobs. ``order`` are the members that take part, in the order that
    breaks ties. ``to_assign`` are the jobs that the target distributes and that none of these members owns. Only those
    that are also in ``free`` can be assigned now. The others wait or still run on a member that must release them, and
    a later round assigns them.
    """
    free_tasks = _by_connector(free.tasks)
    all_free = to_assign is free  # then the counts of `free_tasks` can be used again
    changes = balance(
        [Load(len(owned[member].connectors), _counted(owned[member].tasks)) for member in order],
        connectors=len(to_assign.connectors),
        tasks={name: len(there) for name, there in free_tasks.items()} if all_free else _counted(to_assign.tasks),
    )
    connectors_left = sorted(free.connectors, reverse=True)
    tasks_left = {name: sorted(there, key=_number, reverse=True) for name, there in free_tasks.items()}
    given: dict[MemberId, Jobs] = {}
    released: dict[MemberId, Jobs] = {}
    for member, change in zip(order, changes, strict=True):
        if change is NO_CHANGE:
            continue
        connectors = [connectors_left.pop() for _ in range(min(change.connectors, len(connectors_left)))]
        tasks: list[ConnectorTaskId] = []
        for name, gained in change.tasks.items():
            left = tasks_left.get(name)
            while left and gained > 0:
                tasks.append(left.pop())
                gained -= 1
        if connectors or tasks:
            given[member] = Jobs(frozenset(connectors), frozenset(tasks))
        if owned[member] and (surplus := _surplus(owned[member], change, moved_before)):
            released[member] = surplus
    return given, released


def _surplus(owned: Jobs, change: LoadChange, moved_before: Jobs) -> Jobs:
    """Return the jobs of ``owned`` that the member must release: as many as ``change`` takes away.

    First come the jobs that moved before; then the connectors with the last names, and of each connector the tasks
    with the highest numbers.
    """
    gives = {connector: -count for connector, count in change.tasks.items() if count < 0}
    if not gives and change.connectors >= 0:
        return NO_JOBS
    connectors: Sequence[ConnectorName] = ()
    if change.connectors < 0:
        ranked = sorted(owned.connectors, key=lambda connector: (connector in moved_before.connectors, connector))
        connectors = ranked[change.connectors :]
    there = [task for task in owned.tasks if task.connector in gives]
    there.sort(key=_number, reverse=True)
    if moved_before.tasks:
        there.sort(key=moved_before.tasks.__contains__, reverse=True)
    tasks: list[ConnectorTaskId] = []
    for task in there:
        if gives[task.connector]:
            gives[task.connector] -= 1
            tasks.append(task)
    return Jobs(frozenset(connectors), frozenset(tasks))


def _counted(tasks: Iterable[ConnectorTaskId]) -> dict[ConnectorName, int]:
    # For a worker with ten tasks, creating a Counter takes as long as counting the tasks.
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
