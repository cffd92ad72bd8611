"""The herder's seams: group membership, listeners of rebalances, task runtime, leader client. Shells implement these
Protocols."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from coterie.config.definition import ConfigKey
from coterie.config.infos import ConfigInfos
from coterie.config.plugins import Plugin
from coterie.herder.restart_policy import DEFAULT_RESTART_POLICY, RestartPolicy
from coterie.herder.session_keys import SigningKey
from coterie.nouns.connector_offsets import ConnectorOffset, OffsetChange
from coterie.nouns.errors import WorldError
from coterie.nouns.ids import GroupEpoch, Incarnation, WorkerUrl
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId, Jobs
from coterie.nouns.logger_levels import LoggerLevel
from coterie.nouns.membership import (
    ConfirmLeadership,
    InstallTarget,
    LeaveAndRejoin,
    MembershipEvent,
    Rejoin,
    RequestGroupDescription,
    SendAssignments,
    SetConfiguredJobs,
    SetWorkerState,
    SuspendMembership,
    UpdateAssignor,
)
from coterie.nouns.target_assignments import TargetOfMember

# -- membership: classic | connect ------------------------------------------------------------------------------


class Membership(Protocol):
    """A worker's membership of its group. The worker first joins after the first ``SetWorkerState`` order."""

    async def run(self) -> None:
        """Take part in the group until the worker has left it. The other methods have an effect only while this
        coroutine runs."""
        ...

    def order(
        self,
        order: SetWorkerState
        | Rejoin
        | SendAssignments
        | ConfirmLeadership
        | SetConfiguredJobs
        | UpdateAssignor
        | InstallTarget
        | RequestGroupDescription
        | SuspendMembership
        | LeaveAndRejoin,
    ) -> None:
        """Send ``order`` to the member machine. Never waits."""
        ...

    async def leave(self, reason: str, *, is_permanent: bool = False) -> None:
        """Leave the group, and wait until the member has ended. Returns also if the coordinator does not respond.
        Before the call, the caller stops all owned jobs, or waits for them until its time limit.

        The group waits for a static member to rejoin (in a classic group it sends no LeaveGroup request), unless
        ``is_permanent``.
        """
        ...

    async def next_event(self) -> MembershipEvent:
        """Wait for the next event and return it, in the order in which the events occurred. The queue of events is
        bounded: while it is full, the member waits."""
        ...


# -- listeners of rebalances ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsAssigned:
    """All jobs that a connect group has newly assigned to this worker have been started. A connector counts as started
    when its split has begun; a task when its start has returned, also with an error. A job that must not run now, for
    example because it is paused, counts as started, too. ``jobs`` are only the newly assigned jobs; ``assignment`` has
    all."""

    jobs: Jobs
    """The newly assigned jobs."""
    assignment_epoch: GroupEpoch
    """The assignment epoch of the target assignment with these jobs."""
    assignment: TargetOfMember
    """All jobs that are assigned to this worker, and the message of the assignor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsRevoked:
    """This worker has stopped ``jobs``: they were revoked, or it has lost or given up its membership before its lease
    (the time for which the group surely counts it as a member) had ended."""

    jobs: Jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsLost:
    """This worker has stopped ``jobs`` because its lease, the time for which the group surely counts it as a member,
    had ended: other workers may run them already."""

    jobs: Jobs


RebalanceNews: TypeAlias = JobsAssigned | JobsRevoked | JobsLost
"""An event for the listeners of a worker's rebalances."""


class RebalanceListeners(Protocol):
    """The plug-ins that receive this worker's rebalance events in a connect group: its listeners and its assignors."""

    def notify(self, news: RebalanceNews) -> None:
        """Queue a call of the plug-ins with ``news``: another thread calls them after the calls for all earlier news.
        Never waits, and raises no exception."""
        ...


