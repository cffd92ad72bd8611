"""The messages of API 10002, ConnectGroupInstallAssignment."""

from dataclasses import dataclass, field
from typing import ClassVar

from coterie.wire.connect_group_messages.structs import (
    BYTES,
    INT8,
    INT16,
    INT32,
    STRING,
    ConnectorsAndTasks,
    Request,
    Response,
    Struct,
    TasksOfConnector,
    UnplaceableJobs,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member(Struct):
    """The target assignment of one member, and the assignor's message to the member (``version`` and ``metadata``)."""

    member_id: str = field(metadata=STRING)
    connectors_and_tasks: ConnectorsAndTasks
    version: int = field(metadata=INT16)
    metadata: bytes = field(metadata=BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferredJobs(Struct):
    """Jobs that are assigned to no member for ``delay_ms``, in case the departed member ``member_id`` returns."""

    member_id: str = field(metadata=STRING)
    delay_ms: int = field(metadata=INT32)
    connectors: tuple[str, ...] = field(metadata=STRING)
    tasks: tuple[TasksOfConnector, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectGroupInstallAssignmentRequest(Request):
    """ConnectGroupInstallAssignment: the member that was chosen to compute the target assignment sends it to the
    coordinator. ``next_in_ms`` is the time until the coordinator requests the next part of the moves; -1: the target
    assignment is final."""

    __api_key__: ClassVar[int] = 10002

    group_id: str = field(metadata=STRING)
    member_id: str = field(metadata=STRING)
    member_epoch: int = field(metadata=INT32)
    group_epoch: int = field(metadata=INT32)
    """The group epoch for which the target assignment was computed."""
    error: int = field(metadata=INT8)
    """The error of the assignor; 0 if it has computed a target assignment."""
    members: tuple[Member, ...]
    deferred: tuple[DeferredJobs, ...] = field(metadata={"tag": 0}, default=())
    unplaceable: tuple[UnplaceableJobs, ...] = field(metadata={"tag": 1}, default=())
    next_in_ms: int = field(metadata=INT32 | {"tag": 2}, default=-1)
    """The time until the coordinator requests the next part of the moves; -1: the target assignment is final."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectGroupInstallAssignmentResponse(Response):
    """The response to ConnectGroupInstallAssignment."""

    __api_key__: ClassVar[int] = 10002

    throttle_time_ms: int = field(metadata=INT32)
    error_code: int = field(metadata=INT16)
    error_message: str | None = field(metadata=STRING, default=None)
