"""The work of a worker: the state of each of its tasks and connectors, and the statuses that are not written yet.

A task or a connector has at most one chore in progress; its state tells which one. `tasks` changes the states of tasks,
`connectors` the states of connectors, `closed_checkpoints` creates the checkpoint generation after a closed one,
`statuses` writes the statuses.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from coterie.herder.restart_policy import RestartPolicy
from coterie.herder.seams import TaskSpec
from coterie.herder.status_records import ActiveTopic, FirstTopicUse, Status
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId, Job, Jobs
from coterie.nouns.states import JobState

# -- a task -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NotStarted:
    """The task does not run here, and may start if it is assigned here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The task could not start, or its query failed and was stopped: it is not started again with ``spec``, unless an
    operator orders a restart."""

    spec: TaskSpec
    trace: str = field(repr=False)
    """The error, for the task's status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRetryPending:
    """The start of the task has failed, and another start may succeed: the task is started again. This worker does not
    hold the checkpoint."""

    spec: TaskSpec
    failed_starts: int
    """How many starts with ``spec`` have failed in a row."""
    starts_at_ms: int
    """The earliest time of the next start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnershipUnconfirmed:
    """Another worker took the task's checkpoint over, or the task was halted because the event loop or the herder was
    blocked. The task may start here again after the coordinator has answered a heartbeat that was sent later than
    ``unconfirmed_since_ms``."""

    unconfirmed_since_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointClosed:
    """The checkpoint generation that ``spec``'s config names is closed: the task waits for another config."""

    spec: TaskSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedQueryHoldingCheckpoint:
    """The task's query has failed, and this worker still holds the task's checkpoint: the query is restarted on this
    checkpoint, or the task is stopped."""

    spec: TaskSpec
    has_progressed_since_start: bool
    """Whether the query had reported progress since the task was started."""
    failures_since_progress: int
    """How often the query has failed since it last progressed."""
    trace: str = field(repr=False)
    """The error, for the task's status."""
    restarts_at_ms: int | None
    """The earliest time of the query's restart; None when it is not restarted: the task is then stopped and is
    FAILED."""
    restart_policy: RestartPolicy
    """The policy of this failure, also for a restart that fails before the query runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Starting:
    """The start of the task was ordered and has not returned."""

    spec: TaskSpec
    has_progressed_since_start: bool = False
    """Whether the query has reported progress, which may happen before the start returns."""
    failures_since_progress: int = 0
    """How often starts with ``spec`` have failed in a row, or the query has failed since it last progressed."""
    early_end: FailedQueryHoldingCheckpoint | OwnershipUnconfirmed | CheckpointClosed | None = None
    """How the task ended before its start returned; None if it has not ended."""
    is_needed: bool = True
    """False when the task should no longer run with ``spec``, and the runtime was told to end the start."""
    is_operator_restart: bool = False
    """Whether an operator has ordered this start: the task's status is then RESTARTING until its query has
    progressed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarting:
    """The query is being restarted on the checkpoint that this worker holds."""

    spec: TaskSpec
    has_progressed_since_start: bool
    """Whether the query has reported progress since the task was started."""
    failures_since_progress: int
    """How often the query has failed since it last progressed."""
    restart_policy: RestartPolicy
    """The policy of the failure before this restart."""
    early_end: FailedQueryHoldingCheckpoint | OwnershipUnconfirmed | CheckpointClosed | None = None
    """How the task ended before its restart returned; None if it has not ended."""
    is_needed: bool = True
    """False when the task should no longer run with ``spec``, and the runtime was told to end the restart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """The task's query runs."""

    spec: TaskSpec
    has_progressed_since_start: bool
    """Whether the query has reported progress since the task was started: only then is the task's status RUNNING."""
    failures_since_progress: int
    """How often the query has failed since it last progressed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    """The stop of the task was ordered and has not returned."""

    spec: TaskSpec
    next_state: Failed | OwnershipUnconfirmed | None = None
    """The task's state after the stop; None for `NotStarted`."""


LocalTaskState: TypeAlias = (
    NotStarted
    | Starting
    | Running
    | FailedQueryHoldingCheckpoint
    | Restarting
    | Stopping
    | Failed
    | StartRetryPending
    | OwnershipUnconfirmed
    | CheckpointClosed
)