# -- tasks: Spark | simulated ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """What a runtime needs to start one task. The start takes the task's checkpoint over, also from this worker's
    earlier start."""

    task: ConnectorTaskId
    connector_incarnation: Incarnation
    config: Mapping[str, str] = field(repr=False)
    """The task's own config, as the connector's split returned it and the config topic contains it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitResult:
    """The result of a split of a connector."""

    task_configs: Sequence[Mapping[str, str]] = field(repr=False)
    """The configs of the connector's tasks, by task number."""
    kept_source_parts_reason: str | None = None
    """Why the tasks keep their source parts (for Kafka: partitions) although the config requires others, for the
    connector's status; None if they have those that the config requires."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskProgressed:
    """A batch of a task was committed, or its query polled its source and found nothing to read. ``input_rows`` are
    those of this batch and of the progress events merged with this one; ``bad_records`` counts since the task was
    started."""

    task: ConnectorTaskId
    batch_id: int
    """The last committed batch."""
    input_rows: int
    """Rows read by that batch, and by the batches of the progress events that were merged with this one."""
    bad_records: int = 0
    """How many records the task has skipped as bad since it was started."""
    topics: frozenset[str] = frozenset()
    """The topics of Kafka that the task reads or writes; empty for a batch without rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDied:
    """The task's query failed, or another worker took the task over, in its checkpoint or in a sink. Reported once for
    each failure; the task writes nothing from this worker until it is started again. ``can_restart`` is False if the
    task rejects its input or its config: the query would fail again."""

    task: ConnectorTaskId
    trace: str = field(repr=False)
    """The error, for the task's status."""
    holds_checkpoint: bool
    """Whether this worker still owns the checkpoint; the runtime then keeps it until the task is restarted or stopped.
    Otherwise the task may start here again only after the group has confirmed that it is assigned to this worker."""
    can_restart: bool = True
    """Whether a restart of the query on the same checkpoint may succeed; False when the task rejects its input or its
    config."""
    restart_policy: RestartPolicy = DEFAULT_RESTART_POLICY
    """The policy of the settings ``errors.restart.*`` in the task's config, whose references to secrets only the
    runtime can resolve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRetrying:
    """A server that the task needs cannot be reached. The runtime keeps the checkpoint and retries the query, as the
    connector's ``errors.retry.*`` settings say. Reported for each attempt that fails, until the next
    :class:`TaskProgressed`."""

    task: ConnectorTaskId
    trace: str = field(repr=False)
    """The error of the last attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskHaltedWithoutOrder:
    """The runtime has ended the task without an order to stop it, because this worker may have lost the task:
    ``halt_all_tasks`` was called. It may start here again only after the group has confirmed that it is assigned to
    this worker."""

    task: ConnectorTaskId


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCheckpointClosed:
    """The task does not run here, because the checkpoint generation that its config names (the checkpoints of all tasks
    of one split) is closed: another split of the connector continues from these checkpoints. The task may start again
    when its config names another checkpoint generation."""

    task: ConnectorTaskId


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePartsChanged:
    """The source of a connector that was split here now has other source parts (for Kafka: partitions) than at the
    split. Reported once for each split."""

    connector: ConnectorName


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeDied:
    """No task can run here any more, because the JVM has ended: the worker stops its tasks, leaves the group and exits
    with code 1 and ``reason``."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginThreadsLost:
    """The number of this worker's lost threads has changed. A thread is lost while a call into a plug-in has exceeded
    its time limit and has not returned: the runtime cannot end it."""

    lost_threads_total: int
    """How many threads are lost now."""


TaskEvent: TypeAlias = (
    TaskProgressed
    | TaskRetrying
    | TaskDied
    | TaskHaltedWithoutOrder
    | TaskCheckpointClosed
    | SourcePartsChanged
    | PluginThreadsLost
    | RuntimeDied
)
"""The events of a runtime that are not results of its methods."""


class SplitOrOffsetChangeAbortedError(WorldError):
    """A split, or a change of offsets, was ended before it was complete. The causes: :meth:`TaskRuntime.stop_connector`
    was called, all tasks here were stopped, another worker has taken over the split, Spark's JVM has ended, or this
    worker does not have the source plug-in whose positions a checkpoint generation contains."""


class RetriableStartError(WorldError):
    """A start of a task has failed before its query was started; this worker does not hold the checkpoint. Another
    start may succeed."""

    def __init__(self, message: str, restart_policy: RestartPolicy = DEFAULT_RESTART_POLICY) -> None:
        """``message``: the error, for the task's status. ``restart_policy``: the policy of the settings
        ``errors.restart.*`` in the task's config, whose references to secrets only the runtime can resolve."""
        super().__init__(message)
        self.restart_policy = restart_policy
        """When the task is started again."""


