"""Pauses, resumes and stops a connector."""

from starlette.requests import Request
from starlette.responses import Response

from coterie.herder.requests.writes import SetTargetState
from coterie.nouns.states import TargetState
from coterie.rest.endpoints import Operation
from coterie.rest.herder_requests import HerderClient, empty_success_response_factory
from coterie.rest.request_parameters import connector_in_path
from coterie.rest.routing import Handlers


class TargetStatesResource:
    """The HTTP handlers of one worker for pause, resume and stop of connectors."""

    def __init__(self, herder: HerderClient) -> None:
        self._herder = herder

    def handlers(self) -> Handlers:
        """The methods of this object that handle the requests, by operation of the endpoint."""
        return {
            Operation.PAUSE_CONNECTOR: self.pause_connector,
            Operation.RESUME_CONNECTOR: self.resume_connector,
            Operation.STOP_CONNECTOR: self.stop_connector,
        }

    async def pause_connector(self, request: Request) -> Response:
        """Set the connector's target state to PAUSED."""
        return await self._set_target_state(request, TargetState.PAUSED, http_status=202)

    async def resume_connector(self, request: Request) -> Response:
        """Set the connector's target state to STARTED."""
        return await self._set_target_state(request, TargetState.STARTED, http_status=202)

    async def stop_connector(self, request: Request) -> Response:
        """Set the connector's target state to STOPPED."""
        return await self._set_target_state(request, TargetState.STOPPED, http_status=204)

    async def _set_target_state(self, request: Request, target_state: TargetState, *, http_status: int) -> Response:
        herder_request = SetTargetState(connector=connector_in_path(request), target_state=target_state)
        return await self._herder.ask_or_forward(
            request, b"", herder_request, empty_success_response_factory(http_status)
        )