class LocalTask:
    """A task that is assigned to this worker, or still runs here."""

    def __init__(self) -> None:
        self.state: LocalTaskState = NotStarted()
        self.batch_id: int | None = None
        """The last batch that was reported as committed; None before the first."""
        self.input_rows = 0
        """Rows read by the batches that were reported since the task was assigned to this worker."""
        self.bad_records = 0
        """Bad records that the task has skipped since its last start."""
        self.starts = 0
        """How often this worker has started the task, without restarts of its query."""
        self.restart_is_ordered = False
        """Whether an operator has ordered a restart that has not begun: the task is stopped, if it runs, and
        started."""
        self.restarting_reason: str | None = None
        """Why the task's status is RESTARTING although no operator has ordered a restart: a server cannot be reached,
        so the runtime retries the query; the query has failed, and its restart waits for a second or more; or the last
        start of the task has failed. None in all other cases, and when the query has progressed since then."""

    @property
    def may_hold_checkpoint(self) -> bool:
        """Whether this worker holds the task's checkpoint, or may hold it: then it owns the task. This includes a
        failed query that waits for its restart (:class:`FailedQueryHoldingCheckpoint`)."""
        return not isinstance(
            self.state, NotStarted | Failed | StartRetryPending | OwnershipUnconfirmed | CheckpointClosed
        )

    @property
    def has_failed_query(self) -> bool:
        """Whether the query has failed and was not restarted since then. Also true while the start or restart of a
        query that has already failed has not returned."""
        match self.state:
            case (
                FailedQueryHoldingCheckpoint()
                | Starting(early_end=FailedQueryHoldingCheckpoint())
                | Restarting(early_end=FailedQueryHoldingCheckpoint())
            ):
                return True
            case _:
                return False


