"""What a herder knows, and one step's working set.

*Read* from the logs: what is configured (`ConfigState`) and what workers say of jobs (`StatusState`). These are the
only hard state, and the logs' lines alone write them: a herder that wants something written orders an append, and
knows it when the line comes back. All else is *gone after a restart*, and is meant to be: a worker that starts again
owns nothing.
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
    """Who this worker is, and its patience."""

    worker_id: WorkerId
    url: WorkerUrl
    version: str
    """Told with every status (KIP-891); all plug-ins are of this version."""
    name: str | None = None
    """``worker.name``"""
    instance_id: InstanceId | None = None
    """``group.instance.id``"""
    session_timeout_ms: int = defaults.SESSION_TIMEOUT_MS
    rebalance_timeout_ms: int = defaults.REBALANCE_TIMEOUT_MS
    """A herder that has not taken up what it was told for so long is stuck."""
    sync_timeout_ms: int = defaults.WORKER_SYNC_TIMEOUT_MS
    """``worker.sync.timeout.ms``: how long to wait for the config log's end."""
    stop_grace_ms: int = defaults.TASK_SHUTDOWN_GRACEFUL_TIMEOUT_MS
    """``task.shutdown.graceful.timeout.ms``"""
    policy: Policy = field(default_factory=Policy)
    """How patient this worker is when it leads."""
    session_keys: SessionKeySettings = field(default_factory=SessionKeySettings)
    rebalance_window_ms: int = defaults.CONFIG_REBALANCE_WINDOW_MS
    """``config.rebalance.window.ms``"""
    request_timeout_ms: int = 90_000
    """As in Connect, no setting."""

    @property
    def shown_name(self) -> str:
        """What people call this worker."""
        return self.name or self.worker_id

    @property
    def lease(self) -> Lease:
        return Lease(self.session_timeout_ms)


# -- how far a write has come; one write at a time goes beyond `InLine` ------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """The group has to settle first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Validates:
    """The config is validated against the tasks that may have checkpoints."""

    asked: ConfigToValidate


@dataclass(frozen=True, slots=True, kw_only=True)
class InLine:
    """The write waits for the writes before it."""

    validated: ConfigToValidate | None
    """None for a write that needs no validation; likewise below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindsEnd:
    """The log's end was asked for."""

    validated: ConfigToValidate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchesUp:
    """The log has to be read up to ``end`` before the write is checked and appended."""

    validated: ConfigToValidate | None
    end: ConfigOffset


@dataclass(frozen=True, slots=True, kw_only=True)
class Appends:
    """The lines are on their way to the log: the write cannot be given up any more."""

    created: bool
    """The lines create a connector."""
    has_timed_out: bool = False
    """The request was answered, because it took too long; the writes behind this one still wait for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinesWritten:
    """The write is answered when the log is read up to ``end``."""

    created: bool
    has_timed_out: bool
    end: ConfigOffset


Stage: TypeAlias = Arrived | Validates | InLine | FindsEnd | CatchesUp | Appends | LinesWritten


class WriteTurn:
    """A write on its way to the config log."""

    def __init__(self, id_: WriteId, kind: WriteKind) -> None:
        self.id = id_
        self.kind = kind
        self.stage: Stage = Arrived()

    @property
    def is_under_way(self) -> bool:
        """At the head of the line, and begun."""
        return isinstance(self.stage, FindsEnd | CatchesUp | Appends | LinesWritten)


class ReadWait:
    """A read that waits until the log is read as far as it was when the read came in."""

    def __init__(self, request: Read) -> None:
        self.request = request
        self.end: ConfigOffset | None = None


class Requests:
    def __init__(self) -> None:
        # `reads`
        self.reads: dict[RequestId, ReadWait] = {}
        # `writes`
        self.writes: dict[WriteId, WriteTurn] = {}
        """In the order in which they came."""
        self.own_writes = 0
        """How many writes this leader has asked of itself."""


# -- the life of this worker ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Working:
    """It takes part in its group, or will."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaunching:
    """Everything stops, and then the runtime closes and the process begins anew, in the same place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosingRuntime:
    """The same, later: the runtime closes, or is closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuttingDown:
    """Everything stops, and then this worker leaves its group and the process ends."""

    code: int
    reason: str
    for_good: bool = False
    """It is drained: its group is not to wait for it, though it may be a static member."""


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
        """The runtime is open and both logs are read: before, nothing starts."""
        # `draining`
        self.is_draining = False
        """It hands its jobs over, and takes no others."""
        # `ending`
        self.course: Course = Working()

    @property
    def is_relaunching(self) -> bool:
        return isinstance(self.course, Relaunching | ClosingRuntime)

    @property
    def is_leaving(self) -> bool:
        return isinstance(self.course, ShuttingDown | LeavingGroup)


