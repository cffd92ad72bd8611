"""The state of a herder, and the data of one step.

*Hard* state is read from the logs: the configs (`ConfigState`) and the statuses (`StatusState`). Only lines of the logs
change it: a herder emits an append as an effect, and applies the line when it reads the line back. All other state is
*soft*: it is lost at a restart, after which the worker owns no job. Only a relaunch keeps the membership
(`Handover`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TypeAlias

from coterie.assignors.members import RebalancePolicy
from coterie.config import defaults
from coterie.engine.lease import LeaseDurations
from coterie.engine.output import Output
from coterie.herder.config_records import LoggerLevelWritten
from coterie.herder.config_state import CONFIG_OFFSET_BEFORE_FIRST_LINE, ConfigState
from coterie.herder.leader_log_state import LeaderLogAccess
from coterie.herder.messages import Effect
from coterie.herder.requests.ids import RequestId, WriteId
from coterie.herder.requests.kinds import Answer
from coterie.herder.requests.orders import RestartConnectorTask, WorkerOrder
from coterie.herder.requests.questions import Question
from coterie.herder.requests.reads import Read
from coterie.herder.requests.views import DescribeWorkerGroup
from coterie.herder.requests.writes import Write, WriteAttempt
from coterie.herder.rounds.state import HerderClassicGroupState, LeaderState
from coterie.herder.seams import TaskSpec
from coterie.herder.session_keys import SessionKeyRotation, SessionKeySettings
from coterie.herder.status_records import StatusState
from coterie.herder.targets.state import HerderConnectGroupState
from coterie.herder.work import LocalJobsState, NotSplit
from coterie.herder.write_kinds import ConfigToValidate, WriteKind
from coterie.nouns.ids import ConfigOffset, Incarnation, InstanceId, LogPosition, MemberId, WorkerId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Jobs
from coterie.nouns.member_state import MemberState
from coterie.nouns.membership import (
    ClassicMembershipHandover,
    ConnectMembershipHandover,
    GroupProtocolName,
    Handover,
    LeaseRenewed,
    SetWorkerState,
)
from coterie.nouns.states import JobState, TargetState


@dataclass(frozen=True, slots=True, kw_only=True)
class HerderSettings:
    """This worker's identity, timeouts and policy."""

    worker_id: WorkerId
    url: WorkerUrl
    coterie_version: str
    """The version of the plug-ins that are a part of Coterie."""
    version_by_plugin_name: Mapping[str, str | None] = field(default_factory=dict)
    """The versions of other packages' plug-ins, by each name with which ``connector.class`` can name a plug-in; None
    when a package has no version."""
    name: str | None = None
    """``worker.name``: this worker's name in messages and in the REST API; None: its ``host:port`` is used."""
    instance_id: InstanceId | None = None
    """``group.instance.id``: makes this worker a static member; None: it is a dynamic member."""
    group_protocol: GroupProtocolName = GroupProtocolName.CLASSIC
    """``group.protocol``"""
    session_timeout_ms: int = defaults.SESSION_TIMEOUT_MS
    """``session.timeout.ms``. In a connect group the coordinator's value replaces it."""
    rebalance_timeout_ms: int = defaults.REBALANCE_TIMEOUT_MS
    """``rebalance.timeout.ms``. If the herder has not processed an event for so long, the worker stops all tasks and
    leaves the group."""
    sync_timeout_ms: int = defaults.WORKER_SYNC_TIMEOUT_MS
    """``worker.sync.timeout.ms``: how long a read request waits, from its arrival, until the config log is read to its
    end; and how long the leader of a classic group waits, from the request for the assignments, until it has read the
    config log as far as the members."""
    stop_grace_ms: int = defaults.TASK_SHUTDOWN_GRACEFUL_TIMEOUT_MS
    """``task.shutdown.graceful.timeout.ms``: how long a task may take to stop at the end of its batch, before it is
    interrupted."""
    rebalance_policy: RebalancePolicy = field(default_factory=RebalancePolicy)
    """The limits and delays of the assignments that this worker computes while it is the leader."""
    session_key_settings: SessionKeySettings = field(default_factory=SessionKeySettings)
    must_protocol_sign_requests: bool = False
    """Whether requests between workers are refused while the group uses a protocol without signatures: users have to
    log in at this worker (``rest.users.file``), and an unsigned request names no user."""
    rebalance_window_ms: int = defaults.CONFIG_REBALANCE_WINDOW_MS
    """``config.rebalance.window.ms``: in a classic group, for how long changes of the set of jobs are collected before
    they cause a round."""
    lost_threads_max: int = defaults.PLUGIN_LOST_THREADS_MAX
    """``plugin.lost.threads.max``: when more threads than this hang in plug-ins, the worker starts no new jobs."""
    request_timeout_ms: int = 90_000
    """The time limit, from its arrival, of a write, of a question to plug-ins, of a read of offsets and of a reset of
    active topics. A client's write or reset may state another one (:attr:`.WriteAttempt.time_left_ms`). A constant, as
    in Connect, not a setting."""
    topic_tracking_enabled: bool = True
    """``topic.tracking.enable``: whether this worker stores and returns the active topics of connectors."""
    topic_reset_allowed: bool = True
    """``topic.tracking.allow.reset``: whether a client may reset the active topics of a connector."""

    def plugin_version(self, class_name: str) -> str | None:
        """The version of the plug-in that ``class_name``, the value of ``connector.class``, names: Coterie's for a name
        that no other package has declared; None when the package of the plug-in has none."""
        return self.version_by_plugin_name.get(class_name, self.coterie_version)

    @property
    def display_name(self) -> str:
        """The worker's name in messages and in the REST API: ``worker.name``, else ``host:port``."""
        return self.name or self.worker_id

    def time_limit_ms(self, attempt: WriteAttempt | None) -> int:
        """The time limit, in ms from its arrival, of a write or of a reset of active topics. A client's write has an
        ``attempt``, also when another worker has forwarded it, and the limit is the time left of the attempt. A write
        that a worker makes for itself, such as the task configs of a connector, has none (None), and the limit is
        :attr:`request_timeout_ms`."""
        return self.request_timeout_ms if attempt is None else attempt.time_left_ms


