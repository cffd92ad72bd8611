"""The state of a herder, and the working set of one step.

*Hard* state is read from the logs: the configs (`ConfigState`) and the statuses (`StatusState`). Only lines of the logs
change it: a herder emits an append as an effect, and applies the line when it reads the line back. All other state is
*soft*: it is lost at a restart, because a worker that starts again owns no job.
"""

from dataclasses import dataclass, field
from typing import TypeAlias

from coterie.assignors.members import Policy
from coterie.config import defaults
from coterie.engine.lease import Lease
from coterie.engine.output import Output
from coterie.herder.config_state import UNREAD, ConfigState
from coterie.herder.messages import Effect
from coterie.herder.requests import Answer, Read, RequestId, Write, WriteId
from coterie.herder.rounds.state import Lead, Rounds
from coterie.herder.session_keys import Rotation, SessionKeySettings
from coterie.herder.status_records import StatusState
from coterie.herder.work import Work
from coterie.herder.write_kinds import ConfigToValidate, WriteKind
from coterie.nouns.ids import ConfigOffset, InstanceId, MemberId, WorkerId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, Jobs
from coterie.nouns.membership import MemberState, PlaceHandover, ProvedUntil, Subscribe


@dataclass(frozen=True, slots=True, kw_only=True)
class HerderSettings:
    """This worker's identity, timeouts and policy."""

    worker_id: WorkerId
    url: WorkerUrl
    version: str
    """The version of all plug-ins, which every status contains (KIP-891)."""
    name: str | None = None
    """``worker.name``"""
    instance_id: InstanceId | None = None
    """``group.instance.id``"""
    session_timeout_ms: int = defaults.SESSION_TIMEOUT_MS
    rebalance_timeout_ms: int = defaults.REBALANCE_TIMEOUT_MS
    """``rebalance.timeout.ms``; a herder that has not processed an event within this time is stuck."""
    sync_timeout_ms: int = defaults.WORKER_SYNC_TIMEOUT_MS
    """``worker.sync.timeout.ms``: how long to wait until the config log is read to its end."""
    stop_grace_ms: int = defaults.TASK_SHUTDOWN_GRACEFUL_TIMEOUT_MS
    """``task.shutdown.graceful.timeout.ms``"""
    policy: Policy = field(default_factory=Policy)
    """The limits and delays of the assignments that this worker computes while it is the leader."""
    session_keys: SessionKeySettings = field(default_factory=SessionKeySettings)
    rebalance_window_ms: int = defaults.CONFIG_REBALANCE_WINDOW_MS
    """``config.rebalance.window.ms``"""
    request_timeout_ms: int = 90_000
    """A constant, as in Connect, not a setting."""

    @property
    def shown_name(self) -> str:
        """The worker's name in messages and in the REST API."""
        return self.name or self.worker_id

    @property
    def lease(self) -> Lease:
        return Lease(self.session_timeout_ms)


# -- the phases of a write; only one write at a time is beyond `InLine` -----------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """The write waits until the group has settled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Validates:
    """The config is validated against the tasks that may have checkpoints."""

    asked: ConfigToValidate


@dataclass(frozen=True, slots=True, kw_only=True)
class InLine:
    """The write waits for the writes before it."""

    validated: ConfigToValidate | None
    """The config that was validated; None for a write that needs no validation. Likewise in the next two phases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindsEnd:
    """A lookup of the log's end offset is in progress."""

    validated: ConfigToValidate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchesUp:
    """The log has to be read up to ``end`` before the write is checked and appended."""

    validated: ConfigToValidate | None
    end: ConfigOffset


