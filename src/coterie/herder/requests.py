"""The requests that a herder receives through the REST API, and its responses.

Configs and error texts about their values are left out of every ``repr``: they may contain passwords, and requests are
traced.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum, auto
from typing import NewType, TypeAlias

from coterie.assignors.members import RebalancePolicy
from coterie.herder.session_keys import Signature
from coterie.herder.status_records import Status
from coterie.nouns.ids import ConfigOffset, Generation, InstanceId, MemberId, WorkerId, WorkerUrl
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId, Job, Jobs
from coterie.nouns.member_state import MemberState
from coterie.nouns.states import TargetState

RequestId = NewType("RequestId", int)
"""Identifies a request, and its response. The shell counts the requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderWriteId:
    """The id of a write that the leader has submitted itself, without a client's request."""

    number: int
    """Counts from 1."""


WriteId: TypeAlias = RequestId | LeaderWriteId

# -- reads: any worker can serve them, also during a rebalance --------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ListConnectors:
    """Ask for all connectors; answered with :class:`ConnectorList`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConnector:
    """Ask for one connector; answered with :class:`ConnectorInfo`."""

    connector: ConnectorName


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTasks:
    """Ask for the configs of a connector's tasks; answered with :class:`TaskConfigs`."""

    connector: ConnectorName


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeStatus:
    """Ask for the statuses of a connector and of its tasks; answered with :class:`ConnectorStatus`."""

    connector: ConnectorName


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTaskStatus:
    """Ask for the status of one task; answered with :class:`TaskStatus`."""

    task: ConnectorTaskId


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeWorker:
    """Ask for the worker's own state; answered with :class:`WorkerView`, without waiting for the config log."""


Read: TypeAlias = (
    ListConnectors | DescribeConnector | DescribeTasks | DescribeStatus | DescribeTaskStatus | DescribeWorker
)

# -- writes: they wait for the group to settle ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PutConnector:
    """Create a connector, or replace its config. Answered with :class:`ConnectorInfo`."""

    connector: ConnectorName
    config: Mapping[str, str] = field(repr=False)
    replace: bool
    """Whether the config of an existing connector is replaced. Otherwise the request is refused if the connector
    exists."""
    initial_state: TargetState | None = None
    """The target state to write with the config (KIP-980); None: no target state is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteConnector:
    """Delete a connector. Answered with :class:`Done`."""

    connector: ConnectorName


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTargetState:
    """Pause, stop or resume a connector. Answered with :class:`Done`."""

    connector: ConnectorName
    target_state: TargetState


@dataclass(frozen=True, slots=True, kw_only=True)
class PutTaskConfigs:
    """Write the task configs into which a connector's owner has split it (Connect's internal endpoint). Answered with
    :class:`Done`."""

    connector: ConnectorName
    configs: Sequence[Mapping[str, str]] = field(repr=False)
    signature: Signature | None = None
    """The signature of the request (KIP-507); None if the request contains none, and for the leader's own writes."""


Write: TypeAlias = PutConnector | DeleteConnector | SetTargetState | PutTaskConfigs

# -- the group: the leader has its state ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeWorkerGroup:
    """Ask for the leader's state of the group; answered at once, with :class:`GroupView`, or with a refusal that
    contains the leader's URL."""


# -- orders to one worker: another worker responds with the URL of that worker, or of the leader ----------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainWorker:
    """Move the worker's jobs to other workers; jobs that wait to move still run on the worker. When it has no job left,
    it leaves the group permanently. Answered with :class:`Done` when the drain has begun."""

    worker: str
    """The worker's name, ``host:port`` or instance id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UncordonWorker:
    """Cancel a drain: the worker stays in the group and can be assigned jobs again. Answered with :class:`Done`, at
    once."""

    worker: str
    """The worker's name, ``host:port`` or instance id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartWorker:
    """Stop the worker's tasks and relaunch its process, which keeps its membership. Answered with :class:`Done` when
    the relaunch has begun."""

    worker: str
    """The worker's name, ``host:port`` or instance id."""
    settings_error: str | None = field(default=None, repr=False)
    """Why the worker that received the request could not start again with its present settings; None when it could.
    With an error the worker is not restarted."""


WorkerOrder: TypeAlias = DrainWorker | UncordonWorker | RestartWorker
Request: TypeAlias = Read | Write | DescribeWorkerGroup | WorkerOrder

