"""The work of a worker: how far each of its tasks and connectors has come, and what it has yet to write of them.

A task and a connector have at most one chore under way; their states say which. `tasks` moves the tasks' states,
`connectors` the connectors', `closed` finishes closed generations, `statuses` writes what is shown of both.
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
    """Nothing of the task runs here; it may start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The task could not start, or its query died: this start is not tried again."""

    start: TaskStart
    trace: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """Another worker took the task's checkpoint, or the task was halted: it may start here again when a heartbeat is
    answered that was sent after that."""

    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """The generation of checkpoints that this start's config names is closed: the task waits for another config."""

    start: TaskStart


@dataclass(frozen=True, slots=True, kw_only=True)
class Dead:
    """The query died; the checkpoint is held."""

    start: TaskStart
    has_progressed: bool
    deaths: int
    """How often the query died since it last progressed."""
    trace: str = field(repr=False)
    restarts_at_ms: int | None
    """When the query is started again at the earliest; None when it is not: the task is stopped, and FAILED."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Starting:
    start: TaskStart
    has_progressed: bool = False
    deaths: int = 0
    end: Dead | Taken | Closed | None = None
    """How the task ended before its start returned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarting:
    """The query is started again on the checkpoint that the task holds."""

    start: TaskStart
    has_progressed: bool
    deaths: int
    end: Dead | Taken | Closed | None = None
    """How the task ended before its restart returned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    start: TaskStart
    has_progressed: bool
    """A batch was seen since the start: only then the task is shown as RUNNING."""
    deaths: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    start: TaskStart
    then: Failed | Taken | None = None
    """What the task is when it has stopped; None when it may start again."""


RunState: TypeAlias = NotStarted | Starting | Running | Dead | Restarting | Stopping | Failed | Taken | Closed


class Run:
    """A task that this worker has, or still runs."""

    def __init__(self) -> None:
        self.state: RunState = NotStarted()
        self.batch_id: int | None = None
        """The last batch that was seen committed."""
        self.input_rows = 0
        self.bad_records = 0
        self.starts = 0
        self.outage: str | None = None
        """Why the runtime starts the query again by itself; None when no server that the task needs is away."""

    @property
    def is_active(self) -> bool:
        """Something of the task runs here, or may."""
        return not isinstance(self.state, NotStarted | Failed | Taken | Closed)


# -- a connector ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsplit:
    """The connector has to be split before its tasks' configs are known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Splitting:
    written_at: int | None
    """Which config is split (:attr:`Connector.written_at`); None when the result is not wanted any more."""
    keeps_split: bool = False
    """A task was FAILED: the tasks keep their parts."""
    attempts: int = 0
    """How often this config could not be split, and another attempt may succeed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitsToSplit:
    """The config could not be split, and another attempt may succeed: it is made at ``until_ms``."""

    written_at: int
    trace: str = field(repr=False)
    attempts: int
    until_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsplittable:
    """The config could not be split: it is not tried again."""

    written_at: int
    trace: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpublished:
    """The leader has to write the tasks' configs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitsToPublish:
    """The leader refused them, or could not be reached: they are sent to it again at ``until_ms``."""

    until_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The last known commit has them, or the leader took them after it."""


Publication: TypeAlias = Unpublished | WaitsToPublish | Published


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitUp:
    """The connector's config is split into its tasks' configs."""

    written_at: int
    configs: tuple[Mapping[str, str], ...] = field(repr=False)
    keeps_split: bool = False
    """A task was FAILED when the connector was split: the tasks have kept their parts, and the connector is split again
    once no task is FAILED."""
    publication: Publication = Unpublished()
    committed_at: int | None = None
    """The last commit of its tasks' configs that they were compared with (:attr:`Connector.committed_at`)."""
    attempts: int = 0
    """How often the leader did not take them."""
    first_tried_ms: int | None = None
    """When they first went to a leader elsewhere."""


SplitState: TypeAlias = Unsplit | Splitting | WaitsToSplit | Unsplittable | SplitUp


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishRequest:
    """Task configs are on their way to the leader."""

    after: int | None
    """The last commit that was known when they were sent."""


class Split:
    """A connector instance that this worker has."""

    def __init__(self) -> None:
        self.state: SplitState = Unsplit()
        self.publishing: PublishRequest | None = None
        """Apart from ``state``: a split can be superseded while its task configs are on their way."""

    @property
    def is_at_work(self) -> bool:
        """Its tasks have configs, or will have: the worker makes them, or tries to again."""
        return not isinstance(self.state, Unsplittable)


# -- all of it --------------------------------------------------------------------------------------------------------


class Work:
    def __init__(self, assigned: Jobs) -> None:
        # `tasks`
        self.runs: dict[ConnectorTaskId, Run] = {task: Run() for task in assigned.tasks}
        # `connectors`
        self.splits: dict[ConnectorName, Split] = {}
        # `closed`
        self.finishing: set[ConnectorName] = set()
        """Connectors whose closed generation a chore of this worker finishes."""
        # `statuses`
        self.shown: dict[Job, tuple[State, str | None] | None] = {}
        """The last status of each job that this worker has; None when its tombstone was written."""
        self.unwritten: dict[Job, Status | None] = {}
        self.writing: dict[Job, Status | None] = {}

    @property
    def active_tasks(self) -> frozenset[ConnectorTaskId]:
        return frozenset(task for task, run in self.runs.items() if run.is_active)

    @property
    def is_all_written(self) -> bool:
        """No status waits to be written."""
        return not (self.unwritten or self.writing)
