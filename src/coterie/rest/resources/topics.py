"""The active topics of a connector (KIP-558)."""

from starlette.requests import Request
from starlette.responses import Response

from coterie.herder.requests.topics import ActiveTopics, DescribeActiveTopics, ResetActiveTopics
from coterie.rest.endpoints import Operation
from coterie.rest.herder_requests import HerderClient, empty_success_response_factory
from coterie.rest.json_response import JSONResponse
from coterie.rest.request_parameters import connector_in_path
from coterie.rest.routing import Handlers


class TopicsResource:
    """The HTTP handlers of one worker for ``/connectors/{connector}/topics``."""

    def __init__(self, herder: HerderClient) -> None:
        self._herder = herder

    def handlers(self) -> Handlers:
        """The methods of this object that handle the requests, by operation of the endpoint."""
        return {
            Operation.DESCRIBE_TOPICS: self.describe_active_topics,
            Operation.RESET_TOPICS: self.reset_active_topics,
        }

    async def describe_active_topics(self, request: Request) -> Response:
        """The topics that the connector's tasks have read or written; none for a connector that does not exist, as in
        Connect."""
        active = await self._herder.ask(DescribeActiveTopics(connector=connector_in_path(request)), ActiveTopics)
        return JSONResponse({active.connector: {"topics": list(active.topics)}})

    async def reset_active_topics(self, request: Request) -> Response:
        """Forget the topics that the connector's tasks have read or written until now."""
        herder_request = ResetActiveTopics(connector=connector_in_path(request))
        return await self._herder.ask_or_forward(request, b"", herder_request, empty_success_response_factory(202))
