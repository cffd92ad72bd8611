"""The bytes of the structs that several records of a connect group contain (`docs/protocol/records`).

All are flexible: strings and arrays have compact lengths, and each struct ends with its tagged fields. None of these
structs has a tagged field yet; the fields of newer versions are skipped.
"""

from collections import Counter
from collections.abc import Mapping

from coterie.nouns.connect_groups import SupportedAssignor
from coterie.nouns.errors import WireError
from coterie.nouns.ids import GroupEpoch
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Jobs
from coterie.nouns.target_assignments import UnplaceableJobs
from coterie.wire.primitives import Reader, Writer

# The sizes in bytes of the smallest elements of arrays: limits for the numbers of elements.
_NAME_SIZE_MIN = 1
_TASKS_SIZE_MIN = 1 + 1 + 1
_UNPLACEABLE_SIZE_MIN = 1 + 1 + 1 + 1
_JOBS_OF_EPOCH_SIZE_MIN = 4 + 1 + 1 + 1
_ASSIGNOR_SIZE_MIN = 1 + 2 + 2 + 1 + 2 + 1 + 1
_CONFIG_SIZE_MIN = 1 + 1 + 1

# -- jobs --------------------------------------------------------------------------------------------------------------


def write_jobs(writer: Writer, jobs: Jobs) -> None:
    """Write a set of jobs as a ConnectorsAndTasks, in the order of `Jobs`."""
    writer.compact_array_count(len(jobs.connectors))
    for name in sorted(jobs.connectors):
        writer.compact_string(name)
    numbers_by_connector = jobs.task_numbers_by_connector()
    writer.compact_array_count(len(numbers_by_connector))
    for name, numbers in numbers_by_connector.items():
        writer.compact_string(name)
        writer.compact_int32_array(numbers)
        writer.no_tagged_fields()
    writer.no_tagged_fields()


def read_jobs(reader: Reader) -> Jobs:
    """Read a set of jobs: a ConnectorsAndTasks."""
    connectors = reader.compact_array(reader.compact_string, element_size_min=_NAME_SIZE_MIN)
    tasks: set[ConnectorTaskId] = set()

    def add_tasks_of_next_connector() -> None:
        name = ConnectorName(reader.compact_string())
        tasks.update(ConnectorTaskId(name, number) for number in reader.compact_int32_array())
        reader.skip_tagged_fields()

    reader.compact_array(add_tasks_of_next_connector, element_size_min=_TASKS_SIZE_MIN)
    reader.skip_tagged_fields()
    if not connectors and not tasks:
        return NO_JOBS
    return Jobs(frozenset(map(ConnectorName, connectors)), frozenset(tasks))


def write_nullable_jobs(writer: Writer, jobs: Jobs | None) -> None:
    """Write a set of jobs as a nullable ConnectorsAndTasks; None is written as null."""
    writer.presence(jobs is not None)
    if jobs is not None:
        write_jobs(writer, jobs)


def read_nullable_jobs(reader: Reader) -> Jobs | None:
    """Read a set of jobs from a nullable ConnectorsAndTasks; None for null."""
    return read_jobs(reader) if reader.read_presence() else None


def write_job_epochs(writer: Writer, job_epochs: Mapping[GroupEpoch, Jobs]) -> None:
    """Write jobs by job epoch as an array of JobsOfEpoch, in the order of the epochs. The bytes after each epoch are
    those of a ConnectorsAndTasks."""
    writer.compact_array_count(len(job_epochs))
    for epoch in sorted(job_epochs):
        writer.int32(epoch)
        write_jobs(writer, job_epochs[epoch])


def read_job_epochs(reader: Reader) -> dict[GroupEpoch, Jobs]:
    """Read jobs by job epoch from an array of JobsOfEpoch.

    :raises WireError: when it is malformed, or contains an epoch twice.
    """
    found = reader.compact_array(
        lambda: (GroupEpoch(reader.int32()), read_jobs(reader)), element_size_min=_JOBS_OF_EPOCH_SIZE_MIN
    )
    job_epochs = dict(found)
    if len(job_epochs) < len(found):
        raise WireError(
            "an array that lists jobs by their job epoch contains two entries for one job epoch: the record of the "
            "group is damaged"
        )
    return job_epochs


def write_unplaceable_jobs(writer: Writer, unplaceable: tuple[UnplaceableJobs, ...]) -> None:
    """Write an array of UnplaceableJobs, in the given order. The bytes after the reason are those of a
    ConnectorsAndTasks."""
    writer.compact_array_count(len(unplaceable))
    for each in unplaceable:
        writer.compact_string(each.reason)
        write_jobs(writer, each.jobs)


def read_unplaceable_jobs(reader: Reader) -> tuple[UnplaceableJobs, ...]:
    """Read an array of UnplaceableJobs."""

    def read_element() -> UnplaceableJobs:
        reason = reader.compact_string()
        return UnplaceableJobs(reason=reason, jobs=read_jobs(reader))

    return tuple(reader.compact_array(read_element, element_size_min=_UNPLACEABLE_SIZE_MIN))


# -- assignors and configs ---------------------------------------------------------------------------------------------


def write_assignors(writer: Writer, assignors: tuple[SupportedAssignor, ...]) -> None:
    """Write an array of Assignor, in the given order."""
    writer.compact_array_count(len(assignors))
    for assignor in assignors:
        writer.compact_string(assignor.name)
        writer.int16(assignor.minimum_version)
        writer.int16(assignor.maximum_version)
        writer.int8(assignor.reason)
        writer.int16(assignor.version)
        writer.compact_bytes(assignor.metadata)
        writer.no_tagged_fields()


def read_assignors(reader: Reader) -> tuple[SupportedAssignor, ...]:
    """Read an array of Assignor."""

    def read_element() -> SupportedAssignor:
        assignor = SupportedAssignor(
            name=reader.compact_string(),
            minimum_version=reader.int16(),
            maximum_version=reader.int16(),
            reason=reader.int8(),
            version=reader.int16(),
            metadata=reader.compact_bytes(),
        )
        reader.skip_tagged_fields()
        return assignor

    return tuple(reader.compact_array(read_element, element_size_min=_ASSIGNOR_SIZE_MIN))


def write_configs(writer: Writer, configs: Mapping[str, str]) -> None:
    """Write an array of Configuration, in the order of the names."""
    writer.compact_array_count(len(configs))
    for name in sorted(configs):
        writer.compact_string(name)
        writer.compact_string(configs[name])
        writer.no_tagged_fields()


def read_configs(reader: Reader) -> dict[str, str]:
    """Read an array of Configuration.

    :raises WireError: when it is malformed, or contains a name twice.
    """

    def read_element() -> tuple[str, str]:
        config = reader.compact_string(), reader.compact_string()
        reader.skip_tagged_fields()
        return config

    found = reader.compact_array(read_element, element_size_min=_CONFIG_SIZE_MIN)
    configs = dict(found)
    if len(configs) < len(found):
        name = next(name for name, count in Counter(name for name, _ in found).items() if count > 1)
        raise WireError(f"the configs of a group contain the name {name!r} twice: the record of the group is damaged")
    return configs
