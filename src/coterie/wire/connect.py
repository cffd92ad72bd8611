"""The embedded Connect protocol: the data that workers send inside JoinGroup and SyncGroup (KIP-415, "Public
Interfaces").

`connect_bytes` encodes and decodes this data.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Self

from coterie.nouns.ids import ConfigOffset, GenerationId, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Jobs

PROTOCOL_TYPE = "connect"
"""The protocol type of Connect's groups in JoinGroup."""


class ConnectProtocol(IntEnum):
    """The versions of the embedded Connect protocol. A version's name on the wire is ``wire_name``; the value of
    ``connect.protocol`` is ``setting``."""

    EAGER = 0
    """Every rebalance stops all jobs."""
    COMPATIBLE = 1
    """A rebalance stops only the jobs that move (KIP-415)."""
    SESSIONED = 2
    """As COMPATIBLE; in addition, requests between workers are signed (KIP-507)."""
    STATIC = 3
    """As SESSIONED; in addition, a worker may claim jobs (KIP-987), and may be drained. The bytes are Coterie's own."""

    @property
    def wire_name(self) -> str:
        """The version's name in JoinGroup; EAGER has the name "default"."""
        return ("default", "compatible", "sessioned", "static")[self]

    @property
    def setting(self) -> str:
        """The value of ``connect.protocol`` for this version."""
        return self.name.lower()

    @property
    def versions_to_offer(self) -> "tuple[ConnectProtocol, ...]":
        """The versions that a worker offers whose ``connect.protocol`` is this version: this version and all older
        ones, the newest first."""
        return tuple(sorted((protocol for protocol in ConnectProtocol if protocol <= self), reverse=True))

    @classmethod
    def from_setting(cls, setting: str) -> "ConnectProtocol":
        """The version for ``setting``, a value of ``connect.protocol``.

        :raises KeyError: when ``setting`` is not a valid value.
        """
        return {protocol.setting: protocol for protocol in cls}[setting]


class AssignmentErrorCode(IntEnum):
    """The error in a leader's assignments. With CONFIG_MISMATCH, the assignments change nothing: the leader has read
    less of the config topic than a member."""

    NO_ERROR = 0
    CONFIG_MISMATCH = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerAssignment:
    """The assignment that the leader sends to one worker. ``assigned`` and ``revoked`` contain only the jobs that are
    newly assigned or revoked; in protocol v0 (eager), ``assigned`` contains all jobs that the worker is to run, and
    replaces those that it had. ``config_offset`` is the offset up to which the config topic was read for this
    assignment; with the error CONFIG_MISMATCH, the one up to which the leader must read it.

    As the ``allocation`` of a :class:`WorkerMetadata`, ``assigned`` contains all jobs that the worker has.
    """

    error: AssignmentErrorCode = AssignmentErrorCode.NO_ERROR
    leader: MemberId
    """The member id of the leader."""
    leader_url: WorkerUrl
    """The URL of the leader's REST API."""
    config_offset: ConfigOffset
    """Up to which offset the config topic was read for this assignment; with CONFIG_MISMATCH: up to which offset the
    leader must read it."""
    assigned: Jobs = NO_JOBS
    revoked: Jobs = NO_JOBS
    delay_ms: int = 0
    """What is left of the scheduled rebalance delay; 0 when none runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMetadata:
    """The metadata that a worker sends in JoinGroup. The fields after ``allocation`` are sent from v3 on. If
    ``static_connectors`` or ``static_tasks`` is not None, the worker runs only the jobs that these two claim; if both
    are None, any job. ``opaque`` is JSON with the worker's name."""

    url: WorkerUrl
    """The URL of the worker's REST API."""
    config_offset: ConfigOffset
    """Up to which offset the worker has read the config topic."""
    allocation: WorkerAssignment | None = None
    """The jobs that the worker has; None if it reports none, as in v0."""
    static_connectors: frozenset[ConnectorName] | None = None
    """The connectors that this worker claims (KIP-987)."""
    static_tasks: frozenset[ConnectorTaskId] | None = None
    """The tasks that this worker claims. If this field or ``static_connectors`` is not None, the worker runs only the
    jobs that it claims; an empty claim means: no job. If both are None, the worker runs any job."""
    draining: bool = False
    """Whether the worker is being drained: the leader moves its jobs away while it still runs them."""
    opaque: bytes | None = None
    """A JSON object with the worker's name (`connect_opaque`), to which later versions may add. Encoding and decoding
    do not change the bytes."""


# -- the values that a classic group adds to the messages of `nouns.membership` ---------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundToken:
    """Identifies the rebalance for which the leader has to compute assignments: the ``token`` of
    ``AssignmentsRequested``."""

    generation: GenerationId
    protocol: ConnectProtocol
    """The group's selected protocol: the newest that all members offer."""
    undecodable_members: frozenset[MemberId] = frozenset()
    """Members whose metadata cannot be decoded: ``AssignmentsRequested.members`` does not contain them, but they may
    still run tasks."""

    @classmethod
    def checked_instance(cls, token: object) -> Self:
        """``token``, the token of ``AssignmentsRequested``, as a `RoundToken`; an assertion fails if it has another
        type."""
        assert isinstance(token, cls)
        return token


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicAssignmentDetails:
    """What a classic group's ``Assigned`` contains besides the jobs of this worker: its ``protocol_details``."""

    protocol: ConnectProtocol
    """The protocol that was selected in that rebalance."""
    error: AssignmentErrorCode = AssignmentErrorCode.NO_ERROR
    delay_ms: int = 0
    """What is left of the scheduled rebalance delay when the leader computes the assignment; 0 when none runs."""

    @classmethod
    def checked_instance(cls, token: object) -> Self:
        """``token``, the ``protocol_details`` of ``Assigned``, as a `ClassicAssignmentDetails`; an assertion fails if
        it has another type."""
        assert isinstance(token, cls)
        return token
