"""The work of a worker: the state of each of its tasks and connectors, and the statuses that are not written yet.

A task or a connector has at most one chore in progress; its state contains which. `tasks` changes the states of tasks,
`connectors` the states of connectors, `closed` finishes closed checkpoint generations, `statuses` writes the statuses.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from coterie.herder.seams import TaskStart
from coterie.herder.status_records import Status
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId, Job, Jobs
from coterie.nouns.states import State

# -- a task -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NotStarted:
    """The task does not run here, and may start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The task could not start, or its query failed: the worker does not retry this start."""

    start: TaskStart
    trace: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """Another worker took the task's checkpoint over, or the task was halted. It may start here again after the
    coordinator has answered a heartbeat that was sent later than ``at_ms``."""

    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """The checkpoint generation that this start's config names is closed: the task waits for another config."""

    start: TaskStart


@dataclass(frozen=True, slots=True, kw_only=True)
class Dead:
    """The query failed; this worker still holds the checkpoint."""

    start: TaskStart
    has_progressed: bool
    deaths: int
    """How often the query has failed since it last progressed."""
    trace: str = field(repr=False)
    restarts_at_ms: int | None
    """The earliest time of the query's restart; None when it is not restarted: the task is then stopped and FAILED."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Starting:
    start: TaskStart
    has_progressed: bool = False
    deaths: int = 0
    end: Dead | Taken | Closed | None = None
    """How the task ended before its start returned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarting:
    """The query is being restarted on the checkpoint that the task holds."""

    start: TaskStart
    has_progressed: bool
    deaths: int
    end: Dead | Taken | Closed | None = None
    """How the task ended before its restart returned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    start: TaskStart
    has_progressed: bool
    """Whether a batch was reported since the start: only then the task's status is RUNNING."""
    deaths: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    start: TaskStart
    then: Failed | Taken | None = None
    """The task's state after it has stopped; None when it may start again."""


RunState: TypeAlias = NotStarted | Starting | Running | Dead | Restarting | Stopping | Failed | Taken | Closed


class Run:
    """A task that is assigned to this worker, or still runs here."""

    def __init__(self) -> None:
        self.state: RunState = NotStarted()
        self.batch_id: int | None = None
        """The last batch that was reported as committed."""
        self.input_rows = 0
        self.bad_records = 0
        self.starts = 0
        self.outage: str | None = None
        """Why the runtime is retrying the query; None when all servers that the task needs can be reached."""

    @property
    def is_active(self) -> bool:
        """Whether the task's query runs here, or may run."""
        return not isinstance(self.state, NotStarted | Failed | Taken | Closed)


# -- a connector ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsplit:
    """The connector has to be split into task configs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Splitting:
    written_at: int | None
    """Identifies the config that is split (:attr:`Connector.written_at`); None when the result is no longer needed."""
    keeps_split: bool = False
    """A task was FAILED: the tasks keep their source parts."""
    attempts: int = 0
    """The number of failed attempts to split this config after which another attempt may succeed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitsToSplit:
    """The config could not be split, and another attempt may succeed: the worker tries again at ``until_ms``."""

    written_at: int
    trace: str = field(repr=False)
    attempts: int
    until_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsplittable:
    """The config could not be split: the worker does not try again."""

    written_at: int
    trace: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpublished:
    """The leader has to write the task configs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitsToPublish:
    """The leader refused the task configs, or could not be reached: they are sent again at ``until_ms``."""

    until_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The last commit that was read contains the task configs, or the leader has accepted them since then."""


Publication: TypeAlias = Unpublished | WaitsToPublish | Published


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitUp:
    """The connector's config is split into task configs."""

    written_at: int
    configs: tuple[Mapping[str, str], ...] = field(repr=False)
    keeps_split: bool = False
    """A task was FAILED when the connector was split: the tasks have kept their source parts, and the connector is
    split again when no task is FAILED any more."""
    publication: Publication = Unpublished()
    committed_at: int | None = None
    """The last commit with which ``configs`` was compared (:attr:`Connector.committed_at`)."""
    attempts: int = 0
    """How often the leader did not accept the task configs."""
    first_tried_ms: int | None = None
    """When the task configs were first sent to a leader on another worker."""


SplitState: TypeAlias = Unsplit | Splitting | WaitsToSplit | Unsplittable | SplitUp


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishRequest:
    """Task configs are being sent to the leader."""

    after: int | None
    """Offset of the last commit that was read when the task configs were sent; None: no commit."""


class Split:
    """A connector that is assigned to this worker."""

    def __init__(self) -> None:
        self.state: SplitState = Unsplit()
        self.publishing: PublishRequest | None = None
        """Separate from ``state``: a new split can replace a split whose task configs are being sent."""

    @property
    def is_at_work(self) -> bool:
        """Whether the task configs exist, or this worker is splitting the connector or will try again."""
        return not isinstance(self.state, Unsplittable)


# -- all work of a worker ---------------------------------------------------------------------------------------------


class Work:
    def __init__(self, assigned: Jobs) -> None:
        # `tasks`
        self.runs: dict[ConnectorTaskId, Run] = {task: Run() for task in assigned.tasks}
        # `connectors`
        self.splits: dict[ConnectorName, Split] = {}
        # `closed`
        self.finishing: set[ConnectorName] = set()
        """Connectors whose closed checkpoint generation a chore of this worker is finishing."""
        # `statuses`
        self.shown: dict[Job, tuple[State, str | None] | None] = {}
        """The last status that this worker reported of each of its jobs; None when it reported a tombstone."""
        self.unwritten: dict[Job, Status | None] = {}
        self.writing: dict[Job, Status | None] = {}

    @property
    def active_tasks(self) -> frozenset[ConnectorTaskId]:
        return frozenset(task for task, run in self.runs.items() if run.is_active)

    @property
    def is_all_written(self) -> bool:
        """No status waits to be written."""
        return not (self.unwritten or self.writing)