# -- the phases of a write --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteAwaitingGroup:
    """First phase of a write. Every write waits here while this worker starts; a write that only the leader may perform
    also while no leader is known, for example while a round is running."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatingWrite:
    """The config is being validated, also against the tasks that may have checkpoints."""

    config_to_validate: ConfigToValidate
    """The config that is being validated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteQueued:
    """The write is in the queue: it waits for the writes before it. A write that only the leader may perform also waits
    until this worker, as the leader, may write."""

    validated_config: ConfigToValidate | None
    """The config that was validated; None for a write that needs no validation, and for a repeated write before its
    validation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingConfigLogEnd:
    """The write is at the head of the queue: a lookup of the log's end offset is in progress, or will be repeated."""

    validated_config: ConfigToValidate | None
    """The config that was validated; None for a write that needs no validation, and for a repeated write before its
    validation."""
    leader_log_opening_number: int | None
    """The number of the opening of the leader's log (:class:`.OpenLeaderLog`) with which this worker could write before
    the lookup. None for a write that any worker may append, and if this worker could not write as the leader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingToConfigLogEnd:
    """The write is checked and appended when this worker has read the log up to ``end_offset``."""

    validated_config: ConfigToValidate | None
    """The config that was validated; None for a write that needs no validation, and for a repeated write before its
    validation."""
    leader_log_opening_number: int | None
    """The number of the opening of the leader's log (:class:`.OpenLeaderLog`) with which this worker could write before
    the lookup. None for a write that any worker may append, and if this worker could not write as the leader."""
    end_offset: LogPosition
    """The end offset of the log that the lookup has found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendingWrite:
    """The write's lines are being appended to the log: the write can no longer be dropped."""

    replaced_config: Mapping[str, str] | None = field(repr=False)
    """The connector's config before the write; None when there is no such connector."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteAppended:
    """The lines are durable. The request is answered when this worker has read the log up to ``end_offset``."""

    replaced_config: Mapping[str, str] | None = field(repr=False)
    """The connector's config before the write; None when there was no such connector."""
    end_offset: LogPosition
    """The offset after the last appended line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingInitialOffsets:
    """The config is valid. Before the connector is created, the runtime creates its first checkpoint generation, at the
    offsets that the request contains."""

    validated_config: ConfigToValidate
    """The config that was validated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangingOffsets:
    """The runtime is changing the offsets of a stopped connector. Other writes no longer wait for the change, and a
    timeout of its request does not drop it."""

    incarnation: Incarnation
    """The connector's incarnation when the change began."""
    is_abort_ordered: bool = False
    """Whether the runtime was ordered to end the change, because the connector is no longer stopped, was deleted, or
    this worker has lost its membership."""


