"""Serves a worker's HTTP API at its listeners for as long as the worker runs."""

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Generator, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

from coterie.config.certificate_names import peer_distinguished_name
from coterie.config.reloaded_files import ReloadedFiles
from coterie.config.rest import ClientAuth, RestListener, RestScheme, RestTls, format_host_for_url
from coterie.config.tls import server_context
from coterie.nouns.errors import WorldError
from coterie.rest.problems import RETRY_LATER_HEADER, error_json_response

logger = logging.getLogger(__name__)
ResultT = TypeVar("ResultT")
CLIENT_CERTIFICATE_NAME_KEY = "client_certificate_name"
"""The key of a request's state that contains the name in the client's certificate; see
:func:`serve_while_work_runs`."""


CONNECTIONS_MAX = 512
"""The number of connections that a listener keeps open. Each new connection above this number closes an older
connection: the one that has waited longest for its client. If none waits for its client, all stay open."""
REQUESTS_MAX = 512
"""The number of requests of a listener that are handled at the same time; the next one gets 503."""
REFUSALS_LOG_INTERVAL_S = 60
"""The shortest time between two log lines of a listener that refuses requests above :data:`REQUESTS_MAX`."""
CLIENT_TIMEOUT_S = 30
"""The time limit, in seconds, for a client that sends nothing of a request, or reads nothing of a response."""
TRUSTED_PROXY_HOSTS = ("127.0.0.1", "::1")
"""The addresses of the proxies whose headers ``X-Forwarded-For`` and ``X-Forwarded-Proto`` count."""
IDLE_CLOSE_DELAY_S = 0.1
"""The time from the close of a listener until its idle connections are closed: the requests that were sent meanwhile,
on new connections too, are received."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundListener:
    """A listener of the REST API whose socket is bound to its address and port."""

    socket: socket.socket
    tls: ReloadedFiles[ssl.SSLContext] | None = None
    """The TLS context for new connections; None for http."""

    @property
    def port(self) -> int:
        """The port, which the operating system has chosen if the listener's port is 0."""
        port: int = self.socket.getsockname()[1]
        return port

    @property
    def bound_url(self) -> str:
        """The scheme, and the address and the port to which the socket is bound, for log lines. Not the URL that the
        worker advertises."""
        host = self.socket.getsockname()[0]
        scheme = RestScheme.HTTP if self.tls is None else RestScheme.HTTPS
        return f"{scheme.value}://{format_host_for_url(host)}:{self.port}"


@contextlib.contextmanager
def open_listeners(
    listeners: Sequence[RestListener], tls: RestTls, *, key: str = "listeners"
) -> Iterator[list[BoundListener]]:
    """Bind all of ``listeners``, in their order. Their sockets are closed at the end of the block. ``tls``: the
    certificates of those with https. ``key``: the worker's key that contains the listeners, for error messages.

    :raises WorldError: when a port is in use, a socket cannot listen at its address, or a certificate cannot be read.
    """
    with contextlib.ExitStack() as stack:
        # Separate for each listener: each watches the files while it is served.
        yield [
            BoundListener(
                socket=stack.enter_context(open_listening_socket(host, port, key=key)),
                tls=_make_reloaded_tls_context(tls) if scheme is RestScheme.HTTPS else None,
            )
            for scheme, host, port in listeners
        ]


def open_listening_socket(host: str, port: int, *, key: str = "listeners") -> socket.socket:
    """A socket that listens at ``host`` and ``port``. Port 0 is replaced by a free port; an empty ``host`` means all
    IPv4 addresses of this machine.

    :raises WorldError: when the port is in use, or the socket cannot listen at the address, for example because the
        host is unknown; the message contains the address. If the port is in use, the message advises to set another
        port in ``key``.
    """
    address = f"{f'[{host}]' if ':' in host else host or '*'}:{port}"
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # The URL that the worker advertises for :: may have an IPv4 address.
        is_dual = host == "::" and socket.has_dualstack_ipv6()
        listener = socket.create_server((host, port), family=family, backlog=256, dualstack_ipv6=is_dual)
        # Each connection inherits it; asyncio sets it only for sockets with an explicit protocol number. Without it,
        # the kernel sends the body of a small response only when the client has acknowledged the headers, 40 ms later.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise WorldError(
                f"Port {port} ({address}) is in use: stop the process that uses it, or set another port in {key}"
            ) from None
        raise WorldError(
            f"Cannot listen at {address}: {error.strerror or error}; set another address in {key}"
        ) from error


