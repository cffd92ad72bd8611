"""The messages of API 10003, ConnectGroupDescribe."""

from dataclasses import dataclass, field
from typing import ClassVar

from coterie.wire.connect_group_messages.structs import (
    BOOL,
    INT16,
    INT32,
    INT64,
    STRING,
    ConnectorsAndTasks,
    Request,
    Response,
    Struct,
    TasksOfConnector,
    UnplaceableJobs,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectGroupDescribeRequest(Request):
    """ConnectGroupDescribe: a client requests the state of groups."""

    __api_key__: ClassVar[int] = 10003

    group_ids: tuple[str, ...] = field(metadata=STRING)
    include_authorized_operations: bool = field(metadata=BOOL)


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitedJobs(Struct):
    """Jobs of a member's target assignment that another member, ``holder_id``, still has."""

    holder_id: str = field(metadata=STRING)
    connectors: tuple[str, ...] = field(metadata=STRING)
    tasks: tuple[TasksOfConnector, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Member(Struct):
    """One member of a described group. ``config_offset`` is how far it has read the config topic. ``claims`` None: it
    may run any job. ``assigned`` are the jobs that are assigned to it now, ``pending`` those that were revoked and that
    it has not given back, ``target`` its target assignment."""

    member_id: str = field(metadata=STRING)
    instance_id: str | None = field(metadata=STRING, default=None)
    client_id: str = field(metadata=STRING)
    client_host: str = field(metadata=STRING)
    url: str = field(metadata=STRING)
    name: str = field(metadata=STRING)
    member_epoch: int = field(metadata=INT32)
    state: str = field(metadata=STRING)
    draining: bool = field(metadata=BOOL)
    config_offset: int = field(metadata=INT64)
    """How far the worker has read the config topic."""
    claims: ConnectorsAndTasks | None = field(default=None)
    """The only jobs that the worker may run (KIP-987); None: it may run any job."""
    assigned: ConnectorsAndTasks
    """The jobs that are assigned to the member now."""
    pending: ConnectorsAndTasks
    """The jobs that were revoked from the member, and that it has not given back."""
    target: ConnectorsAndTasks
    """The member's target assignment."""
    awaited: tuple[AwaitedJobs, ...]
    """The jobs of the member's target assignment that other members still have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DepartedMember(Struct):
    """A member that has left, why (``reason``), and its jobs. They wait for it during the scheduled rebalance delay, of
    which ``delay_left_ms`` is left (-1: none runs), and may still run on its worker for ``held_left_ms`` (0: they have
    stopped)."""

    member_id: str = field(metadata=STRING)
    instance_id: str | None = field(metadata=STRING, default=None)
    url: str = field(metadata=STRING)
    delay_left_ms: int = field(metadata=INT32)
    """What is left of the scheduled rebalance delay; -1 if none runs."""
    held_left_ms: int = field(metadata=INT32)
    """How long the jobs may still run on the departed member's worker; 0 if they have stopped."""
    connectors: tuple[str, ...] = field(metadata=STRING)
    tasks: tuple[TasksOfConnector, ...]
    reason: str = field(metadata=STRING | {"tag": 0}, default="")
    """Why the member has left or was removed; empty if it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig(Struct):
    """A config that applies to a group: the group's own, or the broker's default."""

    name: str = field(metadata=STRING)
    value: str = field(metadata=STRING)


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedGroup(Struct):
    """The description of one group. If there is none, ``error_code`` and ``error_message`` say why.
    ``assignment_error`` is the error of the last computation of a target assignment (empty: it succeeded);
    ``config_offset`` is the offset of the config topic up to which the leader has reported the configured jobs."""

    error_code: int = field(metadata=INT16)
    error_message: str | None = field(metadata=STRING, default=None)
    group_id: str = field(metadata=STRING)
    group_state: str = field(metadata=STRING)
    group_epoch: int = field(metadata=INT32)
    assignment_epoch: int = field(metadata=INT32)
    assignor_name: str = field(metadata=STRING)
    computing_member: str = field(metadata=STRING)
    """The member that computes the target assignment now; empty if none does."""
    assignment_error: str = field(metadata=STRING)
    """The error of the last computation of a target assignment; empty if it succeeded."""
    leader_id: str = field(metadata=STRING)
    leader_epoch: int = field(metadata=INT32)
    config_offset: int = field(metadata=INT64)
    """Up to which offset of the config topic the leader has reported the group's configured jobs."""
    members: tuple[Member, ...]
    departed: tuple[DepartedMember, ...]
    unplaceable: tuple[UnplaceableJobs, ...]
    authorized_operations: int = field(metadata=INT32, default=-(2**31))
    configs: tuple[GroupConfig, ...] = field(metadata={"tag": 0}, default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectGroupDescribeResponse(Response):
    """The response to ConnectGroupDescribe."""

    __api_key__: ClassVar[int] = 10003

    throttle_time_ms: int = field(metadata=INT32)
    groups: tuple[DescribedGroup, ...]
