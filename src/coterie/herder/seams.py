"""The herder's seams: how it takes part in a group, runs tasks, reaches the leader. Shells match them."""

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
    """A worker's place in its group. It begins when it is first told what this worker owns."""

    async def run(self) -> None:
        """Take part until the worker has left; all other methods need it to run."""
        ...

    def order(self, order: Subscribe | Rejoin | Install | Abandon) -> None:
        """Never blocks."""
        ...

    async def leave(self, reason: str, *, for_good: bool = False) -> None:
        """Leave the group; what is owned has been stopped before. Returns even when nobody answers.

        A static member only ends, and is waited for; unless it goes ``for_good``."""
        ...

    async def next_event(self) -> MembershipEvent:
        """The next event, in order; bounded inside."""
        ...


# -- tasks: Spark | simulated ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStart:
    """All that a runtime needs to start one task. A start always takes the task's checkpoint over."""

    task: ConnectorTaskId
    incarnation: Incarnation
    config: Mapping[str, str] = field(repr=False)
    """The task's own config, as the connector dealt it and as the config topic holds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskProgressed:
    """A batch was committed (or, with nothing to read, the query has looked for more)."""

    task: ConnectorTaskId
    batch_id: int
    input_rows: int
    """Rows read by the batch."""
    bad_records: int = 0
    """Records that the task has left out as bad since it was started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDied:
    """The task's query died, or another worker took its checkpoint. Reported once for each death; no effect of the task
    comes from here until it is started again."""

    task: ConnectorTaskId
    trace: str = field(repr=False)
    is_held: bool
    """The checkpoint is still this worker's, and the runtime keeps it until the task is restarted or stopped. Otherwise
    the task may not start here again before it is known to be ours."""
    can_restart: bool = True
    """Another start on the same checkpoint may help; False when the task refuses its input or its config."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWaiting:
    """A server that the task needs is away. The runtime keeps the checkpoint and starts the query again by itself, as
    the connector's ``errors.retry.*`` say. Reported for each attempt that fails; the next progress ends it."""

    task: ConnectorTaskId
    trace: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskHalted:
    """``stop_everything_now`` ended the task: it may not start here again before it is known to be ours."""

    task: ConnectorTaskId


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskClosed:
    """The task does not run here: the generation of checkpoints that its config names is closed. The task may start
    again when its config names another generation."""

    task: ConnectorTaskId


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsChanged:
    """The source of a connector that was split here has other parts by now: new partitions, or fewer."""

    connector: ConnectorName


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeDied:
    """Nothing can run here any more (the JVM is gone): the worker stops, leaves and exits with ``reason``."""

    reason: str


TaskEvent: TypeAlias = TaskProgressed | TaskWaiting | TaskDied | TaskHalted | TaskClosed | PartsChanged | RuntimeDied


class SplitEndedError(WorldError):
    """A split was ended before it was done: everything here was stopped, the connector was given away or changed, or
    another worker has split it meanwhile."""


class TaskRuntime(Protocol):
    """Runs tasks. Every coroutine is safe to await on the event loop: what blocks runs on threads inside."""

    async def open(self) -> None:
        """Start and warm up; before it returns nothing else is called.

        :raises WorldError: when it cannot (no Java, no memory, ...), with what to do.
        """
        ...

    async def close(self) -> None:
        """Stop everything that still runs and give all back. Safe to call twice, and after a failed open."""
        ...

    async def validate(
        self, config: Mapping[str, str], checkpointed: Sequence[Mapping[str, str]]
    ) -> Mapping[str, Sequence[str]]:
        """What is wrong with a connector's config, by key; empty when it is fine.

        ``checkpointed`` are the configs of its tasks that may have checkpoints, empty for a new connector. A config
        that would lose or double rows on these checkpoints is wrong."""
        ...

    def connector_type(self, config: Mapping[str, str]) -> str:
        """``source``, ``sink`` or ``unknown``, as REST shows it."""
        ...

    def lacks(self) -> Mapping[str, str]:
        """What is not installed on this worker and some connectors need, by name: what is missing and what to do."""
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

        Where the tasks of ``checkpointed`` read other parts or write to another sink than ``config`` asks for, their
        generation of checkpoints is closed first, wherever they run (:class:`TaskClosed`), and the next one is made
        from their positions: no row is lost or doubled. That takes as long as their last batches.

        With ``keeps_split`` the tasks keep their parts where these still exist and the sink is the same, whatever
        ``config`` asks for: a task is FAILED, and the others are not to be stopped until the failed one is mended.

        :raises UnreachableError, SplitEndedError: when another attempt with the same config may succeed.
        :raises ConfigError, WorldError: when the source cannot be split; the connector is FAILED with it, and tasks
            that run go on.
        """
        ...

    def forget(self, connector: ConnectorName) -> None:
        """End the split of ``connector`` that is under way, if any: it raises SplitEndedError, and puts nothing in
        place after this has returned, but for one step that is under way. Its parts are not looked at any more
        (:class:`PartsChanged`). Never waits."""
        ...

    async def finish(self, connector: ConnectorName, incarnation: Incarnation) -> Sequence[Mapping[str, str]] | None:
        """The task configs that the connector's newest generation of checkpoints states, after a closed one has been
        finished; None when another worker is at work on it. Takes seconds, to see whether one is.

        :raises WorldError: when the generation cannot be finished.
        """
        ...

    async def start(self, start: TaskStart) -> None:
        """Take the task's checkpoint over and start its query; returns when the query runs. It also returns when the
        query did not start on the checkpoint that was taken over: that is reported as :class:`TaskDied`.

        A task whose generation is closed does not start: the runtime reports :class:`TaskClosed`.

        :raises ConfigError, WorldError: when the checkpoint cannot be taken over; the task is FAILED with it.
        """
        ...

    async def restart(self, task: ConnectorTaskId) -> None:
        """Start the query of a task that died (:class:`TaskDied`) again, on the checkpoint that the task holds: nothing
        is taken over. Returns when the query runs, when it did not start (reported as :class:`TaskDied`), and when the
        task was stopped meanwhile.

        :raises WorldError: when the task holds no checkpoint here, or nothing can run here any more; it counts as one
            more death, which is not reported.
        """
        ...

    async def stop(self, task: ConnectorTaskId, *, grace_ms: int) -> None:
        """Stop at a batch boundary within ``grace_ms``, else interrupt. When it returns, the last batch is committed
        or will be replayed, and no effect of this task can come from here. Unknown tasks: nothing to do."""
        ...

    def stop_everything_now(self) -> None:
        """For a worker whose event loop stands still: called on any other thread, it needs no loop.

        When it returns no effect can come from a task that ran, or was being started or stopped, when it was called,
        whatever grace a stop has. Each that was not being stopped is told as :class:`TaskHalted`. Starts that are asked
        for later go ahead."""
        ...

    async def next_event(self) -> TaskEvent:
        """The next event, in order; bounded inside (progress of one task may be merged)."""
        ...


# -- the leader -------------------------------------------------------------------------------------------------------


class SignatureRefusedError(WorldError):
    """The leader does not accept a signature: it has another key."""


class LeaderClient(Protocol):
    """Reaches the leader's internal REST endpoints."""

    async def publish_task_configs(
        self,
        leader_url: WorkerUrl,
        connector: ConnectorName,
        configs: Sequence[Mapping[str, str]],
        signing: Signing | None,
    ) -> None:
        """``POST /connectors/{connector}/tasks``, signed with ``signing`` unless that is None.

        :raises SignatureRefusedError: when the leader answers that the signature is not valid.
        :raises WorldError: when the leader cannot be reached or refuses; the message says why.
        """
        ...
