"""What workers need, without Spark and a broker: logs in memory, tasks that only report that they run, a group.

The group is classic (`tests.worker.connect_cluster` has a connect group), and the smallest one that fulfils
`Membership`: rebalances with all members' metadata in the newest protocol that all of them offer; the first member
leads; each member gets an assignment. Other tests cover coordinators and their failures.
"""

import asyncio
import inspect
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from coterie.assignors.members import RebalancePolicy
from coterie.config.definition import ConfigDef, ConfigKey, Type, at_least
from coterie.config.infos import ConfigInfos, make_config_infos
from coterie.config.plugins import Plugin, PluginType, find_plugin, sorted_as_in_connect
from coterie.engine.lease import LeaseDurations
from coterie.engine.log import LogProgress, NewTopicRecord, TopicRecord
from coterie.herder.messages import Exit
from coterie.herder.requests.kinds import Answer
from coterie.herder.requests.refusals import Problem, RequestRefused
from coterie.herder.requests.views import DescribeWorker, WorkerView
from coterie.herder.requests.writes import PutConnector, PutTaskConfigs
from coterie.herder.seams import (
    LeaderClient,
    Membership,
    SignatureRefusedError,
    SplitOrOffsetChangeAbortedError,
    SplitResult,
    TaskDied,
    TaskEvent,
    TaskHaltedWithoutOrder,
    TaskProgressed,
    TaskSpec,
)
from coterie.herder.session_keys import SessionKeySettings, SigningKey
from coterie.herder.state import HerderSettings
from coterie.member.classic.connect_translation import to_assigned, to_member_report, to_worker_assignments
from coterie.nouns.connector_offsets import ConnectorOffset, OffsetChange, OffsetsRefusedError
from coterie.nouns.errors import UnreachableError, WorldError, WriterFencedError
from coterie.nouns.ids import ConfigOffset, GenerationId, Incarnation, LogPosition, MemberId, WorkerId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Jobs
from coterie.nouns.logger_levels import LoggerLevel, is_same_or_descendant
from coterie.nouns.member_state import MemberState
from coterie.nouns.membership import (
    AssignmentsRequested,
    ComputedAssignments,
    ConfirmLeadership,
    GroupProtocolName,
    LeadershipConfirmed,
    LeaseRenewed,
    LeaveAndRejoin,
    MembershipEvent,
    MembershipLost,
    MembershipOrder,
    MemberStateChanged,
    Rejoin,
    SendAssignments,
    SetWorkerState,
    StopAllBeforeJoin,
    UpdateAssignor,
)
from coterie.nouns.target_assignments import AssignFunction
from coterie.wire.connect import ConnectProtocol, RoundToken, WorkerAssignment, WorkerMetadata
from coterie.wire.connect_bytes import (
    decode_version_and_assignment,
    decode_version_and_metadata,
    encode_assignment,
    encode_metadata,
)
from coterie.worker.worker import Worker, close_no_intake

SESSION_TIMEOUT_MS = 10_000
WINDOW_MS = 20
"""Short: other tests cover what a longer ``config.rebalance.window.ms`` saves."""


DEFINITION = ConfigDef(
    (
        ConfigKey(name="name", type=Type.STRING, documentation="The name.", is_optional=True),
        ConfigKey(name="connector.class", type=Type.CLASS, documentation="The class."),
        ConfigKey(name="tasks.max", type=Type.INT, documentation="Tasks.", default="1", validator=at_least(1)),
        ConfigKey(name="password", type=Type.PASSWORD, documentation="A password.", is_optional=True),
    )
)
"""The keys of each connector of a :class:`SimulatedRuntime`."""
PLUGINS = sorted_as_in_connect(
    (
        Plugin(class_name="simulated.Source", type=PluginType.SOURCE, version="1", aliases=("Source",)),
        Plugin(class_name="simulated.Sink", type=PluginType.SINK, version=None, aliases=("Sink",)),
        Plugin(class_name="simulated.Filter", type=PluginType.TRANSFORMATION, version="1", aliases=("Filter",)),
    )
)
"""The plug-ins of a :class:`SimulatedRuntime`. It accepts every other connector class, too."""


