"""The requests that a herder receives through the REST API, and its responses.

Configs and error texts about their values are left out of every ``repr``: they may contain passwords, and requests are
traced.
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
"""Identifies the request of a response; the shell counts the requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnWrite:
    """The id of a write that the leader submits itself, without a client's request."""

    number: int


WriteId: TypeAlias = RequestId | OwnWrite

# -- reads: any worker can serve them, also during a rebalance --------------------------------------------------------


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
    """The status of a connector and its tasks; answered with :class:`ConnectorStatus`."""

    connector: ConnectorName


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTaskStatus:
    """The status of one task; answered with :class:`TaskStatus`."""

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
    """Create a connector or, with ``replace``, create it or replace its config. Answered with
    :class:`ConnectorInfo`."""

    connector: ConnectorName
    config: Mapping[str, str] = field(repr=False)
    replace: bool
    initial_state: TargetState | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteConnector:
    """Delete a connector. Answered with :class:`Done`."""

    connector: ConnectorName


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTargetState:
    """Pause, resume or stop a connector. Answered with :class:`Done`."""

    connector: ConnectorName
    target_state: TargetState


@dataclass(frozen=True, slots=True, kw_only=True)
class PutTaskConfigs:
    """A connector's owner has split it into new task configs (the internal endpoint). Answered with :class:`Done`."""

    connector: ConnectorName
    configs: Sequence[Mapping[str, str]] = field(repr=False)
    signature: Signature | None = None
    """The signature of the request (KIP-507); the herder's own requests have none."""


Write: TypeAlias = PutConnector | DeleteConnector | SetTargetState | PutTaskConfigs

# -- the group: the leader has its state ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeWorkerGroup:
    """The leader's state of the group; answered at once, with :class:`GroupView` or with the leader's URL."""


# -- orders to one worker: another worker responds with the URL of that worker, or of the leader ----------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainWorker:
    """Move the worker's jobs to other workers, while it still runs the jobs that wait to move; then it leaves the group
    permanently. Answered with :class:`Done`, at once."""

    worker: str
    """The worker's name, ``host:port`` or instance id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UncordonWorker:
    """Cancel a drain: the worker stays in the group and can be assigned jobs again. Answered with :class:`Done`, at
    once."""

    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartWorker:
    """Stop the worker's tasks and relaunch its process, which keeps its membership. Answered with :class:`Done`, at
    once."""

    worker: str
    obstacle: str | None = field(default=None, repr=False)
    """Why the worker that received the request could not start again with its current settings, or None. With an
    obstacle the worker is not restarted."""


WorkerOrder: TypeAlias = DrainWorker | UncordonWorker | RestartWorker
Request: TypeAlias = Read | Write | DescribeWorkerGroup | WorkerOrder

# -- responses --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorInfo:
    connector: ConnectorName
    config: Mapping[str, str] = field(repr=False)
    """Exactly the config that the client sent: nothing added, hidden or resolved."""
    tasks: tuple[ConnectorTaskId, ...]
    created: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorStatus:
    connector: ConnectorName
    status: Status
    tasks: tuple[tuple[ConnectorTaskId, Status], ...]
    """The tasks that have a status, by number."""
    config: Mapping[str, str] = field(repr=False)
    """The connector's config, from which the REST API derives the connector's type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorList:
    connectors: tuple[tuple[ConnectorInfo, ConnectorStatus | None], ...]
    """The connectors by name; right after its creation a connector has no status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConfigs:
    tasks: tuple[tuple[ConnectorTaskId, Mapping[str, str]], ...] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatus:
    task: ConnectorTaskId
    status: Status


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskView:
    """The state of one task on its worker."""

    task: ConnectorTaskId
    phase: str
    """``starting``, ``started`` (no batch reported yet), ``running``, ``stopping``, ``stopped``, ``failed``, ``taken``
    (another worker took the checkpoint), ``closed`` (its checkpoint generation is closed)."""
    batch_id: int | None
    """The last batch that was reported as committed; None before the first."""
    input_rows: int
    """Rows read by the batches that were reported since the task was assigned to this worker."""
    bad_records: int
    """Records skipped as bad since the task was last started."""
    starts: int
    """How often this worker has started the task since the task was assigned to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    worker_id: WorkerId
    name: str
    url: WorkerUrl
    state: MemberState
    draining: bool
    drain_waits: str | None
    """Why the leader does not receive this worker's drain request; None when it does, or when no drain runs."""
    restarting: bool
    protocol: str | None
    """The group's protocol, as ``connect.protocol`` names it; None before the first round."""
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
    """One member: its metadata when it joined the last round, and the result of that round for it."""

    member_id: MemberId
    worker_id: WorkerId
    name: str
    url: WorkerUrl
    instance_id: InstanceId | None
    claims: Jobs | None
    draining: bool
    config_offset: ConfigOffset
    owned: Jobs
    """The jobs that the member runs after it has applied its assignment."""
    revoked: Jobs
    """The jobs that the round revoked from the member; a later round assigns them."""
    waits: str | None
    """Why the member's drain does not progress; None when it progresses, or when no drain runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferredJobs:
    """Jobs of a member that has left, which wait for it to rejoin."""

    jobs: Jobs
    left_ms: int
    worker: str | None
    """The name of the worker that ran the jobs; None when this leader does not have it."""
    instance_id: InstanceId | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """The leader's state of the group: all inputs from which it would compute the next round."""

    generation: Generation
    """The generation of the last round."""
    protocol: str
    leader: MemberId
    config_offset: ConfigOffset
    configured: Jobs
    members: tuple[MemberInfo, ...]
    """The members by name."""
    deferred: tuple[DeferredJobs, ...]
    unassigned: tuple[tuple[Job, str], ...]
    """Each job that no worker runs, with the reason as text."""
    policy: Policy
    next_round_ms: int | None
    """The time in ms until the members rejoin for deferred jobs or for jobs that still have to move; None when there
    are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The write was appended and this worker has read it back; or the order was accepted and will be carried out."""


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
    """A config could not be validated: a server that it names could not be reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRefused:
    problem: Problem
    message: str = field(repr=False)
    leader_url: WorkerUrl | None = None
    """With NOT_LEADER and NOT_THIS_WORKER: the URL of the worker that can serve the request."""


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
