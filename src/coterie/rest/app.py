"""Connect's HTTP API of one worker. A handler parses an HTTP request, sends a request to this worker's herder, and
returns the herder's response as an HTTP response.
"""

import asyncio
from collections.abc import Callable
from urllib.parse import quote

import httpx
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from coterie import __version__
from coterie.herder.requests.kinds import Answer
from coterie.herder.requests.kinds import Request as HerderRequest
from coterie.herder.requests.reads import (
    ConnectorInfo,
    ConnectorList,
    ConnectorStatus,
    DescribeConnector,
    DescribeStatus,
    DescribeTasks,
    DescribeTaskStatus,
    ListConnectors,
    TaskConfigs,
    TaskStatus,
)
from coterie.herder.requests.refusals import Done, Problem, RequestRefused
from coterie.herder.requests.views import DescribeWorker, WorkerView
from coterie.herder.requests.writes import DeleteConnector, PutConnector, PutTaskConfigs, SetTargetState
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.nouns.states import TargetState
from coterie.rest import bodies, csrf, problems, signatures, views
from coterie.rest.group import GroupApi, Handler
from coterie.rest.leader import forward_to_worker
from coterie.worker.worker import Worker, WorkerPhase

CONNECT_VERSION = "4.3.1"
"""The version of Kafka Connect whose API this is; clients enable features by this version."""
HEALTH_TIMEOUT_S = 10.0
"""How long ``GET /health`` waits for the herder's response before it reports the worker as unhealthy."""


def create_app(worker: Worker, http_client: httpx.AsyncClient, *, cluster_id: str) -> Starlette:
    """The web application of ``worker``: Connect's paths and Coterie's own, with error responses for all exceptions.

    ``http_client`` sends requests to other workers; ``cluster_id`` is the id that the brokers report for their cluster.
    """
    api = ConnectApi(worker, http_client, cluster_id)
    app = Starlette(
        routes=api.routes(), exception_handlers=dict.fromkeys(problems.HANDLED_EXCEPTIONS, problems.error_response)
    )
    app.router.redirect_slashes = False
    return app


