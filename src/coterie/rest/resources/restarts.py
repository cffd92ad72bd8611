"""Restarts of connectors and of tasks."""

from starlette.requests import Request
from starlette.responses import Response

from coterie.herder.requests.kinds import Answer
from coterie.herder.requests.orders import RestartConnectorTask
from coterie.herder.requests.reads import ConnectorStatus
from coterie.herder.requests.writes import RestartConnector
from coterie.rest import bodies, problems, views
from coterie.rest.endpoints import Operation
from coterie.rest.herder_requests import HerderClient, empty_success_response_factory
from coterie.rest.json_response import JSONResponse
from coterie.rest.request_parameters import connector_in_path, is_query_value_true, task_in_path
from coterie.rest.routing import Handlers


class RestartsResource:
    """The HTTP handlers of one worker for restarts of connectors and tasks."""

    def __init__(self, herder: HerderClient) -> None:
        self._herder = herder

    def handlers(self) -> Handlers:
        """The methods of this object that handle the requests, by operation of the endpoint."""
        return {
            Operation.RESTART_CONNECTOR: self.restart_connector,
            Operation.RESTART_TASK: self.restart_task,
        }

    async def restart_connector(self, request: Request) -> Response:
        """Restart the connector, and with ``?includeTasks=true`` its tasks; with ``?onlyFailed=true`` only what has
        failed. If at least one of the two parameters is true, the response is 202 with the statuses of the connector
        and its tasks; otherwise 204 (KIP-745)."""
        body = await bodies.read_body(request)
        include_tasks, only_failed = (is_query_value_true(request, name) for name in ("includeTasks", "onlyFailed"))

        def to_restart_response_or_raise(answer: Answer) -> Response:
            status = problems.answer_or_raise(answer, ConnectorStatus)
            if not (include_tasks or only_failed):
                return Response(status_code=204)
            status_json = views.connector_status_json(status, self._herder.worker.connector_type)
            return JSONResponse(status_json, status_code=202)

        herder_request = RestartConnector(
            connector=connector_in_path(request), include_tasks=include_tasks, only_failed=only_failed
        )
        return await self._herder.ask_or_forward(request, body, herder_request, to_restart_response_or_raise)

    async def restart_task(self, request: Request) -> Response:
        """Restart the task on the worker that has it."""
        body = await bodies.read_body(request)
        herder_request = RestartConnectorTask(task=task_in_path(request))
        return await self._herder.ask_or_forward(request, body, herder_request, empty_success_response_factory(204))
