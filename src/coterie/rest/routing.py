"""Sends each request to the handler of its endpoint, with the responses that follow from the table of endpoints: 404
for an unknown path, 405 and ``Allow`` for another method, OPTIONS and HEAD.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, NoMatchFound
from starlette.types import Receive, Scope, Send

from coterie.rest.access import AccessGate
from coterie.rest.endpoints import Endpoint, Operation
from coterie.rest.paths import PathTemplate, request_path_segments

Handler = Callable[[Request], Awaitable[Response]]
"""Handles the requests of one endpoint. It raises the exceptions for which `problems.error_response` makes
responses."""
Handlers = Mapping[Operation, Handler]


@dataclass(frozen=True, slots=True)
class _ServedEndpoint:
    """An endpoint with the function that handles its requests."""

    endpoint: Endpoint
    handler: Handler


class AllEndpointsRoute(BaseRoute):
    """The only route of the application: it matches every request, and finds the endpoint itself.

    Starlette's own routes match the decoded path, in which ``src1%2Fstatus`` and ``src1/status`` are the same.
    """

    def __init__(self, endpoints: Sequence[Endpoint], resources: Iterable[Handlers], gate: AccessGate) -> None:
        """``resources`` contains the handlers of each resource: all together exactly one handler for each of
        ``endpoints``. Every request passes ``gate``."""
        self._gate = gate
        handlers: dict[Operation, Handler] = {}
        for resource in resources:
            assert not (twice := resource.keys() & handlers.keys()), f"several handlers for {sorted(twice)}"
            handlers |= resource
        operations = [endpoint.operation for endpoint in endpoints]
        assert sorted(operations) == sorted(handlers), (
            f"each endpoint must have its own operation, and each operation one handler: {sorted(operations)} are the "
            f"operations of the endpoints, {sorted(handlers)} have handlers"
        )
        self._endpoints_by_path: dict[PathTemplate, dict[str, _ServedEndpoint]] = {}
        for endpoint in endpoints:
            template = PathTemplate.parse(endpoint.path)
            served = _ServedEndpoint(endpoint, handlers[endpoint.operation])
            self._endpoints_by_path.setdefault(template, {})[endpoint.method] = served

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Every HTTP request matches."""
        return (Match.FULL if scope["type"] == "http" else Match.NONE), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the request to its handler, and its response to the client."""
        request = Request(scope, receive, send)
        response = await self._find_endpoint_and_serve(request)
        await response(scope, receive, send)

    def url_path_for(self, name: str, /, **path_params: object) -> NoReturn:
        """Endpoints have no names for URLs.

        :raises NoMatchFound: always.
        """
        raise NoMatchFound(name, path_params)

    async def _find_endpoint_and_serve(self, request: Request) -> Response:
        """The response of the endpoint whose path matches the path of ``request``.

        :raises HTTPException: with status 404 for an unknown path, 405 for a method that the path does not have, and
            406 when the client does not accept the media type of the response.
        :raises HttpRefusal: when the path or the request's media type is invalid, the caller may not use the endpoint,
            or the handler refuses the request.
        """
        segments = request_path_segments(request)
        for template, endpoints in self._endpoints_by_path.items():
            if (path_params := template.match(segments)) is not None:
                request.scope["path_params"] = path_params
                return await self._dispatch_by_method(request, endpoints)
        raise HTTPException(404)

    async def _dispatch_by_method(self, request: Request, endpoints: Mapping[str, _ServedEndpoint]) -> Response:
        """The response of the endpoint of the request's method; HEAD is served by the endpoint of GET. ``endpoints``:
        those of the request's path, by method.

        :raises HTTPException: with status 405, when the path does not have the method, and 406, when the client does
            not accept the media type of the response.
        :raises HttpRefusal: when the request's media type is not JSON, the caller may not use the endpoint, or the
            handler refuses the request.
        """
        allowed = _allowed_methods(endpoints)
        if request.method == "OPTIONS":
            return await self._gate.check_login_and_serve_options(request, allowed)
        served = endpoints.get("GET" if request.method == "HEAD" else request.method)
        if served is None:
            raise HTTPException(405, headers={"Allow": ",".join(allowed)})
        return await self._gate.check_access_and_serve(request, served.endpoint, served.handler)


def _allowed_methods(endpoints: Mapping[str, _ServedEndpoint]) -> list[str]:
    """The value of ``Allow`` for a path with these endpoints."""
    return [*(["HEAD"] if "GET" in endpoints else []), *endpoints, "OPTIONS"]
