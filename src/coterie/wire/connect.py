"""The embedded Connect protocol: the data that workers send inside JoinGroup and SyncGroup (KIP-415, "Public
Interfaces").

`connect_bytes` encodes and decodes it.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Self

from coterie.nouns.ids import ConfigOffset, Generation, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Jobs

PROTOCOL_TYPE = "connect"


class ConnectProtocol(IntEnum):
    """The protocol's version; its name on the wire is ``wire_name``."""

    EAGER = 0
    COMPATIBLE = 1
    SESSIONED = 2
    STATIC = 3
    """Coterie's own (KIP-987)."""

    @property
    def wire_name(self) -> str:
        return ("default", "compatible", "sessioned", "static")[self]

    @property
    def setting(self) -> str:
        """The value of ``connect.protocol`` for this version."""
        return self.name.lower()

    @property
    def offered(self) -> "tuple[ConnectProtocol, ...]":
        """The versions that a worker with this setting offers: this one and all older ones, the newest first."""
        return tuple(sorted((protocol for protocol in ConnectProtocol if protocol <= self), reverse=True))

    @classmethod
    def named(cls, setting: str) -> "ConnectProtocol":
        """:raises KeyError: when ``setting`` is not a valid value of ``connect.protocol``."""
        return {protocol.setting: protocol for protocol in cls}[setting]


class AssignmentError(IntEnum):
    """The reason why a leader's assignments change nothing."""

    NO_ERROR = 0
    CONFIG_MISMATCH = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerAssignment:
    """The assignment that the leader sends to one worker: only jobs that are newly assigned or revoked.

    As the ``allocation`` of a :class:`WorkerMetadata` it contains all jobs that the worker has.
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
    """The metadata that a worker sends in JoinGroup. The fields after ``allocation`` are sent from v3 on."""

    url: WorkerUrl
    config_offset: ConfigOffset
    allocation: WorkerAssignment | None = None
    static_connectors: frozenset[ConnectorName] | None = None
    """The connectors that this worker claims (KIP-987)."""
    static_tasks: frozenset[ConnectorTaskId] | None = None
    """The tasks that this worker claims. If this field or ``static_connectors`` is not None, the worker runs only the
    jobs that it claims; an empty claim means: no job. If both are None, the worker runs any job."""
    draining: bool = False
    """The worker is being drained: the leader moves its jobs away while it still runs them."""
    opaque: bytes | None = None
    """Reserved for later versions; passed on unchanged."""


# -- the tokens of a classic group's rebalances (`nouns.membership`) --------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundToken:
    """The rebalance for which the leader has to compute assignments: the token of ``AssignmentWanted``."""

    generation: Generation
    protocol: ConnectProtocol
    """The group's selected protocol: the newest that all members offer."""
    left_out: frozenset[MemberId] = frozenset()
    """Members whose metadata cannot be decoded: ``AssignmentWanted.members`` does not contain them, but they may still
    run tasks."""

    @classmethod
    def of(cls, token: object) -> Self:
        assert isinstance(token, cls)
        return token


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """The result of a rebalance: the token of ``Assigned``."""

    protocol: ConnectProtocol
    """The protocol that was selected in that rebalance."""
    error: AssignmentError = AssignmentError.NO_ERROR
    delay_ms: int = 0
    """What is left of the scheduled rebalance delay; 0 when none runs."""

    @classmethod
    def of(cls, token: object) -> Self:
        assert isinstance(token, cls)
        return token
