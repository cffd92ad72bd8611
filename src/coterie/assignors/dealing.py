"""From counts to jobs: which ones a worker gets and which it releases, on the way to the balanced target."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from coterie.assignors.target import Change, Load, balance
from coterie.nouns.ids import MemberId
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId, Job, Jobs


def toward_balance(
    owned: Mapping[MemberId, Jobs], *, to_place: Jobs, free: Jobs, moved: Jobs, order: Sequence[MemberId]
) -> tuple[dict[MemberId, Jobs], dict[MemberId, Jobs]]:
    """What each member gets now, and what it has to release.

    Of ``to_place``, what the target lets members gain beside what they release to each other, only what is ``free``
    can be given now: the rest is waiting or still runs elsewhere, and comes in a later round.
    """
    changes = balance(
        [
            Load(connectors=len(owned[m].connectors), tasks=Counter(task.connector for task in owned[m].tasks))
            for m in order
        ],
        connectors=len(to_place.connectors),
        tasks=Counter(task.connector for task in to_place.tasks),
    )
    free_connectors = sorted(free.connectors, reverse=True)
    free_tasks = _by_connector(free.tasks, reverse=True)
    given: dict[MemberId, Jobs] = {}
    released: dict[MemberId, Jobs] = {}
    for member, change in zip(order, changes, strict=True):
        gains: list[Job] = [free_connectors.pop() for _ in range(min(change.connectors, len(free_connectors)))]
        for connector, count in change.tasks.items():
            there = free_tasks.get(connector, [])
            gains += [there.pop() for _ in range(min(count, len(there)))]
        if gains:
            given[member] = Jobs.of(gains)
        surplus = _surplus(owned[member], change, moved)
        if surplus:
            released[member] = surplus
    return given, released


def _surplus(owned: Jobs, change: Change, moved: Jobs) -> Jobs:
    """As many as ``change`` takes away: those that have moved before, then the last ones by name and number."""
    gives = {connector: -count for connector, count in change.tasks.items() if count < 0}
    tasks = _by_connector(task for task in owned.tasks if task.connector in gives) if gives else {}
    connectors = sorted(owned.connectors, key=lambda connector: (connector in moved, connector))
    return Jobs(
        frozenset(connectors[change.connectors :] if change.connectors < 0 else ()),
        frozenset(
            task
            for connector, count in gives.items()
            for task in sorted(tasks[connector], key=lambda task: (task in moved, task))[-count:]
        ),
    )


def _by_connector(
    tasks: Iterable[ConnectorTaskId], *, reverse: bool = False
) -> dict[ConnectorName, list[ConnectorTaskId]]:
    found: dict[ConnectorName, list[ConnectorTaskId]] = {}
    for task in sorted(tasks, reverse=reverse):
        found.setdefault(task.connector, []).append(task)
    return found
