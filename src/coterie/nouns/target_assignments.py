"""What an assignor of a connect group receives and returns: the state of the group, and a target assignment.

The coordinator builds the snapshot (`groups`), a worker or the broker lets an assignor compute the target
(`assignors`), and the coordinator installs it. The target is declarative: it says which member is to have each job, and
the coordinator takes the steps to it.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from coterie.nouns.ids import ConfigOffset, GroupEpoch, InstanceId, MemberEpoch, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, Jobs

ASSIGNOR_TIME_LIMIT_MS = 9_000
"""How long an assignor may compute with the default of ``connect.computation.timeout.ms``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotMember:
    """One member of the group: its ids; its ``metadata`` for the assignor, with the metadata's ``version``; the jobs
    that are assigned to it (``current``), that were revoked and that it has not given back (``pending``), and that it
    had when it left the group before its return (``former_jobs``); and which jobs it may run."""

    member_id: MemberId
    member_epoch: MemberEpoch
    """0 until the member has reached a target assignment since its last join; -2 for a static member that has left for
    a short time."""
    instance_id: InstanceId | None = None
    url: WorkerUrl
    name: str = ""
    """``worker.name``; empty if the worker reports none."""
    config_offset: ConfigOffset
    """How far the worker has read the config topic."""
    version: int = 0
    """The version of ``metadata``."""
    reason: int = 0
    """Why the member changed the metadata: see `nouns.connect_groups.AssignorChangeReason`."""
    metadata: bytes = b""
    """The member's metadata for the selected assignor."""
    claims: Jobs | None = None
    """The only jobs that the worker may run (KIP-987); None: any job."""
    draining: bool = False
    """Whether the worker is being drained: its jobs have to be moved to other workers."""
    target: Jobs = NO_JOBS
    """The member's present target assignment."""
    current: Jobs = NO_JOBS
    """The jobs that are assigned to the member now."""
    pending: Jobs = NO_JOBS
    """The jobs that were revoked from the member and that it has not given back, so that they may still be stopping
    there. None of them is in ``current``."""
    former_jobs: Jobs = NO_JOBS
    """The jobs that were deferred for the member until it returned: it had them when it left the group. Empty after the
    next target assignment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotDeparted:
    """A member that has left, and whose jobs may wait for it."""

    member_id: MemberId
    instance_id: InstanceId | None = None
    url: WorkerUrl
    jobs: Jobs
    """The jobs that wait for the member's return, or that the next target may defer for it."""
    delay_left_ms: int | None
    """The rest of the scheduled rebalance delay, for which ``jobs`` wait; None if no assignor has deferred them yet. If
    it is 0, a target that defers jobs for this member is not valid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSnapshot:
    """The state of a group for which a target assignment has to be computed."""

    group_epoch: GroupEpoch
    assignor: str
    """The name of the selected assignor."""
    members: tuple[SnapshotMember, ...]
    """In the order in which they joined."""
    departed: tuple[SnapshotDeparted, ...] = ()
    config_offset: ConfigOffset
    """How far the leader had read the config topic when it reported ``configured``."""
    configured: Jobs
    """All jobs that are configured."""
    max_delay_ms: int | None = None
    """The group's scheduled rebalance delay; None if the group has none: the assignor's own setting counts."""
    time_limit_ms: int = ASSIGNOR_TIME_LIMIT_MS
    """How long the assignor may compute. The coordinator waits somewhat longer for the target; then the computation has
    failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOfMember:
    """The target assignment of one member. ``version`` and ``metadata`` are the assignor's message to the member."""

    jobs: Jobs
    version: int = 0
    metadata: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferredJobs:
    """Jobs that are assigned to no member for ``delay_ms``, so that a departed member gets them if it returns.

    The first target that defers jobs for the member begins the delay, which counts from the member's departure. A later
    target can only shorten the delay: its ``delay_ms`` counts from the installation of that target, and the earlier of
    the two ends applies.
    """

    jobs: Jobs
    delay_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnplaceableJobs:
    """Jobs that no member may run, and why."""

    jobs: Jobs
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedTarget:
    """The result of an assignor. Each configured job is in it exactly once: in ``members``, ``deferred`` or
    ``unplaceable``."""

    members: Mapping[MemberId, TargetOfMember]
    deferred: Mapping[MemberId, DeferredJobs] = field(default_factory=dict)
    """By departed member."""
    unplaceable: tuple[UnplaceableJobs, ...] = ()
    next_in_ms: int | None = None
    """The time after which the next target has to be computed although nothing changes, for example because this target
    contains only a part of the moves; None if no further target is needed."""


AssignFunction: TypeAlias = Callable[[GroupSnapshot], Awaitable[ComputedTarget]]
"""An assignor as shells call it, from the event loop: it computes on another thread, within a time limit. A failed
assignor raises an exception, which may be of any type: the assignor may be a plug-in."""
