"""The messages of API 10001, ConnectGroupPrepareAssignment."""

from dataclasses import dataclass, field
from typing import ClassVar

from coterie.nouns.target_assignments import ASSIGNOR_TIME_LIMIT_MS
from coterie.wire.connect_group_messages.structs import (
    BOOL,
    BYTES,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    ConnectorsAndTasks,
    NullableConfigured,
    NullableConnectorsAndTasks,
    Request,
    Response,
    Struct,
    TasksOfConnector,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectGroupPrepareAssignmentRequest(Request):
    """ConnectGroupPrepareAssignment: the member that was chosen to compute the target assignment requests the state of
    the group."""

    __api_key__: ClassVar[int] = 10001

    group_id: str = field(metadata=STRING)
    member_id: str = field(metadata=STRING)
    member_epoch: int = field(metadata=INT32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignor(Struct):
    """The data of one member for the assignor that computes the target assignment: metadata and their version, and the
    reason to compute (0: none; 1: a delay is over; 2: the metadata changed; 3: an operator asks for an assignment)."""

    version: int = field(metadata=INT16)
    reason: int = field(metadata=INT8)
    metadata: bytes = field(metadata=BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member(Struct):
    """One member of the group, as the assignor that computes the target assignment gets it. ``connectors_and_tasks`` is
    its target assignment. ``current`` are the jobs that are assigned to it now (null: those of the target assignment),
    ``pending`` those that were revoked and that it has not given back, ``former`` those that it had when it left and
    that wait for it. ``claims`` null: it may run any job."""

    member_id: str = field(metadata=STRING)
    member_epoch: int = field(metadata=INT32)
    instance_id: str | None = field(metadata=STRING, default=None)
    assignor: Assignor
    connectors_and_tasks: ConnectorsAndTasks
    """The member's target assignment."""
    url: str = field(metadata=STRING | {"tag": 0}, default="")
    name: str = field(metadata=STRING | {"tag": 1}, default="")
    config_offset: int = field(metadata=INT64 | {"tag": 2}, default=-1)
    """How far the worker has read the config topic."""
    claims: NullableConnectorsAndTasks = field(metadata={"tag": 3}, default=NullableConnectorsAndTasks())
    """The only jobs that the worker may run (KIP-987); null: it may run any job."""
    draining: bool = field(metadata=BOOL | {"tag": 4}, default=False)
    current: NullableConnectorsAndTasks = field(metadata={"tag": 5}, default=NullableConnectorsAndTasks())
    """The jobs that are assigned to the member now; null: those of the target assignment."""
    pending: NullableConnectorsAndTasks = field(metadata={"tag": 6}, default=NullableConnectorsAndTasks())
    """The jobs that were revoked from the member, and that it has not given back; null: none."""
    former: NullableConnectorsAndTasks = field(metadata={"tag": 7}, default=NullableConnectorsAndTasks())
    """The jobs that the member had when it left, and that wait for it; null: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DepartedMember(Struct):
    """A member that has left, with its jobs, as the assignor that computes the target assignment gets it.
    ``delay_left_ms`` is what is left of the scheduled rebalance delay; -1 if the delay has not begun."""

    member_id: str = field(metadata=STRING)
    instance_id: str | None = field(metadata=STRING, default=None)
    url: str = field(metadata=STRING)
    delay_left_ms: int = field(metadata=INT32)
    """What is left of the scheduled rebalance delay; -1 if the delay has not begun."""
    connectors: tuple[str, ...] = field(metadata=STRING)
    tasks: tuple[TasksOfConnector, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectGroupPrepareAssignmentResponse(Response):
    """The response to ConnectGroupPrepareAssignment: the state of the group."""

    __api_key__: ClassVar[int] = 10001

    throttle_time_ms: int = field(metadata=INT32)
    error_code: int = field(metadata=INT16)
    error_message: str | None = field(metadata=STRING, default=None)
    group_epoch: int = field(metadata=INT32)
    assignor_name: str = field(metadata=STRING)
    members: tuple[Member, ...]
    configured: NullableConfigured = field(metadata={"tag": 0}, default=NullableConfigured())
    departed: tuple[DepartedMember, ...] = field(metadata={"tag": 1}, default=())
    max_delay_ms: int = field(metadata=INT32 | {"tag": 2}, default=-1)
    """The group's ``connect.scheduled.rebalance.max.delay.ms``; -1 if the group has none."""
    time_limit_ms: int = field(metadata=INT32 | {"tag": 3}, default=ASSIGNOR_TIME_LIMIT_MS)
    """How long the assignor may compute."""