# -- responses --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorInfo:
    """A connector's config and its committed tasks."""

    connector: ConnectorName
    config: Mapping[str, str] = field(repr=False)
    """Exactly the config that the client sent: no value is added, hidden or resolved."""
    tasks: tuple[ConnectorTaskId, ...]
    """The committed tasks, by number."""
    created: bool = False
    """Whether the request has created the connector."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorStatus:
    """The statuses of a connector and of its tasks."""

    connector: ConnectorName
    status: Status
    tasks: tuple[tuple[ConnectorTaskId, Status], ...]
    """The committed tasks that have a status, by number."""
    config: Mapping[str, str] = field(repr=False)
    """The connector's config, from which the REST API derives the connector's type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorList:
    """All connectors."""

    connectors: tuple[tuple[ConnectorInfo, ConnectorStatus | None], ...]
    """The connectors by name, each with its status; None while a connector has no status yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConfigs:
    """The configs of a connector's committed tasks, by number."""

    tasks: tuple[tuple[ConnectorTaskId, Mapping[str, str]], ...] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatus:
    """The status of one task."""

    task: ConnectorTaskId
    status: Status


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskView:
    """The state of one task on the worker that runs it."""

    task: ConnectorTaskId
    phase: str
    """``starting``, ``started`` (no batch reported yet), ``running``, ``stopping``, ``stopped``, ``failed``, ``taken``
    (another worker took the checkpoint over, or the task was halted because the event loop was blocked), ``closed``
    (its checkpoint generation is closed)."""
    batch_id: int | None
    """The last batch that was reported as committed; None before the first."""
    input_rows: int
    """Rows read by the batches that were reported since the task was assigned to this worker."""
    bad_records: int
    """Records that the task has skipped as bad since it was last started."""
    starts: int
    """How often this worker has started the task since it was assigned to it, without restarts of a failed query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """The state of a worker, as the worker itself reports it."""

    worker_id: WorkerId
    name: str
    url: WorkerUrl
    state: MemberState
    draining: bool
    """Whether the worker is being drained."""
    drain_wait_reason: str | None
    """Why the leader does not receive this worker's drain request; None when it does, or when the worker is not being
    drained."""
    restarting: bool
    """Whether the worker is relaunching."""
    protocol: str | None
    """The group's protocol, as a value of ``connect.protocol``; None before the first round."""
    member_id: MemberId
    generation: Generation
    """The generation of the last assignment."""
    settled: bool
    """Whether the last round has ended with an assignment. False while a round is running."""
    leader: MemberId
    """The member id of the group's leader; empty when it is not known."""
    leader_url: WorkerUrl
    config_offset: ConfigOffset
    """How far this worker has read the config log."""
    assigned: Jobs
    """The jobs assigned to this worker."""
    tasks: tuple[TaskView, ...]
    """The tasks that are assigned to this worker or still run here, by id."""
    deferred_until_ms: int | None
    """End of the scheduled rebalance delay on this worker's monotonic clock; None when no delay runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberInfo:
    """One member: the metadata that it sent when it joined the last round, and the result of that round for it."""

    member_id: MemberId
    worker_id: WorkerId
    name: str
    """``worker.name``, else ``host:port``."""
    url: WorkerUrl
    instance_id: InstanceId | None
    claims: Jobs | None
    """The only jobs that the member may run; None: any job (KIP-987)."""
    draining: bool
    """Whether the member is being drained."""
    config_offset: ConfigOffset
    """How far the member had read the config log."""
    owned: Jobs
    """The jobs that the member owns when it has applied the round."""
    revoked: Jobs
    """The configured jobs that the round has revoked from the member; a later round assigns them."""
    drain_wait_reason: str | None
    """Why the member's drain does not progress in this round; None when it progresses, when the member owns no job, or
    when it is not being drained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferredJobs:
    """Jobs of a member that has left the group: they wait for the member to rejoin."""

    jobs: Jobs
    left_ms: int
    """The time until the jobs are assigned to other workers, from the time of the view; 0 when it has passed."""
    worker: str | None
    """The name of the worker that ran the jobs; None when this leader has no name for it."""
    instance_id: InstanceId | None
    """The instance id of that worker, if it is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """The group, as its leader has it: all inputs from which the leader would compute the next round."""

    generation: Generation
    """The generation of the last round that this leader has computed."""
    protocol: str
    """The group's protocol: ``connect`` for a connect group, otherwise a value of ``connect.protocol``."""
    assignor: str | None
    """The name of the assignor that a connect group uses; None for a classic group."""
    leader: MemberId
    config_offset: ConfigOffset
    """The highest config offset that a member has reported."""
    configured: Jobs
    """All jobs that can be assigned."""
    members: tuple[MemberInfo, ...]
    """The members, sorted by name."""
    deferred: tuple[DeferredJobs, ...]
    """The jobs that wait for members that have left."""
    unassigned: tuple[tuple[Job, str], ...]
    """Each job that the last round assigned to no worker and that is not deferred, with the reason as text."""
    policy: RebalancePolicy
    next_round_ms: int | None
    """The time until the next round that a timer of the leader starts: when the scheduled rebalance delay ends, or when
    postponed moves of jobs continue. None when no such timer is set; a member that releases jobs may still start a
    round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Success without content. A write was appended, and this worker has read it back; or this worker has accepted an
    order: a drain or a restart has begun, an uncordon has taken effect."""


class Problem(StrEnum):
    """Why a request is refused; `rest.problems` has the HTTP status of each."""

    NOT_FOUND = auto()
    """The connector, task, status or worker does not exist."""
    ALREADY_EXISTS = auto()
    """The connector to create exists already."""
    BAD_REQUEST = auto()
    """The request is not valid, for example its config; or several workers have the name that an order contains."""
    FORBIDDEN = auto()
    """The signature is not valid."""
    NOT_LEADER = auto()
    """Only the leader can serve the request; it is another worker."""
    NOT_THIS_WORKER = auto()
    """The order names another worker."""
    NOT_POSSIBLE = auto()
    """The state of the worker, of its settings or of its group does not allow the order."""
    NO_LEADER = auto()
    """The leader is not known now, or this worker is not a member; a later request may succeed."""
    STARTING = auto()
    """The worker is still starting."""
    SHUTTING_DOWN = auto()
    """The worker is leaving its group, or relaunching."""
    BUSY = auto()
    """The worker has too many events to process."""
    TIMED_OUT = auto()
    """The write was not complete in time. If its append had started, the write may still take effect."""
    LOG_FAILED = auto()
    """The config log could not be written."""
    NOT_VALIDATED = auto()
    """The config could not be validated, for example because a server that it names cannot be reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRefused:
    """A refused request. A write was not appended, except perhaps with TIMED_OUT, LOG_FAILED and SHUTTING_DOWN."""

    problem: Problem
    message: str = field(repr=False)
    """The reason, for the client."""
    redirect_url: WorkerUrl | None = None
    """With NOT_LEADER and NOT_THIS_WORKER: the URL of the worker that can serve the request."""


def not_found(message: str) -> RequestRefused:
    """The refusal NOT_FOUND with this message."""
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
"""The response to a request."""
