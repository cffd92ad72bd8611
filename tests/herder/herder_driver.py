"""Drives one herder by hand: feeds events, collects effects, runs chores, and keeps its two logs."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias, TypeVar

from coterie.config.infos import ConfigInfos
from coterie.config.plugins import Plugin, PluginType
from coterie.engine.lease import LeaseDurations
from coterie.engine.log import NewTopicRecord, TopicRecord
from coterie.herder.machine import check_all_invariants, step
from coterie.herder.messages import (
    AppendConfigLines,
    AppendStatusLines,
    ApplyOffsetChange,
    AskPlugins,
    CloseRequestIntake,
    ConfigLinesAppended,
    ConfigLinesRead,
    ConfigLogEndLookupEnded,
    ConfigValidationCompleted,
    Effect,
    Event,
    FindConfigLogEnd,
    LeaderLogOpened,
    MakeSessionKey,
    OffsetChangeEnded,
    OffsetReadEnded,
    OpenLeaderLog,
    PluginQuestionAnswered,
    ReadConnectorOffsets,
    Reply,
    RequestArrived,
    RequestIntakeClosed,
    RestartTask,
    RuntimeOpened,
    SessionKeyMade,
    SplitConnector,
    SplitSucceeded,
    StartTask,
    StatusAppendEnded,
    StatusLinesRead,
    StopTask,
    TaskStarted,
    TaskStopped,
    ValidateConfig,
)
from coterie.herder.requests.ids import RequestId
from coterie.herder.requests.kinds import Answer, Request
from coterie.herder.requests.questions import ListPlugins, PluginConfigKeys, PluginList
from coterie.herder.requests.writes import WriteAttempt
from coterie.herder.state import Herder, HerderSettings
from coterie.nouns.ids import ConfigOffset, GenerationId, Incarnation, LogPosition, MemberId, WorkerId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, Job, Jobs
from coterie.nouns.member_state import MemberState
from coterie.nouns.membership import (
    Assigned,
    AssignmentsRequested,
    ComputedAssignments,
    ConfirmLeadership,
    GroupProtocolName,
    Handover,
    LeadershipConfirmed,
    LeaseRenewed,
    MemberReport,
    MemberStateChanged,
    SendAssignments,
)
from coterie.nouns.states import JobState
from coterie.wire.connect import AssignmentErrorCode, ClassicAssignmentDetails, ConnectProtocol, RoundToken

ME, OTHER = MemberId("me"), MemberId("other")
WALL_MS = 1_795_228_766_406
"""Wall-clock time at which a driven herder starts."""
LEADER_URL = WorkerUrl("http://leader:8083/")
ROUND = MemberStateChanged(state=MemberState.PREPARING_REBALANCE)
SESSION_TIMEOUT_MS = 10_000
PLUGINS = (
    Plugin(class_name="a.Sink", type=PluginType.SINK, version="1"),
    Plugin(class_name="a.Filter", type=PluginType.TRANSFORMATION, version=None),
)
"""The plug-ins of a driven herder."""
EffectT = TypeVar("EffectT")
RunnableChore: TypeAlias = (
    StartTask
    | RestartTask
    | StopTask
    | SplitConnector
    | FindConfigLogEnd
    | ValidateConfig
    | AskPlugins
    | ReadConnectorOffsets
    | ApplyOffsetChange
    | AppendConfigLines
    | AppendStatusLines
    | MakeSessionKey
    | CloseRequestIntake
)


def lease_renewed(*, sent_at_ms: int) -> LeaseRenewed:
    """The event for the response to a heartbeat that was sent at ``sent_at_ms``."""
    until_ms = sent_at_ms + LeaseDurations(SESSION_TIMEOUT_MS).duration_ms
    return LeaseRenewed(lease_ends_ms=until_ms, session_timeout_ms=SESSION_TIMEOUT_MS)


def assignments_requested(
    members: Mapping[MemberId, MemberReport],
    *,
    generation: int,
    protocol: ConnectProtocol = ConnectProtocol.COMPATIBLE,
    undecodable_members: frozenset[MemberId] = frozenset(),
) -> AssignmentsRequested:
    """The event for a rebalance that this herder leads."""
    token = RoundToken(generation=GenerationId(generation), protocol=protocol, undecodable_members=undecodable_members)
    return AssignmentsRequested(token=token, member_id=ME, members=members)


def validated(id_: RequestId, errors: Mapping[str, Sequence[str]] | None = None) -> ConfigValidationCompleted:
    """The event for a validation that found ``errors``."""
    return ConfigValidationCompleted(
        id=id_, infos=ConfigInfos(connector_class="", configs=()).with_errors_replaced(errors or {})
    )


class HerderDriver:
    """A herder and its two logs. :meth:`feed` passes an event to it; its effects are collected in ``effects``."""

    def __init__(
        self,
        place: Handover | None = None,
        *,
        group_protocol: GroupProtocolName = GroupProtocolName.CLASSIC,
        version_by_plugin_name: Mapping[str, str | None] | None = None,
    ) -> None:
        settings = HerderSettings(
            worker_id=WorkerId("here:8083"),
            url=WorkerUrl("http://here:8083/"),
            coterie_version="1",
            version_by_plugin_name=version_by_plugin_name or {},
            name="here",
            group_protocol=group_protocol,
        )
        self.herder = Herder(settings, place)
        self.now_ms = 1_000
        self.effects: list[Effect] = []
        self.config: list[NewTopicRecord] = []
        self.statuses: list[NewTopicRecord] = []
        self._requests = 0
        self._keys = 0
        self._begun_wall_ms = WALL_MS
        self.generation = 0
        self.confirms_leadership = True
        """Whether the leader's log is opened and the leadership confirmed as soon as the herder orders that."""

    def feed(self, event: Event) -> None:
        self.effects += step(self.herder, event, now_ms=self.now_ms).effects
        check_all_invariants(self.herder)
        if self.confirms_leadership:
            for opening in self.pop_effects(OpenLeaderLog):
                self.feed(LeaderLogOpened(opening_number=opening.opening_number))
            for order in self.pop_effects(ConfirmLeadership):
                self.feed(LeadershipConfirmed(token=order.token))

    def last_reported(self, job: Job) -> tuple[JobState, str | None] | None:
        """State and trace of the last status that the herder has reported of ``job``; None if it has reported none."""
        reported = self.herder.work.last_reported.get(job)
        return None if reported is None else (reported.state, reported.trace)

    def pop_effects(self, kind: type[EffectT]) -> list[EffectT]:
        """Remove and return the effects of one kind."""
        taken: list[EffectT] = []
        others: list[Effect] = []
        for order in self.effects:
            (taken if isinstance(order, kind) else others).append(order)  # type: ignore[arg-type]
        self.effects = others
        return taken

    @property
    def wall_ms(self) -> int:
        """The time of a wall clock that is never adjusted."""
        return self._begun_wall_ms + self.now_ms

    def computed(self) -> ComputedAssignments:
        """Remove and return the assignments that this leader has just computed."""
        (installed,) = self.pop_effects(SendAssignments)
        return installed.computed

    def open_runtime(self) -> None:
        self._begun_wall_ms = WALL_MS - self.now_ms
        self.feed(RuntimeOpened(wall_clock_ms=WALL_MS))

    def assign(
        self,
        *,
        assigned: Jobs = NO_JOBS,
        revoked: Jobs = NO_JOBS,
        leader: MemberId = OTHER,
        leader_url: WorkerUrl = LEADER_URL,
        delay_ms: int = 0,
        protocol: ConnectProtocol = ConnectProtocol.COMPATIBLE,
        error: AssignmentErrorCode = AssignmentErrorCode.NO_ERROR,
        config_offset: ConfigOffset | None = None,
    ) -> None:
        """A rebalance ends."""
        self.generation += 1
        self.feed(
            Assigned(
                member_id=ME,
                epoch=self.generation,
                jobs=assigned,
                revoked=revoked,
                replaces_all=protocol is ConnectProtocol.EAGER,
                leader=leader,
                leader_url=leader_url,
                config_offset=ConfigOffset(len(self.config) or -1) if config_offset is None else config_offset,
                protocol_details=ClassicAssignmentDetails(protocol=protocol, error=error, delay_ms=delay_ms),
            )
        )

    def complete_computed_round(self, computed: ComputedAssignments, protocol: ConnectProtocol) -> None:
        """End the rebalance whose assignments this herder has ``computed``."""
        assignment = computed.assignments[ME]
        error = AssignmentErrorCode.CONFIG_MISMATCH if computed.has_config_mismatch else AssignmentErrorCode.NO_ERROR
        self.assign(
            assigned=assignment.assigned,
            revoked=assignment.revoked,
            leader=ME,
            delay_ms=computed.delay_ms,
            error=error,
            protocol=protocol,
        )

    def write(self, *lines: NewTopicRecord, read: bool = True, completes_first_read: bool = False) -> None:
        """Append to the config log; the herder reads the records if ``read``."""
        begin = len(self.config)
        self.config += lines
        if read:
            self.feed(
                ConfigLinesRead(
                    lines=_lines(lines, begin),
                    position=LogPosition(begin + len(lines)),
                    completes_first_read=completes_first_read,
                )
            )

    def read_last_line(self) -> None:
        """Let the herder read the last line of the config log."""
        begin = len(self.config) - 1
        self.feed(ConfigLinesRead(lines=_lines(self.config[begin:], begin), position=LogPosition(begin + 1)))

    def send_request(self, request: Request, attempt: WriteAttempt | None = None) -> RequestId:
        id_ = RequestId(self._requests)
        self._requests += 1
        fresh_incarnation = Incarnation(f"incarnation-{id_}")
        self.feed(RequestArrived(id=id_, request=request, fresh_incarnation=fresh_incarnation, attempt=attempt))
        return id_

    def answer(self, id_: RequestId) -> Answer | None:
        """The only answer to request ``id_``, or None."""
        answers = [order.answer for order in self.effects if isinstance(order, Reply) and order.id == id_]
        assert len(answers) <= 1, "answered twice"
        return answers[0] if answers else None

    def run_all_chores(self) -> None:
        """Run all chores, and the chores that follow from them, until none is left."""
        while chores := self.chores():
            for chore in chores:
                self.run_chore(chore)

    def chores(self) -> list[RunnableChore]:
        """Remove and return the effects that :meth:`run_chore` can run."""
        taken = [order for order in self.effects if isinstance(order, RunnableChore)]
        self.effects = [order for order in self.effects if not isinstance(order, RunnableChore)]
        return taken

    def run_chore(self, chore: RunnableChore) -> None:
        match chore:
            case StartTask(spec=start):
                self.feed(TaskStarted(task=start.task))
            case RestartTask(task=task):
                self.feed(TaskStarted(task=task))
            case StopTask(task=task):
                self.feed(TaskStopped(task=task))
            case SplitConnector(connector=name, config=config, config_line_offset=written_at):
                count = int(config.get("tasks.max", "1"))
                configs = [{"share": f"{number}/{count}"} for number in range(count)]
                self.feed(SplitSucceeded(connector=name, config_line_offset=written_at, task_configs=configs))
            case FindConfigLogEnd(purpose=purpose):
                self.feed(ConfigLogEndLookupEnded(purpose=purpose, end_offset=LogPosition(len(self.config))))
            case ValidateConfig(id=id_):
                self.feed(validated(id_))
            case AskPlugins(id=id_, question=question):
                is_list = isinstance(question, ListPlugins)
                self.feed(
                    PluginQuestionAnswered(
                        id=id_, answer=PluginList(plugins=PLUGINS) if is_list else PluginConfigKeys(keys=())
                    )
                )
            case ReadConnectorOffsets(id=id_) | ApplyOffsetChange(id=id_):
                self.feed(
                    OffsetReadEnded(id=id_) if isinstance(chore, ReadConnectorOffsets) else OffsetChangeEnded(id=id_)
                )
            case AppendConfigLines(purpose=append_purpose, lines=lines):
                self.write(*lines)
                self.feed(ConfigLinesAppended(purpose=append_purpose, end_offset=LogPosition(len(self.config))))
            case MakeSessionKey(size_bytes=size_bytes):
                self._keys += 1
                self.feed(SessionKeyMade(key=bytes([self._keys]) * size_bytes, wall_clock_ms=self.wall_ms))
            case CloseRequestIntake() | AppendStatusLines():
                self._run_last_chore(chore)

    def _run_last_chore(self, chore: CloseRequestIntake | AppendStatusLines) -> None:
        match chore:
            case CloseRequestIntake():
                self.feed(RequestIntakeClosed())
            case AppendStatusLines(lines=lines):
                begin = len(self.statuses)
                self.statuses += lines
                self.feed(StatusLinesRead(lines=_lines(lines, begin)))
                self.feed(StatusAppendEnded())


def _lines(lines: Sequence[NewTopicRecord], begin: int) -> list[TopicRecord]:
    return [
        TopicRecord(partition=0, offset=begin + i, timestamp_ms=0, key=line.key, value=line.value)
        for i, line in enumerate(lines)
    ]