class MemoryLog:
    """`Log` of one partition in memory, with any number of followers."""

    def __init__(self) -> None:
        self.lines: list[TopicRecord] = []
        self.broken = False
        """Whether appending fails."""
        self.value_size_max: int | None = None
        """The size in bytes from which on a value cannot be appended; None: any value can."""
        self.unreachable = False
        """Whether reading the end offset fails."""
        self.truncated = False
        """Whether lines that followers had not read were deleted."""
        self.leader_openings = 0
        """How often the workers have opened the log as the leader."""
        self.end_lookups = 0
        """How often the end offset was read."""
        self._grown = asyncio.Event()

    async def append(self, lines: Sequence[NewTopicRecord]) -> int:
        if self.broken:
            raise WorldError("the log is broken")
        if self.value_size_max is not None and any(len(line.value or b"") >= self.value_size_max for line in lines):
            raise WorldError("the record is too large")
        for line in lines:
            self.lines.append(
                TopicRecord(partition=0, offset=len(self.lines), timestamp_ms=0, key=line.key, value=line.value)
            )
        self._grown.set()
        self._grown = asyncio.Event()
        return len(self.lines)

    async def end_position(self) -> int:
        self.end_lookups += 1
        if self.unreachable:
            raise WorldError("the log cannot be reached")
        return len(self.lines)

    async def follow(self) -> AsyncIterator[LogProgress]:
        read = len(self.lines)
        yield LogProgress(records=tuple(self.lines[:read]), position=LogPosition(read), completes_first_read=True)
        while True:
            grown = self._grown
            if self.truncated:
                raise WorldError("the log no longer has its first lines")
            if read < len(self.lines):
                lines = tuple(self.lines[read:])
                read += len(lines)
                yield LogProgress(records=lines, position=LogPosition(read))
            else:
                await grown.wait()

    def truncate(self) -> None:
        self.truncated = True
        self._grown.set()

    def latest(self) -> dict[bytes | None, bytes | None]:
        """The records that compaction would keep, tombstones included."""
        return {line.key: line.value for line in self.lines}

    def keys(self) -> list[str]:
        """The keys of the lines about connectors, without the session keys that some protocols write."""
        return [(line.key or b"").decode() for line in self.lines if line.key != b"session-key"]


