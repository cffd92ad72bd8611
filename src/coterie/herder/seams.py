"""The herder's seams: group membership, task runtime, leader client. Shells implement these Protocols."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from coterie.herder.session_keys import Signing
from coterie.nouns.errors import WorldError
from coterie.nouns.ids import Incarnation, WorkerUrl
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.nouns.membership import Abandon, Install, MembershipEvent, Rejoin, Subscribe

# -- membership: classic | connect ------------------------------------------------------------------------------


class Membership(Protocol):
    """A worker's membership of its group. It begins when the worker first receives its assignment."""

    async def run(self) -> None:
        """Take part in the group until the worker has left; all other methods need this coroutine to run."""
        ...

    def order(self, order: Subscribe | Rejoin | Install | Abandon) -> None:
        """Send ``order`` to the member. Never blocks."""
        ...

    async def leave(self, reason: str, *, for_good: bool = False) -> None:
        """Leave the group; the caller has stopped all owned jobs before. Returns even without a response.

        A static member only ends, and the group waits for it to rejoin. With ``for_good`` a static member also sends
        a LeaveGroup request, so that the group does not wait."""
        ...

    async def next_event(self) -> MembershipEvent:
        """The next event, in order; the queue of events is bounded."""
        ...


# -- tasks: Spark | simulated ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStart:
    """What a runtime needs to start one task. A start always takes the task's checkpoint over."""

    task: ConnectorTaskId
    incarnation: Incarnation
    config: Mapping[str, str] = field(repr=False)
    """The task's own config, as the connector returned it and the config topic contains it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskProgressed:
    """A batch was committed, or the query polled its source and found nothing to read."""

    task: ConnectorTaskId
    batch_id: int
    input_rows: int
    """Rows read by the batch."""
    bad_records: int = 0
    """Bad records that the task has skipped since it was started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDied:
    """The task's query failed, or another worker took its checkpoint over. Reported once for each failure; the task
    writes nothing from this worker until it is started again."""

    task: ConnectorTaskId
    trace: str = field(repr=False)
    is_held: bool
    """Whether this worker still owns the checkpoint; the runtime then keeps it until the task is restarted or stopped.
    Otherwise the task may start here again only after the group has confirmed that it is assigned to this worker."""
    can_restart: bool = True
    """Whether another start on the same checkpoint may succeed; False when the task rejects its input or its config."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWaiting:
    """A server that the task needs cannot be reached. The runtime keeps the checkpoint and retries the query, as the
    connector's ``errors.retry.*`` configure. Reported for each attempt that fails; the next :class:`TaskProgressed`
    ends this condition."""

    task: ConnectorTaskId
    trace: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskHalted:
    """``stop_everything_now`` ended the task: it may start here again only after the group has confirmed that it is
    assigned to this worker."""

    task: ConnectorTaskId


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskClosed:
    """The task does not run here: the checkpoint generation that its config names is closed. The task may start again
    when its config names another checkpoint generation."""

    task: ConnectorTaskId


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsChanged:
    """The source of a connector that was split here now has other source parts: new partitions, or fewer."""

    connector: ConnectorName


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeDied:
    """No task can run here any more (the JVM has ended): the worker stops its tasks, leaves the group and exits with
    ``reason``."""

    reason: str


TaskEvent: TypeAlias = TaskProgressed | TaskWaiting | TaskDied | TaskHalted | TaskClosed | PartsChanged | RuntimeDied


class SplitEndedError(WorldError):
    """A split was ended before it was complete: all tasks here were stopped, the connector was revoked or changed, or
    another worker has split it since then."""


class TaskRuntime(Protocol):
    """Runs tasks. Every coroutine is safe to await on the event loop: blocking calls run on the runtime's threads."""

    async def open(self) -> None:
        """Start and warm up; the caller calls no other method before it returns.

        :raises WorldError: when the runtime cannot start (no Java, no memory, ...); the message states what to do.
        """
        ...

    async def close(self) -> None:
        """Stop all tasks that still run and release all resources. Safe to call twice, and after a failed ``open``."""
        ...

    async def validate(
        self, config: Mapping[str, str], checkpointed: Sequence[Mapping[str, str]]
    ) -> Mapping[str, Sequence[str]]:
        """The errors of a connector's config, by key; empty when it is valid.

        ``checkpointed`` contains the configs of the connector's tasks that may have checkpoints; it is empty for a new
        connector. A config that would lose or duplicate rows on these checkpoints is an error."""
        ...

    def connector_type(self, config: Mapping[str, str]) -> str:
        """``source``, ``sink`` or ``unknown``, as the REST API returns it."""
        ...

    def lacks(self) -> Mapping[str, str]:
        """Parts that some connectors need and this worker lacks, by name: what is missing and what to do."""
        ...

    async def split(
        self,
        connector: ConnectorName,
        incarnation: Incarnation,
        config: Mapping[str, str],
        checkpointed: Sequence[Mapping[str, str]],
        *,
        keeps_split: bool = False,
    ) -> Sequence[Mapping[str, str]]:
        """The configs of the connector's tasks, at most ``tasks.max`` of them.

        When the tasks of ``checkpointed`` read other source parts or write to another sink than ``config`` requires,
        their checkpoint generation is closed first, on every worker that runs one of them (:class:`TaskClosed`), and
        the next checkpoint generation is made from their positions: no row is lost or duplicated. That takes as long as
        the last batches of these tasks.

        With ``keeps_split`` the tasks keep the source parts that still exist while the sink is the same, whatever
        ``config`` requires: a task is FAILED, and the other tasks must not be stopped until it is repaired.

        :raises UnreachableError, SplitEndedError: when another attempt with the same config may succeed.
        :raises ConfigError, WorldError: when the source cannot be split; the connector is then FAILED with this error,
            and running tasks continue.
        """
        ...

    def forget(self, connector: ConnectorName) -> None:
        """End the running split of ``connector``, if any: it raises SplitEndedError, and commits no checkpoint
        generation after this method has returned, except in a step that is already running. The connector's source
        parts are no longer monitored (:class:`PartsChanged`). Never waits."""
        ...

    async def finish(self, connector: ConnectorName, incarnation: Incarnation) -> Sequence[Mapping[str, str]] | None:
        """The task configs of the connector's newest checkpoint generation, after a closed checkpoint generation has
        been finished; None when another worker is finishing it. Takes seconds, to detect another worker.

        :raises WorldError: when the checkpoint generation cannot be finished.
        """
        ...

    async def start(self, start: TaskStart) -> None:
        """Take the task's checkpoint over and start its query; returns when the query runs. It also returns when the
        checkpoint was taken over and the query did not start, which is reported as :class:`TaskDied`.

        A task whose checkpoint generation is closed does not start: the runtime reports :class:`TaskClosed`.

        :raises ConfigError, WorldError: when the checkpoint cannot be taken over; the task is FAILED with this error.
        """
        ...

    async def restart(self, task: ConnectorTaskId) -> None:
        """Start the query of a failed task (:class:`TaskDied`) again, on the checkpoint that the task still holds: no
        checkpoint is taken over. Returns when the query runs, when it did not start (reported as :class:`TaskDied`),
        and when the task was stopped before the query started.

        :raises WorldError: when the task holds no checkpoint here, or no task can run here any more; this counts as
            another failure of the task, for which no event follows.
        """
        ...

    async def stop(self, task: ConnectorTaskId, *, grace_ms: int) -> None:
        """Stop at a batch boundary within ``grace_ms``, else interrupt. When it returns, the last batch is committed
        or will be replayed, and this task can write nothing from this worker. An unknown task is ignored."""
        ...

    def stop_everything_now(self) -> None:
        """Stop all tasks of a worker whose event loop is blocked. Any other thread may call it; it does not need the
        event loop.

        When it returns, no task that was running, starting or stopping at the call can write anything, whatever the
        grace of a stop. Each task that was not stopping is reported as :class:`TaskHalted`. Later starts are not
        affected."""
        ...

    async def next_event(self) -> TaskEvent:
        """The next event, in order; the queue of events is bounded (progress of one task may be merged)."""
        ...


# -- the leader -------------------------------------------------------------------------------------------------------


class SignatureRefusedError(WorldError):
    """The leader does not accept a signature: it has another key."""


class LeaderClient(Protocol):
    """Sends requests to the leader's internal REST endpoints."""

    async def publish_task_configs(
        self,
        leader_url: WorkerUrl,
        connector: ConnectorName,
        configs: Sequence[Mapping[str, str]],
        signing: Signing | None,
    ) -> None:
        """``POST /connectors/{connector}/tasks``, signed with ``signing`` unless that is None.

        :raises SignatureRefusedError: when the leader responds that the signature is not valid (403).
        :raises WorldError: when the leader cannot be reached or refuses; the message contains the reason.
        """
        ...
