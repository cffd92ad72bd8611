"""Everything that can come into a herder, and everything that can go out.

All of it may be traced. So configs, and what is said of their values, are left out of every ``repr``, as keys are.
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

# -- what the config log is asked for ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ForRead:
    """A read waits until what was written before it is read."""

    id: RequestId


@dataclass(frozen=True, slots=True, kw_only=True)
class ForWrite:
    id: WriteId


@dataclass(frozen=True, slots=True, kw_only=True)
class ForRound:
    """A member reported that it has read more of the log than the leader."""

    look: int
    """Which of the leader's looks this is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForPlace:
    """This worker has not read as much of the log as a member of its group reported."""

    look: int
    """Which of this worker's looks this is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForSessionKey:
    """The leader writes a session key."""

    number: int
    """Which of the keys made here this is."""


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
    """Used if the request brings a connector to life."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFired:
    timer: Timer


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeOpened:
    """Both logs are read to their ends and tasks can start at once: this worker may join its group."""

    wall_ms: int
    """What the wall clock says, in milliseconds since the epoch: session keys are dated by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutdownOrdered:
    """By an operator, or because nothing works here without what has failed (then ``code`` is not 0)."""

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
    """Which config was split (:attr:`Connector.written_at`)."""
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
    """The task configs that the newest generation states; None when another worker is at work, or this one failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConfigsPublished:
    connector: ConnectorName
    written_at: int
    refusal: str | None = field(default=None, repr=False)
    """Why the leader did not take them; None when it did."""
    forbidden: bool = False
    """The leader's session key is not the one that they were signed with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionKeyMade:
    key: bytes = field(repr=False)
    """Fresh, from the system's own source of chance."""
    wall_ms: int
    """What the wall clock said then: it may have been set since the runtime was opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValidated:
    id: RequestId
    errors: Mapping[str, Sequence[str]] = field(repr=False)
    failure: str | None = field(default=None, repr=False)
    """Why the config could not be judged, for instance a source that cannot be reached; None when it was judged."""


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
    """Whether anybody heard the farewell or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeClosed:
    """Nothing runs here any more, whatever was under way."""


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

# -- effects: orders. Those that take time are chores, each answered by the event named -------------------------------


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
    """One line for the process's log."""

    text: str
    warns: bool = False
    is_error: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """The end: close everything and end the process with ``code``, or execute it anew."""

    code: int
    reason: str
    restarts: bool = False
    place: PlaceHandover | None = None
    """Of one that ``restarts``: what its next life goes on with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTask:
    """→ TaskStarted | TaskStartFailed"""

    start: TaskStart


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartTask:
    """Of a task that died, on the checkpoint that it holds → TaskStarted | TaskStartFailed"""

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
    """Ends the splits of the connector that were ordered before, and the looks at the parts of its source. Carried out
    at once: it is no chore."""

    connector: ConnectorName


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishGeneration:
    """For a worker that waits with a task of a closed generation → GenerationFinished"""

    connector: ConnectorName
    incarnation: Incarnation


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishTaskConfigs:
    """To another worker, the leader → TaskConfigsPublished"""

    leader_url: WorkerUrl
    connector: ConnectorName
    written_at: int
    configs: Sequence[Mapping[str, str]] = field(repr=False)
    signing: Signing | None = None
    """What the request is to be signed with, if it is."""


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
