"""Requests for the present state of one worker and of its group, and their responses. They do not wait for the logs."""

from dataclasses import dataclass

from coterie.assignors.members import RebalancePolicy
from coterie.nouns.ids import ConfigOffset, GenerationId, InstanceId, MemberId, WorkerId, WorkerUrl
from coterie.nouns.jobs import ConnectorTaskId, Job, Jobs
from coterie.nouns.member_state import MemberState


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeWorker:
    """Ask for the worker's own state; answered with :class:`WorkerView`, without waiting for the config log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeWorkerGroup:
    """Ask for the state of the group; answered with :class:`GroupView`. In a classic group only the leader has it:
    every other worker refuses the request, with the leader's URL. In a connect group every worker requests it from the
    coordinator, and answers when the coordinator has responded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskView:
    """The state of one task on the worker that runs it. ``input_rows`` and ``starts`` count from the assignment of the
    task to this worker, ``bad_records`` from the last start of the task."""

    task: ConnectorTaskId
    phase: str
    """``starting`` (also while the next start is awaited after a failed one), ``started`` (the query was started, and
    no batch is reported yet), ``running`` (a batch was reported; both also while a failed query awaits its restart),
    ``stopping``, ``stopped`` (not started), ``failed``, ``taken`` (another worker took the checkpoint over, or the task
    was halted because the event loop or the herder was blocked), ``closed`` (its checkpoint generation is closed)."""
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
    """The answer to :class:`DescribeWorker`: the state of a worker, as the worker itself reports it. ``state`` is how
    far the worker is in a round or rebalance. ``rebalance_delay_ends_ms`` is a time of its monotonic clock."""

    worker_id: WorkerId
    name: str
    url: WorkerUrl
    state: MemberState
    """How far this worker is in the current round or rebalance; without one, STABLE for a member and UNJOINED for a
    worker that is no member."""
    draining: bool
    """Whether the worker is being drained."""
    drain_wait_reason: str | None
    """Why the leader does not receive this worker's drain request; None when it does, or when the worker is not being
    drained."""
    restarting: bool
    """Whether the worker is relaunching."""
    protocol: str | None
    """The group's protocol: ``connect`` for a connect group, otherwise a value of ``connect.protocol``; None before the
    first round."""
    member_id: MemberId
    generation: GenerationId
    """The generation of the last round, also of a failed one; in a connect group, the member epoch. -1 before the first
    assignment."""
    has_current_assignment: bool
    """Whether the last round has ended with an assignment; False while a round is running. In a connect group, whether
    this worker has an assignment."""
    leader: MemberId
    """The member id of the group's leader; empty when it is not known."""
    leader_url: WorkerUrl
    """The URL of the leader's REST API; empty when no leader is known."""
    config_offset: ConfigOffset
    """How far this worker has read the config log."""
    assigned: Jobs
    """The jobs assigned to this worker."""
    tasks: tuple[TaskView, ...]
    """The tasks that are assigned to this worker or still run here, by id."""
    rebalance_delay_ends_ms: int | None
    """When the scheduled rebalance delay that this worker received ends, in ms on its monotonic clock; None when no
    delay runs, and in a connect group."""
    completed_rebalances: int | None
    """The number of rebalances that have ended here with an assignment since this worker's process started. None in a
    connect group: it has no rounds."""
    lost_threads: int
    """Number of threads that hang in a plug-in."""
    no_new_jobs_reason: str | None
    """Why this worker starts no new jobs until it is restarted; None when it starts them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberInfo:
    """One member: the metadata that it sent when it joined the last round, and the result of that round for it
    (``owned``: its jobs when it has applied the round). In a connect group, the coordinator's description of the member
    (``owned``: its jobs now)."""

    member_id: MemberId
    worker_id: WorkerId
    name: str
    """``worker.name``, else ``host:port``."""
    url: WorkerUrl
    instance_id: InstanceId | None
    claims: Jobs | None
    """The only jobs that the member may run (KIP-987); None: the member may run all jobs that no other member
    claims."""
    draining: bool
    """Whether the member is being drained."""
    config_offset: ConfigOffset
    """How far the member had read the config log."""
    owned: Jobs
    """The jobs that the member owns when it has applied the round; in a connect group, the jobs that are assigned to it
    now."""
    revoked: Jobs
    """The configured jobs that the member must release; another member receives them afterwards."""
    drain_wait_reason: str | None
    """Why the member's drain does not progress in this round; None when it progresses, when the member owns no job, or
    when it is not being drained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferredJobs:
    """Jobs of a member that has left the group: they wait for the member to rejoin."""

    jobs: Jobs
    time_left_ms: int
    """The time until the jobs are assigned to other workers, from the time of the view; 0 when it has passed."""
    worker: str | None
    """The name of the worker that ran the jobs; None when it is not known."""
    instance_id: InstanceId | None
    """The instance id of that worker, if it is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """The answer to :class:`DescribeWorkerGroup`: the state of the group: in a classic group the last round that its
    leader has computed, with the jobs that are configured now; in a connect group the coordinator's description.
    ``config_offset`` is the highest that a member has reported; in a connect group, that of the leader's last report of
    the configured jobs."""

    generation: GenerationId
    """The generation of the last round that this leader has computed; in a connect group, the group epoch."""
    protocol: str
    """The group's protocol: ``connect`` for a connect group, otherwise a value of ``connect.protocol``."""
    assignor: str | None
    """The name of the assignor that a connect group uses; None for a classic group."""
    leader: MemberId
    """The member id of the leader."""
    config_offset: ConfigOffset
    """The highest config offset that a member has reported; in a connect group, that of the leader when it last
    reported the configured jobs."""
    configured: Jobs
    """All jobs that can be assigned."""
    members: tuple[MemberInfo, ...]
    """The members, sorted by name."""
    deferred: tuple[DeferredJobs, ...]
    """The jobs that wait for members that have left."""
    unassigned: tuple[tuple[Job, str], ...]
    """Each job that is assigned to no worker and is not deferred, with the reason as text."""
    policy: RebalancePolicy
    """The settings of this worker for assignments; in a connect group with the scheduled rebalance delay of the group,
    if it has its own."""
    next_round_in_ms: int | None
    """In a classic group the time until the next round that a timer of the leader starts: when the scheduled rebalance
    delay ends, or when postponed moves of jobs continue. None when no such timer is set; a member that releases jobs
    may still start a round. In a connect group the time until the first deferred jobs are assigned again; None when no
    jobs are deferred."""
