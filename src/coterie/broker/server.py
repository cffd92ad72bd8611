"""The whole broker: opens the log, loads the groups, listens for connections, and cleans up at shutdown."""

import asyncio
import errno
import json
import logging
import shutil
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

from coterie.broker.clock import steady_clock, wall_ms
from coterie.broker.connection import Connection
from coterie.broker.groups.classic import CLASSIC_TOPIC, ClassicGroups, ClassicMachine
from coterie.broker.groups.heartbeats import HeartbeatGaps
from coterie.broker.groups.log import GroupLog
from coterie.broker.groups.registry import Groups
from coterie.broker.node import Node
from coterie.broker.security.admission import Admission
from coterie.broker.settings import BrokerSettings
from coterie.broker.storage.log import BrokerLog, open_log
from coterie.broker.storage.store import FREE_BYTES_MIN
from coterie.broker.transactions.coordinator import Transactions
from coterie.broker.upkeep.loop import keep_up
from coterie.nouns.errors import WorldError

logger = logging.getLogger(__name__)

_READ_AHEAD_SIZE = 1024 * 1024
"""Bytes of a peer that are buffered before the connection reads them."""


class Broker:
    """A running broker. Created by :func:`running`."""

    def __init__(self, node: Node, gaps: HeartbeatGaps) -> None:
        self.node = node
        """The context of the API handlers; read and changed on the broker's event loop only."""
        self._gaps = gaps
        self.host = node.host
        self.port = node.port

    def stats(self) -> Mapping[str, object]:
        """The coordinator's statistics: ``{"groups": {group: {member: {"heartbeats", "largest_gap_ms"}}}}``."""
        return {"groups": self._gaps.stats()}


async def serve(settings: BrokerSettings, *, ready: Callable[[str, int], None]) -> None:
    """Run a broker until this is cancelled; ``ready`` is called with host and port once the broker accepts connections.

    :raises WorldError: the data directory cannot be used or is locked, or the port is in use.
    """
    async with running(settings) as broker:
        ready(broker.host, broker.port)
        await asyncio.get_running_loop().create_future()


@asynccontextmanager
async def running(settings: BrokerSettings) -> AsyncIterator[Broker]:
    """Run a broker while the block runs.

    :raises WorldError: the data directory cannot be used or is locked, or the port is in use.
    """
    admission = Admission(settings)
    try:
        async with open_log(settings.log_path, settings.lock_path) as log, asyncio.TaskGroup() as tasks:
            now_ms = steady_clock()
            gaps = HeartbeatGaps(now_ms)
            machine = ClassicMachine(settings.limits, log.topics, gaps)
            group_log = await GroupLog.open(log, CLASSIC_TOPIC)
            groups = Groups(machine, group_log, settings.limits.groups_max, tasks, now_ms)
            await groups.load()
            _tell_what_is_there(settings, log, groups)
            transactions = await Transactions.open(log, settings.transactions, now_ms=now_ms)
            keeping = keep_up(log, settings.log_path, settings.upkeep, now_ms=wall_ms)
            background = [
                tasks.create_task(transactions.run(), name="transactions"),
                tasks.create_task(keeping, name="upkeep of the log"),
                *(tasks.create_task(watched.watch()) for watched in admission.watched),
            ]
            connections = _Connections(settings, tasks)
            with _port_of(settings):
                server = await _bound(settings, connections)
                host, port = server.sockets[0].getsockname()[:2]
                connections.node = Node(
                    settings=settings,
                    host=settings.advertised_host or host,
                    port=port,
                    log=log,
                    groups=groups,
                    transactions=transactions,
                    admission=admission,
                )
                await server.start_serving()
            broker = Broker(connections.node, gaps)
            try:
                yield broker
            finally:
                connections.close()
                groups.close()
                for task in background:
                    task.cancel()
                await _stop_listening(server)
                await _tell_stats(settings, broker)
    except BaseExceptionGroup as failures:
        # A cancelled asyncio task raises nothing: a single exception here is the reason why the block has ended.
        if len(failures.exceptions) == 1:
            raise failures.exceptions[0] from None
        raise