WritePhase: TypeAlias = (
    WriteAwaitingGroup
    | ValidatingWrite
    | SettingInitialOffsets
    | WriteQueued
    | FindingConfigLogEnd
    | ReadingToConfigLogEnd
    | AppendingWrite
    | WriteAppended
    | ChangingOffsets
)


class PendingWrite:
    """A write to the config log, or a change of a connector's offsets, that is not yet complete, refused or dropped.
    Its client may already have received the response that the request timed out (``has_timed_out``)."""

    def __init__(self, id_: WriteId, kind: WriteKind, attempt: WriteAttempt | None = None) -> None:
        self.id = id_
        self.kind = kind
        self.attempt = attempt
        """The attempt of a client's write; None for a write of a worker."""
        self.phase: WritePhase = WriteAwaitingGroup()
        self.has_timed_out = False
        """Whether the client has already received the response that its request timed out. True only if the write could
        no longer be dropped at that time. The write is then still completed, and later writes wait for it."""
        self.must_be_appended_alone = False
        """Whether the write's lines could not be appended together with those of other writes: one of these writes has
        lines that the log does not accept."""
        self.noted_phase: WritePhase | None = None
        """The phase at the end of the last step; None in the step in which the write arrives."""
        self.phase_began_at_ms = 0
        """When :attr:`noted_phase` began, on the monotonic clock."""

    @property
    def is_repeat(self) -> bool:
        """Whether an earlier attempt of the write may have taken effect."""
        return self.attempt is not None and self.attempt.is_repeat

    @property
    def has_begun_at_queue_head(self) -> bool:
        """Whether the write is at the head of the queue and has begun. One write at a time is under way, or several of
        different connectors, whose lines are appended together."""
        return isinstance(self.phase, FindingConfigLogEnd | ReadingToConfigLogEnd | AppendingWrite | WriteAppended)


class PendingRead:
    """A read, or an order about a task, that waits until this worker has read the config log to the end offset that the
    log had at the request."""

    def __init__(self, request: Read | RestartConnectorTask) -> None:
        self.request = request
        self.end_offset: LogPosition | None = None
        """The end offset that the log had at the request; None until it is found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingQuestion:
    """A question that the plug-ins have not answered yet."""

    question: Question
    asked_at_ms: int
    """When the runtime was asked, on the monotonic clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingOffsetRead:
    """A request for which the runtime is reading the offsets of a connector."""

    connector: ConnectorName
    began_at_ms: int
    """When the runtime was asked, on the monotonic clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingActiveTopicsReset:
    """A reset of a connector's active topics that is not yet answered."""

    connector: ConnectorName
    began_at_ms: int
    """When the tombstones were queued, on the monotonic clock."""
    unread_tombstone_topics: frozenset[str]
    """The topics whose tombstones this worker has not read."""


GroupRequest: TypeAlias = DescribeWorkerGroup | WorkerOrder | RestartConnectorTask
"""A request that needs the view of the group, unless it is for this worker."""