class MemoryLeaderLog:
    """`LeaderLog` of one worker on a log in memory."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self._opening = 0

    async def open(self, *, transaction_timeout_ms: int) -> None:
        self._log.leader_openings += 1
        self._opening = self._log.leader_openings

    async def append(self, lines: Sequence[NewTopicRecord]) -> int:
        if self._opening != self._log.leader_openings:
            raise WriterFencedError("another worker writes as the leader")
        return await self._log.append(lines)


class RuntimeRegistry:
    """The runtimes of one group, which detects a task that runs in two of them."""

    def __init__(self) -> None:
        self.runtimes: list[SimulatedRuntime] = []
        self.double_starts: list[ConnectorTaskId] = []
        """Tasks that were started while they still ran in another runtime."""
        self.offsets: dict[tuple[ConnectorName, Incarnation], dict[str, ConnectorOffset]] = {}
        """The offsets of each connector, by partition, as all runtimes of a group share them."""

    def add(self, runtime: "SimulatedRuntime") -> None:
        runtime.registry = self
        self.runtimes.append(runtime)

    def check_start(self, starting: "SimulatedRuntime", task: ConnectorTaskId) -> None:
        if any(task in other.running for other in self.runtimes if other is not starting):
            self.double_starts.append(task)


class SimulatedRuntime:
    """`TaskRuntime` whose tasks run at once. A connector is split into ``tasks.max`` tasks."""

    def __init__(self) -> None:
        self.running: dict[ConnectorTaskId, TaskSpec] = {}
        self.starts: list[ConnectorTaskId] = []
        self.stops: list[ConnectorTaskId] = []
        self.restarts: list[ConnectorTaskId] = []
        self.dead: dict[ConnectorTaskId, TaskSpec] = {}
        """Tasks whose query failed and that still hold their checkpoint."""
        self.broken: dict[ConnectorTaskId, str] = {}
        """Tasks that cannot be restarted, and why."""
        self.blocked: dict[str, asyncio.Event] = {}
        """Calls that wait for the event; a key is ``validate``, ``split``, ``start`` or ``stop`` and a connector."""
        self.at_gates: set[str] = set()
        """The keys of ``blocked`` at which a call waits now."""
        self.outages: dict[ConnectorName, int] = {}
        """How many further splits of a connector fail because its server cannot be reached."""
        self.forgotten: list[ConnectorName] = []
        """Connectors for which the worker called `stop_connector`."""
        self.ended_starts: list[ConnectorTaskId] = []
        """Tasks for which the worker called `abort_task_start`."""
        self._failing_starts: set[ConnectorTaskId] = set()
        self.progressing = True
        self.loggers: dict[str, LoggerLevel] = {}
        """The levels of the loggers of a simulated JVM, by name; empty: no JVM runs."""
        self.opened = asyncio.Event()
        self.opens = asyncio.Event()
        self.opens.set()
        self.closed = False
        self.halted_at_s: list[float] = []
        self.halt_error: Exception | None = None
        """Raised at the end of each :meth:`halt_all_tasks`."""
        """The times at which all tasks were halted, on the monotonic clock."""
        self.failure: str | None = None
        """The error of `open`, or None."""
        self.registry = RuntimeRegistry()
        self._events: asyncio.Queue[TaskEvent] = asyncio.Queue()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self.opens.wait()
        if self.failure is not None:
            raise WorldError(self.failure)
        self.opened.set()

    async def close(self) -> None:
        self.running.clear()
        self.closed = True

    async def validate(
        self, config: Mapping[str, str], configs_of_checkpointed_tasks: Sequence[Mapping[str, str]]
    ) -> ConfigInfos:
        await self._pass("validate", config.get("name", ""))
        if "unjudgeable" in config:
            raise ValueError(config["unjudgeable"])
        if "unreachable" in config:
            raise WorldError(config["unreachable"])
        definition = self.definition(config.get("connector.class", ""))
        return make_config_infos(config.get("connector.class", ""), definition, config, definition.errors(config))

    def definition(self, connector_class: str) -> ConfigDef:
        """The keys of a connector; another runtime may have other ones."""
        return DEFINITION

    async def list_plugins(self) -> Sequence[Plugin]:
        await self._pass("list", "")
        return PLUGINS

    async def describe_plugin(self, name: str, version_range: str | None) -> Sequence[ConfigKey]:
        await self._pass("describe", name)
        plugin = find_plugin(await self.list_plugins(), name, version_range)
        return self.definition(plugin.class_name).keys if plugin.type.is_connector else ()

    def connector_type(self, config: Mapping[str, str]) -> str:
        return "sink" if "Sink" in config.get("connector.class", "") else "source"

    async def logger_levels(self) -> Mapping[str, LoggerLevel]:
        await self._pass("loggers", "")
        return dict(self.loggers)

    async def set_logger_level(self, name: str, level: LoggerLevel) -> None:
        await self._pass("set logger", name)
        names = [other for other in self.loggers if is_same_or_descendant(other, name)]
        self.loggers.update(dict.fromkeys([name, *names], level))

    def missing_jars(self) -> Mapping[str, str]:
        return {"kafka": "There are no jars for Kafka here"}

    async def split(
        self,
        connector: ConnectorName,
        incarnation: Incarnation,
        config: Mapping[str, str],
        configs_of_checkpointed_tasks: Sequence[Mapping[str, str]],
        *,
        keeps_source_parts: bool = False,
    ) -> SplitResult:
        await self._pass("split", connector)
        if "unsplittable" in config:
            raise WorldError(config["unsplittable"])
        if (outages := self.outages.get(connector, 0)) > 0:
            self.outages[connector] = outages - 1
            raise UnreachableError(f"the server of {connector} cannot be reached")
        count = int(config.get("tasks.max", "1"))
        return SplitResult(
            task_configs=[{**config, "share": f"{number} of {count}"} for number in range(count)],
            kept_source_parts_reason=config.get("postponement") if keeps_source_parts else None,
        )

    def stop_connector(self, connector: ConnectorName) -> None:
        self.forgotten.append(connector)

    async def read_offsets(
        self, connector: ConnectorName, incarnation: Incarnation, config: Mapping[str, str]
    ) -> Sequence[ConnectorOffset]:
        await self._pass("read offsets", connector)
        if "unreadable" in config:
            raise WorldError(config["unreadable"])
        return tuple(self.registry.offsets.get((connector, incarnation), {}).values())

    async def change_offsets(
        self,
        connector: ConnectorName,
        incarnation: Incarnation,
        config: Mapping[str, str],
        configs_of_checkpointed_tasks: Sequence[Mapping[str, str]],
        change: OffsetChange,
    ) -> None:
        stops = self.forgotten.count(connector)
        await self._pass("change offsets", connector)
        if self.forgotten.count(connector) > stops:
            raise SplitOrOffsetChangeAbortedError(f"The change of the offsets of {connector} was ended")
        offsets = {} if change.removes_others else self.registry.offsets.get((connector, incarnation), {}).copy()
        for offset in change.offsets:
            if offset.partition is None:
                raise OffsetsRefusedError("Partition objects cannot be null")
            offsets.pop(str(offset.partition), None)
            if offset.offset is not None:
                offsets[str(offset.partition)] = offset
        self.registry.offsets[connector, incarnation] = offsets

    async def ensure_open_checkpoint_generation(
        self, connector: ConnectorName, incarnation: Incarnation
    ) -> Sequence[Mapping[str, str]] | None:
        raise AssertionError("no task is closed here")

    async def start(self, spec: TaskSpec) -> None:
        await self._pass("start", spec.task.connector)
        if spec.task in self._failing_starts:
            self._failing_starts.remove(spec.task)
            raise WorldError("the start was ended")
        if "unstartable" in spec.config:
            raise WorldError(spec.config["unstartable"])
        assert spec.task not in self.running, f"{spec.task} is started twice"
        self.registry.check_start(self, spec.task)
        self.starts.append(spec.task)
        self.running[spec.task] = spec
        if self.progressing:
            topics = frozenset(spec.config["topics"].split(",") if "topics" in spec.config else ())
            self.emit(TaskProgressed(task=spec.task, batch_id=0, input_rows=10, topics=topics))

    def abort_task_start(self, task: ConnectorTaskId, *, grace_ms: int) -> None:
        """A start that waits in ``blocked`` fails at once."""
        self.ended_starts.append(task)
        if (key := f"start {task.connector}") in self.at_gates:
            self._failing_starts.add(task)
            self.blocked[key].set()

    async def restart(self, task: ConnectorTaskId) -> None:
        await self._pass("restart", task.connector)
        self.restarts.append(task)
        if task in self.broken:
            raise WorldError(self.broken[task])
        self.running[task] = self.dead.pop(task)

    async def stop(self, task: ConnectorTaskId, *, grace_ms: int) -> None:
        await self._pass("stop", task.connector)
        start = self.running.get(task)
        if start is not None and "unstoppable" in start.config:
            raise ValueError(start.config["unstoppable"])
        self.dead.pop(task, None)
        if self.running.pop(task, None) is not None:
            self.stops.append(task)

    def halt_all_tasks(self) -> None:
        halted, self.running = self.running, {}
        self.halted_at_s.append(time.monotonic())
        if self._loop is not None:
            for task in halted:
                self._loop.call_soon_threadsafe(self.emit, TaskHaltedWithoutOrder(task=task))
        if self.halt_error is not None:
            raise self.halt_error

    async def next_event(self) -> TaskEvent:
        return await self._events.get()

    def emit(self, event: TaskEvent) -> None:
        self._events.put_nowait(event)

    def fail_query(
        self, task: ConnectorTaskId, trace: str, *, holds_checkpoint: bool = True, can_restart: bool = True
    ) -> None:
        """Make the query of ``task`` fail."""
        start = self.running.pop(task)
        if holds_checkpoint:
            self.dead[task] = start
        self.emit(TaskDied(task=task, trace=trace, holds_checkpoint=holds_checkpoint, can_restart=can_restart))

    async def _pass(self, what: str, connector: str) -> None:
        key = f"{what} {connector}"
        if (gate := self.blocked.get(key)) is not None:
            self.at_gates.add(key)
            await gate.wait()
            self.at_gates.discard(key)


class SimulatedGroup:
    """A group's coordinator and its members."""

    def __init__(self) -> None:
        self.members: dict[MemberId, SimulatedMembership] = {}
        self.generation = GenerationId(0)
        self.rounds = 0
        self.protocol = ConnectProtocol.STATIC
        """The protocol that the last rebalance selected."""
        self.gathers = False
        """Whether a rebalance waits for members that must stop their jobs first."""
        self._count = 0

    def join(self, url: WorkerUrl, offers: ConnectProtocol) -> "SimulatedMembership":
        self._count += 1
        return SimulatedMembership(self, MemberId(f"member-{self._count}"), url, offers)

    def begin_rebalance(self) -> None:
        """All members join with their last metadata as soon as those that must stop their jobs first have done so."""
        self.gathers = True
        for member in self.members.values():
            member.prepare()
        self.go_on()

    def go_on(self) -> None:
        """Complete the rebalance; the first member leads."""
        if not self.gathers or not self.members or any(member.releases for member in self.members.values()):
            return
        self.gathers = False
        self.generation = GenerationId(self.generation + 1)
        self.rounds += 1
        self.protocol = min(member.offers for member in self.members.values())
        for member in self.members.values():
            member.emit(MemberStateChanged(state=MemberState.PREPARING_REBALANCE))
            member.last_protocol = self.protocol
        leader = next(iter(self.members))
        members = {
            id_: to_member_report(one.metadata(leader), None, self.protocol) for id_, one in self.members.items()
        }
        token = RoundToken(generation=self.generation, protocol=self.protocol)
        self.members[leader].emit(AssignmentsRequested(token=token, member_id=leader, members=members))

    def install(self, leader: MemberId, leader_url: WorkerUrl, token: object, computed: ComputedAssignments) -> None:
        generation = RoundToken.checked_instance(token).generation
        if generation != self.generation:
            return
        for id_, assignment in to_worker_assignments(computed, leader=leader, leader_url=leader_url).items():
            if id_ in self.members:
                self.members[id_].receive(generation, assignment)


