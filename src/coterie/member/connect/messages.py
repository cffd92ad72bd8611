"""The requests, responses and timers of a member of a connect group.

Each request has ``response_timeout_ms``, which is not sent: how long the client waits for the response, from the
sending. After that it closes the connection, and the request has failed.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from coterie.member import events
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.connect_groups import (
    Claims,
    ConfiguredJobs,
    HeartbeatResponse,
    InstallAssignmentResponse,
    PrepareAssignmentResponse,
    SupportedAssignor,
)
from coterie.nouns.group_description import GroupDescription
from coterie.nouns.ids import ConfigOffset, GroupEpoch, GroupId, InstanceId, MemberEpoch, MemberId, WorkerUrl
from coterie.nouns.jobs import Jobs
from coterie.nouns.target_assignments import ComputedTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest:
    """ConnectGroupHeartbeat. A field that is None has not changed since the last heartbeat that was accepted. In a
    heartbeat with all fields, such as a join, None means that the field does not apply to this worker; only
    ``configured`` is left out there, too, if the coordinator has these jobs already. ``resumes`` announces that the
    next process of this worker continues the membership, because this process is about to replace itself."""

    group_id: GroupId
    member_id: MemberId
    member_epoch: MemberEpoch
    """The member epoch of the member, or `connect_groups.JOIN_EPOCH`, `LEAVE_EPOCH` or `LEAVE_BRIEFLY_EPOCH`."""
    request_number: int
    """A number that rises with each request of the member id."""
    instance_id: InstanceId | None = None
    rebalance_timeout_ms: int | None = None
    server_assignor: str | None = None
    """The name of an assignor of the coordinator, which must compute the targets. Not set together with
    ``client_assignors``."""
    client_assignors: tuple[SupportedAssignor, ...] | None = None
    """The worker's own assignors, the preferred one first."""
    owned: Jobs | None = None
    """The jobs that the worker owns. A job that is not in it has stopped there."""
    url: WorkerUrl | None = None
    name: str | None = None
    """The worker's name for operators; empty if it has none."""
    config_offset: ConfigOffset | None = None
    """How far the worker has read the config topic."""
    config_topic_id: bytes | None = None
    """The topic id of the worker's config topic, 16 bytes."""
    configured: ConfiguredJobs | None = None
    """The configured jobs; only the leader sends them."""
    claims: Claims | None = None
    """The only jobs that the worker may run, or that it may run any job. None: unchanged since the last accepted
    heartbeat."""
    draining: bool | None = None
    """Whether the worker must give all its jobs to other members."""
    max_wait_ms: int = 0
    """How long the coordinator may hold the response while it has no news; 0: it responds at once."""
    connection_grace_ms: int | None = None
    """How long after the end of its connection the worker may still run; 0 if the end of the connection has no
    effect."""
    resumes: bool = False
    """Whether this process is about to replace itself: the end of its connection then has no effect."""
    response_timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareAssignmentRequest:
    """The request ConnectGroupPrepareAssignment: this member, which the coordinator has chosen to compute the target
    assignment, asks for the state of the group."""

    group_id: GroupId
    member_id: MemberId
    member_epoch: MemberEpoch
    response_timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallAssignmentRequest:
    """The request ConnectGroupInstallAssignment: this member returns the target assignment that it has computed, or
    reports that its assignor has failed."""

    group_id: GroupId
    member_id: MemberId
    member_epoch: MemberEpoch
    group_epoch: GroupEpoch
    """The group epoch in the response to ConnectGroupPrepareAssignment."""
    assignor_error: int
    """0 if the assignor has computed ``target``; another number if it has failed. ``target`` is empty then."""
    target: ComputedTarget
    response_timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescriptionRequest:
    """The request ConnectGroupDescribe, for one group."""

    group_id: GroupId
    response_timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescriptionResponse:
    """The response to ConnectGroupDescribe."""

    error: ConnectErrorCode = ConnectErrorCode.NONE
    message: str | None = None
    description: GroupDescription | None = None
    """None if there is an error."""


Request: TypeAlias = HeartbeatRequest | PrepareAssignmentRequest | InstallAssignmentRequest | GroupDescriptionRequest
Response: TypeAlias = (
    HeartbeatResponse | PrepareAssignmentResponse | InstallAssignmentResponse | GroupDescriptionResponse
)

Timer: TypeAlias = Literal["heartbeat", "lease", "ending"]
"""``heartbeat``: the next heartbeat is due · ``lease``: the lease ends · ``ending``: leave, or suspend the membership,
without waiting longer for the response."""

Event: TypeAlias = events.Event[Response, Timer]
Effect: TypeAlias = events.Effect[Request, Timer]