class PendingRequests:
    """The requests that are not yet answered, and the writes that are not yet complete."""

    def __init__(self) -> None:
        # `view_requests`
        self.awaiting_group_view: tuple[tuple[RequestId, GroupRequest], ...] = ()
        """Requests about workers that wait for the view of the group, in the order in which they arrived."""
        # `questions`
        self.questions: dict[RequestId, PendingQuestion] = {}
        # `offsets`
        self.offset_reads: dict[RequestId, PendingOffsetRead] = {}
        # `reads`
        self.reads: dict[RequestId, PendingRead] = {}
        # `active_topics`
        self.topic_resets: dict[RequestId, PendingActiveTopicsReset] = {}
        # `logger_levels`
        self.logger_level_appends: set[RequestId] = set()
        """The requests whose lines with a logger's level are being appended to the config log."""
        # `writes`
        self.writes: dict[WriteId, PendingWrite] = {}
        """Writes by id, in the order in which the requests arrived."""
        self.leader_write_count = 0
        """The number of writes that this worker has submitted itself as the leader, for their ids."""

    @property
    def are_all_answered(self) -> bool:
        """Whether no request waits for its response, and all writes are complete, refused or dropped."""
        return not (
            self.awaiting_group_view
            or self.questions
            or self.offset_reads
            or self.reads
            or self.topic_resets
            or self.logger_level_appends
            or self.writes
        )


# -- the lifecycle of this worker -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Working:
    """The worker takes part in its group, or is starting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaunching:
    """The first part of a relaunch: all tasks stop, and then the last requests are answered, while this worker stays a
    member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosingRuntime:
    """The second part of a relaunch: the runtime is being closed; then the process executes itself again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuttingDown:
    """All tasks stop; then the last requests are answered, this worker leaves its group, and the process ends with
    ``exit_code``, or executes itself again."""

    exit_code: int
    reason: str
    relaunches: bool = False
    """The process executes itself again when it has left the group."""
    is_permanent: bool = False
    """The worker was drained, so its group must not wait for its return, even if it is a static member. With
    ``relaunches`` it joins again as a new member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeavingGroup:
    """The member was ordered to leave its group; when it has left, the process ends with ``exit_code``, or executes
    itself again."""

    exit_code: int
    reason: str
    relaunches: bool = False
    """The process executes itself again."""


LifecyclePhase: TypeAlias = Working | Relaunching | ClosingRuntime | ShuttingDown | LeavingGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """This worker hands its jobs over to other workers and must not be assigned new jobs."""

    relaunches: bool
    """Whether the process executes itself again when the drain is complete; otherwise it ends."""


class RequestIntakeState(Enum):
    """Whether this worker accepts requests."""

    OPEN = auto()
    """This worker accepts requests, also while its tasks stop."""
    CLOSING = auto()
    """The REST API was ordered to accept no more requests. Requests that it has accepted already may still arrive."""
    CLOSED = auto()
    """No client's request arrives any more; a request of another part of this process is refused, unless it asks for
    this worker's description or for signatures."""


class Lifecycle:
    """How far this worker's process is from its start to its end: whether it may start jobs, drains, relaunches or
    shuts down."""

    def __init__(self) -> None:
        # `machine`
        self.is_runtime_open = False
        """Whether the runtime is open and both logs are read; before, no job starts."""
        self.is_config_log_read = False
        """Whether the config log is read to the end that it had when this worker started."""
        # `logger_levels`
        self.levels_to_set: tuple[LoggerLevelWritten, ...] = ()
        """The levels of loggers to set when the runtime is open, in the order in which they were written."""
        # `draining`
        self.drain: Drain | None = None
        """The drain that an operator has ordered; None if this worker does not drain."""
        # `lost_threads`
        self.lost_threads = 0
        """Number of threads that hang in a plug-in: their calls have exceeded their time limits."""
        self.no_new_jobs_reason: str | None = None
        """Why this worker starts no jobs that it has not started before; None when it starts all."""
        # `lifecycle`
        self.phase: LifecyclePhase = Working()
        self.intake = RequestIntakeState.OPEN
        """Whether this worker accepts requests. It is closed before this worker leaves its group or closes its runtime,
        and the requests that have arrived by then are answered first."""

    @property
    def is_draining(self) -> bool:
        """Whether this worker hands its jobs over to other workers and must not be assigned new jobs."""
        return self.drain is not None

    @property
    def is_relaunching(self) -> bool:
        """Whether the worker is in one of the two parts of a relaunch."""
        return isinstance(self.phase, Relaunching | ClosingRuntime)

    @property
    def is_shutting_down(self) -> bool:
        """Whether the worker is shutting down: it leaves its group, and then its process ends or executes itself again
        as a new member."""
        return isinstance(self.phase, ShuttingDown | LeavingGroup)


