"""``/`` and ``/health``: the worker's version and health."""

import asyncio
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from coterie.herder.requests.views import DescribeWorker, WorkerView
from coterie.rest.endpoints import JSON, Endpoint, Operation
from coterie.rest.json_response import JSONResponse
from coterie.rest.openapi import openapi_document_for_clients
from coterie.rest.problems import RETRY_LATER_HEADER
from coterie.rest.routing import Handlers
from coterie.worker.worker import Worker, WorkerPhase

CONNECT_VERSION = "4.3.1"
"""The version of Kafka Connect whose API this is; clients enable features by this version."""
HEALTH_TIMEOUT_S = 10.0
"""How long ``GET /health`` waits for the herder's response before it reports the worker as unhealthy."""


class ServerResource:
    """The HTTP handlers of one worker for ``/``, ``/health`` and ``/coterie/openapi.json``."""

    def __init__(self, worker: Worker, *, cluster_id: str, endpoints: Sequence[Endpoint]) -> None:
        """``cluster_id`` is the id that the brokers report for their cluster; ``endpoints`` are those of the API."""
        self._endpoints = endpoints
        self._worker = worker
        self._cluster_id = cluster_id
        self._api: bytes | None = None
        """The OpenAPI document; None before it is requested for the first time."""

    def handlers(self) -> Handlers:
        """The methods of this object that handle the requests, by operation of the endpoint."""
        return {
            Operation.DESCRIBE_SERVER: self.describe_server,
            Operation.DESCRIBE_HEALTH: self.describe_health,
            Operation.DESCRIBE_API: self.describe_api,
        }

    async def describe_server(self, _: Request) -> Response:
        """The version of Connect's API and the cluster's id, in Connect's fields only: some clients refuse an object
        with further fields. ``GET /coterie/worker`` contains Coterie's version."""
        return JSONResponse({"version": CONNECT_VERSION, "commit": "unknown", "kafka_cluster_id": self._cluster_id})

    async def describe_api(self, _: Request) -> Response:
        """The OpenAPI document of this API. It is made on a thread, because that takes longer than the event loop may
        stall, and kept after the first request."""
        if self._api is None:
            document = await asyncio.to_thread(openapi_document_for_clients, self._endpoints)
            self._api = bytes(JSONResponse(document).body)
        return Response(self._api, media_type=JSON)

    async def describe_health(self, _: Request) -> Response:
        """The worker's health (KIP-1017): 503 while it starts; 200 when its herder responds within
        :data:`HEALTH_TIMEOUT_S`; 500 when the herder does not respond in time or refuses, for example because the
        worker has ended, and when too many threads of the worker hang in plug-ins."""
        if self._worker.phase is WorkerPhase.STARTING:
            return _health_response(503, "starting", f"Worker is still starting up. It is {self._worker.startup_step}")
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT_S):
                answer = await self._worker.ask(DescribeWorker())
        except TimeoutError:
            answer = None
        if isinstance(answer, WorkerView):
            if answer.no_new_jobs_reason is not None:
                return _health_response(500, "unhealthy", answer.no_new_jobs_reason)
            return _health_response(200, "healthy", "Worker has completed startup and is ready to handle requests.")
        message = "Worker was unable to handle this request and may be unable to handle other requests."
        return _health_response(500, "unhealthy", message)


def _health_response(http_status: int, health_status: str, message: str) -> Response:
    """A response of ``GET /health``; ``health_status`` is the value of the field ``status`` in the body."""
    headers = RETRY_LATER_HEADER if http_status == 503 else None
    return JSONResponse({"status": health_status, "message": message}, status_code=http_status, headers=headers)
