"""The messages of API 10000, ConnectGroupHeartbeat."""

import uuid
from dataclasses import dataclass, field
from typing import ClassVar

from coterie.wire.connect_group_messages.structs import (
    BOOL,
    BYTES,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    UUID,
    ConnectorsAndTasks,
    NullableConfigured,
    NullableStruct,
    Request,
    Response,
    Struct,
    TasksOfConnector,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignor(Struct):
    """One client-side assignor that a worker offers to its group, with its metadata. ``reason``: why the metadata
    changed (0: no reason; 1: a delay is over; 2: the metadata changed; 3: an operator asks for an assignment)."""

    name: str = field(metadata=STRING)
    minimum_version: int = field(metadata=INT16)
    """The oldest version of the metadata that the assignor reads."""
    maximum_version: int = field(metadata=INT16)
    """The newest version of the metadata that the assignor reads."""
    reason: int = field(metadata=INT8)
    """Why the metadata changed: 0 no reason, 1 a delay is over, 2 the metadata changed, 3 an operator asks for an
    assignment."""
    version: int = field(metadata=INT16)
    """The version of ``metadata``."""
    metadata: bytes = field(metadata=BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims(Struct):
    """The only jobs that a worker may run (KIP-987); any job if ``wildcard`` is true."""

    wildcard: bool = field(metadata=BOOL)
    """Whether the worker may run any job; ``connectors`` and ``tasks`` are then empty."""
    connectors: tuple[str, ...] = field(metadata=STRING)
    tasks: tuple[TasksOfConnector, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NullableClaims(NullableStruct):
    """The claims in a tagged field; None: the field is absent, and the claims have not changed."""

    value: Claims | None = None


@dataclass(slots=True, kw_only=True)
class ConnectGroupHeartbeatRequest(Request):
    """ConnectGroupHeartbeat: a worker reports its state to the coordinator of its group.
    ``connectors_and_tasks`` are the jobs that it owns; ``draining`` is 1 while it is being drained, else 0;
    ``resumes``: its process is about to replace itself, so that the end of its connection means nothing.

    In every field from ``instance_id`` to ``draining``, the default means: not changed since the last heartbeat, or the
    worker has no such value. Not frozen: building a frozen entity with as many fields takes longer than decoding the
    bytes of most of these requests.
    """

    __api_key__: ClassVar[int] = 10000

    group_id: str = field(metadata=STRING)
    member_id: str = field(metadata=STRING)
    member_epoch: int = field(metadata=INT32, default=-1)
    """The member epoch; 0 to join, -1 to leave permanently, -2 to leave for a short time."""
    instance_id: str | None = field(metadata=STRING, default=None)
    rebalance_timeout_ms: int = field(metadata=INT32, default=-1)
    """How long the coordinator waits for the worker to give back revoked jobs."""
    server_assignor: str | None = field(metadata=STRING, default=None)
    """The name of an assignor of the coordinator."""
    client_assignors: tuple[Assignor, ...] | None = field(default=None)
    """The worker's own assignors, the preferred one first."""
    connectors_and_tasks: ConnectorsAndTasks | None = field(default=None)
    """The jobs that the worker owns; a job that is missing has stopped."""
    url: str | None = field(metadata=STRING | {"tag": 0}, default=None)
    name: str | None = field(metadata=STRING | {"tag": 1}, default=None)
    config_offset: int = field(metadata=INT64 | {"tag": 2}, default=-2)
    """How far the worker has read the config topic."""
    config_topic_id: uuid.UUID | None = field(metadata=UUID | {"tag": 3}, default=None)
    configured: NullableConfigured = field(metadata={"tag": 4}, default=NullableConfigured())
    """All configured jobs of the group; only the leader sends them."""
    claims: NullableClaims = field(metadata={"tag": 5}, default=NullableClaims())
    draining: int = field(metadata=INT8 | {"tag": 6}, default=-1)
    """1 while the worker is being drained, else 0; -1: not changed since the last heartbeat."""
    max_wait_ms: int = field(metadata=INT32 | {"tag": 7}, default=0)
    """How long the coordinator may hold the response while it has nothing to report."""
    request_number: int = field(metadata=INT64 | {"tag": 8}, default=0)
    """Rises with each request of the member id. A request whose number is not above the last one is not processed; 0:
    the request has no number."""
    connection_grace_ms: int = field(metadata=INT32 | {"tag": 9}, default=-1)
    """How long after the end of its connection the worker may still be alive; 0: the end of the connection means
    nothing; -1: not changed since the last heartbeat."""
    resumes: bool = field(metadata=BOOL | {"tag": 10}, default=False)
    """Whether the worker's process is about to replace itself, so that the end of its connection means nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsOfEpoch(Struct):
    """The jobs of an assignment that have the same job epoch: the assignment epoch in which they were assigned to the
    worker."""

    epoch: int = field(metadata=INT32)
    connectors: tuple[str, ...] = field(metadata=STRING)
    tasks: tuple[TasksOfConnector, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment(Struct):
    """All jobs that a worker may run, and the assignor's message to the worker (``version`` and ``metadata``)."""

    error: int = field(metadata=INT8)
    connectors_and_tasks: ConnectorsAndTasks
    version: int = field(metadata=INT16)
    metadata: bytes = field(metadata=BYTES)
    job_epochs: tuple[JobsOfEpoch, ...] = field(metadata={"tag": 0}, default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectGroupHeartbeatResponse(Response):
    """The response to ConnectGroupHeartbeat. Without ``assignment`` nothing has changed for the worker's jobs; with it,
    ``config_offset`` is how far the worker must have read the config topic before it starts these jobs."""

    __api_key__: ClassVar[int] = 10000

    throttle_time_ms: int = field(metadata=INT32)
    error_code: int = field(metadata=INT16)
    error_message: str | None = field(metadata=STRING, default=None)
    member_epoch: int = field(metadata=INT32)
    heartbeat_interval_ms: int = field(metadata=INT32)
    assignment: Assignment | None = field(default=None)
    """All jobs that the worker may run; jobs that it owns and that are missing here are revoked. None: not changed."""
    leader_id: str | None = field(metadata=STRING | {"tag": 0}, default=None)
    """The member id of the leader; empty when the group has no leader, None: not changed since the last response."""
    leader_epoch: int = field(metadata=INT32 | {"tag": 1}, default=-1)
    leader_url: str | None = field(metadata=STRING | {"tag": 2}, default=None)
    """The URL of the leader's REST API; empty when the group has no leader, None when the response has no news of the
    leader (``leader_id`` is then None, too)."""
    assignment_epoch: int = field(metadata=INT32 | {"tag": 3}, default=-1)
    """The assignment epoch of the worker's target assignment; -1 without ``assignment``."""
    config_offset: int = field(metadata=INT64 | {"tag": 4}, default=-2)
    """How far the worker must have read the config topic before it starts the jobs of ``assignment``; -2 without
    ``assignment``."""
    session_timeout_ms: int = field(metadata=INT32 | {"tag": 5}, default=-1)
    """The session timeout of the group; -1: not changed since the last response."""