# -- the membership of the group; only module `place` assigns to its fields -------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NeverJoined:
    """This worker has not begun a round since it started; in a connect group, it has received no assignment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InRound:
    """A round of a classic group (JoinGroup and SyncGroup) is running, which this worker has joined or can join at
    once. ``member_state`` is how far this worker is in this round."""

    member_state: MemberState
    """How far this worker is in the round."""
    follows_membership_loss: bool
    """Whether the membership was lost before this round. Until the round ends, this worker is then not a member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppingBeforeJoin:
    """A round is running that this worker joins only after all its tasks have stopped and their statuses are written.
    While a status is not written, no SetWorkerState order is sent to the member. ``member_state`` is how far this
    worker is in this round."""

    member_state: MemberState
    """How far this worker is in the round."""
    follows_membership_loss: bool
    """Whether the membership was lost before this round. Until the round ends, this worker is then not a member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFailed:
    """The last round has ended without a change of any assignment, because the leader's config log lagged; another
    round must follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCompleted:
    """The last round has ended with an assignment. In a connect group, which has no rounds: this worker has an
    assignment."""

    member_state: MemberState = MemberState.STABLE
    """How far this worker is in a rebalance of a connect group; STABLE in a classic group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostMembership:
    """The membership is lost: all jobs here stop, then this worker rejoins."""


MembershipPhase: TypeAlias = NeverJoined | InRound | StoppingBeforeJoin | RoundFailed | RoundCompleted | LostMembership


class WorkerMembership:
    """This worker's membership of its group. The jobs, the leader and the epoch are those of the last assignment.
    ``member_state`` is how far this worker is in a round or rebalance. ``lease_ends_ms`` is None while the membership
    is lost, and also before this process's first answered heartbeat; :meth:`has_valid_lease` decides whether jobs may
    start."""

    def __init__(self, handover: Handover | None) -> None:
        self.phase: MembershipPhase = NeverJoined()
        self.member_id = MemberId("")
        """This worker's member id; empty while this worker is not a member."""
        self.epoch = -1
        """The member epoch of the last assignment; in a classic group, the generation of the last round. -1 before the
        first."""
        self.leader = MemberId("")
        """The member id of the leader; empty while no leader is known."""
        self.leader_url = WorkerUrl("")
        """The URL of the leader's REST API; empty while no leader is known."""
        self.lease_renewal: LeaseRenewed | None = None
        """The lease: how long this worker may run jobs without another answered heartbeat. None before the first
        answered heartbeat of this process."""
        self.is_handed_over = handover is not None
        """Whether a previous process passed the membership on. The membership is not confirmed before a heartbeat is
        answered."""
        self.assigned: Jobs = NO_JOBS
        """The jobs assigned to this worker; empty after a loss of the membership, and while all jobs must stop."""
        self.assignment_offset = CONFIG_OFFSET_BEFORE_FIRST_LINE
        """How far the leader had read the config log at the last assignment; this worker starts jobs when it has read
        as far."""
        self.group_config_offset = CONFIG_OFFSET_BEFORE_FIRST_LINE
        """How far the group had read the config log at the last round, also at a failed one. After a loss of the
        membership, this worker rejoins when it has read as far."""
        self.config_end_unverified = False
        """Whether ``group_config_offset`` is only an offset that a member reported, in a failed round: it must be
        compared with the log's end offset."""
        self.last_lookup_id = 0
        """The number of lookups of the log's end offset; only the result of the last lookup is used."""
        self.last_worker_state: SetWorkerState | None = None
        """The last ``SetWorkerState`` order to the member; None when the next order must be sent even if nothing has
        changed."""
        if handover is not None:
            self.phase = RoundCompleted()
            self.member_id = handover.member_id
            self.epoch = (
                handover.generation if isinstance(handover, ClassicMembershipHandover) else handover.member_epoch
            )
            self.leader, self.leader_url = handover.leader, handover.leader_url
            self.assigned, self.assignment_offset = handover.jobs, handover.config_offset

    @property
    def has_current_assignment(self) -> bool:
        """Whether the last round has ended with an assignment, and no round is running; in a connect group, whether
        this worker has an assignment."""
        return isinstance(self.phase, RoundCompleted)

    @property
    def is_lost(self) -> bool:
        """Whether the membership was lost and no round has ended since then."""
        match self.phase:
            case (
                LostMembership()
                | InRound(follows_membership_loss=True)
                | StoppingBeforeJoin(follows_membership_loss=True)
            ):
                return True
            case _:
                return False

    @property
    def is_leader_of_last_round(self) -> bool:
        """Whether the last round that has ended made this worker the leader; another round may be running."""
        return bool(self.member_id) and self.leader == self.member_id

    @property
    def has_leader_and_current_assignment(self) -> bool:
        """Whether this worker is the leader or has the leader's URL, the last round has ended with an assignment, and
        no round is running."""
        return self.has_current_assignment and (self.is_leader_of_last_round or bool(self.leader_url))

    @property
    def is_leader_with_current_assignment(self) -> bool:
        """Whether this worker is the leader, the last round has ended with an assignment, and no round is running."""
        return self.has_current_assignment and self.is_leader_of_last_round

    @property
    def member_state(self) -> MemberState:
        """How far this worker is in the current round, or in the current rebalance of a connect group, for example
        COMPLETING_REBALANCE. Otherwise STABLE for a member of the group and UNJOINED for a worker that is no member."""
        if isinstance(self.phase, InRound | StoppingBeforeJoin | RoundCompleted):
            return self.phase.member_state
        return MemberState.STABLE if self.member_id else MemberState.UNJOINED

    @property
    def lease_ends_ms(self) -> int | None:
        """The time until which jobs may run here, according to the answered heartbeats, in ms on the monotonic clock.
        None in two opposite cases: the membership is lost, so no job may run; or this process has no answered heartbeat
        yet. :meth:`has_valid_lease` decides whether jobs may start."""
        return None if self.is_lost or self.lease_renewal is None else self.lease_renewal.lease_ends_ms

    def has_valid_lease(self, now_ms: int) -> bool:
        """Whether the lease, the time for which the group surely counts this worker as a member, has not ended at
        ``now_ms``. Before the first answered heartbeat of this process: True, unless a previous process has handed the
        membership over.

        Needed because, after a pause of the process, other events may arrive before the event that the membership is
        lost.
        """
        return not self.is_handed_over if self.lease_renewal is None else now_ms < self.lease_renewal.lease_ends_ms