class _Connections:
    """Accepts and counts connections."""

    def __init__(self, settings: BrokerSettings, tasks: asyncio.TaskGroup) -> None:
        self.node: Node | None = None
        """Set once the port is known, and None again when the broker stops; without it no connection is accepted."""
        self.running: set[asyncio.Task[None]] = set()
        self._by_address: Counter[str] = Counter()
        self._settings = settings
        self._tasks = tasks

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.node is None:
            writer.transport.abort()
            return
        connection = Connection(self.node, reader, writer)
        if refusal := self._refusal(connection.peer_host):
            logger.warning("Connection %s refused: %s", connection.peer, refusal)
            connection.abort()
            return
        if self.node.admission.tls is not None:
            # No byte may be read as plaintext before TLS has begun.
            assert isinstance(writer.transport, asyncio.Transport)
            writer.transport.pause_reading()
        task = self._tasks.create_task(connection.run(), name=f"connection {connection.peer}")
        self.running.add(task)
        self._by_address[connection.peer_host] += 1
        task.add_done_callback(lambda task: self._ended(task, connection))

    def close(self) -> None:
        """End every connection; abort connections that the operating system has already accepted."""
        self.node = None
        for task in self.running:
            task.cancel()

    def _refusal(self, host: str) -> str | None:
        """Why the broker refuses another connection from ``host`` now; None if it accepts it."""
        of_address, of_address_max = self._by_address[host], self._settings.connections_per_address_max
        if len(self.running) >= self._settings.connections_max:
            return f"{len(self.running)} connections are open, the maximum (--connections-max)"
        if of_address_max is not None and of_address >= of_address_max:
            return f"{of_address} connections from its address are open, the maximum (--connections-per-ip-max)"
        return None

    def _ended(self, task: asyncio.Task[None], connection: Connection) -> None:
        self.running.discard(task)
        self._by_address[connection.peer_host] -= 1
        if not self._by_address[connection.peer_host]:
            del self._by_address[connection.peer_host]
        # Not in the asyncio task itself: if it is cancelled before its first step, it runs none of its code.
        connection.abort()


def _tell_what_is_there(settings: BrokerSettings, log: BrokerLog, groups: ClassicGroups) -> None:
    """Log the contents of the data directory, so that an operator notices a wrong ``--data`` at once."""
    topics = [topic for topic in log.topics.values() if topic.name != CLASSIC_TOPIC.name]
    # Offsets, because counting records would take long: compaction has removed some, and some are transaction markers.
    records = sum(part.end_offset - part.start_offset for topic in topics for part in topic.partitions)
    logger.info(
        "The data directory is %s: %s",
        settings.data_path.absolute(),
        "it is new" if log.is_new else f"{len(topics)} topics, up to {records} records, {len(groups.known())} groups",
    )
    free_bytes = shutil.disk_usage(settings.data_path).free
    if free_bytes < FREE_BYTES_MIN:
        logger.warning(
            "%d MB are free in %s: the broker refuses to write while less than %d MB are free",
            free_bytes // 1_000_000,
            settings.data_path.absolute(),
            FREE_BYTES_MIN // 1_000_000 + 1,
        )


async def _bound(settings: BrokerSettings, connections: _Connections) -> asyncio.Server:
    return await asyncio.start_server(
        connections.accept, settings.host, settings.port, limit=_READ_AHEAD_SIZE, backlog=512, start_serving=False
    )


async def _stop_listening(server: asyncio.Server) -> None:
    """Close the server without leaking a socket that it has just accepted."""
    try:
        # A socket that was just accepted gets its transport in the event loop's next iteration. If the server were
        # closed before that, asyncio (3.11) would fail its own assertion and leave the socket open.
        for listening in server.sockets:
            asyncio.get_running_loop().remove_reader(listening.fileno())
        await asyncio.sleep(0)
    finally:
        server.close()


@contextmanager
def _port_of(settings: BrokerSettings) -> Iterator[None]:
    """Add the address, the port and advice to an error of listening."""
    try:
        yield
    except OSError as error:
        advice = "choose another port, or stop the process that listens there"
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            advice = "name an address of this machine, or 0.0.0.0 for all of them"
        raise WorldError(
            f"the broker cannot listen on {settings.host}:{settings.port}: {error.strerror}; {advice}"
        ) from error


async def _tell_stats(settings: BrokerSettings, broker: Broker) -> None:
    if settings.stats_path is not None:
        line = json.dumps(broker.stats(), sort_keys=True)
        try:
            await asyncio.to_thread(settings.stats_path.write_text, line + "\n")
        except OSError as error:
            logger.warning("Cannot write the broker's statistics to %s: %s", settings.stats_path, error.strerror)
