"""Checks requests that change something (mutations): a browser may send such a request for a web page of another
address, without the user's knowledge (cross-site request forgery, CSRF).

A browser sends a form or plain text to any host without a preflight request (a "simple request" of CORS), and puts the
address of the page into ``Origin``. It sends JSON to another host only when that host allows it in its preflight
response. So a mutation is accepted only from this worker's own pages, from pages of allowed origins, and from programs,
which need no ``Origin``; and a body that is read only as JSON (:func:`coterie.rest.media_types.check_content_type`).

The owner of a domain can let its name resolve to this worker's address (DNS rebinding): the browser then sends that
name in the headers Origin and Host. So the two must be equal, and Host must contain a name that such a domain cannot
be: an IP address, localhost, or a host of this worker.
"""

from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.requests import Request

from coterie.rest.cross_origin import CrossOriginRules
from coterie.rest.problems import ForeignOriginError

_DEFAULT_PORT_BY_SCHEME = {"http": 80, "https": 443}
"""The port of a URL without a port, by scheme."""


def check_mutation_origin(request: Request, rules: CrossOriginRules) -> None:
    """Check that ``request``, which may change something, comes from no page of another address.

    :raises ForeignOriginError: when an ``Origin`` header has another scheme, host or port than the request was sent to,
        or the request was sent to a host that is not this worker's, and ``rules`` do not allow pages of that origin to
        send requests of this method.
    """
    own_origin = _own_origin(request, rules)
    for origin in request.headers.getlist("origin"):
        is_own = own_origin is not None and _parse_origin(origin) == own_origin
        if not is_own and not rules.allows_request(origin, request.method):
            raise ForeignOriginError(
                f"HTTP 403 Forbidden: the request comes from a page of {origin}. Only a page from this worker's own "
                "address (an IP address, localhost, this machine's host name, or a host in listeners or "
                "rest.advertised.host.name), or of an origin and with a method that access.control.allow.origin and "
                "access.control.allow.methods allow, may send this request; a program needs no Origin header"
            )


def _own_origin(request: Request, rules: CrossOriginRules) -> tuple[str, str, int | None] | None:
    """The origin of this worker's own pages: scheme, host and port that ``request`` was sent to. None if the host is
    not this worker's: no IP address, not localhost, and none of ``rules.own_hosts``."""
    origin = _parse_origin(f"{request.scope['scheme']}://{request.headers.get('host', '')}")
    if origin is None or not (_is_local_or_address(origin[1]) or origin[1] in rules.own_hosts):
        return None
    return origin


def _is_local_or_address(host: str) -> bool:
    """Whether ``host`` is an IP address, localhost or a name under .localhost: no DNS server gives these an address."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _parse_origin(url: str) -> tuple[str, str, int | None] | None:
    """Scheme, host and port of ``url``, with the scheme's default port if ``url`` has none. None when ``url`` is
    invalid or contains no host: an ``Origin`` may be ``null``."""
    try:
        parts = urlsplit(url)
        port = parts.port or _DEFAULT_PORT_BY_SCHEME.get(parts.scheme)
    except ValueError:
        return None
    return None if parts.hostname is None else (parts.scheme, parts.hostname, port)
