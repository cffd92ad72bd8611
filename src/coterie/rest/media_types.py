"""Checks the media types of a request: this API reads JSON only, and writes it with few exceptions."""

from starlette.exceptions import HTTPException
from starlette.requests import Request

from coterie.rest.endpoints import JSON
from coterie.rest.problems import BadRequestError, NotJsonError


def check_content_type(request: Request, *, reads_body: bool) -> None:
    """Check the ``Content-Type`` of ``request``. A body that the endpoint reads must be JSON. If the request has the
    header, it must be JSON also when the body is empty or not read, as in Connect. ``reads_body``: whether the endpoint
    reads the body.

    :raises BadRequestError: when the ``Content-Type`` is not a media type.
    :raises NotJsonError: when the ``Content-Type`` is another one than JSON, or a body that is read has none.
    """
    content_type = request.headers.get("content-type")
    if not content_type:
        if not reads_body or not _has_body(request):
            return
    else:
        media_type = content_type.partition(";")[0].strip().lower()
        if media_type == JSON:
            return
        if not all(media_type.partition("/")):
            raise BadRequestError(f"HTTP 400 Bad Request: the Content-Type {content_type!r} is not a media type")
    raise NotJsonError("HTTP 415 Unsupported Media Type")


def check_accept_header(request: Request, media_type: str) -> None:
    """Check that the client accepts ``media_type``, which has no parameters.

    :raises HTTPException: with status 406, when the ``Accept`` headers have no range that contains ``media_type``.
    """
    ranges = [part.strip() for value in request.headers.getlist("accept") for part in value.split(",") if part.strip()]
    if ranges and not any(_is_accepted(media_type, one) for one in ranges):
        raise HTTPException(406)


def _is_accepted(media_type: str, media_range: str) -> bool:
    """Whether ``media_range``, one item of an ``Accept`` header, contains ``media_type``. As in Connect, the quality
    (``;q=``) is ignored. ``*`` alone is accepted because older Java clients send it."""
    type_, _, subtype = media_type.partition("/")
    accepted = media_range.partition(";")[0].strip().lower()
    return accepted in (media_type, f"{type_}/*", f"*/{subtype}", "*/*", "*")


def _has_body(request: Request) -> bool:
    """Whether ``request`` has a body, according to its headers."""
    return "transfer-encoding" in request.headers or request.headers.get("content-length", "0") != "0"
