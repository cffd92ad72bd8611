"""The embedded Connect protocol's bytes: v0 `default`, v1 `compatible`, v2 `sessioned` (KIP-415; KIP-507), v3 `static`.

Both messages begin with their version. v1 and v2 differ only in that number. v3 is Coterie's own, because KIP-987
specifies no bytes: its assignment is as in v2, and its metadata ends with

    static.connectors   nullable array of string
    static.tasks        nullable array of {connector string, tasks array of int32}
    draining            boolean
    opaque              nullable bytes

Decoding is as tolerant as Connect's: fields missing at the end get their defaults, bytes left over are ignored, a null
array is read as empty (except the two static arrays, where null and empty differ), and only a negative version is
rejected. So a worker of v0 and one of v3 can decode the v0 fields of each other's bytes.
"""

from collections.abc import Iterable, Mapping
from itertools import groupby
from operator import itemgetter

from coterie.nouns.errors import WireError
from coterie.nouns.ids import ConfigOffset, MemberId, WorkerUrl
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId, Jobs
from coterie.wire.connect import AssignmentErrorCode, ConnectProtocol, WorkerAssignment, WorkerMetadata
from coterie.wire.primitives import Reader, Writer

CONNECTOR_INSTANCE = -1
"""In an array of task numbers: the connector instance itself."""

_INT32_MAX = 2**31 - 1
NULL_COUNT = -1
"""The count of a null array."""
_CONNECTOR_SIZE_MIN = 2 + 4
"""The smallest size of one connector with its task numbers, in bytes: an empty name and an empty array."""


def encode_metadata(protocol: ConnectProtocol, metadata: WorkerMetadata) -> bytes:
    """The bytes that a worker sends in JoinGroup under ``protocol``'s name. Fields that this version does not have are
    left out."""
    writer = Writer()
    writer.int16(protocol)
    writer.string(metadata.url)
    writer.int64(metadata.config_offset)
    if protocol >= ConnectProtocol.COMPATIBLE:
        allocation = metadata.allocation
        writer.nullable_bytes(None if allocation is None else encode_assignment(protocol, allocation))
    if protocol >= ConnectProtocol.STATIC:
        _write_claims(writer, metadata)
        writer.boolean(metadata.draining)
        writer.nullable_bytes(metadata.opaque)
    return writer.getvalue()


def decode_version_and_metadata(data: bytes) -> tuple[int, WorkerMetadata]:
    """The version that ``data`` states, which may be newer than any :class:`ConnectProtocol`, and the worker's
    metadata.

    :raises WireError: when the bytes are malformed.
    """
    reader = Reader(data)
    version = _read_non_negative_version(reader)
    url = WorkerUrl(reader.string())
    config_offset = ConfigOffset(reader.int64())
    allocation = reader.nullable_bytes() if reader.remaining else None
    # Bytes that follow the fields of v1 or v2 have no defined meaning and are ignored.
    static_fields_reader = reader if version >= ConnectProtocol.STATIC else Reader(b"")
    return version, WorkerMetadata(
        url=url,
        config_offset=config_offset,
        # A worker that has no jobs may send null or zero bytes.
        allocation=decode_version_and_assignment(allocation)[1] if allocation else None,
        static_connectors=_read_claimed_connectors(static_fields_reader),
        static_tasks=_read_claimed_tasks(static_fields_reader),
        draining=static_fields_reader.boolean() if static_fields_reader.remaining else False,
        opaque=static_fields_reader.nullable_bytes() if static_fields_reader.remaining else None,
    )


def encode_assignment(protocol: ConnectProtocol, assignment: WorkerAssignment) -> bytes:
    """The bytes that the leader sends in SyncGroup to one worker. v0 has no fields for revoked jobs and the delay: they
    are left out."""
    writer = Writer()
    writer.int16(protocol)
    writer.int16(assignment.error)
    writer.string(assignment.leader)
    writer.string(assignment.leader_url)
    writer.int64(assignment.config_offset)
    _write_jobs(writer, assignment.assigned)
    if protocol >= ConnectProtocol.COMPATIBLE:
        _write_jobs(writer, assignment.revoked)
        # A delay that does not fit into an int32 would fail here, and then in each following leader too. So it is
        # limited to the greatest value that fits (24 days).
        writer.int32(min(assignment.delay_ms, _INT32_MAX))
    return writer.getvalue()


def decode_version_and_assignment(data: bytes) -> tuple[int, WorkerAssignment]:
    """The version that ``data`` states, which may be newer than any :class:`ConnectProtocol`, and the leader's
    assignment.

    :raises WireError: when the bytes are malformed.
    """
    reader = Reader(data)
    version = _read_non_negative_version(reader)
    return version, WorkerAssignment(
        error=_read_assignment_error(reader),
        leader=MemberId(reader.string()),
        leader_url=WorkerUrl(reader.string()),
        config_offset=ConfigOffset(reader.int64()),
        assigned=_read_jobs(reader),
        revoked=_read_jobs(reader),
        delay_ms=reader.int32() if reader.remaining else 0,
    )


