"""The web application of one worker: composes the resources and the table of endpoints."""

from collections.abc import Sequence

import httpx
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response

from coterie.nouns.ids import GroupId
from coterie.rest import audit, problems
from coterie.rest.access import AccessGate, AccessRules
from coterie.rest.cross_origin import ResponseHeadersMiddleware
from coterie.rest.endpoints import ENDPOINTS, Endpoint
from coterie.rest.herder_requests import HerderClient
from coterie.rest.resources.connectors import ConnectorConfigsResource
from coterie.rest.resources.group import GroupAndWorkersResource
from coterie.rest.resources.internal import InterWorkerResource
from coterie.rest.resources.loggers import LoggersResource
from coterie.rest.resources.metrics import MetricsResource
from coterie.rest.resources.offsets import OffsetsResource
from coterie.rest.resources.plugins import PluginsResource
from coterie.rest.resources.restarts import RestartsResource
from coterie.rest.resources.server import ServerResource
from coterie.rest.resources.statuses import StatusesResource
from coterie.rest.resources.target_states import TargetStatesResource
from coterie.rest.resources.topics import TopicsResource
from coterie.rest.routing import AllEndpointsRoute
from coterie.rest.unverified_bodies import UnverifiedBodies
from coterie.worker.worker import Worker


def create_app(
    worker: Worker,
    http_client: httpx.AsyncClient,
    *,
    cluster_id: str,
    group_id: GroupId,
    access: AccessRules | None = None,
    endpoints: Sequence[Endpoint] = ENDPOINTS,
) -> Starlette:
    """The web application of ``worker``: Connect's paths and Coterie's own, with error responses for all exceptions.

    ``http_client`` sends requests to other workers; ``cluster_id`` is the id that the brokers report for their cluster,
    ``group_id`` that of the worker's group; ``access``: who may use the application, by default every client;
    ``endpoints``: the endpoints that it serves.
    """
    access = access or AccessRules()
    herder = HerderClient(worker, http_client)
    unverified_bodies = UnverifiedBodies()
    resources = [
        ServerResource(worker, cluster_id=cluster_id, endpoints=endpoints).handlers(),
        MetricsResource(herder, group_id=group_id).handlers(),
        ConnectorConfigsResource(herder).handlers(),
        StatusesResource(herder).handlers(),
        TopicsResource(herder).handlers(),
        TargetStatesResource(herder).handlers(),
        RestartsResource(herder).handlers(),
        PluginsResource(herder).handlers(),
        OffsetsResource(herder).handlers(),
        LoggersResource(herder).handlers(),
        InterWorkerResource(herder, unverified_bodies).handlers(),
        GroupAndWorkersResource(herder).handlers(),
    ]
    operations = {endpoint.operation for endpoint in endpoints}
    served = [{operation: handlers[operation] for operation in handlers.keys() & operations} for handlers in resources]
    return Starlette(
        routes=[AllEndpointsRoute(endpoints, served, AccessGate(worker, access, unverified_bodies))],
        middleware=[
            Middleware(ResponseHeadersMiddleware, rules=access.cross_origin, added_headers=access.added_headers)
        ],
        exception_handlers=dict.fromkeys(problems.HANDLED_EXCEPTIONS, _error_response),
    )


def _error_response(request: Request, error: Exception) -> Response:
    """The response for an exception that a handler has raised."""
    return audit.set_audited_header_only_if_forwarded(request, problems.error_response(request, error))