@dataclass(frozen=True, slots=True, kw_only=True)
class Appends:
    """The lines are being appended to the log: the write can no longer be dropped."""

    created: bool
    """Whether the lines create a connector."""
    has_timed_out: bool = False
    """Whether the request timed out, and was answered so; later writes in the queue still wait for this write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinesWritten:
    """The write is answered when the log is read up to ``end``."""

    created: bool
    has_timed_out: bool
    end: ConfigOffset


Stage: TypeAlias = Arrived | Validates | InLine | FindsEnd | CatchesUp | Appends | LinesWritten


class WriteTurn:
    """A write to the config log that is not complete."""

    def __init__(self, id_: WriteId, kind: WriteKind) -> None:
        self.id = id_
        self.kind = kind
        self.stage: Stage = Arrived()

    @property
    def is_under_way(self) -> bool:
        """Whether the write is at the head of the queue and has started."""
        return isinstance(self.stage, FindsEnd | CatchesUp | Appends | LinesWritten)


class ReadWait:
    """A read that waits until this worker has read the log to the end offset that the log had at the request."""

    def __init__(self, request: Read) -> None:
        self.request = request
        self.end: ConfigOffset | None = None


class Requests:
    def __init__(self) -> None:
        # `reads`
        self.reads: dict[RequestId, ReadWait] = {}
        # `writes`
        self.writes: dict[WriteId, WriteTurn] = {}
        """In the order in which the requests arrived."""
        self.own_writes = 0
        """The number of writes that this leader has submitted itself."""


# -- the lifecycle of this worker -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Working:
    """The worker takes part in its group, or is starting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaunching:
    """All tasks stop; then the runtime closes and the process relaunches, with the same membership."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosingRuntime:
    """The second part of a relaunch: the runtime closes or is closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuttingDown:
    """All tasks stop; then this worker leaves its group and the process ends."""

    code: int
    reason: str
    for_good: bool = False
    """The worker is drained: its group must not wait for it, even if it is a static member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeavingGroup:
    """The member was ordered to leave its group; then the process ends."""

    code: int
    reason: str


Course: TypeAlias = Working | Relaunching | ClosingRuntime | ShuttingDown | LeavingGroup


class Life:
    def __init__(self) -> None:
        # `machine`
        self.is_open = False
        """Whether the runtime is open and both logs are read; before, no job starts."""
        # `draining`
        self.is_draining = False
        """Whether this worker hands its jobs over to other workers and must not be assigned new jobs."""
        # `ending`
        self.course: Course = Working()

    @property
    def is_relaunching(self) -> bool:
        return isinstance(self.course, Relaunching | ClosingRuntime)

    @property
    def is_leaving(self) -> bool:
        return isinstance(self.course, ShuttingDown | LeavingGroup)


# -- the membership of the group; only module `place` assigns to its fields -------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NeverJoined:
    """This worker has not joined its group yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InRound:
    """A round is running."""

    state: MemberState
    follows_loss: bool
    """Whether the membership was lost before this round: the worker is a member again when the round ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasesBeforeJoin:
    """A round is running that this worker joins only after all its tasks have stopped and their statuses are written.
    Until the round ends, no order is sent to the member before the statuses are written."""

    state: MemberState
    follows_loss: bool
    """As in `InRound`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFailed:
    """The last round changed no assignment; another round must follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCompleted:
    """The last round ended with an assignment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostPlace:
    """The membership is lost: all jobs here stop, then this worker rejoins as a new member."""


Standing: TypeAlias = NeverJoined | InRound | ReleasesBeforeJoin | RoundFailed | RoundCompleted | LostPlace


