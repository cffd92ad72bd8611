"""A herder driven by hand: events in, orders out, and a little world that obeys."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias, TypeVar

from coterie.engine.lease import Lease
from coterie.engine.log import Line, NewLine
from coterie.herder.machine import check_all, step
from coterie.herder.messages import (
    AppendConfig,
    AppendStatuses,
    ConfigAppended,
    ConfigEndFound,
    ConfigLinesRead,
    ConfigValidated,
    ConnectorSplit,
    Effect,
    Event,
    FindConfigEnd,
    MakeSessionKey,
    Reply,
    RequestArrived,
    RestartTask,
    RuntimeOpened,
    SessionKeyMade,
    SplitConnector,
    StartTask,
    StatusesAppended,
    StatusLinesRead,
    StopTask,
    TaskStarted,
    TaskStopped,
    ValidateConfig,
)
from coterie.herder.requests import Answer, Request, RequestId
from coterie.herder.state import Herder, HerderSettings
from coterie.nouns.ids import ConfigOffset, Generation, Incarnation, MemberId, WorkerId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, Jobs
from coterie.nouns.membership import (
    Assigned,
    AssignmentWanted,
    Computed,
    Install,
    MemberReport,
    MemberState,
    MemberStateChanged,
    PlaceHandover,
    ProvedUntil,
)
from coterie.wire.connect import AssignmentError, ConnectProtocol, RoundResult, RoundToken

ME, OTHER = MemberId("me"), MemberId("other")
WALL_MS = 1_795_228_766_406
"""When a herder by hand begins."""
ROUND = MemberStateChanged(state=MemberState.PREPARING_REBALANCE)
SESSION_TIMEOUT_MS = 10_000
EffectT = TypeVar("EffectT")
Doable: TypeAlias = (
    StartTask
    | RestartTask
    | StopTask
    | SplitConnector
    | FindConfigEnd
    | ValidateConfig
    | AppendConfig
    | AppendStatuses
    | MakeSessionKey
)


def proved(*, sent_at_ms: int) -> ProvedUntil:
    """A heartbeat that was sent then has been answered."""
    until_ms = sent_at_ms + Lease(SESSION_TIMEOUT_MS).proved_ms
    return ProvedUntil(until_ms=until_ms, session_timeout_ms=SESSION_TIMEOUT_MS)


def wanted(
    members: Mapping[MemberId, MemberReport],
    *,
    generation: int,
    protocol: ConnectProtocol = ConnectProtocol.COMPATIBLE,
    left_out: frozenset[MemberId] = frozenset(),
) -> AssignmentWanted:
    """A round that this herder leads."""
    token = RoundToken(generation=Generation(generation), protocol=protocol, left_out=left_out)
    return AssignmentWanted(token=token, member_id=ME, members=members)


class ByHand:
    """A herder and its two logs. :meth:`tell` gives it an event; what it orders gathers in ``orders``."""

    def __init__(self, place: PlaceHandover | None = None) -> None:
        url = WorkerUrl("http://here:8083/")
        settings = HerderSettings(worker_id=WorkerId("here:8083"), url=url, version="1", name="here")
        self.herder = Herder(settings, place)
        self.now_ms = 1_000
        self.orders: list[Effect] = []
        self.config: list[NewLine] = []
        self.statuses: list[NewLine] = []
        self._requests = 0
        self._keys = 0
        self._begun_wall_ms = WALL_MS
        self.generation = 0

    def tell(self, event: Event) -> None:
        self.orders += step(self.herder, event, now_ms=self.now_ms).effects
        check_all(self.herder)

    def take(self, kind: type[EffectT]) -> list[EffectT]:
        """The orders of one kind, which are now somebody's business."""
        taken: list[EffectT] = []
        others: list[Effect] = []
        for order in self.orders:
            (taken if isinstance(order, kind) else others).append(order)  # type: ignore[arg-type]
        self.orders = others
        return taken

    @property
    def wall_ms(self) -> int:
        """What a clock says that nobody sets."""
        return self._begun_wall_ms + self.now_ms

    def computed(self) -> Computed:
        """What this leader has just answered."""
        (installed,) = self.take(Install)
        return installed.computed

    def begin(self) -> None:
        self._begun_wall_ms = WALL_MS - self.now_ms
        self.tell(RuntimeOpened(wall_ms=WALL_MS))

    def assign(
        self,
        *,
        assigned: Jobs = NO_JOBS,
        revoked: Jobs = NO_JOBS,
        leader: MemberId = OTHER,
        delay_ms: int = 0,
        protocol: ConnectProtocol = ConnectProtocol.COMPATIBLE,
        error: AssignmentError = AssignmentError.NO_ERROR,
        config_offset: ConfigOffset | None = None,
    ) -> None:
        """A round ends."""
        self.generation += 1
        self.tell(
            Assigned(
                member_id=ME,
                epoch=self.generation,
                jobs=assigned,
                revoked=revoked,
                is_whole=protocol is ConnectProtocol.EAGER,
                leader=leader,
                leader_url=WorkerUrl("http://leader:8083/"),
                config_offset=ConfigOffset(len(self.config) or -1) if config_offset is None else config_offset,
                token=RoundResult(protocol=protocol, error=error, delay_ms=delay_ms),
            )
        )

    def take_computed(self, computed: Computed, protocol: ConnectProtocol) -> None:
        """The round that this herder has ``computed`` ends."""
        mine = computed.assignments[ME]
        error = AssignmentError.CONFIG_MISMATCH if computed.has_config_mismatch else AssignmentError.NO_ERROR
        self.assign(
            assigned=mine.assigned,
            revoked=mine.revoked,
            leader=ME,
            delay_ms=computed.delay_ms,
            error=error,
            protocol=protocol,
        )

    def write(self, *lines: NewLine, read: bool = True) -> None:
        """Somebody appends to the config log; this herder reads it, unless it is not to yet."""
        begin = len(self.config)
        self.config += lines
        if read:
            self.tell(ConfigLinesRead(lines=_lines(lines, begin)))

    def ask(self, request: Request) -> RequestId:
        id_ = RequestId(self._requests)
        self._requests += 1
        self.tell(RequestArrived(id=id_, request=request, fresh_incarnation=Incarnation(f"life-{id_}")))
        return id_

    def answer(self, id_: RequestId) -> Answer | None:
        """What ``id_`` was answered, once."""
        answers = [order.answer for order in self.orders if isinstance(order, Reply) and order.id == id_]
        assert len(answers) <= 1, "answered twice"
        return answers[0] if answers else None

    def obey(self) -> None:
        """Do every chore at once, and what comes of it, until nothing is left to do."""
        while chores := self.chores():
            for chore in chores:
                self.do(chore)

    def chores(self) -> list[Doable]:
        """Take all the orders that :meth:`do` knows how to do."""
        taken = [order for order in self.orders if isinstance(order, Doable)]
        self.orders = [order for order in self.orders if not isinstance(order, Doable)]
        return taken

    def do(self, chore: Doable) -> None:
        match chore:
            case StartTask(start=start):
                self.tell(TaskStarted(task=start.task))
            case RestartTask(task=task):
                self.tell(TaskStarted(task=task))
            case StopTask(task=task):
                self.tell(TaskStopped(task=task))
            case SplitConnector(connector=name, config=config, written_at=written_at):
                count = int(config.get("tasks.max", "1"))
                configs = [{"share": f"{number}/{count}"} for number in range(count)]
                self.tell(ConnectorSplit(connector=name, written_at=written_at, configs=configs))
            case FindConfigEnd(purpose=purpose):
                self.tell(ConfigEndFound(purpose=purpose, end=ConfigOffset(len(self.config))))
            case ValidateConfig(id=id_):
                self.tell(ConfigValidated(id=id_, errors={}))
            case AppendConfig(purpose=append_purpose, lines=lines):
                self.write(*lines)
                self.tell(ConfigAppended(purpose=append_purpose, end=ConfigOffset(len(self.config))))
            case MakeSessionKey(size_bytes=size_bytes):
                self._keys += 1
                self.tell(SessionKeyMade(key=bytes([self._keys]) * size_bytes, wall_ms=self.wall_ms))
            case AppendStatuses(lines=lines):
                begin = len(self.statuses)
                self.statuses += lines
                self.tell(StatusLinesRead(lines=_lines(lines, begin)))
                self.tell(StatusesAppended())


def _lines(lines: Sequence[NewLine], begin: int) -> list[Line]:
    return [
        Line(partition=0, offset=begin + i, timestamp_ms=0, key=line.key, value=line.value)
        for i, line in enumerate(lines)
    ]
