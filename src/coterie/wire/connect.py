"""The embedded Connect protocol: what workers say inside JoinGroup and SyncGroup (K415, "Public Interfaces").

Its bytes are written and read in `connect_bytes`.
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
        """As ``connect.protocol`` names it."""
        return self.name.lower()

    @property
    def offered(self) -> "tuple[ConnectProtocol, ...]":
        """What a worker that is set to this one offers: it and all older ones, the newest first."""
        return tuple(sorted((protocol for protocol in ConnectProtocol if protocol <= self), reverse=True))

    @classmethod
    def named(cls, setting: str) -> "ConnectProtocol":
        """:raises KeyError: when ``connect.protocol`` can have no such value."""
        return {protocol.setting: protocol for protocol in cls}[setting]


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
    """What a worker says of itself when it joins; what comes after the allocation has a place from v3 on."""

    url: WorkerUrl
    config_offset: ConfigOffset
    allocation: WorkerAssignment | None = None
    static_connectors: frozenset[ConnectorName] | None = None
    """The connectors that this worker claims (KIP-987); None is a worker that takes any."""
    static_tasks: frozenset[ConnectorTaskId] | None = None
    """The tasks that it claims. A worker that claims anything, were it nothing, takes only that."""
    draining: bool = False
    """It is to go for good: its jobs move away while it still runs them."""
    opaque: bytes | None = None
    """For what later versions have to say; handed on as it came."""


# -- the tokens of a classic group's rounds (`nouns.membership`) ------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundToken:
    """The round that a leader has to compute: the token of ``AssignmentWanted``."""

    generation: Generation
    protocol: ConnectProtocol
    """What the group has voted for: the newest that all members offer."""
    left_out: frozenset[MemberId] = frozenset()
    """Members whose metadata is malformed: they are not reported, and may still run tasks."""

    @classmethod
    def of(cls, token: object) -> Self:
        assert isinstance(token, cls)
        return token


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """How a round ended: the token of ``Assigned``."""

    protocol: ConnectProtocol
    """What the group had voted for in that round."""
    error: AssignmentError = AssignmentError.NO_ERROR
    delay_ms: int = 0
    """What is left of the scheduled rebalance delay; 0 when none runs."""

    @classmethod
    def of(cls, token: object) -> Self:
        assert isinstance(token, cls)
        return token
