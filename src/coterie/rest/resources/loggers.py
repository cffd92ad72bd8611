"""``/admin/loggers``: shows and sets the levels of loggers, of this worker or of all workers (KIP-495, KIP-976)."""

import logging
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from coterie.herder.requests.orders import SetGroupLoggerLevel
from coterie.nouns.logger_levels import ROOT, LoggerLevel
from coterie.rest import bodies
from coterie.rest.endpoints import Operation
from coterie.rest.herder_requests import HerderClient, empty_success_response_factory
from coterie.rest.json_response import JSONResponse
from coterie.rest.problems import BadRequestError, NotFoundError
from coterie.rest.request_parameters import query_value
from coterie.rest.routing import Handlers
from coterie.worker.logger_levels import LoggerState

logger = logging.getLogger(__name__)


class LoggersResource:
    """The HTTP handlers of one worker for ``/admin/loggers``."""

    def __init__(self, herder: HerderClient) -> None:
        self._herder = herder

    def handlers(self) -> Handlers:
        """The methods of this object that handle the requests, by operation of the endpoint."""
        return {
            Operation.LIST_LOGGERS: self.list_loggers,
            Operation.DESCRIBE_LOGGER: self.describe_logger,
            Operation.SET_LOGGER_LEVEL: self.set_logger_level,
        }

    async def list_loggers(self, _: Request) -> Response:
        """The level of each logger of this worker, and when a request has last changed it, by the logger's name."""
        states = await self._herder.worker.logger_levels.logger_states()
        return JSONResponse({name: _logger_state_json(state) for name, state in states.items()})

    async def describe_logger(self, request: Request) -> Response:
        """The level of the logger in the path, on this worker.

        :raises NotFoundError: when this worker has no such logger.
        """
        name = _logger_in_path(request)
        state = await self._herder.worker.logger_levels.logger_state(name)
        if state is None:
            raise NotFoundError(f"Logger {name} not found.")
        return JSONResponse(_logger_state_json(state))

    async def set_logger_level(self, request: Request) -> Response:
        """Set the level of a logger and of its descendants on this worker; with ``?scope=cluster`` on all workers. A
        request with ``?scope=cluster`` to a worker that is still starting is not refused, but waits.

        :raises BadRequestError: when the body contains no level.
        :raises NotFoundError: when the level in the body is unknown; the status 404 is Connect's.
        """
        body = await bodies.read_body(request)
        text = (await bodies.parse_on_thread_if_large(bodies.parse_config_with_nulls, body)).get("level")
        if text is None:
            raise BadRequestError("Desired 'level' parameter was not specified in request.")
        level_name = text.strip().upper()
        if level_name not in (*LoggerLevel,):
            raise NotFoundError(f"invalid log level '{text}'.")
        name, level = _logger_in_path(request), LoggerLevel(level_name)
        scope = query_value(request, "scope") or "worker"
        if scope.lower() == "cluster":
            herder_request = SetGroupLoggerLevel(logger=name, level=level)
            return await self._herder.ask_or_forward(request, body, herder_request, empty_success_response_factory(204))
        if scope.lower() != "worker":
            logger.warning("The scope %r of a logger's level is unknown; the level is set on this worker", scope)
        return JSONResponse(await self._herder.worker.logger_levels.set_level(name, level))


def _logger_in_path(request: Request) -> str:
    """The name of the logger in the path of ``request``. As in Connect, ``root`` may be in upper or lower case."""
    name: str = request.path_params["logger"]
    return ROOT if name.lower() == ROOT else name


def _logger_state_json(state: LoggerState) -> dict[str, Any]:
    return {"level": state.level, "last_modified": state.last_modified_ms}