class SimulatedMembership:
    """`Membership` in a :class:`SimulatedGroup`."""

    def __init__(self, group: SimulatedGroup, id_: MemberId, url: WorkerUrl, offers: ConnectProtocol) -> None:
        self.id = id_
        self.offers = offers
        self.last_protocol: ConnectProtocol | None = None
        """The protocol of the last rebalance in which this member took part."""
        self.releases = False
        """Whether the member is stopping all its jobs before it joins."""
        self.left = False
        self._group = group
        self._url = url
        self._config_offset = ConfigOffset(-1)
        self._owned: Jobs = NO_JOBS
        self._handed: Jobs = NO_JOBS
        """Assigned jobs that the herder does not own yet."""
        self._events: asyncio.Queue[MembershipEvent] = asyncio.Queue()
        self._has_begun = False
        self._rejoins_without_work = False
        self._unconfirmed: int | None = None
        """The token of an order to confirm this member as the leader."""

    def prepare(self) -> None:
        if self.last_protocol is ConnectProtocol.EAGER and (self._owned or self._handed) and not self.releases:
            self.releases = True
            self.emit(StopAllBeforeJoin())

    def receive(self, generation: GenerationId, assignment: WorkerAssignment) -> None:
        protocol = self._group.protocol
        _, received = decode_version_and_assignment(encode_assignment(protocol, assignment))
        self._handed = received.assigned - self._owned
        self.emit(to_assigned(self.id, received, generation=generation, protocol=protocol))
        self._confirm_leadership()

    def metadata(self, leader: MemberId) -> WorkerMetadata:
        """This member's metadata as its leader decodes it."""
        allocation = WorkerAssignment(
            leader=leader,
            leader_url=self._url,
            config_offset=self._config_offset,
            assigned=self._owned | self._handed,
        )
        sent = WorkerMetadata(url=self._url, config_offset=self._config_offset, allocation=allocation)
        return decode_version_and_metadata(encode_metadata(self._group.protocol, sent))[1]

    def order(self, order: MembershipOrder | UpdateAssignor) -> None:
        match order:
            case SetWorkerState(config_offset=config_offset, owned=owned):
                self._subscribe(config_offset, owned)
            case Rejoin():
                if self.id in self._group.members:
                    self._group.begin_rebalance()
            case SendAssignments(token=token, computed=computed):
                self._group.install(self.id, self._url, token, computed)
            case ConfirmLeadership(token=token):
                self._unconfirmed = token
                self._confirm_leadership()
            case LeaveAndRejoin(reason=reason):
                self.lose(reason)
            case other:
                raise AssertionError(f"{type(other).__name__} is no order to this member")

    def _confirm_leadership(self) -> None:
        """Confirm that this member is the leader, as the next heartbeat does; a member that is not keeps the order."""
        if self._unconfirmed is not None and self.id == next(iter(self._group.members), None):
            self.emit(LeadershipConfirmed(token=self._unconfirmed))
            self._unconfirmed = None

    def _subscribe(self, config_offset: ConfigOffset, owned: Jobs) -> None:
        self._config_offset, self._owned = config_offset, owned
        if self._handed <= owned:
            self._handed = NO_JOBS
        if self.releases and not (owned or self._handed):
            self.releases = False
            self._group.go_on()
        if not self._has_begun or (self._rejoins_without_work and not owned):
            self._has_begun, self._rejoins_without_work = True, False
            self.enter()

    async def leave(self, reason: str, *, is_permanent: bool = False) -> None:
        self.left = True
        self._group.members.pop(self.id, None)
        self._group.begin_rebalance()

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def next_event(self) -> MembershipEvent:
        return await self._events.get()

    def emit(self, event: MembershipEvent) -> None:
        self._events.put_nowait(event)

    def answer_heartbeat(self, sent_at_ms: int) -> None:
        lease = LeaseDurations(SESSION_TIMEOUT_MS)
        self.emit(LeaseRenewed(lease_ends_ms=sent_at_ms + lease.duration_ms, session_timeout_ms=SESSION_TIMEOUT_MS))

    def lose(self, reason: str) -> None:
        """The coordinator removes the member; the member rejoins as soon as it owns no job."""
        self._group.members.pop(self.id, None)
        self.last_protocol, self.releases = None, False
        self.emit(MembershipLost(reason=reason))
        self._rejoins_without_work = True
        self._group.begin_rebalance()

    def enter(self) -> None:
        self._group.members[self.id] = self
        self._group.begin_rebalance()

    def begin_endless_rebalance(self) -> None:
        """Begin a rebalance that does not end."""
        self.emit(MemberStateChanged(state=MemberState.PREPARING_REBALANCE))

    def set_stale_leader_url(self, leader_url: str) -> None:
        """Receive an assignment that changes only the leader's URL."""
        assignment = WorkerAssignment(
            leader=MemberId("elsewhere"), leader_url=WorkerUrl(leader_url), config_offset=ConfigOffset(-1)
        )
        self.emit(to_assigned(self.id, assignment, generation=self._group.generation, protocol=self._group.protocol))


