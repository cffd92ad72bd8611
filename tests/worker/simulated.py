"""A world for workers without Spark and without a broker: logs in memory, tasks that only say that they run, a group.

The group is the smallest one that keeps the promises of `Membership`: rounds with everybody's metadata in the protocol
that all offer, the first member leads, an assignment for each. Coordinators and their failures are tested where they
are written.
"""

import asyncio
import inspect
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass

from coterie.assignors.members import Policy
from coterie.engine.lease import Lease
from coterie.engine.log import Line, NewLine
from coterie.herder.messages import Exit
from coterie.herder.requests import (
    Answer,
    DescribeWorker,
    Problem,
    PutConnector,
    PutTaskConfigs,
    RequestRefused,
    WorkerView,
)
from coterie.herder.seams import (
    LeaderClient,
    SignatureRefusedError,
    TaskDied,
    TaskEvent,
    TaskHalted,
    TaskProgressed,
    TaskStart,
)
from coterie.herder.session_keys import SessionKeySettings, Signing
from coterie.herder.state import HerderSettings
from coterie.member.classic.reports import assigned_to, assignments_of, report_of
from coterie.nouns.errors import UnreachableError, WorldError
from coterie.nouns.ids import ConfigOffset, Generation, Incarnation, MemberId, WorkerId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Jobs
from coterie.nouns.membership import (
    Abandon,
    AssignmentWanted,
    Computed,
    Install,
    Lost,
    MembershipEvent,
    MemberState,
    MemberStateChanged,
    MustReleaseAll,
    ProvedUntil,
    Rejoin,
    Subscribe,
)
from coterie.wire.connect import ConnectProtocol, RoundToken, WorkerAssignment, WorkerMetadata
from coterie.wire.connect_bytes import decode_assignment, decode_metadata, encode_assignment, encode_metadata
from coterie.worker.worker import Worker

SESSION_TIMEOUT_MS = 10_000
WINDOW_MS = 20
"""Short: what a longer ``config.rebalance.window.ms`` saves is tested where it is written."""


