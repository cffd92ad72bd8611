"""Selects the jobs that each worker receives and releases, given the load changes (counts) of the balanced target."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

from coterie.assignors.target import NO_LOAD_CHANGE, Load, LoadChange, compute_balanced_target
from coterie.nouns.ids import MemberId
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Jobs

_task_number = attrgetter("task")


def jobs_to_receive_and_release(
    owned: Mapping[MemberId, Jobs],
    *,
    to_assign: Jobs,
    assignable_now: Jobs,
    moved_before: Jobs,
    order: Sequence[MemberId],
) -> tuple[dict[MemberId, Jobs], dict[MemberId, Jobs]]:
    """Return the jobs that each member of ``order`` receives now, and the jobs that each must release.

    Both mappings leave out the members without such jobs. ``order`` are the members that take part, in the order that
    breaks ties. ``to_assign`` are the jobs that the target distributes and that none of these members owns. Only those
    that are also in ``assignable_now`` can be assigned now. The others wait or still run on a member that must release
    them, and a later round assigns them.
    """
    assignable_tasks = _group_tasks_by_connector(assignable_now.tasks)
    are_all_assignable_now = to_assign is assignable_now  # then the counts of `assignable_tasks` can be used again
    changes = compute_balanced_target(
        [Load(len(owned[member].connectors), _count_tasks_by_connector(owned[member].tasks)) for member in order],
        unowned_connectors=len(to_assign.connectors),
        unowned_tasks={name: len(tasks_of_connector) for name, tasks_of_connector in assignable_tasks.items()}
        if are_all_assignable_now
        else _count_tasks_by_connector(to_assign.tasks),
    )
    remaining_connectors = sorted(assignable_now.connectors, reverse=True)
    remaining_tasks_by_connector = {
        name: sorted(tasks_of_connector, key=_task_number, reverse=True)
        for name, tasks_of_connector in assignable_tasks.items()
    }
    assigned: dict[MemberId, Jobs] = {}
    released: dict[MemberId, Jobs] = {}
    for member, change in zip(order, changes, strict=True):
        if change is NO_LOAD_CHANGE:
            continue
        connectors = [remaining_connectors.pop() for _ in range(min(change.connector_delta, len(remaining_connectors)))]
        tasks: list[ConnectorTaskId] = []
        for name, gained_count in change.task_delta_by_connector.items():
            remaining_tasks = remaining_tasks_by_connector.get(name)
            while remaining_tasks and gained_count > 0:
                tasks.append(remaining_tasks.pop())
                gained_count -= 1
        if connectors or tasks:
            assigned[member] = Jobs(frozenset(connectors), frozenset(tasks))
        if owned[member] and (surplus := _select_surplus(owned[member], change, moved_before)):
            released[member] = surplus
    return assigned, released


def _select_surplus(owned: Jobs, change: LoadChange, moved_before: Jobs) -> Jobs:
    """Return the jobs of ``owned`` that the member must release: as many as ``change`` takes away.

    Jobs that moved before are chosen first; then the connectors with the last names, and of each connector the tasks
    with the highest numbers.
    """
    release_counts = {connector: -count for connector, count in change.task_delta_by_connector.items() if count < 0}
    if not release_counts and change.connector_delta >= 0:
        return NO_JOBS
    connectors: Sequence[ConnectorName] = ()
    if change.connector_delta < 0:
        ranked_connectors = sorted(
            owned.connectors, key=lambda connector: (connector in moved_before.connectors, connector)
        )
        connectors = ranked_connectors[change.connector_delta :]
    releasable_tasks = [task for task in owned.tasks if task.connector in release_counts]
    releasable_tasks.sort(key=_task_number, reverse=True)
    if moved_before.tasks:
        releasable_tasks.sort(key=moved_before.tasks.__contains__, reverse=True)
    tasks: list[ConnectorTaskId] = []
    for task in releasable_tasks:
        if release_counts[task.connector]:
            release_counts[task.connector] -= 1
            tasks.append(task)
    return Jobs(frozenset(connectors), frozenset(tasks))


def _count_tasks_by_connector(tasks: Iterable[ConnectorTaskId]) -> dict[ConnectorName, int]:
    # For a worker with ten tasks, creating a Counter takes as long as counting the tasks.
    counts: dict[ConnectorName, int] = {}
    for task in tasks:
        name = task.connector
        counts[name] = counts.get(name, 0) + 1
    return counts


def _group_tasks_by_connector(tasks: Iterable[ConnectorTaskId]) -> dict[ConnectorName, list[ConnectorTaskId]]:
    tasks_by_connector: defaultdict[ConnectorName, list[ConnectorTaskId]] = defaultdict(list)
    for task in tasks:
        tasks_by_connector[task.connector].append(task)
    return tasks_by_connector
