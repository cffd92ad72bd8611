"""Runs a whole broker: opens the log, loads the groups, listens for connections, and cleans up at shutdown."""

import asyncio
import errno
import json
import logging
import shutil
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace

from coterie.broker.clock import make_steady_clock_ms, wall_clock_ms
from coterie.broker.connection import Connection
from coterie.broker.context import BrokerContext
from coterie.broker.groups.classic import CLASSIC_TOPIC, ClassicMachine
from coterie.broker.groups.connect import CONNECT_TOPIC, ConnectGroups, ConnectMachine
from coterie.broker.groups.connect_stats import ConnectGroupStats
from coterie.broker.groups.heartbeats import MemberRequestGaps
from coterie.broker.groups.log import GroupLog
from coterie.broker.groups.registry import Groups
from coterie.broker.maintenance.loop import run_maintenance
from coterie.broker.security.broker_security import BrokerSecurity
from coterie.broker.settings import BrokerSettings
from coterie.broker.storage.log import BrokerLog, open_log
from coterie.broker.storage.store import FREE_BYTES_MIN
from coterie.broker.transactions.coordinator import TransactionCoordinator
from coterie.groups.classic.offset_messages import TransactionEnded
from coterie.groups.transaction_messages import MarkersWritten
from coterie.nouns.errors import WorldError
from coterie.nouns.target_assignments import AssignFunction

logger = logging.getLogger(__name__)

_LOOP_ITERATIONS_FOR_REFUSALS = 10
"""The number of iterations of the event loop for which a stopping broker waits, so that the refusals of the heartbeats
whose responses it had delayed are sent. A response needs a few iterations from its machine to its socket."""
_READ_AHEAD_SIZE = 1024 * 1024
"""asyncio's limit of bytes received from one peer that its connection has not read yet. When they are more than twice
this limit, the socket is not read."""


class Broker:
    """A running broker. Created by :func:`running_broker`."""

    def __init__(
        self, context: BrokerContext, gaps: MemberRequestGaps, connect_stats: ConnectGroupStats | None
    ) -> None:
        """``connect_stats`` is None if the broker does not serve connect groups."""
        self.context = context
        """The context that API handlers receive. It may only be used on the broker's event loop."""
        self._gaps = gaps
        self._connect_stats = connect_stats
        self.host = context.host
        """The host that clients connect to: ``advertised_host`` of the settings or, by default, the address on which
        the broker listens."""
        self.port = context.port
        """The port on which the broker listens."""

    def stats(self) -> Mapping[str, object]:
        """The statistics of the group coordinator: ``{"groups": {group id: {member id: {"heartbeats": number,
        "largest_gap_ms": milliseconds}}}}`` (:class:`MemberRequestGaps`); and, if the broker serves connect groups,
        under ``"connect"`` those of :class:`ConnectGroupStats`. It may only be called on the broker's event loop."""
        stats: dict[str, object] = {"groups": self._gaps.stats()}
        connect_groups = self.context.connect_groups
        if connect_groups is not None and self._connect_stats is not None:
            states = connect_groups.inspect_all_groups(
                lambda group: group.group_state() if group.metadata is not None else None
            )
            stats["connect"] = self._connect_stats.stats(Counter(str(one) for one in states if one is not None))
        return stats


async def serve(
    settings: BrokerSettings,
    *,
    ready: Callable[[str, int], None],
    assignors: Mapping[str, AssignFunction] | None = None,
) -> None:
    """Run a broker until this call is cancelled. ``ready`` is called once, with the host and the port that clients
    connect to, when the broker accepts connections. ``assignors``: as for :func:`running_broker`.

    :raises WorldError: when the broker cannot start, for the reasons of :func:`running_broker`.
    """
    async with running_broker(settings, assignors=assignors) as broker:
        ready(broker.host, broker.port)
        await asyncio.get_running_loop().create_future()


