"""A server in place of a leader, which records the requests that a worker forwards to it; and bodies of requests."""

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from coterie.rest.endpoints import Operation
from coterie.rest.server import BoundListener, open_listening_socket, serve_while_work_runs
from coterie.wire.connect import ConnectProtocol
from tests.rest.served import ServedCluster, ServedWorker
from tests.worker.simulated import until

BODIES: dict[Operation, object] = {
    Operation.CREATE_CONNECTOR: {"name": "a", "config": {"connector.class": "X"}},
    Operation.PUT_CONFIG: {"connector.class": "X"},
    Operation.PATCH_CONFIG: {"tasks.max": "2"},
    Operation.VALIDATE_CONFIG: {"connector.class": "X"},
    Operation.CHANGE_OFFSETS: {"offsets": [{"partition": {"path": "p"}, "offset": {"position": 1}}]},
    Operation.SET_LOGGER_LEVEL: {"level": "INFO"},
}
"""A valid body for each endpoint that needs one."""


class RecordingLeader:
    """A leader at ``url`` that answers each request with ``response``."""

    def __init__(self) -> None:
        self.broken_connections = 0
        """How many connections it still breaks when it has received a request."""
        self.busy_responses = 0
        """How many requests it still answers with 503."""
        self.requests: list[tuple[str, bytes, bytes, dict[str, str]]] = []
        """Method, raw path, query and headers of each request."""
        self.response: Response = Response(status_code=204)
        self._listener = BoundListener(socket=open_listening_socket("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.port}/"

    async def _handle(self, request: Request) -> Response:
        scope = request.scope
        self.requests.append((request.method, scope["raw_path"], scope["query_string"], dict(request.headers)))
        if self.broken_connections:
            self.broken_connections -= 1
            return _BreakingResponse()
        if self.busy_responses:
            self.busy_responses -= 1
            return JSONResponse({"error_code": 503, "message": "later"}, status_code=503)
        return self.response

    async def serve_while(self, work: Awaitable[None]) -> None:
        methods = ["GET", "POST", "PUT", "PATCH", "DELETE"]
        app = Starlette(routes=[Route("/{path:path}", self._handle, methods=methods)])
        await serve_while_work_runs(app, [self._listener], work)


class _BreakingResponse(Response):
    """Announces a body that it does not send, so that the server closes the connection."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"9")]})


@asynccontextmanager
async def follower_of(leader: RecordingLeader, protocol: ConnectProtocol) -> AsyncIterator[ServedWorker]:
    """A worker of a group with this ``protocol``, which takes ``leader`` for the leader."""
    async with ServedCluster(protocol=protocol) as cluster:
        cluster.request_timeout_ms = 2_000
        workers = [await cluster.serve() for _ in range(2)]
        worker = next(worker for worker in workers if worker.running is not cluster.leader)
        await let_lead(leader, worker)
        yield worker


async def let_lead(leader: RecordingLeader, worker: ServedWorker) -> None:
    """Let ``worker`` take ``leader`` for the leader, until the next rebalance."""
    worker.running.simulated_membership.set_stale_leader_url(leader.url)

    async def has_leader() -> bool:
        return bool((await worker.get("/coterie/worker")).json()["group"]["leader_url"] == leader.url)

    await until(has_leader)