# -- workers ----------------------------------------------------------------------------------------------------------


async def until(condition: Callable[[], object | Awaitable[object]], *, within_s: float = 30.0) -> None:
    """Wait until ``condition``, or the awaitable that it returns, is true; the default suits a busy machine.

    The interval between two calls grows to a tenth of the time waited so far, and to 50 ms at most: a condition that
    sends requests would otherwise take the CPU from the workers for which it waits.
    """
    began_s = time.monotonic()
    async with asyncio.timeout(within_s):
        while True:
            holds = condition()
            if await holds if inspect.isawaitable(holds) else holds:
                return
            await asyncio.sleep(min(max(0.005, (time.monotonic() - began_s) / 10), 0.05))


class LocalLeaderClient:
    """`LeaderClient` that finds the leader in its own process."""

    def __init__(self, workers: Mapping[WorkerUrl, Worker]) -> None:
        self._workers = workers

    async def publish_task_configs(
        self,
        leader_url: WorkerUrl,
        connector: ConnectorName,
        incarnation: Incarnation,
        configs: Sequence[Mapping[str, str]],
        signing_key: SigningKey | None,
    ) -> None:
        signature = signing_key.signature(b"as sent") if signing_key is not None else None
        request = PutTaskConfigs(connector=connector, configs=configs, signature=signature, incarnation=incarnation)
        answer = await self._workers[leader_url].ask(request)
        if isinstance(answer, RequestRefused):
            refused = SignatureRefusedError if answer.problem is Problem.FORBIDDEN else WorldError
            raise refused(answer.message)


