"""What users ask of a herder through REST, and what it answers.

Configs are left out of every ``repr``, and so is what is said of their values: they may hold passwords, and requests
are traced.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum, auto
from typing import NewType, TypeAlias

from coterie.assignors.members import Policy
from coterie.herder.session_keys import Signature
from coterie.herder.status_records import Status
from coterie.nouns.ids import ConfigOffset, Generation, InstanceId, MemberId, WorkerId, WorkerUrl
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId, Job, Jobs
from coterie.nouns.membership import MemberState
from coterie.nouns.states import TargetState

RequestId = NewType("RequestId", int)
"""Which request an answer belongs to; the shell counts them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnWrite:
    """A write that a leader asks of itself."""

    number: int


WriteId: TypeAlias = RequestId | OwnWrite

# -- reads: any worker answers them, also while the group rebalances --------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ListConnectors:
    """All connectors; answered with :class:`ConnectorList`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConnector:
    """One connector; answered with :class:`ConnectorInfo`."""

    connector: ConnectorName


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTasks:
    """The configs of a connector's tasks; answered with :class:`TaskConfigs`."""

    connector: ConnectorName


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeStatus:
    """What is true of a connector and its tasks; answered with :class:`ConnectorStatus`."""

    connector: ConnectorName


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTaskStatus:
    """What is true of one task; answered with :class:`TaskStatus`."""

    task: ConnectorTaskId


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeWorker:
    """This worker's own view; answered with :class:`WorkerView`, at once."""


Read: TypeAlias = (
    ListConnectors | DescribeConnector | DescribeTasks | DescribeStatus | DescribeTaskStatus | DescribeWorker
)

# -- writes: they wait for the group to settle ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PutConnector:
    """Create a connector, or, when ``replace``, give it another config. Answered with :class:`ConnectorInfo`."""

    connector: ConnectorName
    config: Mapping[str, str] = field(repr=False)
    replace: bool
    initial_state: TargetState | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteConnector:
    """Answered with :class:`Done`."""

    connector: ConnectorName


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTargetState:
    """Pause, resume or stop. Answered with :class:`Done`."""

    connector: ConnectorName
    target_state: TargetState


@dataclass(frozen=True, slots=True, kw_only=True)
class PutTaskConfigs:
    """A connector's owner has split it anew (the internal endpoint). Answered with :class:`Done`."""

    connector: ConnectorName
    configs: Sequence[Mapping[str, str]] = field(repr=False)
    signature: Signature | None = None
    """How the request came signed (KIP-507); a herder asks itself without."""


Write: TypeAlias = PutConnector | DeleteConnector | SetTargetState | PutTaskConfigs

# -- the group: its leader knows it ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeWorkerGroup:
    """What the leader knows of its group; answered with :class:`GroupView`, at once, or with who leads."""


