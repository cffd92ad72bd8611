"""Workers with simulated tasks on a broker, over TCP: topics, group and take-over are real, Spark is not."""

import asyncio
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from coterie.assignors.connect.cooperative import CooperativeAssignor
from coterie.assignors.connect.interface import ConnectAssignor
from coterie.assignors.members import RebalancePolicy
from coterie.cli.assignors import assign_functions_by_name, read_and_check_offered_assignor
from coterie.config.defaults import CONNECTION_GRACE_MS
from coterie.herder.messages import Exit
from coterie.herder.requests.reads import ConnectorStatus, DescribeConnectorStatus
from coterie.herder.requests.writes import PutConnector, WrittenConnector
from coterie.herder.seams import Membership, TaskRuntime
from coterie.herder.state import HerderSettings
from coterie.kafka.connect_coordinator import KafkaConnectCoordinatorClient
from coterie.kafka.coordinator import KafkaClassicCoordinatorClient
from coterie.kafka.group_admin import GroupAdmin
from coterie.kafka.leader_log import transactional_id
from coterie.kafka.topics import TopicsClient
from coterie.member.classic.machine import step
from coterie.member.classic.state import PARKED_TIMEOUT_MARGIN_MS, Member, MemberSettings
from coterie.member.connect import state as connect
from coterie.member.connect.machine import step as connect_step
from coterie.nouns.ids import GroupId, InstanceId, MemberId, WorkerId, WorkerUrl
from coterie.nouns.jobs import ConnectorName, Jobs
from coterie.nouns.membership import GroupProtocolName
from coterie.wire.connect import ConnectProtocol
from coterie.worker.membership import GroupMembership
from coterie.worker.worker import Worker
from tests.worker.simulated import LocalLeaderClient, RuntimeRegistry, SimulatedRuntime, until

SESSION_MS, REBALANCE_TIMEOUT_MS, DELAY_MS = 6_000, 10_000, 1_500
IGNORED_SESSION_MS = 300_000
"""``session.timeout.ms`` of workers of a connect group, in which the session timeout of the broker counts."""
ORDERS = ConnectorName("orders")
SIMULATED: Mapping[str, str] = {"connector.class": "SimulatedSource"}


class Link:
    """A TCP proxy between one worker and the broker, which can be cut. In the broker's responses it replaces the
    broker's address by its own, so the worker reaches its coordinator through the proxy, too."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._open: set[asyncio.StreamWriter] = set()
        self._pumps: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.is_cut = False

    async def __aenter__(self) -> "Link":
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self._drop()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    def cut(self) -> None:
        """Close all connections and drop new ones."""
        self.is_cut = True
        self._drop()

    def mend(self) -> None:
        """Accept connections again."""
        self.is_cut = False

    def _drop(self) -> None:
        for writer in self._open:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_cut:
            writer.transport.abort()
            return
        try:
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, there_writer}
        back = _pump(there_reader, writer, of=_address(self._target), to=_address(self.port))
        for pump in map(asyncio.create_task, (_pump(reader, there_writer), back)):
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)


def _address(port: int) -> bytes:
    """The host 127.0.0.1 and ``port`` as a FindCoordinator response contains them."""
    return b"127.0.0.1" + port.to_bytes(4)


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, of: bytes = b"", to: bytes = b"") -> None:
    """Forward frames of Kafka's protocol, with the bytes ``of`` replaced by ``to``."""
    try:
        while True:
            size = await source.readexactly(4)
            frame = await source.readexactly(int.from_bytes(size))
            sink.write(size + (frame.replace(of, to) if of else frame))
            await sink.drain()
    except (ConnectionError, asyncio.IncompleteReadError):
        pass
    finally:
        sink.transport.abort()


@dataclass
class Remote:
    """One worker on the broker."""

    worker: Worker
    runtime: SimulatedRuntime
    run: asyncio.Task[Exit]