class ClusterMembership(Membership, Protocol):
    """A worker's membership of the group of its cluster."""

    id: MemberId
    left: bool
    """Whether the worker has ordered it to leave."""


@dataclass
class Running:
    """One worker and its shells."""

    worker: Worker
    runtime: SimulatedRuntime
    membership: ClusterMembership
    run: asyncio.Task[Exit]

    @property
    def simulated_membership(self) -> SimulatedMembership:
        """The membership of a worker in a :class:`SimulatedGroup`."""
        assert isinstance(self.membership, SimulatedMembership)
        return self.membership


class Cluster:
    """Workers that share two logs and a group. Make workers with :meth:`start`; end it as a context manager."""

    group_protocol = GroupProtocolName.CLASSIC

    def __init__(self, *, protocol: ConnectProtocol = ConnectProtocol.STATIC, rebalance_delay_max_ms: int = 0) -> None:
        self.protocol = protocol
        """The newest protocol that its workers offer; they also offer all older ones."""
        self.config_log = MemoryLog()
        self.status_log = MemoryLog()
        self.session_keys = SessionKeySettings()
        """Settings of the workers that start from now on."""
        self.request_timeout_ms = 90_000
        """The time limit of writes on the workers that start from now on."""
        self.group = SimulatedGroup()
        self.workers: list[Running] = []
        self.floor = RuntimeRegistry()
        self._by_url: dict[WorkerUrl, Worker] = {}
        self._delay_max_ms = rebalance_delay_max_ms

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for running in self.workers:
            running.worker.order_shutdown("the test is over")
        for running in self.workers:
            async with asyncio.timeout(30):
                await running.run
        assert not self.floor.double_starts

    async def start(
        self,
        *,
        runtime: SimulatedRuntime | None = None,
        wait: bool = True,
        port: int = 0,
        protocol: ConnectProtocol | None = None,
        run: Callable[[Worker], Coroutine[object, object, Exit]] = Worker.run,
        topic_tracking_enabled: bool = True,
        close_intake: Callable[[], Awaitable[None]] = close_no_intake,
    ) -> Running:
        """Start a worker that executes ``run``; with ``wait``, return when it has its first assignment."""
        number = len(self.workers) + 1
        host = f"127.0.0.1:{port or 8082 + number}"
        url = WorkerUrl(f"http://{host}/")
        runtime = runtime or SimulatedRuntime()
        self.floor.add(runtime)
        policy = RebalancePolicy(max_delay_ms=self._delay_max_ms)
        membership = self.join(url, policy, self.protocol if protocol is None else protocol)
        settings = HerderSettings(
            worker_id=WorkerId(host),
            url=url,
            coterie_version="0.1.0",
            group_protocol=self.group_protocol,
            rebalance_policy=policy,
            rebalance_window_ms=WINDOW_MS,
            session_key_settings=self.session_keys,
            topic_tracking_enabled=topic_tracking_enabled,
            request_timeout_ms=self.request_timeout_ms,
        )
        worker = Worker(
            settings=settings,
            config_log=self.config_log,
            leader_log=MemoryLeaderLog(self.config_log),
            status_log=self.status_log,
            membership=membership,
            runtime=runtime,
            leader_client=self.leader_client(),
            assignors=self.assignors(policy),
            close_intake=close_intake,
        )
        self._by_url[url] = worker
        running = Running(worker=worker, runtime=runtime, membership=membership, run=asyncio.create_task(run(worker)))
        self.workers.append(running)
        if wait:
            await self.settle()
        return running

    def join(self, url: WorkerUrl, policy: RebalancePolicy, protocol: ConnectProtocol) -> ClusterMembership:
        """The membership of a new worker."""
        return self.group.join(url, protocol)

    def assignors(self, policy: RebalancePolicy) -> Mapping[str, AssignFunction]:
        """The assignors that a new worker offers to its group."""
        return {}

    async def lose(self, running: Running) -> None:
        """Let the coordinator remove the worker from the group."""
        running.simulated_membership.lose("no answer for too long")

    def leader_client(self) -> LeaderClient:
        return LocalLeaderClient(self._by_url)

    async def settle(self) -> None:
        """Wait until all running workers are in one generation and run exactly the tasks assigned to them."""
        await until(self._is_settled)

    async def _is_settled(self) -> bool:
        living = [running for running in self.workers if not running.run.done()]
        views = [await running.worker.ask(DescribeWorker()) for running in living]
        generation = self.settled_generation
        return all(
            isinstance(view, WorkerView)
            and view.has_current_assignment
            and view.generation == generation
            and view.config_offset >= max(len(self.config_log.lines), -1) - (not self.config_log.lines)
            for view in views
        )

    async def create(self, name: str, *, tasks: int = 1, **config: str) -> Answer:
        """Create a connector through the leader."""
        body = {"connector.class": "SimulatedSource", "tasks.max": str(tasks), **config, "name": name}
        return await self.leader.worker.ask(
            PutConnector(connector=ConnectorName(name), config=body, may_replace=bool(config))
        )

    @property
    def leader(self) -> Running:
        leader_id = self.leader_id
        return next(running for running in self.workers if running.membership.id == leader_id)

    @property
    def leader_id(self) -> MemberId:
        """The member id of the group's leader."""
        return next(iter(self.group.members))

    @property
    def has_begun(self) -> bool:
        """Whether a worker has ever joined the group."""
        return self.group.rounds > 0

    @property
    def settled_generation(self) -> int | None:
        """The generation or group epoch of the group; None while it is not settled."""
        return None if self.group.gathers else self.group.generation

    @property
    def stops_all(self) -> bool:
        """Whether every rebalance stops every task, as in the eager protocol."""
        return self.protocol is ConnectProtocol.EAGER

    def running_tasks(self) -> list[str]:
        """All running tasks; a task occurs once for each worker that runs it."""
        return sorted(str(task) for one in self.workers for task in one.runtime.running)

    def starts(self) -> Counter[str]:
        return Counter(str(task) for one in self.workers for task in one.runtime.starts)
