"""Sends requests of clients to this worker's herder, and to another worker when the herder cannot answer them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import httpx
from starlette.requests import Request
from starlette.responses import Response

from coterie.herder.requests.kinds import Answer
from coterie.herder.requests.kinds import Request as HerderRequest
from coterie.herder.requests.reads import ConnectorDescriptions, ConnectorInfo, ConnectorStatus, DescribeConnectors
from coterie.herder.requests.refusals import Problem, RequestRefused, SuccessWithoutContent
from coterie.herder.requests.signatures import ContentSignature, SignContent
from coterie.herder.requests.writes import PutTaskConfigs
from coterie.herder.session_keys import Signature
from coterie.nouns.jobs import ConnectorName
from coterie.rest import audit, problems
from coterie.rest.leader import forward_to_worker
from coterie.rest.writes import ClientWrite, perform_or_forward_write
from coterie.worker.worker import Worker

CONNECTORS_PER_PIECE = 50
"""The number of connectors that are described before the event loop runs other callbacks."""


class HerderClient:
    """Sends the requests of clients to the herder of one worker, and forwards them to other workers with its HTTP
    client. A client's write is attempted until its time limit while it cannot be performed."""

    def __init__(self, worker: Worker, http_client: httpx.AsyncClient) -> None:
        self.worker = worker
        self.http_client = http_client

    async def ask(self, herder_request: HerderRequest, answer_type: type[problems.AnswerT]) -> problems.AnswerT:
        """The response of this worker's herder to ``herder_request``, of the type ``answer_type``. The request is not
        forwarded.

        :raises HerderRefusal: when the herder refused the request.
        """
        return problems.answer_or_raise(await self.worker.ask(herder_request), answer_type)

    async def describe_existing_connectors_in_pieces(
        self, connectors: Sequence[ConnectorName]
    ) -> AsyncIterator[Sequence[tuple[ConnectorInfo, ConnectorStatus | None]]]:
        """The configs and statuses of ``connectors``, in their order, in pieces of :data:`CONNECTORS_PER_PIECE`: to
        describe thousands of connectors at once would block the event loop for too long. Between two pieces the event
        loop runs other callbacks. A connector that does not exist, for example because it was deleted meanwhile, is
        left out.

        :raises HerderRefusal: when the herder refused the request.
        """
        for first in range(0, len(connectors), CONNECTORS_PER_PIECE):
            names = tuple(connectors[first : first + CONNECTORS_PER_PIECE])
            yield (await self.ask(DescribeConnectors(connectors=names), ConnectorDescriptions)).connectors
            await asyncio.sleep(0)

    async def ask_or_forward(
        self,
        request: Request,
        body: bytes,
        herder_request: HerderRequest,
        to_response_or_raise: Callable[[Answer], Response],
    ) -> Response:
        """Send ``herder_request`` to this worker's herder. Return its response as HTTP, as ``to_response_or_raise``
        makes it. If the herder responds that only the leader or another worker can serve the request, forward
        ``request`` with ``body`` to that worker, and return its response. A client's write waits until its time limit
        while it cannot be performed (:func:`perform_or_forward_write`).

        :raises HerderRefusal: when the request was refused, was already forwarded twice, or is a client's write whose
            time limit is over.
        :raises WorldError: when that worker cannot be reached or does not respond; for a client's write, see
            :func:`perform_or_forward_write`.
        """
        if isinstance(herder_request, ClientWrite) and not isinstance(herder_request, PutTaskConfigs):

            def keep_config_before_request_and_respond(answer: Answer) -> Response:
                audit.keep_config_before_request_for_audit(request, answer)
                return to_response_or_raise(answer)

            return await perform_or_forward_write(
                self.worker,
                self.http_client,
                request,
                body,
                herder_request,
                self.sign,
                keep_config_before_request_and_respond,
            )
        answer = await self.worker.ask(herder_request)
        if isinstance(answer, RequestRefused) and answer.problem in (Problem.NOT_LEADER, Problem.NOT_THIS_WORKER):
            return await forward_to_worker(self.http_client, request, body, answer, self.sign)
        return to_response_or_raise(answer)

    async def sign(self, content: bytes) -> Signature | None:
        """The signature of ``content`` with the group's session key. None when the group's protocol has no session
        keys, when this worker has not read a key yet, and when its herder refuses, for example while it starts."""
        answer = await self.worker.ask(SignContent(content=content))
        return answer.signature if isinstance(answer, ContentSignature) else None


def empty_success_response_factory(http_status: int) -> Callable[[Answer], Response]:
    """A function that returns an empty response with ``http_status`` for a :class:`SuccessWithoutContent`, and raises
    HerderRefusal when the herder refused the request."""

    def to_empty_response_or_raise(answer: Answer) -> Response:
        problems.answer_or_raise(answer, SuccessWithoutContent)
        return Response(status_code=http_status)

    return to_empty_response_or_raise