# -- the place in the group; `place` assigns all of it ----------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NeverJoined:
    """This worker has not joined its group yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InRound:
    """A round is under way."""

    state: MemberState
    follows_loss: bool
    """The place was lost before this round, and the round has to end before there is one again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasesBeforeJoin:
    """A round is under way that this worker joins only when nothing runs here and the statuses that report this are
    written. Until the round ends, no order to the member overtakes the statuses."""

    state: MemberState
    follows_loss: bool
    """As in `InRound`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFailed:
    """The last round changed nothing; another one has to come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCompleted:
    """The last round ended with an assignment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostPlace:
    """The place is lost: everything here stops, and then this worker joins anew."""


Standing: TypeAlias = NeverJoined | InRound | ReleasesBeforeJoin | RoundFailed | RoundCompleted | LostPlace


class Place:
    """This worker's place in its group."""

    def __init__(self, handover: PlaceHandover | None) -> None:
        self.standing: Standing = NeverJoined()
        self.member_id = MemberId("")
        """Empty without a place."""
        self.epoch = -1
        """Of the last assignment: in a classic group its generation."""
        self.leader = MemberId("")
        self.leader_url = WorkerUrl("")
        self.proved: ProvedUntil | None = None
        """Until when the place is proved; None before the first answered heartbeat of this life."""
        self.is_handed_over = handover is not None
        """A former life of this process had the place: until a heartbeat is answered nothing proves it."""
        self.assigned: Jobs = NO_JOBS
        self.assignment_offset = UNREAD
        """How far the leader had read the config log for the last assignment."""
        self.group_offset = UNREAD
        """How far the group had read the config log at the last round: without a place, this worker reads so far
        first."""
        self.config_end_unverified = False
        """Only a member reported ``group_offset``, in a round that failed: compare it with the log's end."""
        self.looks = 0
        """How often the log's end was asked for since; only the last answer counts."""
        self.subscribed: Subscribe | None = None
        """The last order; None when it has to be ordered again."""
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
        """The last round made this worker the leader; another round may be under way."""
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
        """Until when its work may run here, as far as is known; None when none may, or none has begun."""
        return None if self.is_lost or self.proved is None else self.proved.until_ms

    def is_counted_in(self, now_ms: int) -> bool:
        """Whether the place was proved lately. After a pause other news may come before that of its loss."""
        return not self.is_handed_over if self.proved is None else now_ms < self.proved.until_ms


class Herder:
    """The state of one worker's herder."""

    def __init__(self, settings: HerderSettings, handover: PlaceHandover | None = None) -> None:
        """``handover`` is what a former life of this process has handed on."""
        self.settings = settings
        # Hard: what the logs say.
        self.config = ConfigState()
        self.statuses = StatusState()
        # Soft.
        self.place = Place(handover)
        self.rounds = Rounds(handover)
        self.lead = Lead()
        self.rotation = Rotation()
        self.work = Work(self.place.assigned)
        self.requests = Requests()
        self.life = Life()

    @property
    def owned(self) -> Jobs:
        """What the next join says: all that is assigned, and all that still runs though it is not."""
        return self.place.assigned | Jobs(tasks=self.work.active_tasks)

    def grace_ms(self, now_ms: int) -> int:
        """How long a stop that is ordered now may take, so that it ends within the session should no answer follow."""
        grace_ms, hurried_ms = self.settings.stop_grace_ms, self.settings.lease.stop_grace_ms
        if self.place.proved is not None:
            hurried_ms = Lease(self.place.proved.session_timeout_ms).stop_grace_ms
            grace_ms = min(grace_ms, max(self.place.proved.until_ms + hurried_ms - now_ms, 0))
        return min(grace_ms, hurried_ms) if self.place.is_lost else grace_ms

    def has_read(self, end: ConfigOffset) -> bool:
        """The config log is read up to ``end``; an empty log always is."""
        return max(self.config.offset, 0) >= end

    @property
    def caught_up(self) -> bool:
        """The config log is read as far as it was when the work was dealt out: work may start."""
        return self.has_read(self.place.assignment_offset)


class Turn:
    """One step's working set."""

    def __init__(self, herder: Herder, now_ms: int) -> None:
        self.herder = herder
        self.now_ms = now_ms
        self.effects: list[Effect] = []
        self.own_answers: list[tuple[Write, Answer]] = []
        """What the herder's own writes have come to."""

    def order(self, effect: Effect) -> None:
        self.effects.append(effect)

    def output(self) -> "HerderOutput":
        return Output(effects=tuple(self.effects))


HerderOutput = Output[None, Effect]
"""A herder appends by effects: it has two logs, and neither is its own alone."""
