"""What a request that changes something must look like, so that no web page can have a browser send it.

A browser sends a form or plain text to any host without asking that host first (a "simple request" of CORS), and names
the page that it comes from in ``Origin``. It sends JSON to another host only where that host has allowed it.
"""

from urllib.parse import urlsplit

from starlette.requests import Request

from coterie.rest.problems import ForeignOriginError, NotJsonError

_DEFAULT_PORTS = {"http": 80, "https": 443}


def check(request: Request) -> None:
    """Let reads pass, and mutations of this worker's own pages or of programs; without a body, no type is needed.

    :raises ForeignOriginError: when ``Origin`` has another scheme, host or port than the request was sent to.
    :raises NotJsonError: when there is a body and it is not declared as ``application/json``.
    """
    if request.method in ("GET", "HEAD"):
        return
    own = _address(f"{request.scope['scheme']}://{request.headers.get('host', '')}")
    for origin in request.headers.getlist("origin"):
        if own is None or _address(origin) != own:
            raise ForeignOriginError(
                f"HTTP 403 Forbidden: the request comes from a page of {origin}. Only a page of the address that it is "
                "sent to may change something here; a program sends no Origin header"
            )
    declared = request.headers.get("content-type", "")
    if _has_body(request) and declared.partition(";")[0].strip().lower() != "application/json":
        raise NotJsonError(
            f"HTTP 415 Unsupported Media Type: the Content-Type of the body is {declared or 'missing'}. "
            "Send JSON with the header Content-Type: application/json"
        )


def _has_body(request: Request) -> bool:
    return "transfer-encoding" in request.headers or request.headers.get("content-length", "0") != "0"


def _address(url: str) -> tuple[str, str, int | None] | None:
    """Scheme, host and port of ``url``; None where it names no host, as ``null`` does."""
    try:
        parts = urlsplit(url)
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
    except ValueError:
        return None
    return None if parts.hostname is None else (parts.scheme, parts.hostname, port)