@asynccontextmanager
async def running_broker(
    settings: BrokerSettings, *, assignors: Mapping[str, AssignFunction] | None = None
) -> AsyncIterator[Broker]:
    """Run a broker while the block runs. The broker accepts connections when the block begins. When the block ends, all
    connections are closed, and the statistics are written if the settings have a path for them. ``assignors`` are, by
    name, the assignors that can compute target assignments of connect groups in the broker; if the settings list
    assignors, only those of the list are used.

    :raises WorldError: when a security file, the data directory or the log in it cannot be used, another broker uses
        the directory, the broker cannot listen on its address, or the settings name an assignor that is not in
        ``assignors``.
    """
    used_assignors = _used_assignors(settings, assignors or {})
    security = BrokerSecurity(settings)
    try:
        async with open_log(settings.log_path, settings.lock_path) as log, asyncio.TaskGroup() as tasks:
            now_ms = make_steady_clock_ms()
            gaps = MemberRequestGaps(now_ms)
            machine = ClassicMachine(settings.group_limits, log.topics, gaps)
            group_log = await GroupLog.open(log, CLASSIC_TOPIC)
            groups = Groups(machine, group_log, settings.group_limits.groups_max, tasks, now_ms)
            await groups.load()
            connect_groups: ConnectGroups | None = None
            connect_stats: ConnectGroupStats | None = None
            if settings.serves_connect_groups:
                group_settings = replace(
                    settings.connect_groups,
                    server_assignors=tuple(sorted(used_assignors)),
                    empty_group_retention_ms=settings.group_limits.offsets_retention_ms,
                )
                connect_machine = ConnectMachine(group_settings, used_assignors, gaps)
                connect_stats = connect_machine.stats
                connect_groups = Groups(
                    connect_machine,
                    await GroupLog.open(log, CONNECT_TOPIC),
                    settings.group_limits.groups_max,
                    tasks,
                    now_ms,
                )
                await connect_groups.load()
            group_count = len(groups.ids()) + (0 if connect_groups is None else len(connect_groups.ids()))
            _log_data_directory_and_disk_space(settings, log, group_count)

            def notify_transaction_ended(markers: MarkersWritten) -> None:
                """Notify each classic group with pending offsets of the transaction that the transaction's markers are
                durable; the group then commits or drops these offsets. Does nothing if the transaction has no marker in
                the partition with the groups' records."""
                if group_log.topic_partition in markers.partitions:
                    producer_id = markers.producer.producer_id
                    ended = TransactionEnded(producer_id=producer_id, is_commit=markers.is_commit)
                    groups.end_transaction(producer_id, ended)

            transactions = await TransactionCoordinator.open(
                log, settings.transactions, now_ms=now_ms, on_markers=notify_transaction_ended
            )
            keeping = run_maintenance(log, settings.log_path, settings.maintenance, now_ms=wall_clock_ms)
            background = [
                tasks.create_task(transactions.run(), name="transactions"),
                tasks.create_task(keeping, name="upkeep of the log"),
                *(tasks.create_task(watched.run()) for watched in security.reloaded_files),
            ]
            connections = _Connections(settings, tasks)
            with _bind_errors_with_advice(settings):
                server = await _bind(settings, connections)
                host, port = server.sockets[0].getsockname()[:2]
                connections.context = BrokerContext(
                    settings=settings,
                    host=settings.advertised_host or host,
                    port=port,
                    log=log,
                    groups=groups,
                    connect_groups=connect_groups,
                    transactions=transactions,
                    security=security,
                )
                await server.start_serving()
            broker = Broker(connections.context, gaps, connect_stats)
            try:
                yield broker
            finally:
                if connect_groups is not None:
                    connect_groups.refuse_all_from_now_on()
                    await _yield_while_refusals_are_sent()
                connections.close()
                groups.close()
                if connect_groups is not None:
                    connect_groups.close()
                for task in background:
                    task.cancel()
                await _stop_listening(server)
                await _write_final_stats_or_warn(settings, broker)
    except BaseExceptionGroup as failures:
        # A cancelled asyncio task raises nothing: a single exception here is the reason why the block has ended.
        if len(failures.exceptions) == 1:
            raise failures.exceptions[0] from None
        raise


