"""The units of assignment: connectors, tasks, and sets of both kinds."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, NewType, Self, TypeAlias

ConnectorName = NewType("ConnectorName", str)

TASKS_PER_CONNECTOR_MAX = 1_000
"""The maximum number of tasks of one connector. Connect has no limit. But a worker publishes the configs of all tasks
of a connector in one step, and may be assigned all of these tasks in one step. In each such step its event loop sends
no heartbeat: for about 0.2 s with 1,000 tasks, and 2 s with 10,000. Also, 1,000 configs of 8 kB each fit into the one
request that publishes them."""


class ConnectorTaskId(NamedTuple):
    """One task of a connector. Its text is ``<connector>-<task>``, as in Connect."""

    connector: ConnectorName
    task: int
    """The number of the task, from 0."""

    def __str__(self) -> str:
        return f"{self.connector}-{self.task}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The task id of a text ``<connector>-<task>``. Split at the *last* ``-``, because a connector's name may
        contain ``-``.

        :raises ValueError: when ``text`` is not a name, ``-`` and a number.
        """
        connector, dash, task = text.rpartition("-")
        if not (dash and connector and task.isascii() and task.isdigit()):
            raise ValueError(f"{text!r} is not <connector>-<task number>")
        return cls(ConnectorName(connector), int(task))


Job: TypeAlias = ConnectorName | ConnectorTaskId
"""One unit of assignment: a connector instance, or one of its tasks."""


@dataclass(frozen=True, slots=True)
class Jobs:
    """An immutable set of jobs, with the operators of sets. Iteration is sorted: connectors by name, then tasks by
    connector and number."""

    connectors: frozenset[ConnectorName] = field(default=frozenset())
    tasks: frozenset[ConnectorTaskId] = field(default=frozenset())

    @classmethod
    def of(cls, jobs: Iterable[Job]) -> Self:
        """The set of these ``jobs``, which may contain duplicates."""
        connectors: set[ConnectorName] = set()
        tasks: set[ConnectorTaskId] = set()
        for job in jobs:
            if isinstance(job, ConnectorTaskId):
                tasks.add(job)
            else:
                connectors.add(job)
        return cls(frozenset(connectors), frozenset(tasks))

    # In most calls one set is empty or contains the other. The result is then one of the two sets itself: a copy would
    # take time in proportion to its size.

    def __or__(self, other: "Jobs") -> "Jobs":
        if not other:
            return self
        if not self:
            return other
        return Jobs(self.connectors | other.connectors, self.tasks | other.tasks)

    def __and__(self, other: "Jobs") -> "Jobs":
        if self <= other:
            return self
        return Jobs(self.connectors & other.connectors, self.tasks & other.tasks)

    def __sub__(self, other: "Jobs") -> "Jobs":
        if not other:
            return self
        return Jobs(self.connectors - other.connectors, self.tasks - other.tasks)

    def __le__(self, other: "Jobs") -> bool:
        """Whether each job of this set is in ``other``, too."""
        return self.connectors <= other.connectors and self.tasks <= other.tasks

    def __contains__(self, job: Job) -> bool:
        return job in self.tasks if isinstance(job, ConnectorTaskId) else job in self.connectors

    def __iter__(self) -> Iterator[Job]:
        """Connectors by name, then tasks by connector and number. Jobs are always shown in this order."""
        yield from sorted(self.connectors)
        yield from sorted(self.tasks)

    def task_numbers_by_connector(self) -> Mapping[ConnectorName, Sequence[int]]:
        """The numbers of the tasks by connector, both sorted. Faster than sorting the tasks, since a connector has many
        tasks."""
        numbers: dict[ConnectorName, list[int]] = {}
        for connector, number in self.tasks:
            numbers.setdefault(connector, []).append(number)
        return {connector: sorted(numbers[connector]) for connector in sorted(numbers)}

    @property
    def first(self) -> Job:
        """The job with which the iteration begins, found without sorting all.

        :raises ValueError: when there is no job.
        """
        return min(self.connectors) if self.connectors else min(self.tasks)

    def __len__(self) -> int:
        return len(self.connectors) + len(self.tasks)

    def __bool__(self) -> bool:
        return bool(self.connectors or self.tasks)


NO_JOBS = Jobs()
