"""The endpoints that other workers of the group use. Their requests are signed (KIP-507)."""

from typing import NoReturn
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response

from coterie.herder.requests.refusals import RequestRefused
from coterie.herder.requests.signatures import FenceTasks
from coterie.herder.requests.writes import PutTaskConfigs
from coterie.nouns.ids import Incarnation
from coterie.rest import bodies, problems, signatures
from coterie.rest.endpoints import Operation
from coterie.rest.herder_requests import HerderClient, empty_success_response_factory
from coterie.rest.leader import INCARNATION_HEADER
from coterie.rest.request_parameters import connector_in_path
from coterie.rest.routing import Handlers
from coterie.rest.unverified_bodies import UnverifiedBodies


class InterWorkerResource:
    """The HTTP handlers of one worker for other workers' requests."""

    def __init__(self, herder: HerderClient, unverified_bodies: UnverifiedBodies) -> None:
        self._herder = herder
        self._unverified_bodies = unverified_bodies

    def handlers(self) -> Handlers:
        """The methods of this object that handle the requests, by operation of the endpoint."""
        return {Operation.PUT_TASK_CONFIGS: self.put_task_configs, Operation.FENCE_TASKS: self.refuse_to_fence_tasks}

    async def put_task_configs(self, request: Request) -> Response:
        """Replace a connector's task configs: the request of a worker that has split the connector."""
        async with self._unverified_bodies.turn(request):
            body = await bodies.read_body(request)
            # In Connect's order: an unreadable body is refused before the signature is checked.
            configs = await bodies.parse_on_thread_if_large(bodies.parse_task_configs, body)
        # The herder checks the signature as soon as it receives the request.
        signature = signatures.parse_signature(request.headers, body)
        incarnation = request.headers.get(INCARNATION_HEADER)
        herder_request = PutTaskConfigs(
            connector=connector_in_path(request),
            configs=configs,
            signature=signature,
            incarnation=None if incarnation is None else Incarnation(unquote(incarnation)),
        )
        return await self._herder.ask_or_forward(request, body, herder_request, empty_success_response_factory(204))

    async def refuse_to_fence_tasks(self, request: Request) -> NoReturn:
        """Refuse to fence the producers of a connector's tasks: in Coterie the start of a task fences its earlier runs.

        :raises HttpRefusal: always: a BadRequestError when the headers of the signature are invalid, a
            BodyTooLargeError or UnreadableBodyError when the body cannot be read, otherwise a HerderRefusal.
        """
        async with self._unverified_bodies.turn(request):
            body = await bodies.read_body(request)
        signature = signatures.parse_signature(request.headers, body)
        answer = await self._herder.worker.ask(FenceTasks(connector=connector_in_path(request), signature=signature))
        assert isinstance(answer, RequestRefused), "every request is refused"
        raise problems.HerderRefusal(answer)
