"""All events that a herder can receive, and all effects that it can emit. "→" names the event that reports the result
of an effect.

All of them may be traced. Therefore configs, error texts about config values, and keys are left out of every ``repr``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from coterie.config.infos import ConfigInfos
from coterie.engine.log import NewTopicRecord, TopicRecord
from coterie.herder.requests.ids import RequestId, WriteId
from coterie.herder.requests.kinds import Answer, Request
from coterie.herder.requests.questions import PluginConfigKeys, PluginList, PluginQuestion
from coterie.herder.requests.refusals import RequestRefused
from coterie.herder.requests.writes import WriteAttempt
from coterie.herder.restart_policy import RestartPolicy
from coterie.herder.seams import RebalanceNews, TaskEvent, TaskSpec
from coterie.herder.session_keys import SigningKey
from coterie.herder.timers import Timer
from coterie.nouns.connector_offsets import ConnectorOffset, OffsetChange
from coterie.nouns.ids import Incarnation, LogPosition, WorkerUrl
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.nouns.logger_levels import LoggerLevel
from coterie.nouns.membership import Handover, Leave, MembershipEvent, MembershipOrder
from coterie.nouns.target_assignments import ComputedTarget, GroupSnapshot

# -- purposes of lookups of the config log's end offset, and of appends to the config log -----------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEndLookupForRead:
    """The end offset is looked up for a read, or for the restart of a task: it waits until all lines are read that were
    written before the request."""

    id: RequestId


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEndLookupForWrite:
    """The end offset is looked up for a write, which is checked when all lines before this offset are read."""

    id: WriteId


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEndLookupForAssignment:
    """The leader looks up the end offset for the group's assignment: in a classic group because a member has reported
    that it has read more of the config log; in a connect group before it reports the configured jobs."""

    log_end_lookup_id: int
    """The number of this lookup, as counted by this worker as the leader; the result of an older lookup is ignored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEndLookupOfLaggingWorker:
    """This worker looks up the end offset, because it has read less of the config log than a member of its group has
    reported."""

    log_end_lookup_id: int
    """The number of this lookup, as counted by this worker; the result of an older lookup is ignored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendForWrites:
    """The lines of these writes are appended: of one write, or of several connectors' writes that only the leader may
    perform."""

    ids: tuple[WriteId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendForSessionKey:
    """The leader appends the line of a session key that it has made."""

    key_number: int
    """The number of this key among the keys that this worker has made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendForLoggerLevel:
    """A line that sets the level of a logger on all workers is appended for this request."""

    id: RequestId


LogEndLookupPurpose: TypeAlias = (
    LogEndLookupForRead | LogEndLookupForWrite | LogEndLookupForAssignment | LogEndLookupOfLaggingWorker
)
"""Why an end offset of the config log is looked up."""
AppendPurpose: TypeAlias = AppendForWrites | AppendForSessionKey | AppendForLoggerLevel
"""Why lines are appended to the config log."""

