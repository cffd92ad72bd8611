"""The bytes of the embedded Connect protocol, v0 `default`, v1 `compatible` and v2 `sessioned` (K415; KIP-507).

Both messages begin with their version. v1 and v2 differ in nothing but that number. Reading is as tolerant as
Connect's: fields missing at the end take their defaults, bytes left over are ignored, a null array is empty, and only
a negative version is refused. So a worker of v0 and one of v2 understand each other's bytes as far as v0 goes.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby

from coterie.nouns.errors import WireError
from coterie.nouns.ids import ConfigOffset, MemberId, WorkerUrl
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId, Jobs
from coterie.wire.connect import AssignmentError, ConnectProtocol, WorkerAssignment, WorkerMetadata
from coterie.wire.primitives import Reader, Writer

CONNECTOR = -1
"""In an array of tasks: the connector instance itself."""

_CONNECTOR_SIZE_MIN = 2 + 4
"""An empty name and an empty array of tasks."""


def encode_metadata(protocol: ConnectProtocol, metadata: WorkerMetadata) -> bytes:
    """What a worker puts into JoinGroup under ``protocol``'s name. v0 has no place for the allocation."""
    writer = Writer()
    writer.int16(protocol)
    writer.string(metadata.url)
    writer.int64(metadata.config_offset)
    if protocol >= ConnectProtocol.COMPATIBLE:
        allocation = metadata.allocation
        writer.nullable_bytes(None if allocation is None else encode_assignment(protocol, allocation))
    return writer.getvalue()


def decode_metadata(data: bytes) -> tuple[int, WorkerMetadata]:
    """The version that stands in the bytes, and what a worker says of itself.

    :raises WireError: when the bytes are no metadata.
    """
    reader = Reader(data)
    version = _read_version(reader)
    url = WorkerUrl(reader.string())
    config_offset = ConfigOffset(reader.int64())
    allocation = reader.nullable_bytes() if reader.left else None
    return version, WorkerMetadata(
        url=url,
        config_offset=config_offset,
        # A worker that has nothing may say so with null or with no bytes at all.
        allocation=decode_assignment(allocation)[1] if allocation else None,
    )


def encode_assignment(protocol: ConnectProtocol, assignment: WorkerAssignment) -> bytes:
    """What the leader puts into SyncGroup for one worker. v0 has no place for revocations and delay."""
    writer = Writer()
    writer.int16(protocol)
    writer.int16(assignment.error)
    writer.string(assignment.leader)
    writer.string(assignment.leader_url)
    writer.int64(assignment.config_offset)
    _write_jobs(writer, assignment.assigned)
    if protocol >= ConnectProtocol.COMPATIBLE:
        _write_jobs(writer, assignment.revoked)
        writer.int32(assignment.delay_ms)
    return writer.getvalue()


def decode_assignment(data: bytes) -> tuple[int, WorkerAssignment]:
    """The version that stands in the bytes, and what the leader tells.

    :raises WireError: when the bytes are no assignment.
    """
    reader = Reader(data)
    version = _read_version(reader)
    return version, WorkerAssignment(
        error=_read_error(reader),
        leader=MemberId(reader.string()),
        leader_url=WorkerUrl(reader.string()),
        config_offset=ConfigOffset(reader.int64()),
        assigned=_read_jobs(reader),
        revoked=_read_jobs(reader),
        delay_ms=reader.int32() if reader.left else 0,
    )


# -- small hands ------------------------------------------------------------------------------------------------------


def _read_version(reader: Reader) -> int:
    version = reader.int16()
    if version < 0:
        raise WireError(f"the embedded Connect protocol has no version {version}")
    return version


def _read_error(reader: Reader) -> AssignmentError:
    code = reader.int16()
    try:
        return AssignmentError(code)
    except ValueError as error:
        raise WireError(f"an assignment has no error {code}") from error


def _write_jobs(writer: Writer, jobs: Jobs) -> None:
    """Connectors by name, the instance before its tasks: one order, so that equal assignments are equal bytes."""
    numbers: Sequence[tuple[ConnectorName, int]] = sorted(
        [(connector, CONNECTOR) for connector in jobs.connectors] + [(task.connector, task.task) for task in jobs.tasks]
    )
    by_connector: Mapping[ConnectorName, list[int]] = {
        connector: [number for _, number in group] for connector, group in groupby(numbers, key=lambda job: job[0])
    }
    writer.count(len(by_connector))
    for connector, tasks in by_connector.items():
        writer.string(connector)
        writer.count(len(tasks))
        for task in tasks:
            writer.int32(task)


def _read_jobs(reader: Reader) -> Jobs:
    if not reader.left:
        return Jobs()
    connectors: set[ConnectorName] = set()
    tasks: set[ConnectorTaskId] = set()

    def read_connector() -> None:
        connector = ConnectorName(reader.string())
        for number in reader.nullable_array(reader.int32, element_size_min=4) or ():
            if number == CONNECTOR:
                connectors.add(connector)
            elif number >= 0:
                tasks.add(ConnectorTaskId(connector, number))
            else:
                raise WireError(f"connector {connector!r} has no task {number}")

    reader.nullable_array(read_connector, element_size_min=_CONNECTOR_SIZE_MIN)
    return Jobs(frozenset(connectors), frozenset(tasks))
