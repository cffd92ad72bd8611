"""Pages of other addresses (CORS), and headers that are added to every response: Connect's keys
``access.control.allow.*`` and ``response.http.headers.config``.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coterie.config.rest import ResponseHeader

_ALLOWED_REQUEST_HEADERS = "Authorization, Content-Type, If-Match"
"""The request headers that a page of an allowed origin may send."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossOriginRules:
    """Which pages of other addresses a browser may let use the REST API; none by default. Without ``allowed_methods``,
    pages of ``allowed_origins`` may send no request that changes something."""

    allowed_origins: Sequence[str] = ()
    """The origins, such as ``https://ui.example``, whose pages may use the REST API; ``*`` means every origin."""
    allowed_methods: Sequence[str] = ()
    """The methods of the requests that these pages may send."""
    own_hosts: Collection[str] = ()
    """The names of this worker's hosts, in lower case: pages of these hosts are the worker's own, as those of IP
    addresses and of localhost are."""

    def allows_origin(self, origin: str) -> bool:
        """Whether pages of ``origin`` may read responses."""
        return "*" in self.allowed_origins or origin in self.allowed_origins

    def allows_request(self, origin: str, method: str) -> bool:
        """Whether pages of ``origin`` may send requests of ``method``."""
        return self.allows_origin(origin) and method in self.allowed_methods

    def cors_headers_for_request(self, method: str, request_headers: Headers) -> Mapping[str, str]:
        """The headers of the response to a request with the method ``method`` and the headers ``request_headers``, from
        which a browser reads what a page of another origin may do. Only ``Vary`` when the request has no ``Origin``, or
        one that is not allowed; no header when these rules allow no origin at all."""
        if not self.allowed_origins:
            return {}
        headers = {"Vary": "Origin"}
        origin = request_headers.get("origin")
        if origin is None or not self.allows_origin(origin):
            return headers
        headers["Access-Control-Allow-Origin"] = origin
        if method == "OPTIONS" and "access-control-request-method" in request_headers:
            headers["Access-Control-Allow-Methods"] = ",".join(self.allowed_methods)
            if "access-control-request-headers" in request_headers:
                headers["Access-Control-Allow-Headers"] = _ALLOWED_REQUEST_HEADERS
        else:
            headers["Access-Control-Expose-Headers"] = "ETag, Location, Retry-After"
        return headers


class ResponseHeadersMiddleware:
    """Adds the headers of :class:`CrossOriginRules` and the configured ``added_headers`` to every response of
    ``app``."""

    def __init__(self, app: ASGIApp, *, rules: CrossOriginRules, added_headers: Sequence[ResponseHeader]) -> None:
        self._app = app
        self._rules = rules
        self._added_headers = added_headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(self._rules.cors_headers_for_request(scope["method"], Headers(scope=scope)))
                for name, value, replaces in self._added_headers:
                    if replaces:
                        headers[name] = value
                    else:
                        headers.append(name, value)
            await send(message)

        await self._app(scope, receive, send_with_headers)