class Fleet:
    """Workers of one group on one broker; ``stack`` closes what the fleet leaves open."""

    def __init__(
        self,
        bootstrap: str,
        stack: AsyncExitStack,
        *,
        protocol: ConnectProtocol = ConnectProtocol.STATIC,
        group_protocol: GroupProtocolName = GroupProtocolName.CLASSIC,
    ) -> None:
        self.bootstrap = bootstrap
        self.protocol = protocol
        """The newest protocol that its workers offer; they also offer all older ones."""
        self.group_protocol = group_protocol
        self.floor = RuntimeRegistry()
        self.delay_ms = DELAY_MS
        self.workers: list[Remote] = []
        self._runs: list[tuple[Worker, asyncio.Task[Exit]]] = []
        self.group_id = GroupId(f"fleet-{uuid.uuid4().hex[:8]}")
        self._stack = stack
        self._by_url: dict[WorkerUrl, Worker] = {}

    async def set_session_timeout(self) -> None:
        """Let the broker use the session timeout of the fleet in its connect group."""
        admin = GroupAdmin([self.bootstrap], client_id="tests", timeout_ms=60_000)
        await admin.alter_group_configs(self.group_id, {"connect.session.timeout.ms": str(SESSION_MS)})

    async def start(
        self,
        *,
        port: int | None = None,
        number: int | None = None,
        instance_id: InstanceId | None = None,
        protocol: ConnectProtocol | None = None,
        claims: Jobs | None = None,
        kind: type[Worker] = Worker,
    ) -> Remote:
        """Start another worker, or worker ``number`` again; ``port`` is that of a :class:`Link` to its coordinator."""
        runtime = SimulatedRuntime()
        self.floor.add(runtime)
        worker, run = await self.start_on(
            runtime,
            port=port,
            number=number,
            instance_id=instance_id,
            protocol=protocol,
            claims=claims,
            kind=kind,
        )
        self.workers.append(Remote(worker=worker, runtime=runtime, run=run))
        return self.workers[-1]

    async def start_on(
        self,
        runtime: TaskRuntime,
        *,
        port: int | None = None,
        number: int | None = None,
        instance_id: InstanceId | None = None,
        protocol: ConnectProtocol | None = None,
        claims: Jobs | None = None,
        kind: type[Worker] = Worker,
    ) -> tuple[Worker, asyncio.Task[Exit]]:
        number = len(self._runs) if number is None else number
        url = WorkerUrl(f"http://127.0.0.1:{8083 + number}/")
        # Topics bypass the link: these tests cut only the connection to the coordinator.
        topics = TopicsClient([self.bootstrap], client_id=f"worker-{number}")
        self._stack.push_async_callback(topics.close)
        member = MemberSettings(
            group_id=self.group_id,
            instance_id=instance_id,
            url=url,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            heartbeat_interval_ms=500,
            protocols=(self.protocol if protocol is None else protocol).versions_to_offer,
            claims=claims,
        )
        policy = RebalancePolicy(max_delay_ms=self.delay_ms)
        config_log = await topics.open_or_create_log(
            f"{self.group_id}-configs", partitions=1, replication_factor=1, setting_key="config.storage.topic"
        )
        servers = [self.bootstrap if port is None else f"127.0.0.1:{port}"]
        is_connect = self.group_protocol is GroupProtocolName.CONNECT
        assignors = [CooperativeAssignor(policy)] if is_connect else []
        worker = kind(
            settings=HerderSettings(
                worker_id=WorkerId(f"127.0.0.1:{8083 + number}"),
                url=url,
                coterie_version="1",
                session_timeout_ms=IGNORED_SESSION_MS if is_connect else SESSION_MS,
                rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
                rebalance_policy=policy,
                group_protocol=self.group_protocol,
            ),
            config_log=config_log,
            leader_log=topics.new_leader_log(config_log, transactional_id=transactional_id(self.group_id)),
            status_log=await topics.open_or_create_log(
                f"{self.group_id}-statuses", partitions=2, replication_factor=1, setting_key="status.storage.topic"
            ),
            membership=_connect_membership(
                member, assignors, servers, await config_log.topic_id(), is_linked=port is not None
            )
            if is_connect
            else _classic_membership(member, servers),
            runtime=runtime,
            leader_client=LocalLeaderClient(self._by_url),
            assignors=assign_functions_by_name(assignors),
        )
        self._by_url[url] = worker
        run = asyncio.create_task(worker.run())
        self._runs.append((worker, run))
        return worker, run

    async def stop(self) -> None:
        for worker, _ in self._runs:
            worker.order_shutdown("the test is over")
        async with asyncio.timeout(30):
            for _, run in self._runs:
                # Not `await run`: Ctrl-C may have cancelled the worker; after a CancelledError from a fixture pytest
                # does not close the remaining fixtures, the broker and the JVM among them.
                await asyncio.wait({run})
                assert not run.cancelled(), "a worker was cancelled"
                run.result()
        assert not self.floor.double_starts

    def starts(self) -> Counter[str]:
        return Counter(str(task) for remote in self.workers for task in remote.runtime.starts)

    async def create(self, name: ConnectorName, tasks: int, config: Mapping[str, str] = SIMULATED) -> None:
        """Create a connector through the leader."""
        config = {**config, "tasks.max": str(tasks), "name": name}
        for worker, _ in self._runs:
            answer = await worker.ask(PutConnector(connector=name, config=config, may_replace=True))
            if isinstance(answer, WrittenConnector):
                return
        raise AssertionError("no worker leads")

    async def until_running(self, via: Remote, name: ConnectorName, tasks: int) -> None:
        async def is_so() -> bool:
            answer = await via.worker.ask(DescribeConnectorStatus(connector=name))
            return isinstance(answer, ConnectorStatus) and [s.state for _, s in answer.tasks] == ["RUNNING"] * tasks

        await until(is_so, within_s=60)


def _classic_membership(member: MemberSettings, servers: Sequence[str]) -> Membership:
    coordinator = KafkaClassicCoordinatorClient(
        servers,
        client_id=member.url,
        request_timeout_ms=SESSION_MS // 3,
        parked_timeout_ms=REBALANCE_TIMEOUT_MS + PARKED_TIMEOUT_MARGIN_MS,
    )
    return GroupMembership(step, Member(member), coordinator)


def _connect_membership(
    member: MemberSettings,
    assignors: Sequence[ConnectAssignor],
    servers: Sequence[str],
    config_topic_id: bytes,
    *,
    is_linked: bool,
) -> Membership:
    settings = connect.MemberSettings(
        group_id=member.group_id,
        member_id=MemberId(str(uuid.uuid4())),
        instance_id=member.instance_id,
        url=member.url,
        claims=member.claims,
        assignors=tuple(map(read_and_check_offered_assignor, assignors)),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        config_topic_id=config_topic_id,
        # When the link closes a connection, the worker has not ended.
        connection_grace_ms=0 if is_linked else CONNECTION_GRACE_MS,
    )
    coordinator = KafkaConnectCoordinatorClient(servers, client_id=member.url, request_timeout_ms=SESSION_MS // 3)
    return GroupMembership(connect_step, connect.Member(settings, None), coordinator)
