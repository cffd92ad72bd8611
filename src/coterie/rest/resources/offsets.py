"""``/connectors/{connector}/offsets``: shows, changes and resets how far a connector has read (KIP-875)."""

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response

from coterie.herder.requests.kinds import Answer
from coterie.herder.requests.reads import ConnectorOffsets, DescribeConnectorOffsets
from coterie.herder.requests.refusals import SuccessWithoutContent
from coterie.herder.requests.writes import ChangeOffsets
from coterie.nouns.connector_offsets import RESET_OFFSETS, OffsetChange
from coterie.rest import bodies, problems, views
from coterie.rest.endpoints import Operation
from coterie.rest.herder_requests import HerderClient
from coterie.rest.json_response import JSONResponse
from coterie.rest.request_parameters import connector_in_path
from coterie.rest.routing import Handlers


class OffsetsResource:
    """The HTTP handlers of one worker for ``/connectors/{connector}/offsets``."""

    def __init__(self, herder: HerderClient) -> None:
        self._herder = herder

    def handlers(self) -> Handlers:
        """The methods of this object that handle the requests, by operation of the endpoint."""
        return {
            Operation.DESCRIBE_OFFSETS: self.describe_offsets,
            Operation.CHANGE_OFFSETS: self.change_offsets,
            Operation.RESET_OFFSETS: self.reset_offsets,
        }

    async def describe_offsets(self, request: Request) -> Response:
        """The connector's offsets: how far the committed batches of its tasks have read."""
        herder_request = DescribeConnectorOffsets(connector=connector_in_path(request))
        return JSONResponse(views.offsets_json(await self._herder.ask(herder_request, ConnectorOffsets)))

    async def change_offsets(self, request: Request) -> Response:
        """Set the connector's offsets that the body contains; its other offsets stay as they are."""
        body = await bodies.read_body(request)
        change = OffsetChange(offsets=await bodies.parse_on_thread_if_large(bodies.parse_offsets, body))
        herder_request = ChangeOffsets(connector=connector_in_path(request), change=change)
        to_message_response_or_raise = _message_response_factory(views.OFFSETS_ALTERED_MESSAGE)
        return await self._herder.ask_or_forward(request, body, herder_request, to_message_response_or_raise)

    async def reset_offsets(self, request: Request) -> Response:
        """Remove all offsets of the connector, so that it reads its input as a new connector does."""
        herder_request = ChangeOffsets(connector=connector_in_path(request), change=RESET_OFFSETS)
        to_message_response_or_raise = _message_response_factory(views.OFFSETS_RESET_MESSAGE)
        return await self._herder.ask_or_forward(request, b"", herder_request, to_message_response_or_raise)


def _message_response_factory(message: str) -> Callable[[Answer], Response]:
    """A function that makes the HTTP response with ``message`` for a :class:`SuccessWithoutContent`, and raises
    HerderRefusal when the herder refused the request."""

    def to_message_response_or_raise(answer: Answer) -> Response:
        problems.answer_or_raise(answer, SuccessWithoutContent)
        return JSONResponse({"message": message})

    return to_message_response_or_raise
