"""All events that a herder can receive, and all effects that it can emit.

All of them may be traced. Therefore configs, error texts about config values, and keys are left out of every ``repr``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from coterie.engine.log import Line, NewLine
from coterie.herder.requests import Answer, Request, RequestId, WriteId
from coterie.herder.seams import TaskEvent, TaskStart
from coterie.herder.session_keys import Signing
from coterie.herder.timers import Timer
from coterie.nouns.ids import ConfigOffset, Incarnation, WorkerUrl
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.nouns.membership import Leave, MembershipEvent, MembershipOrder, PlaceHandover

# -- purposes of lookups of the config log's end offset, and of appends to the config log -----------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ForRead:
    """A read waits until all lines that were written before the request are read."""

    id: RequestId


@dataclass(frozen=True, slots=True, kw_only=True)
class ForWrite:
    id: WriteId


@dataclass(frozen=True, slots=True, kw_only=True)
class ForRound:
    """A member reported that it has read more of the config log than the leader."""

    look: int
    """The number of this end-offset lookup of the leader; the result of an older lookup is ignored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForPlace:
    """This worker has read less of the config log than a member of its group reported."""

    look: int
    """The number of this end-offset lookup of the worker; the result of an older lookup is ignored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForSessionKey:
    """The leader writes a session key."""

    number: int
    """The number of this key among the keys that this worker has made."""


EndPurpose: TypeAlias = ForRead | ForWrite | ForRound | ForPlace
AppendPurpose: TypeAlias = ForWrite | ForSessionKey

# -- events: past facts -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigLinesRead:
    lines: Sequence[Line]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusLinesRead:
    lines: Sequence[Line]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestArrived:
    id: RequestId
    request: Request
    fresh_incarnation: Incarnation
    """The incarnation of the connector, if the request creates one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFired:
    timer: Timer


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeOpened:
    """Both logs are read to their ends and tasks can start at once: this worker may join its group."""

    wall_ms: int
    """The time of the wall clock, in milliseconds since the Unix epoch: the creation times of session keys use it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutdownOrdered:
    """An operator ordered the shutdown, or a part failed without which the worker cannot run (then ``code`` is not
    0)."""

    reason: str
    code: int = 0


# Results of chores.


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStarted:
    task: ConnectorTaskId


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStartFailed:
    task: ConnectorTaskId
    trace: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStopped:
    task: ConnectorTaskId


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorSplit:
    connector: ConnectorName
    written_at: int
    """Identifies the config that was split (:attr:`Connector.written_at`)."""
    configs: Sequence[Mapping[str, str]] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitFailed:
    connector: ConnectorName
    written_at: int
    trace: str = field(repr=False)
    is_transient: bool = False
    """Another attempt with the same config may succeed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationFinished:
    connector: ConnectorName
    incarnation: Incarnation
    configs: Sequence[Mapping[str, str]] | None = field(repr=False)
    """The task configs of the newest checkpoint generation; None when another worker is finishing the closed checkpoint
    generation, or when this worker failed to finish it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConfigsPublished:
    connector: ConnectorName
    written_at: int
    refusal: str | None = field(default=None, repr=False)
    """Why the leader did not accept the task configs; None when it did."""
    forbidden: bool = False
    """Whether the leader has another session key than the key with which the request was signed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionKeyMade:
    key: bytes = field(repr=False)
    """A new random key, from the operating system's source of randomness."""
    wall_ms: int
    """The time of the wall clock when the key was made: the clock may have been set since the runtime was opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValidated:
    id: RequestId
    errors: Mapping[str, Sequence[str]] = field(repr=False)
    failure: str | None = field(default=None, repr=False)
    """Why the config could not be validated, for example because the source cannot be reached; None when it was
    validated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEndFound:
    purpose: EndPurpose
    end: ConfigOffset | None
    """The offset after the last durable line; None when the log could not be reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigAppended:
    purpose: AppendPurpose
    end: ConfigOffset


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigAppendFailed:
    purpose: AppendPurpose
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusesAppended:
    failure: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLeft:
    """The member has ended, whether the coordinator has received the LeaveGroup request or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeClosed:
    """The runtime is closed: no task runs here any more, and all starts and stops in progress have ended."""