def _make_reloaded_tls_context(tls: RestTls) -> ReloadedFiles[ssl.SSLContext]:
    """The TLS context of an https listener, read from the files of ``tls``. :meth:`ReloadedFiles.run` reads the files
    again when they change.

    :raises WorldError: when a file is missing or invalid; the message names the file.
    """
    files = tls.files
    assert files.certificate_location is not None, "checked by RestSettings"
    assert files.key_location is not None, "checked by TlsFiles"
    certificate, key = Path(files.certificate_location), Path(files.key_location)
    client_ca = (
        Path(files.trusted_ca_location)
        if files.trusted_ca_location and tls.client_auth is not ClientAuth.NONE
        else None
    )

    def make_tls_context() -> ssl.SSLContext:
        return server_context(
            certificate,
            key,
            key_password=files.key_password or "",
            client_ca=client_ca,
            requires_client_certificate=tls.client_auth is ClientAuth.REQUIRED,
        )

    paths = [certificate, key] if client_ca is None else [certificate, key, client_ca]
    return ReloadedFiles("certificates of the REST API", paths, make_tls_context)


class RequestIntake:
    """The open listeners of one worker, which the worker can close before its process ends: :meth:`close` closes them,
    and returns when all received requests are answered. :func:`serve_while_work_runs` adds the servers of the
    listeners."""

    def __init__(self) -> None:
        self._servers: list[uvicorn.Server] = []

    def add_servers(self, servers: Sequence[uvicorn.Server]) -> None:
        """Add ``servers`` to those whose listeners :meth:`close` closes."""
        self._servers += servers

    async def close(self) -> None:
        """Close the listeners, and :data:`IDLE_CLOSE_DELAY_S` later the idle connections; each other connection is
        closed after its response. Returns when all received requests are answered. A client whose connection is
        refused may send its request to another worker: no worker has received it."""
        started = [server for server in self._servers if server.started]
        for server in started:
            for listening in server.servers:
                listening.close()
        await asyncio.sleep(IDLE_CLOSE_DELAY_S)
        for server in started:
            for connection in list(server.server_state.connections):
                connection.shutdown()
        while tasks := [task for server in started for task in server.server_state.tasks]:
            await asyncio.wait(tasks)


async def serve_while_work_runs(
    app: Starlette,
    listeners: Sequence[BoundListener],
    work: Awaitable[ResultT],
    reloaded_files: Sequence[ReloadedFiles[Any]] = (),
    *,
    intake: RequestIntake | None = None,
) -> ResultT:
    """Serve ``app`` at all ``listeners`` while ``work`` runs, and return the result of ``work``. After ``work``, also
    when it raises or is cancelled, running requests have 2 s to end; then all connections and listeners are closed.
    The servers of the listeners are added to ``intake``, so that ``work`` can close the listeners before its own end.

    Changes of ``reloaded_files`` are noticed meanwhile. New connections use the newest valid certificates. The state of
    each request contains the name in the client's certificate (:func:`.peer_distinguished_name`) as
    :data:`CLIENT_CERTIFICATE_NAME_KEY`, if the client sent a certificate.

    :raises ExceptionGroup: contains the exception of ``work``.
    """
    servers = [_make_server(app, listener) for listener in listeners]
    if intake is not None:
        intake.add_servers(servers)
    async with asyncio.TaskGroup() as group:
        certificates = [listener.tls for listener in listeners if listener.tls is not None]
        watching = [group.create_task(files.run()) for files in (*certificates, *reloaded_files)]
        serving = [
            group.create_task(server.serve(sockets=[listener.socket]))
            for server, listener in zip(servers, listeners, strict=True)
        ]
        try:
            return await work
        finally:
            for watcher in watching:
                watcher.cancel()
            for server in servers:
                server.should_exit = True
            # Awaited here, so that open connections are closed even when the work was cancelled.
            await asyncio.wait(serving)