class MemoryLog:
    """`Log` of one partition in memory; any number may follow it."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.broken = False
        """Nothing can be appended."""
        self.away = False
        """Its end cannot be asked for."""
        self.truncated = False
        """Lines that its followers have read are gone."""
        self.looks = 0
        """How often its end was asked for."""
        self._grown = asyncio.Event()

    async def append(self, lines: Sequence[NewLine]) -> int:
        if self.broken:
            raise WorldError("the log is broken")
        for line in lines:
            self.lines.append(Line(partition=0, offset=len(self.lines), timestamp_ms=0, key=line.key, value=line.value))
        self._grown.set()
        self._grown = asyncio.Event()
        return len(self.lines)

    async def end_offset(self) -> int:
        self.looks += 1
        if self.away:
            raise WorldError("the log is away")
        return len(self.lines)

    async def follow(self) -> AsyncIterator[Sequence[Line]]:
        read = len(self.lines)
        if read:
            yield tuple(self.lines[:read])
        yield ()
        while True:
            grown = self._grown
            if self.truncated:
                raise WorldError("the log no longer has its first lines")
            if read < len(self.lines):
                lines = tuple(self.lines[read:])
                read += len(lines)
                yield lines
            else:
                await grown.wait()

    def truncate(self) -> None:
        self.truncated = True
        self._grown.set()

    def latest(self) -> dict[bytes | None, bytes | None]:
        """What compaction would keep, tombstones included."""
        return {line.key: line.value for line in self.lines}

    def keys(self) -> list[str]:
        """Of its lines about connectors: in some protocols session keys stand between them."""
        return [(line.key or b"").decode() for line in self.lines if line.key != b"session-key"]


class Floor:
    """The runtimes of one group: what runs in one of them runs in no other."""

    def __init__(self) -> None:
        self.runtimes: list[SimulatedRuntime] = []
        self.twice: list[ConnectorTaskId] = []
        """What was started while it still ran elsewhere."""

    def take_in(self, runtime: "SimulatedRuntime") -> None:
        runtime.floor = self
        self.runtimes.append(runtime)

    def look(self, starting: "SimulatedRuntime", task: ConnectorTaskId) -> None:
        if any(task in other.running for other in self.runtimes if other is not starting):
            self.twice.append(task)


class SimulatedRuntime:
    """`TaskRuntime` whose tasks run at once. A connector is split into ``tasks.max`` tasks."""

    def __init__(self) -> None:
        self.running: dict[ConnectorTaskId, TaskStart] = {}
        self.starts: list[ConnectorTaskId] = []
        self.stops: list[ConnectorTaskId] = []
        self.restarts: list[ConnectorTaskId] = []
        self.dead: dict[ConnectorTaskId, TaskStart] = {}
        """Tasks whose query died, and that hold their checkpoint."""
        self.broken: dict[ConnectorTaskId, str] = {}
        """Tasks that cannot be restarted, and why."""
        self.blocked: dict[str, asyncio.Event] = {}
        """By ``validate``, ``split``, ``start`` or ``stop`` and a connector: held up until set."""
        self.at_gates: set[str] = set()
        """The keys of ``blocked`` whose events are awaited now."""
        self.outages: dict[ConnectorName, int] = {}
        """How often the split of a connector is still to find its server away."""
        self.forgotten: list[ConnectorName] = []
        """Connectors of which the worker wants no split any more."""
        self.progressing = True
        self.opened = asyncio.Event()
        self.opens = asyncio.Event()
        self.opens.set()
        self.closed = False
        self.halted_at_s: list[float] = []
        """When everything was stopped at once, on the monotonic clock."""
        self.failure: str | None = None
        """When set, opening fails with it."""
        self.floor = Floor()
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
        self, config: Mapping[str, str], checkpointed: Sequence[Mapping[str, str]]
    ) -> Mapping[str, Sequence[str]]:
        await self._pass("validate", config.get("name", ""))
        if "unjudgeable" in config:
            raise ValueError(config["unjudgeable"])
        if "unreachable" in config:
            raise WorldError(config["unreachable"])
        if "connector.class" not in config:
            missing = 'Missing required configuration "connector.class" which has no default value.'
            return {"connector.class": [missing]}
        tasks_max = config.get("tasks.max", "1")
        if not tasks_max.isdecimal() or tasks_max == "0":
            return {"tasks.max": [f"Invalid value {tasks_max} for configuration tasks.max: Value must be at least 1"]}
        return {}

    def connector_type(self, config: Mapping[str, str]) -> str:
        return "sink" if "Sink" in config.get("connector.class", "") else "source"

    def lacks(self) -> Mapping[str, str]:
        return {"kafka": "There are no jars for Kafka here"}

    async def split(
        self,
        connector: ConnectorName,
        incarnation: Incarnation,
        config: Mapping[str, str],
        checkpointed: Sequence[Mapping[str, str]],
        *,
        keeps_split: bool = False,
    ) -> Sequence[Mapping[str, str]]:
        await self._pass("split", connector)
        if "unsplittable" in config:
            raise WorldError(config["unsplittable"])
        if (outages := self.outages.get(connector, 0)) > 0:
            self.outages[connector] = outages - 1
            raise UnreachableError(f"the server of {connector} is away")
        count = int(config.get("tasks.max", "1"))
        return [{**config, "share": f"{number} of {count}"} for number in range(count)]

    def forget(self, connector: ConnectorName) -> None:
        self.forgotten.append(connector)

    async def finish(self, connector: ConnectorName, incarnation: Incarnation) -> Sequence[Mapping[str, str]] | None:
        raise AssertionError("no task is closed here")

    async def start(self, start: TaskStart) -> None:
        await self._pass("start", start.task.connector)
        if "unstartable" in start.config:
            raise WorldError(start.config["unstartable"])
        assert start.task not in self.running, f"{start.task} is started twice"
        self.floor.look(self, start.task)
        self.starts.append(start.task)
        self.running[start.task] = start
        if self.progressing:
            self.say(TaskProgressed(task=start.task, batch_id=0, input_rows=10))

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

    def stop_everything_now(self) -> None:
        halted, self.running = self.running, {}
        self.halted_at_s.append(time.monotonic())
        if self._loop is not None:
            for task in halted:
                self._loop.call_soon_threadsafe(self.say, TaskHalted(task=task))

    async def next_event(self) -> TaskEvent:
        return await self._events.get()

    def say(self, event: TaskEvent) -> None:
        self._events.put_nowait(event)

    def die(self, task: ConnectorTaskId, trace: str, *, is_held: bool = True, can_restart: bool = True) -> None:
        """The query of ``task`` dies."""
        start = self.running.pop(task)
        if is_held:
            self.dead[task] = start
        self.say(TaskDied(task=task, trace=trace, is_held=is_held, can_restart=can_restart))

    async def _pass(self, what: str, connector: str) -> None:
        key = f"{what} {connector}"
        if (gate := self.blocked.get(key)) is not None:
            self.at_gates.add(key)
            await gate.wait()
            self.at_gates.discard(key)


class SimulatedGroup:
    """A group's coordinator, and all of its members' sides."""

    def __init__(self) -> None:
        self.members: dict[MemberId, SimulatedMembership] = {}
        self.generation = Generation(0)
        self.rounds = 0
        self.protocol = ConnectProtocol.STATIC
        """What the members have voted for in the last round."""
        self.gathers = False
        """A round is to begin, and waits for members that have to stop first."""
        self._count = 0

    def join(self, url: WorkerUrl, offers: ConnectProtocol) -> "SimulatedMembership":
        self._count += 1
        return SimulatedMembership(self, MemberId(f"member-{self._count}"), url, offers)

    def begin_round(self) -> None:
        """As soon as nothing runs where it may not, everybody joins with what it said last."""
        self.gathers = True
        for member in self.members.values():
            member.prepare()
        self.go_on()

    def go_on(self) -> None:
        """The first member leads."""
        if not self.gathers or not self.members or any(member.releases for member in self.members.values()):
            return
        self.gathers = False
        self.generation = Generation(self.generation + 1)
        self.rounds += 1
        self.protocol = min(member.offers for member in self.members.values())
        for member in self.members.values():
            member.say(MemberStateChanged(state=MemberState.PREPARING_REBALANCE))
            member.heard = self.protocol
        leader = next(iter(self.members))
        members = {id_: report_of(one.metadata(leader), None, self.protocol) for id_, one in self.members.items()}
        token = RoundToken(generation=self.generation, protocol=self.protocol)
        self.members[leader].say(AssignmentWanted(token=token, member_id=leader, members=members))

    def install(self, leader: MemberId, leader_url: WorkerUrl, token: object, computed: Computed) -> None:
        generation = RoundToken.of(token).generation
        if generation != self.generation:
            return
        for id_, assignment in assignments_of(computed, leader=leader, leader_url=leader_url).items():
            if id_ in self.members:
                self.members[id_].receive(generation, assignment)


class SimulatedMembership:
    """`Membership` in a :class:`SimulatedGroup`."""

    def __init__(self, group: SimulatedGroup, id_: MemberId, url: WorkerUrl, offers: ConnectProtocol) -> None:
        self.id = id_
        self.offers = offers
        self.heard: ConnectProtocol | None = None
        """What the group had voted for when it last joined."""
        self.releases = False
        """It stops everything before it joins."""
        self.left = False
        self._group = group
        self._url = url
        self._config_offset = ConfigOffset(-1)
        self._owned: Jobs = NO_JOBS
        self._handed: Jobs = NO_JOBS
        """Assigned, and the herder has not taken it up yet."""
        self._events: asyncio.Queue[MembershipEvent] = asyncio.Queue()
        self._has_begun = False
        self._rejoins_without_work = False

    def prepare(self) -> None:
        if self.heard is ConnectProtocol.EAGER and (self._owned or self._handed) and not self.releases:
            self.releases = True
            self.say(MustReleaseAll())

    def receive(self, generation: Generation, assignment: WorkerAssignment) -> None:
        protocol = self._group.protocol
        _, told = decode_assignment(encode_assignment(protocol, assignment))
        self._handed = told.assigned - self._owned
        self.say(assigned_to(self.id, told, generation=generation, protocol=protocol))

    def metadata(self, leader: MemberId) -> WorkerMetadata:
        """What its leader reads of it."""
        allocation = WorkerAssignment(
            leader=leader,
            leader_url=self._url,
            config_offset=self._config_offset,
            assigned=self._owned | self._handed,
        )
        said = WorkerMetadata(url=self._url, config_offset=self._config_offset, allocation=allocation)
        return decode_metadata(encode_metadata(self._group.protocol, said))[1]

    def order(self, order: Subscribe | Rejoin | Install | Abandon) -> None:
        match order:
            case Subscribe(config_offset=config_offset, owned=owned):
                self._subscribe(config_offset, owned)
            case Rejoin():
                if self.id in self._group.members:
                    self._group.begin_round()
            case Install(token=token, computed=computed):
                self._group.install(self.id, self._url, token, computed)
            case Abandon(reason=reason):
                self.lose(reason)

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

    async def leave(self, reason: str, *, for_good: bool = False) -> None:
        self.left = True
        self._group.members.pop(self.id, None)
        self._group.begin_round()

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def next_event(self) -> MembershipEvent:
        return await self._events.get()

    def say(self, event: MembershipEvent) -> None:
        self._events.put_nowait(event)

    def answer_heartbeat(self, sent_at_ms: int) -> None:
        lease = Lease(SESSION_TIMEOUT_MS)
        self.say(ProvedUntil(until_ms=sent_at_ms + lease.proved_ms, session_timeout_ms=SESSION_TIMEOUT_MS))

    def lose(self, reason: str) -> None:
        """The coordinator removes the member; it joins again as soon as it owns nothing."""
        self._group.members.pop(self.id, None)
        self.heard, self.releases = None, False
        self.say(Lost(reason=reason))
        self._rejoins_without_work = True
        self._group.begin_round()

    def enter(self) -> None:
        self._group.members[self.id] = self
        self._group.begin_round()

    def begin_silent_round(self) -> None:
        """A round that nobody ends."""
        self.say(MemberStateChanged(state=MemberState.PREPARING_REBALANCE))

    def mislead(self, leader_url: str) -> None:
        """An assignment that changes nothing, but for where the leader is said to be."""
        assignment = WorkerAssignment(
            leader=MemberId("elsewhere"), leader_url=WorkerUrl(leader_url), config_offset=ConfigOffset(-1)
        )
        self.say(assigned_to(self.id, assignment, generation=self._group.generation, protocol=self._group.protocol))


# -- workers in it ----------------------------------------------------------------------------------------------------


async def until(condition: Callable[[], object | Awaitable[object]], *, within_s: float = 30.0) -> None:
    """Wait until ``condition``, or what it returns once awaited, holds; generous, for machines are noisy."""
    async with asyncio.timeout(within_s):
        while True:
            holds = condition()
            if await holds if inspect.isawaitable(holds) else holds:
                return
            await asyncio.sleep(0.005)


class LocalLeaderClient:
    """`LeaderClient` that finds the leader in its own process."""

    def __init__(self, workers: Mapping[WorkerUrl, Worker]) -> None:
        self._workers = workers

    async def publish_task_configs(
        self,
        leader_url: WorkerUrl,
        connector: ConnectorName,
        configs: Sequence[Mapping[str, str]],
        signing: Signing | None,
    ) -> None:
        signature = signing.signature(b"as sent") if signing is not None else None
        request = PutTaskConfigs(connector=connector, configs=configs, signature=signature)
        answer = await self._workers[leader_url].ask(request)
        if isinstance(answer, RequestRefused):
            refused = SignatureRefusedError if answer.problem is Problem.FORBIDDEN else WorldError
            raise refused(answer.message)


@dataclass
class Running:
    """One worker and its shells."""

    worker: Worker
    runtime: SimulatedRuntime
    membership: SimulatedMembership
    run: asyncio.Task[Exit]


class Cluster:
    """Workers that share two logs and a group. Make workers with :meth:`start`; end it as a context manager."""

    def __init__(self, *, protocol: ConnectProtocol = ConnectProtocol.STATIC, rebalance_delay_max_ms: int = 0) -> None:
        self.protocol = protocol
        """What its workers offer, with all older ones."""
        self.config_log = MemoryLog()
        self.status_log = MemoryLog()
        self.session_keys = SessionKeySettings()
        """What workers are told that start from now on."""
        self.group = SimulatedGroup()
        self.workers: list[Running] = []
        self.floor = Floor()
        self._by_url: dict[WorkerUrl, Worker] = {}
        self._delay_max_ms = rebalance_delay_max_ms

    async def __aenter__(self) -> "Cluster":
        return self

    async def __aexit__(self, *_: object) -> None:
        for running in self.workers:
            running.worker.order_shutdown("the test is over")
        for running in self.workers:
            async with asyncio.timeout(30):
                await running.run
        assert not self.floor.twice

    async def start(
        self,
        *,
        runtime: SimulatedRuntime | None = None,
        wait: bool = True,
        port: int = 0,
        protocol: ConnectProtocol | None = None,
        run: Callable[[Worker], Coroutine[object, object, Exit]] = Worker.run,
    ) -> Running:
        """A worker that does ``run``; returned when it has its first assignment, unless not to ``wait``."""
        number = len(self.workers) + 1
        host = f"127.0.0.1:{port or 8082 + number}"
        url = WorkerUrl(f"http://{host}/")
        runtime = runtime or SimulatedRuntime()
        self.floor.take_in(runtime)
        membership = self.group.join(url, self.protocol if protocol is None else protocol)
        settings = HerderSettings(
            worker_id=WorkerId(host),
            url=url,
            version="0.1.0",
            policy=Policy(max_delay_ms=self._delay_max_ms),
            rebalance_window_ms=WINDOW_MS,
            session_keys=self.session_keys,
        )
        worker = Worker(
            settings=settings,
            config_log=self.config_log,
            status_log=self.status_log,
            membership=membership,
            runtime=runtime,
            leader_client=self.leader_client(),
        )
        self._by_url[url] = worker
        running = Running(worker=worker, runtime=runtime, membership=membership, run=asyncio.create_task(run(worker)))
        self.workers.append(running)
        if wait:
            await self.settle()
        return running

    def leader_client(self) -> LeaderClient:
        return LocalLeaderClient(self._by_url)

    async def settle(self) -> None:
        """Until all living workers are in one generation and run exactly what they have."""
        await until(self._is_settled)

    async def _is_settled(self) -> bool:
        living = [running for running in self.workers if not running.run.done()]
        views = [await running.worker.ask(DescribeWorker()) for running in living]
        return all(
            isinstance(view, WorkerView)
            and view.settled
            and view.generation == self.group.generation
            and not self.group.gathers
            and view.config_offset >= max(len(self.config_log.lines), -1) - (not self.config_log.lines)
            for view in views
        )

    async def create(self, name: str, *, tasks: int = 1, **config: str) -> Answer:
        """Ask the leader for a connector."""
        body = {"connector.class": "SimulatedSource", "tasks.max": str(tasks), **config, "name": name}
        return await self.leader.worker.ask(
            PutConnector(connector=ConnectorName(name), config=body, replace=bool(config))
        )

    @property
    def leader(self) -> Running:
        leader = next(iter(self.group.members.values()))
        return next(running for running in self.workers if running.membership is leader)

    @property
    def stops_all(self) -> bool:
        """Every round stops every task: whoever promises less than that promises it for the other protocols."""
        return self.protocol is ConnectProtocol.EAGER

    def running_tasks(self) -> list[str]:
        """All tasks that run anywhere, once for each worker that runs it."""
        return sorted(str(task) for one in self.workers for task in one.runtime.running)

    def starts(self) -> Counter[str]:
        return Counter(str(task) for one in self.workers for task in one.runtime.starts)
