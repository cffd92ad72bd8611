"""The embedded Connect protocol: what workers say inside JoinGroup and SyncGroup (K415, "Public Interfaces").

Its bytes are written and read in `connect_bytes`.
"""

from dataclasses import dataclass
from enum import IntEnum

from coterie.nouns.ids import ConfigOffset, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, Jobs

PROTOCOL_TYPE = "connect"


class ConnectProtocol(IntEnum):
    """The protocol's version; its name on the wire is ``wire_name``."""

    EAGER = 0
    COMPATIBLE = 1
    SESSIONED = 2

    @property
    def wire_name(self) -> str:
        return ("default", "compatible", "sessioned")[self]


class AssignmentError(IntEnum):
    """Why a leader gives nobody any work."""

    NO_ERROR = 0
    CONFIG_MISMATCH = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerAssignment:
    """What the leader tells one worker: on the wire only what is newly assigned and what is revoked.

    As the ``allocation`` of a :class:`WorkerMetadata` it holds the whole of what the worker has.
    """

    error: AssignmentError = AssignmentError.NO_ERROR
    leader: MemberId
    leader_url: WorkerUrl
    config_offset: ConfigOffset
    assigned: Jobs = NO_JOBS
    revoked: Jobs = NO_JOBS
    delay_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMetadata:
    """What a worker says of itself when it joins."""

    url: WorkerUrl
    config_offset: ConfigOffset
    allocation: WorkerAssignment | None = None
