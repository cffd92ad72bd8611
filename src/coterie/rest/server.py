"""Serves a worker's HTTP API for as long as the worker runs."""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Awaitable, Generator
from typing import TypeVar

import uvicorn
from starlette.applications import Starlette

from coterie.nouns.errors import WorldError

ResultT = TypeVar("ResultT")


def open_listener(host: str, port: int) -> socket.socket:
    """A socket that listens at ``host`` and ``port``. Port 0 is replaced by a free port; an empty ``host`` means all
    IPv4 addresses of this machine.

    :raises WorldError: when the port is in use, or the socket cannot listen at the address, for example because the
        host is unknown; the message contains the address.
    """
    address = f"{host or '*'}:{port}"
    try:
        return socket.create_server((host, port), backlog=256)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise WorldError(
                f"Port {port} ({address}) is in use: stop the process that uses it, or set another port in listeners"
            ) from None
        raise WorldError(f"Cannot listen at {address}: {error.strerror or error}") from None


async def serve_while(app: Starlette, listener: socket.socket, work: Awaitable[ResultT]) -> ResultT:
    """Serve ``app`` at ``listener`` while ``work`` runs, and return the result of ``work``. After ``work``, also when
    it raises or is cancelled, running requests have 2 s to end; then all connections and ``listener`` are closed.

    :raises ExceptionGroup: contains the exception of ``work``.
    """
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=512,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=2,
    )
    server = _ServerWithoutSignals(config)
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(server.serve(sockets=[listener]))
        try:
            return await work
        finally:
            # Awaited here, so that open connections are closed even when the work was cancelled.
            server.should_exit = True
            await serving


class _ServerWithoutSignals(uvicorn.Server):
    """uvicorn's server without its signal handlers: the program that starts a worker handles SIGTERM."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Does nothing; uvicorn's own method installs signal handlers during the block."""
        yield