ChoreResult: TypeAlias = (
    TaskStarted
    | TaskStartFailed
    | TaskStopped
    | ConnectorSplit
    | SplitFailed
    | GenerationFinished
    | TaskConfigsPublished
    | SessionKeyMade
    | ConfigValidated
    | ConfigEndFound
    | ConfigAppended
    | ConfigAppendFailed
    | StatusesAppended
    | GroupLeft
    | RuntimeClosed
)
Event: TypeAlias = (
    ConfigLinesRead
    | StatusLinesRead
    | RequestArrived
    | TimerFired
    | RuntimeOpened
    | ShutdownOrdered
    | ChoreResult
    | MembershipEvent
    | TaskEvent
)

# -- effects. An effect that takes time is a chore, whose result is the event after the arrow -------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    id: RequestId
    answer: Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTimer:
    timer: Timer
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelTimer:
    timer: Timer


@dataclass(frozen=True, slots=True, kw_only=True)
class Say:
    """Write one message to the process's log: INFO, or WARNING with ``warns``, or ERROR with ``is_error``."""

    text: str
    warns: bool = False
    is_error: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """End the worker: close all resources, then exit with ``code``; with ``restarts``, execute the process again."""

    code: int
    reason: str
    restarts: bool = False
    place: PlaceHandover | None = None
    """With ``restarts``: the group membership that the relaunched process continues."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTask:
    """→ TaskStarted | TaskStartFailed"""

    start: TaskStart


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartTask:
    """Restart a failed task on the checkpoint that it holds → TaskStarted | TaskStartFailed"""

    task: ConnectorTaskId


@dataclass(frozen=True, slots=True, kw_only=True)
class StopTask:
    """→ TaskStopped"""

    task: ConnectorTaskId
    grace_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitConnector:
    """→ ConnectorSplit | SplitFailed"""

    connector: ConnectorName
    incarnation: Incarnation
    config: Mapping[str, str] = field(repr=False)
    checkpointed: Sequence[Mapping[str, str]] = field(repr=False)
    """As in :class:`ValidateConfig`."""
    written_at: int
    keeps_split: bool = False
    """As in :meth:`coterie.herder.seams.TaskRuntime.split`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetConnector:
    """Ends the connector's splits that were ordered before, and the polling of its source parts. Performed at once: not
    a chore."""

    connector: ConnectorName


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishGeneration:
    """Finish a closed checkpoint generation, for a task that waits for its new config → GenerationFinished"""

    connector: ConnectorName
    incarnation: Incarnation


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishTaskConfigs:
    """Send the task configs to the leader, which is another worker → TaskConfigsPublished"""

    leader_url: WorkerUrl
    connector: ConnectorName
    written_at: int
    configs: Sequence[Mapping[str, str]] = field(repr=False)
    signing: Signing | None = None
    """The key to sign the request with; None: the request is not signed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeSessionKey:
    """→ SessionKeyMade"""

    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateConfig:
    """→ ConfigValidated"""

    id: RequestId
    config: Mapping[str, str] = field(repr=False)
    checkpointed: Sequence[Mapping[str, str]] = field(repr=False)
    """Configs of the connector's tasks that may have checkpoints; empty for a new connector."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindConfigEnd:
    """→ ConfigEndFound"""

    purpose: EndPurpose


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendConfig:
    """→ ConfigAppended | ConfigAppendFailed"""

    purpose: AppendPurpose
    lines: tuple[NewLine, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendStatuses:
    """→ StatusesAppended"""

    lines: tuple[NewLine, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseRuntime:
    """→ RuntimeClosed"""


Chore: TypeAlias = (
    StartTask
    | RestartTask
    | StopTask
    | SplitConnector
    | FinishGeneration
    | PublishTaskConfigs
    | MakeSessionKey
    | ValidateConfig
    | FindConfigEnd
    | AppendConfig
    | AppendStatuses
    | Leave
    | CloseRuntime
)
Effect: TypeAlias = Reply | SetTimer | CancelTimer | Say | ForgetConnector | MembershipOrder | Exit | Chore