# -- helpers ----------------------------------------------------------------------------------------------------------


def _read_non_negative_version(reader: Reader) -> int:
    """The version at the beginning of a message.

    :raises WireError: when it is negative.
    """
    version = reader.int16()
    if version < 0:
        raise WireError(f"the version {version} of the embedded Connect protocol is negative")
    return version


def _read_assignment_error(reader: Reader) -> AssignmentErrorCode:
    """The error code of an assignment.

    :raises WireError: when it is unknown.
    """
    code = reader.int16()
    try:
        return AssignmentErrorCode(code)
    except ValueError as error:
        raise WireError(f"the error code {code} of an assignment is unknown") from error


def _write_jobs(writer: Writer, jobs: Jobs) -> None:
    """Write ``jobs`` sorted by connector name, the connector instance before its tasks, so that equal assignments are
    encoded as equal bytes."""
    connector_instances = [(connector, CONNECTOR_INSTANCE) for connector in jobs.connectors]
    _write_task_numbers(writer, connector_instances + [(task.connector, task.task) for task in jobs.tasks])


def _write_task_numbers(writer: Writer, connector_task_numbers: Iterable[tuple[ConnectorName, int]]) -> None:
    """Write pairs of connector and task number as one array for each connector."""
    task_numbers_by_connector: Mapping[ConnectorName, list[int]] = {
        connector: [number for _, number in group]
        for connector, group in groupby(sorted(connector_task_numbers), key=itemgetter(0))
    }
    writer.array_count(len(task_numbers_by_connector))
    for connector, task_numbers in task_numbers_by_connector.items():
        writer.string(connector)
        writer.array_count(len(task_numbers))
        for task_number in task_numbers:
            writer.int32(task_number)


def _read_jobs(reader: Reader) -> Jobs:
    """Connector instances and tasks; none for a null array, and when no bytes are left."""
    connector_task_numbers = _read_task_numbers(reader, task_number_min=CONNECTOR_INSTANCE) or ()
    return Jobs.of(
        connector if number == CONNECTOR_INSTANCE else ConnectorTaskId(connector, number)
        for connector, number in connector_task_numbers
    )


def _read_task_numbers(reader: Reader, *, task_number_min: int) -> list[tuple[ConnectorName, int]] | None:
    """Pairs of connector and task number, one for each task; ``task_number_min`` is the smallest valid number. None for
    a null array, and when no bytes are left.

    :raises WireError: when the array is malformed, or a number is too small.
    """

    def read_connector_task_numbers() -> list[tuple[ConnectorName, int]]:
        connector = ConnectorName(reader.string())
        task_numbers = reader.nullable_array(reader.int32, element_size_min=4) or []
        if task_numbers and min(task_numbers) < task_number_min:
            raise WireError(f"connector {connector!r} has the invalid task number {min(task_numbers)}")
        return [(connector, number) for number in task_numbers]

    numbers_by_connector = (
        reader.nullable_array(read_connector_task_numbers, element_size_min=_CONNECTOR_SIZE_MIN)
        if reader.remaining
        else None
    )
    return None if numbers_by_connector is None else [pair for pairs in numbers_by_connector for pair in pairs]


# -- the jobs that a worker claims, in v3 -----------------------------------------------------------------------------


def _write_claims(writer: Writer, metadata: WorkerMetadata) -> None:
    """Write the connectors and the tasks that the worker claims; a null array if the field is None."""
    if metadata.static_connectors is None:
        writer.array_count(NULL_COUNT)
    else:
        writer.array_count(len(metadata.static_connectors))
        for connector in sorted(metadata.static_connectors):
            writer.string(connector)
    if metadata.static_tasks is None:
        writer.array_count(NULL_COUNT)
    else:
        _write_task_numbers(writer, [(task.connector, task.task) for task in metadata.static_tasks])


def _read_claimed_connectors(reader: Reader) -> frozenset[ConnectorName] | None:
    """The claimed connectors; None for a null array, and when no bytes are left."""
    names = reader.nullable_array(reader.string, element_size_min=2) if reader.remaining else None
    return None if names is None else frozenset(map(ConnectorName, names))


def _read_claimed_tasks(reader: Reader) -> frozenset[ConnectorTaskId] | None:
    """The claimed tasks; None for a null array, and when no bytes are left."""
    connector_task_numbers = _read_task_numbers(reader, task_number_min=0)
    return (
        None
        if connector_task_numbers is None
        else frozenset(ConnectorTaskId(connector, number) for connector, number in connector_task_numbers)
    )