# -- events: past facts -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigLinesRead:
    """Lines of the config topic were read, or the reader's position has advanced without a line (``lines`` is then
    empty)."""

    lines: Sequence[TopicRecord]
    position: LogPosition
    """The position of this worker's reader after these lines."""
    completes_first_read: bool = False
    """Whether this worker has now read all lines that existed when it started. True in one event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusLinesRead:
    """Lines of the status topic were read."""

    lines: Sequence[TopicRecord]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestArrived:
    """A request has arrived, through the REST API or from another part of this process. It is answered by
    :class:`Reply` with the same ``id``."""

    id: RequestId
    request: Request
    fresh_incarnation: Incarnation
    """A new, unique incarnation, for the case that the request creates a connector."""
    attempt: WriteAttempt | None = None
    """The attempt of a client's write, of a restart of a task or of a reset of active topics; None for other requests,
    and for a write of a worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFired:
    """The time of a timer has come. The reason for the timer may be gone meanwhile: the step then does nothing."""

    timer: Timer


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeOpened:
    """Both logs are read to their ends and the runtime is open: this worker may join its group and start tasks."""

    wall_clock_ms: int
    """The wall clock's time, in milliseconds since the Unix epoch: the creation times of session keys use it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutdownOrdered:
    """An operator has ordered the shutdown, or a part has failed without which the worker cannot run (then
    ``exit_code`` is not 0)."""

    reason: str
    exit_code: int = 0
    """The exit code of the process."""


# Results of chores.


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStarted:
    """A start or restart of a task has returned without an error. The query runs, or an earlier event has reported its
    end."""

    task: ConnectorTaskId


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStartFailed:
    """A start or restart of a task has raised an error."""

    task: ConnectorTaskId
    trace: str = field(repr=False)
    """The error's message, with its stack unless it is one of Coterie's errors."""
    restart_policy: RestartPolicy | None = None
    """When a start is tried again; None when another start would fail in the same way. A restart that fails is tried
    again by the policy of the failure before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStopped:
    """A stop of a task has returned. Unless the stop failed, which is logged, the task writes nothing from this worker
    any more."""

    task: ConnectorTaskId


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSucceeded:
    """A connector was split into task configs (:class:`SplitConnector`)."""

    connector: ConnectorName
    config_line_offset: int
    """Identifies the config that was split (:attr:`Connector.config_line_offset`)."""
    task_configs: Sequence[Mapping[str, str]] = field(repr=False)
    """The configs of the connector's tasks, by task number."""
    kept_source_parts_reason: str | None = None
    """Why the tasks keep their source parts although the config requires others (:class:`SplitResult`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitFailed:
    """A connector could not be split into task configs, or its split was ended (:class:`SplitConnector`)."""

    connector: ConnectorName
    config_line_offset: int
    """Identifies the config that was to be split (:attr:`Connector.config_line_offset`)."""
    trace: str = field(repr=False)
    """The error, for the connector's status."""
    is_transient: bool = False
    """Whether another attempt with the same config may succeed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointGenerationCreationEnded:
    """The chore of :class:`CreateNextCheckpointGeneration` has ended, with or without success."""

    connector: ConnectorName
    incarnation: Incarnation
    task_configs: Sequence[Mapping[str, str]] | None = field(repr=False)
    """The task configs of the newest checkpoint generation; None when there is nothing to publish: another worker is
    creating this generation, this worker could not create it, or there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConfigsPublicationEnded:
    """The leader has answered the publication of task configs, or could not be reached."""

    connector: ConnectorName
    config_line_offset: int
    """Identifies the config from which the task configs were made (:attr:`Connector.config_line_offset`)."""
    refusal: str | None = field(default=None, repr=False)
    """Why the leader has not accepted the task configs, or could not be reached; None when it has accepted them."""
    is_signature_refused: bool = False
    """Whether the leader has rejected the signature; normally it has another session key than the key with which the
    request was signed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionKeyMade:
    """A new random session key was made (:class:`MakeSessionKey`). It is not written to the config log yet."""

    key: bytes = field(repr=False)
    """Random bytes from the operating system's source of randomness."""
    wall_clock_ms: int
    """The wall clock's time when the key was made, in milliseconds since the Unix epoch; the clock may have been set
    since the runtime was opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValidationCompleted:
    """The runtime has validated the config of a request; ``infos`` contains the errors if the config is invalid."""

    id: RequestId
    infos: ConfigInfos = field(repr=False)
    """The definitions, values and errors of the config's keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigCouldNotBeValidated:
    """The runtime could not validate the config of a request."""

    id: RequestId
    failure: str = field(repr=False)
    """Why, for example because the source cannot be reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginQuestionAnswered:
    """The runtime has listed or described this worker's plug-ins for a request, or could not (:class:`AskPlugins`)."""

    id: RequestId
    answer: PluginList | PluginConfigKeys | RequestRefused = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetReadEnded:
    """The runtime has read a connector's offsets, or could not."""

    id: RequestId
    offsets: tuple[ConnectorOffset, ...] = ()
    failure: str | None = field(default=None, repr=False)
    """Why they could not be read, and ``offsets`` is empty; None when they were read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetChangeEnded:
    """The runtime has changed a connector's offsets, or could not."""

    id: RequestId
    refusal: RequestRefused | None = field(default=None, repr=False)
    """Why they were not changed; with OFFSETS_FAILED the change may still take effect. None when they were changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigLogEndLookupEnded:
    """A lookup of the config log's end offset has ended (:class:`FindConfigLogEnd`). ``end_offset`` is None when the
    end was not found."""

    purpose: LogEndLookupPurpose
    end_offset: LogPosition | None
    """The position of a reader that has read all durable lines; None when the log could not be reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderLogOpened:
    """The leader's log (the config log with the right to append lines as the leader) is open: a worker that opened it
    before this worker can append no more lines with its opening."""

    opening_number: int
    """The number in :class:`OpenLeaderLog`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderLogOpenFailed:
    """The leader's log could not be opened: see :class:`OpenLeaderLog`, whose ``opening_number`` the event repeats."""

    opening_number: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigLinesAppended:
    """Lines were appended to the config log and are durable."""

    purpose: AppendPurpose
    end_offset: LogPosition
    """The offset after the last of these lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigLinesAppendFailed:
    """Lines could not be appended to the config log, or it is unknown whether they were appended."""

    purpose: AppendPurpose
    reason: str
    leader_log_opening_number: int | None = None
    """The number of the opening of the leader's log with which the lines were to be appended
    (:class:`AppendConfigLines`)."""
    is_fenced: bool = False
    """Whether another worker has opened the leader's log since: certainly no line was appended."""
    are_lines_discarded: bool = False
    """Whether the append failed for another reason, and certainly no line was appended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusAppendEnded:
    """The append of lines to the status log (:class:`AppendStatusLines`) has ended, with or without success."""

    failure: str | None = None
    """Why the lines could not be written; None when they are durable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetComputationEnded:
    """The assignor has computed the target assignment, or has failed (:class:`ComputeTarget` with the same
    ``token``)."""

    token: object
    target: ComputedTarget | None
    """None if the assignor has failed."""
    error: str = ""
    """Why the assignor has failed; empty if it has not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLeft:
    """The member has ended, whether or not the coordinator has received a LeaveGroup request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestIntakeClosed:
    """This worker accepts no more requests from clients; all requests that it had accepted are answered or have reached
    the herder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeClosed:
    """The runtime is closed: no task runs here any more, and all starts and stops in progress have ended."""


ChoreResult: TypeAlias = (
    TaskStarted
    | TaskStartFailed
    | TaskStopped
    | SplitSucceeded
    | SplitFailed
    | CheckpointGenerationCreationEnded
    | TaskConfigsPublicationEnded
    | SessionKeyMade
    | ConfigValidationCompleted
    | ConfigCouldNotBeValidated
    | PluginQuestionAnswered
    | OffsetReadEnded
    | OffsetChangeEnded
    | ConfigLogEndLookupEnded
    | TargetComputationEnded
    | LeaderLogOpened
    | LeaderLogOpenFailed
    | ConfigLinesAppended
    | ConfigLinesAppendFailed
    | StatusAppendEnded
    | RequestIntakeClosed
    | GroupLeft
    | RuntimeClosed
)
"""The events that report results of chores."""
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
    """Send ``answer`` as the response to the request with this ``id``, unless its caller no longer waits."""

    id: RequestId
    answer: Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTimer:
    """Set the timer to fire at ``at_ms``; if it is set already, move it to that time."""

    timer: Timer
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelTimer:
    """Cancel the timer, if it is set."""

    timer: Timer


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteLogMessage:
    """Write one message to the process's log, with level INFO, or WARNING with ``is_warning``, or ERROR with
    ``is_error``."""

    text: str
    is_warning: bool = False
    is_error: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyRebalanceListeners:
    """Let ``news`` be passed to the plug-ins that listen to this worker's rebalances. Not a chore: nothing waits for
    them."""

    news: RebalanceNews


@dataclass(frozen=True, slots=True, kw_only=True)
class SetLoggerLevel:
    """Order to the worker: set the level of a logger of this process, and of its descendants. Nothing waits for it."""

    logger: str
    level: LoggerLevel


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """End the worker: close all resources, then exit with ``exit_code``. With ``relaunches`` the process executes
    itself again instead."""

    exit_code: int
    reason: str
    """Why the worker ends, for the process's log."""
    relaunches: bool = False
    handover: Handover | None = None
    """With ``relaunches``: the group membership that the relaunched process continues; None if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTask:
    """Take the task's checkpoint over and start its query → TaskStarted | TaskStartFailed"""

    spec: TaskSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartTask:
    """Restart the query of a failed task on the checkpoint that this worker holds → TaskStarted | TaskStartFailed"""

    task: ConnectorTaskId


