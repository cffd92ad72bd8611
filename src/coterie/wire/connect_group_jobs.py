"""Sets of jobs in the messages of connect groups: an array of connectors, and an array of tasks by connector.

Several structs have these two arrays beside other fields. So the functions take any such struct, and
:func:`job_arrays` returns the values of the two fields.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from coterie.nouns.errors import WireError
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId, Job, Jobs
from coterie.wire.connect_group_messages.structs import TasksOfConnector

_SHOWN_NAME_LENGTH_MAX = 100
"""The number of characters of a connector's name in an error message, which has to fit into a response."""


class InvalidFieldError(WireError):
    """A field of a well-formed message has a value that the protocol does not allow. A coordinator answers such a
    request with INVALID_REQUEST and the text of this error."""


class JobArrays(Protocol):
    """A struct with the two arrays that state a set of jobs: the connectors, and the tasks by connector."""

    @property
    def connectors(self) -> Sequence[str]: ...
    @property
    def tasks(self) -> Sequence[TasksOfConnector]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedJobs:
    """The jobs that one or more structs list together, and the jobs among these that are listed more than once."""

    jobs: Jobs
    jobs_listed_twice: Jobs


def distinct_jobs_in_arrays(arrays: JobArrays) -> Jobs:
    """The jobs in ``arrays``. A repeated job counts once.

    :raises InvalidFieldError: when the name of a connector is empty, or the number of a task is negative.
    """
    return Jobs.of(_all_listed_jobs(arrays))


def listed_jobs(structs: Iterable[JobArrays]) -> ListedJobs:
    """The jobs in all ``structs``, and those that are listed more than once, in one of them or in several.

    :raises InvalidFieldError: when the name of a connector is empty, or the number of a task is negative.
    """
    counts = Counter(job for arrays in structs for job in _all_listed_jobs(arrays))
    return ListedJobs(
        jobs=Jobs.of(counts), jobs_listed_twice=Jobs.of(job for job, count in counts.items() if count > 1)
    )


def job_arrays(jobs: Jobs) -> Mapping[str, Any]:
    """The two arrays that state ``jobs`` in a struct, as values of the fields ``connectors`` and ``tasks``. They are
    sorted by name and number, so that equal sets are encoded as equal bytes."""
    return {
        "connectors": sorted(jobs.connectors),
        "tasks": [
            {"connector_id": connector, "task_ids": numbers}
            for connector, numbers in jobs.task_numbers_by_connector().items()
        ],
    }


def _all_listed_jobs(arrays: JobArrays) -> list[Job]:
    """Each job in ``arrays``, as often as it is listed.

    :raises InvalidFieldError: when the name of a connector is empty, or the number of a task is negative.
    """
    jobs: list[Job] = [_checked_connector_name(name) for name in arrays.connectors]
    for tasks in arrays.tasks:
        connector = _checked_connector_name(tasks.connector_id)
        lowest_number = min(tasks.task_ids, default=0)
        if lowest_number < 0:
            raise InvalidFieldError(
                f"connector {connector[:_SHOWN_NAME_LENGTH_MAX]!r} has the task number {lowest_number}; the "
                "lowest allowed number is 0"
            )
        jobs += [ConnectorTaskId(connector, number) for number in tasks.task_ids]
    return jobs


def _checked_connector_name(name: str) -> ConnectorName:
    """``name`` as the name of a connector.

    :raises InvalidFieldError: when it is empty.
    """
    if not name:
        raise InvalidFieldError("the name of a connector is empty")
    return ConnectorName(name)
