"""The data that this package keeps for one request while it is served."""

from collections.abc import Mapping
from dataclasses import dataclass

from starlette.requests import Request

from coterie.rest.endpoints import Role

_SCOPE_KEY = "coterie.request_context"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The sender of a request to the REST API; for a request that another worker forwards, the client that sent it."""

    user: str | None
    """The user's name; None when users need not log in, and for another worker's own signed request."""
    role: Role
    address: str
    """From where the request was sent, only for log messages and the audit log: the client's IP address
    (:func:`callers.client_address_or_unknown`), or ``unknown``. For a request that another worker forwards: the
    client's address as that worker has signed it. If another worker asks for this worker's state: the advertised
    ``host:port`` of that worker."""


@dataclass(slots=True, kw_only=True)
class RequestContext:
    """Data of one request that several modules need. Each field is written by one module."""

    caller: Caller | None = None
    """Written by `access`; None before the caller is known, and for ``GET /health`` if it needs no log-in."""
    body: bytes | None = None
    """Written by `bodies`; None before the whole body was received."""
    has_audit_line: bool = False
    """Written by `audit`: whether the audit log, of this worker or of another one, has the line of the request."""
    config_before_request: Mapping[str, str] | None = None
    """Written by `audit`: the connector's config before the request, if the request has changed or deleted the
    connector. Otherwise None; also if there was no connector before, or its config before is not known any more."""


def context_of(request: Request) -> RequestContext:
    """The context of ``request``. It belongs to the HTTP request: two objects ``Request`` of the same HTTP request have
    the same context."""
    context: RequestContext = request.scope.setdefault(_SCOPE_KEY, RequestContext())
    return context