class _Connections:
    """Accepts the broker's connections, up to the limits of the settings, and closes them at shutdown."""

    def __init__(self, settings: BrokerSettings, tasks: asyncio.TaskGroup) -> None:
        self.context: BrokerContext | None = None
        """Set once the port is known, and None again when the broker stops. While it is None, each new connection is
        closed at once."""
        self.asyncio_tasks: set[asyncio.Task[None]] = set()
        """The asyncio tasks that serve the open connections, one for each."""
        self._count_by_address: Counter[str] = Counter()
        """The number of open connections by the peer's IP address."""
        self._settings = settings
        self._tasks = tasks

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a new connection in an asyncio task, or close it if a limit is reached or the broker stops."""
        if self.context is None:
            writer.transport.abort()
            return
        connection = Connection(self.context, reader, writer)
        if refusal := self._connection_refusal_reason(connection.peer_host):
            connection.warn_limited_by_address_and_kind(
                f"Connection {connection.peer} refused: {refusal}", kind="refused"
            )
            connection.abort()
            return
        if self.context.security.tls is not None:
            # No byte may be read as plaintext before TLS has begun.
            assert isinstance(writer.transport, asyncio.Transport)
            writer.transport.pause_reading()
        task = self._tasks.create_task(connection.run(), name=f"connection {connection.peer}")
        self.asyncio_tasks.add(task)
        self._count_by_address[connection.peer_host] += 1
        task.add_done_callback(lambda task: self._uncount_and_close_ended_connection(task, connection))

    def close(self) -> None:
        """Cancel the asyncio tasks of all connections. Connections that the operating system accepts from now on are
        closed at once."""
        self.context = None
        for task in self.asyncio_tasks:
            task.cancel()

    def _connection_refusal_reason(self, host: str) -> str | None:
        """Why the broker now refuses another connection from the IP address ``host``; None if the broker accepts the
        connection."""
        of_address, of_address_max = self._count_by_address[host], self._settings.connections_per_address_max
        if len(self.asyncio_tasks) >= self._settings.connections_max:
            return f"{len(self.asyncio_tasks)} connections are open, which is the maximum (--connections-max)"
        if of_address_max is not None and of_address >= of_address_max:
            return (
                f"{of_address} connections from its address are open, which is the maximum (--connections-per-ip-max)"
            )
        return None

    def _uncount_and_close_ended_connection(self, task: asyncio.Task[None], connection: Connection) -> None:
        """Called when the asyncio task of a connection has ended: stop counting the connection, and close its
        socket."""
        self.asyncio_tasks.discard(task)
        self._count_by_address[connection.peer_host] -= 1
        if not self._count_by_address[connection.peer_host]:
            del self._count_by_address[connection.peer_host]
        # Not in the asyncio task itself: if it is cancelled before its first step, it runs none of its code.
        connection.abort()


def _used_assignors(settings: BrokerSettings, assignors: Mapping[str, AssignFunction]) -> Mapping[str, AssignFunction]:
    """The assignors that compute target assignments in this broker, by name: those that the settings list, or all of
    ``assignors`` if the settings have no list.

    :raises WorldError: when the settings name an assignor that is not in ``assignors``.
    """
    names = assignors.keys() if settings.connect_assignors_or_all is None else settings.connect_assignors_or_all
    if unknown := sorted(set(names) - assignors.keys()):
        known = ", ".join(sorted(assignors)) or "none"
        raise WorldError(
            f"group.connect.assignors names the assignor {unknown[0]}, which does not exist; there are: {known}"
        )
    return {name: assignors[name] for name in names}


def _log_data_directory_and_disk_space(settings: BrokerSettings, log: BrokerLog, group_count: int) -> None:
    """Log the numbers of topics, records and groups in the data directory, so that an operator notices a wrong
    ``--data`` at once; and a warning if its disk is nearly full."""
    topics = [topic for topic in log.topics.values() if topic.name not in (CLASSIC_TOPIC.name, CONNECT_TOPIC.name)]
    # Offsets, because counting records would take long: compaction has removed some, and some are transaction markers.
    records = sum(part.end_offset - part.start_offset for topic in topics for part in topic.partitions)
    logger.info(
        "The data directory is %s: %s",
        settings.data_path.absolute(),
        "it is new" if log.is_new else f"{len(topics)} topics, up to {records} records, {group_count} groups",
    )
    free_bytes = shutil.disk_usage(settings.data_path).free
    if free_bytes < FREE_BYTES_MIN:
        logger.warning(
            "%d MB are free in %s: the broker may refuse new records while less than %d MB are free; free disk space",
            free_bytes // 1_000_000,
            settings.data_path.absolute(),
            FREE_BYTES_MIN // 1_000_000 + 1,
        )


async def _bind(settings: BrokerSettings, connections: _Connections) -> asyncio.Server:
    """Bind the broker's address; connections are only accepted once the server is started."""
    return await asyncio.start_server(
        connections.accept, settings.host, settings.port, limit=_READ_AHEAD_SIZE, backlog=512, start_serving=False
    )


async def _yield_while_refusals_are_sent() -> None:
    """Let the connections send the refusals that are ready, before the broker closes the connections. A worker whose
    heartbeat response was delayed then receives NOT_COORDINATOR at once; otherwise only the closed connection would
    show that the broker stops."""
    for _ in range(_LOOP_ITERATIONS_FOR_REFUSALS):
        await asyncio.sleep(0)


async def _stop_listening(server: asyncio.Server) -> None:
    """Stop listening and close the server. A connection that was just accepted is closed, too, and not leaked."""
    try:
        # A socket that was just accepted gets its transport in the event loop's next iteration. If the server were
        # closed before that, asyncio (3.11) would fail its own assertion and leave the socket open.
        for listening in server.sockets:
            asyncio.get_running_loop().remove_reader(listening.fileno())
        await asyncio.sleep(0)
    finally:
        server.close()


@contextmanager
def _bind_errors_with_advice(settings: BrokerSettings) -> Iterator[None]:
    """Raise an OSError of the block as a WorldError that contains the address, the port and what to do.

    :raises WorldError: when the broker cannot listen on its address.
    """
    try:
        yield
    except OSError as error:
        advice = "choose another port, or stop the process that uses this one"
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            advice = "name an address of this machine, or 0.0.0.0 for all of them"
        elif error.errno == errno.EACCES:
            advice = (
                "choose a port from 1024 on, or give the broker the right to use this one (on Linux:"
                " CAP_NET_BIND_SERVICE)"
            )
        raise WorldError(
            f"the broker cannot listen on {settings.host}:{settings.port}: {error.strerror}; {advice}"
        ) from error


async def _write_final_stats_or_warn(settings: BrokerSettings, broker: Broker) -> None:
    """Write the statistics at the broker's end to ``stats_path`` of the settings, if it is set. If the file cannot be
    written, a warning is logged and no error is raised."""
    if settings.stats_path is not None:
        line = json.dumps(broker.stats(), sort_keys=True)
        try:
            await asyncio.to_thread(settings.stats_path.write_text, line + "\n")
        except OSError as error:
            logger.warning(
                "Cannot write the broker's statistics to %s, they are lost: %s", settings.stats_path, error.strerror
            )