class TaskRuntime(Protocol):
    """Runs tasks. Every coroutine is safe to await on the event loop: blocking calls run on the runtime's threads.
    Plug-ins may raise any exception, also exceptions that the methods below do not name.

    A plug-in may also block without end. Every call into a plug-in has a time limit. When the limit is over, the method
    raises WorldError with the name of the call (:meth:`restart` and :meth:`stop` return instead), and the thread of the
    call is lost (:class:`PluginThreadsLost`). What the call does later has no effect: it commits nothing.

    A connector's *source parts* are the units that are distributed over its tasks (for Kafka: partitions). A
    *checkpoint generation* contains the checkpoints of all tasks of one split.
    """

    async def open(self) -> None:
        """Start the runtime and warm it up. Before this method returns, no other method is called.

        :raises WorldError: when the runtime cannot start (no Java, no memory, ...); the message states what to do.
        """
        ...

    async def close(self) -> None:
        """Stop all tasks that still run, and release all resources. Safe to call twice, and after a failed ``open``."""
        ...

    async def validate(
        self, config: Mapping[str, str], configs_of_checkpointed_tasks: Sequence[Mapping[str, str]]
    ) -> ConfigInfos:
        """The definitions, values and errors of all keys of a connector with this config; without errors when the
        config is valid.

        ``configs_of_checkpointed_tasks`` contains the configs of the connector's tasks that may have checkpoints; it is
        empty for a new connector. A config that would lose or duplicate rows on these checkpoints is an error.

        :raises WorldError: when the config cannot be validated, for example because a server cannot be reached.
        """
        ...

    def connector_type(self, config: Mapping[str, str]) -> str:
        """The type of a connector with this config, as the REST API returns it: ``source``, ``sink`` or ``unknown``."""
        ...

    async def list_plugins(self) -> Sequence[Plugin]:
        """All plug-ins of this worker, in the order of :func:`coterie.config.plugins.sorted_as_in_connect`."""
        ...

    async def describe_plugin(self, name: str, version_range: str | None) -> Sequence[ConfigKey]:
        """The config keys of the plug-in with this name (:func:`coterie.config.plugins.find_plugin`); those of a source
        or sink with the keys that every connector has.

        :raises UnknownPluginError: when no plug-in has this name.
        :raises PluginVersionError: when the plug-in has no version in ``version_range``.
        """
        ...

    async def logger_levels(self) -> Mapping[str, LoggerLevel]:
        """The levels of the loggers of the runtime's JVM, by name. Empty when no JVM runs: none is started.

        :raises WorldError: when the JVM does not answer.
        """
        ...

    async def set_logger_level(self, name: str, level: LoggerLevel) -> None:
        """Set the level of a logger of the runtime's JVM, which is created if it does not exist, and of its
        descendants. Does nothing when no JVM runs.

        :raises WorldError: when the JVM does not answer.
        """
        ...

    def missing_jars(self) -> Mapping[str, str]:
        """The packages of jars that the runtime's JVM does not have and that some connectors need: by the package's
        name, a message about what is missing and what to do. Empty before :meth:`open`."""
        ...

    async def split(
        self,
        connector: ConnectorName,
        incarnation: Incarnation,
        config: Mapping[str, str],
        configs_of_checkpointed_tasks: Sequence[Mapping[str, str]],
        *,
        keeps_source_parts: bool = False,
    ) -> SplitResult:
        """Return the configs of the connector's tasks, at most ``tasks.max`` of them.

        When the tasks of ``configs_of_checkpointed_tasks`` read other source parts or write to another sink than
        ``config`` requires, their checkpoint generation is closed first, on every worker that runs one of these tasks
        (:class:`TaskCheckpointClosed`), and the next checkpoint generation is made from their positions: no row is lost
        or duplicated. This takes as long as the last batches of these tasks.

        With ``keeps_source_parts`` the tasks keep their source parts, as far as these still exist, whatever ``config``
        requires; but not if ``config`` requires another sink. The caller sets it while a task is failing, because the
        other tasks would be stopped until that task is repaired.

        :raises UnreachableError, SplitOrOffsetChangeAbortedError: when another attempt with the same config may
            succeed.
        :raises ConfigError, WorldError: when the source cannot be split; the connector is then FAILED with this error,
            and running tasks continue.
        """
        ...

    def stop_connector(self, connector: ConnectorName) -> None:
        """End the running splits and changes of offsets of ``connector``: they raise SplitOrOffsetChangeAbortedError.
        After this method has returned, they commit no checkpoint generation, except in a step that is already running.
        The connector's source parts are no longer monitored (:class:`SourcePartsChanged`). Never waits."""
        ...

    async def read_offsets(
        self, connector: ConnectorName, incarnation: Incarnation, config: Mapping[str, str]
    ) -> Sequence[ConnectorOffset]:
        """How far the committed batches of the connector's tasks have read, from their checkpoints: on any worker, also
        while the tasks run. Empty for a source without such offsets.

        :raises ConfigError, WorldError: when the checkpoints cannot be read.
        """
        ...

    async def change_offsets(
        self,
        connector: ConnectorName,
        incarnation: Incarnation,
        config: Mapping[str, str],
        configs_of_checkpointed_tasks: Sequence[Mapping[str, str]],
        change: OffsetChange,
    ) -> None:
        """Change the offsets of a connector that is stopped, by a new checkpoint generation: either the whole change
        takes effect or nothing of it. Tasks that still run are stopped before, and their batches in flight are
        completed. The connector's next split continues at the changed offsets. May be called for a connector that was
        never split.

        :raises OffsetsRefusedError, ConfigError: when the source cannot use the offsets; nothing was changed.
        :raises UnreachableError, SplitOrOffsetChangeAbortedError: when another attempt may succeed. The change may take
            effect later.
        :raises WorldError: when the checkpoints cannot be read or written, or a batch in flight fails. The change may
            take effect later.
        """
        ...

    async def ensure_open_checkpoint_generation(
        self, connector: ConnectorName, incarnation: Incarnation
    ) -> Sequence[Mapping[str, str]] | None:
        """If the connector's newest checkpoint generation is closed and no other worker is creating the next one,
        create it. Return the task configs of the newest checkpoint generation. None when another worker is creating the
        next one, when no task can start in the newest one, or when there is none. Takes seconds, to detect another
        worker.

        :raises ConfigError, WorldError: when the next checkpoint generation cannot be created here.
        """
        ...

    async def start(self, spec: TaskSpec) -> None:
        """Take the task's checkpoint over and start its query; returns when the query runs. Also returns without a
        running query, and reports an event, in three cases: the query did not start on the checkpoint
        (:class:`TaskDied`), the checkpoint generation is closed (:class:`TaskCheckpointClosed`), or the task was halted
        meanwhile (:class:`TaskHaltedWithoutOrder`).

        :raises RetriableStartError: when the query was not started, and another start may succeed.
        :raises ConfigError, WorldError: when the config is not valid, or another start would fail in the same way; the
            task is FAILED with this error.
        """
        ...

    def abort_task_start(self, task: ConnectorTaskId, *, grace_ms: int) -> None:
        """End the running :meth:`start` or :meth:`restart` of ``task``, which is no longer needed: if it has not
        returned within ``grace_ms``, it ends as at its time limit. Does nothing when neither is running. Never
        waits."""
        ...

    async def restart(self, task: ConnectorTaskId) -> None:
        """Start the query of a failed task (:class:`TaskDied`) again, on the checkpoint that this worker still holds:
        no checkpoint is taken over. Returns when the query runs, when it did not start (reported as :class:`TaskDied`),
        or when the task was stopped before the query started.

        :raises WorldError: when the task holds no checkpoint here, or no task can run here any more. This counts as
            another failure of the task, for which no event follows.
        """
        ...

    async def stop(self, task: ConnectorTaskId, *, grace_ms: int) -> None:
        """Stop the task at the end of its batch; if this takes longer than ``grace_ms``, interrupt the batch. When the
        method returns, the last batch is committed or will be replayed, and this task writes nothing from this worker
        any more. An unknown task is ignored.

        Exception: when a plug-in prevents the end of the interrupted batch, the method returns 2 s after the grace. The
        task commits nothing that it has not begun to commit, but a commit that has begun may still take effect."""
        ...

    def halt_all_tasks(self) -> None:
        """Stop all tasks immediately, because the worker's event loop is blocked; also end all splits. Any thread may
        call this method; it does not need the event loop.

        When it returns, no task that was running, starting or stopping at the call writes anything more, whatever the
        grace period of a stop. The only exception is a commit that was running and does not end within the runtime's
        time limit, which is logged: the caller must give up the worker's membership in any case. Each task that was not
        stopping is reported as :class:`TaskHaltedWithoutOrder`. Later starts are not affected.
        """
        ...

    async def next_event(self) -> TaskEvent:
        """Wait for the next event and return it, in the order in which the events occurred. The queue is bounded; of
        several unread progress reports of one task, older ones may be dropped, and their rows and topics are added to a
        newer one."""
        ...


# -- the leader -------------------------------------------------------------------------------------------------------


class SignatureRefusedError(WorldError):
    """The leader does not accept a signature; normally it has another session key than this worker."""


class LeaderClient(Protocol):
    """Sends requests to the leader's internal REST endpoints."""

    async def publish_task_configs(
        self,
        leader_url: WorkerUrl,
        connector: ConnectorName,
        incarnation: Incarnation,
        configs: Sequence[Mapping[str, str]],
        signing_key: SigningKey | None,
    ) -> None:
        """Send the task configs of the connector's ``incarnation`` to the leader (``POST
        /connectors/{connector}/tasks``), signed with ``signing_key``, or not signed if that is None. Returns when the
        leader has written them.

        :raises SignatureRefusedError: when the leader responds that the signature is not valid (403).
        :raises WorldError: when the leader cannot be reached, or refuses for another reason, which the message
            contains: for example because the connector has another incarnation now.
        """
        ...