@dataclass(frozen=True, slots=True, kw_only=True)
class StopTask:
    """Stop a task at the end of its batch, or interrupt it after ``grace_ms`` → TaskStopped"""

    task: ConnectorTaskId
    grace_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitConnector:
    """Split a connector into task configs → SplitSucceeded | SplitFailed"""

    connector: ConnectorName
    incarnation: Incarnation
    config: Mapping[str, str] = field(repr=False)
    configs_of_checkpointed_tasks: Sequence[Mapping[str, str]] = field(repr=False)
    """Configs of the connector's tasks that may have checkpoints; empty for a new connector."""
    config_line_offset: int
    """Identifies ``config`` (:attr:`Connector.config_line_offset`)."""
    keeps_source_parts: bool = False
    """Whether the tasks keep their source parts, because a task is failing
    (:meth:`coterie.herder.seams.TaskRuntime.split`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopConnector:
    """End the running splits and changes of offsets of the connector, and the monitoring of its source parts. Not a
    chore: it is performed at once and has no result."""

    connector: ConnectorName


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortTaskStart:
    """The start or restart of a task that was ordered before is no longer needed: abandon its call if the call has not
    returned within ``grace_ms``. The call's thread cannot be ended: it counts as lost until the call returns. Not a
    chore: it has no result. The result of the start is a TaskStarted or TaskStartFailed, as for every start."""

    task: ConnectorTaskId
    grace_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateNextCheckpointGeneration:
    """Create the checkpoint generation that follows a closed one, unless another worker is creating it, and return its
    task configs, because a task waits for its new config → CheckpointGenerationCreationEnded"""

    connector: ConnectorName
    incarnation: Incarnation


@dataclass(frozen=True, slots=True, kw_only=True)
class SendTaskConfigsToLeader:
    """Send the task configs to the leader, which is another worker → TaskConfigsPublicationEnded"""

    leader_url: WorkerUrl
    connector: ConnectorName
    incarnation: Incarnation
    """The incarnation of the connector that was split."""
    config_line_offset: int
    """Identifies the config from which the task configs were made (:attr:`Connector.config_line_offset`)."""
    configs: Sequence[Mapping[str, str]] = field(repr=False)
    signing_key: SigningKey | None = None
    """The key with which the request is signed; None when it is not signed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeSessionKey:
    """Make a random session key of ``size_bytes`` → SessionKeyMade"""

    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateConfig:
    """Validate the config of a write or of a question → ConfigValidationCompleted | ConfigCouldNotBeValidated"""

    id: RequestId
    """The request that contains the config."""
    config: Mapping[str, str] = field(repr=False)
    configs_of_checkpointed_tasks: Sequence[Mapping[str, str]] = field(repr=False)
    """Configs of the connector's tasks that may have checkpoints; empty for a new connector."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskPlugins:
    """List this worker's plug-ins, or describe one of them → PluginQuestionAnswered"""

    id: RequestId
    question: PluginQuestion


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadConnectorOffsets:
    """Read a connector's offsets from its checkpoints → OffsetReadEnded"""

    id: RequestId
    connector: ConnectorName
    incarnation: Incarnation
    config: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyOffsetChange:
    """Change the offsets of a connector that is stopped, or that is about to be created → OffsetChangeEnded"""

    id: RequestId
    connector: ConnectorName
    incarnation: Incarnation
    config: Mapping[str, str] = field(repr=False)
    configs_of_checkpointed_tasks: Sequence[Mapping[str, str]] = field(repr=False)
    """Configs of the connector's tasks that may have checkpoints; empty for a new connector."""
    change: OffsetChange