# -- a connector ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NotSplit:
    """The connector has to be split into task configs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Splitting:
    """The connector's config is being split. ``config_line_offset`` None: the result is no longer needed."""

    config_line_offset: int | None
    """Identifies the config that is being split (:attr:`Connector.config_line_offset`); None when the result is no
    longer needed."""
    commit_line_offset: int | None = None
    """The last commit of the connector's task configs when the split began (:attr:`Connector.commit_line_offset`)."""
    failed_attempts: int = 0
    """How many earlier attempts to split this config have failed in a row with an error that may be temporary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRetryPending:
    """The config could not be split, and another attempt may succeed: the connector is split again at ``retry_at_ms``,
    on the monotonic clock."""

    config_line_offset: int
    """Identifies the config that could not be split (:attr:`Connector.config_line_offset`)."""
    trace: str = field(repr=False)
    """The error, for the connector's status."""
    failed_attempts: int
    """How many attempts have failed in a row."""
    retry_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsplittable:
    """The config could not be split. This worker tries again only with a newer config, after a restart that an operator
    orders, or after a closed checkpoint generation was followed by the next one."""

    config_line_offset: int
    """Identifies the config that could not be split (:attr:`Connector.config_line_offset`)."""
    commit_line_offset: int | None
    """The last commit of the connector's task configs when the split began (:attr:`Connector.commit_line_offset`). A
    later one shows that another worker has created the checkpoint generation after a closed one."""
    trace: str = field(repr=False)
    """The error, for the connector's status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpublishedTaskConfigs:
    """The leader has not written the task configs, as far as is known: they must be sent to the leader, or are being
    sent (:attr:`LocalConnector.publishing`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConfigsPublishRetryPending:
    """The leader refused the task configs, or could not be reached: they are sent to it again at ``retry_at_ms``."""

    retry_at_ms: int
    refusal: str
    """Why they were not accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTaskConfigs:
    """The last commit contains the task configs, or the leader has accepted them since that commit."""


PublicationState: TypeAlias = UnpublishedTaskConfigs | TaskConfigsPublishRetryPending | PublishedTaskConfigs


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitComplete:
    """The connector's config is split into the task configs ``task_configs``. ``commit_line_offset`` is that of the
    last commit with which they were compared."""

    config_line_offset: int
    """Identifies the config that was split (:attr:`Connector.config_line_offset`)."""
    task_configs: tuple[Mapping[str, str], ...] = field(repr=False)
    kept_source_parts_reason: str | None = None
    """Why the tasks keep their source parts although the config requires others, for the connector's status: a task was
    failing. The connector is then split again when no task is failing any more. None if the config requires no
    others."""
    publication: PublicationState = UnpublishedTaskConfigs()
    commit_line_offset: int | None = None
    """Offset of the last commit with which ``task_configs`` were compared (:attr:`Connector.commit_line_offset`)."""
    failed_publications: int = 0
    """How often in a row the leader has not accepted the task configs."""
    first_sent_at_ms: int | None = None
    """When the task configs were first sent to a leader on another worker, in ms on the monotonic clock; None if they
    never were."""


LocalConnectorState: TypeAlias = NotSplit | Splitting | SplitRetryPending | Unsplittable | SplitComplete


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConfigsPublicationInProgress:
    """Task configs were sent to the leader (or submitted here, if this worker is the leader), and no answer has come
    yet."""

    commit_line_offset: int | None
    """Offset of the last commit that was read when the task configs were sent; None when there was no commit."""


class LocalConnector:
    """A connector that is assigned to this worker, or whose split has not ended yet."""

    def __init__(self) -> None:
        self.state: LocalConnectorState = NotSplit()
        self.publishing: TaskConfigsPublicationInProgress | None = None
        """The publication in progress. Separate from ``state``, because a new split can replace a split whose task
        configs are being sent."""

    @property
    def is_splittable(self) -> bool:
        """Whether this worker has task configs for the connector, is splitting it, or will split it. False when its
        config could not be split."""
        return not isinstance(self.state, Unsplittable)


AffectedConnectors: TypeAlias = Collection[ConnectorName] | None
"""The connectors whose jobs an event affects; None: all connectors. Most events affect the jobs of one connector, and a
worker may have thousands of jobs."""


# -- all work of a worker ---------------------------------------------------------------------------------------------


class ReportedStatus(NamedTuple):
    """What a worker reports of one of its jobs. A report that equals the last one is not written to the status log."""

    state: JobState
    trace: str | None
    plugin_version: str | None


class LocalJobsState:
    """The tasks and connectors of a worker, and the statuses that are not written yet."""

    def __init__(self, assigned: Jobs) -> None:
        # `tasks`
        self.local_tasks: dict[ConnectorTaskId, LocalTask] = {task: LocalTask() for task in assigned.tasks}
        """The state of every assigned task, and of every task that still runs here."""
        # `connectors`
        self.local_connectors: dict[ConnectorName, LocalConnector] = {}
        # `closed_checkpoints`
        self.connectors_creating_generation: set[ConnectorName] = set()
        """Connectors for which a chore of this worker creates the checkpoint generation that follows a closed one."""
        # `statuses`
        self.last_reported: dict[Job, ReportedStatus | None] = {}
        """The last status that this worker reported of each of its jobs; None when it reported a tombstone."""
        self.queued_statuses: dict[Job, Status | None] = {}
        """Statuses that wait for the append in progress, by job; None is a tombstone."""
        self.statuses_in_flight: dict[Job, Status | None] = {}
        """Statuses that are being appended, or that wait for the retry of a failed append; None is a tombstone."""
        # `active_topics`
        self.queued_topics: dict[ActiveTopic, FirstTopicUse | None] = {}
        """Uses of topics that wait for the append in progress; None is a tombstone."""
        self.topics_in_flight: dict[ActiveTopic, FirstTopicUse | None] = {}
        """Uses of topics that are appended together with ``statuses_in_flight``; None is a tombstone."""

    @property
    def tasks_that_may_hold_checkpoint(self) -> frozenset[ConnectorTaskId]:
        """The tasks whose checkpoints this worker holds or may hold, because they run here or may still run
        (:attr:`LocalTask.may_hold_checkpoint`)."""
        return frozenset(task for task, run in self.local_tasks.items() if run.may_hold_checkpoint)

    @property
    def are_statuses_written(self) -> bool:
        """Whether no status and no use of a topic waits to be written."""
        return not (self.has_queued_lines or self.is_append_in_progress)

    @property
    def has_queued_lines(self) -> bool:
        """Whether a status or a use of a topic is queued for the next append to the status topic."""
        return bool(self.queued_statuses or self.queued_topics)

    @property
    def is_append_in_progress(self) -> bool:
        """Whether lines are being appended to the status topic, or wait for the retry of a failed append."""
        return bool(self.statuses_in_flight or self.topics_in_flight)
