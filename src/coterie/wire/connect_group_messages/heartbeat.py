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
    """One client-side assignor that a worker offers to its group."""

    name: str = field(metadata=STRING)
    minimum_version: int = field(metadata=INT16)
    maximum_version: int = field(metadata=INT16)
    reason: int = field(metadata=INT8)
    version: int = field(metadata=INT16)
    metadata: bytes = field(metadata=BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims(Struct):
    """The only jobs that a worker may run (KIP-987); any job if ``wildcard`` is true."""

    wildcard: bool = field(metadata=BOOL)
    connectors: tuple[str, ...] = field(metadata=STRING)
    tasks: tuple[TasksOfConnector, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NullableClaims(NullableStruct):
    """The claims in a tagged field; None: the field is absent, and the claims have not changed."""

    value: Claims | None = None


@dataclass(slots=True, kw_only=True)
class ConnectGroupHeartbeatRequest(Request):
    """ConnectGroupHeartbeat: a worker reports its state to the coordinator of its group. Not frozen: building a frozen
    entity with as many fields takes longer than decoding the bytes of most of these requests."""

    __api_key__: ClassVar[int] = 10000

    group_id: str = field(metadata=STRING)
    member_id: str = field(metadata=STRING)
    member_epoch: int = field(metadata=INT32, default=-1)
    instance_id: str | None = field(metadata=STRING, default=None)
    rebalance_timeout_ms: int = field(metadata=INT32, default=-1)
    server_assignor: str | None = field(metadata=STRING, default=None)
    client_assignors: tuple[Assignor, ...] | None = field(default=None)
    connectors_and_tasks: ConnectorsAndTasks | None = field(default=None)
    url: str | None = field(metadata=STRING | {"tag": 0}, default=None)
    name: str | None = field(metadata=STRING | {"tag": 1}, default=None)
    config_offset: int = field(metadata=INT64 | {"tag": 2}, default=-2)
    config_topic_id: uuid.UUID | None = field(metadata=UUID | {"tag": 3}, default=None)
    configured: NullableConfigured = field(metadata={"tag": 4}, default=NullableConfigured())
    claims: NullableClaims = field(metadata={"tag": 5}, default=NullableClaims())
    draining: int = field(metadata=INT8 | {"tag": 6}, default=-1)
    max_wait_ms: int = field(metadata=INT32 | {"tag": 7}, default=0)
    request_number: int = field(metadata=INT64 | {"tag": 8}, default=0)
    connection_grace_ms: int = field(metadata=INT32 | {"tag": 9}, default=-1)
    resumes: bool = field(metadata=BOOL | {"tag": 10}, default=False)


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
    """The response to ConnectGroupHeartbeat."""

    __api_key__: ClassVar[int] = 10000

    throttle_time_ms: int = field(metadata=INT32)
    error_code: int = field(metadata=INT16)
    error_message: str | None = field(metadata=STRING, default=None)
    member_epoch: int = field(metadata=INT32)
    heartbeat_interval_ms: int = field(metadata=INT32)
    assignment: Assignment | None = field(default=None)
    leader_id: str | None = field(metadata=STRING | {"tag": 0}, default=None)
    leader_epoch: int = field(metadata=INT32 | {"tag": 1}, default=-1)
    leader_url: str | None = field(metadata=STRING | {"tag": 2}, default=None)
    assignment_epoch: int = field(metadata=INT32 | {"tag": 3}, default=-1)
    config_offset: int = field(metadata=INT64 | {"tag": 4}, default=-2)
    session_timeout_ms: int = field(metadata=INT32 | {"tag": 5}, default=-1)