def _make_server(app: Starlette, listener: BoundListener) -> uvicorn.Server:
    """uvicorn's server of ``app`` for one listener."""
    config = uvicorn.Config(
        _RequestLimiter(app, listener.bound_url),
        http=_RestConnectionProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        # Without it, uvicorn trusts the addresses in the environment variable FORWARDED_ALLOW_IPS.
        forwarded_allow_ips=list(TRUSTED_PROXY_HOSTS),
        timeout_keep_alive=CLIENT_TIMEOUT_S,
        timeout_graceful_shutdown=2,
    )
    config.load()
    if (tls := listener.tls) is not None:
        context = tls.value

        def use_newest_context(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
            connection.context = tls.value

        # OpenSSL calls it at the beginning of each handshake, so that certificates that were read again are used.
        context.sni_callback = use_newest_context
        config.ssl = context
    return _ServerWithoutSignals(config)


class _RequestLimiter:
    """Passes requests to ``app``, and responds with 503 to each request that arrives while ``app`` handles
    :data:`REQUESTS_MAX` requests. The number of refused requests is logged, at most once in
    :data:`REFUSALS_LOG_INTERVAL_S`, with the listener's name ``listener_url``."""

    def __init__(self, app: ASGIApp, listener_url: str) -> None:
        self._app = app
        self._listener_url = listener_url
        self._running = 0
        self._unlogged_refusals = 0
        self._logged_at_s: float | None = None
        """The time of the last log line about refused requests, by the event loop's clock; None before the first."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._running >= REQUESTS_MAX:
            self._count_and_log_refusals()
            message = f"This listener handles {REQUESTS_MAX} requests, the maximum; send the request again later"
            await error_json_response(503, message, RETRY_LATER_HEADER)(scope, receive, send)
            return
        self._running += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._running -= 1

    def _count_and_log_refusals(self) -> None:
        self._unlogged_refusals += 1
        now_s = asyncio.get_running_loop().time()
        if self._logged_at_s is not None and now_s - self._logged_at_s < REFUSALS_LOG_INTERVAL_S:
            return
        logger.warning(
            "The REST listener %s has refused %d request(s) with 503 since it last logged this: it "
            "handles %d requests at the same time, the "
            "maximum. Let clients send fewer requests at the same time, or send a part of them to other workers; if "
            "requests stay open for long, the leader or a plug-in does not respond: see this worker's GET /health and "
            "the log of the leader",
            self._listener_url,
            self._unlogged_refusals,
            REQUESTS_MAX,
        )
        self._unlogged_refusals, self._logged_at_s = 0, now_s


class _ClientLogger(logging.LoggerAdapter[logging.Logger]):
    """The logger of one connection: each message of uvicorn begins with the client's address and port."""

    @property
    def level(self) -> int:
        """The level of the logger, which uvicorn compares."""
        return self.logger.level

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        client = (self.extra or {}).get("client")
        host, port = client if isinstance(client, tuple) else ("unknown client", 0)
        return f"{format_host_for_url(host)}:{port} - {msg}", kwargs


class _RestConnectionProtocol(H11Protocol):
    """Serves one HTTP connection. Puts the name in the client's certificate into the state of each request.

    A connection is closed when its client sends nothing, or reads nothing of a response, for :data:`CLIENT_TIMEOUT_S`.
    A client that sends slowly stays connected until there are more than :data:`CONNECTIONS_MAX` connections. uvicorn
    itself has a time limit only between two requests.
    """

    connections: set["_RestConnectionProtocol"]  # type: ignore[assignment]
    _waits_for_client_since_s: float | None = None
    """The time, by the event loop's clock, since which the connection waits for its client: to send the rest of a
    request, or to read the rest of the last response. None while only this worker has something to do."""
    _unsent_size_bytes = 0
    """The size of the unsent part of the responses when the present time limit began."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.logger = _ClientLogger(self.logger, {"client": self.client})  # type: ignore[assignment]
        self.flow = _ObservedFlowControl(transport, on_reading_resumed=self._update_wait_and_time_limit)
        name = peer_distinguished_name(transport.get_extra_info("ssl_object"))
        if name is not None:
            self.app_state = {**self.app_state, CLIENT_CERTIFICATE_NAME_KEY: name}
        self._update_wait_and_time_limit()
        if len(self.connections) > CONNECTIONS_MAX:
            self._abort_longest_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._update_wait_and_time_limit()

    def on_response_complete(self) -> None:
        super().on_response_complete()  # Begins the next request, if the client has sent it already.
        self._update_wait_and_time_limit()

    def _should_upgrade(self) -> bool:
        """False for each request: the connection stays HTTP/1.1. uvicorn's own method returns this too, but logs two
        warnings for each offer of HTTP/2, which Java's HTTP client sends with its requests."""
        return False

    def _update_wait_and_time_limit(self) -> None:
        """Note whether the connection waits for its client, and start the time limit if it does. A connection that is
        being closed waits for its client to read the rest of a response. No time limit runs while this worker has
        paused reading: the client cannot send then."""
        self._unset_keepalive_if_required()
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY) and not self.transport.is_closing():
            self._waits_for_client_since_s = None
            return
        if self._waits_for_client_since_s is None:
            self._waits_for_client_since_s = self.loop.time()
        if not self.flow.read_paused:
            self._start_time_limit()

    def _start_time_limit(self) -> None:
        """Start the time limit for the client to send more of a request or to read more of a response: after
        :data:`CLIENT_TIMEOUT_S`, call :meth:`_close_unless_client_has_read`, unless
        :meth:`_update_wait_and_time_limit` cancels the timer before, for example because the client has sent something.
        Note how much of the responses is unsent now."""
        self._unsent_size_bytes = self.transport.get_write_buffer_size()
        self.timeout_keep_alive_task = self.loop.call_later(CLIENT_TIMEOUT_S, self._close_unless_client_has_read)

    def _close_unless_client_has_read(self) -> None:
        """Called when the time limit is over. If no part of a response is unsent, close the connection. If the client
        has read a part of the response since the limit was started, start the limit again. Otherwise abort the
        connection, and drop the unsent part: ``close`` of a transport would wait until all of it is sent."""
        unsent_size_bytes = self.transport.get_write_buffer_size()
        if unsent_size_bytes == 0:
            self.transport.close()
        elif unsent_size_bytes < self._unsent_size_bytes:
            self._start_time_limit()
        else:
            self.transport.abort()

    def _abort_longest_waiting(self) -> None:
        """Abort the connection that has waited longest for its client. This connection is new and is kept. Does nothing
        if no other connection waits."""
        waiting = [one for one in self.connections if one is not self and one._waits_for_client_since_s is not None]
        if waiting:
            longest = min(waiting, key=lambda one: one._waits_for_client_since_s or 0.0)
            longest._waits_for_client_since_s = None
            longest.transport.abort()


class _ObservedFlowControl(FlowControl):
    """uvicorn's flow control of a connection, which also calls ``on_reading_resumed`` when reading from the connection
    is resumed."""

    def __init__(self, transport: asyncio.Transport, *, on_reading_resumed: Callable[[], None]) -> None:
        super().__init__(transport)
        self._on_reading_resumed = on_reading_resumed

    def resume_reading(self) -> None:
        was_paused = self.read_paused
        super().resume_reading()
        if was_paused:
            self._on_reading_resumed()


class _ServerWithoutSignals(uvicorn.Server):
    """uvicorn's server without its signal handlers: the program that starts a worker handles SIGTERM."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Does nothing; uvicorn's own method installs signal handlers during the block."""
        yield