class ConnectApi:
    """The handlers of one worker for Connect's paths: a public coroutine method handles one method of one path.

    They raise the exceptions for which :func:`problems.error_response` makes responses.
    """

    def __init__(self, worker: Worker, http_client: httpx.AsyncClient, cluster_id: str) -> None:
        self._worker = worker
        self._http_client = http_client
        self._cluster_id = cluster_id
        self._group_api = GroupApi(worker, http_client)

    def routes(self) -> list[Route]:
        """The routes of all paths: Connect's and Coterie's own (:class:`GroupApi`)."""
        connector_path, task_path = "/connectors/{connector}", "/connectors/{connector}/tasks/{task}"
        handler_table: list[tuple[str, str, Handler]] = [
            ("GET", "/", self.describe_server),
            ("GET", "/health", self.describe_health),
            ("GET", "/connectors", self.list_connectors),
            ("POST", "/connectors", self.create_connector),
            ("GET", connector_path, self.describe_connector),
            ("DELETE", connector_path, self.delete_connector),
            ("GET", f"{connector_path}/config", self.describe_config),
            ("PUT", f"{connector_path}/config", self.put_config),
            ("GET", f"{connector_path}/status", self.describe_status),
            ("GET", f"{connector_path}/tasks", self.describe_tasks),
            ("POST", f"{connector_path}/tasks", self.put_task_configs),
            ("GET", f"{task_path}/status", self.describe_task_status),
            ("PUT", f"{connector_path}/pause", self.pause_connector),
            ("PUT", f"{connector_path}/resume", self.resume_connector),
            ("PUT", f"{connector_path}/stop", self.stop_connector),
            *self._group_api.handler_table(),
        ]
        handlers_by_path: dict[str, dict[str, Handler]] = {}
        for method, path, handler in handler_table:
            handlers_by_path.setdefault(path, {})[method] = handler
        return [
            Route(path, _dispatch_by_method(handlers), methods=list(handlers))
            for path, handlers in handlers_by_path.items()
        ]

    # -- root and health ----------------------------------------------------------------------------------------------

    async def describe_server(self, _: Request) -> Response:
        """The versions of Connect's API and of Coterie, and the cluster's id."""
        return JSONResponse(
            {
                "version": CONNECT_VERSION,
                "commit": "unknown",
                "kafka_cluster_id": self._cluster_id,
                "coterie_version": __version__,
            }
        )

    async def describe_health(self, _: Request) -> Response:
        """The worker's health (KIP-1017): 503 while it starts; 200 when its herder responds within
        :data:`HEALTH_TIMEOUT_S`; 500 when the herder does not respond in time or refuses, for example because the
        worker has ended."""
        if self._worker.phase is WorkerPhase.STARTING:
            return _health_response(503, "starting", f"Worker is still starting up. {self._worker.startup_step}")
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT_S):
                has_responded = isinstance(await self._worker.ask(DescribeWorker()), WorkerView)
        except TimeoutError:
            has_responded = False
        if has_responded:
            return _health_response(200, "healthy", "Worker has completed startup and is ready to handle requests.")
        message = "Worker was unable to handle this request and may be unable to handle other requests."
        return _health_response(500, "unhealthy", message)

    # -- reads --------------------------------------------------------------------------------------------------------

    async def list_connectors(self, request: Request) -> Response:
        """The connectors' names; with ``?expand=info`` or ``?expand=status`` an object by name."""
        connectors = await self._ask_herder(ListConnectors(), ConnectorList)
        expansions = frozenset(request.query_params.getlist("expand"))
        if expansions & {"info", "status"}:
            return JSONResponse(views.expanded_connectors_json(connectors, expansions, self._worker.connector_type))
        return JSONResponse([info.connector for info, _ in connectors.connectors])

    async def describe_connector(self, request: Request) -> Response:
        info = await self._ask_herder(DescribeConnector(connector=_connector_in_path(request)), ConnectorInfo)
        return JSONResponse(views.connector_info_json(info, self._worker.connector_type))

    async def describe_config(self, request: Request) -> Response:
        info = await self._ask_herder(DescribeConnector(connector=_connector_in_path(request)), ConnectorInfo)
        return JSONResponse(dict(info.config))

    async def describe_status(self, request: Request) -> Response:
        status = await self._ask_herder(DescribeStatus(connector=_connector_in_path(request)), ConnectorStatus)
        return JSONResponse(views.connector_status_json(status, self._worker.connector_type))

    async def describe_tasks(self, request: Request) -> Response:
        configs = await self._ask_herder(DescribeTasks(connector=_connector_in_path(request)), TaskConfigs)
        return JSONResponse(views.task_configs_json(configs))

    async def describe_task_status(self, request: Request) -> Response:
        status = await self._ask_herder(DescribeTaskStatus(task=_task_in_path(request)), TaskStatus)
        return JSONResponse(views.task_status_json(status))

    # -- writes -------------------------------------------------------------------------------------------------------

    async def create_connector(self, request: Request) -> Response:
        body = await bodies.read_body(request)
        new_connector = bodies.parse_new_connector(body)
        config = bodies.with_connector_name(new_connector.config, new_connector.name)
        herder_request = PutConnector(
            connector=ConnectorName(new_connector.name),
            config=config,
            replace=False,
            initial_state=new_connector.initial_state,
        )
        return await self._ask_herder_or_forward(request, body, herder_request, self._written_connector_response)

    async def put_config(self, request: Request) -> Response:
        body = await bodies.read_body(request)
        name = _connector_in_path(request)
        herder_request = PutConnector(
            connector=name, config=bodies.with_connector_name(bodies.parse_config(body), name), replace=True
        )
        return await self._ask_herder_or_forward(request, body, herder_request, self._written_connector_response)

    def _written_connector_response(self, answer: Answer) -> Response:
        """The response to a written connector config: 201 if the write has created the connector, 200 if it has
        replaced a config.

        :raises ProblemRefusal: when the herder refused the request.
        """
        info = problems.answer_as(answer, ConnectorInfo)
        info_json = views.connector_info_json(info, self._worker.connector_type)
        if not info.created:
            return JSONResponse(info_json)
        location = f"/connectors/{quote(info.connector, safe='')}"
        return JSONResponse(info_json, status_code=201, headers={"Location": location})

    async def delete_connector(self, request: Request) -> Response:
        return await self._ask_herder_or_forward(
            request, b"", DeleteConnector(connector=_connector_in_path(request)), _empty_response_with(204)
        )

    async def put_task_configs(self, request: Request) -> Response:
        """Replace a connector's task configs: the request of a worker that has split the connector."""
        body = await bodies.read_body(request)
        # In Connect's order: an unreadable body is refused before the signature is checked.
        configs = bodies.parse_task_configs(body)
        signature = signatures.parse_signature(request.headers, body)
        herder_request = PutTaskConfigs(connector=_connector_in_path(request), configs=configs, signature=signature)
        return await self._ask_herder_or_forward(request, body, herder_request, _empty_response_with(204))

    async def pause_connector(self, request: Request) -> Response:
        """Set the connector's target state to PAUSED."""
        herder_request = SetTargetState(connector=_connector_in_path(request), target_state=TargetState.PAUSED)
        return await self._ask_herder_or_forward(request, b"", herder_request, _empty_response_with(202))

    async def resume_connector(self, request: Request) -> Response:
        """Set the connector's target state to STARTED."""
        herder_request = SetTargetState(connector=_connector_in_path(request), target_state=TargetState.STARTED)
        return await self._ask_herder_or_forward(request, b"", herder_request, _empty_response_with(202))

    async def stop_connector(self, request: Request) -> Response:
        """Set the connector's target state to STOPPED."""
        herder_request = SetTargetState(connector=_connector_in_path(request), target_state=TargetState.STOPPED)
        return await self._ask_herder_or_forward(request, b"", herder_request, _empty_response_with(204))

    # -- helpers ------------------------------------------------------------------------------------------------------

    async def _ask_herder(self, herder_request: HerderRequest, answer_type: type[problems.AnswerT]) -> problems.AnswerT:
        """The response of this worker's herder to ``herder_request``, of the type ``answer_type``. Reads are not
        forwarded.

        :raises ProblemRefusal: when the herder refused the request.
        """
        return problems.answer_as(await self._worker.ask(herder_request), answer_type)

    async def _ask_herder_or_forward(
        self, request: Request, body: bytes, herder_request: HerderRequest, to_response: Callable[[Answer], Response]
    ) -> Response:
        """Send ``herder_request`` to this worker's herder. Return its response as HTTP, as ``to_response`` makes it. If
        the herder responds that only the leader can serve the request, forward ``request`` with ``body`` to the leader,
        and return the leader's response.

        :raises ProblemRefusal: when the herder refused the request, or the request was already forwarded twice.
        :raises WorldError: when the leader cannot be reached.
        """
        answer = await self._worker.ask(herder_request)
        if isinstance(answer, RequestRefused) and answer.problem is Problem.NOT_LEADER:
            return await forward_to_worker(self._http_client, request, body, answer)
        return to_response(answer)


