"""The interfaces that a plug-in implements: an assignor of connect groups, and a listener of a worker's rebalances.

The assignors that come with Coterie implement the same interface. A plug-in is a class that its package registers as an
entry point, of the group `ASSIGNOR_ENTRY_POINTS` or `LISTENER_ENTRY_POINTS`. An assignor's entry point has the
assignor's name, and its class takes one argument: the `RebalancePolicy` with the delays and limits of the settings. A
listener's class takes none.

These are the types of K848C ("Client side API") and the Python types that take their place:

    Group, GroupMember       GroupSnapshot, SnapshotMember: also claims, drains, departed members
    Assignment               ComputedTarget; in place of its error, `ConnectAssignor.assign` raises an exception
    MemberAssignment         TargetOfMember
    Metadata                 AssignorMetadata
    WorkerRebalanceListener  the same, with `WorkerRebalanceListener.on_lost` in addition
"""

from dataclasses import dataclass
from typing import Protocol

from coterie.nouns.ids import GroupEpoch
from coterie.nouns.jobs import Jobs
from coterie.nouns.target_assignments import ComputedTarget, GroupSnapshot, TargetOfMember

ASSIGNOR_ENTRY_POINTS = "coterie.assignors"
"""The entry points whose classes are assignors."""
LISTENER_ENTRY_POINTS = "coterie.rebalance_listeners"
"""The entry points whose classes are listeners."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignorMetadata:
    """What this worker's assignor sends to the assignor that computes the target, which may be on another worker. A
    ``reason`` other than 0, or a change of ``metadata``, requests a new target assignment."""

    reason: int = 0
    """Why a new target assignment is requested: 0 none is requested, 1 a delay has ended, 2 the metadata changed, 3 the
    operator requests it; at most 127. Each value other than 0 requests one new target assignment, also if
    `ConnectAssignor.metadata` returns it many times: to request another one with the same metadata, the method has to
    return another reason, or 0, in between. The next computation has the reason in its `SnapshotMember`, and later
    ones have 0."""
    version: int
    """The version of ``metadata``: from the assignor's minimum to its maximum version."""
    metadata: bytes = b""
    """Data for the assignor that computes the target, in a format that the assignor defines. A change of these bytes
    requests a new target assignment. So they must not depend on the target, for example on the worker's jobs: each
    target would then request the next one. All assignors of a worker together have at most 32 KiB."""


class ConnectAssignor(Protocol):
    """Computes the target assignment of a connect group (K848C, "ConnectAssignor").

    What a plug-in may assume, and what it has to keep to:

    - **Thread.** Each worker has one instance. `assign`, `on_assignment` and `metadata` are called on three threads
      that are not the event loop's, so a slow method costs no heartbeat. None is called twice at once, but each may be
      called while the others run. `name`, `minimum_version` and `maximum_version` must not change.
    - **Time limit.** A computation that has not ended within `GroupSnapshot.time_limit_ms` (9 s by default: nine tenths
      of the coordinator's ``connect.computation.timeout.ms``) counts as failed, and its result is not used. Python
      cannot stop a thread: until the method returns, this worker computes nothing else.
    - **Failure.** `assign` may raise any exception, and may return an invalid target. Then the targets stay as they
      are, the error is shown in the description of the group, and another worker computes.
    - **Purity.** `assign` must be a function of its argument only: no clock, no randomness, no state from earlier
      calls, no I/O, and no dependency on the order of sets, which differs from process to process. The next target may
      be computed by another worker. Whatever the decision depends on is in the `GroupSnapshot`, all values of which are
      immutable.
    - **Result.** Each configured job is exactly once in the target: with a member, or deferred for a departed member by
      more than 0 ms, or unplaceable with a reason. A member of the snapshot that is not in the target gets an empty
      target. A reason is cut at 1,000 characters. The target says where a job has to be. The coordinator takes the
      steps: it revokes a job, and assigns it when its owner has stopped it.
    """

    @property
    def name(self) -> str:
        """The unique name of the assignor."""
        ...

    @property
    def minimum_version(self) -> int:
        """The lowest version of other workers' metadata that `assign` can read."""
        ...

    @property
    def maximum_version(self) -> int:
        """The highest version of other workers' metadata that `assign` can read."""
        ...

    def metadata(self) -> AssignorMetadata:
        """The data that this worker's assignor sends, through the coordinator, to the assignor instance that computes
        the target assignment, which may run on another worker.

        Called when the worker starts, after each `on_assignment`, and every 5 s. A change is in the next heartbeat,
        which is sent at once. The time limit of a call is 5 s. If the first call fails or returns invalid metadata, the
        worker does not start. If a later one does, the coordinator keeps the metadata that it has; for the first of
        several such calls in succession, a warning with the assignor's name is logged."""
        ...

    def assign(self, group: GroupSnapshot) -> ComputedTarget:
        """The target assignment for ``group``. Any exception means that there is none."""
        ...

    def on_assignment(self, assignment: TargetOfMember) -> None:
        """This worker has received new jobs: ``assignment`` has all its jobs now, and the assignor's message to it.
        Called after the jobs were started and before `WorkerRebalanceListener.on_assigned`.

        The coordinator does not send the name of the assignor that computed the target. A worker that offers several
        assignors calls each of them."""
        ...


class WorkerRebalanceListener(Protocol):
    """Receives the rebalance events of one worker (K848C, "Rebalance Process" and "Response Handling"). The key
    ``rebalance.listeners`` of a worker's settings has the names of its listeners.

    - **Order.** All listeners of a worker are called on one thread, which is not the event loop's, in the order of the
      events. The calls for one job alternate: `on_assigned`, then `on_revoked` or `on_lost`. A job that was revoked
      before the worker had started the jobs of its assignment is in no call.
    - **Nothing waits for a listener.** The worker acknowledges a revocation, and joins again after a loss, whether or
      not `on_revoked` has returned. A slow listener delays the later calls of all listeners. At most 1,000 calls wait;
      further ones are dropped, with an error in the log.
    - **Failure.** An exception is logged and has no other effect: the jobs have already been stopped or started.
    - **End.** A worker that shuts down stops its jobs, and `on_revoked` is called for them. It waits at most 2 s for
      the calls. A worker that is killed calls nothing, nor does a worker that restarts in place: its jobs stay with it,
      and the next process calls `on_assigned` for all of them.
    """

    def on_revoked(self, jobs: Jobs) -> None:
        """The worker has stopped ``jobs``. Either the coordinator revoked them, or these were all jobs of a worker
        whose membership has ended: the coordinator has fenced or removed the worker, or the worker leaves."""
        ...

    def on_assigned(self, jobs: Jobs, assignment_epoch: GroupEpoch) -> None:
        """The worker has started ``jobs``, which the target of ``assignment_epoch`` newly assigns to it: it has begun
        to split each connector into tasks, and the start of each task has returned, also with an error. Jobs that are
        paused or stopped are included. Called after `ConnectAssignor.on_assignment`."""
        ...

    def on_lost(self, jobs: Jobs) -> None:
        """The worker has stopped ``jobs``, which were all its jobs, because it could not reach the coordinator for too
        long. Other workers may run these jobs already. K848C has no such method: its workers receive a loss in a
        response."""
        ...
