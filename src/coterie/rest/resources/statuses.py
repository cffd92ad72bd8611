"""The tasks and statuses of a connector."""

from starlette.requests import Request
from starlette.responses import Response

from coterie.herder.requests.reads import (
    ConnectorStatus,
    DescribeConnectorStatus,
    DescribeTaskConfigs,
    DescribeTaskStatus,
    TaskConfigs,
    TaskStatus,
)
from coterie.rest import views
from coterie.rest.endpoints import Operation
from coterie.rest.herder_requests import HerderClient
from coterie.rest.json_response import JSONResponse
from coterie.rest.request_parameters import connector_in_path, task_in_path
from coterie.rest.routing import Handlers
from coterie.rest.visible_configs import config_masked_unless_admin


class StatusesResource:
    """The HTTP handlers of one worker for tasks and statuses of connectors."""

    def __init__(self, herder: HerderClient) -> None:
        self._herder = herder

    def handlers(self) -> Handlers:
        """The methods of this object that handle the requests, by operation of the endpoint."""
        return {
            Operation.DESCRIBE_STATUS: self.describe_status,
            Operation.DESCRIBE_TASKS: self.describe_task_configs,
            Operation.DESCRIBE_TASK_STATUS: self.describe_task_status,
        }

    async def describe_status(self, request: Request) -> Response:
        status = await self._herder.ask(DescribeConnectorStatus(connector=connector_in_path(request)), ConnectorStatus)
        return JSONResponse(views.connector_status_json(status, self._herder.worker.connector_type))

    async def describe_task_configs(self, request: Request) -> Response:
        configs = await self._herder.ask(DescribeTaskConfigs(connector=connector_in_path(request)), TaskConfigs)
        visible = tuple((task, config_masked_unless_admin(request, config)) for task, config in configs.tasks)
        return JSONResponse(views.task_configs_json(TaskConfigs(tasks=visible)))

    async def describe_task_status(self, request: Request) -> Response:
        status = await self._herder.ask(DescribeTaskStatus(task=task_in_path(request)), TaskStatus)
        return JSONResponse(views.task_status_json(status))