class Herder:
    """The state of one worker's herder, without the logs and clients around it."""

    def __init__(self, settings: HerderSettings, handover: Handover | None = None) -> None:
        """``handover`` is the group membership that the previous process passed on, of the same group protocol as in
        ``settings``."""
        self.settings = settings
        # Hard state, read from the logs.
        self.config = ConfigState()
        self.statuses = StatusState()
        # Soft state.
        self.place = WorkerMembership(handover)
        self.rounds = HerderClassicGroupState(handover if isinstance(handover, ClassicMembershipHandover) else None)
        self.leader_state = LeaderState()
        self.targets = HerderConnectGroupState(handover if isinstance(handover, ConnectMembershipHandover) else None)
        self.leader_log = LeaderLogAccess()
        self.rotation = SessionKeyRotation()
        self.work = LocalJobsState(self.place.assigned)
        self.requests = PendingRequests()
        self.lifecycle = Lifecycle()
        # `shared_names`
        self.warned_addresses_by_name: Mapping[str, frozenset[WorkerId]] = {}
        """By name, the ``host:port`` of the workers with the same name that were in this leader's last warning."""

    def wall_clock_ms(self, at_ms: int) -> int | None:
        """The wall clock's time, in milliseconds since the Unix epoch, at ``at_ms`` on the monotonic clock; None before
        the runtime is open."""
        offset_ms = self.rotation.wall_clock_offset_ms
        return None if offset_ms is None else at_ms + offset_ms

    @property
    def owned_jobs(self) -> Jobs:
        """The jobs that the next join reports as owned: all assigned jobs, and the tasks that may still run although
        they are no longer assigned."""
        return self.place.assigned | Jobs(tasks=self.work.tasks_that_may_hold_checkpoint)

    @property
    def allowed_jobs_until_restart(self) -> Jobs | None:
        """The only jobs that this worker may run until its process is restarted, because it takes no new ones
        (:attr:`.Lifecycle.no_new_jobs_reason`): those of its jobs that it has started. None if it takes new jobs; a
        drain does not count."""
        if self.lifecycle.no_new_jobs_reason is None:
            return None
        connectors = frozenset(name for name in self.owned_jobs.connectors if self.has_started_connector_here(name))
        runs = self.work.local_tasks
        return Jobs(connectors, frozenset(task for task in self.owned_jobs.tasks if task in runs and runs[task].starts))

    def has_started_connector_here(self, name: ConnectorName) -> bool:
        """Whether this worker has started the connector since it was assigned to this worker: it has begun to split it,
        or has reported another state of it than UNASSIGNED."""
        run, reported = self.work.local_connectors.get(name), self.work.last_reported.get(name)
        is_split = run is not None and not isinstance(run.state, NotSplit)
        return is_split or (reported is not None and reported.state is not JobState.UNASSIGNED)

    @property
    def lease_durations(self) -> LeaseDurations:
        """The parts of this worker's session timeout: how long a lease lasts, and how long tasks may stop. In a connect
        group the coordinator decides the timeout; before its first response the worker's own setting counts."""
        renewal = self.place.lease_renewal
        return LeaseDurations(self.settings.session_timeout_ms if renewal is None else renewal.session_timeout_ms)

    def task_stop_grace_ms(self, now_ms: int) -> int:
        """The grace period, in ms, of a task's stop that is ordered at ``now_ms``:
        ``task.shutdown.graceful.timeout.ms``, shortened so that the stop ends within the session even if no further
        heartbeat is answered."""
        grace_ms, hurried_ms = self.settings.stop_grace_ms, self.lease_durations.stop_grace_ms
        if self.place.lease_renewal is not None:
            grace_ms = min(grace_ms, max(self.place.lease_renewal.lease_ends_ms + hurried_ms - now_ms, 0))
        return min(grace_ms, hurried_ms) if self.place.is_lost else grace_ms

    def has_read_config_to(self, end_offset: LogPosition | ConfigOffset) -> bool:
        """Whether this worker has read the config log up to ``end_offset``: the log's end offset at some time, or the
        config offset of another member. Always true when ``end_offset`` is 0 or less."""
        return self.config.position >= end_offset

    def spec_to_run(self, task: ConnectorTaskId) -> TaskSpec | None:
        """The task config and incarnation with which ``task`` should run here. None when it should not run here: it is
        not assigned to this worker, not configured, or not in the target state STARTED, or this worker relaunches."""
        connector, config = self.config.connector(task.connector), self.config.task_config(task)
        if connector is None or config is None or task not in self.place.assigned or self.lifecycle.is_relaunching:
            return None
        if self.config.target_state(task.connector) is not TargetState.STARTED:
            return None
        return TaskSpec(task=task, connector_incarnation=connector.incarnation, config=config)

    @property
    def is_caught_up(self) -> bool:
        """Whether this worker has read the config log to the offset of the last assignment. Only then may jobs
        start."""
        return self.has_read_config_to(self.place.assignment_offset)


class Turn:
    """The data of one step: the herder, the time, and the effects so far."""

    def __init__(self, herder: Herder, now_ms: int) -> None:
        self.herder = herder
        self.now_ms = now_ms
        self.effects: list[Effect] = []
        self.own_write_answers: list[tuple[Write, Answer]] = []
        """The writes that this leader submitted itself and that completed in this step, with their responses."""
        self.task_orders: list[tuple[RequestId, RestartConnectorTask]] = []
        """The orders about tasks that waited for the config log and can be carried out in this step."""

    def emit(self, effect: Effect) -> None:
        """Add an effect to the output of this step."""
        self.effects.append(effect)

    def output(self) -> "HerderOutput":
        """The output of this step: the effects, in the order in which they were added."""
        return Output(effects=tuple(self.effects))


HerderOutput = Output[None, Effect]
"""A herder's step returns no records: it appends to its two logs by effects, because other workers append to them,
too."""