class Place:
    """This worker's membership of its group."""

    def __init__(self, handover: PlaceHandover | None) -> None:
        self.standing: Standing = NeverJoined()
        self.member_id = MemberId("")
        """Empty while this worker is not a member."""
        self.epoch = -1
        """The epoch of the last assignment; in a classic group, its generation."""
        self.leader = MemberId("")
        self.leader_url = WorkerUrl("")
        self.proved: ProvedUntil | None = None
        """The lease: until when the coordinator has confirmed the membership. None before the first answered heartbeat
        of this process."""
        self.is_handed_over = handover is not None
        """Whether a previous process passed the membership on; it is not confirmed before a heartbeat is answered."""
        self.assigned: Jobs = NO_JOBS
        self.assignment_offset = UNREAD
        """The config offset of the leader at the last assignment."""
        self.group_offset = UNREAD
        """The group's config offset at the last round. After a loss of the membership, this worker rejoins when it has
        read the config log to this offset."""
        self.config_end_unverified = False
        """Whether only a member reported ``group_offset``, in a failed round: it must be compared with the log's end
        offset."""
        self.looks = 0
        """The number of lookups of the log's end offset; only the result of the last lookup is used."""
        self.subscribed: Subscribe | None = None
        """The last ``Subscribe`` order sent to the member; None when it must be sent again."""
        if handover is not None:
            self.standing = RoundCompleted()
            self.member_id, self.epoch = handover.member_id, handover.generation
            self.leader, self.leader_url = handover.leader, handover.leader_url
            self.assigned, self.assignment_offset = handover.jobs, handover.config_offset

    @property
    def is_settled(self) -> bool:
        return isinstance(self.standing, RoundCompleted)

    @property
    def is_lost(self) -> bool:
        match self.standing:
            case LostPlace() | InRound(follows_loss=True) | ReleasesBeforeJoin(follows_loss=True):
                return True
            case _:
                return False

    @property
    def is_named_leader(self) -> bool:
        """Whether the last round made this worker the leader; another round may be running."""
        return bool(self.member_id) and self.leader == self.member_id

    @property
    def is_leader(self) -> bool:
        return self.is_settled and self.is_named_leader

    @property
    def state(self) -> MemberState:
        if isinstance(self.standing, InRound | ReleasesBeforeJoin):
            return self.standing.state
        return MemberState.STABLE if self.member_id else MemberState.UNJOINED

    @property
    def lease_ends_ms(self) -> int | None:
        """Until when jobs may run here, according to the last answered heartbeat; None when no job may run, or before
        the first answered heartbeat."""
        return None if self.is_lost or self.proved is None else self.proved.until_ms

    def is_counted_in(self, now_ms: int) -> bool:
        """Whether the lease is valid at ``now_ms``. After a pause of the process, other events may arrive before the
        event that the membership is lost."""
        return not self.is_handed_over if self.proved is None else now_ms < self.proved.until_ms


class Herder:
    """The state of one worker's herder."""

    def __init__(self, settings: HerderSettings, handover: PlaceHandover | None = None) -> None:
        """``handover`` is the group membership that the previous process passed on."""
        self.settings = settings
        # Hard state, read from the logs.
        self.config = ConfigState()
        self.statuses = StatusState()
        # Soft state.
        self.place = Place(handover)
        self.rounds = Rounds(handover)
        self.lead = Lead()
        self.rotation = Rotation()
        self.work = Work(self.place.assigned)
        self.requests = Requests()
        self.life = Life()

    @property
    def owned(self) -> Jobs:
        """The owned jobs that the next join reports: all assigned jobs, and the tasks that still run although they are
        no longer assigned."""
        return self.place.assigned | Jobs(tasks=self.work.active_tasks)

    def grace_ms(self, now_ms: int) -> int:
        """How long a stop that is ordered now may take, so that it ends within the session even if no heartbeat is
        answered any more."""
        grace_ms, hurried_ms = self.settings.stop_grace_ms, self.settings.lease.stop_grace_ms
        if self.place.proved is not None:
            hurried_ms = Lease(self.place.proved.session_timeout_ms).stop_grace_ms
            grace_ms = min(grace_ms, max(self.place.proved.until_ms + hurried_ms - now_ms, 0))
        return min(grace_ms, hurried_ms) if self.place.is_lost else grace_ms

    def has_read(self, end: ConfigOffset) -> bool:
        """Whether the config log is read up to ``end``; this is always true of an empty log."""
        return max(self.config.offset, 0) >= end

    @property
    def caught_up(self) -> bool:
        """Whether the config log is read to the offset of the last assignment: then jobs may start."""
        return self.has_read(self.place.assignment_offset)


class Turn:
    """One step's working set."""

    def __init__(self, herder: Herder, now_ms: int) -> None:
        self.herder = herder
        self.now_ms = now_ms
        self.effects: list[Effect] = []
        self.own_answers: list[tuple[Write, Answer]] = []
        """The responses to the herder's own writes that completed in this step."""

    def order(self, effect: Effect) -> None:
        self.effects.append(effect)

    def output(self) -> "HerderOutput":
        return Output(effects=tuple(self.effects))


HerderOutput = Output[None, Effect]
"""A herder's step returns no records: it appends to its two logs by effects, because other workers append to them,
too."""