@dataclass(frozen=True, slots=True, kw_only=True)
class FindConfigLogEnd:
    """Look up the end offset of the config log → ConfigLogEndLookupEnded, also if the log could not be reached"""

    purpose: LogEndLookupPurpose


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeTarget:
    """Let this worker's assignor compute the target assignment of a connect group → TargetComputationEnded"""

    token: object
    """Identifies the computation."""
    snapshot: GroupSnapshot
    """The state of the group, with the name of the assignor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLeaderLog:
    """Open the leader's log, so that this worker can append lines as the leader, and fence all earlier openings, also
    those of other workers: their appends fail from now on → LeaderLogOpened | LeaderLogOpenFailed"""

    opening_number: int
    """The number of this opening, as counted by this worker."""
    transaction_timeout_ms: int
    """The session timeout: when an append does not end within this time, the broker aborts it. Until then, readers
    receive no later lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendConfigLines:
    """Append lines to the config log → ConfigLinesAppended | ConfigLinesAppendFailed"""

    purpose: AppendPurpose
    lines: tuple[NewTopicRecord, ...]
    leader_log_opening_number: int | None = None
    """The number of the opening of the leader's log (:class:`OpenLeaderLog`) with which the lines are appended, all or
    none; None for lines that any worker may append."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendStatusLines:
    """Append lines to the status log → StatusAppendEnded"""

    lines: tuple[NewTopicRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseRequestIntake:
    """Accept no more requests from clients, and wait until each accepted request is answered or has reached the herder
    → RequestIntakeClosed"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseRuntime:
    """Stop all tasks that still run, and close the runtime → RuntimeClosed"""


Chore: TypeAlias = (
    StartTask
    | RestartTask
    | StopTask
    | SplitConnector
    | CreateNextCheckpointGeneration
    | SendTaskConfigsToLeader
    | MakeSessionKey
    | ValidateConfig
    | AskPlugins
    | ReadConnectorOffsets
    | ApplyOffsetChange
    | FindConfigLogEnd
    | ComputeTarget
    | OpenLeaderLog
    | AppendConfigLines
    | AppendStatusLines
    | CloseRequestIntake
    | Leave
    | CloseRuntime
)
"""The effects that take time. The shell performs them concurrently, and posts the result as an event."""
Effect: TypeAlias = (
    Reply
    | SetTimer
    | CancelTimer
    | WriteLogMessage
    | StopConnector
    | AbortTaskStart
    | NotifyRebalanceListeners
    | SetLoggerLevel
    | MembershipOrder
    | Exit
    | Chore
)