def _dispatch_by_method(
    handlers: dict[str, Handler],
) -> Handler:
    """One handler for all methods of a path, from the ``handlers`` by method. It first checks
    each request with :func:`csrf.check_mutation`; HEAD is served by the handler of GET."""

    async def endpoint(request: Request) -> Response:
        csrf.check_mutation(request)
        return await handlers["GET" if request.method == "HEAD" else request.method](request)

    return endpoint


def _connector_in_path(request: Request) -> ConnectorName:
    """The connector's name in the path of ``request``."""
    return ConnectorName(request.path_params["connector"])


def _task_in_path(request: Request) -> ConnectorTaskId:
    """The task's id in the path of ``request``.

    :raises HTTPException: with status 404, when the task in the path is not a number.
    """
    number: str = request.path_params["task"]
    if not (number.isascii() and number.isdigit()):
        raise HTTPException(404)  # Connect's router returns 404 for a path without a number here.
    return ConnectorTaskId(_connector_in_path(request), int(number))


def _empty_response_with(http_status: int) -> Callable[[Answer], Response]:
    """A function that returns an empty response with ``http_status`` for a :class:`Done`, and raises ProblemRefusal
    when the herder refused the request."""

    def to_response(answer: Answer) -> Response:
        problems.answer_as(answer, Done)
        return Response(status_code=http_status)

    return to_response


def _health_response(http_status: int, health_status: str, message: str) -> Response:
    """A response of ``GET /health``; ``health_status`` is the value of the field ``status`` in the body."""
    return JSONResponse({"status": health_status, "message": message}, status_code=http_status)