# -- orders to one worker: whoever it is not says who it is, or who leads ----------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainWorker:
    """Its jobs move away while it still runs them; then it leaves for good. Answered with :class:`Done`, at once."""

    worker: str
    """Its name, ``host:port`` or instance id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UncordonWorker:
    """Call a drain back: the worker stays, and takes work again. Answered with :class:`Done`, at once."""

    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartWorker:
    """Stop its tasks and begin its process anew, in the same place. Answered with :class:`Done`, at once."""

    worker: str
    obstacle: str | None = field(default=None, repr=False)
    """Why the asked worker could not begin anew, as far as that can be seen now: then it goes on as it is."""


WorkerOrder: TypeAlias = DrainWorker | UncordonWorker | RestartWorker
Request: TypeAlias = Read | Write | DescribeWorkerGroup | WorkerOrder

# -- answers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorInfo:
    connector: ConnectorName
    config: Mapping[str, str] = field(repr=False)
    """Exactly what was put: nothing added, hidden or resolved."""
    tasks: tuple[ConnectorTaskId, ...]
    created: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorStatus:
    connector: ConnectorName
    status: Status
    tasks: tuple[tuple[ConnectorTaskId, Status], ...]
    """Those that have a status, by number."""
    config: Mapping[str, str] = field(repr=False)
    """Of the connector; a status is shown with the connector's type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorList:
    connectors: tuple[tuple[ConnectorInfo, ConnectorStatus | None], ...]
    """By name; without a status right after the creation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConfigs:
    tasks: tuple[tuple[ConnectorTaskId, Mapping[str, str]], ...] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatus:
    task: ConnectorTaskId
    status: Status


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskView:
    """One task as its worker sees it."""

    task: ConnectorTaskId
    phase: str
    """``starting``, ``started`` (no batch seen yet), ``running``, ``stopping``, ``stopped``, ``failed``, ``taken``."""
    batch_id: int | None
    """The last batch that was seen committed."""
    input_rows: int
    """Rows read by the batches seen since this worker got the task."""
    bad_records: int
    """Records left out as bad since the task was last started."""
    starts: int
    """How often this worker has started it since it got it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    worker_id: WorkerId
    name: str
    url: WorkerUrl
    state: MemberState
    draining: bool
    drain_waits: str | None
    """Why its leader does not hear of its drain; None when it does, or there is none."""
    restarting: bool
    protocol: str | None
    """What the group votes for, as ``connect.protocol`` names it; None before the first round."""
    member_id: MemberId
    generation: Generation
    settled: bool
    """False from the moment this worker joins until it has its assignment."""
    leader: MemberId
    leader_url: WorkerUrl
    config_offset: ConfigOffset
    assigned: Jobs
    tasks: tuple[TaskView, ...]
    deferred_until_ms: int | None
    """End of the scheduled rebalance delay on this worker's clock, when one runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberInfo:
    """One member, as it joined the last round and as that round has left it."""

    member_id: MemberId
    worker_id: WorkerId
    name: str
    url: WorkerUrl
    instance_id: InstanceId | None
    claims: Jobs | None
    draining: bool
    config_offset: ConfigOffset
    owned: Jobs
    """What it runs when it has done as it was told."""
    revoked: Jobs
    """What it was told to give back, and will be somebody's in a later round."""
    waits: str | None
    """Why its drain does not go on; None when it does, or there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferredJobs:
    """Jobs of a member that is gone, and may be back for them."""

    jobs: Jobs
    left_ms: int
    worker: str | None
    """The name of who had them; None when this leader does not know."""
    instance_id: InstanceId | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """All that the leader knows, and all that it would decide the next round by."""

    generation: Generation
    """Of the round that is told of."""
    protocol: str
    leader: MemberId
    config_offset: ConfigOffset
    configured: Jobs
    members: tuple[MemberInfo, ...]
    """By name."""
    deferred: tuple[DeferredJobs, ...]
    unassigned: tuple[tuple[Job, str], ...]
    """Who has nobody, and why, in words."""
    policy: Policy
    next_round_ms: int | None
    """When everybody is to join again for what is deferred or has still to move; None when nothing is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """It is written, and this worker has read it back; or it is ordered, and will be done."""


class Problem(StrEnum):
    """Why a request is refused; `rest.problems` has the status code of each."""

    NOT_FOUND = auto()
    ALREADY_EXISTS = auto()
    BAD_REQUEST = auto()
    FORBIDDEN = auto()
    NOT_LEADER = auto()
    NOT_THIS_WORKER = auto()
    NOT_POSSIBLE = auto()
    NO_LEADER = auto()
    STARTING = auto()
    SHUTTING_DOWN = auto()
    BUSY = auto()
    TIMED_OUT = auto()
    LOG_FAILED = auto()
    NOT_VALIDATED = auto()
    """A config could not be judged: what it names could not be reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRefused:
    problem: Problem
    message: str = field(repr=False)
    leader_url: WorkerUrl | None = None
    """With NOT_LEADER and NOT_THIS_WORKER: who can do it."""


def not_found(message: str) -> RequestRefused:
    return RequestRefused(problem=Problem.NOT_FOUND, message=message)


Answer: TypeAlias = (
    ConnectorInfo
    | ConnectorStatus
    | ConnectorList
    | TaskConfigs
    | TaskStatus
    | WorkerView
    | GroupView
    | Done
    | RequestRefused
)
